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

from dataclasses import dataclass

import numpy as np

from roofline.adapters import trained
from roofline.distinct import once, without
from roofline.job import Job
from roofline.layout import ZERO_KIND
from roofline.microbatch import MicroBatch
from roofline.stages import Owned, owned
from roofline.units import Count, Seconds

BUCKET = 40e6  # parameters of a gradient bucket, at least; a million per rank in large groups
HIDES = 0.9  # of a pass, behind which buckets travel

# Fields of a layout that what the axis moves does not depend on, only what hides it.
_HIDING = (
    *("chunks", "micro_batch", "batch", "sequence", "sequence_parallel", "schedule", "even"),
    *("recompute", "recompute_share", "recompute_modules", "offload_share", "tp_overlap"),
    *(
        "cp_kind",
        "pp_overlap",
        "dp_overlap",
        "ep_overlap",
        "deduplicated",
        "node_limit",
        "imbalance",
        "attention",
    ),
    *("fused", "fused_loss", "dropout", "blocking", "dispatch_bytes"),
)


@dataclass(frozen=True, slots=True)
class _AtTheEnd:
    """Collectives of ZeRO-0, 1 and 2, and what of them cannot hide."""

    reduce: Seconds
    gather: Seconds
    tied: Seconds
    bucket: Count  # share of the gradients in one bucket
    busy: Count  # of the SMs that a full group in a node takes


@dataclass(frozen=True, slots=True)
class _Layered:
    """Collectives of ZeRO-3: of one layer, and of what is not in a layer."""

    gather: Seconds
    scatter: Seconds
    root: Seconds
    last: Seconds
    mirror: Seconds  # replicas of a shard add up


@dataclass(frozen=True, slots=True)
class _Moved:
    """What a step moves, whatever hides it."""

    at_the_end: _AtTheEnd
    layered: _Layered | None  # None where nothing is ZeRO-3
    optimizer: Seconds


def data_parallel(job: Job, part: MicroBatch) -> dict[str, Seconds]:
    """Exposed seconds and contention of the axis, whatever its ZeRO stage; and the optimizer."""
    moved = once(_moved, without(job, *_HIDING))
    terms = _at_the_end(job, part, moved.at_the_end)
    if moved.layered:
        sharded = np.greater_equal(job.layout.zero, 3)
        layered = _layer_by_layer(job, part, moved.layered)
        terms = {name: np.where(sharded, layered[name], terms[name]) for name in terms}
    return terms | {"optimizer": moved.optimizer}


def _moved(job: Job) -> _Moved:
    at_the_end = _moved_at_the_end(job)
    layered = _moved_by_layer(job) if np.any(np.greater_equal(job.layout.zero, 3)) else None
    return _Moved(at_the_end, layered, _optimizer(job))


def _at_the_end(job: Job, part: MicroBatch, moved: _AtTheEnd) -> dict[str, Seconds]:
    """ZeRO-0, 1 and 2: once per step."""
    layout = job.layout
    reduce, gather, bucket = moved.reduce, moved.gather, moved.bucket
    chunked = np.greater(layout.chunks, 1)
    passes = np.where(chunked, np.minimum(layout.pp, layout.microbatches), 1.0)
    f, b = part.forward_seconds * passes, part.backward_seconds * passes
    exposed = np.maximum(bucket * reduce, reduce - HIDES * b)
    exposed = exposed + np.maximum(bucket * gather, gather - HIDES * f)
    lost = job.habits.contention * moved.busy * (np.minimum(reduce, b) + np.minimum(gather, f))
    hidden = np.greater(layout.dp_overlap, 0)
    return {
        "data parallel": np.where(hidden, exposed, reduce + gather) + moved.tied,
        "contention": np.where(hidden, lost, 0.0),
    }


def _moved_at_the_end(job: Job) -> _AtTheEnd:
    layout, have = job.layout, trained(job.model, job.layout)
    reduce, gather = _once(job, have)
    bucket = np.maximum(BUCKET, 1e6 * layout.data_ranks) / np.maximum(have.total, 1.0)
    inner = job.network.tiers[0].degree
    busy = job.network.route(layout.data_group).reaches[0].above
    busy = busy / np.minimum(8.0, inner)  # fewer ranks of a group in a node hold fewer SMs
    return _AtTheEnd(reduce, gather, _tied_ends(job, have), np.minimum(1.0, bucket), busy)


