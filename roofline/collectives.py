"""Collectives over a hierarchy: nine operations, one rule.

At every tier a child must move some bytes over its uplink; the tiers work at the same time, so the
slowest decides:

    T = max_i  lanes_i · load_i / W_i   +   α terms

A collective is nothing but its ``load``: bytes over one child's uplink at a tier, for one group.
With d the children spanned and m the ranks under one child, of N in the group, and V the bytes of
the WHOLE logical array:

    all-gather, reduce-scatter      V (d-1)/d                  a ring over the children
    all-reduce                      twice that; V when the switches of the tier add (SHARP)
    broadcast, reduce, send         V                          where d > 1
    scatter, gather                 V (out - m)/N              out = N, or the ranks inside where
    all-to-all                      V m (out - m)/N²                 GPUs have NICs of their own

The root of a scatter or a gather, like the sender of a message, has one card to leave its node by.

``rough`` drops the -1 and the -m, as one does on paper. Where the children are not equally full,
the emptiest has the most to receive: (d-1)/d is then (d-1) m / (ranks in the unit).

Sources: How to Scale Your Model, "GPUs", sections "Collectives inside a node" and "Collectives
across nodes"; nccl-tests, "Performance".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from roofline import checks
from roofline.blocks import pointwise
from roofline.groups import Group, Reach, spans
from roofline.machine import TierLike
from roofline.names import choose
from roofline.units import Bytes, BytesPerSecond, Count, Num, Seconds

Form = Literal["precise", "rough"]
InNetwork = Literal["off", "theory", "measured"]
Algorithm = Literal["hierarchical", "ring", "tree"]

# Bus bandwidth of 8 H100, 480 GB/s with switches that add against 370 GB/s without
# (How to Scale Your Model, "GPUs").
MEASURED_SHARP_GAIN = 1.3


def _ring(r: Reach, n: Num) -> Num:
    return (r.degree - 1) * r.members / r.above


def _whole(r: Reach, n: Num) -> Num:
    return np.greater(r.degree, 1).astype(float)


def leaving(r: Reach, n: Num) -> Num:
    """Share of a group's ``n`` ranks that a child's uplink leads to."""
    out = n if r.tier.transit else r.above
    return (out - r.members) / n


def _anywhere(r: Reach, n: Num) -> Num:
    return _whole(r, n) * (1.0 if r.tier.transit else r.above / n)


@dataclass(frozen=True, slots=True)
class Collective:
    """One operation: its name, its load at a tier, and what latency is paid for."""

    name: str
    share: Callable[[Reach, Num], Num]  # bytes over a child's uplink, per byte of V
    rough: Callable[[Reach, Num], Num] = _whole  # the same on paper
    passes: int = 1
    direct: bool = False  # every pair talks at once: one message latency, not one per child
    rooted: bool = False  # one rank has it all, and one card to send or receive it by
    busbw: Callable[[Num], Num] = lambda n: (n - 1) / n  # bus over algorithm bandwidth, nccl-tests


ALL_GATHER = Collective("all-gather", _ring)
REDUCE_SCATTER = Collective("reduce-scatter", _ring)
ALL_REDUCE = Collective("all-reduce", _ring, passes=2, busbw=lambda n: 2 * (n - 1) / n)
BROADCAST = Collective("broadcast", _whole, busbw=np.ones_like)
REDUCE = Collective("reduce", _whole, busbw=np.ones_like)
SEND = Collective("point-to-point", _whole, direct=True, rooted=True, busbw=np.ones_like)
SCATTER = Collective("scatter", leaving, _anywhere, direct=True, rooted=True)
GATHER = Collective("gather", leaving, _anywhere, direct=True, rooted=True)
ALL_TO_ALL = Collective(
    "all-to-all",
    lambda r, n: r.members / n * leaving(r, n),
    lambda r, n: r.members / n * _anywhere(r, n),
    direct=True,
)
# Every rank sends to the next while it receives from the one before: no more than SEND takes where
# both directions of a link are apart, as those of NVLink and InfiniBand are.
SWAP = Collective("send-receive", _whole, direct=True, rooted=True, busbw=np.ones_like)
COLLECTIVES = {
    op.name: op
    for op in (
        ALL_GATHER,
        REDUCE_SCATTER,
        ALL_REDUCE,
        ALL_TO_ALL,
        BROADCAST,
        REDUCE,
        SCATTER,
        GATHER,
        SEND,
    )
}


@dataclass(frozen=True, slots=True)
class CollectiveTime:
    """The time of a collective with the share of each tier; the slowest tier decides."""

    tiers: tuple[str, ...]
    by_tier: tuple[Seconds, ...]  # transfer time at each tier
    latency: Seconds

    @property
    def seconds(self) -> Seconds:
        """Slowest tier plus latency. [s]"""
        transfer: Num = reduce(np.maximum, self.by_tier) if self.by_tier else 0.0
        return transfer + self.latency if np.any(self.latency) else transfer

    @property
    def sequential(self) -> Seconds:
        """One tier after the other, nothing overlapping: the upper bound of ``seconds``. [s]"""
        return sum(self.by_tier, self.latency)

    @property
    def binding(self) -> NDArray[np.str_]:
        """Name of the tier that decides, at every point; empty where nothing moves."""
        stacked = np.stack(np.broadcast_arrays(0.0, *self.by_tier))
        names: NDArray[np.str_] = np.asarray(("", *self.tiers))[np.argmax(stacked, axis=0)]
        return names


@pointwise
def collective(
    op: Collective | str,
    nbytes: Bytes,
    group: Group,
    tiers: Sequence[TierLike],
    *,
    form: Form = "precise",
    algorithm: Algorithm = "hierarchical",
    in_network: InNetwork = "off",
    latency: bool = False,
) -> CollectiveTime:
    """Time of ``op`` on an array of ``nbytes`` in all, tier by tier.

    Args:
        op: a row of ``COLLECTIVES``, or its name.
        nbytes: the whole logical array V of one group: what an all-gather ends with, what each rank
            of an all-reduce holds, all send buffers of an all-to-all together. For a send, the
            message. [B]
        form: ``precise``, or ``rough`` as on paper, without (d-1)/d.
        algorithm: ``hierarchical`` runs one ring per tier; ``ring`` one ring through all ranks;
            ``tree`` moves the bytes of the hierarchical one (halving and doubling) in log2 steps.
        in_network: all-reduce in tiers whose switches add: bytes V instead of 2V(d-1)/d in
            ``theory``; ``measured`` is the 1.3-fold gain seen over the ring, where theory has it.
        latency: add the tiers' α per message step; off, the pure bandwidth model.

    Raises:
        ValueError: when the group does not fit the tiers, an option is none of those above, or the
            bytes are negative.
    """
    _known("form", form, get_args(Form))
    _known("algorithm", algorithm, get_args(Algorithm))
    _known("in_network", in_network, get_args(InNetwork))
    op = find(op)
    checks.at_least("nbytes", nbytes, 0)
    reaches = spans(group, tiers)
    n = np.asarray(group.size, float)
    by_tier = []
    alpha: Seconds = 0.0
    for reach in reaches:
        adds = op is ALL_REDUCE and in_network != "off" and reach.tier.in_network_reduction
        share = _share(op, reach, n, form, algorithm, in_network if adds else "off")
        by_tier.append(_carried(op, nbytes, reach, share))
        if latency:
            alpha = alpha + _steps(op, reach, n, algorithm, adds) * reach.tier.latency
    return CollectiveTime(tuple(tier.name for tier in tiers), tuple(by_tier), alpha)


def per_byte(op: Collective, ranks: Count, reaches: Sequence[Reach]) -> Seconds:
    """Time of ``op`` on a byte at the slowest tier, of a group whose reaches are known. [s]"""
    shares = [_share(op, reach, ranks, "precise", "hierarchical", "off") for reach in reaches]
    times = [_carried(op, 1.0, *at) for at in zip(reaches, shares, strict=True)]
    return reduce(np.maximum, times)


def _carried(op: Collective, nbytes: Bytes, reach: Reach, share: Num) -> Seconds:
    """Time of what one child's uplink carries."""
    lanes = reach.lanes(1.0 if op.rooted else None)
    return nbytes / reach.bandwidth(to_one=op in (SEND, SWAP)) * lanes * share


