"""Worked problems: what books, lectures and papers computed by hand, and what we compute.

``problems.jsonl`` holds each with its inputs, the value it should have and the one its source
prints. A solver takes the inputs and goes through the public formulas; ``check`` runs them all.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from math import isclose
from types import ModuleType
from typing import Any

Solver = Callable[[Mapping[str, float]], float]

# Each has SOLVERS, id → solver, and NOT_COVERED, id → why no formula should give this number.
TOPICS = (
    "hardware",
    "tpu",
    "counting",
    "inference",
    "network",
    "collectives",
    "strategies",
)


@dataclass(frozen=True, slots=True)
class Problem:
    """One worked problem; numbers in SI base units."""

    id: str
    device: str  # gpu, tpu or any
    quantity: str
    formula: str  # as the source computes it, a Python expression of the inputs
    inputs: Mapping[str, float]
    unit: str
    expected: float
    rel_tol: float
    kind: str  # exact, approximation or empirical
    printed: str  # what the source prints, as text
    book_value: float | None  # the same as a number
    status: str | None  # rounds, last_digit, loose or erratum: how the printed value relates to it
    source: str
    notes: str

    @property
    def erratum(self) -> bool:
        """The source is wrong; ``expected`` is the corrected value."""
        return self.status == "erratum"


@dataclass(frozen=True, slots=True)
class Result:
    """A problem with our value."""

    problem: Problem
    ours: float

    @property
    def error(self) -> float:
        """Relative distance from ``expected``; the absolute one where that is 0."""
        distance = abs(self.ours - self.problem.expected)
        return distance / abs(self.problem.expected) if self.problem.expected else distance

    @property
    def passed(self) -> bool:
        """True when ours is ``expected`` to the tolerance of the problem."""
        wanted, tolerance = self.problem.expected, self.problem.rel_tol
        return isclose(self.ours, wanted, rel_tol=tolerance, abs_tol=0.0 if wanted else 1e-15)


@cache
def problems() -> tuple[Problem, ...]:
    """All worked problems, in the order of their sources."""
    lines = resources.files(__name__).joinpath("problems.jsonl").read_text("utf-8").splitlines()
    return tuple(_problem(json.loads(line)) for line in lines if line)


@cache
def solvers() -> Mapping[str, Solver]:
    """Problem id → the function that solves it from its inputs."""
    return {id: solver for topic in _topics() for id, solver in topic.SOLVERS.items()}


@cache
def not_covered() -> Mapping[str, str]:
    """Problem id → why it has no solver: a measurement, or arithmetic that is no formula."""
    return {id: reason for topic in _topics() for id, reason in topic.NOT_COVERED.items()}


def problem(id: str) -> Problem:
    """The problem of this id.

    Raises:
        ValueError: when there is none, naming similar ones.
    """
    known = {problem.id: problem for problem in problems()}
    if id not in known:
        from hardware_profiles.errors import nearest

        raise ValueError(f"no worked problem is called {id!r}; {nearest(id, known)}")
    return known[id]


def solve(id: str, inputs: Mapping[str, float] | None = None) -> float:
    """Our value for a problem, with its own inputs unless others are given.

    Raises:
        ValueError: when there is no such problem, or no formula covers it (saying why).

    >>> round(solve("q1.3-ridge-h100-fp16"), 1)
    295.5
    """
    asked = problem(id)
    if id not in solvers():
        raise ValueError(f"{id} has no solver: {not_covered().get(id, 'nobody has written one')}")
    return float(solvers()[id](asked.inputs if inputs is None else inputs))


def check() -> list[Result]:
    """Every problem that has a solver, solved."""
    return [Result(problem, solve(problem.id)) for problem in problems() if problem.id in solvers()]


def _topics() -> Iterator[ModuleType]:
    for topic in TOPICS:
        name = f"{__name__}.{topic}"
        if importlib.util.find_spec(name):
            yield importlib.import_module(name)


def _problem(row: dict[str, Any]) -> Problem:
    places = (row["source"][key] for key in ("work", "file", "section", "question"))
    return Problem(
        **{name: row[name] for name in _AS_THEY_ARE},
        printed=row["expected_text"] or "",
        status=row["book_status"],
        source=", ".join(place for place in places if place),
        notes=row["notes"] or "",
    )


_AS_THEY_ARE = (
    "id",
    "device",
    "quantity",
    "formula",
    "inputs",
    "unit",
    "expected",
    "rel_tol",
    "kind",
    "book_value",
)
