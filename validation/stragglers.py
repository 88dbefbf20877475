"""Ranks and groups that are slower than their peers, by the medians of each rank.

While ranks compute, nobody waits for anyone: a slow GPU or core shows in its own time. In a
collective all members of a group wait for the slowest, so there a slow link shows as a slow group
beside others of the same size and stride.

    ratio = time / median of the others' times, median over cases
    z     = (ratio - 1) / max(1.4826 MAD of the others' ratios, FLOOR)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from validation.evidence import Evidence
from validation.results import Measured

FLOOR = 0.02  # spread between equal ranks that is nothing unusual
FAR = 4.0  # z
SLOWER = 1.08  # ratio
MOSTLY = 0.7  # of the cases in which it must be slower than the others' median
FEWEST = 3  # cases
MAD = 1.4826  # standard deviation of normal numbers over their median absolute deviation

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Straggler:
    """Ranks that take longer than their peers at the same thing."""

    ranks: tuple[int, ...]  # one, or a group
    hosts: tuple[str, ...]
    part: str  # math, or comms of groups of one size and stride
    ratio: float
    z: float
    slower_in: float  # share of the cases
    cases: int

    @property
    def sentence(self) -> str:
        """``rank 3 (node-a) takes 1.31 times as long as the others (math, 24 cases, z = 15)``."""
        who = ", ".join(map(str, self.ranks[:8])) + (", …" if len(self.ranks) > 8 else "")
        subject = f"rank {who}" if len(self.ranks) == 1 else f"the group of ranks {who}"
        where = f" ({', '.join(self.hosts)})" if self.hosts else ""
        return (
            f"{subject}{where} takes {self.ratio:.2f} times as long as its peers "
            f"({self.part}, {self.cases} cases, z = {self.z:.0f})"
        )


def stragglers(evidence: Evidence) -> list[Straggler]:
    """Slow ranks while computing, then slow groups while talking; the slowest first."""
    world = evidence.header.world
    lines = [m for m in evidence.trusted if len(m.per_rank) == world and min(m.per_rank) > 0]
    if not lines:
        return []
    alone = [(rank,) for rank in range(world)]
    found = _slow([m for m in lines if m.part == "math"], alone, "math", evidence)
    kinds: dict[tuple[int, int], list[Measured]] = defaultdict(list)
    for line in lines:
        if line.part == "comms":
            kinds[line.size, line.stride].append(line)
    for (size, stride), talking in kinds.items():
        if size > 1 and size < world and world % (size * stride) == 0:
            part = f"comms of {size} ranks, {stride} apart"
            found += _slow(talking, groups(world, size, stride), part, evidence)
    return sorted(found, key=lambda one: -one.ratio)


def groups(world: int, size: int, stride: int) -> list[tuple[int, ...]]:
    """The ranks of each group.

    >>> groups(8, 2, 4)
    [(0, 4), (1, 5), (2, 6), (3, 7)]
    """
    block = size * stride
    firsts = [start + i for start in range(0, world, block) for i in range(stride)]
    return [tuple(range(first, first + block, stride)) for first in firsts]


def _slow(
    lines: Sequence[Measured], members: Sequence[tuple[int, ...]], part: str, evidence: Evidence
) -> list[Straggler]:
    if len(lines) < FEWEST or len(members) < 2:
        return []
    every = np.array([line.per_rank for line in lines])
    times = np.stack([every[:, ranks].max(axis=1) for ranks in map(list, members)], axis=1)
    ratios = _ratios(times)
    typical = np.median(ratios, axis=0)
    often = (ratios > 1).mean(axis=0)
    found = []
    for i, ranks in enumerate(members):
        others = np.delete(typical, i)
        spread = MAD * float(np.median(np.abs(others - np.median(others))))
        z = (typical[i] - 1) / max(spread, FLOOR)
        if z > FAR and typical[i] > SLOWER and often[i] >= MOSTLY:
            hosts = tuple(dict.fromkeys(_host(evidence, rank) for rank in ranks))
            told = hosts if all(hosts) else ()
            found.append(
                Straggler(
                    ranks, told, part, float(typical[i]), float(z), float(often[i]), len(lines)
                )
            )
    return found


def _ratios(times: Array) -> Array:
    """Each column over the median of the other columns, row by row."""
    columns = range(times.shape[1])
    others = [np.median(np.delete(times, i, axis=1), axis=1) for i in columns]
    return np.asarray(times / np.stack(others, axis=1))


def _host(evidence: Evidence, rank: int) -> str:
    hosts = evidence.host_of
    return hosts[rank] if rank < len(hosts) else ""
