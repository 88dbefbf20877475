"""What follows from a cluster's tiers: egress, bisection, switches, cables, fat trees.

Nothing here is stored in a profile, so nothing here can disagree with one. Bandwidths are one way
unless a function asks for ``directions``. A number that a profile does not give is None in the
result, never a guess.

Sources: "How to Scale Your Model", chapter 12 (https://jax-ml.github.io/scaling-book/gpus/), and
the NVIDIA DGX SuperPOD reference architectures for the switch counts
(https://docs.nvidia.com/dgx-superpod/).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hardware_profiles.schema import Cluster, NetworkTier


def egress(cluster: Cluster, index: int) -> float:
    """What a unit of tier ``index`` sends outwards while its siblings do too. [B/s, one way]

    W_out = bandwidth of a child of the next tier / its oversubscription; 0 for the outermost tier,
    which has no outside. -1 stands for one accelerator. Scaling book, chapter 12: 450e9 a GPU,
    400e9 a DGX H100.

    >>> from hardware_profiles import cluster
    >>> egress(cluster("gb200-nvl72-superpod"), 0)
    3600000000000.0
    """
    if not -1 <= index < len(cluster.tiers):
        raise ValueError(f"{cluster.name} has tiers 0 to {len(cluster.tiers) - 1}, not {index}")
    outer = index + 1
    return cluster.tiers[outer].effective_bandwidth if outer < len(cluster.tiers) else 0.0


def per_gpu(cluster: Cluster, index: int) -> float:
    """One accelerator's part of tier ``index``: child's bandwidth / accelerators in it. [B/s]

    >>> from hardware_profiles import cluster
    >>> [per_gpu(cluster("dgx-h100-superpod"), i) / 1e9 for i in range(3)]
    [450.0, 50.0, 50.0]
    """
    return cluster.tiers[index].effective_bandwidth / cluster.unit_sizes[index]


def units(cluster: Cluster, index: int) -> int:
    """How many units of tier ``index`` the whole cluster has. [1]

    >>> from hardware_profiles import cluster
    >>> [units(cluster("dgx-h100-superpod"), i) for i in range(3)]
    [128, 4, 1]
    """
    return cluster.gpus // cluster.unit_sizes[index + 1]


def collective_bandwidth(tier: NetworkTier) -> float:
    """V / T of a ring all-gather or reduce-scatter over a unit: W D/(D-1). [B/s]

    T = V (D-1) / (D W) (scaling book, chapter 12). Infinite for one child, which sends nothing.
    """
    if tier.degree == 1:
        return math.inf
    return tier.effective_bandwidth * tier.degree / (tier.degree - 1)


@dataclass(frozen=True, slots=True)
class Slowest:
    """The tier that decides a collective over the whole cluster, and what it allows."""

    tier: str
    bandwidth: float  # V / T [B/s]


def slowest_collective(cluster: Cluster) -> Slowest:
    """Minimum of W D/(D-1) over the tiers: a hierarchical collective over all accelerators. [B/s]

    T = V max_i (D_i-1)/(D_i W_i), the levels overlapping (scaling book, chapter 12).

    >>> from hardware_profiles import cluster
    >>> slowest_collective(cluster("dgx-h100-superpod"))
    Slowest(tier='scalable unit', bandwidth=412903225806.4516)
    """
    tier = min(cluster.tiers, key=collective_bandwidth)
    return Slowest(tier.name, collective_bandwidth(tier))


def bisection(tier: NetworkTier, directions: int = 1) -> float:
    """What crosses the middle of one unit: D W / 2 one way, D W with both directions added. [B/s]

    The book quotes 3.6e12 for a DGX H100: both ways; its rule "2 x bisection / N" needs 1.8e12.
    Without a switch, only links between the two halves cross: ⌊D/2⌋ ⌈D/2⌉ of W/(D-1) each.

    >>> from hardware_profiles import cluster
    >>> [bisection(cluster("dgx-h100-superpod").tiers[0], d) for d in (1, 2)]
    [1800000000000.0, 3600000000000.0]
    """
    if directions not in (1, 2):
        raise ValueError(
            f"directions: {directions!r} is refused; allowed: 1 (one way) and 2 (both ways added)"
        )
    if tier.direct and tier.degree > 1:
        links = (tier.degree // 2) * -(-tier.degree // 2)
        return links * tier.effective_bandwidth / (tier.degree - 1) * directions
    return tier.degree * tier.effective_bandwidth / 2 * directions


def switch_capacity(tier: NetworkTier) -> float | None:
    """All switch ports of one unit together: switches x ports x bandwidth of a link. [B/s, one way]

    >>> from hardware_profiles import cluster
    >>> [switch_capacity(tier) for tier in cluster("dgx-h100-superpod").tiers]
    [6400000000000.0, 25600000000000.0, 51200000000000.0]
    """
    if not tier.switches or tier.switch_ports is None or tier.link_bandwidth is None:
        return None
    return tier.switches * tier.switch_ports * tier.link_bandwidth


def cable_bandwidth(tier: NetworkTier) -> float:
    """All children's links of one unit together: degree x bandwidth. [B/s, one way]"""
    return tier.degree * tier.bandwidth


