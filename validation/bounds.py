"""What no machine of a profile can be faster than: each result against rates at their peaks.

    FLOPs / peak of the data type     bytes through memory / its bandwidth     bytes sent / link rate

A bound leaves out every start and every wait, so only large cases come near it. ``bound`` is the one
that a rate is told of; ``limits`` are all that a result is refused by, also of strategies, of which
they count the least that has to be sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

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
ON_CHIP = ("matmul", "memory", "attention")  # their bytes are over one rank's memory
# What a strategy's bytes are at least: one collective on the group's tiers, of such a share of them.
# All-reduces take longer than all-gathers of as much; messages may meet on a link of two ways; of an
# expert layer's dispatch each token is sent once at least, and combining it is left out.
AT_LEAST: Mapping[str, tuple[str, float]] = {
    "data parallel": ("all-gather", 1.0),
    "tensor parallel": ("all-gather", 1.0),
    "pipeline parallel": ("point-to-point", 0.5),
    "all-reduce by messages": ("all-reduce", 1.0),
    "expert parallel": ("all-to-all", 1.0),
    "context parallel": ("send-receive", 1.0),
}
# What no stated rate bounds, and why; of each kernel the rest is.
UNBOUND: Mapping[str, str] = {
    "memory": "copies in a cache compute nothing, and few profiles state a rate of caches",
    "recompute": "sending activations to the host, where the profile has no link to it",
}


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
    if line.kernel not in ON_CHIP or line.parameters.get("where") == "cache":
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


def limits(line: Measured, cluster: Cluster) -> Iterator[Point]:
    """Everything that ``line`` cannot be faster than; nothing of what ``UNBOUND`` has."""
    if line.part != "comms":
        yield from _computing(line, cluster)
    if line.kernel in ON_CHIP:
        yield from _streaming(line, cluster)
    elif line.part != "math" and line.nbytes > 0:
        yield from _sending(line, cluster)


def _computing(line: Measured, cluster: Cluster) -> Iterator[Point]:
    dtype = str(line.parameters.get("dtype", ""))
    peak = cluster.accelerator.peak_flops.get(dtype, 0.0)
    if line.flops > 0 and peak:
        yield Point(line, f"{dtype} peak", "", peak, "FLOP/s", line.flops / peak)


def _streaming(line: Measured, cluster: Cluster) -> Iterator[Point]:
    """Through memory; in a cache at the rate of the cache, where it is stated."""
    what, rate = "memory bandwidth", cluster.hbm_bandwidth
    if line.parameters.get("where") == "cache":
        what, rate = "cache bandwidth", cluster.accelerator.l2_bandwidth or 0.0
    if line.nbytes > 0 and rate:
        yield Point(line, what, "", rate, "B/s", line.nbytes / rate)


def _sending(line: Measured, cluster: Cluster) -> Iterator[Point]:
    if line.kernel == "recompute":
        yield from _to_host(line, cluster)
    elif line.kernel == "mesh":
        yield from _over_any(line, cluster)
    elif line.kernel in TALKING or line.kernel in AT_LEAST:
        name, share = AT_LEAST.get(line.kernel, (line.kernel, 1.0))
        # The busiest rank of an uneven exchange sends as much as in an even one, at least.
        told = {key: value for key, value in line.parameters.items() if key != "uneven"}
        least = {"kernel": name, "nbytes": share * line.nbytes, "parameters": told}
        found = _over_tiers(line.model_copy(update=least), cluster, NONE)
        if found is not None:
            yield replace(found, line=line)


def _to_host(line: Measured, cluster: Cluster) -> Iterator[Point]:
    """Out and back over the link, which may be at once; of a CPU through its own memory."""
    if cluster.host_link is not None:
        rate = cluster.host_link.total
        yield Point(line, "link to the host", "host", rate, "B/s", line.nbytes / 2 / rate)
    elif not cluster.accelerator.sms:
        rate = cluster.hbm_bandwidth
        yield Point(line, "memory bandwidth", "", rate, "B/s", line.nbytes / rate)


def _over_any(line: Measured, cluster: Cluster) -> Iterator[Point]:
    """Half of the bytes, as a collective of two ranks sends, over all of a rank's links at once."""
    if not _fits(line, cluster):
        return
    units = (prod(tier.degree for tier in cluster.tiers[:i]) for i in range(len(cluster.tiers)))
    each = (t.effective_bandwidth / unit for t, unit in zip(cluster.tiers, units, strict=True))
    rate = float(sum(each))
    yield Point(line, "all links of a rank", "any", rate, "B/s", line.nbytes / 2 / rate)


def impossible(line: Measured, cluster: Cluster) -> str:
    """Why no machine of this profile can be as fast as ``line``, in words; empty if one can."""
    if line.seconds <= 0:
        return ""
    over = [found for found in limits(line, cluster) if found.fraction > _allowed(found, cluster)]
    if not over:
        return ""
    worst = max(over, key=lambda found: found.fraction)
    rate = told(worst.stated, worst.unit)
    return (
        f"{line.case}: {worst.fraction:.3g} times what {worst.what} of {rate} allows, faster "
        "than this machine can be: left out; is the profile another machine's?"
    )


def _allowed(found: Point, cluster: Cluster) -> float:
    """How many times the profile's peak may be."""
    small = found.unit == "B/s" and not found.tier and found.line.nbytes < CACHED
    return GUESSED if small or not cluster.accelerator.sms else POSSIBLE
