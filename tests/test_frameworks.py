"""Whatever a plan for a framework returns can be launched there: the file says it, or a note does.

The law is checked from outside the exporter: a file is read back, the fields that its notes name
are set by hand, and what then comes out has to be predicted as the layout was.
"""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hardware_profiles as hw
from roofline.export import export, load
from roofline.layout import FLASH, OVERLAP, RECOMPUTE, SCHEDULE, Layout
from roofline.limits import FRAMEWORKS
from roofline.planner import Plan, plan
from roofline.presets import preset
from roofline.recipes import RECIPES
from roofline.training import Training, training

H100 = hw.cluster("dgx-h100-superpod")
FORMATS_OF = {
    "any": ("megatron", "torchtitan", "deepspeed", "bridge", "nanotron", "plain"),
    "megatron": ("megatron", "bridge", "plain"),
    "torchtitan": ("torchtitan", "plain"),
    "deepspeed": ("deepspeed", "plain"),
    "fsdp": ("torchtitan", "plain"),
    "nanotron": ("nanotron", "plain"),
}
# What a framework's own file may leave to a note, however the job looks; everything else is in it.
LEFT = {
    "any": None,
    "megatron": set(),
    "torchtitan": set(),
    "deepspeed": {"gpus", "pp", "ep", "even", "sequence", "recompute", "recompute_share"},
    "fsdp": {"order"},
    "nanotron": {"ep", "etp"},
}
MODELS = {"llama-3-8b": 64, "qwen3-30b-a3b": 32}
CASES = [(name, form) for name, forms in FORMATS_OF.items() for form in forms]


@cache
def found(framework: str, model: str) -> Plan:
    gpus = MODELS[model]
    sizes: dict[str, Any] = {"tokens": 4 * gpus * 8192, "sequence": 8192, "headroom": 0.0}
    return plan(preset(model).model, H100, gpus, framework=framework, **sizes)


def planned(framework: str, model: str, share: float) -> Training:
    """One of the layouts that the plan for a framework shows."""
    one = found(framework, model)
    rows = [one.ranked, one.front, one.field]
    counts = [len(each["seconds"]) for each in rows]
    place = int(share * sum(counts))
    for each, count in zip(rows, counts, strict=True):
        if place < count:
            return one.question.training(one.layout(place, each))
        place -= count
    raise AssertionError("a share is below 1")


def named(notes: tuple[str, ...]) -> set[str]:
    """The fields that notes name."""
    return {note.partition(" = ")[0] for note in notes if " = " in note}


def numbers(one: Training) -> tuple[float, float]:
    return float(one.time.seconds), float(one.memory.total)


@pytest.mark.parametrize(("framework", "form"), CASES)
@settings(max_examples=12, deadline=None)
@given(model=st.sampled_from(sorted(MODELS)), share=st.floats(0, 1, exclude_max=True))
def test_file_and_notes_are_the_whole_layout(
    framework: str, form: str, model: str, share: float
) -> None:
    one = planned(framework, model, share)
    text = export(one, form)
    back, told = load(text, form), named(text.notes)
    assert told <= {field.name for field in fields(Layout)} | {"recipe", "precision", "name"} | {
        note for note in told if note.startswith("model.")
    }
    by_hand = {name: getattr(one.layout, name) for name in told if hasattr(one.layout, name)}
    own: tuple[str, ...] = ()
    if (
        "zero" in told or one.layout.data_ranks == 1
    ):  # of one dense rank a reader keeps none of them
        own = ("zero", "shard", "reshard", "gradient_bytes", "dp_overlap", "weight_bytes")
    by_hand |= {name: getattr(one.layout, name) for name in own}
    kept = one.recipe if "recipe" in told else back.recipe
    again = training(
        one.model, replace(back.layout, **by_hand), one.cluster, one.precision, recipe=kept,
        rates=one.overlay or "peak",
    )  # fmt: skip
    assert numbers(again) == pytest.approx(numbers(one), rel=1e-9)
    allowed = LEFT[framework]
    if form == framework and allowed is not None:
        assert {name for name in told if hasattr(one.layout, name)} <= allowed | set(own)
        assert "recipe" not in told


