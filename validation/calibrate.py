"""A calibration from results: fitted to a random half of the cases, judged on the other half.

    python -m validation calibrate results --out mine.yaml

Every number is found by asking the kernels' own predictions: no formula is written anew. Halves
are drawn inside each kernel from pairs of neighbours in size, so both have small and large cases.
A section whose fit to parts of the first half predicts the rest of that half no better stays as it was.
What nobody measured stays as the shipped calibration has it, or at its peak, and the file says so.
Needs no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import hardware_profiles as hp
from hardware_profiles.behaviour import COLLECTIVES, StepFit
from hardware_profiles.calibration import Calibration, TierFraction, for_accelerator
from validation.evidence import Evidence, trusted
from validation.heldout import Judged, Key, drawn_of, half_of, judge, key
from validation.saved import rounded
from validation.sections import Tried, as_before, fitted, limits, tried
from validation.stages import BEYOND, Section, Stage, cases, ideal, placed, stages

FEWEST = 4  # trusted cases that at least one stage must have; to fit to in all, and to judge by
WORSE = 0.01  # of an error over the one before: noise explains less
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
    kept: tuple[str, ...]  # stages that stay as they were, and why, in words
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


@dataclass(frozen=True, slots=True)
class Chosen:
    """What the half that is fitted to says of each stage."""

    step: StepFit
    fitted: tuple[Stage, ...]
    kept: Mapping[Section, Tried]  # stages that stay as they were
    limits: tuple[str, ...]


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
    chosen = _chosen(enough, half, base, evidence, seed)
    sections = [stage.section for stage in chosen.fitted]
    step, copied = _completed(chosen.step, sections, base)
    overlay = base.model_copy(update={"name": name, "step": step})
    whole, *rows = judge(evidence, half, overlay)
    used = {key(line) for s in chosen.fitted for line in cases(s, evidence)}
    told = _source(
        evidence, f"{len(used & half)} of {len(used)}", chosen, (*copied, _rest(base)), seed
    )
    overlay = _finished(overlay, evidence, chosen, base, rows, told)
    titles = tuple(s.title for s in chosen.fitted)
    left = sum(not trusted(line) for line in evidence.measured)
    others = sum(line.correct == "elsewhere" for line in evidence.trusted)
    return Calibrated(
        overlay=overlay,
        whole=whole,
        rows=tuple(rows),
        fitted=titles,
        kept=tuple(one.sentence for one in chosen.kept.values()),
        lacking=lacking + lost,
        at_limit=chosen.limits,
        untrusted=left,
        elsewhere=others,
        problems=evidence.problems,
    )


def _chosen(
    every: Sequence[Stage], half: set[Key], base: Calibration, evidence: Evidence, seed: int
) -> Chosen:
    """Each stage fitted to the half, or left as it was where parts of the half speak for that.

    At peaks nothing was known that could be kept. What is held out has no say: its errors are told
    of whatever was chosen.
    """
    step, kept, found_limits = base.step, dict[Section, Tried](), list[str]()
    assert step is not None
    parts, wholes = ([s for s in every if bool(s.over) is whole] for whole in (False, True))
    seen: set[Section] = set()
    for stage in (*parts, *_again(parts), *wholes):
        lines = [line for line in cases(stage, evidence) if key(line) in half]
        if base.source != PEAKS and stage.section not in seen:
            seen.add(stage.section)
            attempt = tried(stage, lines, step, base, evidence, seed)
            if attempt is not None and not attempt.better:
                kept[stage.section] = attempt
                step = as_before(step, stage.section, base)
        if stage.section in kept:
            continue
        found = fitted(stage, lines, step, base, evidence)
        found_limits += limits(stage, found)
        step = placed(step, stage.section, found)
    used = tuple(stage for stage in every if stage.section not in kept)
    return Chosen(step, used, kept, tuple(dict.fromkeys(found_limits)))


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


def _completed(
    step: StepFit, fitted: Sequence[Section], base: Calibration
) -> tuple[StepFit, list[str]]:
    """Where a machine is at its peaks, what is not measured as what is nearest to it; in words."""
    copied: list[str] = []
    if base.source != PEAKS:
        return step, copied
    dtypes = [section[1] for section in fitted if section[0] == "matmuls"]
    if dtypes and ("matmuls", "bf16") not in fitted:
        step = placed(step, ("matmuls", "bf16"), step.matmuls[dtypes[0]].model_dump())
        copied.append(f"matmul bf16 as {dtypes[0]}")
    links = [section[1] for section in fitted if section[0] == "collectives"]
    near = next((name for name in (*RINGS, *COLLECTIVES) if name in links), None)
    for name in COLLECTIVES if near else ():
        if ("collectives", name) not in fitted:
            step = placed(step, ("collectives", name), step.collectives[near or ""].model_dump())
            copied.append(f"{name} as {near}")
    return step, copied


def _finished(
    overlay: Calibration,
    evidence: Evidence,
    chosen: Chosen,
    base: Calibration,
    rows: Sequence[Judged],
    source: str,
) -> Calibration:
    """The plain fractions too, which closed forms take; validated."""
    step = overlay.step
    assert step is not None
    fitted = [stage.section for stage in chosen.fitted]
    dtypes = {section[1] for section in fitted if section[0] == "matmuls"}
    matmul = {d: _fraction(step.matmuls[d].efficiency) for d in step.matmuls if d in dtypes}
    known = {} if matmul and base.source == PEAKS else base.matmul
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
    overlay: Calibration, step: StepFit, evidence: Evidence, fitted: Sequence[Section]
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


def _source(evidence: Evidence, drawn: str, chosen: Chosen, rest: Sequence[str], seed: int) -> str:
    h = evidence.header
    titles = [stage.title for stage in chosen.fitted]
    stay = [one.sentence for one in chosen.kept.values()]
    hosts = ", ".join(f"{name} ({ranks} ranks)" for name, ranks in h.hosts.items())
    ran = ", ".join(f"{name} {version}" for name, version in h.versions.items())
    return (
        f"python -m validation calibrate, seed {seed}; measured {h.started} on {hosts}, "
        f"{', '.join(h.devices)}, {h.backend}, {ran}; profile {h.profile}; fitted to {drawn} "
        f"results: {', '.join(titles) or 'nothing'}; {'; '.join((*stay, *rest))}"
    )
