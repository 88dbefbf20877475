"""Units: SI base units inside, people's units at the edges, nothing in between.

Every number in this package is seconds, bytes, FLOP/s, B/s or a count, and every public function takes numbers
or numpy arrays of them and broadcasts. The aliases below say in a signature what a number measures; ``show``
writes one for a person and ``parse`` reads one that a person wrote.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

Num = float | NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Unit:
    """Exponents of second and byte; a FLOP and a token are counts."""

    s: int = 0
    B: int = 0


Count = Annotated[Num, Unit()]
Seconds = Annotated[Num, Unit(s=1)]
Bytes = Annotated[Num, Unit(B=1)]
BytesPerSecond = Annotated[Num, Unit(B=1, s=-1)]
FlopPerSecond = Annotated[Num, Unit(s=-1)]
FlopPerByte = Annotated[Num, Unit(B=-1)]

GIB = 2.0**30
MIB = 2.0**20
KIB = 2.0**10
DAY = 86400.0
YEAR = 365 * DAY

_STEPS = [(1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, "")]
_SMALL = [(1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"), (1e-12, "p")]


def show(value: float, unit: str = "", digits: int = 3) -> str:
    """``value`` for a person: three significant figures, a prefix and the unit.

    >>> show(1.234e-3, "s")
    '1.23 ms'
    >>> show(412.4e12, "FLOP/s")
    '412 TFLOP/s'
    >>> show(2475)
    '2,475'
    """
    value = float(value)
    if not math.isfinite(value):
        return "–" if math.isnan(value) else ("∞" if value > 0 else "-∞")
    if unit in ("", "token"):
        return f"{_count(value, digits)}{' ' + unit + 's' if unit else ''}"
    if unit == "s" and abs(value) >= 60:
        return _long(value, digits)
    if value == 0:
        return f"0 {unit}"
    scale, prefix = _prefix(abs(value), unit, digits)
    return f"{_figures(value / scale, digits)} {prefix}{unit}"


def parse(text: Any, unit: str) -> float:
    """The number a person wrote, in the base unit ``unit``: ``parse("400 Gb/s", "B/s")`` is 50e9.

    Raises:
        ValueError: when it is no number or its unit measures something else.
    """
    from hardware_profiles.quantity import parse as read

    return read(text, unit)


def _prefix(size: float, unit: str, digits: int) -> tuple[float, str]:
    steps = _SMALL if unit == "s" else _STEPS
    rounded = float(f"{size:.{digits}g}")
    return next(((scale, prefix) for scale, prefix in steps if rounded >= scale), steps[-1])


def _count(value: float, digits: int) -> str:
    if value == 0:
        return "0"
    if abs(value) >= 1e15 or abs(value) < 1e-3:
        return f"{value:.{digits - 1}e}"
    if abs(value) >= 1e6:
        scale, prefix = _prefix(abs(value), "", digits)
        return f"{_figures(value / scale, digits)} {prefix}"
    if abs(value) >= 10 ** (digits - 1):
        return f"{round(value):,}"
    return _figures(value, digits)


def _figures(value: float, digits: int) -> str:
    text = f"{value:.{digits}g}"
    return f"{float(text):.0f}" if "e" in text else text


def _long(seconds: float, digits: int) -> str:
    for size, name in ((YEAR, "years"), (DAY, "days"), (3600.0, "h"), (60.0, "min")):
        if abs(seconds) >= size:
            return f"{_figures(seconds / size, digits)} {name}"
    raise AssertionError(seconds)
