"""Why one layout is faster than another, and what would change the answer.

    differences    term by term, the largest first; they sum to the whole difference
    rates          step time against each rate of the machine: elasticities
    choices        one choice changed at a time: step time, memory, whether it fits

Everything is predicted in one array call: a row for each rate or choice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from roofline.describe import degrees, word
from roofline.evaluate import evaluate
from roofline.footprint import Footprint
from roofline.job import Job
from roofline.kernels import Kernels
from roofline.layout import SCHEDULE, Layout
from roofline.limits import NAMED
from roofline.planner import Question
from roofline.ranking import Rows, taken
from roofline.space import CHOICES, Space, sensible
from roofline.step import StepTime, predict
from roofline.training import Training
from roofline.units import Count, show

CHANGE = 1.1  # of a rate, for an elasticity
TOLD = 3  # terms that a sentence names
FREE = ("schedule", "chunks")  # choices that may fall back to the plain one when another changes


@dataclass(frozen=True, slots=True)
class Difference:
    """One term of two steps."""

    term: str
    here: float  # [s]
    there: float

    @property
    def more(self) -> float:
        """What ``there`` takes beyond ``here``. [s]"""
        return self.there - self.here


def differences(here: StepTime, there: StepTime) -> list[Difference]:
    """Every term of two single steps, by how much they differ."""
    names = dict.fromkeys([*here.terms, *there.terms])
    found = [
        Difference(name, float(here.terms.get(name, 0.0)), float(there.terms.get(name, 0.0)))
        for name in names
    ]
    return sorted(found, key=lambda one: -abs(one.more))


def versus(best: Training, other: Training, name: str = "", room: float | None = None) -> str:
    """How ``other``, called ``name``, compares with ``best``, and because of which terms.

    Args:
        room: bytes of a GPU that it may take; its memory where None.
    """
    here, there = float(best.time.seconds), float(other.time.seconds)
    ratio = there / here - 1
    speed = (
        "as fast"
        if abs(ratio) < 5e-4
        else f"{abs(ratio):.1%} {'slower' if ratio > 0 else 'faster'}"
    )
    because = [
        f"{one.term} {_signed(one.more)}"
        for one in differences(best.time, other.time)[:TOLD]
        if abs(one.more) > 1e-3 * here
    ]
    text = (
        f"{name or degrees(other.layout)} is {speed} ({show(there, 's')} against {show(here, 's')})"
    )
    text += f": {', '.join(because)}" if because else ""
    if more := too_much(other, room):
        text += f"; and it {more}, "
        text += ", ".join(f"{part} {show(size, 'B')}" for part, size in largest(other.memory))
    return text


def too_much(job: Training, room: float | None = None) -> str:
    """``does not fit: it needs 95 GB a GPU, 21 GB more than the 74 GB …``; nothing where it fits."""
    needs, most = float(job.memory.total), job.cluster.hbm_bytes if room is None else room
    if needs <= most:
        return ""
    over, there = show(needs - most, "B"), show(most, "B")
    return (
        f"does not fit: it needs {show(needs, 'B')} a GPU, {over} more than the {there} there are"
    )


def largest(memory: Footprint, count: int = 2) -> list[tuple[str, float]]:
    """The parts that take most of a GPU's memory, with their bytes."""
    parts = [(name, float(size)) for name, size in memory.parts.items()]
    return sorted(parts, key=lambda part: -part[1])[:count]


def _signed(seconds: float) -> str:
    return f"{'+' if seconds > 0 else '-'}{show(abs(seconds), 's')}"


@dataclass(frozen=True, slots=True)
class Rate:
    """What a rate of the machine is worth."""

    name: str
    elasticity: float  # change of ln(step time) per change of ln(rate)
    doubled: float  # step time with twice the rate, over the step time


def rates(training: Training) -> list[Rate]:
    """Step time against every rate of the machine, the most telling first."""
    movers = _movers(training.job)
    size = len(movers)
    found = []
    for factor in (CHANGE, 2.0):
        job = training.job
        for i, move in enumerate(movers.values()):
            job = move(job, np.where(np.arange(size) == i, factor, 1.0))
        found.append(np.broadcast_to(predict(job).seconds / training.time.seconds, size))
    elastic = np.log(found[0]) / np.log(CHANGE)
    rows = [Rate(n, float(e), float(d)) for n, e, d in zip(movers, elastic, found[1], strict=True)]
    return sorted(rows, key=lambda row: row.doubled)


Move = Callable[[Job, Any], Job]


def _movers(job: Job) -> dict[str, Move]:
    """Name of a rate → a job in which it is so many times what it was."""
    tiers = job.network.tiers
    found: dict[str, Move] = {"matmul rate": _matmuls, "HBM bandwidth": _memory}
    for i, tier in enumerate(tiers):
        found[f"{tier.name} bandwidth"] = _tier(i)
    if job.network.hop:
        found["network latency"] = _latency
    return found


