"""Worked problems about networks: links, switches, fat trees and the tables of a SuperPod."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hardware_profiles import Cluster, Link, NetworkTier, cluster
from hardware_profiles.derived import (
    bisection,
    cable_bandwidth,
    capacities,
    egress,
    fat_tree,
    per_gpu,
    switch_capacity,
    switch_counts,
    unit_bandwidth,
)
from roofline.collectives import ALL_GATHER, ALL_REDUCE, bandwidth, seconds
from roofline.groups import Group
from roofline.machine import Tier
from roofline.units import parse

Inputs = Mapping[str, float]
Solver = Callable[[Inputs], float]

POD = cluster("dgx-h100-superpod")
B200 = cluster("dgx-b200-superpod")
RACKS = cluster("gb200-nvl72-superpod")
A100 = cluster("dgx-a100-superpod")
NODE, LEAF, SPINE = POD.tiers


def _egress(links: float, one: float) -> float:
    """Identical links together."""
    return Link(name="link", count=int(links), bandwidth=one, source="given").total


def _bits(rate: float) -> float:
    return parse(f"{rate:g} b/s", "B/s")


def _switches(tier: NetworkTier = NODE, **given: float) -> float:
    """Port capacity of a tier with the numbers that a problem gives."""
    capacity = switch_capacity(_tier(tier, **given))
    assert capacity is not None
    return capacity


def _tier(tier: NetworkTier, **given: float) -> NetworkTier:
    whole = {k: v if k.endswith("bandwidth") else int(v) for k, v in given.items()}
    return NetworkTier.model_validate(tier.model_dump() | whole)


def _pod(units: float, nodes: float, gpus: float = 8) -> Cluster:
    """A SuperPod of other degrees."""
    degrees = zip(POD.tiers, (gpus, nodes, units), strict=True)
    tiers = [_tier(tier, degree=degree) for tier, degree in degrees]
    return Cluster.model_validate(POD.model_dump() | {"tiers": tiers})


def _node_egress(machine: Cluster, bandwidth: float) -> float:
    node, network = machine.tiers[0], _tier(machine.tiers[1], bandwidth=bandwidth)
    return egress(machine.model_copy(update={"tiers": (node, network)}), 0)


def _collective(gpus: int) -> float:
    """Collective bandwidth of so many GPUs as the book's table has it, without (d-1)/d."""
    return 1 / float(seconds(ALL_GATHER, 1.0, Group(gpus), POD.tiers, form="rough"))


def _spine_reduction(i: Inputs) -> float:
    """All-reduce in the spines of arrays sharded over a whole unit: bytes/s of one unit."""
    one = _switches(SPINE, switches=i["spines"]) / i["n_su"]
    tier = Tier(i["n_su"], one, in_network_reduction=True)
    return 1 / float(seconds(ALL_REDUCE, 1.0, Group(i["n_su"]), [tier], in_network="theory"))


