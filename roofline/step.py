"""One training step of a whole decoder: the terms that make up its time, exactly.

    stage      t = Σ layers (forward + backward + recompute + exposed TP, CP, EP)
    pipeline   M · (slowest stage + exposed sends) + fill and drain
    step       pipeline + exposed data parallelism + contention + optimizer + fixed

A hidden collective is not free: its kernels hold SMs and memory bandwidth, and the compute that
hides it loses χ seconds per second of it. The slowest stage carries the head and the loss, or the
embedding, or one layer more than the others where layers do not divide. ZeRO-3 gathers each layer
before it is used and hides that behind the layer before.

Sources: Megatron-LM (arXiv:2104.04473), sections 2.2 and 3; Korthikanti et al., section 4; the
calibration's own source for every fitted number.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from roofline import layer as ops
from roofline.communication import Network
from roofline.dims import Dims
from roofline.groups import Group
from roofline.kernels import Kernels
from roofline.layer import Layer, Work
from roofline.layout import OVERLAP, RECOMPUTE, RING, SCHEDULE, Layout
from roofline.routing import reached
from roofline.units import Bytes, Count, Seconds

BUCKET = 40e6  # parameters of a gradient bucket, at least; a million per rank in large groups


@dataclass(frozen=True, slots=True)
class Habits:
    """How a GPU type's jobs behave beyond single kernels; every number is fitted or 0."""

    contention: Count = 0.0  # χ: compute seconds lost per second of hidden collective
    fine_overlap: Count = 0.75  # share of TP communication that fine-grained overlap hides
    experts: Count = 1.0  # inflation of expert layers: ragged groups, host syncs
    host: Seconds = 0.0  # that the host takes to launch an expert layer forward; twice backward
    fixed: Seconds = 0.0  # per step: loss and norm synchronisation, data, logging
    power: Count = 0.0  # matmul time gained when matmuls take all of it: clocks fall at the power limit


@dataclass(frozen=True, slots=True)
class Job:
    """A model in a layout on a machine as calibrated."""

    model: Dims
    layout: Layout
    kernels: Kernels
    network: Network
    habits: Habits = Habits()
    casts: Count = 0.0  # 1 where matmul operands are cast to 8 bits or less
    gather_bytes: Bytes = 2.0  # per element of gathered activations


@dataclass(frozen=True, slots=True)
class StepTime:
    """The terms of a step; their sum is the step."""

    terms: dict[str, Seconds]

    @property
    def seconds(self) -> Seconds:
        """The step. [s]"""
        total: Seconds = 0.0
        for seconds in self.terms.values():
            total = total + seconds
        return total


@dataclass(frozen=True, slots=True)
class Stage:
    """One micro-batch on the average stage: compute by kind, and exposed communication by axis."""

    forward: Work
    backward: Work
    again: Seconds  # recomputed, with its communication
    tp: tuple[Seconds, Seconds]
    cp: tuple[Seconds, Seconds]
    ep: tuple[Seconds, Seconds]
    host: tuple[Seconds, Seconds] = (0.0, 0.0)

    @property
    def forward_seconds(self) -> Seconds:
        """Forward, communication included. [s]"""
        return self.forward.total + self.tp[0] + self.cp[0] + self.ep[0] + self.host[0]

    @property
    def backward_seconds(self) -> Seconds:
        """Backward, recomputation and communication included. [s]"""
        work = self.backward.total + self.again
        return work + self.tp[1] + self.cp[1] + self.ep[1] + self.host[1]

    @property
    def seconds(self) -> Seconds:
        """Both passes. [s]"""
        return self.forward_seconds + self.backward_seconds

    def slower(self, power: Count) -> tuple[Stage, Count]:
        """The stage with its matmuls at the clocks that their share of the time leaves, and by how much."""
        matmuls = self.forward.matmuls + self.backward.matmuls
        of_forward = self.forward.matmuls / self.forward.total
        factor = 1.0 + power * (matmuls + self.again * of_forward) / self.seconds
        return (
            Stage(
                Work(self.forward.matmuls * factor, self.forward.attention, self.forward.memory),
                Work(self.backward.matmuls * factor, self.backward.attention, self.backward.memory),
                self.again * (1.0 + (factor - 1.0) * of_forward),
                self.tp,
                self.cp,
                self.ep,
                self.host,
            ),
            factor,
        )


