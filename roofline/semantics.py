"""Semantics: what every rank holds after a collective, given what each held before.

The functions are the definitions, in numpy: ``ranks[i]`` is the flat array of rank i. A rank whose
buffer the operation leaves undefined, or that has none, holds None. ``validation`` runs the same
operations on real ranks and compares.

Source: PyTorch, torch.distributed, "Collective functions".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce as fold
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Ranks = Sequence[Array]
Held = list[Array]
Rooted = list[Array | None]

REDUCTIONS: dict[str, Callable[[Ranks], Array]] = {
    "sum": lambda ranks: fold(np.add, ranks),
    "avg": lambda ranks: np.asarray(fold(np.add, ranks) / len(ranks)),
    "max": lambda ranks: fold(np.maximum, ranks),
    "min": lambda ranks: fold(np.minimum, ranks),
    "product": lambda ranks: fold(np.multiply, ranks),
}


def all_reduce(ranks: Ranks, op: str = "sum") -> Held:
    """Every rank ends with the element-wise reduction of all arrays.

    Raises:
        ValueError: an unknown reduction, or arrays of different length.
    """
    total = _reduced(ranks, op)
    return [total.copy() for _ in ranks]


def reduce(ranks: Ranks, root: int, op: str = "sum") -> Rooted:
    """The root ends with the reduction; the buffers of the others are undefined."""
    return _only(root, _reduced(ranks, op), len(ranks))


def reduce_scatter(ranks: Ranks, op: str = "sum") -> Held:
    """Rank i ends with the i-th part of the reduction.

    Raises:
        ValueError: when the arrays do not divide into one part a rank.
    """
    return _parts(_reduced(ranks, op), len(ranks))


def all_gather(ranks: Ranks) -> Held:
    """Every rank ends with the arrays of all ranks one after the other."""
    whole = np.concatenate(ranks)
    return [whole.copy() for _ in ranks]


def broadcast(ranks: Ranks, root: int) -> Held:
    """Every rank ends with the root's array."""
    return [ranks[_rank(root, len(ranks))].copy() for _ in ranks]


def scatter(array: Array, world_size: int) -> Held:
    """Rank i ends with the i-th part of the root's ``array``."""
    return _parts(np.asarray(array), world_size)


def gather(ranks: Ranks, root: int) -> Rooted:
    """The root ends with the arrays of all ranks one after the other."""
    return _only(root, np.concatenate(ranks), len(ranks))


def all_to_all(ranks: Ranks, splits: Sequence[Sequence[int]] | None = None) -> Held:
    """Rank j ends with the j-th part of every array, in the order of ranks: a transpose of parts.

    Args:
        splits: splits[i][j] elements go from rank i to rank j; None cuts every array evenly.

    Raises:
        ValueError: when the splits do not add up to the arrays.
    """
    if splits is None:
        parts = [_parts(array, len(ranks)) for array in ranks]
    elif len(splits) == len(ranks):
        parts = [_split(array, splits[i], len(ranks), i) for i, array in enumerate(ranks)]
    else:
        raise ValueError(f"splits: {len(ranks)} ranks need a row each, got {len(splits)}")
    return [np.concatenate(received) for received in zip(*parts, strict=True)]


def send_recv_ring(ranks: Ranks) -> Held:
    """Every rank sends its array to the next and ends with that of the one before."""
    return [ranks[i - 1].copy() for i in range(len(ranks))]


def _reduced(ranks: Ranks, op: str) -> Array:
    if op not in REDUCTIONS:
        raise ValueError(f"op: {op!r} is not one; allowed: {', '.join(REDUCTIONS)}")
    lengths = {len(array) for array in ranks}
    if len(lengths) != 1:
        raise ValueError(f"ranks: arrays of one length are reduced, got lengths {sorted(lengths)}")
    return REDUCTIONS[op](ranks)


def _parts(array: Array, count: int) -> Held:
    if len(array) % count:
        raise ValueError(f"array: {len(array)} elements do not divide into {count} parts")
    return [part.copy() for part in np.split(array, count)]


def _split(array: Array, row: Sequence[int], count: int, rank: int) -> Held:
    if len(row) != count or sum(row) != len(array):
        raise ValueError(
            f"splits: rank {rank} has {len(array)} elements for {count} ranks, got {list(row)}"
        )
    return np.split(array, np.cumsum(row)[:-1])


def _only(root: int, array: Array, count: int) -> Rooted:
    _rank(root, count)
    return [array if rank == root else None for rank in range(count)]


def _rank(root: int, count: int) -> int:
    if not 0 <= root < count:
        raise ValueError(f"root: {root} is no rank; allowed: 0 to {count - 1}")
    return root
