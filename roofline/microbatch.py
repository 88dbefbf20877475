"""One micro-batch on the average pipeline stage: compute by kind, exposed communication by axis.

    tensor parallel    2 (AG + RS) forward, 2 (2 AG + RS) backward of T·h, or 2 all-reduces each
    context parallel   keys and values round a ring, behind attention; or gathered; or exchanged
    expert parallel    dispatch and combine, twice each
    recompute          what of the forward pass, and of its collectives, is run again

Weight-gradient matmuls hide one collective of each backward pair, at the price of contention;
fine-grained overlap cuts matmuls into chunks and hides a share of all; neither hides more than the
matmuls last. With sequence parallelism the gathering of dY stays exposed, which plain tensor
parallelism has not: 1.5 times as much is waited for, against less memory traffic. A host that launches a
layer's many kernels more slowly than the GPU runs them makes it wait, unless CUDA graphs launch
for it; where tokens are dropped, it need not ask the GPU how many rows each expert has, and takes
half. Under a power limit clocks fall with the share of time that tensor cores are busy.

Sources: Korthikanti et al., section 4.2.2; Llama 3 (arXiv:2407.21783), section 3.3.2; DeepSpeed
Ulysses (arXiv:2309.14509); DeepSeek-V3 (arXiv:2412.19437), section 3.2.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from roofline import layer as ops
from roofline.dims import Dims
from roofline.job import Job
from roofline.layer import Layer
from roofline.layout import OVERLAP, RECOMPUTE, RING, Layout
from roofline.routing import reached
from roofline.units import Count, Seconds
from roofline.work import Work

STATIC = 0.5  # of the host's time, where shapes are fixed and nothing has to be asked of the GPU
BLOCKED = 0.5e-3  # seconds for the slowest rank's host, where each waits for every kernel
Passes = tuple[Seconds, Seconds]  # forward, backward
NOTHING: Passes = (0.0, 0.0)


@dataclass(frozen=True)
class MicroBatch:
    """Seconds of one micro-batch on the average stage."""

    forward: Work
    backward: Work
    again: Seconds  # recomputed, with its communication
    tp: Passes = NOTHING
    cp: Passes = NOTHING
    ep: Passes = NOTHING
    host: Passes = NOTHING

    @cached_property
    def forward_seconds(self) -> Seconds:
        """Forward, communication included. [s]"""
        return self.forward.total + self.tp[0] + self.cp[0] + self.ep[0] + self.host[0]

    @cached_property
    def backward_seconds(self) -> Seconds:
        """Backward, recomputation and communication included. [s]"""
        work = self.backward.total + self.again
        return work + self.tp[1] + self.cp[1] + self.ep[1] + self.host[1]

    @cached_property
    def seconds(self) -> Seconds:
        """Both passes. [s]"""
        return self.forward_seconds + self.backward_seconds

    def times(self, layers: Count) -> MicroBatch:
        """The same, so many layers of it."""
        return MicroBatch(
            self.forward.times(layers),
            self.backward.times(layers),
            self.again * layers,
            *((a * layers, b * layers) for a, b in (self.tp, self.cp, self.ep, self.host)),
        )

    def __add__(self, other: MicroBatch) -> MicroBatch:
        axes = ((getattr(self, x), getattr(other, x)) for x in ("tp", "cp", "ep", "host"))
        return MicroBatch(
            self.forward + other.forward,
            self.backward + other.backward,
            self.again + other.again,
            *((a[0] + b[0], a[1] + b[1]) for a, b in axes),
        )

    def at_power(self, power: Count) -> tuple[MicroBatch, Count]:
        """The same at the clocks that a power limit leaves; and by how much matmuls are slower."""
        share = self.forward.matmuls / self.forward.total
        busy = self.forward.matmuls + self.backward.matmuls + self.again * share
        factor = 1.0 + power * busy / self.seconds
        forward = replace(self.forward, matmuls=self.forward.matmuls * factor)
        backward = replace(self.backward, matmuls=self.backward.matmuls * factor)
        again = self.again * (1.0 + (factor - 1.0) * share)
        return replace(self, forward=forward, backward=backward, again=again), factor


def average(job: Job) -> MicroBatch:
    """All layers of the model over the stages, head and embedding apart."""
    return all_layers(job).times(1.0 / job.layout.pp)


def all_layers(job: Job) -> MicroBatch:
    """All layers of the model, head and embedding apart, as if one stage had them."""
    model, layout = job.model, job.layout
    core = ops.core_attention(model, layout, job.kernels)
    cp = context_parallel(job, core)
    dense = ops.dense(model, layout, job.kernels, job.casts)
    tp = tensor_parallel(job, (dense.forward.matmuls, dense.backward.matmuls))
    plain, mixed = layers_of_the_model(job)
    by_module = np.any(np.equal(layout.recompute, RECOMPUTE["modules"]))
    parts = _by_module(job, tp[0] / 2, mixed=False) if by_module else 0.0
    whole = _kept_busy(job, _layer(job, dense, core, tp, cp, NOTHING, parts)).times(plain)
    if np.any(np.greater(mixed, 0)):
        experts = ops.mixture(model, layout, job.kernels, job.casts, inflation(job))
        blocks = tensor_parallel_blocks(layout)
        part, ep = (
            tensor_parallel(job, split_matmuls(layout, experts), blocks),
            expert_parallel(job),
        )
        inside = part[0] * (1 - 0.5 / blocks) + ep[0]
        parts = _by_module(job, inside, mixed=True) if by_module else 0.0
        one = _launched(job, _layer(job, experts, core, part, cp, ep, parts))
        whole = whole + one.times(mixed)
    return whole


def layers_on_a_stage(job: Job) -> tuple[Count, Count]:
    """Layers with a plain MLP and with experts on the average stage, MTP modules among them."""
    plain, mixed = layers_of_the_model(job)
    return plain / job.layout.pp, mixed / job.layout.pp


def layers_of_the_model(job: Job) -> tuple[Count, Count]:
    """The same of the whole model."""
    model = job.model
    moe = np.greater(model.moe_layers, 0)
    plain = np.where(moe, model.dense_layers, model.layers + model.mtp)
    return plain, np.where(moe, model.moe_layers + model.mtp, 0.0)


def inflation(job: Job) -> Count:
    """By how much layers with experts take longer than their kernels do."""
    return np.where(np.less(job.layout.graphs, 2), job.habits.experts, 1.0)


def tensor_parallel_blocks(layout: Layout) -> Count:
    """Share of a layer's two blocks that tensor parallelism splits where there are experts."""
    return np.where(np.greater(layout.ep * layout.etp, 1), 0.5, 1.0)  # ETP 1: attention alone


