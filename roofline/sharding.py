"""Sharding: how an array lies on a mesh, and which collective turns one layout into another.

    A[I_X, J]        I is split over mesh axis X, J is whole; over other axes A is replicated
    A[I_XY, J]       I is split over X and Y together; axes with names: A[I_{dp,tp}, J]
    A[I, K]{U_X}     unreduced over X: every device holds a partial sum of the whole array

Along one axis an array is unreduced, split or replicated, and each change is one collective:

    unreduced → replicated   all-reduce          split → replicated         all-gather
    unreduced → split        reduce-scatter      split on another dim       all-to-all
                                                 replicated → split         free: keep a slice

A matmul A[I, J] · B[J, K] needs: nothing when J is whole; an all-gather when one of the two splits
J; an all-reduce or reduce-scatter of the result when both split it alike; and it is not possible
while I and K are split over the same axis.

Source: How to Scale Your Model, "Sharded Matrices and How to Multiply Them".
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import permutations

from roofline.collectives import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    REDUCE_SCATTER,
    Collective,
)

Sizes = Mapping[str, int]

_ARRAY = re.compile(r"\s*(\w*)\s*\[([^\]]*)\]\s*(?:\{\s*U_(\{[^}]*\}|\w+)\s*\})?\s*")
_DIM = re.compile(r"([A-Za-z][A-Za-z0-9]*)(?:_(\{[^}]*\}|[A-Za-z0-9]+))?")
_AXIS = re.compile(r"[A-Z]\d*|[a-z][a-z0-9]*")  # a capital is an axis, and so is a small word


@dataclass(frozen=True, slots=True)
class Sharding:
    """An array's dims, each with the mesh axes that split it, and the axes it is unreduced over."""

    name: str
    dims: tuple[tuple[str, tuple[str, ...]], ...]
    unreduced: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        axes = _all_axes(self)
        twice = sorted({axis for axis in axes if axes.count(axis) > 1})
        if twice:
            raise ValueError(
                f"{self}: mesh axis {', '.join(twice)} is used twice; "
                "an axis splits one dim or holds partial sums, once"
            )
        names = [dim for dim, _ in self.dims]
        if len(set(names)) < len(names):
            raise ValueError(f"{self}: dims must differ, got {', '.join(names)}")

    def __str__(self) -> str:
        dims = ", ".join(dim + (f"_{_written(split)}" if split else "") for dim, split in self.dims)
        partial = f"{{U_{_written(self.unreduced)}}}" if self.unreduced else ""
        return f"{self.name}[{dims}]{partial}"

    def split(self, dim: str) -> tuple[str, ...]:
        """Mesh axes that split ``dim``.

        Raises:
            ValueError: when the array has no such dim.
        """
        for name, axes in self.dims:
            if name == dim:
                return axes
        raise ValueError(f"{self} has no dim {dim!r}; it has {', '.join(d for d, _ in self.dims)}")

    def state(self, axis: str) -> str:
        """Along a mesh axis: ``unreduced``, ``replicated``, or the dim that it splits."""
        if axis in self.unreduced:
            return "unreduced"
        return next((dim for dim, split in self.dims if axis in split), "replicated")

    def moved(self, axis: str, state: str) -> Sharding:
        """The same array with another ``state`` along ``axis``, innermost where it splits a dim."""
        dims = tuple(
            (dim, tuple(a for a in split if a != axis) + ((axis,) if dim == state else ()))
            for dim, split in self.dims
        )
        rest = tuple(a for a in self.unreduced if a != axis)
        return replace(self, dims=dims, unreduced=rest + ((axis,) * (state == "unreduced")))

    def elements(self, sizes: Sizes, mesh: Sizes) -> float:
        """Elements on one device: the product of the dims' sizes over the degrees that split them.

        Raises:
            ValueError: a dim or axis without a size, or a degree that does not divide its dim.
        """
        held = 1.0
        for dim, split in self.dims:
            size = _of(sizes, dim, "sizes")
            parts = math.prod(_of(mesh, axis, "mesh") for axis in split)
            if size % parts:
                raise ValueError(f"{self}: {dim} = {size} does not divide into {parts} shards")
            held *= size // parts
        return held

    def bytes_per_device(self, sizes: Sizes, mesh: Sizes, width: float = 2.0) -> float:
        """Bytes of ``width`` an element on one device. [B]

        >>> parse("A[I_X, J]").bytes_per_device({"I": 128, "J": 2048}, {"X": 8, "Y": 2}, width=1)
        32768.0
        """
        return width * self.elements(sizes, mesh)

    def bytes_on_mesh(self, sizes: Sizes, mesh: Sizes, width: float = 2.0) -> float:
        """Bytes on all devices together, every replica counted. [B]"""
        return self.bytes_per_device(sizes, mesh, width) * math.prod(mesh.values())


def parse(text: str) -> Sharding:
    """Read ``A[I_X, J]{U_Y}``.

    Raises:
        ValueError: when it is not of that form.

    >>> print(parse("A[I_XY,J]{U_Z}"))
    A[I_XY, J]{U_Z}
    """
    array = _ARRAY.fullmatch(text)
    if not array:
        raise ValueError(f"sharding: {text!r} is not of the form A[I_X, J]{{U_Y}}")
    dims = []
    for part in filter(None, re.split(r",(?![^{]*\})", array[2])):
        dim = _DIM.fullmatch(part.strip())
        if not dim:
            raise ValueError(
                f"sharding: {part.strip()!r} in {text!r} is no dim such as I, I_X, I_XY"
            )
        dims.append((dim[1], _axes(dim[2])))
    return Sharding(array[1], tuple(dims), _axes(array[3]))


