"""The catalogue: all that ships is sound, sourced and quick to load."""

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hardware_profiles as hp
from hardware_profiles import catalog, derived
from hardware_profiles.calibration import for_accelerator
from hardware_profiles.errors import ProfileError

ACCELERATORS = sorted(path.stem for path in (catalog.SHIPPED / "accelerators").glob("*.yaml"))
CLUSTERS = sorted(path.stem for path in (catalog.SHIPPED / "clusters").glob("*.yaml"))
FILES = sorted(catalog.SHIPPED.glob("*/*.yaml"))


def chip_of(name: str) -> str:
    """Name of the accelerator of a shipped cluster."""
    return hp.cluster(name).accelerator.name


@pytest.mark.parametrize("name", ACCELERATORS)
def test_accelerators_are_whole(name: str) -> None:
    chip = hp.accelerator(name)
    assert chip.name == name
    assert all(chip.source_of(field) for field in chip.numbers())
    assert hp.read(hp.to_yaml(chip)) == chip
    # A lower precision is never slower: a slip of a factor, or a sparse rate, would show here.
    order = ("fp64", "tf32", "bf16", "fp8", "fp4")
    rates = [chip.peak_flops[dtype] for dtype in order if dtype in chip.peak_flops]
    assert rates == sorted(rates)


