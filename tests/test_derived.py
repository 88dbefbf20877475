"""Arithmetic on profiles against published numbers."""

import math

import pytest

from hardware_profiles import accelerator, cluster, clusters, derived
from hardware_profiles.schema import NetworkTier
from roofline.layout import Layout
from roofline.machine import node_size
from roofline.planner import plan
from roofline.presets import preset
from roofline.training import training

POD = "dgx-h100-superpod"


def test_superpod_has_the_switches_and_cables_nvidia_prints() -> None:
    assert derived.switch_counts(cluster(POD)) == (512, 32, 16)
    assert derived.cable_counts(cluster(POD)) == (128 * 8 * 18, 1024, 1024)
    assert derived.switch_counts(cluster("dgx-b200-superpod"))[1:] == (32, 16)
    assert derived.switch_counts(cluster("dgx-b300-superpod"))[1:] == (64, 32)


# DGX SuperPOD B200 reference architecture: GPUs, leaves, spines, cores.
SIZES = [
    (512, 16, 8, 0),
    (1024, 32, 16, 0),
    (2048, 64, 32, 0),
    (4096, 128, 128, 64),
    (8192, 256, 256, 128),
    (16384, 512, 512, 256),
]


@pytest.mark.parametrize(("gpus", "leaves", "spines", "cores"), SIZES)
def test_fat_tree_is_nvidias_table(gpus: int, leaves: int, spines: int, cores: int) -> None:
    tree = derived.fat_tree(gpus)
    assert (tree.leaves, tree.spines, tree.cores) == (leaves, spines, cores)
    assert tree.scalable_units == gpus // 256
    assert tree.switches == leaves + spines + cores


def test_a_part_of_a_scalable_unit_needs_all_its_leaves() -> None:
    assert derived.fat_tree(1) == derived.fat_tree(256) == derived.FatTree(1, 8, 4, 0)
    assert derived.fat_tree(257).leaves == 16
    assert derived.fat_tree(2049).cores > 0


@pytest.mark.parametrize("arguments", [(0,), (-8,), (65537,), (8, 63), (8, 0), (8, 64, 0)])
def test_fat_tree_says_what_is_allowed(arguments: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"allowed|join 1 to 65536"):
        derived.fat_tree(*arguments)


def test_egress_of_gpus_nodes_and_racks() -> None:
    assert [derived.egress(cluster(POD), i) for i in (-1, 0, 1, 2)] == [450e9, 400e9, 12.8e12, 0]
    assert derived.egress(cluster("gb200-nvl72-superpod"), 0) == 3.6e12
    assert derived.egress(cluster("llama3-roce-24k"), 2) == pytest.approx(153.6e12 / 7)
    with pytest.raises(ValueError, match="has tiers 0 to 2, not 3"):
        derived.egress(cluster(POD), 3)


def test_switches_and_cables_of_each_level() -> None:
    """Scaling book, chapter 12: 6.4, 25.6 and 51.2 TB/s of switches; 3.6, 12.8, 51.2 of cables."""
    tiers = cluster(POD).tiers
    assert [derived.switch_capacity(tier) for tier in tiers] == [6.4e12, 25.6e12, 51.2e12]
    assert [derived.cable_bandwidth(tier) for tier in tiers] == [3.6e12, 12.8e12, 51.2e12]
    assert [derived.unit_bandwidth(tier) for tier in tiers] == [3.6e12, 12.8e12, 51.2e12]
    rack = cluster("gb200-nvl72-superpod").tiers[0]
    assert derived.switch_capacity(rack) == derived.cable_bandwidth(rack) == 64.8e12


def test_few_switches_limit_a_unit() -> None:
    tier = NetworkTier(
        name="t",
        degree=8,
        bandwidth=450e9,
        switches=1,
        switch_ports=64,
        link_bandwidth=25e9,
        source="s",
    )
    assert derived.unit_bandwidth(tier) == 1.6e12


def test_bisection_one_way_and_both() -> None:
    node = cluster(POD).tiers[0]
    assert derived.bisection(node) == 1.8e12
    assert derived.bisection(node, directions=2) == 3.6e12
    with pytest.raises(ValueError, match="allowed: 1"):
        derived.bisection(node, directions=3)


def test_collective_bandwidth_is_the_least_of_the_tiers() -> None:
    slowest = derived.slowest_collective(cluster(POD))
    assert slowest.tier == "scalable unit"
    assert slowest.bandwidth == pytest.approx(400e9 * 32 / 31)
    two_nodes = derived.slowest_collective(cluster(POD).resized(16))
    assert two_nodes.tier == "node"
    assert two_nodes.bandwidth == pytest.approx(450e9 * 8 / 7)
    assert derived.collective_bandwidth(cluster(POD).resized(1).tiers[0]) == math.inf


@pytest.mark.parametrize("name", clusters())
def test_capacities_of_every_cluster(name: str) -> None:
    machine = cluster(name)
    rows = derived.capacities(machine)
    assert [row.tier for row in rows] == [tier.name for tier in machine.tiers]
    assert rows[-1].gpus == machine.gpus
    assert rows[-1].units == 1
    assert all(row.gpus * row.units == machine.gpus for row in rows)
    assert all(0 < row.unit_bandwidth <= row.child * row.gpus * 10 for row in rows)