def predict(job: Job) -> StepTime:
    """Time of one optimizer step, term by term."""
    layout = job.layout
    stage, slow = average_stage(job).slower(job.habits.power)
    sharded = np.greater_equal(layout.zero, 3)
    pipeline = _pipeline(job, stage, slow)
    data = _data_parallel(job, stage)
    if np.any(sharded):
        gathered = _fully_sharded(job, stage)
        data = {k: np.where(sharded, gathered[k], data[k]) for k in data}
    m = layout.microbatches
    return StepTime(
        {
            "matmuls": m * (stage.forward.matmuls + stage.backward.matmuls),
            "attention": m * (stage.forward.attention + stage.backward.attention),
            "memory-bound": m * (stage.forward.memory + stage.backward.memory),
            "recompute": m * stage.again,
            "tensor parallel": m * (stage.tp[0] + stage.tp[1]),
            "context parallel": m * (stage.cp[0] + stage.cp[1]),
            "expert parallel": m * (stage.ep[0] + stage.ep[1]),
            "waiting for the host": m * (stage.host[0] + stage.host[1]),
            **pipeline,
            **data,
            "optimizer": _optimizer(job),
            "fixed": job.habits.fixed * np.ones_like(m),
        }
    )


def average_stage(job: Job) -> Stage:
    """All layers of the model over the stages, head and embedding apart."""
    model, layout = job.model, job.layout
    dense = ops.dense(model, layout, job.kernels, job.casts)
    core = ops.core_attention(model, layout, job.kernels)
    tp, cp = _tensor_parallel(job), _context_parallel(job, core)
    with_experts = np.greater(model.moe_layers, 0)
    share = model.dense_layers / layout.pp
    stage = _stage(job, dense, core, share, tp, cp, (0.0, 0.0))
    if np.any(with_experts):
        mixed = ops.mixture(model, layout, job.kernels, job.casts)
        slow = np.where(np.less(layout.graphs, 2), job.habits.experts, 1.0)
        mixed = Layer(mixed.forward.times(slow), mixed.backward.times(slow), mixed.tail)
        share = (model.moe_layers + model.mtp * with_experts) / layout.pp
        half = tuple(np.where(np.greater(layout.ep * layout.etp, 1), t / 2, t) for t in tp)
        experts = _stage(job, mixed, core, share, (half[0], half[1]), cp, _expert_parallel(job))
        stage = _both(stage, _launched(job, experts, share))
    return stage


def _stage(
    job: Job,
    layer: Layer,
    core: Work,
    layers: Count,
    tp: tuple[Seconds, Seconds],
    cp: tuple[Seconds, Seconds],
    ep: tuple[Seconds, Seconds],
) -> Stage:
    again = _again(job.layout, layer, core, tp[0] + cp[0] + ep[0])
    return Stage(
        layer.forward.times(layers),
        layer.backward.times(layers),
        again * layers,
        (tp[0] * layers, tp[1] * layers),
        (cp[0] * layers, cp[1] * layers),
        (ep[0] * layers, ep[1] * layers),
    )


def _launched(job: Job, stage: Stage, layers: Count) -> Stage:
    """The stage with the waits for a host that launches more slowly than the GPU runs."""
    host = job.habits.host * layers * np.select(
        [np.equal(job.layout.graphs, 0), np.equal(job.layout.graphs, 1)], [1.0, 0.5], 0.0
    )
    forward = np.maximum(host - stage.forward_seconds, 0.0)
    backward = np.maximum(2 * host - stage.backward_seconds, 0.0)
    return replace(stage, host=(forward, backward))


def _both(a: Stage, b: Stage) -> Stage:
    return Stage(
        a.forward + b.forward,
        a.backward + b.backward,
        a.again + b.again,
        (a.tp[0] + b.tp[0], a.tp[1] + b.tp[1]),
        (a.cp[0] + b.cp[0], a.cp[1] + b.cp[1]),
        (a.ep[0] + b.ep[0], a.ep[1] + b.ep[1]),
        b.host,
    )


def _again(layout: Layout, layer: Layer, core: Work, comms: Seconds) -> Seconds:
    """What recomputation adds to the backward pass of a layer, its collectives included."""
    whole, kind = layer.forward.total, layout.recompute
    seconds = np.select(
        [np.equal(kind, RECOMPUTE[name]) for name in ("attention", "half", "block", "full")],
        [core.total, (whole - core.total) / 2, whole - layer.tail.total + comms, whole + comms],
        0.0,
    )
    return seconds * layout.recompute_share


