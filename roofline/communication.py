"""Time of a collective of a running job: bytes over the tiers, plus what starting and filling costs.

    τ = α₀ + α₁ · hops + bytes / (achieved bandwidth) + γ √(bytes on the wire of a rank)

The transfer is ``roofline.collectives`` on tiers at their achieved bandwidth: one set of formulas
for the closed forms and for the step. The √ stands for protocol switches and chunks in flight; it
is what a single α-β line misses between 1 and 64 MB, where tensor parallelism lives. Rings pay a
latency per hop, the hops between nodes four times those inside; an all-reduce may go by a tree. So
may an all-gather or a reduce-scatter of one GPU a node (PAT), though its time grows with the ranks
as well, a fifth as fast.

Sources: nccl src/graph/tuning.cc for the form of the latencies; fitted on measured sweeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from roofline.collectives import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    REDUCE_SCATTER,
    SEND,
    SWAP,
    Collective,
    per_byte,
)
from roofline.groups import Group, Reach, spans
from roofline.machine import Tier
from roofline.units import Bytes, Count, Seconds

EXCHANGED = 30  # messages of an all-to-all that take as long as a hop
TREE_STEP = 2.2  # latency of a tree's step between nodes, in hops of a ring
# Parallel aggregated trees, which NCCL 2.23 has where a group has one GPU of each node: steps of the
# tree and ranks, in hops of a ring (14 us there), and the bandwidth that its tuner counts with.
PAT_STEP, PAT_RANK, PAT_BANDWIDTH = 1 / 3.5, 2.8 / 14, 0.75
IN_FLIGHT = 4 * 512 * 1024  # bytes that a ring hands on at a time: 4 channels of 512 KiB


@dataclass(frozen=True, slots=True)
class Link:
    """One collective inside the innermost tier, as measured."""

    start: Seconds  # α₀
    per_rank: Seconds  # α₁
    fraction: Count  # of the tier's bandwidth, in bus bandwidth
    root: Count  # γ, seconds per √byte


@dataclass(frozen=True, slots=True)
class Network:
    """Tiers as achieved, and the latencies of a job's collectives on them."""

    tiers: tuple[Tier, ...]
    links: dict[str, Link]
    outer: Count  # achieved fraction of the tiers beyond the first
    hop: Seconds  # a ring's hop between nodes; a quarter of it inside
    exchange: Count = 0.75  # of ``outer``, for all-to-alls

    def route(self, group: Group) -> Route:
        """The group on these tiers, ready to be asked for times."""
        return Route(self, group, spans(group, self.tiers))

    def link(self, op: Collective) -> Link:
        """As measured; messages both ways as messages one way where only those were."""
        alone = op is SWAP and op.name not in self.links
        return self.links[SEND.name if alone else op.name]

    def achieved(self, op: Collective) -> tuple[Tier, ...]:
        """The tiers as ``op`` finds them."""
        outer = self.outer * (self.exchange if op is ALL_TO_ALL else 1.0)
        inner = self.link(op).fraction
        return tuple(
            replace(tier, bandwidth=tier.bandwidth * (inner if i == 0 else outer))
            for i, tier in enumerate(self.tiers)
        )


