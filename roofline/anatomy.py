"""One job taken apart: every operation and every collective of a step, with the time that it costs.

    operation    FLOPs, bytes, intensity = FLOPs / bytes, seconds · layers · micro-batches
    collective   group, tiers, bytes, seconds · times, and how many of these are waited for
    rest         what belongs to neither: recomputation, bubble, contention, optimizer, fixed cost

Rows come from the functions that the step itself is computed with: ``roofline.layer`` writes its
kernels down, and ``roofline.overheard`` what the network was asked. Every row names the term of
``StepTime`` that it is part of, and the rows of a term sum to it. A part of communication that
hides behind compute is shared out over its collectives by their duration.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from roofline import layer as ops
from roofline.anatomy_collectives import CollectiveRow, collectives
from roofline.job import Job
from roofline.kernels import Noted
from roofline.layout import RECOMPUTE
from roofline.microbatch import average, inflation, layers_on_a_stage
from roofline.step import StepTime, ends
from roofline.training import Training

ENDS = "head, embedding and uneven stages"
TERM = {"matmuls": "matmuls", "attention": "attention", "memory": "memory-bound"}
FAR = 0.5  # of both ceilings: below it, neither is what binds


@dataclass(frozen=True, slots=True)
class OperationRow:
    """One operation of a layer, an expert layer, the head or the embedding, on one GPU."""

    name: str
    where: str  # layer, expert layer, head, embedding
    kind: str  # matmuls, attention, memory-bound
    term: str  # of ``StepTime`` that it is part of
    forward: float  # [s], of one layer and micro-batch
    backward: float
    forward_flops: float
    backward_flops: float
    nbytes: float  # forward and backward
    times: float  # layers · micro-batches that this GPU runs in a step, where they are waited for
    peak: float  # of the data type; 0 where it is memory-bound
    hbm: float

    @property
    def flops(self) -> float:
        """Forward and backward."""
        return self.forward_flops + self.backward_flops

    @property
    def once(self) -> float:
        """Forward and backward, of one layer and micro-batch. [s]"""
        return self.forward + self.backward

    @property
    def seconds(self) -> float:
        """In a step. [s]"""
        return self.times * self.once

    @property
    def intensity(self) -> float:
        """FLOPs per byte of memory traffic; 0 where no matmul is in it."""
        return self.flops / self.nbytes if self.nbytes else 0.0

    @property
    def achieved(self) -> float:
        """Rate that it runs at. [FLOP/s]"""
        return self.flops / self.once if self.once else 0.0

    @property
    def bandwidth(self) -> float:
        """Memory traffic over its time. [B/s]"""
        return self.nbytes / self.once if self.once else 0.0

    @property
    def ceiling(self) -> str:
        """Which ceiling binds: matmul peak, memory, or neither where both are far."""
        return "matmul peak" if self._math > self._memory else "memory"

    @property
    def reached(self) -> float:
        """Time at the ceiling that binds over the time it takes."""
        return max(self._math, self._memory) / self.once if self.once else 0.0

    @property
    def _math(self) -> float:
        return self.flops / self.peak if self.peak else 0.0

    @property
    def _memory(self) -> float:
        return self.nbytes / self.hbm


@dataclass(frozen=True, slots=True)
class RestRow:
    """Time that is neither an operation nor a collective."""

    name: str
    term: str
    seconds: float
    why: str


@dataclass(frozen=True, slots=True)
class Anatomy:
    """A step in rows."""

    time: StepTime
    operations: tuple[OperationRow, ...]
    collectives: tuple[CollectiveRow, ...]
    rest: tuple[RestRow, ...]

    def sums(self) -> dict[str, float]:
        """Term → seconds of its rows; equal to the terms of ``StepTime``."""
        found = dict.fromkeys(self.time.terms, 0.0)
        for operation in self.operations:
            found[operation.term] += operation.seconds
        for collective in self.collectives:
            found[collective.term] += collective.exposed
        for row in self.rest:
            found[row.term] += row.seconds
        return found


def anatomy(training: Training) -> Anatomy:
    """The step of a single layout in rows.

    Raises:
        ValueError: a layout that is a column of layouts.
    """
    if np.ndim(training.time.seconds):
        raise ValueError("layout: a column of layouts is refused; allowed: a single one")
    job, time = training.job, training.time
    part, slow = average(job).at_power(job.habits.power)
    operations = tuple(_operations(job, float(slow)))
    found = tuple(collectives(job, part, time))
    head = _ends(job, float(slow), time)
    return Anatomy(time, (*operations, *head[0]), found, (head[1], *_rest(job, time)))


def _operations(job: Job, slow: float) -> Iterable[OperationRow]:
    plain, mixed = (_one(each) for each in layers_on_a_stage(job))
    m = _one(job.layout.microbatches)
    args = (job.model, job.layout)
    if plain:
        notes: list[Noted] = []
        ops.dense(*args, replace(job.kernels, notes=notes), job.casts)
        yield from _rows(job, notes, "layer", m * plain, slow)
    if mixed:
        notes = []
        ops.mixture(*args, replace(job.kernels, notes=notes), job.casts, inflation(job))
        yield from _rows(job, notes, "expert layer", m * mixed, slow)


def _rows(
    job: Job, notes: Sequence[Noted], where: str, times: float, slow: float, term: str = "",
) -> list[OperationRow]:  # fmt: skip
    """Notes as rows, those of one name together; matmuls at the clocks that power leaves."""
    found: dict[tuple[str, str], OperationRow] = {}
    for note in notes:
        by = slow if note.kind == "matmuls" else 1.0
        forward, backward = (_one(each) * by for each in note.seconds)
        row = OperationRow(
            note.name, where, TERM[note.kind], term or TERM[note.kind], forward, backward,
            _one(note.flops[0]), _one(note.flops[1]), sum(map(_one, note.nbytes)), times,
            _one(note.peak), _one(job.kernels.matmuls.hbm),
        )  # fmt: skip
        if row.once:
            key = (note.name, note.kind)
            found[key] = _joined(found[key], row) if key in found else row
    return list(found.values())


def _joined(one: OperationRow, other: OperationRow) -> OperationRow:
    added = ("forward", "backward", "forward_flops", "backward_flops", "nbytes")
    return replace(one, **{name: getattr(one, name) + getattr(other, name) for name in added})


def _ends(job: Job, slow: float, time: StepTime) -> tuple[list[OperationRow], RestRow]:
    """Head and embedding where they are waited for, and what the slowest stage has beside them.

    One GPU runs both. Of a pipeline the slower end adds to the slowest stage; where stages are cut
    so that ends have slots of their own, neither does by itself.
    """
    layout, m = job.layout, _one(job.layout.microbatches)
    several, even = _one(layout.pp) > 1, _one(layout.even) > 0
    top, bottom = (_one(each) for each in ends(job, slow))
    rows: list[OperationRow] = []
    both = ("head", ops.head, top >= bottom), ("embedding", ops.embedding, bottom > top)
    for name, run, slower in both:
        notes: list[Noted] = []
        run(job.model, layout, replace(job.kernels, notes=notes))
        waited = (not several or slower) and not (several and even)
        copies = 1.0 + _one(job.model.mtp) if name == "head" else 1.0
        rows += _rows(job, notes, name, m * copies * waited, slow, term=ENDS)
    left = _one(time.terms[ENDS]) - sum(row.seconds for row in rows)
    if several:
        return rows, RestRow("uneven stages", ENDS, left,
                             "what the slowest stage has beyond the average one")  # fmt: skip
    return rows, RestRow("collectives of head and embedding", ENDS, left,
                         "tensor parallelism of the two ends")  # fmt: skip


WHY = {
    "waiting for the host": "it launches an expert layer's kernels more slowly than they run",
    "offload": "copies of activations to the host and back that no pass is long enough to hide",
    "bubble": "stages wait while the pipeline fills and drains",
    "contention": "compute that shares the GPU with hidden collectives is slower",
    "optimizer": "states are read and written once a step",
    "fixed": "loss, gradient norm, data and logging, once a step",
}


def _rest(job: Job, time: StepTime) -> Iterable[RestRow]:
    kind = list(RECOMPUTE)[int(_one(job.layout.recompute))]
    why = WHY | {"recompute": f"the forward pass is run again ({kind}), with its collectives"}
    for term, reason in why.items():
        yield RestRow(term, term, _one(time.terms[term]), reason)


def _one(value: Any) -> float:
    return float(np.asarray(value))
