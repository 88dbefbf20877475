"""Files of runs that people write: what is known, refused, assumed, and what stands beside it."""

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import hardware_profiles as hp
from roofline import backtest as back
from roofline import baseline, frameworks, runs
from roofline.cli import app
from roofline.run_fields import RunError, checked
from roofline.run_gpus import PARTS, gpu_named, inside
from roofline.run_schema import BESIDE, SECTIONS

ROOT = Path(__file__).parent.parent
PUBLISHED = back.published()
SIZES = {
    "layers": 32,
    "hidden": 4096,
    "ffn_hidden": 14336,
    "heads": 32,
    "kv_heads": 8,
    "head_dim": 128,
    "vocab": 32000,
    "gated_mlp": True,
    "tied_embeddings": False,
    "seq_len": 4096,
}
EXPERTS = {"experts": 8, "top_k": 2, "moe_ffn_hidden": 14336, "moe_layers": 32}
RUN = {
    "id": "mine",
    "model": SIZES,
    "gpu": "H100-80GB-SXM",
    "n_gpus": 32,
    "gpus_per_node": 8,
    "precision": "bf16",
    "tp": 2,
    "pp": 2,
    "cp": 2,
    "vpp": 2,
    "sequence_parallel": True,
    "zero_stage": 1,
    "micro_batch_size": 1,
    "global_batch_size": 64,
    "recompute": "none",
    "framework": "NeMo 25.04",
    "network": {"internode_gbps_per_gpu": 400, "nvlink_domain_gpus": 8},
    "extra": {"pp_schedule": "1F1B"},
}
FEW = {"model": SIZES, "gpu": "H100-80GB-SXM", "n_gpus": 8, "global_batch_size": 32}


