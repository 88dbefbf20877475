"""Limits that leave nothing: which of them, and the smallest change that leaves something.

Each limit is dropped in turn; where the others then leave layouts, the nearest value that those have
for it is a way out, and the one that has to move least, as a ratio, is named. Of ways as short, a
detail goes before a degree, which moves everything. Where no single limit is to blame, two are
dropped together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from roofline.limits import NAMED, Framework, Limit, allowed, values
from roofline.space import DEGREES, Job, Space, sensible

STAGES = ("zero", "shard")  # kinds rather than sizes: another one is as far as a factor of 2
FURTHEST = 2000  # steps that are looked at for the nearest number


def relaxation(job: Job, framework: Framework, limits: Mapping[str, Limit]) -> str:
    """Why there is no layout, and what would give one, in a sentence."""
    for count in (1, 2):
        ways = []
        for names in combinations(limits, count):
            rest = {name: limit for name, limit in limits.items() if name not in names}
            found = _left(job, framework, rest, names)
            if found:
                near = {name: _nearest(job, name, limits[name], found[name]) for name in names}
                degrees = sum(name in DEGREES for name in names)
                far = round(sum(way for _, way in near.values()), 3)
                ways.append((far, degrees, {name: value for name, (value, _) in near.items()}))
        if ways:
            best = min(ways, key=lambda way: way[:2])[2]
            asked = " and ".join(f"{name}={_shown(name, limits[name])}" for name in best)
            near_by = " and ".join(f"{name}={_shown(name, value)}" for name, value in best.items())
            return (
                f"{asked} leaves no layout on {job.gpus:,} GPUs; the nearest that does: {near_by}"
            )
    if limits and _left(job, framework, {}, ()):
        return f"these limits leave no layout on {job.gpus:,} GPUs: {', '.join(limits)}; drop some"
    return _nothing(job, framework)


def _left(
    job: Job, framework: Framework, limits: Mapping[str, Limit], names: tuple[str, ...]
) -> dict[str, list[float]] | None:
    """Values of ``names`` in the layouts that ``limits`` leave; None where they leave none."""
    found: dict[str, set[float]] = {name: set() for name in names}
    some = False
    for _, layouts in Space(job, values(job, framework, limits)).blocks():
        some = some or len(layouts.tp) > 0  # type: ignore[arg-type]
        for name in names:
            found[name].update(np.unique(getattr(layouts, name)).tolist())
    return {name: sorted(kept) for name, kept in found.items()} if some else None


def _nearest(job: Job, name: str, limit: Limit, kept: list[float]) -> tuple[float, float]:
    """Of the values that work, the one next to what was asked for, and how far, as a log of a ratio."""
    asked = allowed(name, limit, sensible(job)[name])
    ways = [(min(_apart(value, a) for a in asked), value) for value in kept]
    far, best = min(ways)
    return best, float(np.log(2.0)) if name in NAMED or name in STAGES else far


def _apart(one: float, other: float) -> float:
    """How many times as large; 0 counts as a half."""
    return float(abs(np.log(max(one, 0.5) / max(other, 0.5))))


def _shown(name: str, value: Limit) -> str:
    if name in NAMED and not isinstance(value, str | tuple | list):
        return next(word for word, number in NAMED[name].items() if number == value)
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def _nothing(job: Job, framework: Framework) -> str:
    """No limit is to blame: the job itself has no layout."""
    batch = f"a batch of {job.batch:,} sequences" if job.batch > 1 else "a batch of one sequence"
    text = f"no layout of {job.model.name} on {job.gpus:,} GPUs divides {batch}"
    unit = job.inner if job.gpus > job.inner else 1  # whole nodes
    gpus = _around(job.gpus, unit, lambda n: _divides(replace(job, gpus=n), framework))
    sizes = _around(job.batch, 1, lambda b: _divides(replace(job, batch=b), framework))
    if gpus:
        text += f"; the nearest numbers of GPUs that do: {_both(gpus)}"
    if sizes:
        tokens = [f"{n * job.sequence:.0f} tokens ({n:,} sequences)" for n in sizes]
        text += f"; the nearest batches that do: {' and '.join(tokens)}"
    return text


def _both(numbers: Sequence[int]) -> str:
    return " and ".join(f"{n:,}" for n in numbers)


def _around(center: int, unit: int, good: Callable[[int], bool]) -> list[int]:
    """The nearest multiples of ``unit`` below and above a number that are good, up to its double."""
    first = center // unit
    below = range(first, max(0, first - FURTHEST), -1)
    above = range(first + 1, min(2 * first, first + FURTHEST) + 1)
    found = (next((n * unit for n in some if good(n * unit)), None) for some in (below, above))
    return [n for n in found if n is not None]


def _divides(job: Job, framework: Framework) -> bool:
    """Quick look: some number of replicas that the GPUs allow divides the batch."""
    return len(Space(job, values(job, framework, {})).degrees()["tp"]) > 0
