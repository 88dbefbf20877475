"""What a folder of results says: how far predictions are off, where, and what may be behind it.

    python -m validation report results [--json|--html]

Errors are predicted / measured - 1. Only results that their run checked and found right count, and
those of other programs; the others are listed, and trusted for nothing. Needs no torch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np

from hardware_profiles.calibration import Calibration
from validation.case import Suite
from validation.causes import Cause, Facts, causes
from validation.evidence import Evidence, gather, predicted, trusted
from validation.profile import Profile
from validation.rates import Rate, Start, rates, starts
from validation.results import PARTS, Measured, Value
from validation.stragglers import Straggler, stragglers

SIZES = ((2**16, "< 64 KB"), (2**20, "64 KB–1 MB"), (2**26, "1–64 MB"), (np.inf, "≥ 64 MB"))


@dataclass(frozen=True, slots=True)
class Row:
    """One part of one case."""

    case: str
    kernel: str
    part: str
    parameters: dict[str, Value]
    size: int
    stride: int
    seconds: float
    p10: float
    p90: float
    repeats: int
    spread: float
    predicted: float | None
    error: float | None
    nbytes: float
    flops: float
    correct: str  # yes, no, unchecked, elsewhere: in another program
    trusted: bool


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors of trusted results of one kernel, part and size."""

    kernel: str
    part: str
    bytes: str  # of the array, or through memory; all: every size
    cases: int
    median: float  # of |error|
    bias: float  # median of the error with its sign
    worst: float
    spread: float  # of the measurements themselves


@dataclass(frozen=True, slots=True)
class Overlap:
    """How much of the shorter of math and comms was hidden behind the longer, in one case."""

    case: str
    kernel: str
    math: float  # [s]
    comms: float
    both: float

    @property
    def hidden(self) -> float:
        """1: all that can be; 0: one after the other; below: they are in each other's way."""
        return (self.math + self.comms - self.both) / min(self.math, self.comms)

    @property
    def of_sum(self) -> float:
        """Both at once, over one after the other: above 1 where they are in each other's way."""
        return self.both / (self.math + self.comms)


@dataclass(frozen=True, slots=True)
class Failure:
    """A case that ended with an error."""

    case: str
    rank: int
    reason: str


@dataclass(frozen=True)
class Report:
    """Everything that is shown; ``plain`` is it as JSON has it."""

    environment: dict[str, Any]
    rows: tuple[Row, ...]
    errors: tuple[Errors, ...]
    overlaps: tuple[Overlap, ...]
    rates: tuple[Rate, ...]
    starts: tuple[Start, ...]
    causes: tuple[Cause, ...]
    stragglers: tuple[Straggler, ...]
    failed: tuple[Failure, ...]
    untrusted: tuple[str, ...]  # cases that are wrong, or that nobody checked
    unpredicted: tuple[str, ...]  # cases that no formula speaks of
    problems: tuple[str, ...]  # lines that could not be used, runs that did not end

    @property
    def summary(self) -> dict[str, Any]:
        """The numbers that come first."""
        known = [abs(row.error) for row in self.rows if row.trusted and row.error is not None]
        return {
            "cases": len({row.case for row in self.rows}),
            "results": len(self.rows),
            "trusted": sum(row.trusted for row in self.rows),
            "elsewhere": sum(row.trusted and row.correct == "elsewhere" for row in self.rows),
            "failed": len(self.failed),
            "median_error": float(np.median(known)) if known else None,
            "median_spread": _median([row.spread for row in self.rows if row.trusted]),
            "slow": [rate.sentence for rate in self.rates if rate.slow],
        }

    @property
    def plain(self) -> dict[str, Any]:
        """Plain lists and numbers, with every sentence."""
        data = asdict(self) | {"summary": self.summary}
        data["rates"] = [asdict(r) | {"slow": r.slow, "sentence": r.sentence} for r in self.rates]
        data["overlaps"] = [
            asdict(one) | {"hidden": one.hidden, "of_sum": one.of_sum} for one in self.overlaps
        ]
        for name in ("starts", "stragglers"):
            data[name] = [asdict(one) | {"sentence": one.sentence} for one in getattr(self, name)]
        return data


def report(*places: Path, run: str = "", overlay: Calibration | None = None) -> Report:
    """The report on files, or on folders with ``results.jsonl``.

    Args:
        run: only runs under the conditions of the one whose name begins so.
        overlay: predict anew with this calibration, instead of taking what the run predicted.

    Raises:
        ValueError: no results, or runs under different conditions; see ``evidence.gather``.
    """
    evidence = gather(*places, run=run)
    return judged(evidence if overlay is None else anew(evidence, overlay))