def changed(run: Mapping[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy of a run with the value at a dotted path changed."""
    key, _, rest = path.partition(".")
    inner = run.get(key) or {}
    return {**run, key: changed(inner, rest, value) if rest else value}


def refusal(run: Mapping[str, Any]) -> str:
    """Why a run is refused; the run beside it goes on."""
    found = back.backtest([("line 731", run), ("line 732", FEW)])
    assert [each.name for each in found.refused] == ["line 731"]
    assert len(found.rows) == 1
    return found.refused[0].reason


def assumed(run: Mapping[str, Any]) -> tuple[str, ...]:
    found = back.backtest([("it", run)])
    assert not found.refused, found.refused
    return found.rows[0].assumed


def paths(*kinds: str) -> list[str]:
    """Fields of some kinds, with the objects that they stand in."""
    return [
        f"{at}.{key}" if at else key
        for at, table in SECTIONS.items()
        for key, each in table.items()
        if each.kind in kinds
    ]


class TestFields:
    @pytest.mark.parametrize(
        ("path", "near"),
        [
            ("gobal_batch_size", "global_batch_size"),
            ("micro_batch", "micro_batch_size"),
            ("recompute_granularity", "recompute"),
            ("zero", "zero_stage"),
            ("model.hiden", "hidden"),
            ("model.mla.kv_lora", "kv_lora_rank"),
            ("network.nvlink_domain", "nvlink_domain_gpus"),
            ("measured.step_time", "step_time_s"),
            ("derived.steptime_s", "step_time_s"),
            ("extra.recompute_module", "recompute_modules"),
            ("seq_len", "model.seq_len"),
            ("pp_schedule", "extra.pp_schedule"),
            ("model.tp", "tp"),
        ],
    )
    def test_slips_are_refused_with_the_nearest(self, path: str, near: str) -> None:
        """A name like that of a field which the run lacks."""
        place = path.rpartition(".")[0]
        lacking = FEW if "." in near else changed(FEW, f"{place}.{near}".lstrip("."), None)
        said = refusal(changed(lacking, path, 512))
        assert said.startswith(f"{path}: 512 is refused; there is no such field; the nearest")
        assert re.search(rf"\b{re.escape(near)}\b", said.partition("the nearest")[2])

    def test_every_published_field_is_known(self) -> None:
        for run in PUBLISHED:
            unread: list[str] = []
            assert checked(run, unread)["id"] == run["id"]
            assert not unread

    @pytest.mark.parametrize(
        ("path", "value", "line"),
        [
            ("cluster_owner", "us", "cluster_owner is not a field: not read"),
            ("model.licence", "MIT", "model.licence is not a field: not read"),
            ("gobal_batch_size", 7, "gobal_batch_size is not a field: not read"),  # the right one is there
            ("extra.moe_dispatcher", "pigeon", "extra.moe_dispatcher: 'pigeon' is not known, not read"),
            ("extra.cuda_graph_scope", ["dance"], "extra.cuda_graph_scope: 'dance' is not known, not read"),
        ],
    )  # fmt: skip
    def test_what_nobody_reads_is_listed(self, path: str, value: Any, line: str) -> None:
        assert line in assumed(changed(FEW, path, value))
        assert runs.job(changed(FEW, path, value)).layout == runs.job(FEW).layout

    def test_known_words_among_new_ones_count(self) -> None:
        run = changed(FEW, "recompute", "selective")
        words = changed(run, "extra.recompute_modules", ["mlp", "dance"])
        assert (
            runs.job(words).layout
            == runs.job(changed(run, "extra.recompute_modules", ["mlp"])).layout
        )
        assert "extra.recompute_modules: 'dance' is not known, not read" in assumed(words)

    def test_a_text_of_cuda_graphs_is_told(self) -> None:
        """Published tables print "1" of runs with graphs of a few kernels; true is counted."""
        told = "no CUDA graphs: extra.cuda_graphs '1' is a text; allowed: true, to count them"
        plain, text, counted = (
            changed(FEW, "extra.cuda_graphs", value) for value in ("0", "1", True)
        )
        assert set(assumed(text)) - set(assumed(plain)) == {told}
        assert told not in assumed(counted)
        assert [runs.job(one).layout.graphs for one in (plain, text, counted)] == [0, 0, 1]

    def test_extra_holds_what_it_likes(self) -> None:
        run = changed(FEW, "extra", {"my_note": [1], "compile": True} | dict.fromkeys(BESIDE))
        assert assumed(run) == assumed(FEW)

    @pytest.mark.parametrize("path", paths("number", "whole"))
    @pytest.mark.parametrize(
        "value", ["8", True, [8], {}, -5, math.nan, math.inf, 10**400], ids=lambda v: repr(v)[:9]
    )
    def test_numbers_are_numbers(self, path: str, value: Any) -> None:
        with pytest.raises(RunError, match=f"^{re.escape(path)}: .* is refused; allowed: "):
            checked(changed(changed(RUN, "model.mla", None), path, value))

    @pytest.mark.parametrize("path", paths("whole"))
    def test_counts_are_whole(self, path: str) -> None:
        with pytest.raises(RunError, match=rf"^{re.escape(path)}: .* is refused; allowed: "):
            checked(changed(RUN, path, 1.5))

    @pytest.mark.parametrize("path", paths("flag", "switch", "choice", "choices", "pattern"))
    @pytest.mark.parametrize("value", ["perhaps", 7, [[]], {"a": 1}, 0.5], ids=repr)
    def test_choices_are_choices(self, path: str, value: Any) -> None:
        if path == "model.attn_window" and value == 7:
            return  # a window of seven tokens
        if path in paths("choice", "choices") and path.startswith("extra.") and value == "perhaps":
            assert f"{path}: 'perhaps' is not known, not read" in assumed(changed(RUN, path, value))
            return  # a word of a newer release
        with pytest.raises(RunError, match=f"^{re.escape(path)}: .*(allowed|nearest)"):
            checked(changed(RUN, path, value))

    @pytest.mark.parametrize("path", paths("object"))
    @pytest.mark.parametrize("value", ["x", 1, [1], True], ids=repr)
    def test_objects_are_objects(self, path: str, value: Any) -> None:
        with pytest.raises(RunError, match=f"^{re.escape(path)}: .* allowed: an object"):
            checked(changed(RUN, path, value))

    @given(
        st.sampled_from([*paths(*{each.kind for t in SECTIONS.values() for each in t.values()})]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
            lambda inner: (
                st.lists(inner, max_size=2)
                | st.dictionaries(st.text(max_size=3), inner, max_size=2)
            ),
            max_leaves=4,
        ),
    )
    def test_no_value_anywhere_breaks_it(self, path: str, value: Any) -> None:
        """Predicted, or refused by the name of a field; never by Python's own words."""
        found = back.backtest([("it", changed(RUN, path, value)), ("good", RUN)])
        assert found.rows
        assert len(found.rows) + len(found.refused) == 2
        for each in found.refused:
            assert re.match(r".+: .*(is refused|missing|is not)", each.reason, re.S)

    @pytest.mark.parametrize(
        ("path", "value", "message"),
        [
            ("recompute", "ful", "recompute: 'ful' is not one; the nearest is full; allowed: none"),
            ("precision", "bf61", "precision: 'bf61' is not one; the nearest"),
            ("extra.pp_schedule", "gpip", "'gpip' is not one; the nearest are gpipe"),
            ("fsdp", "FULLY_SHARDED", "fsdp: 'FULLY_SHARDED' is refused; allowed: as in pytorch"),
            ("fsdp", True, "fsdp: True is refused; allowed: as in pytorch-fsdp FULL_SHARD"),
            ("zero_stage", 4, "zero_stage: 4 is refused; allowed: 0 to 3"),
            ("network.nvlink_domain_gpus", 0, "nvlink_domain_gpus: 0 is refused; allowed: 1"),
            ("network.internode_gbps_per_gpu", 0, "gpu: 0 is refused; allowed: 0.001"),
            ("model.attn_window", "4k", "model.attn_window: '4k' is refused; allowed: as in"),
            ("model.capacity_factor", "x", "the nearest is extra.capacity_factor"),
            ("extra.capacity_factor", "x", "extra.capacity_factor: 'x' is refused; allowed: 1"),
            (
                "extra.recompute_modules",
                ["mpl"],
                "recompute_modules: 'mpl' is not one; the nearest",
            ),
            ("sequence_parallel", "yes", "allowed: true, false; the nearest is true"),
            ("attention", "magic", "attention: 'magic' is refused; allowed: as in FlashAttention"),
        ],
    )
    def test_bogus_choices(self, path: str, value: Any, message: str) -> None:
        assert message in refusal(changed(FEW, path, value))

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"dp": 4}, "dp: 4 is refused; allowed: 8, n_gpus / (tp · pp · cp)"),
            ({"grad_accum_steps": 3, "micro_batch_size": 1}, "grad_accum_steps: 3 is refused"),
            ({"extra": {"num_microbatches": 3}}, "extra.num_microbatches: 3 is refused"),
            ({"vpp": 2}, "vpp: 2 is refused; allowed: 1, for pp is 1"),
            ({"etp": 2}, "etp: 2 is refused; allowed: 1, for the model has no experts"),
            ({"fsdp": "FSDP2", "zero_stage": 1}, "zero_stage: 1 is refused; allowed: 3 or null"),
            ({"n_gpus": 12, "tp": 8}, "n_gpus: 12 is refused; .* the nearest: 8 and 16"),
            ({"model": SIZES | {"top_k": 2}}, "model.top_k: 2 is refused; allowed: null"),
            ({"model": SIZES | {"experts": 8}}, "model.top_k: missing"),
            ({"model": SIZES | EXPERTS | {"top_k": 9}}, "model.top_k: 9 is refused"),
            ({"model": SIZES | EXPERTS | {"moe_layers": 33}}, "model.moe_layers: 33 is refused"),
            ({"model": SIZES | {"kv_heads": 3}}, "model.kv_heads: 3 .* the nearest is 2"),
        ],
    )
    def test_contradictions(self, change: dict[str, Any], message: str) -> None:
        with pytest.raises(AssertionError, match=re.escape(message).replace(r"\.\*", ".*")):
            raise AssertionError(refusal(FEW | change))

    def test_shards_of_fsdp(self) -> None:
        """FSDP2 over 4 of 8 ranks; over 5 it cannot be."""
        assert runs.job(FEW | {"fsdp": "FSDP2 (dp_shard=4)"}).layout.shard == 4
        assert runs.job(FEW | {"fsdp": "hsdp (DP_SHARD=4)"}).layout.zero == 3
        assert runs.job(FEW | {"fsdp": "hsdp (DP_SHARD=4)"}).layout.shard == 4
        assert refusal(FEW | {"fsdp": "FSDP2 (dp_shard=5)"}).startswith("fsdp: 5 is refused")
        assert runs.job(FEW | {"n_gpus": 16, "gpus_per_node": 4, "fsdp": "HSDP"}).layout.shard == 4
        assert "fsdp = HSDP (dp_shard=8), the replicas of a node" in assumed(FEW | {"fsdp": "HSDP"})
        assert runs.job(FEW | {"fsdp": "my FSDP over 4"}).layout.shard == 0
        assert any("is not read" in line for line in assumed(FEW | {"fsdp": "my FSDP over 4"}))

    def test_micro_batch_follows_from_accumulation(self) -> None:
        """32 sequences on 8 replicas in 2 steps: 2 each."""
        job = runs.job(FEW | {"grad_accum_steps": 2})
        assert job.layout.micro_batch == 2
        assert not any(line.startswith("micro_batch_size") for line in job.assumed)

    @pytest.mark.parametrize(
        ("window", "layers", "size"),
        [
            (512, 32, 512),
            ("128-token sliding window on every other layer (16 of 32)", 16, 128),
            ("chunked 1024 on 3 of 4 layers", 24, 1024),
            ("chunked 8192 on 3 of 4 layers (no effect at seq 4096)", 0, 0),
        ],
    )
    def test_windows(self, window: Any, layers: int, size: int) -> None:
        model = runs.job(changed(FEW, "model.attn_window", window)).model
        assert (model.window.size if model.window else 0) == size
        assert model.windowed_layers == layers


