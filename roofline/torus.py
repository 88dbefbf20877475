"""Torus of chips: TPU pods, whose every chip has two links along each of up to three axes.

Axis of X chips, each link w in one direction; V the bytes of the whole array over the N chips used:

    all-gather, reduce-scatter     V (N-1)/N / Σ w_axis       both ways round a ring: w_axis = 2 w
    all-reduce                     twice that
    all-to-all                     V/N · max X_i/(8 w)        a quarter of an all-gather on one axis

An axis that does not wrap around is a line: the chip at its end takes everything in over one link,
so w_axis = w, and an all-to-all's middle link carries twice as much. A message goes from neighbour
to neighbour, so however few bytes there are an operation takes one hop's latency t for each of the
X/2 (line: X-1) hops to the farthest chip, axis after axis:  T = max(transfer, t Σ hops).

An array that is also sharded over other axes moves in parallel rings, each with its own part:
``sharded`` divides V. To the strategies a torus is one tier of N chips with Σ w_axis each; slices
of a pod meet over the data-centre network (DCN), the tier outside.

Source: How to Scale Your Model, "How to Think About TPUs" and "Sharded Matrices".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from roofline.collectives import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    REDUCE_SCATTER,
    Collective,
    Form,
    collective,
)
from roofline.groups import Group
from roofline.machine import Ideal, Tier
from roofline.units import Bytes, BytesPerSecond, Count, FlopPerSecond, Seconds

_KNOWN = (ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE, ALL_TO_ALL)


@dataclass(frozen=True, slots=True)
class Axis:
    """Chips in a row, each joined to its neighbours."""

    size: Count
    link: BytesPerSecond  # one link, one direction
    wraps: bool = True  # a ring; else a line
    bidirectional: bool = True  # messages go both ways round a ring

    def __post_init__(self) -> None:
        if not np.all(np.greater_equal(self.size, 1)):
            raise ValueError(f"size: an axis has at least one chip, got {np.min(self.size):g}")
        if not (self.wraps or self.bidirectional):
            raise ValueError(
                "bidirectional: False needs wraps; on a line one way reaches no one behind"
            )

    @property
    def _ways(self) -> int:
        """Links over which a chip, the worst placed one, takes in what it needs."""
        return 2 if self.wraps and self.bidirectional else 1

    @property
    def bandwidth(self) -> BytesPerSecond:
        """What every chip takes in along this axis while all do; 0 for an axis of one. [B/s]"""
        return np.where(np.greater(self.size, 1), self._ways * 1.0 * self.link, 0.0)

    @property
    def hops(self) -> Count:
        """From a chip to the farthest one."""
        x = np.asarray(self.size, float)
        farthest: Count = np.floor(x / 2) if self._ways == 2 else x - 1
        return farthest

    @property
    def all_hops(self) -> Count:
        """From a chip to every other one, summed; on a line, what its middle link carries for it.

        A ring both ways has ⌊X²/4⌋, one way X (X-1)/2.
        """
        x = np.asarray(self.size, float)
        summed: Count = np.floor(x * x / 4) if self.bidirectional else x * (x - 1) / 2
        return summed

    def distance(self, start: Count, end: Count) -> Count:
        """Hops between two positions, the shorter way round. [1]"""
        ahead = np.asarray(end, float) - start
        if not self.wraps:
            return np.abs(ahead)
        there = np.mod(ahead, self.size)
        return np.minimum(there, self.size - there) if self.bidirectional else there


@dataclass(frozen=True, slots=True)
class Torus:
    """The axes that an operation runs over, or all axes of a slice."""

    axes: tuple[Axis, ...]

    @property
    def chips(self) -> Count:
        """Chips in all: the product of the axes."""
        product: Count = 1.0
        for axis in self.axes:
            product = product * np.asarray(axis.size, float)
        return product

    @property
    def bandwidth(self) -> BytesPerSecond:
        """What every chip takes in over all axes together; infinite for one chip. [B/s]"""
        total = sum((axis.bandwidth for axis in self.axes), np.asarray(0.0))
        return np.where(total > 0, total, np.inf)

    @property
    def hops(self) -> Count:
        """From a chip to the farthest one, axis after axis."""
        return sum((axis.hops for axis in self.axes), 0.0)

    def hosts(self, chips_per_host: Count) -> Count:
        """Machines that the chips sit in."""
        count: Count = np.ceil(self.chips / chips_per_host)
        return count


@dataclass(frozen=True, slots=True)
class TorusTime:
    """The transfer and the hops of one operation; whichever takes longer decides."""

    transfer: Seconds
    latency: Seconds

    @property
    def seconds(self) -> Seconds:
        """The larger of the two. [s]"""
        return np.maximum(self.transfer, self.latency)

    @property
    def latency_bound(self) -> NDArray[np.bool_]:
        """True where the hops take longer than the bytes."""
        return np.greater(self.latency, self.transfer)


def time(
    op: Collective,
    nbytes: Bytes,
    torus: Torus,
    *,
    sharded: Count = 1,
    form: Form = "precise",
    hop_latency: Seconds = 0.0,
) -> TorusTime:
    """Time of ``op`` over all axes of ``torus``.

    Args:
        op: all-gather, reduce-scatter, all-reduce or all-to-all.
        nbytes: the whole logical array, over all chips that hold a part of it. [B]
        sharded: ways in which it is split over axes that ``torus`` does not name.
        form: ``rough`` drops the (N-1)/N of gathers and reductions, as the book does.
        hop_latency: of one hop. [s]

    Raises:
        ValueError: another operation.

    >>> v5e = Torus((Axis(16, 45e9),))
    >>> print(time(ALL_GATHER, 2 * 2048 * 8192, v5e, form="rough").seconds)
    0.00037282702222222223
    """
    if op not in _KNOWN:
        known = ", ".join(known.name for known in _KNOWN)
        raise ValueError(f"op: {op.name!r} is not worked out on a torus; allowed: {known}")
    part = nbytes / sharded
    if op is ALL_TO_ALL:
        transfer = _exchange(part, torus)
    else:
        tier = Tier(torus.chips, torus.bandwidth)
        transfer = collective(op, part, Group(torus.chips), (tier,), form=form).seconds
    return TorusTime(transfer, op.passes * torus.hops * hop_latency)


def _exchange(nbytes: Bytes, torus: Torus) -> Seconds:
    """All-to-all, every chunk along one axis after the other and the axes working at once."""
    held = nbytes / torus.chips
    slowest: Seconds = 0.0
    for axis in torus.axes:
        per_link = axis.all_hops / (axis._ways * np.asarray(axis.size, float))
        slowest = np.maximum(slowest, held * per_link / axis.link)
    return slowest


def link_bytes(op: Collective, nbytes: Bytes, axis: Axis, form: Form = "precise") -> Bytes:
    """What the busiest link of one axis carries in one direction. [B]

    >>> one_way = Axis(8, 45e9, bidirectional=False)
    >>> print(link_bytes(ALL_TO_ALL, 1024.0, one_way) / link_bytes(ALL_GATHER, 1024.0, one_way))
    0.5
    """
    return time(op, nbytes, Torus((axis,)), form=form).transfer * axis.link


def send(
    nbytes: Bytes, moves: Sequence[Count], torus: Torus, *, hop_latency: Seconds = 0.0
) -> Seconds:
    """One message between two chips, ``moves`` hops along each axis, by all ports that lead there.

    V / Σ w over the axes with a way to go, and the latency of every hop on top.

    Raises:
        ValueError: when moves and axes differ in number.
    """
    if len(moves) != len(torus.axes):
        raise ValueError(f"moves: {len(moves)} for a torus of {len(torus.axes)} axes")
    ports: BytesPerSecond = np.asarray(0.0)
    for axis, hops in zip(torus.axes, moves, strict=True):
        ports = ports + np.greater(hops, 0) * 1.0 * axis.link
    return nbytes / np.where(ports > 0, ports, np.inf) + sum(moves, 0.0) * hop_latency


def dcn_egress(host: BytesPerSecond, chips_per_host: Count) -> BytesPerSecond:
    """One chip's part of its host's network cards, one direction: 25e9/4 on a TPU v5p. [B/s]"""
    return host / chips_per_host


def machine(
    torus: Torus, rate: FlopPerSecond, *, slices: Count = 1, egress: BytesPerSecond | None = None
) -> Ideal:
    """The torus as a machine for the strategies: one tier, and the DCN between ``slices``.

    Over one axis of a TPU v5p data parallelism needs C/W = 459e12/180e9 = 2550 tokens a chip, over
    three 850.

    Args:
        rate: of one chip. [FLOP/s]
        egress: what one chip sends into the DCN, one direction; without it there is none. [B/s]

    >>> print(machine(Torus((Axis(16, 90e9),) * 3), 459e12).tiers[0].bandwidth)
    540000000000.0
    """
    tiers = [Tier(torus.chips, torus.bandwidth, "ICI")]
    if egress is not None:
        tiers.append(Tier(slices, torus.chips * egress, "DCN"))
    return Ideal(rate, tuple(tiers))
