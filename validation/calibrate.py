"""A calibration from results: fitted to a random half of the cases, judged on the other half.

    python -m validation calibrate results --out mine.yaml

Every number is found by asking the kernels' own predictions: no formula is written anew. Halves
are drawn inside each kernel from pairs of neighbours in size, so both have small and large cases.
What nobody measured stays as the shipped calibration has it, or at its peak, and the file says so.
Needs no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import hardware_profiles as hp
from hardware_profiles.behaviour import COLLECTIVES, StepFit
from hardware_profiles.calibration import Calibration, TierFraction, for_accelerator
from validation.evidence import Evidence, predicted, trusted
from validation.fitting import Prior, fit
from validation.heldout import Judged, Key, drawn_of, half_of, judge, key
from validation.profile import Profile
from validation.results import Measured
from validation.saved import rounded
from validation.stages import BEYOND, MOST, Number, Stage, cases, ideal, placed, stages, values

FEWEST = 4  # trusted cases that at least one stage must have; to fit to in all, and to judge by
WORSE = 0.01  # of an error over the one before: noise explains less
NOISE = 0.05  # error that a case may have without counting much [1]
LARGEST_FRACTION = 1.2  # that a calibration allows of a plain rate
PEAKS = "peaks"  # name and source of the calibration that nothing is known by
RINGS = ("all-gather", "reduce-scatter", "all-reduce")


@dataclass(frozen=True, slots=True)
class Calibrated:
    """A calibration, how good it is, and what it could not tell."""

    overlay: Calibration
    whole: Judged  # all kernels together
    rows: tuple[Judged, ...]
    fitted: tuple[str, ...]  # stages
    lacking: tuple[str, ...]  # stages with too few cases, in words
    at_limit: tuple[str, ...]  # numbers that would go further if they might
    untrusted: int  # results that were left out: wrong, or not checked
    elsewhere: int  # results of other programs, which nobody here could check
    problems: tuple[str, ...]  # lines and runs that could not be used, results that cannot be

    @property
    def worse(self) -> tuple[str, ...]:
        """Kernels whose held-out cases it predicts less well than before, in words."""
        found = [row for row in self.rows if _worse(row)]
        return tuple(
            f"{r.kernel}: {r.before:.1%} before, {r.after:.1%} after over {r.held_out} cases: worse"
            for r in found
        )


def calibrate(evidence: Evidence, name: str, seed: int = 0) -> Calibrated:
    """Fit everything that there are enough cases for.

    Args:
        name: of the calibration.
        seed: of the draw of the halves.

    Raises:
        ValueError: when there are too few trusted cases for any stage, saying what is missing; when
            the devices are not the profile's.
    """
    if doubt := evidence.header.foreign:
        raise ValueError(f"{doubt}: its rates are not that profile's; measure with --cluster local")
    every = stages(evidence)
    counts = {s.title: len(cases(s, evidence)) for s in every}
    enough = [s for s in every if counts[s.title] >= s.fewest]
    lacking = tuple(_lack(s, evidence) for s in every if s not in enough)
    if max(counts.values(), default=0) < FEWEST:
        lacking = tuple(_lack(s, evidence, FEWEST) for s in every)
        raise ValueError(_too_little(evidence, lacking))
    half = half_of(evidence, enough, seed)
    there = {key(line) for s in enough for line in cases(s, evidence)}
    if min(len(there & half), len(there - half)) < FEWEST:
        raise ValueError(_too_few(evidence, there, half))
    enough, lost = drawn_of(enough, evidence, half)
    base = _base(evidence)
    step, limits = base.step, []
    assert step is not None
    parts, wholes = ([s for s in enough if bool(s.over) is whole] for whole in (False, True))
    for stage in (*parts, *_again(parts), *wholes):
        lines = [line for line in cases(stage, evidence) if key(line) in half]
        found = _fitted(stage, lines, step, base, evidence)
        limits += _limits(stage, found)
        step = placed(step, stage.section, found)
    step, copied = _completed(step, [s.section for s in enough], base)
    overlay = base.model_copy(update={"name": name, "step": step})
    whole, *rows = judge(evidence, half, overlay)
    drawn = f"{len(there & half)} of {len(there)}"
    told = _source(evidence, drawn, [s.title for s in enough], (*copied, _rest(base)), seed)
    overlay = _finished(overlay, evidence, [s.section for s in enough], rows, told)
    fitted = tuple(s.title for s in enough)
    limits = list(dict.fromkeys(limits))
    left = sum(not trusted(line) for line in evidence.measured)
    others = sum(line.correct == "elsewhere" for line in evidence.trusted)
    unused, problems = lacking + lost, evidence.problems
    return Calibrated(
        overlay, whole, tuple(rows), fitted, unused, tuple(limits), left, others, problems
    )


def _again(every: Sequence[Stage]) -> list[Stage]:
    """Stages with results in common, twice more: each was fitted while the other was still off."""
    tail = [s for s in every if s.section == ("network",) or s.title.endswith(BEYOND)]
    return tail * 2 if len(tail) > 1 else []


def _lack(stage: Stage, evidence: Evidence, wanted: int = 0) -> str:
    there = len(cases(stage, evidence))
    wrong = sum(stage.uses(line) and not trusted(line) for line in evidence.measured)
    more = f", and {wrong} that were not checked or are wrong" if wrong else ""
    return f"{stage.title}: {there} of {max(wanted, stage.fewest)} cases{more}"


def _too_little(evidence: Evidence, lacking: Sequence[str]) -> str:
    there = "; ".join(lacking) if lacking else "no results of matmuls, memory or collectives"
    why = f" ({evidence.problems[0]})" if evidence.problems else ""
    return (
        f"too little to calibrate from, {len(evidence.trusted)} trusted results in all{why}: "
        f"{there}. "
        "Measure more: python -m validation run --out DIR --suite full"
    )


def _too_few(evidence: Evidence, there: set[Key], half: set[Key]) -> str:
    return (
        f"too little to calibrate from: of {len(there)} results that a section can be fitted to, "
        f"{len(there & half)} are in the half to fit to and {len(there - half)} in the half to judge "
        f"by (cases of one size stay together); allowed: {FEWEST} and more in each. "
        "Measure more: python -m validation run --out DIR --suite full"
    )


def _worse(row: Judged) -> bool:
    return row.before is not None and row.after is not None and row.after > row.before + WORSE


def _base(evidence: Evidence) -> Calibration:
    """What is known of this accelerator beside these results; peaks where nothing is."""
    chip, name = evidence.profile.chip, evidence.header.overlay
    found = hp.calibration(name) if name in hp.calibrations() else None
    if found is None or chip.name not in found.accelerators:
        found = for_accelerator(chip.name)
    if found is not None and found.step is not None:
        return found
    return Calibration(
        name=PEAKS,
        accelerators=(chip.name,),
        matmul=dict.fromkeys(chip.peak_flops, 1.0),
        hbm=1.0,
        tiers=(TierFraction(bandwidth=1.0),),
        step=ideal(chip),
        source=PEAKS,
    )


def _fitted(
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


def _limits(stage: Stage, found: dict[str, float]) -> list[str]:
    rates = [n for n in stage.numbers if n.high == MOST and found[n.name] > 0.99 * MOST]
    return [
        f"{stage.title}: {n.name} is at its limit of {MOST}: the profile's rate is too low, "
        "correct the profile and measure again"
        for n in rates
    ]


def _completed(
    step: StepFit, fitted: Sequence[tuple[str, ...]], base: Calibration
) -> tuple[StepFit, list[str]]:
    """Where a machine is at its peaks, what is not measured as what is nearest to it; in words."""
    copied: list[str] = []
    if base.source != PEAKS:
        return step, copied
    dtypes = [section[1] for section in fitted if section[0] == "matmuls"]
    if dtypes and "bf16" not in dtypes:
        step = placed(step, ("matmuls", "bf16"), step.matmuls[dtypes[0]].model_dump())
        copied.append(f"matmul bf16 as {dtypes[0]}")
    links = [section[1] for section in fitted if section[0] == "collectives"]
    near = next((name for name in (*RINGS, *COLLECTIVES) if name in links), None)
    for name in COLLECTIVES if near else ():
        if name not in links:
            step = placed(step, ("collectives", name), step.collectives[near or ""].model_dump())
            copied.append(f"{name} as {near}")
    return step, copied


def _finished(
    overlay: Calibration,
    evidence: Evidence,
    fitted: Sequence[tuple[str, ...]],
    rows: Sequence[Judged],
    source: str,
) -> Calibration:
    """The plain fractions too, which closed forms take; validated."""
    step = overlay.step
    assert step is not None
    dtypes = {section[1] for section in fitted if section[0] == "matmuls"}
    matmul = {d: _fraction(step.matmuls[d].efficiency) for d in step.matmuls if d in dtypes}
    known = {} if matmul and overlay.source == PEAKS else overlay.matmul
    changed: dict[str, Any] = {
        "accelerators": (evidence.profile.chip.name,),
        "matmul": known | matmul,
        "tiers": _tiers(overlay, step, evidence, fitted),
        "error": _told(rows),
        "source": source,
        "step": step.model_dump() | {"accuracy": None, "source": source},
    }
    if ("streams",) in fitted:
        changed["hbm"] = _fraction(step.streams.hbm)
    return Calibration.model_validate(rounded(overlay.model_dump() | changed))


def _tiers(
    overlay: Calibration, step: StepFit, evidence: Evidence, fitted: Sequence[tuple[str, ...]]
) -> list[dict[str, Any]]:
    """Innermost: the median ring; beyond: the network's. A latency is one message's."""
    tiers = [tier.model_dump() for tier in overlay.tiers]
    rings = [step.collectives[name] for name in RINGS if ("collectives", name) in fitted]
    n = max(evidence.unit, 2)
    if rings:
        share = float(np.median([link.fraction for link in rings]))
        start = float(np.median([(link.start + link.per_rank * n) / (n - 1) for link in rings]))
        tiers[0] = {"bandwidth": _fraction(share), "latency": start}
    if ("network",) in fitted:
        beyond = {"bandwidth": _fraction(step.network.outer), "latency": step.network.hop}
        tiers = [tiers[0], beyond]
    return tiers


def _fraction(share: float) -> float:
    return min(share, LARGEST_FRACTION)


def _told(rows: Sequence[Judged]) -> str:
    def one(row: Judged) -> str:
        before = "unknown" if row.before is None else f"{row.before:.1%}"
        worse = ", worse" if _worse(row) else ""
        return f"{row.kernel} {before} → {row.after:.1%} over {row.held_out}{worse}"

    judged = [one(row) for row in rows if row.after is not None]
    return "median error of cases that were not fitted to, before → after: " + "; ".join(judged)


def _rest(base: Calibration) -> str:
    rest = "at peaks" if base.source == PEAKS else f"as in the calibration {base.name}"
    return f"everything else {rest}"


def _source(
    evidence: Evidence, drawn: str, fitted: Sequence[str], rest: Sequence[str], seed: int
) -> str:
    h = evidence.header
    hosts = ", ".join(f"{name} ({ranks} ranks)" for name, ranks in h.hosts.items())
    ran = ", ".join(f"{name} {version}" for name, version in h.versions.items())
    return (
        f"python -m validation calibrate, seed {seed}; measured {h.started} on {hosts}, "
        f"{', '.join(h.devices)}, {h.backend}, {ran}; profile {h.profile}; fitted to {drawn} "
        f"results: {', '.join(fitted)}; {'; '.join(rest)}"
    )