class TestAssumed:
    def test_nothing_where_all_is_stated(self) -> None:
        assert assumed(RUN) == ("habits of NeMo, among them attention: flash",)

    @pytest.mark.parametrize(
        "path",
        ["tp", "pp", "cp", "vpp", "precision", "zero_stage", "micro_batch_size", "recompute",
         "sequence_parallel", "framework", "gpus_per_node", "model.kv_heads", "model.head_dim",
         "model.ffn_hidden", "model.gated_mlp", "model.tied_embeddings", "extra.pp_schedule",
         "network.internode_gbps_per_gpu", "network.nvlink_domain_gpus"],
    )  # fmt: skip
    def test_every_default_is_listed(self, path: str) -> None:
        """Null and left out are the same."""
        run = changed(RUN, "vpp", None) if path == "pp" else RUN
        lines = assumed(changed(run, path, None))
        assert any(line.startswith(path) for line in lines), lines
        key, _, rest = path.partition(".")
        without = {k: v for k, v in run.items() if k != key}
        if rest:
            without[key] = {k: v for k, v in run[key].items() if k != rest}
        assert assumed(without) == lines

    @pytest.mark.parametrize("path", ["ep", "etp", "model.moe_ffn_hidden", "model.moe_layers"])
    def test_of_experts_where_there_are_some(self, path: str) -> None:
        run = RUN | {"model": SIZES | EXPERTS, "ep": 2, "etp": 1}
        if path.startswith("model"):
            assert not any(line.startswith(path) for line in assumed(RUN))
        assert any(line.startswith(path) for line in assumed(changed(run, path, None)))
        assert assumed(run) == assumed(RUN)

    def test_what_is_forced_is_not(self) -> None:
        """One GPU has one of each; one stage has one chunk; ranks that are alone split nothing."""
        one = assumed(FEW | {"n_gpus": 1, "global_batch_size": 1})
        assert not any(line.split()[0] in ("tp", "pp", "cp", "vpp", "ep") for line in one)
        assert not any("network" in line or "micro_batch" in line for line in one)
        two = assumed(FEW | {"pp": 1, "tp": 1})
        assert not any(line.startswith(("vpp", "sequence_parallel")) for line in two)

    def test_are_printed_and_in_json(self, tmp_path: Path) -> None:
        file = tmp_path / "run.json"
        file.write_text(json.dumps(FEW | {"gpu": "MI300X"}))
        text = CliRunner().invoke(app, ["predict", str(file)]).stdout
        lines = json.loads(CliRunner().invoke(app, ["predict", str(file), "--json"]).stdout)
        assert lines["assumed"][0] == "tp = 1"
        flat = " ".join(text.split())
        assert all(f"assumed: {line}" in flat for line in lines["assumed"])
        assert "rates of mi300x are the datasheet's peaks, held against no run" in flat

    @pytest.mark.parametrize("part", PARTS, ids=lambda part: part.profile)
    def test_rates_held_against_no_run_are(self, part: Any) -> None:
        """By the shipped calibrations: those that carry an accuracy were held against runs."""
        found = back.backtest([("it", FEW | {"gpu": part.profile})])
        fit = back.shipped(part.profile)
        held = fit is not None and fit.accuracy is not None
        for row in found.rows:
            assert any(line.startswith("rates of") for line in row.assumed) != held

    @pytest.mark.parametrize(
        ("gpu", "node", "domain"),
        [("GB200-NVL72", 4, 72), ("GB300", None, 72), ("H100-SXM5-80GB", None, 8),
         ("H100-SXM5-80GB", 4, 4), ("GH200", None, 4), ("H20", None, 8)],
    )  # fmt: skip
    def test_nvlink_domain(self, gpu: str, node: int | None, domain: int) -> None:
        """NVL72 joins 72 GPUs over hosts of four; DGX H100 8; Alps 4."""
        run = FEW | {"gpu": gpu, "gpus_per_node": node}
        assert runs.job(run).domain == domain
        assert f"network.nvlink_domain_gpus = {domain}" in assumed(run)


