"""How good predictions are: errors by group, ranks within sweeps, beside the baseline.

    error     predicted / measured - 1
    tau       pairs in the right order minus pairs in the wrong one, over all pairs (Kendall)
    regret    how much slower the run predicted to be fastest is than the one that was

Within a sweep runs are ranked by seconds per FLOP of their model, so that shapes of different size
can stand in one search.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from roofline.backtest import Row

GROUPS: Mapping[str, Callable[[Row], str]] = {
    "gpu": lambda row: row.accelerator,
    "source": lambda row: row.source,
    "family": lambda row: row.family,
    "precision": lambda row: row.precision,
    "year": lambda row: stated(row, "year"),
    "framework": lambda row: row.framework,
    "quality": lambda row: stated(row, "quality"),
    "series": lambda row: stated(row, "series"),
    "model": lambda row: str(row.run["model"].get("name") or UNSTATED)[:60],
    "gpus": lambda row: f"{row.gpus:,}",
}
UNSTATED = "not stated"
SMALLEST_SWEEP = 4  # runs


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors of a group of rows; ``bias`` is their median with sign, the others without."""

    group: str
    count: int
    bias: float
    median: float
    p90: float
    largest: float
    baseline_median: float
    baseline_p90: float


@dataclass(frozen=True, slots=True)
class Ranking:
    """How well the runs of one sweep were ranked."""

    sweep: str
    count: int
    tau: float
    regret: float
    baseline_tau: float


def stated(row: Row, field: str) -> str:
    """What a run says of itself, as text."""
    value = row.run.get(field)
    return UNSTATED if value is None else str(value)[:60]


def errors(rows: Sequence[Row], group: str = "all") -> Errors:
    """Errors of measured ``rows`` as one group.

    Raises:
        ValueError: when there is none.
    """
    if not rows:
        raise ValueError("rows: none of them was measured; allowed: at least one")
    measured = np.array([row.measured for row in rows], float)
    off = np.array([row.predicted for row in rows]) / measured - 1
    base = np.abs(np.array([row.baseline for row in rows]) / measured - 1)
    return Errors(
        group=group,
        count=len(rows),
        bias=float(np.median(off)),
        median=float(np.median(np.abs(off))),
        p90=float(np.quantile(np.abs(off), 0.9)),
        largest=float(np.max(np.abs(off))),
        baseline_median=float(np.median(base)),
        baseline_p90=float(np.quantile(base, 0.9)),
    )


def by(rows: Iterable[Row], names: Sequence[str]) -> list[Errors]:
    """Errors of the groups that have the fields ``names`` in common."""
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[", ".join(GROUPS[name](row) for name in names)].append(row)
    return [errors(groups[name], name) for name in sorted(groups)]


def worst(rows: Iterable[Row], count: int) -> list[Row]:
    """The rows furthest off, either way."""
    return sorted(rows, key=lambda row: -abs(row.error or 0.0))[:count]


def dominant(row: Row, count: int = 3) -> list[str]:
    """Names of the largest terms of a prediction."""
    return sorted(row.terms, key=lambda name: -row.terms[name])[:count]


def rankings(rows: Iterable[Row]) -> list[Ranking]:
    """Every sweep among ``rows``."""
    sweeps: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row.sweep:
            sweeps[row.sweep].append(row)
    return [
        _ranking(name, members)
        for name, members in sorted(sweeps.items())
        if len(members) >= SMALLEST_SWEEP
    ]


def _ranking(name: str, rows: Sequence[Row]) -> Ranking:
    flops = np.array([row.flops for row in rows])
    measured = np.array([row.measured for row in rows], float) / flops
    predicted = np.array([row.predicted for row in rows]) / flops
    base = np.array([row.baseline for row in rows]) / flops
    chosen = measured[np.argmin(predicted)]
    regret = float(chosen / np.min(measured) - 1)
    return Ranking(name, len(rows), tau(predicted, measured), regret, tau(base, measured))


def tau(a: ArrayLike, b: ArrayLike) -> float:
    """Kendall's rank correlation (tau-b): 1 where two orders agree, -1 where they are opposite.

    >>> tau([1, 2, 3, 4], [1, 2, 4, 3])
    0.66666666
    """
    x, y = np.asarray(a, float), np.asarray(b, float)
    above = np.triu_indices(len(x), 1)
    dx, dy = (np.sign(v[:, None] - v[None, :])[above] for v in (x, y))
    pairs = np.sqrt(np.sum(dx != 0) * np.sum(dy != 0))
    return float(np.sum(dx * dy) / pairs) if pairs else 0.0