def test_ridge_points() -> None:
    """Scaling book, chapter 12, quiz 1: 295 for an H100, 281 for a B200, twice that in fp8."""
    h100, b200 = accelerator("h100-sxm"), accelerator("b200-sxm")
    assert derived.ridge(h100.flops("bf16"), h100.hbm_bandwidth) == pytest.approx(295.3, abs=0.1)
    assert derived.ridge(b200.flops("bf16"), b200.hbm_bandwidth) == 281.25
    assert derived.ridge(b200.flops("fp8"), b200.hbm_bandwidth) == 562.5
    assert derived.ridge(1.0, None) is None


def test_memory_ladder_from_registers_to_the_superpod() -> None:
    rungs = derived.memory_ladder(cluster(POD))
    assert [rung.level for rung in rungs[:4]] == ["registers", "shared memory", "L2", "HBM"]
    assert [rung.level for rung in rungs[4:]] == ["node", "scalable unit", "SuperPod"]
    lanes, cycles = 132 * 4 * 32, 1.83e9
    assert rungs[0].bandwidth == lanes * 3 * 4 * cycles  # three operands of a fused multiply-add
    assert rungs[1].bandwidth == 132 * 32 * 4 * cycles  # 32 banks of 4 bytes
    assert rungs[3].capacity == 80e9
    assert rungs[4].capacity == 640e9
    assert rungs[5].ridge == pytest.approx(989.4e12 / 400e9)
    assert rungs[5].ridge_per_gpu == pytest.approx(989.4e12 / 50e9)
    alone = derived.memory_ladder(accelerator("l40s"), "fp8")
    on_chip = [142 * 256 * 2**10, 142 * 128 * 2**10]
    assert [rung.capacity for rung in alone] == [*on_chip, None, 48e9]
    assert derived.memory_ladder(accelerator("gb300"))[0].bandwidth is None  # SMs unknown
    with pytest.raises(ValueError, match="l40s has no fp4 rate; it has"):
        derived.memory_ladder(accelerator("l40s"), "fp4")


def test_lanes_and_vector_rates() -> None:
    """Scaling book, chapter 12, quizzes 1 and 2; datasheets for the rates with FMA."""
    h100 = accelerator("scaling-book-h100")
    assert derived.cuda_cores(h100) == 16896
    assert derived.cuda_cores(accelerator("a100-sxm-80gb")) == 6912
    assert derived.cuda_cores(accelerator("v100-sxm")) == 5120
    assert derived.cuda_cores(accelerator("mi300x")) == 19456
    assert derived.cuda_cores(accelerator("tpu-v5p")) == 8192
    assert derived.cuda_cores(accelerator("gb300")) is None
    assert derived.vector_flops(h100, 1.59e9, fma=False) == pytest.approx(26.86e12, rel=1e-3)
    assert derived.vector_flops(h100, fma=False) == pytest.approx(33.45e12, rel=1e-3)
    assert derived.vector_flops(accelerator("a100-sxm-80gb")) == pytest.approx(19.5e12, rel=1e-3)
    assert derived.vector_flops(accelerator("gb300")) is None


@pytest.mark.parametrize(
    ("name", "dtype", "flops"),
    [
        ("v100-sxm", "fp16", 256),
        ("a100-sxm-80gb", "bf16", 512),
        ("h100-sxm", "bf16", 1024),
        ("h100-pcie", "bf16", 1024),
        ("h200-sxm", "fp8", 2048),
        ("b200-sxm", "bf16", 2048),
        ("gb200", "bf16", 2048),
    ],
)
def test_boost_clocks_reproduce_the_dense_peaks(name: str, dtype: str, flops: int) -> None:
    found = derived.tensor_core_flops_per_cycle(accelerator(name), dtype)
    assert found == pytest.approx(flops, rel=3e-3)


def test_on_chip_memories() -> None:
    h100 = accelerator("h100-sxm")
    assert derived.registers_total(h100) == derived.l1_total(h100) == 33 * 2**20
    assert derived.l1_total(accelerator("gb300")) is None


@pytest.mark.parametrize(
    ("generation", "expected"), [(3, 15.75e9), (4, 31.5e9), (5, 63e9), (6, 121e9), (7, 242e9)]
)
def test_pcie(generation: int, expected: float) -> None:
    assert derived.pcie_bandwidth(generation) == pytest.approx(expected, rel=1e-3)
    assert derived.pcie_bandwidth(generation, lanes=8) == derived.pcie_bandwidth(generation) / 2


def test_an_unknown_pcie_is_refused() -> None:
    with pytest.raises(ValueError, match="PCIe 9: allowed: 3, 4, 5, 6, 7"):
        derived.pcie_bandwidth(9)


def test_a_server_of_cards_bridged_in_pairs() -> None:
    """NVIDIA's H100 table: 600 GB/s of NVLink and 128 GB/s of PCIe a card, both directions; a server
    is eight of them, for layouts and launch files alike.
    """
    box = cluster("h100-pcie-box")
    pair, node = box.tiers
    assert 2 * pair.bandwidth == 600e9
    assert node.bandwidth / pair.degree == pytest.approx(128e9 / 2 * 128 / 130, rel=0.01)
    assert node_size(box.tiers) == box.gpus == 8
    assert [node_size(box.resized(gpus).tiers) for gpus in (1, 2, 4)] == [1, 2, 4]
    assert node_size(cluster(POD).tiers) == 8
    assert node_size(cluster("gb200-nvl72-superpod").tiers) == 72
    assert node_size(()) == 1
    job = training(preset("llama-3-8b").model, Layout(8, tp=4, batch=8), box)
    assert "--nnodes 1 --nproc-per-node 8" in job.export("megatron")
    assert plan(job.model, box, tokens=8 * 4096, sequence=4096, tp=8).fitting