class TestGpus:
    @pytest.mark.parametrize(
        ("gpu", "name"),
        [
            ("H100 PCIe", "h100-pcie"),
            ("NVIDIA H100 PCIe", "h100-pcie"),
            ("h100-80gb-pcie", "h100-pcie"),
            ("H100 SXM5 80GB", "h100-sxm"),
            ("NVIDIA H100 80GB HBM3", "h100-sxm"),
            ("NVIDIA A100-SXM4-80GB", "a100-sxm-80gb"),
            ("NVIDIA A100-SXM4-40GB", "a100-sxm-40gb"),
            ("A100 SXM 40 GB", "a100-sxm-40gb"),
            ("Tesla V100-SXM2-32GB", "v100-sxm"),
            ("NVIDIA GH200 480GB", "gh200"),
            ("GB200 NVL72", "gb200"),
            ("H20", "h20"),
            ("AMD Instinct MI300X OAM", "mi300x"),
            ("NVIDIA GeForce RTX 4090", "rtx-4090"),
            ("B200 192GB", "b200-sxm"),
        ],
    )
    def test_whole_names(self, gpu: str, name: str) -> None:
        """As nvidia-smi and the vendors print them."""
        assert gpu_named(gpu) == (name, "")
        assert name in hp.accelerators()

    @pytest.mark.parametrize(
        ("gpu", "name", "gap"),
        [
            ("H100", "h100-sxm", "form and memory"),
            ("A100", "a100-sxm-80gb", "form and memory"),
            ("H100-80GB", "h100-sxm", "form"),
            ("A100-40GB", "a100-sxm-40gb", "form"),
            ("A100-SXM4", "a100-sxm-80gb", "memory"),
            ("H200", "h200-sxm", "form"),
        ],
    )
    def test_names_with_a_gap_say_so(self, gpu: str, name: str, gap: str) -> None:
        assert gpu_named(gpu) == (name, f"gpu = {name}: '{gpu}' does not say its {gap}")
        assert gpu_named(gpu)[1] in assumed(FEW | {"gpu": gpu})

    @pytest.mark.parametrize(
        ("gpu", "near"),
        [
            ("H100 NVL", "h100-pcie"),
            ("A100 PCIE", "a100-sxm-80gb"),
            ("A100-PCIE-40GB", "a100-sxm-40gb"),
            ("H200 NVL", "h200-sxm"),
            ("H100 64GB", "h100-sxm"),
            ("V100-16GB", "v100-sxm"),
            ("GH200 144GB", "gh200"),
            ("H800 PCIe", "h800-sxm"),
            ("GB200 NVL4", "gb200"),
            ("A800", "h800-sxm"),
            ("H1000", "h100-sxm"),
        ],
    )
    def test_others_are_refused(self, gpu: str, near: str) -> None:
        said = refusal(FEW | {"gpu": gpu})
        assert said.startswith(f"gpu: '{gpu}' is not known; the nearest ")
        assert near in said

    def test_a_part_in_no_cluster_needs_its_network(self) -> None:
        """H20: 450 GB/s of NVLink from its datasheet; what its cards do it has to say."""
        far = FEW | {"gpu": "H20", "n_gpus": 16}
        assert "internode_gbps_per_gpu: missing" in refusal(far)
        assert assumed(far | {"network": {"internode_gbps_per_gpu": 400}})
        assert np.isfinite(back.backtest([("it", FEW | {"gpu": "H20"})]).rows[0].predicted)
        assert "no cluster with tpu-v5e" in refusal(FEW | {"gpu": "tpu-v5e"})


