"""Pipeline schedules: idle time, activations in flight and what else each schedule costs.

A micro-batch takes F forward and B backward on a stage; W is the part of B that makes the weight
gradients and may wait. Work is m (F + B); a stage idles while the pipeline fills and drains:

    naive       (p-1) m (F+B)          one stage works at a time
    GPipe       (p-1) (F+B)            1F1B the same, with less memory
    interleaved (p-1) (F+B) / v        v chunks of layers per stage
    ZB-H1       (p-1) (F+B-2W)         weight gradients fill the drain
    ZB-H2       (p-1) (F+B-3W)         and the fill, at twice the activations
    ZB-V        (p-1) (B-2W)           or another wait; none if F = B-W = W
    DualPipe    (p/2-1) (F&B+B-3W)     from both ends; F&B is an overlapped pair

A schedule is a row of ``SCHEDULES``. Ratios are to the work, shares to the whole step. ZB-H2's and
ZB-V's idle time is what a stage waits between its own first and last pass; a barrier between steps
(a norm of all gradients) adds up to (p-1) F, or F/2. ``roofline.schedule`` says what is exact."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from roofline import checks
from roofline.blocks import pointwise
from roofline.names import choose
from roofline.sources import CONTROLLABLE, DUALPIPE, GPIPE, HF_GUIDE, MEGATRON, ZERO_BUBBLE, Source
from roofline.units import Count, Seconds


class Shares(NamedTuple):
    """Coefficients of the idle time: of F, B, W and of the overlapped pair F&B."""

    forward: float = 0
    backward: float = 0
    weight: float = 0
    pair: float = 0


@dataclass(frozen=True, slots=True)
class Schedule:
    """One schedule: what it idles, keeps and sends, and the pipelines that it works for."""

    name: str
    title: str
    source: Source
    idle: Shares  # per filling step
    filling: Callable[[Count, Count, Count], Count]  # filling steps of p, m, v
    in_flight: Callable[[Count, Count, Count], Count]  # micro-batches on the fullest stage
    formula: str  # idle time in LaTeX
    least: Callable[[Count], Count] = lambda p: 1  # micro-batches that it needs
    multiple: Callable[[Count], Count] = lambda p: 1  # of which m is a multiple
    even_stages: bool = False
    chunks: int | None = 1  # per stage; None: any number
    at_least: tuple[Shares, ...] = ()  # idle per filling step, whatever W fills
    pairs: Callable[[Count, Count], Count] = lambda p, m: 0.0  # overlapped, on a stage
    parameter_copies: int = 1
    note: str = ""

    def waits(self, f: Seconds, b: Seconds, w: Seconds, pair: Seconds) -> Seconds:
        """Idle time per filling step, of F, B, W and F&B. [s]"""
        most: Seconds = 0.0
        for part in (self.idle, *self.at_least):
            idle = part.forward * f + part.backward * b + part.weight * w + part.pair * pair
            most = np.maximum(most, idle)
        return most


def _fill(p: Count, m: Count, v: Count) -> Count:
    return p - 1.0


_FULL = Shares(forward=1, backward=1)
_DUAL = Shares(backward=1, weight=-3, pair=1)
# What W does not fill: the last stage waits for its first F and the first for its first B, with
# p - 1 more F to do meanwhile in ZB-H2. At the bend of a V no W is ready yet for a pass that is
# longer than W; and of what F, B - W and W differ, its chunks wait for half.
_H1_WAITS = Shares(1), Shares(0, 1, -1)
_H2_WAITS = (Shares(-1, 1, -1),)
_V_BEND = Shares(1, 0, -1), Shares(1, -1 / 2)
_V_CHUNKS = Shares(-1 / 2, 1 / 2, -1 / 2), Shares(1 / 2, -1 / 2, 1 / 2), Shares(-1 / 2, 0, 1 / 2)

SCHEDULES = {
    row.name: row
    for row in (
        Schedule(
            "naive",
            "Naive model parallelism",
            HF_GUIDE("Naive model parallelism"),
            _FULL,
            lambda p, m, v: (p - 1.0) * m,
            lambda p, m, v: np.minimum(m, 1.0),
            r"(p-1)\,m\,(F+B)",
            note="one stage works at a time; the others wait",
        ),
        Schedule(
            "gpipe",
            "GPipe",
            GPIPE("section 2.3"),
            _FULL,
            _fill,
            lambda p, m, v: 1.0 * m,
            r"(p-1)(F+B)",
            note="all forward passes, then all backward passes: every micro-batch stays in memory",
        ),
        Schedule(
            "1f1b",
            "1F1B",
            MEGATRON("section 2.2.1"),
            _FULL,
            _fill,
            lambda p, m, v: np.minimum(m, 1.0 * p),
            r"(p-1)(F+B)",
            note="as fast as GPipe; a backward pass starts as soon as it can and frees memory",
        ),
        Schedule(
            "interleaved",
            "Interleaved 1F1B",
            MEGATRON("section 2.2.2"),
            _FULL,
            lambda p, m, v: (p - 1.0) / v,
            lambda p, m, v: np.minimum(m, p + np.where(np.greater(v, 1), (p - 1.0) / v, 0.0)),
            r"(p-1)(F+B)/v",
            multiple=lambda p: p,
            chunks=None,
            note="needs layers in multiples of p v; v times the traffic. One chunk is plain 1F1B",
        ),
        Schedule(
            "zb-h1",
            "ZB-H1",
            ZERO_BUBBLE("table 2"),
            Shares(forward=1, backward=1, weight=-2),
            _fill,
            lambda p, m, v: np.minimum(m, 1.0 * p),
            r"(p-1)(F+B-2W)",
            least=lambda p: p,
            at_least=_H1_WAITS,
        ),
        Schedule(
            "zb-h2",
            "ZB-H2",
            ZERO_BUBBLE("table 2"),
            Shares(forward=1, backward=1, weight=-3),
            _fill,
            lambda p, m, v: np.minimum(m, 2.0 * p - 1),
            r"(p-1)(F+B-3W)",
            least=lambda p: 2 * p - 1,
            at_least=_H2_WAITS,
            note="needs an optimizer step checked afterwards; a barrier restores the bubble",
        ),
        Schedule(
            "zb-v",
            "ZB-V",
            CONTROLLABLE("table of schedules"),
            Shares(backward=1, weight=-2),
            _fill,
            lambda p, m, v: np.minimum(m, 1.0 * p),
            r"(p-1)\max(0,B-2W,\ldots)",
            least=lambda p: 2 * p - 1,
            chunks=2,
            at_least=_V_BEND + _V_CHUNKS,
            note="two chunks per stage in a V; needs an even number of layers per stage",
        ),
        Schedule(
            "v-half",
            "V-Half",
            CONTROLLABLE("table of schedules"),
            Shares(forward=1 / 2, backward=1 / 2),
            _fill,
            lambda p, m, v: np.minimum(m, np.floor_divide(p + 2.0, 2)),
            r"\approx\tfrac12(p-1)(F+B)",
            least=lambda p: p,
            chunks=2,
            note="half the activations of 1F1B",
        ),
        Schedule(
            "v-min",
            "V-Min",
            CONTROLLABLE("table of schedules"),
            Shares(forward=2 / 3, backward=2 / 3),
            _fill,
            lambda p, m, v: np.minimum(m, np.floor_divide(p + 4.0, 3)),
            r"\approx\tfrac23(p-1)(F+B)",
            least=lambda p: p,
            chunks=2,
            note="a third of the activations of 1F1B",
        ),
        Schedule(
            "dualpipe",
            "DualPipe",
            DUALPIPE("Pipeline bubbles and memory usage"),
            _DUAL,
            lambda p, m, v: p / 2 - 1.0,
            lambda p, m, v: p + 1.0,
            r"(\tfrac p2-1)(F\&B+B-3W)",
            least=lambda p: 2 * p,
            multiple=lambda p: 2,
            pairs=lambda p, m: m - p - 1.0,
            even_stages=True,
            parameter_copies=2,
            note="micro-batches enter at both ends, so a stage holds the layers of its mirror too",
        ),
        Schedule(
            "dualpipev",
            "DualPipeV",
            DUALPIPE("DualPipeV"),
            _DUAL,
            lambda p, m, v: (p - 1.0) / 2,
            lambda p, m, v: p + 0.5,
            r"\tfrac12(p-1)(F\&B+B-3W)",
            least=lambda p: 2 * p,
            pairs=lambda p, m: m - p - 0.5,
            chunks=2,
            note="DualPipe of 2p stages cut in half: p GPUs hold two half-stages each, in a V",
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Bubble:
    """What a schedule costs on a pipeline; every number may be an array."""

    schedule: Schedule
    idle: Seconds  # of each stage, per step
    work: Seconds  # of each stage, per step: m (F + B), less what overlapped pairs save
    in_flight: Count  # micro-batches whose activations the fullest stage holds at once
    traffic: Count  # bytes between stages over those of 1F1B

    @property
    def ratio(self) -> Count:
        """Idle time over work, as papers on schedules have it. [1]"""
        return self.idle / self.work

    @property
    def share(self) -> Count:
        """Idle share of the step. [1]"""
        return self.idle / self.step

    @property
    def step(self) -> Seconds:
        """Work and idle time together. [s]"""
        return self.idle + self.work


@pointwise
def bubble(
    name: str,
    stages: Count,
    microbatches: Count,
    *,
    chunks: Count | None = None,
    forward: Seconds = 1.0,
    backward: Seconds | None = None,
    weight: Seconds | None = None,
    pair: Seconds | None = None,
) -> Bubble:
    """Idle time and memory of the schedule called ``name``.

    Args:
        stages: p, GPUs (or groups of GPUs) along the pipeline.
        microbatches: m, per pipeline and step.
        chunks: v, runs of layers per stage, where the schedule leaves a choice.
        forward: F, one micro-batch on one stage. [s]
        backward: full backward pass of one micro-batch on one stage; twice F when left out. [s]
        weight: the part of it that makes weight gradients; half of it when left out. [s]
        pair: a forward and a backward pass overlapped; their sum when left out. [s]

    Raises:
        ValueError: an unknown schedule, or a pipeline it does not work for, naming the nearest.

    >>> print(bubble("1f1b", 4, 12).ratio, bubble("interleaved", 4, 12, chunks=3).ratio)
    0.25 0.0833333333333
    """
    row = schedule(name)
    p, m = checks.whole("stages", stages), checks.whole("microbatches", microbatches)
    v = checks.whole("chunks", _chunks(row, chunks))
    checks.given_at_least(0, forward=forward, backward=backward, weight=weight, pair=pair)
    _check(row, p, m, v)
    full = 2.0 * forward if backward is None else backward
    part = full / 2 if weight is None else weight
    both = forward + full if pair is None else pair
    return Bubble(
        row,
        row.filling(p, m, v) * row.waits(forward, full, part, both),
        1.0 * m * (forward + full) - row.pairs(p, m) * (forward + full - both),
        row.in_flight(p, m, v),
        1.0 * v,
    )


def schedule(name: str) -> Schedule:
    """The row called ``name``.

    Raises:
        ValueError: when there is none, naming the nearest.
    """
    return choose("schedule", name, SCHEDULES)


def allowed(
    name: str, stages: Count, microbatches: Count, chunks: Count | None = None
) -> NDArray[np.bool_]:
    """True where the schedule works: enough micro-batches, in the multiples it needs."""
    row = schedule(name)
    fits = np.greater_equal(stages, 1) & np.greater_equal(microbatches, row.least(stages))
    fits &= np.equal(np.mod(microbatches, row.multiple(stages)), 0)
    fits &= np.greater_equal(_chunks(row, chunks), 1)
    if row.even_stages:
        fits &= np.equal(np.mod(stages, 2), 0)
    return np.asarray(fits & np.greater_equal(microbatches, 1))


def nearest_microbatches(name: str, stages: int, microbatches: int) -> list[int]:
    """The numbers of micro-batches next to ``microbatches`` with which the schedule works.

    >>> nearest_microbatches("interleaved", 4, 10)
    [8, 12]
    """
    row = schedule(name)
    multiple = int(row.multiple(stages))
    least = -(-max(1, int(row.least(stages))) // multiple) * multiple
    near = microbatches // multiple, -(-microbatches // multiple)
    return sorted({max(least, each * multiple) for each in near})


def _chunks(row: Schedule, chunks: Count | None) -> Count:
    if row.chunks is None:
        return 1 if chunks is None else chunks
    if chunks is not None and np.any(np.not_equal(chunks, row.chunks)):
        raise ValueError(f"chunks: {chunks} is refused; {row.title} has {row.chunks} per stage")
    return row.chunks


def _check(row: Schedule, stages: Count, microbatches: Count, chunks: Count) -> None:
    fits = allowed(row.name, stages, microbatches, chunks if row.chunks is None else None)
    if np.all(fits):
        return
    first = int(np.argmin(fits))
    p, m = (int(np.broadcast_to(x, fits.shape).flat[first]) for x in (stages, microbatches))
    if row.even_stages and p % 2:
        near = f"{p - 1} and {p + 1}" if p > 1 else "2"
        raise ValueError(f"stages: {p} is odd and {row.title} works from both ends; try {near}")
    near = " and ".join(str(n) for n in nearest_microbatches(row.name, p, m))
    raise ValueError(
        f"microbatches: {m} is refused by {row.title} with {p} stages; the nearest allowed: {near}"
    )