def _tensor_parallel(job: Job) -> tuple[Seconds, Seconds]:
    """Exposed collectives of one layer's two blocks, forward and backward."""
    layout, model = job.layout, job.model
    route = job.network.route(Group(layout.tp))
    elements = layout.tokens * model.hidden
    gather, scatter = route.gather(elements * job.gather_bytes), route.scatter(elements * 2.0)
    reduce = route.reduce(elements * 2.0)
    split = np.greater(layout.sequence_parallel, 0)
    forward = 2 * np.where(split, gather + scatter, reduce)
    backward = 2 * np.where(split, 2 * gather + scatter, reduce)
    behind = 2 * np.where(split, gather + scatter, reduce)  # the weight gradients hide these
    left = 1.0 - job.habits.fine_overlap
    kind = layout.tp_overlap
    fine = np.equal(kind, OVERLAP["fine"])
    behind = np.where(np.equal(kind, OVERLAP["none"]), 0.0, behind)
    return (
        np.where(fine, forward * left, forward),
        np.where(fine, (backward - behind) * left + behind * left / 2, backward - behind),
    )


def _context_parallel(job: Job, core: Work) -> tuple[Seconds, Seconds]:
    """Keys and values passed round, gathered, or exchanged for heads; forward and backward."""
    layout, model = job.layout, job.model
    cp = 1.0 * layout.cp
    if not np.any(cp > 1):
        return 0.0, 0.0
    route = job.network.route(Group(cp, layout.tp))
    kv = layout.tokens * 4.0 * np.maximum(model.kv_heads / layout.tp, 1.0) * model.head_dim
    hop, block = route.send(kv), core.attention / cp
    ring_forward = hop + np.maximum(0.0, (cp - 1) * (hop - block)) / 2
    ring_backward = hop + np.maximum(0.0, (cp - 1) * (2 * hop - 2.5 * block)) / 2
    gather, scatter = route.gather(kv * cp), route.scatter(kv * cp)
    exchange = 4 * route.exchange(2.0 * layout.tokens * model.hidden / layout.tp)
    kinds = [np.equal(layout.cp_kind, RING[name]) for name in RING]
    alive = cp > 1
    return (
        np.where(alive, np.select(kinds, [ring_forward, gather, exchange]), 0.0),
        np.where(alive, np.select(kinds, [ring_backward, gather + scatter, exchange]), 0.0),
    )


def _expert_parallel(job: Job) -> tuple[Seconds, Seconds]:
    """Dispatch and combine of one layer, forward and backward."""
    layout, model = job.layout, job.model
    route = job.network.route(Group(layout.ep, layout.etp))
    rows = layout.tokens / layout.split * model.top_k * layout.imbalance
    units = np.maximum(route.units, 1.0)
    k = np.minimum(model.top_k, model.experts)
    places = np.where(units > 1, units, np.maximum(layout.ep, 1.0))
    distinct = reached(np.round(k), places, form="draws") * places
    distinct = np.where(units > 1, np.minimum(distinct, layout.node_limit), distinct)
    copies = np.where(np.greater(layout.deduplicated, 0), np.minimum(distinct, k) / k, 1.0)
    reached_rate = np.where(np.greater(layout.deduplicated, 0), job.network.exchange, 1.0)
    payload = rows * model.hidden * copies * np.where(units > 1, reached_rate, 1.0)
    dispatch, combine = route.exchange(payload * layout.dispatch_bytes), route.exchange(payload * 2.0)
    shown = 1.0 - layout.ep_overlap
    return (dispatch + combine) * shown, 2 * combine * shown


def _pipeline(job: Job, stage: Stage, slow: Count) -> dict[str, Seconds]:
    """What the stages add to the work of the average one: the ends, the sends, the bubble."""
    layout, model = job.layout, job.model
    p, v, m = 1.0 * layout.pp, 1.0 * layout.chunks, layout.microbatches
    ends = _ends(job, slow)
    several = p > 1
    slots = np.where(np.greater(layout.even, 0), 1.0, 0.0)
    one = stage.seconds * p / model.layers
    longest = one * v * np.ceil((model.layers + 2 * slots) / (p * v) - 1e-9)
    worst = np.maximum(ends[0], ends[1])
    at_end = np.where(np.greater(layout.even, 1), worst, longest - slots * one + worst)
    extra = np.where(several, np.maximum(longest, at_end) - stage.seconds, ends[0] + ends[1])
    send = _send(job)
    waits = np.where(np.greater(layout.pp_overlap, 0), 0.0, 2.0 * v * send)
    return {
        "head, embedding and uneven stages": m * extra,
        "pipeline sends": m * np.where(several, waits, 0.0),
        "bubble": np.where(several, _fill(layout, stage, send), 0.0),
    }


