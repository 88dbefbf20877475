"""One section of a calibration: fitted to results, and whether that is better than what was there.

The choice is made inside the results to fit to, which are cut in two: a fit to either part predicts
the other, and so does what was there before. Needs no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardware_profiles.behaviour import StepFit
from hardware_profiles.calibration import Calibration
from validation.evidence import Evidence, predicted
from validation.fitting import Prior, fit
from validation.heldout import drawn, key
from validation.profile import STANDS_FOR, Profile
from validation.results import Measured
from validation.stages import MOST, Number, Section, Stage, placed, values

NOISE = 0.05  # error that a case may have without counting much [1]


@dataclass(frozen=True, slots=True)
class Tried:
    """How far off a section's cases are, each predicted from others of the half to fit to.

    Medians of |ln(predicted / measured)|, as the fit has it: twice as slow is as far off as twice
    as fast, which a prediction at peaks always is.
    """

    title: str
    cases: int
    before: float
    after: float

    @property
    def better(self) -> bool:
        """A fit predicts what it has not seen better than what was there."""
        return self.after < self.before

    @property
    def sentence(self) -> str:
        """Of one that is not better."""
        return (
            f"{self.title}: left as it was: fitted to a part of the {self.cases} cases to fit to, it "
            f"is off the others by a factor of {np.exp(self.after):.4g}, {np.exp(self.before):.4g} before"
        )


def tried(
    stage: Stage,
    lines: Sequence[Measured],
    step: StepFit,
    base: Calibration,
    evidence: Evidence,
    seed: int,
) -> Tried | None:
    """``stage`` fitted to either part of ``lines`` and held against the other.

    None where they are too few to be cut in two: nothing speaks against the fit then.
    """
    part = drawn(lines, stage, np.random.default_rng(seed))
    folds = [[m for m in lines if (key(m) in part) is inside] for inside in (True, False)]
    if not all(folds):
        return None
    old = as_before(step, stage.section, base)
    before: list[float] = []
    after: list[float] = []
    for seen, unseen in (folds, folds[::-1]):
        new = placed(old, stage.section, fitted(stage, seen, old, base, evidence))
        before += _errors(stage, unseen, old, old, base, evidence)
        after += _errors(stage, unseen, new, old, base, evidence)
    return Tried(stage.title, len(lines), float(np.median(before)), float(np.median(after)))


def _errors(
    stage: Stage,
    lines: Sequence[Measured],
    step: StepFit,
    rest: StepFit,
    base: Calibration,
    evidence: Evidence,
) -> list[float]:
    """|ln(predicted / measured)| of each, without the errors of what it is taken over."""
    on, before = (_profile(which, base, evidence) for which in (step, rest))
    told = np.array([predicted(m, on) or np.nan for m in lines])
    known = np.array([_known(m, stage, evidence, before) for m in lines])
    taken = np.array([m.seconds for m in lines])
    return [float(off) for off in np.abs(np.log(told / taken) - known)]


def as_before(step: StepFit, section: Section, base: Calibration) -> StepFit:
    """``step`` with a section as ``base`` has it, or has what stands for it there."""
    assert base.step is not None
    old = values(base.step, section)
    if old is None:
        stands = "bf16" if section[0] == "matmuls" else STANDS_FOR.get(section[1], "point-to-point")
        old = values(base.step, (section[0], stands))
    return placed(step, section, old.model_dump())


def _profile(step: StepFit, base: Calibration, evidence: Evidence) -> Profile:
    return Profile(evidence.profile.cluster, base.model_copy(update={"step": step}))


def fitted(
    stage: Stage,
    lines: Sequence[Measured],
    step: StepFit,
    base: Calibration,
    evidence: Evidence,
) -> dict[str, float]:
    """The stage's numbers by least squares of ln(predicted / measured), ``step`` being the rest."""
    assert base.step is not None
    names = [number.name for number in stage.numbers]
    taken = np.log([line.seconds for line in lines])
    noise = np.array([_noise(line) for line in lines])
    before = Profile(evidence.profile.cluster, base.model_copy(update={"step": step}))
    known = np.array([_known(line, stage, evidence, before) for line in lines])

    def residuals(x: NDArray[np.float64]) -> NDArray[np.float64]:
        trial = placed(step, stage.section, dict(zip(names, np.exp(x).tolist(), strict=True)))
        on = Profile(evidence.profile.cluster, base.model_copy(update={"step": trial}))
        told = [predicted(line, on) for line in lines]
        off = np.log([np.nan if seconds is None else seconds for seconds in told]) - taken
        return np.asarray((off - known) / noise)

    prior = _prior(stage, base.step)
    tenth = [0.1 if n.high == MOST else 100.0 if n.high < 1 else 1.0 for n in stage.numbers]
    found = np.exp(fit(residuals, prior, prior.usual + np.log(tenth)))
    return {name: float(f"{value:.4g}") for name, value in zip(names, found, strict=True)}


def _known(line: Measured, stage: Stage, evidence: Evidence, before: Profile) -> float:
    """ln(predicted / measured) of the parts of its case that ``line`` is taken over; 0 of none."""
    if not stage.over:
        return 0.0
    parts = [m for m in evidence.trusted if m.case == line.case and m.part in stage.over]
    told = [seconds for part in parts if (seconds := predicted(part, before)) is not None]
    if len(told) < len(stage.over):
        return 0.0
    return float(np.log(sum(told) / sum(part.seconds for part in parts)))


def _noise(line: Measured) -> float:
    """How far off a prediction may be: the model's own, and the doubt about the median."""
    return float(np.hypot(NOISE, line.spread / np.sqrt(line.repeats)))


def _prior(stage: Stage, step: StepFit) -> Prior:
    """Around what a calibration has there; around what is usual where it has no such number."""
    there = values(step, stage.section)
    usual = [_usual(number, there) for number in stage.numbers]
    doubt = [number.doubt for number in stage.numbers]
    low, high = ([getattr(n, bound) for n in stage.numbers] for bound in ("low", "high"))
    return Prior(np.log(usual), np.array(doubt), np.log(low), np.log(high))


def _usual(number: Number, there: Any) -> float:
    known = getattr(there, number.name, None)
    if known is None or known in (0.0, 1.0):  # a peak's
        return number.usual
    return float(np.clip(known, number.low, number.high))


def limits(stage: Stage, found: dict[str, float]) -> list[str]:
    """Numbers that would go further if they might, in words."""
    rates = [n for n in stage.numbers if n.high == MOST and found[n.name] > 0.99 * MOST]
    return [
        f"{stage.title}: {n.name} is at its limit of {MOST}: the profile's rate is too low, "
        "correct the profile and measure again"
        for n in rates
    ]
