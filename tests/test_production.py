"""Layouts that large models were trained with, against the planner's choice for the same job.

The used layout is within a tenth of the predicted best, or the explanation names what separates
them: recomputation, which the planner finds that it can do without.
"""

from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import pytest

import hardware_profiles as hw
from roofline.explain import choices, differences, largest, versus
from roofline.layout import RECOMPUTE, SCHEDULE, Layout
from roofline.planner import Plan, plan
from roofline.presets import preset
from roofline.training import Training

CLOSE = 0.10


@dataclass(frozen=True)
class Production:
    """A published job, the layout that it ran in, and where that is printed."""

    source: str
    model: str
    cluster: str
    gpus: int
    sequences: int
    sequence: int
    used: dict[str, Any]
    precision: str = "bf16"
    recipe: str | None = None
    of_its_time: dict[str, Any] = field(default_factory=dict)  # what its software could not choose


JOBS = {
    "llama-3-405b": Production(
        "arXiv:2407.21783, table 4 and section 3.3.2: TP 8, CP 1, PP 16, DP 128, 16M tokens; "
        "interleaved, one layer less on the first and the last stage; FSDP shards optimizer states "
        "and gradients; no activation checkpointing",
        *("llama-3-405b", "llama3-roce-24k", 16384, 2048, 8192),
        {"tp": 8, "pp": 16, "chunks": 8, "even": 1, "zero": 2},
    ),
    "gpt-3-175b": Production(
        "arXiv:2104.04473, table 2 and section 5: TP 8, PP 12, micro-batch 1, batch 1536 on 768 "
        "A100; every layer recomputed, plain data parallelism, 2 chunks a stage as in table 1's "
        "launch files",
        *("gpt-3-175b", "dgx-a100-superpod", 768, 1536, 2048),
        {
            **{"tp": 8, "pp": 12, "chunks": 2, "zero": 0, "sequence_parallel": 0},
            "recompute": RECOMPUTE["full"],
        },
        of_its_time={
            **{"recompute": "full", "recompute_share": 1, "sequence_parallel": "off"},
            **{"schedule": "1f1b", "zero": 0},
        },
    ),
    "deepseek-v3": Production(
        "arXiv:2412.19437, sections 3.2 and 3.3.3: PP 16, EP 64, ZeRO-1, DualPipe, no TP; norms, "
        "SwiGLU and MLA up-projections recomputed; its own 8-bit formats and bf16 moments; 15360 "
        "sequences of 4096",
        *("deepseek-v3", "h800-deepseek", 2048, 15360, 4096),
        {
            **{"pp": 16, "ep": 64, "zero": 1, "even": 2},
            **{"schedule": SCHEDULE["dualpipe"], "recompute": RECOMPUTE["modules"]},
        },
        precision="fp8",
        recipe="deepseek-v3",
    ),
    "nemotron-4-340b": Production(
        "arXiv:2406.11704, table 2: TP 8, PP 12, DP 64 on 6144 H100, batch 2304; interleaved, "
        "distributed optimizer; a layer a chunk is assumed",
        *("nemotron-4-340b", "dgx-h100-superpod", 6144, 2304, 4096),
        {"tp": 8, "pp": 12, "chunks": 8, "zero": 1},
    ),
}


@cache
def planned(name: str, *, of_its_time: bool = False) -> Plan:
    job = JOBS[name]
    limits = job.of_its_time if of_its_time else {}
    return plan(
        preset(job.model).model,
        hw.cluster(job.cluster),
        job.gpus,
        tokens=job.sequences * job.sequence,
        sequence=job.sequence,
        precision=job.precision,
        recipe=job.recipe,
        **limits,
    )


def best(name: str, *, of_its_time: bool = False) -> Training:
    found = planned(name, of_its_time=of_its_time).best
    assert found
    return found


def used(name: str, **changed: Any) -> Training:
    """The published layout with the framework's habits that the plan has."""
    job, question = JOBS[name], planned(name).question
    sizes = {"gpus": job.gpus, "batch": job.sequences, "sequence": job.sequence}
    layout: Layout = replace(question.base, **sizes, **job.used | changed)
    return question.training(layout)


def slower(here: Training, there: Training) -> float:
    return float(there.time.seconds / here.time.seconds) - 1


@pytest.mark.parametrize("name", JOBS)
def test_the_used_layout_is_as_good_or_recomputation_separates_them(name: str) -> None:
    """Each as printed in its ``source``; else the assumption is most of the difference."""
    here, there = best(name), used(name)
    if abs(slower(here, there)) > CLOSE:
        first = differences(here.time, there.time)[0]
        assert first.term == "recompute"
        assert first.more > 0.5 * (there.time.seconds - here.time.seconds)
        assert f": {first.term} +" in versus(here, there)
        assert JOBS[name].of_its_time  # and the next test makes it for both


@pytest.mark.parametrize("name", [name for name, job in JOBS.items() if job.of_its_time])
def test_without_what_its_software_lacked_the_used_layout_is_as_good(name: str) -> None:
    """With the assumption made for both, nothing separates them."""
    assert abs(slower(best(name, of_its_time=True), used(name))) <= CLOSE


@pytest.mark.parametrize("name", JOBS)
def test_the_used_layout_fits(name: str) -> None:
    """It ran on GPUs of 80 GB."""
    there = used(name)
    assert there.memory.fits(there.cluster.hbm_bytes)
    assert "does not fit" not in versus(best(name), there)


def test_what_makes_deepseek_v3_fit() -> None:
    """Section 3.2.3 and 3.3.3 say what saves memory, so that no tensor parallelism is needed: each
    alone is not enough, and the explanation says which tensors are too much.
    """
    here, kept = best("deepseek-v3"), used("deepseek-v3", recompute=RECOMPUTE["none"])
    assert not kept.memory.fits(kept.cluster.hbm_bytes)
    parts = [part for part, _ in largest(kept.memory)]
    assert parts == ["experts", "attention"]
    text = versus(here, kept)
    assert "does not fit" in text
    assert all(f"{part} " in text.split("does not fit")[1] for part in parts)
    wide = replace(planned("deepseek-v3").question, recipe="fp8").training(
        used("deepseek-v3").layout
    )
    assert not wide.memory.fits(wide.cluster.hbm_bytes)
    assert used("deepseek-v3").layout.tp == 1


def test_one_choice_changed_names_the_cheap_modules() -> None:
    """Of DeepSeek-V3's layout without recomputation: the least slower that brings activations down
    by a third is to repeat the modules; whole layers cost more.
    """
    kept = used("deepseek-v3", recompute=RECOMPUTE["none"])
    found = choices(planned("deepseek-v3").question, kept.layout)
    again = {one.value: one for one in found if one.name == "recompute"}
    less = [one for one in again.values() if one.memory < 0.8 * kept.memory.total]
    assert min(less, key=lambda one: one.slower).value == "modules"
    assert again["modules"].slower < 0.5 * again["full"].slower


def test_a_changed_choice_keeps_the_habits_of_the_layout() -> None:
    """Experts on at most 4 nodes of a token, section 2.1.2: also in what is predicted beside it."""
    limited = used("deepseek-v3", node_limit=4.0)
    found = choices(planned("deepseek-v3").question, limited.layout)
    kept = next(one for one in found if (one.name, one.value) == ("recompute", "none"))
    assert kept.slower < 0
    assert kept.layout.node_limit == 4