def _fill(layout: Layout, stage: Stage, send: Seconds) -> Seconds:
    """Filling and draining, by schedule; w is the part of the backward that makes weight gradients."""
    p, v = 1.0 * layout.pp, 1.0 * layout.chunks
    f, b, w = stage.forward_seconds, stage.backward_seconds, stage.backward.matmuls / 2
    sends = 2.0 * v * send
    plain = (p - 1) * (f + b + sends) / v
    by_schedule = {
        "1f1b": plain,
        "gpipe": plain,
        "zb-h1": (p - 1) * (f + b - 2 * w + sends),
        "zb-h2": (p - 1) * (np.maximum(f + b - 3 * w, 0.0) + sends),
        "zb-v": (p - 1) * sends,
        "dualpipe": np.maximum(p / 2 - 1, 0.0) * (f + b + b - 3 * w + sends),
    }
    kinds = [np.equal(layout.schedule, SCHEDULE[name]) for name in by_schedule]
    return np.select(kinds, list(by_schedule.values()))


def _ends(job: Job, slow: Count) -> tuple[Seconds, Seconds]:
    """Head with loss, and embedding, with the collectives that tensor parallelism costs them."""
    layout, model = job.layout, job.model
    top, bottom = ops.head(model, layout, job.kernels), ops.embedding(model, layout, job.kernels)
    route = job.network.route(Group(layout.tp))
    nbytes = 2.0 * layout.tokens * model.hidden
    split = np.greater(layout.sequence_parallel, 0)
    gather, scatter, reduce = route.gather(nbytes), route.scatter(nbytes), route.reduce(nbytes)
    return (
        _slowed(top.forward, slow) + _slowed(top.backward, slow) + np.where(split, gather, reduce),
        bottom.forward.total + bottom.backward.total + np.where(split, 2 * scatter, reduce),
    )


def _slowed(work: Work, slow: Count) -> Seconds:
    return work.matmuls * slow + work.attention + work.memory


def _send(job: Job) -> Seconds:
    layout, model = job.layout, job.model
    route = job.network.route(Group(layout.pp, layout.tp * layout.cp * layout.dp))
    nbytes = 2.0 * layout.tokens * model.hidden
    whole = np.logical_and(np.greater(layout.tp, 1), ~np.greater(layout.sequence_parallel, 0))
    again = job.network.route(Group(layout.tp)).gather(nbytes)
    return route.send(nbytes / layout.tp) + np.where(whole, again, 0.0)


@dataclass(frozen=True, slots=True)
class _Owned:
    """Parameters that one GPU holds before data parallelism."""

    dense: Count
    experts: Count
    ends: Count  # embedding or head on a stage that has one

    @property
    def total(self) -> Count:
        return self.dense + self.experts + self.ends


def owned(model: Dims, layout: Layout) -> _Owned:
    """Parameters of the fullest stage on one GPU, data parallelism apart."""
    moe, t, p = model.moe_layers + model.mtp, 1.0 * layout.tp, 1.0 * layout.pp
    wide = (model.layers + model.mtp) * model.attention + model.dense_layers * model.mlp + moe * model.shared
    narrow = model.layers * model.small + moe * model.hidden * model.experts * np.greater(model.experts, 1)
    routed = moe * model.expert * model.experts / (1.0 * layout.ep * layout.etp)
    routed = np.where(np.greater(model.moe_layers, 0), routed, 0.0)
    wide = np.where(np.greater(model.moe_layers, 0), wide, wide - moe * model.shared)
    once = np.logical_or(np.greater(p, 1), np.greater(model.tied, 0))
    ends = model.embedding / t * np.where(once, 1.0, 2.0)
    return _Owned((wide / t + narrow) / p, routed / p, ends)


