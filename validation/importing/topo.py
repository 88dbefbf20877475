"""The table of ``nvidia-smi topo -m`` as a cluster profile: which GPUs NVLink joins, and how fast.

    every pair has all of a GPU's NVLinks         one node with a switch
    every pair has some                           one node without: each pair its own links
    NVLink joins equal islands                    islands, joined by PCIe
    no NVLink                                     one node on PCIe

Network cards become a tier beyond the node when their rate is told; the table does not have it.
"""

from __future__ import annotations

import re
from typing import Any

import hardware_profiles as hp
from hardware_profiles.schema import Accelerator, Cluster, Link
from roofline.topology import Topology
from roofline.topology import read as table

PCIE = Link(
    name="PCIe 4.0 x16",
    bandwidth=31.5e9,
    source="assumption: 16 lanes x 16 GT/s / 8 x 128/130",
)


def cluster(text: str, gpu: str, name: str, nic: float = 0.0, nodes: int = 1) -> Cluster:
    """The node that printed the table, with GPUs called ``gpu`` in the catalogue.

    Args:
        nic: bandwidth of one network card [B/s]; 0 leaves the network out.
        nodes: such nodes that the network joins.

    Raises:
        ValueError: no table, NVLinks that the GPU does not have, or islands of different sizes.
    """
    topology, chip = table(text), hp.accelerator(gpu)
    tiers = _inside(topology, chip)
    if nodes > 1:
        tiers.append(_network(topology, nic, nodes))
    count = len(topology.gpus)
    return Cluster(
        name=name,
        title=f"{nodes * count} x {chip.title}",
        accelerator=chip,
        tiers=tiers,
        host_link=_pcie(chip),
        notes="From nvidia-smi topo -m; rates are the datasheet's, not measured.",
    )


def _inside(topology: Topology, chip: Accelerator) -> list[Any]:
    island, links = _islands(topology), _links(topology)
    count, pcie = len(topology.gpus), _pcie(chip)
    tiers: list[Any] = []
    if island > 1:
        tiers.append(_nvlink(chip, island, links, whole=island == count))
    if island < count:
        worst = _worst(topology)
        tiers.append(
            {
                "name": "node" if island == 1 else "PCIe",
                "degree": count // island,
                "bandwidth": pcie.total * island,
                "technology": pcie.name,
                "source": f"nvidia-smi topo -m: {worst} at worst; {pcie.source}",
            }
        )
    if not tiers:
        own = {"bandwidth": pcie.total, "source": f"nvidia-smi topo -m: one GPU; {pcie.source}"}
        tiers.append({"name": "node", "degree": 1} | own)
    return tiers


def _nvlink(chip: Accelerator, island: int, links: int, *, whole: bool) -> dict[str, Any]:
    fast = next((link for link in chip.links if link.name.startswith("NVLink")), None)
    if fast is None or links > fast.count:
        has = fast.count if fast else 0
        raise ValueError(
            f"gpu: {chip.name} has {has} NVLinks, the table {links} to each GPU; "
            "say another GPU of the catalogue"
        )
    switched = links == fast.count or island == 2
    total = fast.total / fast.count * (links if switched else links * (island - 1))
    how = "through a switch" if links == fast.count and island > 2 else "to each other GPU"
    return {
        "name": "node" if whole else "island",
        "degree": island,
        "bandwidth": total,
        "direct": not switched,
        "transit": False,
        "technology": fast.name,
        "link_bandwidth": fast.total / fast.count,
        "source": f"nvidia-smi topo -m: {links} NVLinks {how}; {fast.source}",
    }


def _network(topology: Topology, nic: float, nodes: int) -> dict[str, Any]:
    cards = [card for card in topology.nics if not re.match(r"mlx\d+_bond", card.called)]
    if not (nic > 0 and cards):
        raise ValueError(f"nic-gbps: {len(cards)} cards in the table; say how fast one is")
    return {
        "name": "network",
        "degree": nodes,
        "bandwidth": nic * len(cards),
        "reason": "as many cards as the table lists, at the rate that was told",
        "source": f"nvidia-smi topo -m: {len(cards)} cards; {nic / 1e9:g} GB/s each as told",
    }


def _islands(topology: Topology) -> int:
    """GPUs in each group that NVLink joins.

    Raises:
        ValueError: groups of different sizes, or pairs in one that are not joined.
    """
    rows = topology.nvlinks
    groups = {frozenset([i, *(j for j, n in enumerate(row) if n)]) for i, row in enumerate(rows)}
    sizes = {len(group) for group in groups}
    if len(sizes) > 1 or sum(map(len, groups)) != len(rows):
        told = "; ".join(
            " ".join(topology.gpus[i].name for i in sorted(group)) for group in map(sorted, groups)
        )
        raise ValueError(f"NVLink joins groups that are no tiers: {told}")
    return sizes.pop()


def _links(topology: Topology) -> int:
    """NVLinks of the pair that has the fewest, of those that have any."""
    return min((n for row in topology.nvlinks for n in row if n), default=0)


def _worst(topology: Topology) -> str:
    names = [gpu.name for gpu in topology.gpus]
    links = [topology.link(a, b) for a in names for b in names if a != b]
    return max(links, key=lambda link: link.distance).means


def _pcie(chip: Accelerator) -> Link:
    return next((link for link in chip.links if link.name.startswith("PCIe")), PCIE)
