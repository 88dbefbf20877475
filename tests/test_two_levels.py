"""Closed form and whole step agree where both apply: at peak rates, nothing but the MLPs left on.

The step's terms are held against ``roofline.strategies`` and ``roofline.bubbles`` on the same
machine, over random models, layouts and clusters. Attention is a second block with the same
collectives as the MLP, so that tensor parallelism costs twice what it costs one block.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hardware_profiles as hp
from roofline import Ideal, Tier, Workload
from roofline.bubbles import bubble
from roofline.calibrated import on
from roofline.collectives import ALL_TO_ALL, collective
from roofline.dims import Dims
from roofline.groups import Group
from roofline.job import Job
from roofline.layout import OVERLAP, Layout
from roofline.microbatch import average, expert_parallel
from roofline.model import Experts
from roofline.presets import preset
from roofline.stages import owned
from roofline.step import predict
from roofline.strategies import data_parallel, pipeline_parallel, tensor_parallel
from roofline.training import training

EXACT = 1e-9
CHIP = hp.accelerator("h100-sxm")
LLAMA = preset("llama-3-8b").model
TWOS = st.sampled_from([1, 2, 4, 8])
SPEEDS = st.sampled_from([25e9, 100e9, 400e9, 450e9])


@dataclass(frozen=True)
class Case:
    """A job, and the same as closed forms have it."""

    job: Job
    work: Workload
    machine: Ideal

    @property
    def terms(self) -> dict[str, Any]:
        return predict(self.job).terms


@st.composite
def machines(draw: st.DrawFn) -> tuple[Tier, ...]:
    """Two to four tiers, the outermost with room for everything: a node, and what joins nodes."""
    node = Tier(draw(st.sampled_from([4, 8])), draw(SPEEDS), "node", transit=draw(st.booleans()))
    middle = [
        Tier(draw(st.sampled_from([2, 4])), draw(SPEEDS), name)
        for name in ("rail", "spine")[: draw(st.integers(0, 2))]
    ]
    return node, *middle, Tier(2**15, draw(SPEEDS), "datacentre")


@st.composite
def cases(draw: st.DrawFn, **fixed: Any) -> Case:
    """MLPs alone: heads without width, no vocabulary, memory without limit."""
    gated, layers = draw(st.booleans()), draw(st.sampled_from([16, 32]))
    width, wide = draw(st.sampled_from([1024, 5120])), draw(st.sampled_from([4096, 14336]))
    none = {"head_dim": 0.0, "value_dim": 0.0, "vocab": 0.0}
    sizes = {"layers": layers, "hidden": float(width), "ffn": float(wide)}
    model = replace(Dims.of(LLAMA), inputs=1.0 + gated, **none, **sizes)
    tp, cp, pp, dp, micro = (draw(TWOS) for _ in range(5))
    m = draw(st.sampled_from([1, 2, 4])) * pp
    choices = {
        "sequence_parallel": draw(st.integers(0, 1)),
        "zero": draw(st.sampled_from([0, 1])),
        "chunks": draw(st.sampled_from([1, 2])) if pp > 1 else 1,
    }
    degrees = {"tp": tp, "cp": cp, "pp": pp, "micro_batch": micro, "batch": micro * dp * m}
    overlaps = {"tp_overlap": OVERLAP["none"], "dp_overlap": 0, "pp_overlap": 0}
    known = {"sequence": 4096} | degrees | choices | overlaps | fixed
    layout = Layout(known["tp"] * known["cp"] * known["pp"] * dp, **known)
    layout = replace(layout, batch=micro * dp * m)
    machine = draw(machines())
    work = Workload(layout.batch * 4096, width, wide, matrices=2 + gated, layers=layers)
    return Case(endless(on(CHIP, machine, None, "bf16").job(model, layout)), work, ideal(machine))


def ideal(tiers: tuple[Tier, ...]) -> Ideal:
    return Ideal(CHIP.flops("bf16"), tiers)


def endless(job: Job) -> Job:
    """Memory traffic takes no time: closed forms have none."""
    kernels = replace(
        job.kernels,
        matmuls=replace(job.kernels.matmuls, hbm=np.inf),
        half_matmuls=replace(job.kernels.half_matmuls, hbm=np.inf),
        streams=replace(job.kernels.streams, hbm=np.inf),
    )
    return replace(job, kernels=kernels)


@given(cases())
def test_matmuls(case: Case) -> None:
    """T_math of all layers of a stage, both passes."""
    layout = case.job.layout
    degree = {"data_parallel": layout.dp * layout.cp}
    one = tensor_parallel.bound(case.work, case.machine, layout.tp, phase="step", **degree)
    wanted = one.math.seconds * case.work.layers / layout.pp
    assert case.terms["matmuls"] == pytest.approx(wanted, rel=EXACT)


@given(cases())
def test_tensor_parallel(case: Case) -> None:
    """T_comms of two blocks a layer, the input gathered again where the sequence is sharded."""
    layout = case.job.layout
    sharded = bool(layout.sequence_parallel)
    terms, _ = tensor_parallel.communication(
        case.work,
        case.machine,
        layout.tp,
        data_parallel=layout.dp * layout.cp,
        sequence_sharded=sharded,
        gather_again=sharded,
        phase="step",
    )
    wanted = 2 * sum(term.seconds for term in terms) * case.work.layers / layout.pp
    assert case.terms["tensor parallel"] == pytest.approx(wanted, rel=EXACT)


@given(cases())
def test_data_parallel(case: Case) -> None:
    """Gradients and weights of one GPU's parameters, all exposed."""
    layout = case.job.layout
    _, each = data_parallel.communication(
        case.work,
        case.machine,
        layout.data_ranks,
        zero=int(layout.zero),
        model_parallel=layout.tp * layout.pp,
        stride=layout.tp,
        phase="step",
    )
    parameters = owned(case.job.model, layout).total
    assert case.terms["data parallel"] == pytest.approx(each * parameters, rel=EXACT)


