"""The door of every closed form: lists become arrays, and long sweeps go through in pieces.

A formula on a million points makes temporaries of 8 MB each, and much of its time goes into memory
that is fetched, cleared and given back. In pieces it needs little of that, and what comes out is the
same, point by point:

    @pointwise
    def bound(work, machine, degree): ...

Arguments and results may be numbers, arrays, or dataclasses, tuples and dicts that hold them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np

BLOCK = 131072  # points: 1 MiB an array; smaller ones cost more in calls than the cache saves

# glibc hands a large array back to the system when it is freed, and clears fresh memory for the
# next one. It stops doing so for sizes up to that of the largest that was ever freed: this one.
_LARGE = np.empty(30 << 20, np.uint8)
del _LARGE

_LEAVES = {float, int, bool, str, type(None), np.float64}  # what holds no array

P = ParamSpec("P")
R = TypeVar("R")


def leaf(kind: type[R]) -> type[R]:
    """A class that holds no array: looks for them pass it by."""
    _LEAVES.add(kind)
    return kind


def pointwise(formula: Callable[P, R]) -> Callable[P, R]:
    """``formula``, which treats every point alone, taking lists, and long sweeps piece by piece.

    Raises:
        ValueError: from the result, when arguments are arrays whose shapes do not go together.
    """

    @wraps(formula)
    def through(*args: P.args, **kwargs: P.kwargs) -> R:
        given: Any = (args, kwargs)
        arrays: list[Any] = []
        listed = gather(given, arrays)
        if not arrays:
            return formula(*args, **kwargs)
        if listed:
            given = changed(given, _listed)
            arrays.clear()
            gather(given, arrays)
        points = _points(arrays)
        if points <= BLOCK:
            return formula(*given[0], **given[1])
        return _piecewise(formula, given, points)  # type: ignore[no-any-return]

    return through


def _piecewise(formula: Callable[..., Any], given: Any, points: int) -> Any:
    """Call by call over the pieces; each result is copied to its place in the whole one."""

    def piece(start: int) -> Any:
        def cut(array: Any) -> Any:
            return array[start : start + BLOCK] if array.ndim else array

        args, kwargs = changed(given, cut)
        return formula(*args, **kwargs)

    first = piece(0)
    parts = list(_distinct(first, BLOCK))
    whole = [np.empty(points, part.dtype) for part in parts]
    for out, part in zip(whole, parts, strict=True):
        out[:BLOCK] = part
    for start in range(BLOCK, points, BLOCK):
        stop = min(start + BLOCK, points)
        for out, part in zip(whole, _distinct(piece(start), stop - start), strict=True):
            out[start:stop] = part
    places = dict(zip(map(id, parts), whole, strict=True))
    return changed(first, lambda array: places.get(id(array), array))


def _points(arrays: list[Any]) -> int:
    """Points of a sweep along one axis; 0 where there is none, or a grid."""
    shapes = {array.shape for array in arrays if array.ndim}
    if len(shapes) > 1:
        try:
            np.broadcast_shapes(*shapes)
        except ValueError:
            said = " and ".join(str(shape) for shape in sorted(shapes))
            raise ValueError(f"arrays of the shapes {said} do not go together") from None
    return int(shape[0]) if len(shapes) == 1 and len(shape := shapes.pop()) == 1 else 0


@cache
def _names(kind: type) -> tuple[str, ...]:
    """Fields of a dataclass; of any other class none."""
    return tuple(field.name for field in fields(kind)) if is_dataclass(kind) else ()


def gather(value: Any, found: list[Any]) -> bool:
    """Append every array in ``value``, and every list of numbers; True if there is such a list."""
    if type(value) in _LEAVES:
        return False
    if isinstance(value, np.ndarray):
        found.append(value)
        return False
    if isinstance(value, list) and _is_numbers(value):
        found.append(value)
        return True
    listed = False
    for inner in _inside(value):
        if type(inner) not in _LEAVES:
            listed |= gather(inner, found)
    return listed


def _is_numbers(value: list[Any]) -> bool:
    return bool(value) and all(
        isinstance(each, int | float | np.number) or (isinstance(each, list) and _is_numbers(each))
        for each in value
    )


def _inside(value: Any) -> tuple[Any, ...]:
    if isinstance(value, tuple | list):
        return tuple(value)
    if isinstance(value, dict):
        return tuple(value.values())
    return tuple([getattr(value, name) for name in _names(value.__class__)])


def _distinct(value: Any, points: int) -> Iterator[Any]:
    """Every array of ``points`` in a result, once, however many of its parts share it."""
    found: list[Any] = []
    gather(value, found)
    yield from {id(a): a for a in found if np.shape(a) == (points,)}.values()


def _listed(array: Any) -> Any:
    return np.asarray(array, float) if isinstance(array, list) else array


def changed(value: Any, change: Callable[[Any], Any]) -> Any:
    """``value`` with its arrays replaced by what ``change`` makes of them; the rest is shared."""
    return _changed(value, change, {})


def _changed(part: Any, change: Callable[[Any], Any], memo: dict[int, Any]) -> Any:
    if type(part) in _LEAVES:
        return part
    if id(part) not in memo:  # with the part itself, so that its id stays taken
        memo[id(part)] = part, _changed_inside(part, change, memo)
    return memo[id(part)][1]


def _changed_inside(part: Any, change: Callable[[Any], Any], memo: dict[int, Any]) -> Any:
    if isinstance(part, np.ndarray) or (isinstance(part, list) and _is_numbers(part)):
        return change(part)
    if isinstance(part, tuple | list):
        inner = [_changed(each, change, memo) for each in part]
        if all(a is b for a, b in zip(inner, part, strict=True)):
            return part
        return type(part)(*inner) if hasattr(part, "_fields") else type(part)(inner)
    if isinstance(part, dict):
        return {key: _changed(each, change, memo) for key, each in part.items()}
    moved = {}
    for name in _names(part.__class__):
        each = getattr(part, name)
        if type(each) not in _LEAVES and (new := _changed(each, change, memo)) is not each:
            moved[name] = new
    return replace(part, **moved) if moved else part