class TestFrameworks:
    @pytest.mark.parametrize(
        ("name", "row"),
        [
            ("NeMo", "NeMo"),
            ("nemo 2.0", "NeMo"),
            ("nemo-2.x", "NeMo"),
            ("NVIDIA NeMo 25.04", "NeMo"),
            ("NeMo 24.07", "NeMo 24.07"),
            ("NeMo 1.22", "NeMo 24.07"),
            ("Megatron-Bridge", "Megatron-Bridge"),
            ("megatron bridge (NeMo 26.02)", "Megatron-Bridge"),
            ("Megatron-LM core r0.8", "Megatron-LM"),
            ("Megatron-Core", "Megatron-LM"),
            ("Megatron-LM", "Megatron-LM"),
            ("torchtitan", "torchtitan"),
            ("TorchTitan", "torchtitan"),
            ("torch-titan", "torchtitan"),
            ("Megatron-DeepSpeed", "Megatron-DeepSpeed"),
            ("MaxText", "JAX"),
            ("PaxML", "JAX"),
            ("LLM Foundry", "Composer FSDP"),
            ("llm-foundry 0.4", "Composer FSDP"),
            ("InternEvo", "InternEvo"),
            ("nanotron", "nanotron"),
        ],
    )
    def test_spellings(self, name: str, row: str) -> None:
        found, told = frameworks.named(FEW | {"framework": name})
        assert (found.name, told) == (row, "")

    @pytest.mark.parametrize(
        ("change", "row", "told"),
        [
            ({"framework": "DeepSpeed"}, "unknown framework", "'DeepSpeed' is not known"),
            ({"framework": "axolotl"}, "unknown framework", "framework: 'axolotl' is not known"),
            ({}, "unknown framework", "framework is not stated"),
            ({"framework": "Megatron-LM", "gpu": "A100"}, "Megatron 2022", "year before 2024"),
            ({"framework": "Megatron-LM", "gpu": "A100", "year": 2025}, "Megatron-LM", ""),
            ({"framework": "Megatron-LM core r0.8", "gpu": "A100"}, "Megatron-LM", ""),
        ],
    )
    def test_what_is_not_known_is_assumed(self, change: Any, row: str, told: str) -> None:
        found, said = frameworks.named(FEW | change)
        assert found.name == row
        assert told in said
        assert bool(said) == bool(told)
        assert not told or said in assumed(FEW | change)

    def test_a_release_may_stand_with_the_name(self) -> None:
        assert frameworks.release({"framework": "Megatron-Bridge 26.08"}) == (26, 8)


