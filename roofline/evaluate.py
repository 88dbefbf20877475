"""A table of layouts of one job: step time, memory and what each breaks, in blocks that fit a cache.

    found = evaluate(training(model, layouts, cluster))
    found.seconds    one row a layout; inf where it is impossible
    found.memory     bytes on the fullest GPU
    found.misfits    constraint → True where a layout breaks it

Layouts that break a constraint are not evaluated. Every row stands alone, so that the blocks change
nothing but the time and the memory that the evaluation takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roofline import constraints, footprint, step
from roofline.blocks import changed, gather
from roofline.layout import Layout
from roofline.training import Training

BLOCK = 65536  # layouts: a column is 512 KiB; shorter ones cost more in calls than caches save

Columns = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Columns, one row a layout; what is impossible takes for ever and all memory there is."""

    seconds: NDArray[np.float64]  # of the step
    memory: NDArray[np.float64]  # of the fullest GPU [B]
    misfits: Columns  # constraint → True where it is broken
    terms: Columns  # of the step, where asked for [s]
    parts: Columns  # of the memory, where asked for [B]

    @property
    def possible(self) -> NDArray[np.bool_]:
        """True where no constraint is broken; whether it fits a GPU's memory is another matter."""
        return ~_any(self.misfits)


def evaluate(
    job: Training, *, block: int = BLOCK, detail: bool = False, check: bool = True
) -> Evaluation:
    """Step time and memory of every layout of ``job``.

    Args:
        job: its layout's fields are numbers, or columns of one length.
        block: layouts evaluated at a time.
        check: False where every layout is known to break no constraint.
        detail: also the terms of the step and the parts of the memory.

    Raises:
        ValueError: columns of several lengths, or a block without layouts.
    """
    if not block >= 1:
        raise ValueError(f"block: {block} is refused; allowed: 1 and more")
    table, rows = _table(job.layout)
    found = Evaluation(np.full(rows, np.inf), np.full(rows, np.inf), {}, {}, {})
    for start in range(0, rows, block):
        where: Any = slice(start, min(start + block, rows))
        layout = _rows(table, where)
        misfits = constraints.misfits(job.dims, layout, job.cluster) if check else {}
        _store(found.misfits, misfits, rows, where, fill=False)
        if np.any(broken := _any(misfits)):
            kept = np.flatnonzero(~np.broadcast_to(broken, where.stop - start))
            layout, where = _rows(layout, kept), start + kept
        if not np.all(broken):
            _evaluated(found, job, layout, where, detail)
    return found


def _evaluated(found: Evaluation, job: Training, layout: Layout, where: Any, detail: bool) -> None:
    """Layouts that break nothing, put in their places."""
    time = step.predict(job.job_in(layout))
    found.seconds[where] = time.seconds
    if not detail:
        found.memory[where] = footprint.peak_bytes(job.dims, layout, job.recipe)
        return
    memory = footprint.peak(job.dims, layout, job.recipe)
    found.memory[where] = memory.total
    _store(found.terms, time.terms, len(found.seconds), where)
    _store(found.parts, memory.parts, len(found.seconds), where)


def _any(misfits: Mapping[str, Any]) -> NDArray[np.bool_]:
    return np.asarray(reduce(np.logical_or, misfits.values(), np.asarray(False)))


def _table(layout: Layout) -> tuple[Layout, int]:
    """The layout with arrays of floats for columns, and how many rows it has."""
    table: Layout = changed(layout, lambda column: np.asarray(column, float))
    columns: list[Any] = []
    gather(table, columns)
    shapes = {column.shape for column in columns if column.ndim}
    if len(shapes) > 1 or any(len(shape) > 1 for shape in shapes):
        said = " and ".join(map(str, sorted(shapes)))
        raise ValueError(f"layout: columns of the shapes {said} are refused; allowed: one length")
    return changed(table, _number), shapes.pop()[0] if shapes else 1


def _number(column: Any) -> Any:
    """A column as the number that it is all along, where it is one."""
    return column.flat[0] if column.size and column.min() == column.max() else column


def _rows(table: Layout, which: Any) -> Layout:
    cut: Layout = changed(table, lambda column: column[which] if column.ndim else column)
    return cut


def _store(
    columns: Columns, found: Mapping[str, Any], rows: int, where: Any, fill: Any = np.inf
) -> None:
    """What was found of some rows, in its place; a number counts for all of them."""
    for name, value in found.items():
        if name not in columns:
            columns[name] = np.full(rows, fill)
        columns[name][where] = value