SOLVERS: dict[str, Solver] = {
    "node-nvlink-ampere": lambda i: _egress(i["links"], i["w"]),
    "node-nvlink-hopper": lambda i: _egress(i["links"], i["w"]),
    "node-nvlink-blackwell": lambda i: _egress(i["links"], i["w"]),
    "node-size-ampere": lambda i: A100.tiers[0].degree,
    "node-size-hopper": lambda i: NODE.degree,
    "node-size-blackwell": lambda i: RACKS.tiers[0].degree,
    "node-switch-bw-h100": lambda i: _switches(
        switches=i["switches"], switch_ports=i["ports"], link_bandwidth=i["w"]
    ),
    "node-egress-h100": lambda i: _egress(i["nics"], _bits(i["rate"])),
    "node-egress-per-gpu": lambda i: _egress(1, _bits(i["rate"])),
    "gb200-node-egress": lambda i: _egress(i["trays"] * i["nics"], _bits(i["rate"])),
    "gb200-egress-ratio": lambda i: _node_egress(RACKS, i["a"]) / _node_egress(POD, i["b"]),
    "tpu-v5p-egress": lambda i: _egress(i["links"], i["w"]),
    "q2.1-one-nvswitch": lambda i: _switches(
        switches=1, switch_ports=i["ports"], link_bandwidth=i["w"]
    ),
    "q2.1-node-bandwidth": lambda i: unit_bandwidth(
        _tier(
            NODE,
            degree=i["n_gpu"],
            bandwidth=i["W"],
            switches=i["switches"],
            switch_ports=i["ports"],
            link_bandwidth=i["w"],
        )
    ),
    "q2.2-bisection-h100-node": lambda i: bisection(
        _tier(NODE, degree=i["n_gpu"], bandwidth=i["W"]), directions=2
    ),
    "ib-over-nvswitch": lambda i: (
        _switches(switches=1, switch_ports=i["ports"], link_bandwidth=_bits(i["rate"]))
        / _switches(switches=1, switch_ports=i["ports"], link_bandwidth=i["w"])
    ),
    "superpod-gpus": lambda i: _pod(i["n_su"], i["nodes"], i["gpus"]).gpus,
    "superpod-switches": lambda i: sum(
        count or 0 for count in switch_counts(_pod(i["n_su"], i["nodes"]))
    ),
    "q3.1-node-to-leaf": lambda i: _egress(i["cables"], _bits(i["rate"])),
    "q3.1-leaf-downlink-su": lambda i: _switches(
        LEAF, switches=i["leafs"], switch_ports=i["ports"], link_bandwidth=_bits(i["rate"])
    ),
    "q3.1-leaf-downlink-one": lambda i: _switches(
        LEAF, switches=1, switch_ports=i["ports"], link_bandwidth=_bits(i["rate"])
    ),
    "q3.1-spine-total": lambda i: _switches(SPINE, switches=i["spines"]),
    "q3.1-spine-per-node": lambda i: _switches(SPINE, switches=i["spines"]) / i["nodes"],
    "q3.2-sus-2048": lambda i: fat_tree(int(i["n"])).scalable_units,
    "q3.2-spines-2048": lambda i: fat_tree(int(i["n"])).spines,
    "q3.2-leaf-spine-cables-2048": lambda i: LEAF.degree / fat_tree(int(i["n"])).spines,
    "q3.2-cores-4096": lambda i: fat_tree(int(i["n"])).cores,
    "q4.4-spine-ar": _spine_reduction,
    "appB-spine-switch": lambda i: _switches(SPINE, switches=i["spines"]),
    "appB-spine-per-gpu": lambda i: _switches(SPINE, switches=i["spines"]) / POD.gpus,
    "appB-leaf-links": lambda i: cable_bandwidth(LEAF),
    "appB-leaf-switch": lambda i: _switches(LEAF, switch_ports=LEAF.degree),
    "appB-spine-links": lambda i: cable_bandwidth(SPINE),
    "pq3-50gb": lambda i: per_gpu(POD, 1),
    # Tables
    "table-node-h100-gpus": lambda i: capacities(POD)[0].gpus,
    "table-node-h100-gpu-egress": lambda i: egress(POD, -1),
    "table-node-h100-node-egress": lambda i: egress(POD, 0),
    "table-node-b200-gpu-egress": lambda i: egress(B200, -1),
    "table-node-b200-node-egress": lambda i: egress(B200, 0),
    "table-node-gb200-nvl72-gpus": lambda i: capacities(RACKS)[0].gpus,
    "table-node-gb200-nvl72-gpu-egress": lambda i: egress(RACKS, -1),
    "table-node-gb200-nvl72-node-egress": lambda i: egress(RACKS, 0),
    "table-fattree-node-gpu-bw": lambda i: per_gpu(POD, 0),
    "table-fattree-node-tree-bw": lambda i: _collective(8),
    "table-fattree-leaf-unit-bw": lambda i: unit_bandwidth(LEAF),
    "table-fattree-leaf-gpu-bw": lambda i: per_gpu(POD, 1),
    "table-fattree-leaf-tree-bw": lambda i: _collective(256),
    "table-fattree-spine-unit-bw": lambda i: unit_bandwidth(SPINE),
    "table-fattree-spine-gpu-bw": lambda i: per_gpu(POD, 2),
    "table-fattree-spine-tree-bw": lambda i: _collective(1024),
    "table-collbw-node-switch": lambda i: _switches(NODE),
    "table-collbw-node-cable": lambda i: cable_bandwidth(NODE),
    "table-collbw-node-collective": lambda i: _collective(8),
    "table-collbw-leaf-switch": lambda i: _switches(LEAF),
    "table-collbw-leaf-cable": lambda i: cable_bandwidth(LEAF),
    "table-collbw-spine-switch": lambda i: _switches(SPINE),
    "table-collbw-spine-cable": lambda i: cable_bandwidth(SPINE),
    "table-collbw-spine-collective": lambda i: _collective(1024),
    "table-level-node-gpus": lambda i: capacities(POD)[0].gpus,
    "table-level-node-degree": lambda i: NODE.degree,
    "table-level-leaf-gpus": lambda i: capacities(POD)[1].gpus,
    "table-level-leaf-degree": lambda i: LEAF.degree,
    "table-level-spine-degree": lambda i: SPINE.degree,
    "table-nvswitches-ampere": lambda i: A100.tiers[0].switches or 0,
    "table-nvswitches-blackwell-b200": lambda i: B200.tiers[0].switches or 0,
    "table-nvswitches-blackwell-nvl72": lambda i: RACKS.tiers[0].switches or 0,
    # Collective bandwidth of one level
    "ag-bandwidth-node": lambda i: float(
        bandwidth(ALL_GATHER, Group(i["D"]), [Tier(i["D"], i["W"])])
    ),
    "xnode-ag-bw-leaf": lambda i: float(
        bandwidth(ALL_GATHER, Group(i["D"]), [Tier(i["D"], i["W"])])
    ),
    "xnode-ag-bw-spine": lambda i: float(
        bandwidth(ALL_GATHER, Group(i["D"]), [Tier(i["D"], i["W"])])
    ),
    "q4.5-node-bw": lambda i: float(bandwidth(ALL_GATHER, Group(8), [Tier(8, i["W"])])),
    "q4.5-leaf-bw": lambda i: float(bandwidth(ALL_GATHER, Group(2), [Tier(2, i["W"])])),
}

NOT_COVERED: dict[str, str] = {}
