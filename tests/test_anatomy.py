"""A job taken apart: its rows are the step, and each is what a person counts on paper."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hardware_profiles as hp
from roofline.anatomy import ENDS, Anatomy, anatomy
from roofline.constraints import misfits
from roofline.dims import Dims
from roofline.layout import ORDER, OVERLAP, RECOMPUTE, RING, SCHEDULE, ZERO_KIND, Layout
from roofline.model import Experts, Transformer
from roofline.model_flops import operations
from roofline.presets import preset
from roofline.training import training

H100 = hp.cluster("dgx-h100-superpod")
LLAMA = Transformer("llama-8b", 32, 4096, 14336, 32, 8, 128, 128256)
MIXTURE = replace(LLAMA, experts=Experts(8, 2, 14336))
GPT_22B = Transformer(
    "gpt-22b", 48, 6144, 24576, 64, 64, 96, 51200,
    gated=False, tied=True, norm="layernorm", rope=False, mlp_bias=True,
)  # fmt: skip
ALONE = Layout(gpus=1, batch=4, sequence=4096)

layouts = st.builds(
    lambda tp, pp, cp, dp, micro, m, v, zero, again, kind, schedule, even: Layout(
        gpus=tp * pp * cp * dp, tp=tp, pp=pp, cp=cp,
        chunks=v if pp > 1 and schedule == 0 else 1, micro_batch=micro,
        batch=micro * dp * m * pp, sequence=4096, sequence_parallel=float(tp > 1),
        zero=zero, recompute=again, tp_overlap=kind, schedule=schedule, even=even,
    ),
    tp=st.sampled_from([1, 2, 8]), pp=st.sampled_from([1, 2, 4]), cp=st.sampled_from([1, 2]),
    dp=st.sampled_from([1, 2, 8]), micro=st.sampled_from([1, 2]), m=st.sampled_from([1, 4]),
    v=st.sampled_from([1, 2]), zero=st.sampled_from([0, 1, 3]),
    again=st.sampled_from(list(RECOMPUTE.values())), kind=st.sampled_from(list(OVERLAP.values())),
    schedule=st.sampled_from(list(SCHEDULE.values())), even=st.sampled_from([0, 1, 2]),
)  # fmt: skip


software = st.fixed_dictionaries({
    "offload_share": st.sampled_from([0.0, 0.5, 1.0]), "order": st.sampled_from(list(ORDER.values())),
    "zero_kind": st.sampled_from(list(ZERO_KIND.values())), "shard": st.sampled_from([0, 2]),
    "reshard": st.just(1), "graphs": st.sampled_from([0, 1, 2]),
    **{name: st.sampled_from([0, 1])
       for name in ("dropless", "early", "fused", "fused_experts", "compiled", "blocking")},
})  # fmt: skip


def taken(layout: Layout, model=LLAMA, **options) -> Anatomy:
    return anatomy(training(model, layout, H100, **options))


def adds_up(found: Anatomy) -> None:
    for term, seconds in found.time.terms.items():
        assert found.sums()[term] == pytest.approx(float(seconds), rel=1e-9, abs=1e-15), term


def fits(layout: Layout, model) -> bool:
    return not any(np.any(broken) for broken in misfits(Dims.of(model), layout, H100).values())


@settings(max_examples=100)
@given(
    layouts, software, st.sampled_from(["bf16", "fp8"]), st.sampled_from([LLAMA, MIXTURE, GPT_22B]),
    st.sampled_from([1, 2, 4]), st.sampled_from(list(RING.values())),
    st.sampled_from([None, "lora", "qlora"]),
)  # fmt: skip
def test_rows_sum_to_the_terms(layout, more, precision, model, ep, ring, recipe) -> None:
    """Every term of the step, of any layout, is the sum of its rows."""
    shard = more["shard"] if layout.zero else 0
    layout = replace(layout, **more | {"shard": shard}, ep=ep if model.experts else 1, cp_kind=ring)
    if fits(layout, model):
        adds_up(taken(layout, model, precision=precision, recipe=recipe))


@settings(max_examples=60)
@given(layouts, st.sampled_from([LLAMA, MIXTURE, GPT_22B]), st.sampled_from(list(ZERO_KIND.values())),
       st.sampled_from([None, "lora"]), st.sampled_from([0, 2]))  # fmt: skip
def test_without_overlap_all_communication_is_exposed(layout, model, kind, recipe, shard) -> None:
    """The calls that are counted, at their durations, are the terms where nothing hides."""
    layout = replace(
        layout, tp_overlap=OVERLAP["none"], dp_overlap=0, pp_overlap=0, ep_overlap=0.0,
        zero=min(layout.zero, 1), cp_kind=RING["all-gather"], ep=2 if model.experts else 1,
        zero_kind=kind, shard=shard if layout.zero else 0,
    )  # fmt: skip
    if not fits(layout, model):
        return
    if layout.schedule == SCHEDULE["dualpipe"]:  # whose pairs hide all-to-alls, always
        layout = replace(layout, schedule=SCHEDULE["1f1b"])
    found = taken(layout, model, recipe=recipe)
    for term in ("tensor parallel", "context parallel", "expert parallel", "pipeline sends",
                 "data parallel"):  # fmt: skip
        rows = [row for row in found.collectives if row.term == term]
        duration = sum(row.seconds for row in rows)
        assert duration == pytest.approx(float(found.time.terms[term]), rel=1e-9, abs=1e-15), term
        assert all(row.hidden == 0.0 for row in rows)


@pytest.mark.parametrize("name", ["llama-3-8b", "mixtral-8x7b", "deepseek-v3", "gpt-3-175b"])
def test_flops_are_those_of_the_model(name: str) -> None:
    """Forward FLOPs of a step are 2 · inputs · outputs of every matmul: a second count."""
    model = replace(preset(name).model, mtp=0)
    layout = Layout(gpus=8, ep=8 if model.experts else 1, batch=8, sequence=4096)
    found = taken(layout, model)
    tokens = 4096.0
    skipped = ("router", "shared gate")  # counted as memory-bound here
    wanted = sum(
        row.forward for row in operations(model, 4096, "causal") if row.name not in skipped
    )
    assert sum(row.forward_flops * row.times for row in found.operations) == pytest.approx(
        wanted * tokens, rel=1e-6
    )


class TestOperations:
    def test_backward_of_a_matmul_is_twice_the_forward(self) -> None:
        rows = [row for row in taken(ALONE).operations if row.kind == "matmuls"]
        assert rows
        assert all(row.backward_flops == 2 * row.forward_flops for row in rows)

    def test_intensity_by_hand(self) -> None:
        """8192 x 8192 x 8192 in 16 bit: K / 3 a pass; the weight gradient is written in 32 bit."""
        model = replace(LLAMA, d_model=8192, heads=64, kv_heads=8, layers=1)
        layout = Layout(gpus=1, micro_batch=1, batch=1, sequence=8192)
        (row,) = (r for r in taken(layout, model).operations if r.name == "attention output")
        n = 8192.0
        nbytes = 2 * (3 * n * n) * 2 + (2 * 2 * n * n + 8 * n * n)
        assert row.intensity == pytest.approx(6 * n**3 / nbytes)
        assert row.ceiling == "matmul peak"

    def test_nothing_runs_above_its_ceiling(self) -> None:
        """Up to the rate of caches: bytes of small tensors count as memory traffic."""
        for row in taken(Layout(gpus=8, tp=8, batch=4, sequence=4096)).operations:
            assert row.achieved <= row.peak or not row.peak
            assert row.reached <= 1

    def test_memory_bound_operations_have_no_flops(self) -> None:
        rows = [row for row in taken(ALONE).operations if row.kind == "memory-bound"]
        assert {"norm", "rope", "activation", "residual"} <= {row.name for row in rows}
        assert all(row.flops == 0 and row.ceiling == "memory" for row in rows)

    def test_one_gpu_waits_for_head_and_embedding_and_nothing_else(self) -> None:
        found = taken(ALONE)
        assert not found.collectives
        (rest,) = (row for row in found.rest if row.term == ENDS)
        assert rest.seconds == pytest.approx(0.0, abs=1e-12)


class TestCollectives:
    def test_ranks_strides_and_tiers(self) -> None:
        layout = Layout(gpus=64, tp=8, pp=2, batch=32, sequence=4096)
        rows = {row.axis: row.call for row in taken(layout).collectives}
        assert (rows["TP"].ranks, rows["TP"].stride) == (8, 1)
        assert (rows["DP"].ranks, rows["DP"].stride) == (4, 8)
        assert (rows["PP"].ranks, rows["PP"].stride) == (2, 32)
        assert rows["TP"].tiers == (H100.tiers[0].name,)
        assert H100.tiers[0].name not in rows["DP"].tiers

    def test_calls_in_a_step(self) -> None:
        """Korthikanti et al., 4.2.2: two pairs forward; backward one more gather of each."""
        layout = Layout(gpus=16, tp=8, batch=8, sequence=4096)
        rows = [row for row in taken(layout).collectives if row.axis == "TP"]
        ops = {row.call.op for row in rows}
        by_op = {op: sum(row.times for row in rows if row.call.op == op) for op in ops}
        microbatches = 4
        assert by_op == {
            "all-gather": 6 * 32 * microbatches,
            "reduce-scatter": 4 * 32 * microbatches,
        }

    def test_zero_3_gathers_layers(self) -> None:
        layout = Layout(gpus=64, batch=128, sequence=4096, zero=3)
        rows = {row.what: row for row in taken(layout).collectives}
        assert rows["weights of a layer"].times == 2 * 2 * 32
        assert rows["gradients of a layer"].times == 2 * 32


PIPELINE = Layout(gpus=64, tp=2, pp=4, batch=64, sequence=4096)
NEW = {  # a layout, its model, precision and recipe; what has to be among its rows
    "offload": (replace(ALONE, offload_share=1.0), LLAMA, {}, "offload"),
    "relay": (Layout(gpus=64, batch=64, zero_kind=ZERO_KIND["broadcast"]), LLAMA, {},
              "updated weights"),
    "all-reduced": (Layout(gpus=64, batch=64, zero_kind=ZERO_KIND["all-reduce"]), GPT_22B, {},
                    "gradients"),
    "relay, experts": (Layout(gpus=64, ep=8, batch=64, zero_kind=ZERO_KIND["broadcast"]), MIXTURE,
                       {}, "updated weights of the experts"),
    "order": (replace(PIPELINE, order=ORDER["tp-cp-pp-dp"]), LLAMA, {}, "gradients"),
    "lora": (PIPELINE, LLAMA, {"recipe": "lora"}, "gradients"),
    "lora, tied": (PIPELINE, GPT_22B, {"recipe": "lora"}, "gradients"),
    "qlora, zero-3": (replace(ALONE, gpus=8, batch=8, zero=3), LLAMA, {"recipe": "qlora"},
                      "weights of a layer"),
    "hsdp": (Layout(gpus=64, batch=64, zero=3, shard=8), LLAMA, {}, "gradients between replicas"),
    "shards of zero-1": (Layout(gpus=64, batch=64, zero=1, shard=8), MIXTURE, {}, "gradients"),
    "casts": (Layout(gpus=8, ep=8, batch=8), MIXTURE, {"precision": "fp8"},
              "casts of the experts' rows"),
    "zb-2p": (replace(PIPELINE, schedule=SCHEDULE["zb-2p"]), LLAMA, {}, "bubble"),
    "software": (Layout(gpus=8, ep=8, batch=8, dropless=0, early=1, fused_experts=0, compiled=1),
                 MIXTURE, {}, "experts up"),
}  # fmt: skip


@pytest.mark.parametrize("case", NEW)
def test_rows_of_every_term_and_choice(case: str) -> None:
    layout, model, options, name = NEW[case]
    found = taken(layout, model, **options)
    adds_up(found)
    names = {row.what for row in found.collectives} | {row.name for row in found.rest}
    assert name in names | {row.name for row in found.operations}


def test_a_broadcast_is_heard() -> None:
    """Bytes of the weights, over the shard group: relayed, and slower than a gather of as many."""
    sent, gathered = (
        next(
            row.call
            for row in taken(Layout(gpus=64, batch=64, zero_kind=ZERO_KIND[kind])).collectives
            if row.what == "updated weights"
        )
        for kind in ("broadcast", "scatter")
    )
    assert (sent.op, gathered.op) == ("broadcast", "all-gather")
    assert (sent.nbytes, sent.ranks, sent.tiers) == (gathered.nbytes, 64, gathered.tiers)
    assert sent.seconds > gathered.seconds


def test_flops_of_adapters() -> None:
    """3 · 2 T r (in + out) beside a frozen matrix, which is 2 · 2 T in out (arXiv:2106.09685)."""
    for row in taken(ALONE, recipe="lora").operations:
        if row.name == "MLP down":
            tokens, out, into = 4096.0, 4096, 14336
            assert row.flops == pytest.approx(
                2 * 2 * tokens * into * out + 3 * 2 * tokens * 16 * (into + out)
            )
        if row.name == "head":
            assert row.backward_flops == row.forward_flops


def test_recomputation_is_named() -> None:
    layout = replace(ALONE, recompute=RECOMPUTE["full"])
    (row,) = (row for row in taken(layout).rest if row.term == "recompute")
    assert "full" in row.why
    assert row.seconds > 0


def test_a_column_is_refused() -> None:
    with pytest.raises(ValueError, match="column"):
        anatomy(training(LLAMA, replace(ALONE, batch=np.array([4.0, 8.0])), H100))