@pytest.mark.parametrize("name", CLUSTERS)
def test_clusters_are_whole(name: str) -> None:
    machine = hp.cluster(name)
    assert machine.name == name
    assert hp.read(hp.to_yaml(machine)) == machine
    inside = [derived.per_gpu(machine, i) for i in range(len(machine.tiers))]
    for inner, outer, tier in zip(inside, inside[1:], machine.tiers[1:], strict=False):
        assert outer <= inner * (1 + 1e-9) or tier.reason


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_files_say_where_numbers_are_from(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert "http" in text or "pcisig" in text
    assert "shared/" not in text
    assert f"\nname: {path.stem}\n" in text


@pytest.mark.parametrize("name", hp.calibrations())
def test_calibrations_are_whole(name: str) -> None:
    overlay = hp.calibration(name)
    assert overlay.name == name
    assert overlay.error
    for chip in overlay.accelerators:
        assert for_accelerator(chip) == overlay
        assert set(overlay.matmul) <= set(hp.accelerator(chip).peak_flops)


@pytest.mark.parametrize("name", [n for n in CLUSTERS if for_accelerator(chip_of(n))])
def test_calibrating_lowers_every_rate(name: str) -> None:
    machine = hp.cluster(name)
    overlay = for_accelerator(machine.accelerator.name)
    assert overlay is not None
    achieved = hp.calibrate(machine, overlay)
    assert overlay.name in achieved.name
    assert achieved.gpus == machine.gpus
    assert achieved.hbm_bandwidth < machine.hbm_bandwidth
    assert achieved.flops("bf16") == pytest.approx(machine.flops("bf16") * overlay.matmul["bf16"])
    for before, after in zip(machine.tiers, achieved.tiers, strict=True):
        assert after.bandwidth < before.bandwidth
        assert overlay.source in after.source
    assert hp.read(hp.to_yaml(achieved)) == achieved


def test_a_slow_data_type_leaves_a_calibration_usable() -> None:
    """A CPU without bf16 instructions reaches half a percent of its peak: 0.5 GFLOP/s."""
    machine = hp.cluster("dgx-h100-superpod")
    slow = hp.calibration("h100").model_copy(update={"matmul": {"bf16": 1e-6}})
    assert hp.calibrate(machine, slow).flops("bf16") == pytest.approx(machine.flops("bf16") * 1e-6)


def test_rates_that_no_machine_has_are_told_with_the_calibration_s_name() -> None:
    none = hp.calibration("h100").model_copy(update={"matmul": {"bf16": 1e-12}})
    with pytest.raises(ProfileError, match=r"calibration h100: accelerator\.peak_flops.*too small"):
        hp.calibrate(hp.cluster("dgx-h100-superpod"), none)


def test_a_calibration_for_other_chips_is_refused() -> None:
    with pytest.raises(ProfileError, match="calibration h100 is for h100-sxm, not for b200-sxm"):
        hp.calibrate(hp.cluster("dgx-b200-superpod"), hp.calibration("h100"))


def test_everything_loads_in_a_second() -> None:
    catalog._read_file.cache_clear()
    start = time.process_time()
    for name in ACCELERATORS:
        hp.accelerator(name)
    for name in CLUSTERS:
        hp.cluster(name)
    assert time.process_time() - start < 1
    assert hp.cluster("dgx-h100-superpod") is hp.cluster("dgx-h100-superpod")


def test_the_reference_superpod() -> None:
    pod = hp.cluster("dgx-h100-superpod")
    assert pod.unit_sizes == (1, 8, 256, 1024)
    assert [tier.bandwidth for tier in pod.tiers] == [450e9, 400e9, 12.8e12]
    assert [tier.transit for tier in pod.tiers] == [False, True, True]
    assert all(tier.in_network_reduction for tier in pod.tiers)
    assert hp.cluster("gb200-nvl72-superpod").unit_sizes == (1, 72, 576)
    assert hp.cluster("llama3-roce-24k").gpus == 24576
    assert hp.cluster("llama3-roce-24k").tiers[-1].oversubscription == 7
    assert hp.cluster("h800-deepseek").gpus == 2048


@pytest.mark.parametrize(
    ("name", "field", "printed"),
    [
        ("v100", "shared_memory_per_sm", 96e3),
        ("v100", "boost_clock", 1.38e9),
        ("a100", "l2_bytes", 40e6),
        ("a100", "base_clock", 1.1e9),
        ("h100", "hbm_bandwidth", 3.4e12),
        ("h200", "base_clock", 1.59e9),
        ("b200", "sms", 148),
        ("tpu-v3", "hbm_bandwidth", 9e11),
        ("tpu-v5p", "hbm_bytes", 96e9),
        ("tpu-v5e", "hbm_bandwidth", 8.1e11),
    ],
)
def test_textbook_chips_have_the_printed_numbers(name: str, field: str, printed: float) -> None:
    assert getattr(hp.accelerator(f"scaling-book-{name}"), field) == printed


def test_textbook_rates_and_links() -> None:
    assert hp.accelerator("scaling-book-b200").flops("bf16") == 2.3e15
    assert hp.accelerator("scaling-book-a100").flops("fp8") == 6.2e14
    assert hp.accelerator("scaling-book-tpu-v6e").flops("int8") == 1.84e15
    assert hp.accelerator("scaling-book-tpu-v4p").links[0].bandwidth == 45e9


@given(st.sampled_from(CLUSTERS), st.integers(1, 100_000))
def test_resizing_keeps_the_gpus_asked_for_or_says_which_fit(name: str, gpus: int) -> None:
    machine = hp.cluster(name)
    try:
        resized = machine.resized(gpus)
    except ValueError as error:
        below, above = (int(word) for word in str(error).rsplit(" are ", 1)[1].split(" and "))
        assert below < gpus < above
        resized, gpus = machine.resized(above), above
    assert resized.gpus == gpus
    assert [tier.name for tier in resized.tiers] == [t.name for t in machine.tiers][
        : len(resized.tiers)
    ]
    assert all(derived.per_gpu(resized, i) > 0 for i in range(len(resized.tiers)))


def test_resizing_forgets_switches_that_no_longer_fit() -> None:
    pod = hp.cluster("dgx-h100-superpod")
    assert pod.resized(1024) == pod
    assert derived.switch_counts(pod.resized(2048)) == (1024, 64, None)
    with pytest.raises(ValueError, match="cannot hold 0 GPUs; allowed: 1 and more"):
        pod.resized(0)


@pytest.mark.parametrize("gpus", [2.5, "16", None, float("nan"), float("inf"), [8]])
def test_gpus_come_whole(gpus: object) -> None:
    with pytest.raises(ValueError, match="GPUs: a whole number is asked for") as caught:
        hp.cluster("dgx-h100-superpod").resized(gpus)  # type: ignore[arg-type]
    assert str(caught.value).endswith("the nearest are 2 and 3") == (gpus == 2.5)


def test_whole_floats_are_numbers_of_gpus() -> None:
    assert hp.cluster("dgx-h100-superpod").resized(16.0).gpus == 16  # type: ignore[arg-type]


DIRECT = {"mi300x-pod": 64e9, "oci-mi300x": 64e9, "mi355x-pod": 76.5e9, "alps-gh200": 150e9}


@pytest.mark.parametrize("name", CLUSTERS)
def test_nodes_without_a_switch_have_a_link_for_each_pair(name: str) -> None:
    """AMD: 7 xGMI links to the seven others; CSCS: 6 NVLinks to each of three others."""
    node = hp.cluster(name).tiers[0]
    assert node.direct == (name in DIRECT)
    if node.direct:
        assert node.bandwidth / (node.degree - 1) == DIRECT[name]
        assert node.switches is None
    assert not any(tier.direct for tier in hp.cluster(name).tiers[1:])


def test_half_a_node_without_a_switch_has_fewer_links() -> None:
    pod = hp.cluster("mi300x-pod")
    assert [pod.resized(n).tiers[0].bandwidth for n in (1, 2, 4, 8, 16)] == [
        links * 64e9 for links in (1, 1, 3, 7, 7)
    ]
    # Of 4 + 4 GPUs, 16 of the 28 links cross the middle; a switch would carry 8 x 448 / 2.
    assert derived.bisection(pod.tiers[0]) == 16 * 64e9
    assert derived.bisection(pod.resized(2).tiers[0], directions=2) == 2 * 64e9


def test_one_convention_for_each_number() -> None:
    """Capacities as marketed; rates of graphics cards with fp32 accumulation."""
    for name in ("b300-sxm", "gb300"):
        assert hp.accelerator(name).hbm_bytes == 288e9
        assert "driver reports" in hp.accelerator(name).notes
    card = hp.accelerator("rtx-4090")
    assert (card.flops("bf16"), card.flops("fp16"), card.flops("fp8")) == (
        165.2e12,
        165.2e12,
        330.3e12,
    )
    assert "fp32 accumulation" in card.source_of("peak_flops")


# Architecture constants, per SM or compute unit [KiB]: shared memory with L1, registers. CUDA C++
# Programming Guide, "Compute Capabilities", and AMD's table of GPU specifications.
PER_SM = {
    "Volta": (96, 256),  # of 128 with L1
    "Ampere": (192, 256),
    "Ada": (128, 256),
    "Hopper": (256, 256),
    "Blackwell": (256, 256),
    "CDNA 2": (64, 512),
    "CDNA 3": (64, 512),
    "CDNA 4": (160, 512),
}


@pytest.mark.parametrize("name", [n for n in ACCELERATORS if not n.startswith(("scaling", "tpu"))])
def test_on_chip_memories_are_those_of_the_architecture(name: str) -> None:
    chip = hp.accelerator(name)
    (sizes,) = (size for known, size in PER_SM.items() if chip.architecture.startswith(known))
    found = (chip.shared_memory_per_sm, chip.registers_per_sm)
    assert found == tuple(kib * 2**10 for kib in sizes)
    blackwell = chip.architecture.startswith("Blackwell")
    assert chip.tensor_memory_per_sm == (256 * 2**10 if blackwell else None)


def test_json_schema_names_units() -> None:
    schema = hp.schema_json()
    chip, machine = schema["accelerator"]["properties"], schema["cluster"]
    assert chip["hbm_bandwidth"]["unit"] == chip["l2_bandwidth"]["unit"] == "B/s"
    assert chip["peak_flops"]["unit"] == "FLOP/s"
    assert chip["hbm_bytes"]["unit"] == "B"
    assert machine["$defs"]["NetworkTier"]["properties"]["latency"]["unit"] == "s"
    assert machine["$defs"]["NetworkTier"]["properties"]["direct"]["type"] == "boolean"
    assert chip["tensor_memory_per_sm"]["unit"] == "B"
    assert machine["properties"]["accelerator"]["anyOf"][0]["type"] == "string"
