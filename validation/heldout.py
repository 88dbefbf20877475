"""Held-out cases: a random half to fit to, and errors of the other half before and after.

Of each pair of neighbours in size, inside each section that is fitted, a coin takes one: both halves
have small and large cases. What is nearly the same case twice stays in one half.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from hardware_profiles.calibration import Calibration
from validation.evidence import Evidence, predicted
from validation.profile import Profile
from validation.results import Measured
from validation.stages import Stage, cases

Key = tuple[str, str]  # case and part


@dataclass(frozen=True, slots=True)
class Judged:
    """Errors of one kernel's cases that nothing was fitted to: medians of |predicted/measured - 1|."""

    kernel: str
    fitted: int  # cases
    held_out: int
    before: float | None  # None where a prediction is missing
    after: float | None
    spread: float  # of the measurements themselves: median of (p90 - p10)/median


def key(line: Measured) -> Key:
    """Of a result, whichever run it is of."""
    return line.case, line.part


def half_of(evidence: Evidence, every: Sequence[Stage], seed: int) -> set[Key]:
    """Keys of the cases to fit to; of each pair of neighbours in size, a coin takes one."""
    rng = np.random.default_rng(seed)
    chosen: set[Key] = set()
    seen: set[Key] = set()  # a result may serve two stages
    for stage in every:
        there = [line for line in cases(stage, evidence) if key(line) not in seen]
        seen |= {key(line) for line in there}
        chosen |= drawn(there, stage, rng)
    return chosen


def drawn(lines: Sequence[Measured], stage: Stage, rng: np.random.Generator) -> set[Key]:
    """Keys of about half of a stage's ``lines``: of each pair of neighbours in size one."""
    chosen: set[Key] = set()
    for some in _apart(list(lines), stage):
        twins = _twins(some) if not stage.over else _cases(some, stage)
        for i in range(0, len(twins) - len(twins) % 2, 2):
            chosen |= twins[i + int(rng.integers(2))]
        if len(twins) % 2 and rng.integers(2):
            chosen |= twins[-1]
    return chosen


def _apart(lines: list[Measured], stage: Stage) -> list[list[Measured]]:
    """What is drawn from by itself: where a stage sees whole cases, each kernel keeps some."""
    if not stage.over:
        return [lines]
    names = dict.fromkeys(line.kernel for line in lines)
    return [[line for line in lines if line.kernel == name] for name in names]


def _cases(lines: Sequence[Measured], stage: Stage) -> list[set[Key]]:
    """Cases by size, each with the parts that it is taken over: what was seen is not held out.

    Those of one size are other programs here: schedules, stages of ZeRO.
    """
    ordered = sorted(lines, key=lambda line: (line.nbytes + line.flops, line.case))
    return [{key(m), *((m.case, part) for part in stage.over)} for m in ordered]


def _twins(lines: Sequence[Measured]) -> list[set[Key]]:
    """Cases by size; those of one size (in place and not, a shape and its mirror) stay together."""
    found: dict[tuple[float, ...], set[Key]] = defaultdict(set)
    for line in lines:
        found[line.nbytes + line.flops, line.size, line.stride].add(key(line))
    return [found[size] for size in sorted(found)]


def drawn_of(
    every: Sequence[Stage], evidence: Evidence, half: set[Key]
) -> tuple[list[Stage], tuple[str, ...]]:
    """Stages with a case in the half to fit to; in words, those without."""
    found = [s for s in every if any(key(line) in half for line in cases(s, evidence))]
    lost = [s.title for s in every if s not in found]
    return found, tuple(f"{title}: no case in the half to fit to, try --seed" for title in lost)


def judge(evidence: Evidence, half: set[Key], overlay: Calibration) -> Iterable[Judged]:
    """All kernels together, then a row for each, in the order of the file."""
    profile = Profile(evidence.profile.cluster, overlay)
    lines = [line for line in evidence.trusted if predicted(line, profile) is not None]
    yield _judged("all", lines, half, profile)
    for kernel in dict.fromkeys(line.kernel for line in lines):
        yield _judged(kernel, [m for m in lines if m.kernel == kernel], half, profile)


def _judged(kernel: str, lines: list[Measured], half: set[Key], profile: Profile) -> Judged:
    held = [line for line in lines if key(line) not in half]
    after = [(predicted(line, profile) or 0.0) / line.seconds - 1 for line in held]
    return Judged(
        kernel=kernel,
        fitted=len(lines) - len(held),
        held_out=len(held),
        before=_median(line.error for line in held),
        after=_median(after),
        spread=_median(line.spread for line in lines) or 0.0,
    )


def _median(errors: Iterable[float | None]) -> float | None:
    known = [abs(error) for error in errors if error is not None]
    return float(np.median(known)) if known else None
