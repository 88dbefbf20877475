"""Groups: which tiers some ranks span, and with how many sibling groups they share each uplink.

A group is ``size`` ranks, ``stride`` apart. With TP 8 inside a node the tensor-parallel group is
(8, 1) and the data-parallel group around it (16, 8): its members sit in 16 different nodes, and
eight such groups, one per local rank, leave each node together. Everything follows from counting
members under a unit of U GPUs:

    members(U) = min(size, max(1, U // stride))
    degree_i   = members(S_{i+1}) / members(S_i)     children of tier i that the group spans
    sharing_i  = min(stride, S_i)                     sibling groups on one child's uplink
    lanes_i    = max(sharing_i, S_i / senders)        where GPUs have network cards of their own
    W_i        = W (degree_i - 1)/(D_i - 1)           where each pair of children has its own link

with S_i the GPUs under one child of tier i (1, 8, 256, …). This is the exact rule for arrays
sharded over an inner axis of the scaling book ("GPUs", collectives across nodes), with the missing
factor S_{i-1} put in. It is exact for groups that are ``aligned``. One that fills its last child
only partly is charged for that child, which has the most to receive and the fewest cards to do it
with; one whose stride divides neither way, as if it spanned more children than it may.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from roofline import checks
from roofline.machine import TierLike
from roofline.units import BytesPerSecond, Count


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks of one collective; ``alone`` says that sibling groups are silent, uplinks its own."""

    size: Count
    stride: Count = 1
    alone: bool = False


class Reach(NamedTuple):
    """What a group is at one tier."""

    tier: TierLike
    degree: Count  # children spanned, within one unit of the tier
    members: Count  # ranks of the group under one child
    above: Count  # ranks of the group under one unit of the tier
    stride: Count  # sibling groups side by side, where they talk too; else 1
    unit: Count  # GPUs under one child
    cards: bool  # each GPU comes here by a network card of its own, 1/unit of the child's uplink

    @property
    def sharing(self) -> Count:
        """Groups that share one child's uplink."""
        return 1.0 if _is_one(self.unit) else np.minimum(self.stride, self.unit)

    @property
    def fewest(self) -> Count:
        """Ranks of the group under its emptiest child."""
        return self.above - self.members * (self.degree - 1)

    def lanes(self, senders: Count | None = None) -> Count:
        """The child's uplink over what the group gets of it, when ``senders`` of its ranks send.

        Sibling groups take their part; and a GPU with its own card has that card, however quiet the
        others are. Left out, all ranks under the emptiest child send: it has the fewest cards.
        """
        if not self.cards:
            return self.sharing
        return self.unit / (self.fewest if senders is None else senders)  # never below sharing

    def bandwidth(self, *, to_one: bool = False) -> BytesPerSecond:
        """What one child reaches the others of the group with, or one of them. [B/s]

        Through a switch, all its links carry whatever it sends. Without one, those to the group's
        other children do: d-1 of D-1 links, and a single one to a single child.
        """
        whole: BytesPerSecond = self.tier.effective_bandwidth
        if not self.tier.direct:
            return whole
        links: Count = 1.0 if to_one else np.maximum(self.degree - 1, 1.0)
        each: Count = np.maximum(np.asarray(self.tier.degree, float) - 1, 1.0)
        return whole * links / each


def spans(group: Group, tiers: Sequence[TierLike]) -> list[Reach]:
    """The group at each tier from the inside out.

    Raises:
        ValueError: when the group is empty, no whole number of ranks or larger than the machine.

    >>> from roofline.machine import Tier
    >>> node, network = Tier(8, 450e9), Tier(32, 400e9)
    >>> [float(r.degree) for r in spans(Group(16, stride=8), (node, network))]
    [1.0, 16.0]
    """
    size, stride = _checked(group, tiers)
    unit: Count = 1.0
    members: Count = 1.0
    cards = False
    beside: Count = 1.0 if group.alone else stride
    found = []
    for tier in tiers:
        inside = unit
        unit = unit * np.asarray(tier.degree, float)
        above = np.minimum(size, np.maximum(1.0, np.floor(unit / stride)))
        degree = np.ceil(above if _is_one(members) else above / members)
        found.append(Reach(tier, degree, members, above, beside, inside, cards))
        members, cards = above, cards or not tier.transit
    if np.any(members < size):
        raise ValueError(_too_large(size, stride, members, unit))
    return found


def _checked(group: Group, tiers: Sequence[TierLike]) -> tuple[Count, Count]:
    """Size and stride as floats; whole, but for a ring without end, on which X_opt is real."""
    if not isinstance(tiers, Sequence):
        raise ValueError(
            f"tiers: a {type(tiers).__name__} is refused; allowed: a list of tiers, "
            "such as a cluster's .tiers"
        )
    size = np.asarray(checks.numbers("size of the group", group.size), float)
    stride = np.asarray(checks.numbers("stride of the group", group.stride), float)
    if not (np.min(size, initial=1) >= 1 and np.min(stride, initial=1) >= 1):  # nor where it is NaN
        raise ValueError(
            "a group has at least one rank and a stride of at least 1, "
            f"got {np.min(size):g} ranks, {np.min(stride):g} apart"
        )
    if all(np.all(np.isfinite(tier.degree)) for tier in tiers):
        checks.whole("size of the group", size)
        checks.whole("stride of the group", stride)
    return size, stride


def _is_one(value: Count) -> bool:
    return isinstance(value, float) and value == 1.0


def _too_large(size: Count, stride: Count, members: Count, machine: Count) -> str:
    """The first point at which the group does not fit, in words."""
    points = np.broadcast_arrays(size, stride, machine, np.less(members, size))
    first = int(np.argmax(points[-1]))
    ranks, apart, gpus = (float(point.flat[first]) for point in points[:-1])
    return (
        f"a group of {ranks:,.0f} ranks, {apart:,.0f} apart, takes {ranks * apart:,.0f} GPUs; "
        f"the machine has {gpus:,.0f}"
    )


def crossed(group: Group, tiers: Sequence[TierLike]) -> list[str]:
    """Names of the tiers that one group's traffic crosses, from the inside out."""
    return [reach.tier.name for reach in spans(group, tiers) if np.any(reach.degree > 1)]


def aligned(group: Group, tiers: Sequence[TierLike]) -> NDArray[np.bool_]:
    """True where the group fills whole units or equal parts of them: no member is placed unevenly.

    >>> from roofline.machine import Tier
    >>> print(aligned(Group(np.array([4, 8, 12])), (Tier(8, 450e9), Tier(32, 400e9))))
    [ True  True False]
    """
    stride = np.asarray(group.stride, float)
    even = np.asarray(True)
    unit: Count = 1.0
    for tier in tiers:
        unit = unit * np.asarray(tier.degree, float)
        for length in (stride, stride * group.size):
            even = even & ((np.mod(unit, length) == 0) | (np.mod(length, unit) == 0))
    return even
