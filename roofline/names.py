"""Names that people type: known, or refused with the nearest right one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

FEW = 8  # choices that a person takes in at a glance: then all are named

Row = TypeVar("Row")


def choose(field: str, name: str, rows: Mapping[str, Row]) -> Row:
    """The row called ``name``.

    Raises:
        ValueError: when there is none, naming the field, the value and the nearest choices.

    >>> choose("size", "lrage", {"small": 1, "large": 2})
    Traceback (most recent call last):
    ValueError: size: 'lrage' is not one; the nearest is large; allowed: small, large
    """
    if name not in rows:
        from hardware_profiles.errors import nearest

        near = nearest(name, rows)
        if len(rows) <= FEW and not near.startswith("allowed"):
            near += f"; allowed: {', '.join(rows)}"
        raise ValueError(f"{field}: {name!r} is not one; {near}")
    return rows[name]
