"""Suspects: what may be behind slow results, each a row with the numbers that point to it.

A suspect is no proof. It is named only when measured numbers, clocks or the environment's variables
speak for it, and it says which do.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hardware_profiles.schema import NetworkTier
from hardware_profiles.writing import told
from roofline import collectives
from validation.evidence import Evidence
from validation.rates import Rate, Start
from validation.results import Measured
from validation.stragglers import Straggler

ADDED = 1.1  # all-reduce over all-gather, in bus bandwidth: switches that add reach 1.3
PCIE = 64e9  # one way of sixteen lanes of PCIe 5.0 [B/s]
NOISY = 0.3  # median (p90 - p10)/median that a quiet machine stays below
COOL = 0.9  # of the highest clock
SAGGING = 0.92  # rate of the largest matmuls over the best of smaller ones
FEW_LINKS = 0.62  # of the stated bandwidth: less looks like links shared by two or more
TCP = 0.2  # of the stated bandwidth: less looks like sockets, not RDMA


@dataclass(frozen=True, slots=True)
class Facts:
    """What the rules look at."""

    evidence: Evidence
    rates: Sequence[Rate]
    starts: Sequence[Start]
    stragglers: Sequence[Straggler]

    @property
    def variables(self) -> dict[str, str]:
        """What NCCL and others were told."""
        return self.evidence.header.variables

    @property
    def on_gpus(self) -> bool:
        """True when devices are GPUs."""
        return self.evidence.header.device == "cuda"

    @property
    def inner(self) -> NetworkTier:
        """The innermost tier."""
        return self.evidence.profile.cluster.tiers[0]

    def told(self, *names: str) -> list[str]:
        """Those variables that are set, as ``NAME=value``."""
        return [f"{name}={self.variables[name]}" for name in names if name in self.variables]

    def bus(self, kernel: str, tier: str) -> float | None:
        """Best bus bandwidth of a collective whose slowest tier this is, over the stated one."""
        found = [r.fraction for r in self.rates if r.kernel == kernel and r.tier == tier]
        return max(found, default=None)

    def slow(self, tier: str) -> list[Rate]:
        """Slow curves of a tier, collectives that ring alone."""
        return [
            rate
            for rate in self.rates
            if rate.tier == tier and rate.slow and rate.kernel in ("all-gather", "reduce-scatter")
        ]


Evidences = Iterator[str]


@dataclass(frozen=True, slots=True)
class Rule:
    """A suspect: its name, what to do about it, and what speaks for it (nothing: no suspect)."""

    name: str
    remedy: str
    speaks: Callable[[Facts], Evidences]


@dataclass(frozen=True, slots=True)
class Cause:
    """A suspect that something speaks for."""

    name: str
    evidence: tuple[str, ...]
    remedy: str


def causes(facts: Facts) -> list[Cause]:
    """Every suspect that something speaks for, in the order of ``RULES``."""
    found = ((rule, tuple(rule.speaks(facts))) for rule in RULES)
    return [Cause(rule.name, said, rule.remedy) for rule, said in found if said]


def _adding_off(facts: Facts) -> Evidences:
    """Switches that add, and an all-reduce that gains nothing from them."""
    off = facts.told("NCCL_NVLS_ENABLE", "NCCL_COLLNET_ENABLE", "NCCL_ALGO", "NCCL_SHARP_DISABLE")
    for tier in facts.evidence.profile.cluster.tiers:
        reduced, gathered = (facts.bus(name, tier.name) for name in ("all-reduce", "all-gather"))
        if not tier.in_network_reduction or reduced is None or gathered is None:
            continue
        if reduced < ADDED * gathered:
            said = f"{tier.name}: all-reduce reaches {reduced:.0%} of the link in bus bandwidth, "
            said += f"all-gather {gathered:.0%}; switches that add reach "
            said += f"{collectives.MEASURED_SHARP_GAIN:g} times as much"
            yield ", ".join((said, *off))


def _slow_rank(facts: Facts) -> Evidences:
    yield from (one.sentence for one in facts.stragglers if one.part == "math")


def _slow_link(facts: Facts) -> Evidences:
    """Groups that are slow while their ranks compute as fast as others."""
    slow_ranks = {rank for one in facts.stragglers if one.part == "math" for rank in one.ranks}
    for one in facts.stragglers:
        if one.part != "math" and not slow_ranks & set(one.ranks):
            yield one.sentence


def _pcie(facts: Facts) -> Evidences:
    """A node's links no faster than PCIe, where the profile has faster ones."""
    tier = facts.inner
    if not facts.on_gpus or tier.effective_bandwidth < 2 * PCIE:
        return
    for rate in facts.slow(tier.name):
        if rate.fraction * rate.stated < PCIE:
            reached = told(rate.fraction * rate.stated, "B/s")
            said = f"{rate.sentence}: {reached}, no more than PCIe 5.0 x16"
            yield ", ".join((said, *facts.told("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL")))