def _once(job: Job, have: Owned) -> tuple[Seconds, Seconds]:
    """Reduction of all gradients and gathering of all weights, dense and experts'."""
    layout = job.layout
    dense = have.dense + have.ends
    route = job.network.route(layout.data_group)
    near = job.network.route(layout.shard_group)
    plain = np.equal(layout.zero, 0)
    sent_on = np.equal(layout.zero_kind, ZERO_KIND["broadcast"])
    part = np.logical_or(np.greater(layout.shard, 0), np.greater(layout.zero_kind, 0))
    whole = np.logical_or(plain, part)  # sharded over a part: replicas too
    grads = dense * layout.gradient_bytes
    reduce = np.where(whole, route.reduce(grads), route.scatter(grads))
    gather = np.where(plain, 0.0, near.gather(dense * layout.weight_bytes))
    if np.any(sent_on):
        owners = np.minimum(layout.shards, _matrices(job))
        sent = near.relay(dense * layout.weight_bytes, owners)
        gather = np.where(np.logical_and(sent_on, ~plain), sent, gather)
    if np.any(np.greater(have.experts, 0)):
        route = job.network.route(layout.expert_data_group)
        grads = have.experts * layout.gradient_bytes
        weights = route.gather(have.experts * layout.weight_bytes)
        reduce = reduce + np.where(plain, route.reduce(grads), route.scatter(grads))
        gather = gather + np.where(plain, 0.0, weights)
    return reduce, gather


def _matrices(job: Job) -> Count:
    """Matrices on a GPU: queries to values, output, those of the MLP; embedding and head."""
    return job.model.layers / job.layout.pp * (3.0 + job.model.inputs) + 2.0 - job.model.tied


def _tied_ends(job: Job, have: Owned) -> Seconds:
    """First and last stage add up the gradients of an embedding that is the head as well."""
    layout = job.layout
    apart = np.logical_and(np.greater(layout.pp, 1), np.greater(job.model.tied, 0))
    if not np.any(apart):
        return 0.0
    reduce = job.network.route(layout.ends_group).reduce(have.ends * layout.gradient_bytes)
    return np.where(apart & np.greater(have.ends, 0), reduce, 0.0)


def _layer_by_layer(job: Job, part: MicroBatch, moved: _Layered) -> dict[str, Seconds]:
    """ZeRO-3: each layer gathered before each pass, its gradients scattered.

    Where shards have replicas (HSDP), these add up in the last backward pass, a layer behind it.
    """
    layout, chi = job.layout, job.habits.contention
    here, m = job.model.layers / layout.pp, layout.microbatches
    gather, scatter = moved.gather, moved.scatter
    freed = np.greater(layout.reshard, 0)
    first = np.where(freed, gather, gather / m)
    second = np.where(freed, gather, 0.0) + scatter
    f, b = part.forward_seconds / here, part.backward_seconds / here
    lost_f, lost_b = chi * np.minimum(f, first), chi * np.minimum(b, second)
    waits = np.maximum(first - f - lost_f, 0.0) + np.maximum(second - b - lost_b, 0.0)
    edges = first + np.where(freed, moved.root / 2, 0.0)
    hybrid = np.maximum(moved.mirror / here, moved.mirror - HIDES * part.backward_seconds)
    return {
        "data parallel": m * (here * waits + edges) + moved.last + hybrid,
        "contention": m * here * (lost_f + lost_b),
    }


def _moved_by_layer(job: Job) -> _Layered:
    layout, have = job.layout, owned(job.model, job.layout)
    learns, share = trained(job.model, layout), layout.pp / job.model.layers
    packed = np.where(np.greater(layout.lora_rank, 0), layout.frozen_bytes, layout.weight_bytes)
    weight_bytes = np.minimum(layout.weight_bytes, packed)
    route = job.network.route(layout.shard_group)
    gather = route.gather((have.dense + have.experts) * share * weight_bytes)
    scatter = route.scatter((learns.dense + learns.experts) * share * layout.gradient_bytes)
    root = route.gather(have.ends * layout.weight_bytes)  # never packed
    last = scatter + route.scatter(learns.ends * layout.gradient_bytes)
    outer = job.network.route(layout.replica_group)
    mirror = outer.reduce(learns.total * layout.gradient_bytes / layout.shards)
    return _Layered(gather, scatter, root, last, mirror)


def _optimizer(job: Job) -> Seconds:
    """Every owned state read and written once, every local gradient zeroed and copied. [s]"""
    layout, have = job.layout, trained(job.model, job.layout)
    split = np.greater_equal(layout.zero, 1)
    own = (have.dense + have.ends) / np.where(split, layout.shards, 1.0)
    own = own + have.experts / np.where(split, layout.expert_data_ranks, 1.0)
    local = np.where(np.greater_equal(layout.zero, 3), 0.0, 8.0 * have.total)
    return job.kernels.streams.seconds(own * layout.optimizer_bytes + local, 20.0)