def _data_parallel(job: Job, stage: Stage) -> dict[str, Seconds]:
    """Gradients and weights of ZeRO-0/1/2, hidden behind one backward and one forward pass."""
    layout, model = job.layout, job.model
    have = owned(model, layout)
    dense = have.dense + have.ends
    route = job.network.route(Group(layout.data_ranks, layout.tp))
    plain = np.equal(layout.zero, 0)
    grads = dense * layout.gradient_bytes
    part = np.greater(layout.shard, 0)
    near = job.network.route(Group(layout.shards, layout.tp))
    reduce = np.where(np.logical_or(plain, part), route.reduce(grads), route.scatter(grads))
    gather = np.where(plain, 0.0, near.gather(dense * layout.weight_bytes))
    if np.any(np.greater(have.experts, 0)):
        expert = job.network.route(Group(layout.expert_data_ranks, layout.ep * layout.etp))
        grads = have.experts * layout.gradient_bytes
        reduce = reduce + np.where(plain, expert.reduce(grads), expert.scatter(grads))
        gather = gather + np.where(plain, 0.0, expert.gather(have.experts * layout.weight_bytes))
    bucket = np.minimum(1.0, np.maximum(BUCKET, 1e6 * layout.data_ranks) / np.maximum(have.total, 1.0))
    passes = np.where(np.greater(layout.chunks, 1), np.minimum(layout.pp, layout.microbatches), 1.0)
    f, b = stage.forward_seconds * passes, stage.backward_seconds * passes
    exposed = np.maximum(bucket * reduce, reduce - 0.9 * b) + np.maximum(bucket * gather, gather - 0.9 * f)
    overlapped = np.greater(layout.dp_overlap, 0)
    busy = route.reaches[0].above / np.minimum(8.0, job.network.tiers[0].degree)
    lost = job.habits.contention * busy * (np.minimum(reduce, b) + np.minimum(gather, f))
    several = np.greater(layout.pp, 1)
    ends = np.where(
        np.logical_and(several, np.greater(model.tied, 0)),
        job.network.route(Group(2, np.maximum(layout.gpus / 2.0, 1.0))).reduce(have.ends * layout.gradient_bytes),
        0.0,
    )
    return {
        "data parallel": np.where(overlapped, exposed, reduce + gather) + ends,
        "contention": np.where(overlapped, lost, 0.0),
    }


def _fully_sharded(job: Job, stage: Stage) -> dict[str, Seconds]:
    """ZeRO-3: each layer gathered before each pass and its gradients scattered, a layer ahead."""
    layout, model, habits = job.layout, job.model, job.habits
    have = owned(model, layout)
    here = model.layers / layout.pp
    unit = (have.dense + have.experts) / here
    m = layout.microbatches
    route = job.network.route(Group(layout.shards, layout.tp))
    gather = route.gather(unit * layout.weight_bytes)
    scatter = route.scatter(unit * layout.gradient_bytes)
    freed = np.greater(layout.reshard, 0)
    first = np.where(freed, gather, gather / m)
    second = np.where(freed, gather, 0.0) + scatter
    f, b = stage.forward_seconds / here, stage.backward_seconds / here
    slow_f = f + habits.contention * np.minimum(f, first)
    slow_b = b + habits.contention * np.minimum(b, second)
    waits = np.maximum(first - slow_f, 0.0) + np.maximum(second - slow_b, 0.0)
    root = route.gather(have.ends * layout.weight_bytes)
    edges = first + np.where(freed, root / 2, 0.0)
    last = scatter + route.scatter(have.ends * layout.gradient_bytes)
    replicas = layout.data_ranks / layout.shards
    outer = job.network.route(Group(replicas, layout.tp * layout.shards))
    hybrid = 0.3 * outer.reduce(have.total * layout.gradient_bytes / layout.shards)
    return {
        "data parallel": m * (here * waits + edges) + last + hybrid,
        "contention": m * here * (slow_f - f + slow_b - b),
    }


def _optimizer(job: Job) -> Seconds:
    """Every owned state read and written once, every local gradient zeroed and copied."""
    layout, have = job.layout, owned(job.model, job.layout)
    split = np.greater_equal(layout.zero, 1)
    sharded = np.greater_equal(layout.zero, 3)
    own = (have.dense + have.ends) / np.where(split, layout.data_ranks, 1.0)
    own = own + have.experts / np.where(split, layout.expert_data_ranks, 1.0)
    local = np.where(sharded, 0.0, 8.0 * have.total)
    return job.kernels.streams.seconds(own * layout.optimizer_bytes + local, 20.0) + 0.5e-3
