"""What the formulas ask of a machine: a rate, memory, and tiers from the inside out.

A ``hardware_profiles.Cluster`` is such a machine. ``Ideal`` is one made of bare numbers, for a notebook, a what-if
or a test; its numbers may be arrays, so a sweep over bandwidth is one call like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

from roofline.units import Bytes, BytesPerSecond, Count, FlopPerSecond, Seconds


class TierLike(Protocol):
    """One level: ``degree`` children, each with ``bandwidth`` into it in one direction. [B/s]"""

    @property
    def name(self) -> str: ...
    @property
    def degree(self) -> Any: ...
    @property
    def effective_bandwidth(self) -> Any: ...
    @property
    def latency(self) -> Any: ...
    @property
    def in_network_reduction(self) -> bool: ...
    @property
    def transit(self) -> bool: ...
    @property
    def direct(self) -> bool: ...


class Machine(Protocol):
    """Accelerators joined by tiers."""

    @property
    def tiers(self) -> Sequence[TierLike]: ...
    @property
    def hbm_bytes(self) -> Any: ...
    @property
    def hbm_bandwidth(self) -> Any: ...

    def flops(self, dtype: str) -> Any:
        """Matmul rate of one accelerator. [FLOP/s]"""
        ...


@dataclass(frozen=True, slots=True)
class Tier:
    """A tier of bare numbers; see ``hardware_profiles.NetworkTier`` for what each means."""

    degree: Count
    bandwidth: BytesPerSecond
    name: str = "tier"
    latency: Seconds = 0.0
    in_network_reduction: bool = False
    transit: bool = True
    direct: bool = False  # no switch: each pair of children has a link of its own

    @property
    def effective_bandwidth(self) -> BytesPerSecond:
        """What one child gets. [B/s]"""
        return self.bandwidth


def node_place(tiers: Sequence[TierLike]) -> int:
    """Which tier makes a server: the one that is called node, else the innermost."""
    names = [tier.name for tier in tiers]
    return names.index("node") if "node" in names else 0


def node_size(tiers: Sequence[TierLike]) -> int:
    """GPUs of a server.

    >>> node_size((Tier(2, 300e9, "pair"), Tier(4, 126e9, "node"), Tier(16, 400e9, "network")))
    8
    """
    return prod(int(tier.degree) for tier in tiers[: node_place(tiers) + 1])


@dataclass(frozen=True, slots=True)
class Ideal:
    """A machine of bare numbers.

    >>> h100 = Ideal(990e12, (Tier(8, 450e9, "node", transit=False), Tier(32, 400e9, "network")))
    """

    rate: FlopPerSecond
    tiers: tuple[Tier, ...] = ()
    hbm_bandwidth: BytesPerSecond = float("nan")
    hbm_bytes: Bytes = float("nan")

    def flops(self, dtype: str) -> FlopPerSecond:
        """The one rate this machine has, whatever the dtype. [FLOP/s]"""
        return self.rate