def split_matmuls(layout: Layout, layer: Layer) -> Passes:
    """Matmuls of the blocks that tensor parallelism splits in a layer with experts. [s]"""
    alone = np.less(tensor_parallel_blocks(layout), 1.0)
    whole = layer.forward.matmuls, layer.backward.matmuls
    near = (work.matmuls for work in layer.attention)
    first, second = (np.where(alone, some, every) for some, every in zip(near, whole, strict=True))
    return first, second


def _layer(
    job: Job, layer: Layer, core: Work, tp: Passes, cp: Passes, ep: Passes, parts: Seconds
) -> MicroBatch:
    again = _again(job.layout, layer, core, tp[0] + cp[0] + ep[0], parts)
    return MicroBatch(layer.forward, layer.backward, again, tp, cp, ep)


def _launched(job: Job, one: MicroBatch) -> MicroBatch:
    """The layer with the waits for a host that launches more slowly than the GPU runs."""
    left = np.select([np.equal(job.layout.graphs, 0), np.equal(job.layout.graphs, 1)], [1.0, 0.5])
    host = job.habits.host * left * np.where(np.greater(job.layout.dropless, 0), 1.0, STATIC)
    forward = np.maximum(host - one.forward_seconds, 0.0)
    return replace(one, host=(forward, np.maximum(2 * host - one.backward_seconds, 0.0)))


