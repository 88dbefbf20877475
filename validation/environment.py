"""What a run ran on: hosts, devices, versions, clocks, and what libraries were told to do."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import subprocess
import uuid
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from validation.results import Header

if TYPE_CHECKING:
    import torch

    from validation.context import Context, Options

TOLD = ("NCCL_", "GLOO_", "OMP_", "TORCH_NCCL_", "TORCH_CPP_", "CUDA_VISIBLE", "UCX_", "FI_")
PASSING = ("TORCH_NCCL_TRACE", "OMP_DISPLAY")  # say nothing about speed
QUERY = "clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem,power.limit,temperature.gpu"


def header(context: Context, options: Options) -> Header:
    """The header of a run that begins now; all ranks call it together and get the same."""
    facts = (socket.gethostname(), device_name(context.device), uuid.uuid4().hex[:12])
    everyone = context.gather(facts)
    return Header(
        run=everyone[0][2],
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        suite=options.suite,
        world=context.world,
        device=context.device.type,
        backend=context.backend,
        hosts=dict(Counter(host for host, _, _ in everyone)),
        devices=dict(Counter(device for _, device, _ in everyone)),
        versions=versions(context.device),
        clocks=clocks(context.device) if context.rank == 0 else "",
        variables=variables(),
        profile=context.profile.name,
        overlay=context.profile.overlay.name if context.profile.overlay else "",
        cluster=context.profile.cluster.model_dump(mode="json"),
        left_out=context.left_out,
    )


def device_name(device: torch.device) -> str:
    """Of the GPU, or of the CPU."""
    import torch

    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, "") or platform.processor() or platform.machine() or "CPU"


def clocks(device: torch.device) -> str:
    """Clocks now and at most, power limit and temperature of this host's GPUs, a line for each."""
    return _nvidia_smi(QUERY) if device.type == "cuda" else ""


def versions(device: torch.device) -> dict[str, str]:
    """Of Python, torch, and on GPUs of CUDA, NCCL and the driver."""
    import torch

    found = {"python": platform.python_version(), "torch": torch.__version__}
    if device.type == "cuda":
        version: Any = torch.cuda.nccl.version
        nccl = ".".join(map(str, version()))
        driver = _nvidia_smi("driver_version").splitlines()
        found |= {"cuda": str(torch.version.cuda), "nccl": nccl, "driver": "".join(driver[:1])}
    return found


def variables() -> dict[str, str]:
    """Environment variables that change how collectives and threads behave."""
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(TOLD) and not name.startswith(PASSING)
    }


def _nvidia_smi(query: str) -> str:
    """A line for each GPU; empty where the program is missing or does not answer."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    command = [program, f"--query-gpu={query}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