def test_torchtitan_as_it_runs_without_asking() -> None:
    """Its defaults: no asynchronous tensor parallelism, fp32 weights sharded and reduced in fp32,
    and no zero-bubble schedule of a compiled model, which PyTorch refuses."""
    one = found("torchtitan", "llama-3-8b")
    best = one.best
    assert best is not None
    assert best.layout.tp_overlap == OVERLAP["none"]
    assert best.layout.gradient_bytes == 4
    assert best.layout.attention == FLASH["flash-2"]
    assert best.recipe == RECIPES["fsdp-dtensor"]
    assert set(one.ranked["schedule"]) == {SCHEDULE["1f1b"]}
    kinds = {RECOMPUTE[name] for name in ("none", "half", "block")}
    for rows in (one.ranked, one.field):
        assert set(rows["recompute"]) <= kinds
        assert not any((rows["recompute"] == RECOMPUTE["half"]) & (rows["recompute_share"] < 1))


def test_megatron_repeats_parts_of_all_layers() -> None:
    """``--recompute-num-layers`` is of ``--recompute-granularity full`` alone."""
    for model in MODELS:
        rows = found("megatron", model).field
        some = rows["recompute"][rows["recompute_share"] < 1]
        assert set(some) <= {RECOMPUTE["none"], RECOMPUTE["full"]}
        assert RECOMPUTE["full"] in some


def test_deepspeed_joins_what_goes_together() -> None:
    """Its pipeline refuses ZeRO-2 and 3, AutoTP refuses ZeRO-3."""
    rows = found("deepspeed", "llama-3-8b").field
    assert not any((rows["pp"] > 1) & (rows["zero"] >= 2))
    assert not any((rows["tp"] > 1) & (rows["zero"] == 3))
    assert any(rows["zero"] == 3)
    with pytest.raises(
        ValueError, match="zero=3 leaves no layout on 16 GPUs; the nearest that does: zero=1"
    ):
        plan(
            preset("llama-3-8b").model, H100, 16, tokens=16 * 4096, framework="deepspeed",
            pp=4, zero=3,
        )  # fmt: skip


def test_the_json_says_where_the_script_has_to_speak() -> None:
    layout = Layout(64, pp=4, batch=64, zero=1, sequence_parallel=0, tp_overlap=0)
    one = training(preset("llama-3-8b").model, layout, H100, recipe="bf16-gradients")
    notes = export(one, "deepspeed").notes
    assert (
        "pp = 4 is not in this file; state it in num_stages of the script's PipelineModule" in notes
    )


def test_a_limit_beyond_the_framework_is_refused() -> None:
    """A launch file of torchtitan has no ZeRO-1."""
    with pytest.raises(ValueError, match="zero: 1 is refused, torchtitan cannot do it"):
        plan(preset("llama-3-8b").model, H100, 16, tokens=64 * 4096, framework="torchtitan", zero=1)


@pytest.mark.parametrize(
    ("recipe", "flag", "each"), [(None, False, 4), ("bf16-gradients", True, 2)]
)
def test_megatron_reduces_gradients_as_it_keeps_them(
    recipe: str | None, flag: bool, each: int
) -> None:
    """Megatron-Core has one buffer of gradients: fp32, or under --grad-reduce-in-bf16 as the weights."""
    one = plan(
        "llama-3-8b", H100, 16, tokens=64 * 4096, framework="megatron", recipe=recipe, tp=2, pp=2,
        zero=0,
    ).best  # fmt: skip
    assert one is not None
    text = export(one, "megatron")
    assert ("--grad-reduce-in-bf16" in text) is flag
    weights = float(one.memory.parts["gradients"]) / each
    assert float(one.memory.parts["weights"]) == pytest.approx(2 * weights)
    assert one.layout.gradient_bytes == each
    again = load(text, "megatron").training(H100.resized(32), rates=one.overlay or "peak")
    assert again.recipe == one.recipe
    assert not [note for note in text.notes if "recipe" in note or "gradient" in note]


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_framework_has_a_row_here(name: str) -> None:
    assert name in FORMATS_OF
    assert name in LEFT
