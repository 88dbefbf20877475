"""The machine this runs on as a cluster: never an error, whatever the driver does."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import hardware_profiles as hp
from hardware_profiles import local


def fake_driver(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put an nvidia-smi first in PATH and forget what this machine was."""
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    local.local_cluster.cache_clear()


@pytest.fixture(autouse=True)
def _forget_the_machine() -> Iterator[None]:
    yield
    local.local_cluster.cache_clear()


def test_this_machine_is_a_cluster() -> None:
    here = hp.cluster("local")
    assert here.name == "local"
    assert here.gpus >= 1
    assert here.flops("bf16") > 0
    assert hp.read(hp.to_yaml(here)) == here
    assert hp.cluster("local") is here


def test_a_machine_with_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "\\n".join(["NVIDIA H100 80GB HBM3, 81559 MiB"] * 8 + ["NVIDIA T4, 15360 MiB"])
    fake_driver(tmp_path, f"printf '{lines}\\n'", monkeypatch)
    here = hp.cluster("local")
    assert here.accelerator.name == "h100-sxm"
    assert here.gpus == 8
    assert here.hbm_bytes == 81559 * 2**20
    assert here.tiers[0].bandwidth == 450e9
    assert not here.tiers[0].transit
    assert "Left out: NVIDIA T4" in here.notes
    assert hp.calibrate(here, hp.calibration("h100")).gpus == 8


def test_a_machine_with_pcie_cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_driver(tmp_path, "echo 'NVIDIA L40S, [N/A]'", monkeypatch)
    here = hp.cluster("local")
    assert (here.accelerator.name, here.hbm_bytes) == ("l40s", 48e9)
    assert here.tiers[0].transit


@pytest.mark.parametrize(
    "script",
    ["exit 9", "sleep 60", "echo nonsense", "head -c 999 /dev/urandom", "echo 'T4, 1 MiB'"],
)
def test_a_driver_that_fails_leaves_the_cpu(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "TIMEOUT", 0.5)
    fake_driver(tmp_path, f"exec {script}" if script == "sleep 60" else script, monkeypatch)
    here = hp.cluster("local")
    assert here.accelerator.name == "local-cpu"
    assert "assumption" in here.accelerator.source_of("hbm_bandwidth")


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100-sxm-80gb"),
        ("NVIDIA A100-SXM4-40GB", "a100-sxm-40gb"),
        ("NVIDIA A100 80GB PCIe", None),
        ("Tesla V100-SXM2-32GB", "v100-sxm"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 NVL", None),
        ("NVIDIA H200", "h200-sxm"),
        ("NVIDIA H20", "h20"),
        ("NVIDIA H800", "h800-sxm"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA B200", "b200-sxm"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA B300 SXM6 AC", "b300-sxm"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("Tesla T4", None),
    ],
)
def test_what_nvidia_smi_calls_our_accelerators(model: str, name: str | None) -> None:
    assert local.catalogue_name(model) == name
    assert name is None or name in hp.accelerators()
