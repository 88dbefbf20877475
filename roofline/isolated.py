"""Time of a collective with nothing beside it, as nccl-tests measures it.

Inside the innermost tier, with V the whole array, y the bytes that a rank sends, W the tier:

    T = start + per_rank · N + V · load / W + root √y
    load = (N-1)/N / ring, for an all-reduce twice that, or (1 + 1/N) / switched where that is less

A switch that adds (NVLS) takes the whole array from each GPU, in N parts, and returns a part to it;
each GPU then sends its part, and all others receive it: (1 + 1/N) V, half of a ring's bytes for many
ranks, more than a ring's for two. Between units the slower of the tiers decides. NCCL runs one ring
through all ranks, so that a unit sends (N-1)/N V. An all-reduce between two units goes by a tree
if that is less: V out of each, with a reduction inside by switches, or by a tree that reaches 0.7 of
a ring. From three units on a tree's inner nodes send twice as much, and it gains latency alone.

    T = begun + steps · hop · (1 + (handshake - 1) V/(V + unasked)) + V · load / W + root · depth √V

``begun`` is what the ranks inside take, start + per_rank · N of the same collective there. A hop is
both ways of a tree; a ring's step, and a message, go one way.

The √ is what chunks in flight cost: V bytes in chunks of any size c take V/c starts and the time of
one chunk at each step; the best c leaves a term in √V. The handshake is that of messages too long to
be sent unasked. A step model has numbers of its own: in a job nothing is alone.

A GPU waits for the CPU where that is slower: a thread that calls for g GPUs launches g kernels one
after the other, while those of the call before still run,

    T = max(T, g · (launch + peers · per_rank of all-to-alls))

and a program that waits for each call before the next pays for its way there as well.

A lone message inside a unit of N ranks gets 32/N of NCCL's 32 channels, and twice as many as long as
a channel would carry more than 16 MiB; each is a block of threads that copies 21 GB/s. So a message a
little longer than 64 MiB takes less than one of 64 MiB does. Between units it gets two, and one where
the group has more than 64 ranks.

Sources: How to Scale Your Model, "GPUs"; nccl-tests, "Performance"; NVIDIA/nccl-tests issue 309 on
trees of two nodes; nccl, scheduleP2pTasksToPlan and calcP2pChannelCount in src/enqueue.cc,
ncclTopoGetNchannels in src/graph/paths.cc, issue 1272; fitted to measured sweeps by
``scripts/fit_collectives.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from roofline.collectives import ALL_REDUCE, ALL_TO_ALL, SEND, Collective, collective, find
from roofline.groups import Group, Reach, spans
from roofline.machine import Tier
from roofline.units import Bytes, Count, Num, Seconds

TREE = (
    0.7  # of a ring's bandwidth: 259 of 366 GB/s on four H100, waynehacking8/nccl-collectives-bench
)
CHANNELS, PART = 32, 16 * 2.0**20  # of a message, and bytes in each from which it gets more
NET_CHANNELS = 2  # of a message between units, fewer where many share the channels
COPIED = 21e9  # bytes a second of a channel: 666 GB/s of an all-to-all on eight B200, by 32
# Each peer of an all-to-all in NCCL up to 2.22: one of no bytes at all took 50 us on 16 ranks and 75 us
# on 32, some 14 of them to start (argonne-lcf/alcf-nccl-tests); versions since skip it.
QUEUED = 2.1e-6


@dataclass(frozen=True, slots=True)
class Wire:
    """One collective inside the innermost tier."""

    start: Seconds
    per_rank: Seconds
    fraction: Count  # of the tier's bandwidth, by rings
    root: Count  # seconds per √byte
    switched: Count = 0.0  # of the tier's bandwidth, by switches that add; 0: they do not
    crowding: Count = 0.0  # by how much more ranks slow a bus: (2/N)^crowding


@dataclass(frozen=True, slots=True)
class Fabric:
    """The network between units."""

    hop: Seconds  # of a tree between units, both ways; a ring or a message goes one
    handshake: Count  # hops of long messages, over those of short ones
    unasked: Bytes  # half way from short messages to long ones
    message: Seconds  # for each peer of an all-to-all outside the unit
    root: Count  # seconds per √byte and per depth
    growth: Count  # depth is log2(units) to this power
    ring: Count  # fractions of the cards' bandwidth
    exchange: Count
    send: Count  # of what the channels of a message copy


@dataclass(frozen=True, slots=True)
class Host:
    """CPUs that call."""

    launch: Seconds = 0.0  # of a kernel on one GPU
    waiting: Seconds = 0.0  # of a call through a framework, on a GPU that has nothing to do


@dataclass(frozen=True, slots=True)
class Calls:
    """How a benchmark calls; as it stands, as nccl-tests does with a process for each GPU."""

    per_thread: Count = 1.0  # GPUs that a thread calls for; 0 where recorded graphs run
    waits: Num = False  # for each call before the next, in a framework
    queues: Num = False  # NCCL before 2.23: an all-to-all costs more for each peer


@dataclass(frozen=True, slots=True)
class Idle:
    """Tiers that carry one collective and nothing else."""

    tiers: tuple[Tier, ...]
    wires: dict[str, Wire]
    fabric: Fabric
    host: Host = Host()

    def seconds(
        self, op: Collective | str, nbytes: Bytes, group: Group, calls: Calls = Calls()
    ) -> Seconds:
        """Time of ``op`` on a whole array of ``nbytes``, as ``collectives.collective`` has it. [s]

        Raises:
            ValueError: an operation that nothing is known of, or a group that does not fit.
        """
        found = find(op)
        if found.name not in self.wires:
            raise ValueError(
                f"op: {found.name!r} has not been measured; allowed: {', '.join(self.wires)}"
            )
        reaches = spans(group, self.tiers)
        units = group.size / reaches[0].above
        within = self._inside(found, nbytes, group)
        if len(self.tiers) > 1:
            across = self._across(found, nbytes, group, reaches[0], units)
            within = np.where(np.greater(units, 1), across, within)
        called = self._called(found, within, group.size, calls)
        return np.where(np.greater(group.size, 1), called, 0.0)

    def _called(self, op: Collective, alone: Seconds, ranks: Count, calls: Calls) -> Seconds:
        """With the CPUs that call."""
        if op is ALL_TO_ALL:
            alone = alone + np.where(calls.queues, QUEUED * ranks, 0.0)
        waited = np.where(calls.waits, self.host.waiting, 0.0)
        return np.maximum(alone, self.launches(op, ranks, calls.per_thread)) + waited

    def launches(self, op: Collective | str, ranks: Count, per_thread: Count) -> Seconds:
        """Of a call by a thread for so many GPUs, one after the other. [s]"""
        peers: Seconds = 0.0
        if find(op) is ALL_TO_ALL and ALL_TO_ALL.name in self.wires:
            peers = self.wires[ALL_TO_ALL.name].per_rank * ranks
        return per_thread * (self.host.launch + peers)

    def _begun(self, op: Collective, ranks: Count) -> Seconds:
        """What no byte takes inside a unit; a message has one peer."""
        wire = self.wires[op.name]
        return wire.start + wire.per_rank * (2.0 if op is SEND else ranks)

    def _inside(self, op: Collective, nbytes: Bytes, group: Group) -> Seconds:
        wire, n = self.wires[op.name], np.asarray(group.size, float)
        mine = op.passes * _sent(op, nbytes, n)
        moved = self._node(op, nbytes, group)
        if op is SEND:
            moved = np.maximum(moved, nbytes / (_channels(nbytes, n) * COPIED))
        return self._begun(op, n) + moved + wire.root * np.sqrt(mine)

    def _node(self, op: Collective, nbytes: Bytes, group: Group) -> Seconds:
        """Bytes over the innermost tier, by a ring or by its switches."""
        wire, n = self.wires[op.name], np.asarray(group.size, float)
        crowd = np.power(np.maximum(n, 2.0) / 2, wire.crowding)
        alone: Seconds = nbytes * _per_byte(op, group, self.tiers)[0] * crowd / wire.fraction
        if op is not ALL_REDUCE or not np.any(wire.switched):
            return alone
        least: Seconds = np.minimum(alone, self._switched(nbytes, n))
        return least

    def _switched(self, nbytes: Bytes, ranks: Count) -> Seconds:
        wire = self.wires[ALL_REDUCE.name]
        rate = wire.switched * self.tiers[0].effective_bandwidth
        moved: Seconds = nbytes * (1 + 1 / ranks) / rate
        return moved

    def _across(
        self, op: Collective, nbytes: Bytes, group: Group, reach: Reach, units: Count
    ) -> Seconds:
        fabric, n = self.fabric, np.asarray(group.size, float)
        depth = np.power(np.log2(np.maximum(units, 2.0)), fabric.growth)
        message: Bytes = nbytes
        inside: Count = n
        steps: Num = (units - 1) / 2
        chunks: Num = np.sqrt(nbytes / 2) * depth
        if op is SEND:
            steps, chunks = 0.5, 0.0
        elif op is ALL_TO_ALL:
            message = nbytes / n**2
            steps = 0.5 + (n - reach.above) * fabric.message / fabric.hop
            chunks = np.sqrt(nbytes / n)
        elif op is ALL_REDUCE:
            inside = reach.above
            steps, chunks = np.log2(np.maximum(units, 2.0)), np.sqrt(nbytes) * depth
        long = 1 + (fabric.handshake - 1) * message / (message + fabric.unasked)
        latency = self._begun(op, inside) + steps * fabric.hop * long
        moved = self._moved(op, nbytes, group, reach, units)
        return latency + moved + fabric.root * chunks

    def _moved(
        self, op: Collective, nbytes: Bytes, group: Group, reach: Reach, units: Count
    ) -> Seconds:
        """Bytes over the slowest tier."""
        fabric = self.fabric
        reached = fabric.exchange if op is ALL_TO_ALL else fabric.ring
        per = _per_byte(op, group, self.tiers, ring=True)
        wire = self.wires[op.name]
        around = np.maximum(_most(per[1:]) / reached, per[0] / wire.fraction) * nbytes
        if op is SEND:
            channels = np.where(
                np.greater(NET_CHANNELS * group.size, 4 * CHANNELS), 1, NET_CHANNELS
            )
            return np.maximum(around, nbytes / (channels * COPIED * fabric.send))
        if op is not ALL_REDUCE:
            return around
        local = replace(group, size=reach.above)
        chain = nbytes * _per_byte(op, local, self.tiers)[0] / (wire.fraction * TREE)
        inner = np.minimum(chain, self._switched(nbytes, reach.above)) if wire.switched else chain
        outer = nbytes * _most(_per_byte(op, group, self.tiers)[1:]) / reached
        tree = np.where(np.less_equal(units, 2), np.maximum(inner, outer), np.inf)
        return np.minimum(around, tree)


def _per_byte(
    op: Collective, group: Group, tiers: Sequence[Tier], *, ring: bool = False
) -> tuple[Seconds, ...]:
    """Seconds at each tier for a byte of V, at stated bandwidths."""
    algorithm = "ring" if ring and not op.direct else "hierarchical"
    return collective(op, 1.0, group, tiers, algorithm=algorithm).by_tier  # type: ignore[arg-type]


def _most(seconds: Sequence[Seconds]) -> Seconds:
    most: Num = np.max(np.stack(np.broadcast_arrays(*seconds)), axis=0)
    return most


def _channels(nbytes: Bytes, ranks: Count) -> Count:
    """Of a message in a unit: a share of the ranks, and more for a long one."""
    least = np.exp2(np.floor(np.log2(np.maximum(CHANNELS / ranks, 1.0))))
    wanted = np.exp2(np.ceil(np.log2(np.maximum(nbytes / PART, 1.0))))
    channels: Num = np.clip(wanted, least, CHANNELS)
    return channels


def _sent(op: Collective, nbytes: Bytes, n: Count) -> Bytes:
    """Bytes that a rank sends, in each pass."""
    if op is SEND:
        return nbytes
    return nbytes * (n - 1) / n / (n if op is ALL_TO_ALL else 1.0)
