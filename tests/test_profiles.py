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


def test_a_calibration_for_other_chips_is_refused() -> None:
    with pytest.raises(ProfileError, match="calibration h100 is for h100-sxm, not for b200-sxm"):
        hp.calibrate(hp.cluster("dgx-b200-superpod"), hp.calibration("h100"))


def test_everything_loads_in_a_second() -> None:
    catalog._read_file.cache_clear()
    start = time.perf_counter()
    for name in ACCELERATORS:
        hp.accelerator(name)
    for name in CLUSTERS:
        hp.cluster(name)
    assert time.perf_counter() - start < 1
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


def test_json_schema_names_units() -> None:
    schema = hp.schema_json()
    chip, machine = schema["accelerator"]["properties"], schema["cluster"]
    assert chip["hbm_bandwidth"]["unit"] == chip["l2_bandwidth"]["unit"] == "B/s"
    assert chip["peak_flops"]["unit"] == "FLOP/s"
    assert chip["hbm_bytes"]["unit"] == "B"
    assert machine["$defs"]["NetworkTier"]["properties"]["latency"]["unit"] == "s"
    assert machine["properties"]["accelerator"]["anyOf"][0]["type"] == "string"
