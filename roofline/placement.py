"""Placement: which rank sits where, who talks to whom, and over which tier.

A mesh is a list of axes from the inside out. Rank r has, on an axis of stride s and degree d, the
coordinate (r // s) mod d; a group of the axis is the d ranks that differ in it alone. With TP 4,
DP 2 and PP 4, innermost first, rank = pipe · 8 + data · 4 + model. Ranks fill nodes in order, so
strides decide which groups stay inside one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from roofline.groups import Group, aligned, spans
from roofline.machine import TierLike
from roofline.units import Count

Ranks = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Mesh:
    """Axes and their degrees, innermost first; made by ``mesh``."""

    axes: tuple[str, ...]
    degrees: tuple[int, ...]

    @property
    def size(self) -> int:
        """GPUs in all."""
        return prod(self.degrees)

    def degree(self, axis: str) -> int:
        """Ranks in one group of ``axis``."""
        return self.degrees[self._index(axis)]

    def stride(self, axis: str) -> int:
        """Ranks between neighbours of ``axis``: the degrees of all axes inside it."""
        return prod(self.degrees[: self._index(axis)])

    def group(self, axis: str) -> Group:
        """One group of ``axis``, as collectives take it."""
        return Group(self.degree(axis), self.stride(axis))

    def coordinates(self, ranks: ArrayLike) -> dict[str, Ranks]:
        """Place of each rank along every axis.

        Raises:
            ValueError: a rank outside the mesh.
        """
        points = np.asarray(ranks)
        if np.any((points < 0) | (points >= self.size)):
            raise ValueError(f"rank: {points} is outside the mesh; allowed: 0 to {self.size - 1}")
        return {axis: points // self.stride(axis) % self.degree(axis) for axis in self.axes}

    def rank(self, **coordinates: ArrayLike) -> Ranks:
        """Rank at some coordinates; axes left out are at 0.

        Raises:
            ValueError: an unknown axis, or a coordinate outside it.
        """
        rank: Ranks = np.asarray(0)
        for axis, value in coordinates.items():
            place = np.asarray(value)
            if np.any((place < 0) | (place >= self.degree(axis))):
                last = self.degree(axis) - 1
                raise ValueError(f"{axis}: {place} is outside the axis; allowed: 0 to {last}")
            rank = rank + place * self.stride(axis)
        return rank

    def groups(self, axis: str) -> Ranks:
        """Every group of ``axis``, one a row: [groups, degree] ranks."""
        stride, degree = self.stride(axis), self.degree(axis)
        block = np.arange(self.size).reshape(-1, degree, stride)
        return block.swapaxes(1, 2).reshape(-1, degree)

    def _index(self, axis: str) -> int:
        if axis not in self.axes:
            raise ValueError(f"axis: {axis!r} is not one; allowed: {', '.join(self.axes)}")
        return self.axes.index(axis)


def mesh(gpus: int, degrees: Mapping[str, int | None]) -> Mesh:
    """A mesh over ``gpus``, axes innermost first; one degree may be None: what the others leave.

    Raises:
        ValueError: a degree below 1, two left open, or degrees that do not make up ``gpus``, naming
            what would.

    >>> mesh(32, {"tensor": 4, "data": None, "pipeline": 4}).degrees
    (4, 2, 4)
    """
    for axis, degree in degrees.items():
        if degree is not None and degree < 1:
            raise ValueError(f"{axis}: {degree} is refused; allowed: 1 and more")
    open_axes = [axis for axis, degree in degrees.items() if degree is None]
    if len(open_axes) > 1:
        raise ValueError(f"{' and '.join(open_axes)}: only one degree can be left open")
    known = prod(degree for degree in degrees.values() if degree is not None)
    if known != gpus and (not open_axes or gpus % known):
        raise ValueError(_misfit(gpus, degrees, known))
    filled = {axis: gpus // known if degree is None else degree for axis, degree in degrees.items()}
    return Mesh(tuple(filled), tuple(filled.values()))


def _misfit(gpus: int, degrees: Mapping[str, int | None], known: int) -> str:
    """What does not multiply to what, and the nearest that does."""
    product = " x ".join(f"{axis} {degree}" for axis, degree in degrees.items() if degree)
    below = gpus // known * known
    near = f"{below} and {below + known}" if below else f"{known}"
    fits = [
        f"{axis} {gpus * degree // known}"
        for axis, degree in degrees.items()
        if degree and gpus * degree % known == 0
    ]
    instead = f", or on {gpus}: {' or '.join(fits)}" if fits else ""
    return f"gpus: {product} = {known} does not fill {gpus} GPUs; the nearest: {near}{instead}"


def unit_of(ranks: ArrayLike, tiers: Sequence[TierLike], tier: int = 0) -> Ranks:
    """Number of the unit of ``tiers[tier]`` that each rank sits in; 0 is the node."""
    return np.asarray(ranks) // prod(int(t.degree) for t in tiers[: tier + 1])


class Crossing(NamedTuple):
    """A group of some axis at a tier."""

    tier: str
    children: int  # of the tier that one group spans; 1 is none crossed
    siblings: int  # groups that share one child's uplink


@dataclass(frozen=True, slots=True)
class AxisPlacement:
    """Where the groups of an axis lie on a machine."""

    axis: str
    degree: int
    stride: int
    groups: int
    crossings: tuple[Crossing, ...]
    aligned: bool  # False: some groups straddle more units than others
    units: tuple[int, ...]  # units of each tier that the widest group touches

    @property
    def crossed(self) -> tuple[str, ...]:
        """Tiers whose links the groups use."""
        return tuple(crossing.tier for crossing in self.crossings if crossing.children > 1)


def placed(layout: Mesh, tiers: Sequence[TierLike]) -> tuple[AxisPlacement, ...]:
    """Which tiers every axis crosses and with how many siblings, innermost axis first.

    Raises:
        ValueError: when the mesh is larger than the machine.
    """
    return tuple(_placed(layout, axis, tiers) for axis in layout.axes)


def _placed(layout: Mesh, axis: str, tiers: Sequence[TierLike]) -> AxisPlacement:
    group, ranks = layout.group(axis), layout.groups(axis)
    crossings = tuple(
        Crossing(reach.tier.name, _whole(reach.degree), _whole(reach.sharing))
        for reach in spans(group, tiers)
    )
    widest = tuple(
        int(np.max(1 + np.count_nonzero(np.diff(unit_of(ranks, tiers, tier)), axis=1)))
        for tier in range(len(tiers))
    )
    return AxisPlacement(
        axis,
        layout.degree(axis),
        layout.stride(axis),
        len(ranks),
        crossings,
        bool(aligned(group, tiers)),
        widest,
    )


def _whole(value: Count) -> int:
    return int(np.asarray(value))


def example_32() -> Mesh:
    """The 32 workers of DeepSpeed's picture: tensor 4, data 2, pipeline 4 on 8 nodes of 4 GPUs.

    Source: Microsoft Research blog, "DeepSpeed: Extreme-scale model training for everyone",
    figures 1 and 2.
    """
    return mesh(32, {"model": 4, "data": 2, "pipe": 4})


def example_4() -> Mesh:
    """Two pipelines of two stages: data parallelism sees GPUs 0 and 1; they enlist 2 and 3.

    Source: Hugging Face, "Parallelism methods", DP+PP.
    """
    return mesh(4, {"data": 2, "pipe": 2})
