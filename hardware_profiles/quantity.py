"""Numbers with units, at the door: a profile says "400 Gb/s", the code sees 50e9 B/s.

Inside the product every number is in SI base units (bytes, seconds, FLOP/s, B/s, Hz, W). A field
declared with one of the types below accepts a plain number in those units or a text with a unit,
refuses NaN, infinity and the wrong unit, and questions a value that no machine can have, which is
nearly always a missing prefix.
"""

from __future__ import annotations

import math
import re
import reprlib
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, GetCoreSchemaHandler

PREFIXES = {
    "": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18,
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40,
    "m": 1e-3, "u": 1e-6, "µ": 1e-6, "μ": 1e-6, "n": 1e-9,
}  # fmt: skip

# Every spelling of a unit, and what one is worth in the base unit. Lower-case b is a bit.
SPELLINGS: dict[str, dict[str, float]] = {
    "B": {"B": 1, "bytes": 1, "byte": 1},
    "B/s": {"B/s": 1, "Bps": 1, "b/s": 1 / 8, "bit/s": 1 / 8, "bps": 1 / 8},
    "FLOP/s": {"FLOP/s": 1, "FLOPS": 1, "FLOPs": 1, "OP/s": 1, "OPS": 1},
    "Hz": {"Hz": 1},
    "W": {"W": 1},
    "s": {"s": 1},
    "USD/h": {"USD/h": 1, "$/h": 1},
}

# What a number without its prefix most often stands for.
MEANT = {
    "B": ("GB",),
    "B/s": ("GB/s", "Gb/s"),
    "FLOP/s": ("TFLOP/s",),
    "Hz": ("GHz", "MHz"),
    "W": ("kW",),
    "s": ("us",),
}

# A comma may part thousands ("1,979 TFLOP/s") but is no decimal point ("3,35 TB/s" is refused).
_NUMBER = re.compile(
    r"([+-]?(?:\d{1,3}(?:,\d{3})+(?:\.\d*)?|\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([^\s\d,.].*)?"
)
_LONGEST = 60


def parse(value: Any, unit: str) -> float:
    """The number that ``value`` means, in the base unit ``unit``.

    A plain number is taken as it stands; a text is a number, an SI or binary prefix, and a unit.

    Raises:
        ValueError: when the text is no number, or its unit does not measure what ``unit`` does.

    >>> parse("400 Gb/s", "B/s")
    50000000000.0
    >>> parse("80 GB", "B")
    80000000000.0
    >>> parse("1.5 us", "s")
    1.5e-06
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _float(value)
    text = value.strip() if isinstance(value, str) else ""
    match = _NUMBER.fullmatch(text) if len(text) <= _LONGEST else None
    if not match:
        shown = reprlib.repr(value)
        raise ValueError(
            f"{shown} is not a number; give one with its unit, such as {example(unit)}"
        )
    number = float(match[1].replace(",", "").replace("_", ""))
    return number * (1.0 if not match[2] else _worth(match[2], unit, value))


def _float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def example(unit: str) -> str:
    """A value of ``unit`` as a person would write it, for messages."""
    return {
        "B": "'80 GB'",
        "B/s": "'450 GB/s' or '400 Gb/s'",
        "FLOP/s": "'989.4 TFLOP/s'",
        "Hz": "'1.83 GHz'",
        "W": "'700 W'",
        "s": "'5 us'",
        "USD/h": "'2.50 USD/h'",
    }.get(unit, "'1'")


def _worth(text: str, unit: str, value: Any) -> float:
    spellings = SPELLINGS.get(unit, {})
    for spelling, worth in sorted(spellings.items(), key=lambda item: -len(item[0])):
        prefix = text.removesuffix(spelling)
        if prefix != text and prefix in PREFIXES:
            return PREFIXES[prefix] * worth
    known = ", ".join(spellings) or "no unit"
    raise ValueError(
        f"{value!r}: unit {text!r} is not a form of {unit}; "
        f"allowed: {known}, with a prefix such as k, M, G, T"
    )


@dataclass(frozen=True, slots=True)
class Quantity:
    """What a field measures: its unit, and the range outside which a value must be a slip."""

    unit: str
    low: float
    high: float

    def before(self, value: Any) -> float:
        """A file's text or number as a float in the base unit."""
        return parse(value, self.unit)

    def after(self, value: float) -> float:
        """The same value, once it is one that a machine can have.

        Raises:
            ValueError: for NaN, infinity, a negative number, or one that no machine has.
        """
        if not math.isfinite(value):
            raise ValueError(f"{value} is not a finite number; {self._allowed()}")
        if not self.low <= value <= self.high:
            # Here, because writing.py reads its numbers back with this very module.
            from hardware_profiles.writing import told

            shown = told(value, self.unit)
            raise ValueError(f"{shown} {self._why(value)}; {self._allowed()}")
        return value

    def _allowed(self) -> str:
        from hardware_profiles.writing import told

        return f"allowed: {told(self.low, self.unit)} to {told(self.high, self.unit)}"

    def _why(self, value: float) -> str:
        if value < 0 or (value == 0 and self.low > 0):
            return "must be above zero" if self.low > 0 else "must not be below zero"
        return f"is too {'small' if value < self.low else 'large'} to be real{self._meant(value)}"

    def _meant(self, value: float) -> str:
        """The same digits with a prefix that makes them a machine's; empty if none does."""
        likely = [
            f"{value:g} {unit}" for unit in MEANT.get(self.unit, ()) if self._fits(value, unit)
        ]
        return f", did you mean {' or '.join(likely)}?" if likely else ""

    def _fits(self, value: float, unit: str) -> bool:
        return self.low <= value * parse(f"1 {unit}", self.unit) <= self.high

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        # NaN and infinity pass pydantic here, so that they meet the message of ``after``.
        number = Annotated[float, Field(allow_inf_nan=True)]
        read = Annotated[number, BeforeValidator(self.before), AfterValidator(self.after)]
        return handler.generate_schema(read)

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        number = {"type": "number", "minimum": self.low, "maximum": self.high}
        text = {
            "type": "string",
            "description": f"a number and a unit, such as {example(self.unit)}",
        }
        return {"anyOf": [number, text], "unit": self.unit}


Bytes = Annotated[float, Quantity("B", 1, 1e18)]
MemoryBytes = Annotated[float, Quantity("B", 1e8, 1e15)]
Bandwidth = Annotated[float, Quantity("B/s", 1e6, 1e18)]
FlopRate = Annotated[float, Quantity("FLOP/s", 1e6, 1e20)]  # bf16 by a CPU: some 1e8
Frequency = Annotated[float, Quantity("Hz", 1e7, 2e10)]
Power = Annotated[float, Quantity("W", 1, 1e6)]
Latency = Annotated[float, Quantity("s", 0, 1)]
Price = Annotated[float, Quantity("USD/h", 0, 1e4)]