def _sockets(facts: Facts) -> Evidences:
    for tier in facts.evidence.profile.cluster.tiers[1:]:
        for rate in facts.slow(tier.name):
            if rate.fraction < TCP:
                names = ("NCCL_IB_DISABLE", "NCCL_NET", "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA")
                yield ", ".join((rate.sentence, *facts.told(*names)))


def _shared_uplinks(facts: Facts) -> Evidences:
    """A tier beyond the node that is slow for all groups, where those inside are not."""
    tiers = facts.evidence.profile.cluster.tiers
    for inner, tier in pairwise(tiers):
        inside = facts.bus("all-gather", inner.name)
        for rate in facts.slow(tier.name):
            if TCP <= rate.fraction < FEW_LINKS and (inside is None or inside > rate.fraction):
                beside = "" if inside is None else f", {inside:.0%} in {inner.name}"
                yield f"{rate.sentence}{beside}: as if {1 / rate.fraction:.1f} shared each uplink"


def _clocks(facts: Facts) -> Evidences:
    """Clocks right after the run; the header's are of idle GPUs."""
    for end in facts.evidence.ends:
        rows = list(csv.reader(str(getattr(end, "clocks", "")).splitlines()))
        for gpu, row in enumerate(rows):
            now, most = (_number(row[i]) if len(row) > i else 0.0 for i in (0, 2))
            hot = f", {row[5].strip()} °C" if len(row) > 5 else ""
            if most and now < COOL * most:
                yield f"GPU {gpu} ends at {now:.0f} of {most:.0f} MHz{hot}"


def _sagging(facts: Facts) -> Evidences:
    """The largest matmuls run slower than smaller ones: power or heat, not shapes.

    On a CPU they have left its caches.
    """
    if not facts.on_gpus:
        return
    for dtype, lines in _squares(facts.evidence).items():
        rate = [line.flops / line.seconds for line in lines]
        best = max(rate)
        if len(rate) > 2 and rate[-1] < SAGGING * best and rate.index(best) < len(rate) - 1:
            yield (
                f"{dtype} matmul: the largest reaches {told(rate[-1], 'FLOP/s')}, "
                f"a smaller one {told(best, 'FLOP/s')}"
            )


def _squares(evidence: Evidence) -> dict[str, list[Measured]]:
    found: dict[str, list[Measured]] = {}
    for line in sorted(evidence.trusted, key=lambda m: m.flops):
        if line.kernel == "matmul" and line.parameters.get("form") == "square":
            found.setdefault(str(line.parameters.get("dtype")), []).append(line)
    return found


def _contention(facts: Facts) -> Evidences:
    """Times that scatter: others use the machine."""
    lines = [line for line in facts.evidence.trusted if line.repeats > 2]
    spread = float(np.median([line.spread for line in lines])) if lines else 0.0
    if spread > NOISY:
        said = f"times scatter by {spread:.0%} (p10 to p90, median of {len(lines)} results)"
        ranks = ", ".join(f"{n} ranks on {host}" for host, n in facts.evidence.header.hosts.items())
        yield ", ".join((said, ranks, *facts.told("OMP_NUM_THREADS")))


def _late_starts(facts: Facts) -> Evidences:
    yield from (start.sentence for start in facts.starts[:4])


def _number(text: str) -> float:
    try:
        return float(text.split()[0])
    except (ValueError, IndexError):
        return 0.0


RULES = (
    Rule(
        "switches do not add (SHARP, NVLS)",
        "look for NVLS or CollNet in NCCL_DEBUG=INFO; start the fabric manager or the aggregator",
        _adding_off,
    ),
    Rule(
        "a slow rank",
        "compare that GPU's clocks, temperature and ECC counters with its peers'; try without it",
        _slow_rank,
    ),
    Rule(
        "a slow link or network card",
        "check cables, port rates and error counters of those ranks' cards",
        _slow_link,
    ),
    Rule(
        "fallback to PCIe",
        "check nvidia-smi topo -m for NV links, and NCCL_DEBUG=INFO for P2P",
        _pcie,
    ),
    Rule(
        "fallback to sockets",
        "check that NCCL_DEBUG=INFO says NET/IB, and that NCCL_IB_HCA names every card",
        _sockets,
    ),
    Rule(
        "oversubscribed or shared uplinks",
        "state the oversubscription in the profile, or check routing and the number of cards",
        _shared_uplinks,
    ),
    Rule(
        "throttled clocks",
        "check power limits and cooling: nvidia-smi -q -d PERFORMANCE",
        _clocks,
    ),
    Rule(
        "matmuls at the power limit",
        "nothing is wrong if the power limit is the datasheet's; a calibration takes it in",
        _sagging,
    ),
    Rule(
        "a shared or overloaded host",
        "measure on an idle machine; give each rank cores of its own",
        _contention,
    ),
    Rule(
        "slow starts of messages",
        "check CPU frequency and affinity, and NCCL_PROTO",
        _late_starts,
    ),
)
