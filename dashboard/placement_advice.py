"""Ways out of a placement that does not fit, or fits badly: the nearest that does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import log, prod

from roofline.groups import aligned, crossed
from roofline.machine import TierLike
from roofline.placement import Mesh, mesh

Degrees = Mapping[str, int | None]


def fitting(gpus: int, degrees: Degrees) -> dict[str, int]:
    """For each axis the degree nearest to its own with which the mesh fills ``gpus``."""
    found = {}
    open_ = None in degrees.values()
    for axis, degree in degrees.items():
        if degree is None:
            continue
        others = prod(d for name, d in degrees.items() if d is not None and name != axis)
        if gpus % others:
            continue
        room = gpus // others
        choices = divisors(room) if open_ else [room]
        found[axis] = next_to(degree, choices)
    return found


def next_to(degree: int, choices: Sequence[int]) -> int:
    """The choice that is off by the smallest factor."""
    return min(choices, key=lambda choice: abs(log(choice / degree)))


def rounded(gpus: int, degrees: Degrees, absorb: str) -> dict[str, int]:
    """Degrees that fill ``gpus``, each in turn as near as can be; ``absorb`` takes what is left."""
    left, found = gpus, {}
    for axis, degree in degrees.items():
        if axis != absorb:
            found[axis] = next_to(degree or 1, divisors(left))
            left //= found[axis]
    found[absorb] = left
    return {axis: found[axis] for axis in degrees}


def divisors(count: int) -> list[int]:
    """Every whole number that divides ``count``."""
    small = [d for d in range(1, int(count**0.5) + 1) if count % d == 0]
    return sorted({*small, *(count // d for d in small)})


def nearest(
    layout: Mesh, axis: str, good: Callable[[Mesh], bool], absorb: Sequence[str]
) -> Mesh | None:
    """The mesh next to ``layout`` that is ``good``: ``axis`` changed, another making up for it."""
    own, best = layout.degree(axis), None
    for other in absorb:
        if other == axis or other not in layout.axes:
            continue
        for degree in divisors(own * layout.degree(other)):
            changed = dict(zip(layout.axes, layout.degrees, strict=True))
            changed |= {axis: degree, other: own * layout.degree(other) // degree}
            candidate = mesh(layout.size, changed)
            far = abs(log(degree / own))
            if (best is None or far < best[0]) and degree != own and good(candidate):
                best = far, candidate
    return best[1] if best else None


def inside_node(layout: Mesh, axis: str, tiers: Sequence[TierLike]) -> bool:
    """True when the groups of ``axis`` use no link beyond the node."""
    group = layout.group(axis)
    return set(crossed(group, tiers)) <= {tiers[0].name} and bool(aligned(group, tiers))


def all_aligned(layout: Mesh, tiers: Sequence[TierLike]) -> bool:
    """True when no axis straddles."""
    return all(bool(aligned(layout.group(axis), tiers)) for axis in layout.axes)
