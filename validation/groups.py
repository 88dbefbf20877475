"""Groups of ranks: which there are in a world, and who is in which.

A group of some size and stride has as many ranks, so far apart; all of them together share out the
world, and run at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence

from roofline.groups import Group


def members(rank: int, size: int, stride: int) -> list[int]:
    """Ranks of ``rank``'s group: ``size`` of them, ``stride`` apart.

    >>> members(5, 2, 4), members(5, 4, 1)
    ([1, 5], [4, 5, 6, 7])
    """
    first = rank // (size * stride) * size * stride + rank % stride
    return list(range(first, first + size * stride, stride))


def all_members(world: int, size: int, stride: int) -> list[list[int]]:
    """Every group of that size and stride.

    >>> all_members(4, 2, 2)
    [[0, 2], [1, 3]]
    """
    return [
        list(ranks)
        for ranks in dict.fromkeys(tuple(members(rank, size, stride)) for rank in range(world))
    ]


def subgroups(world: int, units: Sequence[int]) -> tuple[Group, ...]:
    """Groups worth measuring: all ranks; inside each unit of the profile, across units; strided.

    ``units`` are the ranks under one child of each tier, as ``Cluster.unit_sizes``. Inside the
    smallest unit with room for it, halves side by side and halves interleaved.

    >>> [(g.size, g.stride) for g in subgroups(4, (1, 2, 4))]
    [(4, 1), (2, 1), (2, 2)]
    """
    pairs = [(world, 1)]
    for unit in units:
        if world % unit == 0:
            pairs += [(unit, 1), (world // unit, unit)]
    inner = min((unit for unit in (*units, world) if unit >= 4 and unit % 2 == 0), default=0)
    if inner and world % inner == 0:
        pairs += [(inner // 2, 1), (inner // 2, 2)]
    return tuple(Group(*pair) for pair in dict.fromkeys(pairs) if pair[0] > 1)
