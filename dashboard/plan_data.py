"""What the Plan page shows: searches kept by their question, and rows of a plan picked for reading."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import lru_cache
from textwrap import wrap
from typing import Any

import numpy as np
from numpy.typing import NDArray

import hardware_profiles as hw
from dashboard.explain_data import Predicted
from roofline import explain, scaling
from roofline.describe import degrees, describe
from roofline.layout import Layout
from roofline.model import Transformer
from roofline.planner import Plan, Progress, Question, plan
from roofline.ranking import Rows, taken
from roofline.space import CHOICES, Space
from roofline.training import Training
from roofline.units import show

CUT = ("tp", "cp", "pp", "ep")  # what makes two layouts different ways to cut the GPUs
TOP = 8  # rows of the table
POINTS = 800  # of the field that are drawn
FAR = 4.0  # times the best step, and the memory there is: layouts beyond are not drawn
LINE = 44  # characters of what a point says
_watching: ContextVar[Progress | None] = ContextVar("watching", default=None)


@dataclass(frozen=True)
class Asked:
    """A question to the planner that can be kept by: profiles hold dicts, so their text stands for them."""

    model: Transformer
    cluster: hw.Cluster = field(compare=False)
    gpus: int
    tokens: int
    sequence: int
    precision: str
    rates: str | hw.Calibration = field(compare=False)
    framework: str
    headroom: float
    limits: tuple[tuple[str, Any], ...] = ()
    imbalance: float = 1.0  # load of the busiest expert rank over the mean
    profile: str = field(init=False, repr=False)
    whose: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        rates = self.rates if isinstance(self.rates, str) else self.rates.model_dump_json()
        object.__setattr__(self, "profile", self.cluster.model_dump_json())
        object.__setattr__(self, "whose", rates)


def planned(asked: Asked, progress: Progress | None = None) -> Plan:
    """The plan; kept, so that what does not concern it costs no search.

    Raises:
        ValueError: as ``roofline.planner.plan``.
    """
    with _watched(progress):
        return _planned(asked)


@contextmanager
def _watched(progress: Progress | None) -> Iterator[None]:
    token = _watching.set(progress)
    try:
        yield
    finally:
        _watching.reset(token)


@lru_cache(maxsize=24)
def _planned(asked: Asked) -> Plan:
    return plan(
        asked.model,
        asked.cluster,
        asked.gpus,
        tokens=asked.tokens,
        sequence=asked.sequence,
        precision=asked.precision,
        rates=asked.rates,
        framework=asked.framework,
        headroom=asked.headroom,
        imbalance=asked.imbalance,
        progress=_watching.get(),
        **dict(asked.limits),
    )


@dataclass(frozen=True)
class Chosen:
    """A layout of a question, predicted."""

    name: str
    job: Training
    code: str = ""

    @property
    def layout(self) -> Layout:
        """What was chosen."""
        return self.job.layout

    @property
    def numbers(self) -> Predicted:
        """Totals as plain numbers."""
        return Predicted(self.job)


def code(rows: Rows, place: int) -> str:
    """The choices of a row in one word, for an address."""
    return "_".join(f"{rows[name][place]:.10g}" for name in CHOICES)


def from_code(found: Plan, text: str) -> Chosen:
    """The layout of such a word.

    Raises:
        ValueError: a word that is none, or a layout that this question cannot have.
    """
    parts = text.split("_")
    if len(parts) != len(CHOICES):
        raise ValueError(f"a layout has {len(CHOICES)} choices, not {len(parts)}")
    rows = {name: np.array([float(part)]) for name, part in zip(CHOICES, parts, strict=True)}
    if not all(np.isfinite(column).all() for column in rows.values()):
        raise ValueError("a choice is no number")
    job = found.question.training(found.layout(0, {**rows, "seconds": np.zeros(1)}))
    return Chosen(degrees(job.layout), job)


@lru_cache(maxsize=8)
def ways(asked: Asked) -> tuple[Chosen, ...]:
    """The best layout of each way to cut the GPUs, named by its place in this table."""
    found = planned(asked)
    cuts = np.stack([found.ranked[name] for name in CUT], axis=1)
    places = np.sort(np.unique(cuts, axis=0, return_index=True)[1])[:TOP]
    return tuple(
        Chosen(f"place {number}", found.training(int(place)), code(found.ranked, int(place)))
        for number, place in enumerate(places, 1)
    )


@dataclass(frozen=True)
class Field:
    """Points of the picture of all layouts: columns of one length."""

    rows: Rows
    codes: list[str]
    words: list[str]
    front: Rows  # not beaten in time and memory


@lru_cache(maxsize=8)
def points(asked: Asked) -> Field:
    """Layouts to draw: the leader of each part of the plane, the fewer the farther from the best."""
    found = planned(asked)
    start = found.ranked if found.fitting else found.smallest
    reach = FAR * max(found.question.room, float(start["memory"][0]))
    near = (found.field["seconds"] <= FAR * start["seconds"][0]) & (found.field["memory"] <= reach)
    rows = _spread(taken(found.field, near))
    if found.fitting:
        front = taken(found.front, _lowest(found.front["memory"]))
        rows = _both(rows, front)
    else:
        front = {name: column[:0] for name, column in rows.items()}
    words = [
        _hover(found, layout, seconds, memory)
        for layout, seconds, memory in zip(
            _layouts(found, rows), rows["seconds"].tolist(), rows["memory"].tolist(), strict=True
        )
    ]
    return Field(rows, [code(rows, i) for i in range(len(words))], words, front)


def _layouts(found: Plan, rows: Rows) -> Iterator[Layout]:
    """Every row as a layout of its own."""
    table = Space(found.question.job, {}).layout(rows)
    names = (*CHOICES, "even")
    columns = [np.asarray(getattr(table, name)).tolist() for name in names]
    for values in zip(*columns, strict=True):
        yield replace(table, **dict(zip(names, values, strict=True)))


def _spread(rows: Rows) -> Rows:
    """At most about ``POINTS`` rows, one for each cell of a grid of time and memory."""
    for cells in (24, 16, 12, 8, 6, 4):
        parts = [np.floor(cells * np.log(rows[name])) for name in ("seconds", "memory")]
        grid = np.stack([*parts, rows["fits"]], axis=1)
        first = np.unique(grid, axis=0, return_index=True)[1]
        if len(first) <= POINTS:
            break
    return taken(rows, np.sort(first))


def _lowest(memory: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Rows, fastest first, that need less than every faster one."""
    before = np.minimum.accumulate(np.concatenate([[np.inf], memory[:-1]]))
    return np.asarray(memory < before)