def anew(evidence: Evidence, overlay: Calibration) -> Evidence:
    """The same results, predicted with another calibration."""
    profile = Profile(evidence.profile.cluster, overlay)
    lines = (m.model_copy(update={"predicted": predicted(m, profile)}) for m in evidence.measured)
    headers = (h.model_copy(update={"overlay": overlay.name}) for h in evidence.headers)
    fields = {
        field: getattr(evidence, field) for field in ("failed", "ends", "problems", "profile")
    }
    return Evidence(headers=tuple(headers), measured=tuple(lines), **fields)


def judged(evidence: Evidence) -> Report:
    """The report on some evidence."""
    reached, late, slow = rates(evidence), starts(evidence), stragglers(evidence)
    rows = tuple(map(_row, evidence.measured))
    return Report(
        environment=_environment(evidence),
        rows=rows,
        errors=tuple(errors(rows)),
        overlaps=tuple(overlaps(rows)),
        rates=tuple(reached),
        starts=tuple(late),
        causes=tuple(causes(Facts(evidence, reached, late, slow))),
        stragglers=tuple(slow),
        failed=tuple(Failure(f.case, f.rank, f.reason) for f in evidence.failed),
        untrusted=_cases(rows, lambda row: not row.trusted),
        unpredicted=_cases(rows, lambda row: row.predicted is None),
        problems=evidence.problems + tuple(_unfinished(evidence)),
    )


def errors(rows: Iterable[Row]) -> list[Errors]:
    """By kernel and part, then the same by size; in the order of the rows."""
    found: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for row in rows:
        if row.trusted and row.error is not None:
            for size in ("all", _bucket(row.nbytes)):
                found[row.kernel, row.part, size].append(row)
    order = ["all", *(name for _, name in SIZES)]
    kinds = list(dict.fromkeys((kernel, part) for kernel, part, _ in found))
    keys = [(*kind, size) for kind in kinds for size in order if (*kind, size) in found]
    return [_errors(*key, found[key]) for key in keys]


def overlaps(rows: Iterable[Row]) -> list[Overlap]:
    """One for each trusted case that was measured alone, alone, and together."""
    times: dict[str, dict[str, Row]] = defaultdict(dict)
    for row in rows:
        if row.trusted:
            times[row.case][row.part] = row
    return [
        Overlap(case, one["both"].kernel, *(one[part].seconds for part in PARTS))
        for case, one in times.items()
        if set(one) == set(PARTS)
    ]


def _errors(kernel: str, part: str, size: str, rows: Sequence[Row]) -> Errors:
    off = np.array([row.error for row in rows], float)
    return Errors(
        kernel=kernel,
        part=part,
        bytes=size,
        cases=len(rows),
        median=float(np.median(np.abs(off))),
        bias=float(np.median(off)),
        worst=float(off[np.argmax(np.abs(off))]),
        spread=_median([row.spread for row in rows]) or 0.0,
    )


def _bucket(nbytes: float) -> str:
    return next(name for limit, name in SIZES if nbytes < limit)


def _row(line: Measured) -> Row:
    return Row(
        case=line.case,
        kernel=line.kernel,
        part=line.part,
        parameters=dict(line.parameters),
        size=line.size,
        stride=line.stride,
        seconds=line.seconds,
        p10=line.p10,
        p90=line.p90,
        repeats=line.repeats,
        spread=line.spread,
        predicted=line.predicted,
        error=line.error if line.seconds > 0 else None,
        nbytes=line.nbytes,
        flops=line.flops,
        correct=line.correct,
        trusted=trusted(line),
    )


def _median(values: Sequence[float]) -> float | None:
    return float(np.median(values)) if values else None


def _cases(rows: Iterable[Row], which: Callable[[Row], bool]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(row.case for row in rows if which(row)))


def _unfinished(evidence: Evidence) -> Iterable[str]:
    ended = {end.run: end.outcome for end in evidence.ends}
    for header in evidence.headers:
        if header.suite not in get_args(Suite):
            continue  # imported from another program, which writes no end
        if header.run not in ended:
            yield f"run {header.run}: did not end; what it measured until then is here"
        elif ended[header.run] == "aborted":
            yield f"run {header.run}: was aborted; what it measured until then is here"


def _environment(evidence: Evidence) -> dict[str, Any]:
    header = evidence.header
    told: tuple[str, ...] = (
        "started",
        "suite",
        "world",
        "device",
        "backend",
        "hosts",
        "devices",
        "versions",
    )
    told += ("clocks", "variables", "profile", "overlay", "foreign")
    found = {name: getattr(header, name) for name in told}
    return found | {"left_out": evidence.left_out, "runs": [h.run for h in evidence.headers]}
