"""The best of very many layouts, kept while they stream past: an answer whose size does not grow.

    best     the K fastest that fit, to the nanosecond; ties go to the simpler layout, then to the
             smaller choices, so that the order of the stream does not matter
    front    those that no other beats in time, memory and complexity together
    field    one layout for each cell of a grid of time and memory: the picture of all

Complexity counts mechanisms that somebody has to run: an axis beyond data parallelism, a schedule
beyond 1F1B, recomputation, offload, ZeRO-3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roofline.space import CHOICES

Column = NDArray[np.float64]
Rows = dict[str, Column]

CUT = ("tp", "cp", "ep", "pp")
KIND = (*CUT, "zero", "shard", "recompute")  # what sets two layouts apart
SAVED = 0.99  # of the memory of a faster layout with the same cut, at most, to be worth a look
CELLS = 16  # of the field, a factor of e of time or memory
LOWEST_TIME, LOWEST_MEMORY = 14.0, 14.0  # a microsecond; a megabyte
COLUMNS, LINES = 34 * CELLS, 24 * CELLS
KEPT = 200


def complexity(rows: Mapping[str, Column]) -> Column:
    """Mechanisms in use, counted."""
    several = sum(
        (rows[name] > 1).astype(float) for name in ("tp", "cp", "pp", "ep", "etp", "chunks")
    )
    others = sum(
        (rows[name] > least).astype(float)
        for name, least in (
            ("schedule", 0), ("order", 0), ("zero", 2), ("shard", 0), ("recompute", 0),
            ("offload_share", 0),
        )
    )  # fmt: skip
    return np.asarray(several + others)


@dataclass
class Ranking:
    """What is kept of a stream of layouts; ``add`` it block by block."""

    kept: int = KEPT
    seen: int = 0
    fitting: int = 0
    best: Rows = field(default_factory=dict)
    front: Rows = field(default_factory=dict)
    smallest: Rows = field(default_factory=dict)  # needs the least memory
    leading: Rows = field(default_factory=dict)  # of each cell, with ties
    grid: Column = field(default_factory=lambda: np.full(2 * COLUMNS * LINES, np.inf))

    def add(self, rows: Rows) -> None:
        """Take a block of rows: choices, ``seconds``, ``memory``, ``complexity`` and ``fits``."""
        self.seen += len(rows["seconds"])
        good = rows["fits"] > 0
        self.fitting += int(np.count_nonzero(good))
        self.smallest = first(joined(self.smallest, first(rows, "memory", 1)), "memory", 1)
        self._fill(rows)
        fit = rows if np.all(good) else taken(rows, good)
        if not len(fit["seconds"]):
            return
        self.best = first(joined(self.best, self._hopeful(fit)), "seconds", self.kept)
        self.front = front(joined(self.front, _undominated(fit, self.front)))

    @property
    def field(self) -> Rows:
        """One row a cell, fastest first."""
        rows = taken(self.leading, _ordered(self.leading)) if self.leading else {}
        return taken(rows, np.sort(np.unique(cell(rows), return_index=True)[1])) if rows else {}

    def _fill(self, rows: Rows) -> None:
        """Put into each cell what is faster there than what it holds; ties stay until the end."""
        places, times = cell(rows), nanoseconds(rows)
        np.minimum.at(self.grid, places, times)
        both = joined(self.leading, taken(rows, times <= self.grid[places]))
        self.leading = taken(both, nanoseconds(both) <= self.grid[cell(both)])

    def _hopeful(self, rows: Rows) -> Rows:
        """Rows that may be among the best."""
        if len(self.best.get("seconds", ())) < self.kept:
            return rows
        return taken(rows, nanoseconds(rows) <= np.max(nanoseconds(self.best)))


def nanoseconds(rows: Rows) -> Column:
    """Step times as far as they are told apart. [ns]"""
    return np.round(rows["seconds"] * 1e9)


def first(rows: Rows, by: str, count: int) -> Rows:
    """The ``count`` smallest of ``by``, in order; ties to the simpler, then to smaller choices."""
    lead = nanoseconds(rows) if by == "seconds" else rows[by]
    if len(lead) > 4 * count:
        mask = lead <= np.partition(lead, count)[count]
        rows, lead = taken(rows, mask), lead[mask]
    keys = [rows[name] for name in reversed(CHOICES)]
    order = np.lexsort([*keys, rows["complexity"], lead])
    return taken(rows, order[:count])


def front(rows: Rows) -> Rows:
    """Rows that no other beats in time, memory and complexity; fastest first."""
    order = np.argsort(nanoseconds(rows))
    memory = rows["memory"][order]
    few = order[memory <= _least_before(memory, rows["complexity"][order])]
    rows = taken(rows, few[_ordered(taken(rows, few))])
    return taken(rows, rows["memory"] < _least_before(rows["memory"], rows["complexity"]))


def _least_before(memory: Column, levels: Column) -> Column:
    """Least memory of the rows before each that are no more complex; inf where there are none."""
    least = np.full(len(memory), np.inf)
    for level in np.unique(levels):
        before = np.minimum.accumulate(np.where(levels <= level, memory, np.inf))[:-1]
        least[1:] = np.where(levels[1:] == level, before, least[1:])
    return least


def _undominated(rows: Rows, known: Rows) -> Rows:
    """Rows that a known front does not beat."""
    if not known:
        return rows
    keep = np.ones(len(rows["seconds"]), bool)
    time, memory, levels = nanoseconds(rows), rows["memory"], rows["complexity"]
    for level in np.unique(levels):
        here, below = np.flatnonzero(levels == level), known["complexity"] <= level
        if np.any(below):
            least = np.minimum.accumulate(known["memory"][below])
            place = np.searchsorted(nanoseconds(known)[below], time[here], "right") - 1
            keep[here] = (place < 0) | (memory[here] < least[place])
    return taken(rows, keep)


def _ordered(rows: Rows) -> NDArray[np.intp]:
    keys = [rows[name] for name in reversed(CHOICES)]
    return np.lexsort([*keys, rows["memory"], rows["complexity"], nanoseconds(rows)])


def cell(rows: Rows) -> NDArray[np.int64]:
    """Number of the cell of the grid of time and memory that each row lies in."""
    time = np.clip(CELLS * (np.log(rows["seconds"]) + LOWEST_TIME), 0, COLUMNS - 1)
    memory = np.clip(CELLS * (np.log(rows["memory"]) - LOWEST_MEMORY), 0, LINES - 1)
    place = np.floor(time) * LINES + np.floor(memory)
    return np.asarray(2 * place + (rows["fits"] > 0), np.int64)


def distinct(rows: Rows) -> Rows:
    """Rows that differ from every faster one in a way that matters, with their ``place`` from 1.

    Layouts of one kind differ in minor choices alone (chunks, placement, micro-batch, which layers
    are recomputed): the fastest stands for them. Another kind with the same degrees has to save
    memory to be worth a look.
    """
    if not rows or not len(rows["seconds"]):
        return rows
    seen: set[tuple[float, ...]] = set()
    least: dict[tuple[float, ...], float] = {}  # memory of what is kept of each cut
    kept = []
    kinds = np.stack([rows[name] for name in KIND], axis=1).tolist()
    for place, (kind, memory) in enumerate(zip(kinds, rows["memory"], strict=True)):
        cut = tuple(kind[: len(CUT)])
        if tuple(kind) not in seen and memory < SAVED * least.get(cut, np.inf):
            seen.add(tuple(kind))
            least[cut] = memory
            kept.append(place)
    return {**taken(rows, np.array(kept)), "place": np.array(kept, float) + 1.0}


def taken(rows: Rows, which: NDArray[Any]) -> Rows:
    """Some of the rows, by mask or number."""
    which = np.flatnonzero(which) if which.dtype == bool else which  # found once for all columns
    return {name: column[which] for name, column in rows.items()}


def joined(a: Rows, b: Rows) -> Rows:
    """Rows of both."""
    return {name: np.concatenate([a[name], b[name]]) for name in b} if a else b