def find(op: Collective | str) -> Collective:
    """The operation of that name.

    Raises:
        ValueError: when there is none, naming the nearest.
    """
    if isinstance(op, Collective):
        return op
    if not isinstance(op, str):
        allowed = f"allowed: {', '.join(COLLECTIVES)}, or a Collective"
        raise ValueError(f"op: {op!r} is refused; {allowed}")
    return SWAP if op == SWAP.name else choose("op", op, COLLECTIVES)


def seconds(
    op: Collective | str, nbytes: Bytes, group: Group, tiers: Sequence[TierLike], **options: object
) -> Seconds:
    """Time of ``op``; the arguments are those of ``collective``. [s]

    >>> from roofline.machine import Tier
    >>> print(seconds(ALL_REDUCE, 1e9, Group(8), [Tier(8, 450e9)]))
    0.0038888888888888888
    """
    return collective(op, nbytes, group, tiers, **options).seconds  # type: ignore[arg-type]


def _known(field: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ValueError(f"{field}: {value!r} is not one; allowed: {', '.join(allowed)}")


def _share(
    op: Collective, reach: Reach, n: Num, form: Form, algorithm: Algorithm, in_network: InNetwork
) -> Num:
    """Bytes over one child's uplink per byte of V."""
    if in_network == "theory":
        return _whole(reach, n)
    if form == "rough":
        share = op.rough(reach, n)
    elif op.share is _ring and algorithm == "ring":
        share = _whole(reach, n) * (n - 1) / n
    else:
        share = op.share(reach, n)
    if in_network == "off":
        return share if op.passes == 1 else op.passes * share
    gained: Num = np.maximum(op.passes * share / MEASURED_SHARP_GAIN, _whole(reach, n))
    return gained


def _steps(op: Collective, reach: Reach, n: Num, algorithm: Algorithm, adds: bool) -> Num:
    """Messages one after the other whose latency is this tier's."""
    if op.direct or adds:
        return op.passes * _whole(reach, n)  # one message, or one up to the switch and one down
    if algorithm == "tree" or op.share is _whole:
        return op.passes * np.ceil(np.log2(reach.degree))
    if algorithm == "ring":  # N-1 hops in all; those between children of one unit are this tier's
        return op.passes * (np.ceil(n / reach.members) - np.ceil(n / reach.above))
    return op.passes * (reach.degree - 1)


def bandwidth(op: Collective | str, group: Group, tiers: Sequence[TierLike]) -> BytesPerSecond:
    """V / T of a large ``op``: the collective bandwidth of the group. [B/s]"""
    with np.errstate(divide="ignore"):
        per_second: Num = np.divide(1.0, collective(op, 1.0, group, tiers).seconds)
    return per_second


def bus_bandwidth(
    op: Collective | str, nbytes: Bytes, ranks: Count, time: Seconds
) -> BytesPerSecond:
    """What nccl-tests prints as busbw: comparable with a link for any operation and rank count.

    ``nbytes`` is nccl-tests' size S: the total array of an all-gather or reduce-scatter, one rank's
    buffer of an all-reduce or an all-to-all. Source: nccl-tests, "Performance", "Bus bandwidth".

    >>> print(bus_bandwidth(ALL_REDUCE, 1e9, 8, time=0.004))
    437500000000.0
    """
    return nbytes / time * find(op).busbw(np.asarray(ranks, float))


def nccl_size(op: Collective | str, nbytes: Bytes, ranks: Count) -> Bytes:
    """nccl-tests' size S for a whole array V: V itself, except V/N for an all-to-all. [B]"""
    return nbytes / ranks if find(op) is ALL_TO_ALL else nbytes


def array_bytes(op: Collective | str, size: Bytes, ranks: Count) -> Bytes:
    """The whole array V behind nccl-tests' size S: the inverse of ``nccl_size``. [B]"""
    return size * ranks if find(op) is ALL_TO_ALL else size


def sharded_reduce_rough(nbytes: Bytes, inner: Count, tiers: Sequence[TierLike]) -> Seconds:
    """Reduction over an axis that leaves the node, of an array also sharded ``inner`` ways.

    The rule for paper:

        T = max( V / (W_gpu min(Y, D)),  V D / (W_node max(D, Y)) )

    ``nbytes`` is the array over ALL shards; all-gather or reduce-scatter cost, an all-reduce costs
    twice. The exact rule is ``collective`` on ``Group(X, stride=Y)`` with V/Y bytes; this one keeps
    charging the node for axes that are no longer in it, so it is high for large Y.

    Source: How to Scale Your Model, "GPUs", collectives across nodes, reductions when the array is
    sharded over a separate axis.

    Raises:
        ValueError: when the machine has no tier beyond the node.
    """
    if len(tiers) < 2:
        raise ValueError(f"a reduction between nodes needs two tiers, got {len(tiers)}")
    node, network = tiers[0], tiers[1]
    inside = nbytes / (node.effective_bandwidth * np.minimum(inner, node.degree))
    outside = nbytes / network.effective_bandwidth * node.degree / np.maximum(node.degree, inner)
    slower: Num = np.maximum(inside, outside)
    return slower