class TestBaseline:
    def test_is_the_median_of_the_shipped_runs(self) -> None:
        """So half of them are slower than it, GPU by GPU and precision by precision."""
        groups: dict[str, list[float]] = {}
        found = back.backtest((run["id"], run) for run in PUBLISHED)
        for row in found.rows:
            assert row.measured is not None
            assert row.baseline_of == f"{row.accelerator}, {row.precision}"
            groups.setdefault(row.baseline_of, []).append(row.baseline / row.measured)
        assert all(np.median(each) == pytest.approx(1) for each in groups.values())

    def test_of_a_run_does_not_come_from_its_own_measurement(self) -> None:
        rows = [
            back.backtest([("it", RUN | {"measured": measured})]).rows[0]
            for measured in ({"step_time_s": 1.0}, {"step_time_s": 50.0}, None)
        ]
        assert len({row.baseline for row in rows}) == 1
        assert rows[2].measured is None
        assert rows[0].baseline != pytest.approx(1.0)

    def test_of_one_line_is_that_of_the_whole_file(self) -> None:
        whole = back.backtest((run["id"], run) for run in PUBLISHED[:40])
        alone = back.backtest([("it", PUBLISHED[7])])
        assert alone.rows[0].baseline == next(
            row.baseline for row in whole.rows if row.id == PUBLISHED[7]["id"]
        )

    @pytest.mark.parametrize(
        ("gpu", "precision", "words"),
        [
            ("h100-sxm", "bf16", "h100-sxm, bf16"),
            ("gb300", "mxfp4", "gb300, fp4: no published run is on gb300 in mxfp4"),
            (
                "h200-sxm",
                "fp16",
                "h200-sxm, any precision: no published run is on h200-sxm in fp16",
            ),
            ("mi300x", "bf16", "all GPUs, bf16: no published run is on mi300x"),
        ],
    )
    def test_falls_back_and_says_so(self, gpu: str, precision: str, words: str) -> None:
        share, said = baseline.utilisation(gpu, precision)
        assert said == words
        assert 0 < share < 1

    def test_is_told_of_a_file(self, tmp_path: Path) -> None:
        file = tmp_path / "runs.jsonl"
        file.write_text(json.dumps(FEW | {"gpu": "MI300X", "measured": {"step_time_s": 1.0}}))
        said = " ".join(CliRunner().invoke(app, ["backtest", str(file)]).stdout.split())
        assert "of the runs that we ship" in said
        assert "baseline of all GPUs, bf16: no published run is on mi300x" in said
        assert "Rates that were held against no run: mi300x" in said