def unit_bandwidth(tier: NetworkTier) -> float:
    """What one unit carries: the lesser of its switches and its children's links. [B/s, one way]

    min(4 x 64 x 25e9, 8 x 450e9) = 3.6e12 for a DGX H100 (scaling book, chapter 12, quiz 2).
    """
    cables = cable_bandwidth(tier)
    return min(switch_capacity(tier) or cables, cables)


@dataclass(frozen=True, slots=True)
class TierCapacity:
    """One tier of a cluster with everything that follows from it; bandwidths one way in B/s."""

    tier: str
    gpus: int  # accelerators under one unit
    units: int  # units in the cluster
    child: float  # what one child sends into the unit, after oversubscription
    per_gpu: float
    egress: float  # what one unit sends outwards
    collective: float  # W D/(D-1)
    bisection: float
    switch_capacity: float | None
    unit_bandwidth: float
    switches: int | None  # in the whole cluster
    cables: int | None  # in the whole cluster, from the children into their units


def capacities(cluster: Cluster) -> tuple[TierCapacity, ...]:
    """Every tier from the inside out.

    >>> from hardware_profiles import cluster
    >>> pod = capacities(cluster("dgx-h100-superpod"))
    >>> [(row.tier, row.switches, row.cables) for row in pod]
    [('node', 512, 18432), ('scalable unit', 32, 1024), ('SuperPod', 16, 1024)]
    """
    switches, cables = switch_counts(cluster), cable_counts(cluster)
    return tuple(
        TierCapacity(
            tier=tier.name,
            gpus=cluster.unit_sizes[i + 1],
            units=units(cluster, i),
            child=tier.effective_bandwidth,
            per_gpu=per_gpu(cluster, i),
            egress=egress(cluster, i),
            collective=collective_bandwidth(tier),
            bisection=bisection(tier),
            switch_capacity=switch_capacity(tier),
            unit_bandwidth=unit_bandwidth(tier),
            switches=switches[i],
            cables=cables[i],
        )
        for i, tier in enumerate(cluster.tiers)
    )


def switch_counts(cluster: Cluster) -> tuple[int | None, ...]:
    """Switches of each tier in the whole cluster, from the inside out: units x switches. [1]

    >>> from hardware_profiles import cluster
    >>> switch_counts(cluster("dgx-h100-superpod"))
    (512, 32, 16)
    """
    return tuple(
        None if tier.switches is None else units(cluster, i) * tier.switches
        for i, tier in enumerate(cluster.tiers)
    )


def cable_counts(cluster: Cluster) -> tuple[int | None, ...]:
    """Links from the children of each tier: units x degree x bandwidth / link's bandwidth. [1]

    NVIDIA's table for 4 scalable units has 1024 node-leaf and 1024 leaf-spine cables. Where
    children join each other without a switch (xGMI, a TPU's torus), two ends make a cable.
    """
    return tuple(
        None
        if tier.link_bandwidth is None
        else units(cluster, i) * tier.degree * round(tier.bandwidth / tier.link_bandwidth)
        for i, tier in enumerate(cluster.tiers)
    )


@dataclass(frozen=True, slots=True)
class FatTree:
    """Switches of a non-blocking, rail-aligned fat tree."""

    scalable_units: int
    leaves: int
    spines: int
    cores: int  # 0 where two levels do

    @property
    def switches(self) -> int:
        """Leaves, spines and cores together."""
        return self.leaves + self.spines + self.cores


def fat_tree(gpus: int, ports: int = 64, rails: int = 8) -> FatTree:
    """Switches that join ``gpus`` without blocking, one NIC a GPU, one leaf a rail and unit.

    A leaf has ports/2 links down, so a scalable unit is rails x ports/2 GPUs (256). Two levels
    reach ports^2/2 GPUs (2048) with half as many spines as leaves; three levels reach ports^3/4
    with as many spines as leaves and half as many cores. A unit that is not full still needs all
    its leaves. NVIDIA DGX SuperPOD B200 reference architecture.

    >>> fat_tree(1024)
    FatTree(scalable_units=4, leaves=32, spines=16, cores=0)
    >>> fat_tree(4096)
    FatTree(scalable_units=16, leaves=128, spines=128, cores=64)
    """
    if ports < 2 or ports % 2 or rails < 1:
        raise ValueError(
            f"ports {ports}, rails {rails}: allowed: an even number of ports, at least one rail"
        )
    if not 1 <= gpus <= ports**3 // 4:
        raise ValueError(
            f"{gpus} GPUs: three levels of {ports}-port switches join 1 to {ports**3 // 4}"
        )
    scalable_units = -(-gpus // (rails * ports // 2))
    leaves = rails * scalable_units
    if gpus <= ports**2 // 2:
        return FatTree(scalable_units, leaves, -(-leaves // 2), 0)
    return FatTree(scalable_units, leaves, leaves, -(-leaves // 2))