@dataclass(frozen=True, slots=True)
class Route:
    """A group of ranks on a network."""

    network: Network
    group: Group
    reaches: Sequence[Reach]

    @property
    def ranks(self) -> Count:
        """N."""
        return self.group.size

    @property
    def units(self) -> Count:
        """Innermost units that the group spans."""
        return self.group.size / self.reaches[0].above

    def gather(self, nbytes: Bytes) -> Seconds:
        """All-gather of ``nbytes`` in all. [s]"""
        return self._ring(ALL_GATHER, nbytes)

    def scatter(self, nbytes: Bytes) -> Seconds:
        """Reduce-scatter of ``nbytes`` in all. [s]"""
        return self._ring(REDUCE_SCATTER, nbytes)

    def reduce(self, nbytes: Bytes) -> Seconds:
        """All-reduce of ``nbytes`` on every rank. [s]"""
        return self._ring(ALL_REDUCE, nbytes)

    def exchange(self, nbytes: Bytes) -> Seconds:
        """All-to-all of ``nbytes`` from every rank. [s]"""
        link, n = self.network.links[ALL_TO_ALL.name], self.ranks
        hops = self.network.hop * (np.log2(np.maximum(self.units, 1.0)) + n / EXCHANGED)
        inside = link.start + link.per_rank * n
        latency = np.where(np.greater(self.units, 1), link.start + hops, inside)
        wire = nbytes * (n - 1) / n
        root = np.where(np.greater(self.units, 1), 0.0, link.root * np.sqrt(wire))
        return self._alive(self._transfer(ALL_TO_ALL, nbytes * n) + latency + root)

    def send(self, nbytes: Bytes) -> Seconds:
        """``nbytes`` to the next rank, on the slowest hop. [s]"""
        return self._message(SEND, nbytes)

    def swap(self, nbytes: Bytes) -> Seconds:
        """``nbytes`` to the next rank, while as many come from the one before. [s]"""
        return self._message(SWAP, nbytes)

    def relay(self, nbytes: Bytes, messages: Count) -> Seconds:
        """``nbytes`` in all, as ``messages`` broadcasts one after the other. [s]

        Each first fills the ring hop by hop: a rank hands on what it has received in whole. An
        all-gather does not, since there all ranks send from the start.

        Source: nccl, NCCL_BUFFSIZE (4 MiB) in NCCL_STEPS (8).
        """
        inner, *outer = self.network.achieved(ALL_GATHER)
        share = self.reaches[0].above / inner.degree  # of the node's cards, others being at work
        beyond = outer[0].bandwidth * share if outer else inner.bandwidth
        hops = (self.units - 1) / beyond + (self.ranks - self.units) / inner.bandwidth
        start = self.network.links[ALL_GATHER.name].start
        filling = messages * (start + IN_FLIGHT * hops)
        return self._alive(self._transfer(ALL_GATHER, nbytes) + filling)

    def _message(self, op: Collective, nbytes: Bytes) -> Seconds:
        outside = np.greater(self.units, 1)
        start = self.network.link(op).start
        latency = np.where(outside, start + self.network.hop, start)
        return self._alive(self._transfer(op, nbytes) + latency)

    def _transfer(self, op: Collective, nbytes: Bytes) -> Seconds:
        tiers = self.network.achieved(op)
        pairs = zip(self.reaches, tiers, strict=True)
        return nbytes * per_byte(
            op, self.ranks, [reach._replace(tier=tier) for reach, tier in pairs]
        )

    def _ring(self, op: Collective, nbytes: Bytes) -> Seconds:
        link, n, units = self.network.links[op.name], self.ranks, self.units
        inside = link.start + link.per_rank * n
        hop = self.network.hop
        ring = link.start + op.passes * hop * ((units - 1) + (n - units) / 4)
        if op is ALL_REDUCE:
            above = self.reaches[0].above
            tree = link.start + 2 * (
                above * link.per_rank + TREE_STEP * hop * np.log2(np.maximum(units, 1))
            )
            ring = np.minimum(ring, tree)
        several = np.greater(units, 1)
        latency = np.where(several, ring, inside)
        wire = op.passes * nbytes * (n - 1) / n
        outside = op.passes * nbytes * (units - 1) / (units * self.reaches[0].above)
        root = link.root * np.sqrt(np.where(several, 4.0 * outside, wire))
        moved = self._transfer(op, nbytes)
        found = moved + latency + root
        if op is not ALL_REDUCE and np.any(alone := np.equal(units, n) & several):
            steps = np.log2(np.maximum(units, 1)) * PAT_STEP + n * PAT_RANK
            pat = moved / PAT_BANDWIDTH + link.start + hop * steps + root
            found = np.where(alone, np.minimum(found, pat), found)
        return self._alive(found)

    def _alive(self, seconds: Seconds) -> Seconds:
        """Nothing to wait for in a group of one."""
        return np.where(np.greater(self.ranks, 1), seconds, 0.0)