class TestFiles:
    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"", "holds no run: it is empty"),
            (b"\n  \n\n", "holds no run: it is empty"),
            (b"\xff\xfe\x01", "is not UTF-8, or no text"),
            (b"PK\x00\x01", "is no text: it holds zero bytes"),
            (b'[{"id": 1}, {"id": 2}]', "is one JSON list; allowed: JSON lines"),
            (b'[\n{"id": 1},\n{"id": 2}\n]', "writes its 2 elements so"),
            (b'{\n"id": 1\n}', "is one JSON object over several lines"),
        ],
    )
    def test_that_are_no_json_lines(self, tmp_path: Path, content: bytes, message: str) -> None:
        file = tmp_path / "runs.jsonl"
        file.write_bytes(content)
        said = CliRunner().invoke(app, ["backtest", str(file)])
        assert said.exit_code == 2
        assert message in said.stderr
        assert said.stdout == ""

    def test_that_are_not_there(self, tmp_path: Path) -> None:
        (tmp_path / "mine.jsonl").write_text("{}")
        for name, message in ((".", "is a folder"), ("mien.jsonl", "the nearest is mine.jsonl")):
            said = CliRunner().invoke(app, ["backtest", str(tmp_path / name)])
            assert said.exit_code == 2
            assert message in said.stderr

    def test_of_which_nothing_can_be_predicted(self, tmp_path: Path) -> None:
        file = tmp_path / "runs.jsonl"
        file.write_text(json.dumps(FEW | {"tp": "x"}) + '\n{"tp": 1, "tp": 2}\n')
        said = CliRunner().invoke(app, ["backtest", str(file)])
        assert said.exit_code == 1
        assert "No run could be predicted" in said.stdout
        assert "'tp' is stated twice" in said.stdout
        document = CliRunner().invoke(app, ["backtest", str(file), "--json"])
        assert document.exit_code == 1
        assert json.loads(document.stdout)["summary"]["refused"] == 2

    def test_with_a_byte_order_mark(self, tmp_path: Path) -> None:
        file = tmp_path / "run.jsonl"
        file.write_text(json.dumps(FEW), "utf-8-sig")
        for command in ("backtest", "predict"):
            assert CliRunner().invoke(app, [command, str(file)]).exit_code == 0

    @pytest.mark.parametrize(
        ("content", "message"),
        [("", "holds no run"), ("[1]", "holds no object"), ('{"a": 1}\n{"a": 2}', "JSON lines")],
    )
    def test_of_one_run(self, tmp_path: Path, content: str, message: str) -> None:
        file = tmp_path / "run.json"
        file.write_text(content)
        said = CliRunner().invoke(app, ["predict", str(file)])
        assert said.exit_code == 2
        assert message in said.stderr


