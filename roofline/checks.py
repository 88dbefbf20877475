"""What numbers may be: one test per field, cheap on a million points, one sentence when it fails.

    at_least("degree", 0, 1)     degree: 0 is refused; allowed: 1 and more
    whole("stages", 7.5)         stages: 7.5 is refused; allowed: whole numbers; the nearest: 7 and 8

NaN and text are never allowed. Every test hands back the value as the formulas take it: a number,
or an array of floats where a list or an array was given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from roofline.units import Num


def numbers(field: str, value: Any) -> Num:
    """``value`` as a number or an array of them.

    Raises:
        ValueError: text, None, or anything else that is no number.

    >>> numbers("tokens", [1, 2])
    array([1., 2.])
    """
    if type(value) is float or type(value) is int:
        return value
    array = np.asarray(value)
    if array.dtype.kind not in "iuf":
        shown = repr(value)
        shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
        raise ValueError(f"{field}: {shown} is refused; allowed: a number, or an array of them")
    floats: Num = array.astype(float, copy=False)
    return floats if array.ndim else float(floats)


def at_least(field: str, value: Any, least: float) -> Num:
    """``value`` when nothing in it is below ``least``, or NaN.

    Raises:
        ValueError: naming the first that is.

    >>> at_least("chunks", 0, 1)
    Traceback (most recent call last):
    ValueError: chunks: 0 is refused; allowed: 1 and more
    """
    found = numbers(field, value)
    if isinstance(found, float | int):
        if not found >= least:
            raise ValueError(_refused(field, found, f"{least:g} and more"))
    elif found.size and not found.min() >= least:
        raise ValueError(_refused(field, _first(found, ~(found >= least)), f"{least:g} and more"))
    return found


def all_at_least(least: float, **values: Any) -> None:
    """Pass when none of the named ``values`` is below ``least``.

    Raises:
        ValueError: naming the first that is.
    """
    for field, value in values.items():
        at_least(field, value, least)


def given_at_least(least: float, **values: Any) -> None:
    """The same, where None is a value left out."""
    all_at_least(least, **{field: value for field, value in values.items() if value is not None})


def above(field: str, value: Any, limit: float = 0.0) -> Num:
    """``value`` when all of it is greater than ``limit``.

    Raises:
        ValueError: naming the first that is not.
    """
    found = numbers(field, value)
    if isinstance(found, float | int):
        if not found > limit:
            raise ValueError(_refused(field, found, f"above {limit:g}"))
    elif found.size and not found.min() > limit:
        raise ValueError(_refused(field, _first(found, ~(found > limit)), f"above {limit:g}"))
    return found


def between(field: str, value: Any, least: float, most: float) -> Num:
    """``value`` when all of it lies from ``least`` to ``most``.

    Raises:
        ValueError: naming the first that does not.
    """
    found = numbers(field, value)
    array = np.asarray(found)
    if array.size and not (array.min() >= least and array.max() <= most):
        wrong = _first(array, ~((array >= least) & (array <= most)))
        raise ValueError(_refused(field, wrong, f"{least:g} to {most:g}"))
    return found


def whole(field: str, value: Any, least: float = 1.0) -> Num:
    """``value`` when all of it is whole and not below ``least``.

    Raises:
        ValueError: naming the first that is not, and the nearest that are.
    """
    found = at_least(field, value, least)
    if isinstance(found, int) or (isinstance(found, float) and found == np.floor(found)):
        return found
    array = np.asarray(found)
    odd = array != np.floor(array)
    if odd.any():
        wrong = _first(array, odd)
        near = f"whole numbers; the nearest: {np.floor(wrong):,.0f} and {np.ceil(wrong):,.0f}"
        raise ValueError(_refused(field, wrong, near))
    return found


def one_of(field: str, value: Any, allowed: Sequence[float]) -> Num:
    """``value`` when all of it is among the few numbers ``allowed``.

    Raises:
        ValueError: naming the first that is not.
    """
    found = numbers(field, value)
    if isinstance(found, float | int):
        if found not in allowed:
            raise ValueError(_refused(field, found, ", ".join(f"{each:g}" for each in allowed)))
        return found
    wrong = ~np.isin(found, allowed)
    if wrong.any():
        known = ", ".join(f"{each:g}" for each in allowed)
        raise ValueError(_refused(field, _first(found, wrong), known))
    return found


def _first(values: Any, wrong: Any) -> float:
    return float(values.flat[int(np.argmax(wrong))])


def _refused(field: str, value: float, allowed: str) -> str:
    return f"{field}: {value:g} is refused; allowed: {allowed}"
