"""Numbers back out of the door: 4e11 B/s becomes "400 GB/s" and reads back as the same number."""

from __future__ import annotations

import math
from typing import Any

from pydantic import BaseModel

from hardware_profiles.quantity import PREFIXES, Quantity, parse

_STEPS = ("E", "P", "T", "G", "M", "k", "")
_STEPS_OF = {"s": ("", "m", "u", "n"), "W": ("",), "USD/h": ("",)}
_BINARY = ("Gi", "Mi", "Ki")


def written(value: float, unit: str) -> str:
    """``value`` with a prefix and ``unit``, in as few digits as ``parse`` needs to give it back.

    >>> written(4e11, "B/s"), written(50 * 2.0**20, "B"), written(1.83e9, "Hz")
    ('400 GB/s', '50 MiB', '1.83 GHz')
    >>> written(parse("1.9 us", "s"), "s")
    '1.9 us'
    """
    if not math.isfinite(value) or value == 0:
        return f"{value:g} {unit}"
    texts = [_text(value, prefix, unit) for prefix in _prefixes(value, unit)]
    return min(texts, key=len)


def told(value: float, unit: str) -> str:
    """``value`` for a message: with a prefix, to five digits.

    >>> told(12.8e12, "B/s"), told(68.492e9, "B/s"), told(1e300, "B")
    ('12.8 TB/s', '68.492 GB/s', '1e+300 B')
    """
    if not (math.isfinite(value) and 1e-12 <= abs(value) <= 1e22):
        return f"{value:g} {unit}"
    step = PREFIXES[_prefixes(float(f"{value:.5g}"), unit)[-1]]
    return written(float(f"{value / step:.5g}") * step, unit)  # a product, as ``parse`` has it


def fields(model: BaseModel) -> dict[str, Any]:
    """A model as a file states it: quantities with their units, defaults left out."""
    return {
        field: _value(getattr(model, field), unit_of(type(model), field))
        for field, about in type(model).model_fields.items()
        if getattr(model, field) != about.get_default(call_default_factory=True)
    }


def _prefixes(value: float, unit: str) -> list[str]:
    """The decimal prefix that leaves 1 to 1000; for bytes also a binary one that comes out even."""
    steps = _STEPS_OF.get(unit, _STEPS)
    decimal = next((p for p in steps if abs(value) >= PREFIXES[p] * (1 - 1e-9)), steps[-1])
    even = [p for p in _BINARY if unit == "B" and value % PREFIXES[p] == 0]
    return [*even[:1], decimal]


def _text(value: float, prefix: str, unit: str) -> str:
    for digits in range(1, 18):
        number = f"{value / PREFIXES[prefix]:.{digits}g}"
        number = f"{float(number):.0f}" if "e+" in number else number
        text = f"{number} {prefix}{unit}"
        if parse(text, unit) == value:
            return text
    return f"{value!r} {unit}"  # no decimal number times the prefix is this one


def _value(value: Any, unit: str) -> Any:
    if isinstance(value, BaseModel):
        return fields(value)
    if isinstance(value, dict):
        return {key: _value(inner, unit) for key, inner in value.items()}
    if isinstance(value, tuple):
        return [_value(inner, unit) for inner in value]
    return written(value, unit) if unit and isinstance(value, float) else value


def unit_of(model: type[BaseModel], field: str) -> str:
    """The unit of a field's ``Quantity``, wherever in its type that stands; empty if none."""
    about = model.model_fields[field]
    marks = [*about.metadata, *_marks(about.annotation)]
    return next((mark.unit for mark in marks if isinstance(mark, Quantity)), "")


def _marks(annotation: Any) -> list[Any]:
    inside = [mark for part in getattr(annotation, "__args__", ()) for mark in _marks(part)]
    return [*getattr(annotation, "__metadata__", ()), *inside]