class TestPage:
    """docs/runs.md holds the fields that are read."""

    TEXT = (ROOT / "docs/runs.md").read_text("utf-8")

    @pytest.mark.parametrize("at", list(SECTIONS))
    def test_every_field_with_its_meaning_of_null(self, at: str) -> None:
        title = f"### `{at}`\n" if at else "### The run\n"
        lines = self.TEXT.partition(title)[2].partition("\n### ")[0].split("\n")
        rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if "| `" in line]
        told = {row[0].strip("`"): row[3] for row in rows}
        assert told == {
            key: "**needed**" if each.needed else each.null for key, each in SECTIONS[at].items()
        }
        for row in rows:
            for choice in SECTIONS[at][row[0].strip("`")].choices.values():
                assert f"`{choice}`" in row[1]

    def test_its_example_is_predicted(self) -> None:
        example = json.loads(self.TEXT.partition("```json\n")[2].partition("```")[0])
        assert back.backtest([("it", example)]).rows

    def test_the_shipped_example_is_predicted(self) -> None:
        run = json.loads((ROOT / "docs/run.json").read_text("utf-8"))
        assert not back.backtest([("it", run)]).refused


@pytest.mark.parametrize("gpu", ["L40S", "RTX 4090", "H100 PCIe"])
def test_a_box_lends_no_network(gpu: str) -> None:
    """Its profile has none, so a run over several has to say."""
    run = FEW | {"gpu": gpu, "n_gpus": 16, "gpus_per_node": 8}
    said = refusal(run)
    assert said.startswith("network.internode_gbps_per_gpu: missing, and ")
    assert "has no network to take it from" in said
    assert runs.job(changed(run, "network.internode_gbps_per_gpu", 100)).nic == 12.5e9


def test_a_node_of_bridged_pairs_is_as_fast_as_its_bus() -> None:
    """Eight H100 PCIe cards: 126 GB/s a pair beyond its bridge, so 63 GB/s a GPU in the node."""
    inner, card = inside("h100-pcie")
    assert inner.degree == 8
    assert inner.bandwidth == pytest.approx(63e9)
    assert card == inner.bandwidth  # nothing leaves the box
    inner, card = inside("h100-sxm")
    assert (inner.degree, inner.bandwidth, card) == (8, 450e9, 50e9)
