"""Plans for one value after another, and ladders of values: what searches are made of.

A ``Try`` is a value with its plan, or with the reason why there is none; a ``Search`` makes tries as
they are asked for; an ``Answer`` is what came of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from hardware_profiles import Cluster
from hardware_profiles.errors import UnfilledUnits
from roofline.describe import describe
from roofline.outcome import Outcome, outcome
from roofline.planner import Plan, largest
from roofline.units import DAY

MOST_GPUS = 131_072
GAIN = 1.01  # of tokens per second, by a batch twice as large: less is none
PATIENCE = 4  # steps of a ladder without anything better, before it ends
FINER = 8  # steps of an octave that a ladder is refined to

Cost = tuple[int, float]  # of a try: how far it is from an answer, then what it costs
UNFIT: Cost = (2, 0.0)


@dataclass(frozen=True)
class Try:
    """A value with its plan, or the reason why there is none."""

    value: Any
    plan: Plan | None
    reason: str = ""
    budget: float | None = None  # tokens to train on
    price: float | None = None  # of a GPU for an hour

    @property
    def fits(self) -> bool:
        """Whether there is a layout."""
        return self.plan is not None and self.plan.fitting > 0

    @property
    def seconds(self) -> float:
        """The best step; infinite where nothing fits."""
        found = self.plan
        return float(found.ranked["seconds"][0]) if found and found.fitting else float("inf")

    @property
    def tokens_per_second(self) -> float:
        """Of the best layout."""
        return self.plan.question.tokens / self.seconds if self.plan else 0.0

    @property
    def outcome(self) -> Outcome | None:
        """What the best layout brings; None where nothing fits."""
        best = self.plan.best if self.plan else None
        return outcome(best, budget=self.budget, price=self.price) if best else None

    @property
    def days(self) -> float:
        """For the budget; infinite where nothing fits.

        Raises:
            ValueError: where there is no budget.
        """
        found = self.outcome
        return float(found.days) if found else float("inf")

    @property
    def money(self) -> float:
        """For the budget; infinite where nothing fits.

        Raises:
            ValueError: where there is no budget, or no price.
        """
        found = self.outcome
        return float(found.money) if found else float("inf")

    def row(self) -> dict[str, Any]:
        """The numbers of its best layout in SI units; None where there is none."""
        found = self.outcome
        asked = self.plan.question if self.plan else None
        row: dict[str, Any] = {"value": self.value if np.isscalar(self.value) else str(self.value)}
        row |= {
            "gpus": asked.gpus if asked else None,
            "tokens": asked.tokens if asked else None,
            "sequence": asked.sequence if asked else None,
            "step_s": self.seconds if found else None,
            "tokens_per_s": self.tokens_per_second if found else None,
            "mfu": float(found.mfu) if found else None,
            "memory_bytes": float(self.plan.ranked["memory"][0]) if found and self.plan else None,
            "train_s": self.days * DAY if found and self.budget is not None else None,
            "money": self.money if found and found.price is not None and self.budget else None,
            "layout": describe(self.plan.layout()) if found and self.plan else None,
        }
        return row | {"reason": self.reason}


@dataclass(frozen=True, repr=False)
class Answer:
    """What a search found: a sentence, the try that is the answer, and all others."""

    sentence: str
    best: Try | None
    tries: tuple[Try, ...]  # by value

    def rows(self) -> list[dict[str, Any]]:
        """A row for each try, in SI units."""
        return [one.row() for one in self.tries]

    def to_frame(self) -> Any:
        """The same as a pandas frame."""
        from pandas import DataFrame  # type: ignore[import-untyped]

        return DataFrame(self.rows())

    def __repr__(self) -> str:
        return self.sentence


@dataclass
class Search:
    """Plans as they come; ``answer`` makes those that are missing."""

    steps: Iterator[Try]
    conclude: Callable[[Sequence[Try]], tuple[str, Try | None]]
    seen: list[Try] = field(default_factory=list)

    def __iter__(self) -> Iterator[Try]:
        for one in self.steps:
            self.seen.append(one)
            yield one

    @property
    def answer(self) -> Answer:
        """What was found, after the last try."""
        for _ in self:
            pass
        ordered = tuple(self.seen)
        if all(isinstance(one.value, int) for one in ordered):
            ordered = tuple(sorted(ordered, key=lambda one: float(one.value)))
        return Answer(*self.conclude(ordered), ordered)


def tries(values: Iterable[Any], one: Callable[[Any], Plan]) -> Iterator[Try]:
    """A plan for each value, as they come."""
    for value in values:
        try:
            found = one(value)
        except ValueError as error:
            yield Try(value, None, str(error))
            continue
        yield Try(value, found, "" if found.fitting else "no layout fits the memory")


def gpu_counts(cluster: Cluster, least: int = 1, most: int = MOST_GPUS) -> list[int]:
    """Powers of two and one step between them that fill whole units, as far as the cluster grows."""
    found: set[int] = set()
    most = int(min(most, largest(cluster)))
    size = 1
    while size <= most:
        for some in (size, size * 3 // 2):
            if least <= some <= most and _fills(cluster, some):
                found.add(some)
        size *= 2
    return sorted(found)


def _fills(cluster: Cluster, gpus: int) -> bool:
    try:
        cluster.resized(gpus)
    except UnfilledUnits:
        return False
    return True


def each(make: Callable[[Any], Plan], **money: float | None) -> Callable[[Any], Try]:
    """One value to its try.

    Args:
        money: the ``budget`` and ``price`` of the try.
    """

    def one(value: Any) -> Try:
        found = next(tries([value], make))
        return Try(found.value, found.plan, found.reason, **money)

    return one


def climb(
    one: Callable[[int], Try], counts: Iterable[int], cost: Callable[[Try], Cost]
) -> Iterator[Try]:
    """Up a ladder until nothing has become better for ``PATIENCE`` steps."""
    best, since = UNFIT, 0
    for value in counts:
        found = one(value)
        yield found
        now = cost(found)
        since = 0 if now < best else since + (best < UNFIT)
        best = min(best, now)
        if since >= PATIENCE:
            return


def either_way(
    up: Iterator[Try], one: Callable[[int], Try], below: Sequence[int], good: Callable[[Try], bool]
) -> Iterator[Try]:
    """A ladder up; where nothing on it is good, down again from its foot, to find what is fastest."""
    met = False
    for found in up:
        yield found
        met = met or good(found)
    if not met:
        yield from climb(one, reversed(below), slow)


def slow(found: Try) -> Cost:
    """The step time, where anything fits."""
    return (1, found.seconds) if found.fits else UNFIT


def until(steps: Iterator[Try], good: Callable[[Try], bool]) -> Iterator[Try]:
    """As far as the first that is good."""
    for found in steps:
        yield found
        if good(found):
            return


def refined(
    steps: Iterator[Try],
    one: Callable[[int], Try],
    cluster: Cluster,
    good: Callable[[Try], bool],
    start: int,
) -> Iterator[Try]:
    """A ladder as far as the first that is good, then what lies below it, down to ``start``."""
    below, last = start - 1, None
    for found in until(steps, good):
        yield found
        below, last = (below if last is None else last.value), found
    if last is not None and good(last):
        yield from until(map(one, between(cluster, below, last.value)), good)


def between(cluster: Cluster, low: int, high: int) -> list[int]:
    """Eighths of the octave between two numbers of GPUs that fill whole units."""
    base = 1 << max(0, (high - 1).bit_length() - 1)
    some = {octave * (FINER + k) / FINER for octave in (base / 2, base) for k in range(FINER)}
    return [
        int(n) for n in sorted(some) if low < n < high and n == int(n) and _fills(cluster, int(n))
    ]


def saturating(one: Callable[[int], Try], values: Sequence[int]) -> Iterator[Try]:
    """Until two steps have each brought less than ``GAIN`` times the tokens per second."""
    rates: list[float] = []
    for value in values:
        found = one(value)
        yield found
        if found.fits:
            rates.append(found.tokens_per_second)
        if len(rates) > 2 and all(b < GAIN * a for a, b in pairwise(rates[-3:])):
            return
