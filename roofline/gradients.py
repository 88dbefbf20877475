"""Data parallelism and the optimizer, per step: what stays exposed, and what hiding it costs.

    ZeRO-0       all-reduce of gradients         behind the last backward pass, bucket by bucket
    ZeRO-1, 2    reduce-scatter, and all-gather of weights behind the next forward pass
    ZeRO-3       per layer and micro-batch: gather, gather, scatter, a layer ahead of its use

A hidden collective is not free: its kernels hold SMs and memory bandwidth, and the compute that
hides it loses χ seconds per second of it. Where stages are interleaved, the gradients of a chunk
are complete while other chunks still work, so that there are p passes to hide behind.

Sources: Rajbhandari et al. (arXiv:1910.02054), section 7; Megatron-LM, distributed_data_parallel;
PyTorch FSDP (arXiv:2304.11277), section 3.3.
"""

from __future__ import annotations

import numpy as np

from roofline.groups import Group
from roofline.job import Job
from roofline.microbatch import MicroBatch
from roofline.stages import Owned, owned
from roofline.units import Seconds

BUCKET = 40e6  # parameters of a gradient bucket, at least; a million per rank in large groups
HIDES = 0.9  # of a pass, behind which buckets travel


def data_parallel(job: Job, part: MicroBatch) -> dict[str, Seconds]:
    """Exposed seconds and contention of the data-parallel axis, whatever its ZeRO stage."""
    terms = _at_the_end(job, part)
    sharded = np.greater_equal(job.layout.zero, 3)
    if np.any(sharded):
        layered = _layer_by_layer(job, part)
        terms = {name: np.where(sharded, layered[name], terms[name]) for name in terms}
    return terms


def _at_the_end(job: Job, part: MicroBatch) -> dict[str, Seconds]:
    """ZeRO-0, 1 and 2: once per step."""
    layout = job.layout
    have = owned(job.model, layout)
    reduce, gather = _once(job, have)
    chunked = np.greater(layout.chunks, 1)
    passes = np.where(chunked, np.minimum(layout.pp, layout.microbatches), 1.0)
    f, b = part.forward_seconds * passes, part.backward_seconds * passes
    bucket = np.maximum(BUCKET, 1e6 * layout.data_ranks) / np.maximum(have.total, 1.0)
    bucket = np.minimum(1.0, bucket)
    exposed = np.maximum(bucket * reduce, reduce - HIDES * b)
    exposed = exposed + np.maximum(bucket * gather, gather - HIDES * f)
    inner = job.network.tiers[0].degree
    busy = job.network.route(Group(layout.data_ranks, layout.tp)).reaches[0].above
    busy = busy / np.minimum(8.0, inner)  # fewer ranks of a group in a node hold fewer SMs
    lost = job.habits.contention * busy * (np.minimum(reduce, b) + np.minimum(gather, f))
    hidden = np.greater(layout.dp_overlap, 0)
    return {
        "data parallel": np.where(hidden, exposed, reduce + gather) + _tied_ends(job, have),
        "contention": np.where(hidden, lost, 0.0),
    }


def _once(job: Job, have: Owned) -> tuple[Seconds, Seconds]:
    """Reduction of all gradients and gathering of all weights, dense and experts'."""
    layout = job.layout
    dense = have.dense + have.ends
    route = job.network.route(Group(layout.data_ranks, layout.tp))
    near = job.network.route(Group(layout.shards, layout.tp))
    plain = np.equal(layout.zero, 0)
    whole = np.logical_or(plain, np.greater(layout.shard, 0))  # sharded over a part: replicas too
    grads = dense * layout.gradient_bytes
    reduce = np.where(whole, route.reduce(grads), route.scatter(grads))
    gather = np.where(plain, 0.0, near.gather(dense * layout.weight_bytes))
    if np.any(np.greater(have.experts, 0)):
        route = job.network.route(Group(layout.expert_data_ranks, layout.ep * layout.etp))
        grads = have.experts * layout.gradient_bytes
        weights = route.gather(have.experts * layout.weight_bytes)
        reduce = reduce + np.where(plain, route.reduce(grads), route.scatter(grads))
        gather = gather + np.where(plain, 0.0, weights)
    return reduce, gather


def _tied_ends(job: Job, have: Owned) -> Seconds:
    """First and last stage add up the gradients of an embedding that is the head as well."""
    layout = job.layout
    apart = np.logical_and(np.greater(layout.pp, 1), np.greater(job.model.tied, 0))
    if not np.any(apart):
        return 0.0
    pair = Group(np.where(apart, 2.0, 1.0), np.where(apart, layout.gpus / 2.0, 1.0))
    return job.network.route(pair).reduce(have.ends * layout.gradient_bytes)


def _layer_by_layer(job: Job, part: MicroBatch) -> dict[str, Seconds]:
    """ZeRO-3: each layer gathered before each pass, its gradients scattered."""
    layout, chi = job.layout, job.habits.contention
    have, here, m = owned(job.model, layout), job.model.layers / layout.pp, layout.microbatches
    unit = (have.dense + have.experts) / here
    route = job.network.route(Group(layout.shards, layout.tp))
    gather = route.gather(unit * layout.weight_bytes)
    scatter = route.scatter(unit * layout.gradient_bytes)
    freed = np.greater(layout.reshard, 0)
    first = np.where(freed, gather, gather / m)
    second = np.where(freed, gather, 0.0) + scatter
    f, b = part.forward_seconds / here, part.backward_seconds / here
    lost_f, lost_b = chi * np.minimum(f, first), chi * np.minimum(b, second)
    waits = np.maximum(first - f - lost_f, 0.0) + np.maximum(second - b - lost_b, 0.0)
    root = route.gather(have.ends * layout.weight_bytes)
    edges = first + np.where(freed, root / 2, 0.0)
    last = scatter + route.scatter(have.ends * layout.gradient_bytes)
    replicas = layout.data_ranks / layout.shards
    outer = job.network.route(Group(replicas, layout.tp * layout.shards))
    hybrid = 0.3 * outer.reduce(have.total * layout.gradient_bytes / layout.shards)
    return {
        "data parallel": m * (here * waits + edges) + last + hybrid,
        "contention": m * here * (lost_f + lost_b),
    }


def optimizer(job: Job) -> Seconds:
    """Every owned state read and written once, every local gradient zeroed and copied. [s]"""
    layout, have = job.layout, owned(job.model, job.layout)
    split = np.greater_equal(layout.zero, 1)
    own = (have.dense + have.ends) / np.where(split, layout.shards, 1.0)
    own = own + have.experts / np.where(split, layout.expert_data_ranks, 1.0)
    local = np.where(np.greater_equal(layout.zero, 3), 0.0, 8.0 * have.total)
    return job.kernels.streams.seconds(own * layout.optimizer_bytes + local, 20.0)