@given(cases(cp=1))
def test_pipeline(case: Case) -> None:
    """m v + p - 2 hops each way, and a bubble of (p-1)/v (F + B)."""
    layout, work = case.job.layout, case.work
    found = pipeline_parallel.bound(
        work,
        case.machine,
        layout.pp,
        microbatches=layout.microbatches,
        chunks=layout.chunks,
        tensor_parallel=layout.tp,
        data_parallel=layout.dp,
        stride=layout.tp * layout.dp,
        phase="step",
    )
    layout = replace(layout, sequence_parallel=1)  # else what is sent is gathered again
    terms = predict(replace(case.job, layout=layout)).terms
    part = average(replace(case.job, layout=layout))
    name = "interleaved" if layout.chunks > 1 else "1f1b"
    times = {"forward": part.forward_seconds, "backward": part.backward_seconds}
    idle = bubble(name, layout.pp, layout.microbatches, chunks=layout.chunks, **times).idle
    sends = sum(term.seconds for term in found.comms)
    took = terms["bubble"] + terms["pipeline sends"]
    assert took == pytest.approx(idle + sends, rel=EXACT)


@given(cases(tp=1, cp=1))
def test_nothing_else(case: Case) -> None:
    """With everything but the MLPs switched off, these terms are the whole step; but for what
    tensor parallelism costs embedding and head.
    """
    known = ("matmuls", "tensor parallel", "data parallel", "pipeline sends", "bubble")
    rest = predict(case.job).seconds - sum(case.terms[name] for name in known)
    assert rest == pytest.approx(0, abs=1e-12 * predict(case.job).seconds)