def _kept_busy(job: Job, one: MicroBatch) -> MicroBatch:
    """A dense layer with the waits of a GPU that is done before the host has launched its kernels.

    Backward launches twice as many, from C++, in the same time; what is recomputed, once more.
    """
    layout = job.layout
    graphs = [
        np.greater(layout.compiled, 0),
        np.equal(layout.graphs, 0),
        np.equal(layout.graphs, 1),
    ]
    host = job.habits.launch * ops.EAGER_LAUNCHES * np.select(graphs, [0.0, 1.0, 0.5])
    repeats = np.isin(layout.recompute, (RECOMPUTE["block"], RECOMPUTE["full"]))
    passes = 1.0 + np.where(repeats, layout.recompute_share, 0.0)
    waits = np.maximum(host - one.forward_seconds, 0.0)
    return replace(one, host=(waits, np.maximum(passes * host - one.backward_seconds, 0.0)))


def _by_module(job: Job, inside: Seconds, *, mixed: bool) -> Seconds:
    """The modules of one layer that recomputation names, run once more.

    Args:
        inside: collectives of the MLP or the experts, which are repeated with them.
        mixed: of a layer with experts.
    """
    layout = job.layout
    works = ops.modules(job.model, layout, job.kernels, job.casts, inflation(job), mixed)
    block = "experts" if mixed else "mlp"
    seconds: Seconds = np.where(layout.repeats(block), works[block].total + inside, 0.0)
    activation = layout.repeats("activation") & ~layout.repeats(block)  # not twice
    seconds = seconds + np.where(activation, works["activation"].total, 0.0)
    for name in ("attention", "norms", "mla-up"):
        seconds = seconds + np.where(layout.repeats(name), works[name].total, 0.0)
    return seconds


def _again(
    layout: Layout, layer: Layer, core: Work, comms: Seconds, parts: Seconds = 0.0
) -> Seconds:
    """What recomputation adds to the backward pass of a layer, its collectives included."""
    whole, kind = layer.forward.total, layout.recompute
    seconds = np.select(
        [np.equal(kind, number) for name, number in RECOMPUTE.items() if name != "none"],
        [
            *(core.total, (whole - core.total) / 2),
            *(whole - layer.tail.total + comms, whole + comms, parts),
        ],
        0.0,
    )
    return seconds * layout.recompute_share


def tensor_parallel(job: Job, matmuls: Passes, blocks: Count = 1.0) -> Passes:
    """Exposed collectives of a layer, forward and backward. [s]

    No more hides than the matmuls last that it hides behind: fine-grained, all of the same pass;
    else what comes before the exchange of a block, x W with W split by columns, of which the weight
    gradient hides the exchange of dX, and dgrad the gathering of x.

    Args:
        matmuls: of the blocks that are split, forward and backward.
        blocks: share of a layer's two blocks that are.

    Source: Megatron-LM, megatron/core/tensor_parallel/layers.py.
    """
    layout, model = job.layout, job.model
    route = job.network.route(layout.tp_group)
    elements = layout.tokens * model.hidden
    gather, scatter = route.gather(elements * job.gather_bytes), route.scatter(elements * 2.0)
    reduce = route.reduce(elements * 2.0)
    split = np.greater(layout.sequence_parallel, 0)
    waits = BLOCKED * layout.blocking * np.greater(layout.tp, 1)
    forward = 2 * blocks * (np.where(split, gather + scatter, reduce) + waits)
    backward = 2 * blocks * (np.where(split, 2 * gather + scatter, reduce) + waits)
    alone = np.equal(layout.tp_overlap, OVERLAP["none"]) | np.greater(layout.lora_rank, 0)
    behind = np.where(alone, 0.0, forward)
    ahead, back = matmuls
    after = _columns(model, blocks) * back * np.where(split, 1.0, 0.5)  # plain: wgrad alone
    left, hidden = 1.0 - job.habits.fine_overlap, 1.0 - job.habits.contention
    fine = np.equal(layout.tp_overlap, OVERLAP["fine"])
    return (
        np.where(fine, np.maximum(forward * left, forward - ahead), forward),
        np.where(
            fine,
            np.maximum((backward - behind / 2) * left, backward - back),
            backward - np.minimum(behind, after) * hidden,
        ),
    )


