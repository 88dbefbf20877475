"""LoRA and QLoRA in step and memory: what is frozen, what is trained, what travels."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hardware_profiles as hp
from roofline.adapters import trained
from roofline.anatomy import anatomy
from roofline.dims import Dims
from roofline.export import trace
from roofline.layout import RECOMPUTE, SCHEDULE, Layout
from roofline.outcome import outcome
from roofline.playback import chrome_trace, played
from roofline.presets import preset
from roofline.recipes import adapters, recipe
from roofline.stages import owned
from roofline.step import predict
from roofline.training import Training, training

H100 = hp.cluster("dgx-h100-superpod")
LLAMA = preset("llama-3-8b").model
MODELS = [LLAMA, preset("mixtral-8x7b").model, preset("deepseek-v3").model]
ONE = Layout(1, batch=4, sequence=4096, micro_batch=4)


def job(layout: Layout, model: Any = LLAMA, **more: Any) -> Training:
    return training(model, layout, H100, rates="peak", **more)


def endless(found: Training) -> dict[str, Any]:
    """Terms of the step on memory without limit, where only FLOPs and collectives take time."""
    kernels = found.job.kernels
    matmuls = replace(kernels.matmuls, hbm=np.inf)
    streams = replace(kernels.streams, hbm=np.inf)
    kernels = replace(kernels, matmuls=matmuls, half_matmuls=matmuls, streams=streams)
    return predict(replace(found.job, kernels=kernels)).terms


@pytest.mark.parametrize("model", [LLAMA, preset("gpt-3-175b").model], ids=lambda m: str(m.name))
@pytest.mark.parametrize("rank", [1, 64])
def test_flops_at_the_peak(model: Any, rank: int) -> None:
    """Frozen matrices cost 4 FLOPs a parameter and token, adapters 6: Hu et al., section 4.2."""
    full, lora = job(ONE, model), job(replace(ONE, lora_rank=rank), model)
    narrow = float(adapters(full.dims, ONE, model.layers, rank).total)
    wanted = 6 * narrow * 4 * 4096 / H100.flops("bf16")
    took = endless(lora)["matmuls"] - endless(full)["matmuls"] * 2 / 3
    assert took == pytest.approx(wanted, rel=1e-6)
    assert lora.time.terms["matmuls"] > endless(lora)["matmuls"]  # narrow: bound by memory


@pytest.mark.parametrize("name", ["llama-3-8b", "llama-3-70b", "gpt-3-175b"])
@pytest.mark.parametrize("rank", [0, 4, 64])
def test_mfu_counts_what_runs(name: str, rank: int) -> None:
    """FLOPs of MFU are those of the step's matmuls, kernel by kernel, and of attention: nothing that
    is frozen has weight gradients in either.
    """
    found = job(replace(ONE, lora_rank=rank), preset(name).model)
    matmuls = [row for row in anatomy(found).operations if row.kind == "matmuls"]
    run = sum(row.flops * row.times for row in matmuls)
    layout, model = found.layout, found.model
    keys = layout.sequence / 2
    core = 3 * 4 * model.layers * model.heads * model.head_dim * keys * 4 * layout.sequence
    assert outcome(found).model_flops == pytest.approx(run + core, rel=1e-6)


def test_hfu_of_lora() -> None:
    """Full recomputation: a frozen matrix 4 → 6 FLOPs a token, adapters 6 → 8, attention 3 → 4
    passes; the head is not run again.
    """
    model, tokens = LLAMA, 4.0 * 4096
    full = replace(ONE, lora_rank=16, recompute=RECOMPUTE["full"])
    found = outcome(job(full))
    layers = 32 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336)
    narrow = 16 * 32 * (3 * 4096 + 6144 + 2 * 4096 + 2 * 4096 + 2 * 14336 + 14336 + 4096)
    head, core = 4096 * 128256, 4 * 32 * 4096 * 2048
    assert found.model_flops == pytest.approx(
        tokens * (4 * layers + 6 * narrow + 4 * head + 3 * core)
    )
    again = tokens * (2 * layers + 2 * narrow + core)
    assert found.hardware_flops - found.model_flops == pytest.approx(again)
    assert "4 FLOPs" in found.counting()
    assert "frozen" not in outcome(job(ONE, model)).counting()


@pytest.mark.parametrize("model", MODELS, ids=lambda model: str(model.name))
def test_only_adapters_travel(model: Any) -> None:
    """Gradients, optimizer and what ZeRO-1 gathers shrink to the adapters' share; weights do not."""
    layout = Layout(64, batch=64, sequence=4096, dp_overlap=0, ep=8 if model.experts else 1)
    dims = Dims.of(model)
    narrow = trained(dims, replace(layout, lora_rank=16))
    every = owned(dims, layout)
    full, lora = job(layout, model), job(replace(layout, lora_rank=16), model)
    if not model.experts:
        share = narrow.total / every.total
        wanted = full.time.terms["data parallel"] * share
        assert lora.time.terms["data parallel"] == pytest.approx(wanted, rel=1e-9)
    assert lora.time.terms["data parallel"] < full.time.terms["data parallel"] / 20
    assert lora.time.terms["optimizer"] < full.time.terms["optimizer"] / 20
    assert lora.memory.gradients == pytest.approx(4 * narrow.total, rel=0.02)
    assert lora.memory.weights == pytest.approx(2 * every.total + 4 * narrow.total, rel=0.02)
    assert narrow.ends == 0