@given(cases(zero=3, pp=1, chunks=1, cp=1, dp_overlap=1), st.sampled_from([1, 16, 256]))
def test_fsdp_hides_where_the_closed_form_says(case: Case, shorter: int) -> None:
    """T_comms of each pass beyond its T_math waits, layer by layer; the first gather and the last
    scatter have nothing to hide behind.
    """
    layout = replace(case.job.layout, tp=1, sequence=4096 // shorter)
    layout = replace(layout, gpus=layout.gpus // case.job.layout.tp)
    work = replace(case.work, tokens=layout.batch * layout.sequence)
    waits, m = 0.0, layout.microbatches
    parameters = owned(case.job.model, layout).total
    for phase in ("forward", "backward"):
        found = data_parallel.bound(
            work, case.machine, layout.dp, zero=3, microbatches=m, phase=phase
        )
        scale = parameters / work.layers / work.parameters  # norms travel with their layer
        comms = scale * sum(term.seconds for term in found.comms)
        waits += work.layers * max(comms - found.math.seconds, 0.0)
    route = case.job.network.route(Group(layout.dp))
    edge = 2.0 * parameters / work.layers
    ends = m * route.gather(edge) + route.scatter(edge)
    found_waits = predict(replace(case.job, layout=layout)).terms["data parallel"]
    assert found_waits == pytest.approx(waits + ends, rel=EXACT)


@given(machines(), st.sampled_from([2, 4, 8, 16]), TWOS)
def test_experts(tiers: tuple[Tier, ...], ep: int, k: int) -> None:
    """Dispatch and combine of every copy of a token, forward and backward, as plain all-to-alls."""
    model = Dims.of(replace(LLAMA, d_model=4096, experts=Experts(16, k, 4096)))
    layout = Layout(ep, ep=ep, batch=ep, sequence=4096, deduplicated=0)
    job = on(CHIP, tiers, None, "bf16").job(model, layout)
    work = Workload(ep * 4096.0, 4096, 4096, matrices=3, experts=16, experts_per_token=k)
    moved = collective(ALL_TO_ALL, 1.0, Group(ep), tiers).seconds
    once = work.tokens * k * work.d_model * work.activation_bytes * moved
    assert expert_parallel(job) == pytest.approx((2 * once, 2 * once), rel=EXACT)


def datacentres(gpus: int, slow: float) -> hp.Cluster:
    """A cluster whose outermost tier joins two datacentres with ``slow`` bytes/s from each."""
    inner = hp.cluster("dgx-h100-superpod").resized(gpus // 2).model_dump()
    tier = {"name": "datacentre", "degree": 2, "bandwidth": slow, "source": "an assumption"}
    return hp.Cluster.model_validate(inner | {"tiers": [*inner["tiers"], tier]})


@pytest.mark.parametrize("zero", [0, 1])
def test_data_parallelism_between_datacentres(zero: int) -> None:
    """Each datacentre sends half of a model's gradients to the other one and as much of the sums, or
    of the weights: 2 P bytes in all over its link, whatever happens inside; from end to end.
    """
    slow = 10e9
    cluster = datacentres(1024, slow)
    assert [tier.name for tier in cluster.tiers][-1] == "datacentre"
    layout = Layout(1024, tp=8, batch=128, sequence=4096, zero=zero, dp_overlap=0)
    job = training(LLAMA, layout, cluster, rates="peak")
    _, each = data_parallel.communication(
        Workload(layout.batch * 4096, 4096, 14336),
        cluster,
        layout.data_ranks,
        zero=zero,
        model_parallel=layout.tp,
        phase="step",
    )
    parameters = owned(job.dims, layout).total
    took = job.time.terms["data parallel"]
    assert took == pytest.approx(each * parameters, rel=EXACT)
    assert took == pytest.approx(2 * 8 * parameters / slow, rel=EXACT)
    near = training(LLAMA, layout, hp.cluster("dgx-h100-superpod"), rates="peak")
    assert job.time.seconds > near.time.seconds
    assert job.memory.total == near.memory.total


def hybrid(gpus: int, shard: int, **more: Any) -> Any:
    """FSDP of Llama 3 8B at the peaks, a micro-batch of one sequence on every GPU."""
    layout = Layout(gpus, batch=gpus, sequence=8192, zero=3, shard=shard, **more)
    return training(LLAMA, layout, hp.cluster("dgx-h100-superpod"), rates="peak")


@pytest.mark.parametrize("replicas", [1, 8, 32])
def test_hybrid_sharding(replicas: int) -> None:
    """HSDP is FSDP inside a node, and between nodes an all-reduce of a GPU's eighth of the gradients
    a layer behind the last backward pass: PyTorch, FSDP, section 3.2.2; states stay an eighth.
    """
    alone, found = hybrid(8, 0), hybrid(8 * replicas, 8)
    part = average(found.job)
    nbytes = owned(found.dims, found.layout).total * 2 / 8
    ring = 2 * (replicas - 1) / replicas * nbytes / 50e9
    late = max(ring / LLAMA.layers, ring - 0.9 * float(part.backward_seconds))
    extra = found.time.terms["data parallel"] - alone.time.terms["data parallel"]
    assert extra == pytest.approx(late, rel=EXACT, abs=1e-12)
    assert found.memory.states == pytest.approx(alone.memory.states, rel=EXACT)
    if replicas > 1:
        assert hybrid(8 * replicas, 0).memory.states < found.memory.states / (replicas - 1)
