"""Each different row once: a table of layouts repeats itself in the columns that a formula reads.

Ten thousand layouts hold a few hundred micro-batches and a few dozen data-parallel groups. So a
formula is evaluated where its columns differ, and what it finds is spread over the rows:

    found = once(formula, without(job, "batch", "zero"))

What ``without`` and ``only`` leave out cannot be read: a formula that tries, raises. All other
columns tell rows apart. Numbers, short tables and columns
in which little repeats go straight through. The results are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from roofline.blocks import changed, gather, leaf
from roofline.layout import Layout

if TYPE_CHECKING:
    from roofline.job import Job

FEW = 1024  # rows that are quicker evaluated than told apart
WORTH = 2  # rows per different one, at least
LOOKED_UP = 1 << 20  # codes up to here have a place each in a table; others are sorted

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T", "Job", Layout)


@leaf
class _LeftOut:
    """In the place of a column; whoever computes with it, or asks whether it is true, fails."""

    def __init__(self, name: str) -> None:
        self.name = name

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise TypeError(f"{self.name}: read by a formula that it was left out for")

    __array__ = __array_ufunc__ = __array_function__ = __bool__ = __float__ = _refuse
    __add__ = __sub__ = __mul__ = __truediv__ = _refuse
    __radd__ = __rsub__ = __rmul__ = __rtruediv__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = _refuse
    __hash__ = object.__hash__


_LEFT_OUT: dict[str, Any] = {field.name: _LeftOut(field.name) for field in fields(Layout)}


def without(table: T, *names: str) -> T:
    """A layout, or a job with its layout, for formulas that do not read these fields of it."""
    if not isinstance(table, Layout):
        return replace(table, layout=without(table.layout, *names))
    return replace(table, **{name: _LEFT_OUT[name] for name in names})


def only(table: T, *names: str) -> T:
    """The same for formulas that read no other fields of the layout than these."""
    return without(table, *[name for name in _LEFT_OUT if name not in names])


def once(formula: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """``formula`` of the arguments, each different row of their columns evaluated once.

    Args:
        formula: treats every row alone; takes and returns numbers, arrays, or dataclasses, tuples
            and dicts of them.
    """
    given: list[Any] = []
    if gather((args, kwargs), given):  # lists are not columns
        return formula(*args, **kwargs)
    columns = list({id(array): array for array in given if array.ndim}.values())
    rows = _different(columns)
    if rows is None:
        return formula(*args, **kwargs)
    first, back = rows
    few: Any = changed((args, kwargs), lambda array: array[first] if array.ndim else array)
    found = formula(*few[0], **few[1])
    every: R = changed(found, lambda array: array[back] if array.shape == first.shape else array)
    return every


class _Rows(NamedTuple):
    """The different rows of a table."""

    first: NDArray[np.intp]  # where one of each stands
    back: NDArray[np.intp]  # which of them each row is


class _Codes(NamedTuple):
    """Rows that are equal have the same code, from 0 to below ``kinds``."""

    codes: NDArray[np.intp]
    kinds: int


def _different(columns: list[Any]) -> _Rows | None:
    """The different rows of columns of one length; None where it does not pay to look for them."""
    if not columns or len({column.shape for column in columns}) > 1 or columns[0].ndim > 1:
        return None
    rows = columns[0].size
    if rows < FEW:
        return None
    whole = _Codes(np.zeros(rows, np.intp), 1)
    for column in columns:
        whole = _joined(whole, _coded(column))
        if whole.kinds > rows // WORTH:  # by the codes; of rows there may be fewer
            whole = _renumbered(whole)
        if whole.kinds > rows // WORTH:
            return None
    back, count = _renumbered(whole)
    first = np.empty(count, np.intp)
    first[back] = np.arange(rows)
    return _Rows(first, back)


def _coded(column: NDArray[Any]) -> _Codes:
    """One column; small whole numbers are their own codes."""
    low, high = column.min(), column.max()
    if low == high:
        return _Codes(_NONE, 1)
    if low >= 0 and high < LOOKED_UP:
        codes = column.astype(np.intp)
        if np.array_equal(codes, column):
            found = _Codes(codes, int(high) + 1)
            return found if high < 16 else _renumbered(found)
    values, codes = np.unique(column, return_inverse=True)
    return _Codes(codes, len(values))


_NONE = np.zeros(0, np.intp)


def _joined(a: _Codes, b: _Codes) -> _Codes:
    if b.kinds == 1:
        return a
    if a.kinds == 1:
        return b
    return _Codes(a.codes * b.kinds + b.codes, a.kinds * b.kinds)


def _renumbered(given: _Codes) -> _Codes:
    """The same without gaps."""
    codes, count = given
    if count > LOOKED_UP:
        values, codes = np.unique(codes, return_inverse=True)
        return _Codes(codes, len(values))
    taken = np.zeros(count, bool)
    taken[codes] = True
    values = np.flatnonzero(taken)
    number = np.empty(count, np.intp)
    number[values] = np.arange(len(values))
    return _Codes(number[codes], len(values))