def test_fsdp_gathers_what_is_frozen() -> None:
    """ZeRO-3 gathers all weights, in 4 bits where they are so, and scatters adapters' gradients: of
    2 gathers and a scatter a layer, the first gather and the last scatter apart, 2 are left.
    Embedding and head are in 16 bits with QLoRA too: bitsandbytes packs the layers alone.
    """
    layout = Layout(256, batch=256, sequence=1, zero=3)
    waits = {
        name: endless(job(layout, recipe=name))["data parallel"]
        for name in ("fsdp", "lora", "qlora")
    }
    layers, ends = LLAMA.layers, 2 * 128256 * 4096 / 218e6  # in layers of 218 million
    left = (2 * layers + 1 + ends / 2) / (3 * layers + 2 + ends * 3 / 2)
    assert waits["lora"] == pytest.approx(waits["fsdp"] * left, rel=0.01)
    packed = (2 * layers + 1) * (0.5 + 0.127 / 8) / 2 + ends / 2
    assert waits["qlora"] == pytest.approx(
        waits["lora"] * packed / (2 * layers + 1 + ends / 2), rel=0.01
    )


def test_unpacking_costs_memory_traffic() -> None:
    """QLoRA reads 4-bit weights and writes 16-bit ones before each pass: Dettmers et al., eq. 5."""
    lora, qlora = (job(replace(ONE, lora_rank=16), recipe=name) for name in ("lora", "qlora"))
    layers = float(owned(lora.dims, ONE).dense)
    moved = 2 * (0.5 + 0.127 / 8 + 2) * layers
    more = qlora.time.seconds - lora.time.seconds
    assert more == pytest.approx(moved / H100.hbm_bandwidth, rel=0.01)  # norms are not packed
    saved = lora.memory.weights - qlora.memory.weights  # none of embedding and head
    assert saved == pytest.approx((2 - 0.5 - 0.127 / 8) * layers)


@given(
    st.sampled_from(MODELS), st.sampled_from([1, 8, 64]), st.sampled_from([1, 2, 8]),
    st.sampled_from([1, 3]), st.sampled_from([2048, 8192]),
)  # fmt: skip
def test_laws(model: Any, rank: int, tp: int, zero: int, sequence: int) -> None:
    """More rank is more of everything; rank 0 trains all weights; a column is its rows."""
    layout = Layout(64, tp=tp, batch=64, sequence=sequence, zero=zero)
    ranks = np.array([0.0, rank, 2.0 * rank])
    table = [job(replace(layout, lora_rank=each), model) for each in ranks]
    times = [float(one.time.seconds) for one in table]
    assert times[1] < times[2]
    assert table[1].memory.total < table[2].memory.total < table[0].memory.total
    assert times[0] == float(job(layout, model).time.seconds)
    column = job(replace(layout, lora_rank=ranks[1:]), model)
    assert column.time.seconds == pytest.approx(times[1:], rel=1e-12)
    assert column.memory.total == pytest.approx([one.memory.total for one in table[1:]], rel=1e-12)


def test_rank_and_recipe_agree() -> None:
    """Either names adapters; the layout's rank wins; a recipe without any is refused."""
    assert job(ONE, recipe="qlora").layout.lora_rank == recipe("qlora").rank
    assert job(replace(ONE, lora_rank=8), recipe="qlora").recipe.rank == 8
    assert job(replace(ONE, lora_rank=8)).recipe.frozen == 2
    with pytest.raises(
        ValueError, match=r"lora_rank: 8 is refused .* allowed: 0, or recipe lora, q"
    ):
        job(replace(ONE, lora_rank=8), recipe="mixed")
    with pytest.raises(ValueError, match="lora_rank: -1 is refused; allowed: whole numbers from 0"):
        job(replace(ONE, lora_rank=-1))


@pytest.mark.parametrize("schedule", ["zb-h1", "zb-v"])
def test_frozen_weights_play_no_weight_passes(schedule: str) -> None:
    """Nothing fills what a pipeline of frozen weights waits: ZB-H1 takes as long as 1F1B. A trace
    has F and B of every micro-batch on every stage and chunk, and W where weights are trained.
    """
    layout, model = (
        Layout(8, pp=8, batch=16, schedule=SCHEDULE[schedule]),
        preset("llama-3-70b").model,
    )
    lora, full = job(replace(layout, lora_rank=16), model), job(layout, model)
    if schedule == "zb-h1":
        plain = job(replace(layout, lora_rank=16, schedule=SCHEDULE["1f1b"]), model)
        assert played(lora).step == pytest.approx(played(plain).step)
        assert lora.time.terms["bubble"] == pytest.approx(plain.time.terms["bubble"])
    each = 8 * 16 * (2 if schedule == "zb-v" else 1)
    for found, kinds in ((lora, "FB"), (full, "FBW")):
        rows = [row for row in chrome_trace(played(found), "")["traceEvents"] if row["ph"] == "X"]
        assert Counter(row["cat"] for row in rows) == dict.fromkeys(kinds, each)
        names = {row["name"].split()[0] for row in trace.events(found)}
        assert (trace.NAMES["W"].split()[0] in names) == ("W" in kinds)