def _both(rows: Rows, more: Rows) -> Rows:
    joined = {name: np.concatenate([rows[name], more[name]]) for name in rows}
    table = np.stack([joined[name] for name in CHOICES], axis=1)
    return taken(joined, np.sort(np.unique(table, axis=0, return_index=True)[1]))


def _hover(found: Plan, layout: Layout, seconds: float, memory: float) -> str:
    """What a point says: the layout, its numbers, and why it is out where it is."""
    head, *rest = describe(layout).split(", ")
    lines = [f"<b>{head}</b>", *wrap(", ".join(rest), LINE)]
    text = "<br>".join([*lines, f"{show(seconds, 's')}, {show(memory, 'B')} a GPU"])
    over = memory - found.question.room
    return text if over <= 0 else f"{text}<br>does not fit: {show(over, 'B')} too much"


@dataclass(frozen=True)
class Help:
    """What would change a layout's step time."""

    rates: list[explain.Rate]
    choices: list[explain.Choice]


def helpful(question: Question, chosen: Chosen) -> Help:
    """Rates of the machine doubled, and choices of the layout changed one at a time."""
    return Help(explain.rates(chosen.job), explain.choices(question, chosen.layout))


def scaled(question: Question, layout: Layout) -> dict[str, Any]:
    """Every axis doubled again and again, for the same batch and for one that grows."""
    return {
        "the batch stays": scaling.scaling(question, layout),
        "the batch grows with the GPUs": scaling.scaling(question, layout, weak=True),
    }


def best(asked: Asked, name: str) -> Chosen:
    """The best layout of a question.

    Raises:
        ValueError: where there is none, or none fits.
    """
    found = planned(asked)
    if found.best is None:
        need = show(float(found.smallest["memory"][0]), "B")
        room = show(found.question.room, "B")
        raise ValueError(f"{name}: nothing fits; the smallest layout needs {need} of {room}")
    return Chosen(name, found.best)


def others(asked: Asked, **changes: Any) -> Asked:
    """The same question with something else."""
    return replace(asked, **changes)
