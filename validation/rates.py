"""What large cases reach of the profile's rates: which tier, matmul rate or memory is slow.

    fraction = bound at the profile's peaks / measured

A curve is one kernel on one kind of group, by size. Its plateau begins where the fraction stays
within a tenth of what the largest cases reach; starting costs count for nothing from there on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from hardware_profiles.writing import told
from roofline.units import show
from validation.bounds import TALKING, Point, bound, crosses
from validation.evidence import Evidence
from validation.results import Measured

FLAT = 0.9  # of the largest cases' fraction: the plateau
USUAL = 0.7  # of a datasheet's rate: less is slow where no calibration says what is usual
SLOW = 0.8  # of what a calibration expects: less is slow
LATE = 2.0  # times what is predicted for a small message: a slow start
SMALL = 64 * 2**10  # message in which starting is nearly all [B]
LARGE = 1e6  # message from which a rate shows at all [B]
OVER = 1.05  # of a rate: what is more is faster than the profile has it


@dataclass(frozen=True, slots=True)
class Rate:
    """One curve's plateau against one rate of the profile."""

    kernel: str
    variant: str  # data type or operation; empty for collectives
    what: str  # whose rate: a tier's technology, the peak of a data type, memory bandwidth
    tier: str  # name of the tier; empty for what is on the chip
    size: int
    stride: int
    stated: float
    unit: str  # B/s or FLOP/s
    fraction: float
    expected: float | None  # the same of the prediction
    since: float  # where the plateau begins: bytes, or FLOPs of matmuls
    cases: int
    calibrated: bool  # the prediction is a calibration's, not the peak itself

    @property
    def slow(self) -> bool:
        """Less than is usual."""
        if self.calibrated and self.expected is not None:
            return self.fraction < SLOW * self.expected
        return self.fraction < USUAL

    @property
    def fast(self) -> bool:
        """More than the profile says there is."""
        return self.fraction > OVER

    @property
    def sentence(self) -> str:
        """``NVLink 4 all-gather (8 ranks, 1 apart) reaches 61% of 450 GB/s from 64 MB on``."""
        subject, of = f"{self.kernel} {self.variant}", f"the {self.what}, "
        if self.tier:
            subject = f"{self.what} {self.kernel} ({self.size} ranks, {self.stride} apart)"
            of = ""
        sized = _size(self.since) if self.unit == "B/s" else show(self.since, "FLOP")
        beside = f"; {self.expected:.0%} predicted" if self.expected and self.calibrated else ""
        rate = told(self.stated, self.unit)
        place = f"from {sized} on" if self.cases > 1 else f"at {sized}"
        comma = "" if self.tier else ","
        return f"{subject} reaches {self.fraction:.0%} of {of}{rate}{comma} {place}{beside}"


@dataclass(frozen=True, slots=True)
class Start:
    """A small message that takes far longer than predicted: its start is slow."""

    kernel: str
    size: int
    stride: int
    nbytes: float
    seconds: float
    predicted: float

    @property
    def sentence(self) -> str:
        """In words."""
        return (
            f"{self.kernel} of {_size(self.nbytes)} ({self.size} ranks, {self.stride} apart) takes "
            f"{show(self.seconds, 's')}, {show(self.predicted, 's')} predicted"
        )


def rates(evidence: Evidence) -> list[Rate]:
    """One for each curve of trusted results, in the order of the file.

    A group that crosses several tiers is charged to the one that is slowest for it, by what groups
    inside each tier alone reach there.
    """
    cluster = evidence.profile.cluster
    known: dict[tuple[str, str], float] = {}
    alone = [bound(line, cluster) for line in evidence.trusted if crosses(line, cluster) < 2]
    for rate in _curves(alone, calibrated=False):
        key = rate.kernel, rate.tier
        known[key] = min(rate.fraction, known.get(key, 1.0))
    points = [bound(line, cluster, known) for line in evidence.trusted]
    return _curves(points, calibrated=bool(evidence.header.overlay))


def _curves(points: Iterable[Point | None], *, calibrated: bool) -> list[Rate]:
    curves: dict[tuple[object, ...], list[Point]] = defaultdict(list)
    for point in points:
        if point is not None:
            line = point.line
            key = (line.kernel, _variant(line), point.what, line.size, line.stride)
            curves[key].append(point)
    return [_plateau(curve, calibrated) for curve in curves.values() if _shows(curve)]


def _shows(curve: Sequence[Point]) -> bool:
    """False of small messages alone: starting is what they cost, whatever the rate."""
    largest = max(point.amount for point in curve)
    return curve[0].line.kernel not in TALKING or largest >= LARGE


def starts(evidence: Evidence) -> list[Start]:
    """Small messages that take more than twice what a calibration predicts, the worst first."""
    if not evidence.header.overlay:
        return []
    late = [
        Start(line.kernel, line.size, line.stride, line.nbytes, line.seconds, line.predicted)
        for line in evidence.trusted
        if line.kernel in TALKING
        and line.nbytes <= SMALL
        and line.predicted
        and line.seconds > LATE * line.predicted
    ]
    return sorted(late, key=lambda start: start.predicted / start.seconds)


def _variant(line: Measured) -> str:
    if line.kernel in TALKING:
        return ""
    told_of = ("op", "form") if line.kernel == "memory" else ("dtype",)
    return " ".join(str(line.parameters[n]) for n in told_of if n in line.parameters)


def _plateau(points: Sequence[Point], calibrated: bool) -> Rate:
    ordered = sorted(points, key=lambda point: point.amount)
    largest = ordered[-max(1, len(ordered) // 3) :]
    floor = FLAT * float(np.median([point.fraction for point in largest]))
    flat = list(largest)
    for point in reversed(ordered[: -len(largest)]):
        if point.fraction < floor:
            break
        flat.insert(0, point)
    first = flat[0]
    said = [p.bound / p.line.predicted for p in flat if p.line.predicted]
    return Rate(
        kernel=first.line.kernel,
        variant=_variant(first.line),
        what=first.what,
        tier=first.tier,
        size=first.line.size,
        stride=first.line.stride,
        stated=first.stated,
        unit=first.unit,
        fraction=float(np.median([point.fraction for point in flat])),
        expected=float(np.median(said)) if said else None,
        since=first.amount,
        cases=len(flat),
        calibrated=calibrated,
    )


def _size(nbytes: float) -> str:
    """In powers of two, as sizes of messages are told."""
    for unit in ("B", "KB", "MB"):
        if nbytes < 1024:
            return f"{nbytes:.4g} {unit}"
        nbytes /= 1024
    return f"{nbytes:.4g} GB"