@dataclass(frozen=True, slots=True)
class Move:
    """One collective along one mesh axis; None where it costs nothing."""

    op: Collective | None
    axis: str
    before: Sharding
    after: Sharding

    def nbytes(self, sizes: Sizes, mesh: Sizes, width: float = 2.0) -> float:
        """V of the collective: the array of one group along the axis, whole. [B]"""
        if self.op is None:
            return 0.0
        whole = self.before.moved(self.axis, "replicated")  # a sum of partial arrays is as large
        return whole.bytes_per_device(sizes, mesh, width)


def reshard(before: Sharding, after: Sharding) -> tuple[Move, ...]:
    """The collectives that turn one layout of an array into another, cheapest order first.

    Raises:
        ValueError: other dims, partial sums out of nothing, or reordered shards within a dim.

    >>> [move.op.name for move in reshard(parse("A[I, J]{U_X}"), parse("A[I_X, J]"))]
    ['reduce-scatter']
    """
    if [dim for dim, _ in before.dims] != [dim for dim, _ in after.dims]:
        raise ValueError(f"{before} and {after} are not layouts of one array: their dims differ")
    for order in permutations(_changes(before, after)):
        moves = _chain(before, order, after)
        if moves is not None:
            return moves
    raise ValueError(
        f"{before} to {after} would reorder the shards within a dim; "
        "only the innermost axis of a dim, the last one written, comes or goes"
    )


# That which leaves less to move comes first.
_ORDER = (None, REDUCE_SCATTER, ALL_TO_ALL, ALL_REDUCE, ALL_GATHER)


def _changes(before: Sharding, after: Sharding) -> list[tuple[Collective | None, str]]:
    """What happens along each axis that changes, best first."""
    changes = [
        (_change(before.state(axis), after.state(axis), axis), axis)
        for axis in dict.fromkeys(_all_axes(before) + _all_axes(after))
        if before.state(axis) != after.state(axis)
    ]
    return sorted(changes, key=lambda change: _ORDER.index(change[0]))


def _chain(
    before: Sharding, changes: Iterable[tuple[Collective | None, str]], after: Sharding
) -> tuple[Move, ...] | None:
    """The changes in this order, if each takes the innermost axis and they end at ``after``."""
    moves, now = [], before
    for op, axis in changes:
        state = now.state(axis)
        if state not in ("unreduced", "replicated") and now.split(state)[-1] != axis:
            return None
        moves.append(Move(op, axis, now, now.moved(axis, after.state(axis))))
        now = moves[-1].after
    return tuple(moves) if now.dims == after.dims else None


def _all_axes(array: Sharding) -> list[str]:
    return [axis for _, split in array.dims for axis in split] + list(array.unreduced)


@dataclass(frozen=True, slots=True)
class Product:
    """A sharded matmul: what to gather first, and how the result lies before any reduction."""

    case: int  # 1 nothing to do, 2 gather an input, 3 a result of partial sums
    gathers: tuple[Move, ...]
    result: Sharding


def matmul(left: Sharding, right: Sharding, name: str = "C") -> Product:
    """Multiply over the dims that both arrays have.

    In case 3 the result is unreduced: ``reshard`` it to what is wanted, replicated (all-reduce) or
    split (reduce-scatter).

    Raises:
        ValueError: partial sums as an input; no dim in common; or two dims of the result split over
            one axis, which needs an all-gather of one of them first.

    >>> print(matmul(parse("A[I, J_X]"), parse("B[J_X, K]")).result)
    C[I, K]{U_X}
    """
    for array in (left, right):
        if array.unreduced:
            raise ValueError(f"{array} holds partial sums; reduce it before it is multiplied")
    summed = [dim for dim, _ in left.dims if dim in {d for d, _ in right.dims}]
    if not summed:
        raise ValueError(f"{left} and {right} have no dim in common to sum over")
    gathers: list[Move] = []
    partial: tuple[str, ...] = ()
    for dim in summed:
        if left.split(dim) == right.split(dim):
            partial += left.split(dim)
            continue
        gathers += [*_gather(left, dim), *_gather(right, dim)]
        left, right = _whole(left, dim), _whole(right, dim)
    kept = tuple(d for array in (left, right) for d in array.dims if d[0] not in summed)
    axes = [axis for _, split in kept for axis in split]
    for axis in dict.fromkeys(axes):
        if axes.count(axis) > 1:
            raise ValueError(
                f"{left} · {right}: {axis} would split the result twice; all-gather one of them "
                f"along {axis} first"
            )
    case = 2 if gathers else 3 if partial else 1
    return Product(case, tuple(gathers), Sharding(name, kept, partial))


def _change(before: str, after: str, axis: str) -> Collective | None:
    if after == "unreduced":
        raise ValueError(f"axis {axis}: an array that is {before} cannot become unreduced")
    if before == "unreduced":
        return ALL_REDUCE if after == "replicated" else REDUCE_SCATTER
    if before == "replicated":
        return None
    return ALL_GATHER if after == "replicated" else ALL_TO_ALL


def _gather(array: Sharding, dim: str) -> tuple[Move, ...]:
    return reshard(array, _whole(array, dim))


def _whole(array: Sharding, dim: str) -> Sharding:
    return replace(array, dims=tuple((d, () if d == dim else split) for d, split in array.dims))


def _written(axes: tuple[str, ...]) -> str:
    return "".join(axes) if all(axis.isupper() for axis in axes) else f"{{{','.join(axes)}}}"


def _axes(text: str | None) -> tuple[str, ...]:
    return tuple(_AXIS.findall(text or ""))


def _of(numbers: Sizes, name: str, field: str) -> int:
    if name not in numbers:
        raise ValueError(
            f"{field}: nothing is given for {name}; it has {', '.join(numbers) or '-'}"
        )
    return numbers[name]
