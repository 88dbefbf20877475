"""More GPUs for the same layout, axis by axis, up to a hundred thousand: where each stops paying.

    strong     the batch stays: replicas get fewer micro-batches, other axes smaller pieces
    weak       the batch grows with the GPUs

An axis is doubled again and again while everything else of the layout stays. Doubling pays while it
brings at least ``PAYS`` times the tokens per second; ``stops`` is the last number of GPUs at which
it did. One array call: a row for each axis and doubling.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from roofline.evaluate import evaluate
from roofline.layout import Layout, stack
from roofline.planner import Question, holding
from roofline.planner import largest as growth

PAYS = 1.5  # of twice the GPUs
MOST_GPUS = 131_072
AXES = ("dp", "tp", "cp", "pp", "ep")

Column = NDArray[np.float64]


@dataclass(frozen=True)
class Scaling:
    """One axis of a layout doubled and doubled again."""

    axis: str
    gpus: Column
    degree: Column  # of the axis
    seconds: Column
    tokens_per_second: Column
    fits: NDArray[np.bool_]  # in the memory of a GPU

    @property
    def efficiency(self) -> Column:
        """Tokens per second and GPU, over those of the layout at the start."""
        each = self.tokens_per_second / self.gpus
        return np.asarray(each / each[0])

    @property
    def stops(self) -> float:
        """GPUs up to which every doubling fits and brings ``PAYS`` times the tokens per second."""
        gain = self.tokens_per_second[1:] / self.tokens_per_second[:-1]
        pays = np.cumprod((gain >= PAYS) & self.fits[1:])
        return float(self.gpus[int(np.sum(pays))])


def scaling(
    question: Question, layout: Layout, *, weak: bool = False, most: int = MOST_GPUS
) -> Mapping[str, Scaling]:
    """Every axis that can be doubled at least once; the machine grows at its outermost tier."""
    steps = {axis: _doublings(question, layout, axis, weak, most) for axis in AXES}
    rows = [row for found in steps.values() for row in found]
    largest = max(int(row.gpus) for row in rows)
    grown = replace(question, cluster=holding(question.profile, largest), gpus=largest)
    found = evaluate(grown.training(stack(rows)))
    seconds, memory, right = found.seconds, found.memory, found.possible
    result: dict[str, Scaling] = {}
    start = 0
    for axis, members in steps.items():
        here = np.arange(start, start + len(members))
        here = here[np.cumprod(right[here]).astype(bool)]  # until a doubling no longer divides
        start += len(members)
        if len(here) > 1:
            tokens = np.array([float(rows[i].batch * rows[i].sequence) for i in here])
            result[axis] = Scaling(
                axis,
                np.array([float(rows[i].gpus) for i in here]),
                np.array([float(getattr(rows[i], axis)) for i in here]),
                seconds[here],
                tokens / seconds[here],
                memory[here] <= question.room,
            )
    return result


def _doublings(
    question: Question, layout: Layout, axis: str, weak: bool, most: int
) -> list[Layout]:
    """The layout, and with ``axis`` 2, 4, 8 … times as large; experts spread over what is there."""
    found = []
    factor, most = 1, int(min(most, growth(question.profile)))
    while question.gpus * factor <= most:
        more = {} if axis in ("dp", "ep") else {axis: getattr(layout, axis) * factor}
        if axis == "ep":
            more["ep"] = layout.ep * factor
        batch = layout.batch * factor if weak else layout.batch
        found.append(replace(layout, gpus=float(question.gpus * factor), batch=batch, **more))
        factor *= 2
    return found
