"""The machine this runs on as a cluster named ``local``: its NVIDIA GPUs, else its CPU.

Nothing here may fail: no GPU, no driver and a hanging nvidia-smi all end in a CPU with stated
assumptions.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from functools import cache

from hardware_profiles import catalog
from hardware_profiles.quantity import parse
from hardware_profiles.schema import Accelerator, Cluster, NetworkTier

# What nvidia-smi calls a GPU, and its name in the catalogue; the first that fits counts.
GPUS = (
    (r"GB300", "gb300"),
    (r"GB200", "gb200"),
    (r"B300", "b300-sxm"),
    (r"B200", "b200-sxm"),
    (r"GH200", "gh200"),
    (r"H200(?! NVL)", "h200-sxm"),
    (r"H20\b", "h20"),
    (r"H800(?!.*PCIe)", "h800-sxm"),
    (r"H100.*PCIe", "h100-pcie"),
    (r"H100(?!.*NVL)", "h100-sxm"),
    (r"A100.*SXM.*80", "a100-sxm-80gb"),
    (r"A100.*SXM.*40", "a100-sxm-40gb"),
    (r"V100.*SXM", "v100-sxm"),
    (r"L40S", "l40s"),
    (r"RTX 4090(?! D)", "rtx-4090"),
)
QUERY = ("--query-gpu=name,memory.total", "--format=csv,noheader")
TIMEOUT = 10.0  # [s]

# Assumed of a CPU: a core has 2 FMA units of 8 fp32 lanes (AVX2) at 3 GHz.
CORE_FLOPS = 2 * 2 * 8 * 3e9  # [FLOP/s]
CPU_BANDWIDTH = 50e9  # [B/s]
CPU_MEMORY = 64e9  # [B]


@cache
def local_cluster() -> Cluster:
    """This machine as a cluster of one node, named ``local``; looked at once a process."""
    seen = _nvidia_smi()
    known = [(name, memory) for model, memory in seen if (name := catalogue_name(model))]
    if known:
        first = known[0][0]
        return _of_gpus(first, [memory for name, memory in known if name == first], seen)
    return _of_cpu(seen)


@cache
def cpu_cluster() -> Cluster:
    """This machine's CPU as a cluster of one, whatever GPUs there are beside it."""
    return _of_cpu([])


def catalogue_name(model: str) -> str | None:
    """The accelerator of the catalogue that nvidia-smi calls ``model``, if we have it.

    >>> catalogue_name("NVIDIA H100 80GB HBM3")
    'h100-sxm'
    """
    return next((name for pattern, name in GPUS if re.search(pattern, model)), None)


def _nvidia_smi() -> list[tuple[str, float]]:
    """Name and memory [B] of every GPU that the driver lists; empty when there is no driver."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    try:
        run = subprocess.run(
            [program, *QUERY], capture_output=True, text=True, timeout=TIMEOUT, check=True
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return []
    rows = [line.rsplit(",", 1) for line in run.stdout.splitlines() if "," in line]
    return [(name.strip(), _bytes(memory)) for name, memory in rows]


def _bytes(memory: str) -> float:
    try:
        return parse(memory, "B")
    except ValueError:
        return 0.0


def _of_gpus(name: str, memories: list[float], seen: list[tuple[str, float]]) -> Cluster:
    chip = catalog.accelerator(name)
    if min(memories) >= 1e8:
        source = f"nvidia-smi on this machine: {min(memories) / 2**20:.0f} MiB"
        fields = chip.model_dump(exclude_unset=True) | {"hbm_bytes": min(memories)}
        chip = Accelerator.model_validate(
            fields | {"sources": chip.sources | {"hbm_bytes": source}}
        )
    fast = next((link for link in chip.links if link.name.startswith("NVLink ")), None)
    pcie = next((link for link in chip.links if link.name.startswith("PCIe")), None)
    link = fast or pcie
    node = NetworkTier(
        name="node",
        degree=len(memories),
        bandwidth=link.total if link else 31.5e9,
        transit=fast is None,
        technology=link.name if link else "PCIe",
        source=f"assumption: every link is wired; {link.source if link else 'PCIe 4.0 x16'}",
    )
    others = sorted({model for model, _ in seen if catalogue_name(model) != name})
    left = f" Left out: {', '.join(others)}." if others else ""
    notes = (
        f"Found by nvidia-smi. Bandwidth between the GPUs is the datasheet's, not measured.{left}"
    )
    title = f"This machine: {len(memories)} x {chip.title}"
    return Cluster(
        name=catalog.LOCAL,
        title=title,
        accelerator=chip,
        tiers=(node,),
        host_link=pcie,
        notes=notes,
    )


def _of_cpu(seen: list[tuple[str, float]]) -> Cluster:
    cores = os.cpu_count() or 1
    memory, memory_source = _memory()
    rate = cores * CORE_FLOPS
    assumed = (
        f"assumption: {cores} logical cores x 2 FMA units x 8 fp32 lanes x 2 FLOP x 3 GHz; "
        "measure yours and write a profile"
    )
    chip = Accelerator(
        name="local-cpu",
        title=f"CPU with {cores} cores",
        vendor=platform.processor() or "unknown",
        architecture=platform.machine() or "unknown",
        peak_flops={"fp64": rate / 2, "fp32": rate, "bf16": rate},
        hbm_bytes=memory,
        hbm_bandwidth=CPU_BANDWIDTH,
        sources={
            "peak_flops": assumed,
            "peak_flops.bf16": f"{assumed}; bf16 converted to fp32 and back at no cost",
            "hbm_bytes": memory_source,
            "hbm_bandwidth": "assumption: two channels of DDR4-3200, 2 x 25.6 GB/s, rounded down",
        },
        notes="Every rate is an assumption: nothing was measured.",
    )
    node = NetworkTier(
        name="node",
        degree=1,
        bandwidth=CPU_BANDWIDTH,
        source="assumption: main memory, there being one device",
    )
    unknown = ", ".join(sorted({model for model, _ in seen}))
    gpus = (
        f"GPUs the catalogue does not have: {unknown}; write a profile for them."
        if unknown
        else "No NVIDIA GPU found."
    )
    return Cluster(
        name=catalog.LOCAL,
        title=f"This machine: a CPU with {cores} cores",
        accelerator=chip,
        tiers=(node,),
        notes=f"{gpus} The CPU's rates are assumptions.",
    )


def _memory() -> tuple[float, str]:
    """Main memory and where its size is from. [B]"""
    try:
        size = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, OSError, ValueError):
        return CPU_MEMORY, "assumption: 64 GB, as the operating system does not say"
    return max(size, 1e8), "the operating system of this machine: page size x pages"