def _columns(model: Dims, blocks: Count) -> Count:
    """Share of the split matrices that are split by columns: all but what ends attention and MLP."""
    mlp = np.where(np.less(blocks, 1.0), 0.0, 1.0)
    ends = model.hidden * (model.heads * model.value_dim + mlp * model.ffn)
    return 1.0 - ends / (model.attention + mlp * model.mlp)


def context_parallel(job: Job, core: Work) -> Passes:
    """Keys and values passed round, gathered, or exchanged for heads; forward and backward. [s]"""
    layout, model = job.layout, job.model
    cp = 1.0 * layout.cp
    if not np.any(cp > 1):
        return NOTHING
    route = job.network.route(layout.cp_group)
    kv = layout.tokens * 4.0 * np.maximum(model.kv_heads / layout.tp, 1.0) * model.head_dim
    hop = route.swap(kv)
    ring = _around(hop, 1, cp - 1, core.attention, cp)
    back = _around(hop, 2, 2 * cp - 1, 2.5 * core.attention, cp)  # gradients go home in the end
    gather, scatter = route.gather(kv * cp), route.scatter(kv * cp)
    exchange = 4 * route.exchange(2.0 * layout.tokens * model.hidden / layout.tp)
    kinds = [np.equal(layout.cp_kind, RING[name]) for name in RING]
    alive = cp > 1
    return (
        np.where(alive, np.select(kinds, [ring, gather, exchange]), 0.0),
        np.where(alive, np.select(kinds, [back, gather + scatter, exchange]), 0.0),
    )


def _around(hop: Seconds, each: Count, hops: Count, attention: Seconds, cp: Count) -> Seconds:
    """What a ring does not hide: a hop, and half of what ``each`` block waits beyond itself. [s]

    Never more than all ``hops``, which together take no less than they do alone.
    """
    late = hop + (cp - 1) * np.maximum(0.0, each * hop - attention / cp) / 2
    return np.clip(late, hops * hop - attention, hops * hop)


def expert_parallel(job: Job) -> Passes:
    """Dispatch and combine of one layer, forward and backward. [s]

    A dispatcher that deduplicates sends one copy of a token per node, or per GPU inside one; its
    kernels reach over the network what rings reach, where plain all-to-alls do not.
    """
    layout, model = job.layout, job.model
    route = job.network.route(layout.ep_group)
    units = np.maximum(route.units, 1.0)
    k = np.minimum(model.top_k, model.experts)
    places = np.where(units > 1, units, np.maximum(layout.ep, 1.0))
    distinct = reached(np.maximum(np.round(k), 1.0), places, form="draws") * places
    distinct = np.where(units > 1, np.minimum(distinct, layout.node_limit), distinct)
    once = np.greater(layout.deduplicated, 0)
    copies = np.where(once, np.minimum(distinct, k), k)
    copies = copies * np.where(np.logical_and(once, units > 1), job.network.exchange, 1.0)
    elements = layout.tokens / layout.split * copies * layout.busiest * model.hidden
    dispatch = route.exchange(elements * layout.dispatch_bytes)
    combine = route.exchange(elements * 2.0)
    shown = 1.0 - layout.exchange_hidden
    return (dispatch + combine) * shown, 2 * combine * shown