def _kernels(job: Job, change: Callable[[Kernels], Kernels]) -> Job:
    return replace(job, kernels=change(job.kernels))


def _matmuls(job: Job, factor: Count) -> Job:
    """Tensor cores, of attention as well."""

    def faster(k: Kernels) -> Kernels:
        return replace(
            k,
            matmuls=replace(k.matmuls, peak=k.matmuls.peak * factor),
            half_matmuls=replace(k.half_matmuls, peak=k.half_matmuls.peak * factor),
            attention=replace(k.attention, peak=k.attention.peak * factor),
        )

    return _kernels(job, faster)


def _memory(job: Job, factor: Count) -> Job:
    def faster(k: Kernels) -> Kernels:
        return replace(
            k,
            matmuls=replace(k.matmuls, hbm=k.matmuls.hbm * factor),
            half_matmuls=replace(k.half_matmuls, hbm=k.half_matmuls.hbm * factor),
            streams=replace(k.streams, hbm=k.streams.hbm * factor),
        )

    return _kernels(job, faster)


def _tier(index: int) -> Move:
    def faster(job: Job, factor: Count) -> Job:
        tiers = tuple(
            replace(tier, bandwidth=tier.bandwidth * factor) if i == index else tier
            for i, tier in enumerate(job.network.tiers)
        )
        return replace(job, network=replace(job.network, tiers=tiers))

    return faster


def _latency(job: Job, factor: Count) -> Job:
    return replace(job, network=replace(job.network, hop=job.network.hop / factor))


@dataclass(frozen=True, slots=True)
class Choice:
    """One choice of a layout changed, everything else kept."""

    name: str
    value: str
    layout: Layout
    seconds: float
    memory: float
    fits: bool
    slower: float  # step time over that of the layout, minus 1


def choices(question: Question, layout: Layout) -> list[Choice]:
    """Every value of every choice beside that of ``layout``, the fastest first.

    Where a value does not go with the schedule, plain 1F1B stands in.
    """
    spaces = [_around(question, layout, name) for name in CHOICES]
    rows = _together([table for table in spaces if table])
    if not rows:
        return []
    columns = Space(replace(question.job, base=layout), {}).layout(rows)  # all its other habits
    found = evaluate(question.training(columns))
    rows |= {"seconds": np.asarray(found.seconds), "memory": np.asarray(found.memory)}
    now = float(question.training(layout).time.seconds)
    return _best_of_each(question, layout, rows, now)


def _around(question: Question, layout: Layout, name: str) -> Rows:
    """Layouts that differ in one choice, as a table with the choice's number."""
    job, usual = question.job, sensible(question.job)
    own: dict[str, tuple[float, ...]] = {each: (float(getattr(layout, each)),) for each in CHOICES}
    tried = dict.fromkeys(
        [*usual[name], *NAMED.get(name, {}).values()] if name != "shard" else usual[name]
    )
    for each in FREE:
        own[each] = tuple(dict.fromkeys((*own[each], float(_plain(each)))))
    own[name] = tuple(float(v) for v in tried if v != own[name][0])
    if not own[name]:
        return {}
    space = Space(job, own)
    table = space.details(space.degrees())
    return {**table, "choice": np.full(len(table["tp"]), float(CHOICES.index(name)))}


def _plain(name: str) -> int:
    return SCHEDULE["1f1b"] if name == "schedule" else 1


def _together(tables: list[Rows]) -> Rows:
    names = [*CHOICES, "choice"]
    return {n: np.concatenate([t[n] for t in tables]) for n in names} if tables else {}


def _best_of_each(question: Question, layout: Layout, rows: Rows, now: float) -> list[Choice]:
    """For each value the fastest row that has it."""
    found: dict[tuple[str, float], Choice] = {}
    for i in np.argsort(rows["seconds"], kind="stable"):
        one = taken(rows, np.array([i]))
        name = CHOICES[int(one["choice"][0])]
        value = float(one[name][0])
        if (name, value) in found:
            continue
        table = Space(replace(question.job, base=layout), {}).layout(one)
        there = replace(table, **{n: float(getattr(table, n)[0]) for n in (*CHOICES, "even")})
        seconds, memory = float(one["seconds"][0]), float(one["memory"][0])
        found[name, value] = Choice(
            name,
            said(name, value),
            there,
            seconds,
            memory,
            memory <= question.room,
            seconds / now - 1,
        )
    return list(found.values())


def said(name: str, value: float) -> str:
    """A value of a choice, as people write it."""
    rows: Mapping[str, int] | None = NAMED.get(name)
    return word(dict(rows), value) if rows else f"{value:g}"
