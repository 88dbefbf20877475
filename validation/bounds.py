"""What no machine of a profile can be faster than: each result against one rate at its peak.

A bound leaves out every start and every wait, so only large cases come near it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hardware_profiles.schema import Cluster
from hardware_profiles.writing import told
from roofline import collectives
from roofline.groups import Group, crossed
from validation.results import Measured

TALKING = (*collectives.COLLECTIVES, collectives.SWAP.name)  # kernels over a group's tiers
POSSIBLE = 1.2  # times the profile's peak: a faster result is of another machine, or wrong
GUESSED = 10.0  # the same where a cache may hold it all, or the profile is a guess: of CPUs
CACHED = 2**28  # moved by one call; less may stay in a cache [B]
NONE: Mapping[tuple[str, str], float] = {}


@dataclass(frozen=True, slots=True)
class Point:
    """One case against the least time that a peak allows."""

    line: Measured
    what: str
    tier: str
    stated: float
    unit: str
    bound: float  # [s]

    @property
    def fraction(self) -> float:
        """Of the rate."""
        return self.bound / self.line.seconds

    @property
    def amount(self) -> float:
        """Bytes or FLOPs, as the rate's unit has it."""
        return self.line.flops if self.unit == "FLOP/s" else self.line.nbytes


def bound(
    line: Measured, cluster: Cluster, known: Mapping[tuple[str, str], float] = NONE
) -> Point | None:
    """``line`` against the rate that decides; None where it is about none, or about caches.

    Args:
        known: share of a tier's rate that a kernel reaches there, by kernel and tier.
    """
    if line.kernel in TALKING:
        return _over_tiers(line, cluster, known)
    ours = line.kernel in ("matmul", "memory", "attention")
    if not ours or line.parameters.get("where") == "cache":
        return None
    return _on_chip(line, cluster)


def _fits(line: Measured, cluster: Cluster) -> bool:
    """A group of some ranks that the profile has room for: results come from elsewhere too."""
    return line.size > 1 and line.size * line.stride <= cluster.gpus


def _over_tiers(
    line: Measured, cluster: Cluster, known: Mapping[tuple[str, str], float]
) -> Point | None:
    if line.nbytes <= 0 or line.parameters.get("uneven") or not _fits(line, cluster):
        return None
    group = Group(line.size, line.stride)
    time = collectives.collective(line.kernel, line.nbytes, group, cluster.tiers)
    pairs = zip(cluster.tiers, time.by_tier, strict=True)
    times = [(float(seconds), tier) for tier, seconds in pairs]
    seconds, tier = max(times, key=lambda t: t[0] / known.get((line.kernel, t[1].name), 1.0))
    what = (tier.technology or tier.name).partition(" + ")[0]
    return Point(line, what, tier.name, tier.effective_bandwidth, "B/s", seconds)


def _on_chip(line: Measured, cluster: Cluster) -> Point | None:
    dtype = str(line.parameters.get("dtype", ""))
    peak = cluster.accelerator.peak_flops.get(dtype, 0.0)
    computing = line.flops / peak if peak and line.kernel != "memory" else 0.0
    moving = line.nbytes / cluster.hbm_bandwidth
    if computing > moving:
        return Point(line, f"{dtype} peak", "", peak, "FLOP/s", computing)
    return (
        Point(line, "memory bandwidth", "", cluster.hbm_bandwidth, "B/s", moving)
        if moving
        else None
    )


def crosses(line: Measured, cluster: Cluster) -> int:
    """Tiers that a group's traffic crosses; 0 of what does not talk."""
    if line.kernel not in TALKING or not _fits(line, cluster):
        return 0
    return len(crossed(Group(line.size, line.stride), cluster.tiers))


def impossible(line: Measured, cluster: Cluster) -> str:
    """Why no machine of this profile can be as fast as ``line``, in words; empty if one can."""
    found = bound(line, cluster)
    if found is None or line.seconds <= 0:
        return ""
    small = found.unit == "B/s" and not found.tier and line.nbytes < CACHED
    guess = small or not cluster.accelerator.sms
    if found.fraction <= (GUESSED if guess else POSSIBLE):
        return ""
    rate = told(found.stated, found.unit)
    return (
        f"{line.case}: {found.fraction:.3g} times what {found.what} of {rate} allows, faster "
        "than this machine can be: left out; is the profile another machine's?"
    )
