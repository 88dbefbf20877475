"""Starting a run: under torchrun this process is a rank; else ranks are started on this machine."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from roofline.groups import Group
from validation import ranks as processes
from validation.case import Kernel, Setting
from validation.context import Context, Options, open_context
from validation.environment import device_name
from validation.joining import backends, device_type, join, need_distributed
from validation.kernels import chosen
from validation.profile import foreign, load
from validation.runner import BUDGET, GRACE, Tally, run

MOST_ON_CPU = 4
LOST = 3  # exit code when ranks are gone
PATIENCE = 3.0  # timeouts that ranks have to tell of a failure, before the launcher ends them


def under_torchrun() -> bool:
    """True in a process that torchrun, or whatever sets the same variables, has started."""
    return {"RANK", "WORLD_SIZE"} <= os.environ.keys()


def started() -> float:
    """When this process was started, by time.time(); now, where the system does not say."""
    now = time.time()
    try:
        after = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        since = time.clock_gettime(time.CLOCK_BOOTTIME) - after / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):  # not on Linux
        return now
    return now - max(since, 0.0)


def as_rank(
    options: Options,
    folder: Path,
    kernels: Sequence[Kernel] | None = None,
    begun: float | None = None,
) -> Tally:
    """Be one rank: join, measure, leave. The program has ``begun`` then; left out: now.

    Raises:
        ValueError: options that do not fit what is here, or kernels that have no case here.
        RanksLost: a rank is gone; ``OSError``: results cannot be written.
    """
    begun = time.time() if begun is None else begun
    todo = chosen(options.kernels) if kernels is None else kernels
    join(options.timeout, options.device)
    context = open_context(options)
    without = left_out(todo, context.setting)
    if len(without) == len(todo):
        raise ValueError(f"nothing to measure: {_reasons(without)}")
    context.left_out = without | dtypes_left_out(todo, context.setting)
    for doubt in (hosts_doubt(context), chip_doubt(context), _reasons(context.left_out)):
        if context.rank == 0 and doubt:
            print(f"note: {doubt}", file=sys.stderr)
    return run(todo, context, options, folder, begun)


def left_out(kernels: Sequence[Kernel], setting: Setting) -> dict[str, str]:
    """Kernels without a case here, and why."""

    def has_cases(kernel: Kernel, setting: Setting) -> bool:
        return next(iter(kernel.cases(setting)), None) is not None

    pair = replace(setting, world=2, groups=(Group(2),))
    return {
        kernel.name: "at least 2 ranks are needed, 1 is here"
        if setting.world < 2 and has_cases(kernel, pair)
        else f"no case fits {setting.world} ranks with {setting.memory / 1e9:.3g} GB each"
        for kernel in kernels
        if not has_cases(kernel, setting)
    }


def dtypes_left_out(kernels: Sequence[Kernel], setting: Setting) -> dict[str, str]:
    """Data types that matmuls are not measured in here, and why."""
    asked = any(kernel.name == "matmul" for kernel in kernels)
    return {f"matmul {dtype}": why for dtype, why in setting.lacking.items() if asked}


def _reasons(without: Mapping[str, str]) -> str:
    """``a, b: why; c: why``, the kernels of a reason together."""
    by_reason: dict[str, list[str]] = {}
    for name, why in without.items():
        by_reason.setdefault(why, []).append(name)
    return "; ".join(f"{', '.join(names)}: {why}" for why, names in by_reason.items())


def chip_doubt(context: Context) -> str:
    """Where the devices are not the profile's accelerator; empty where they are."""
    chip = context.profile.cluster.accelerator
    model = device_name(context.device)
    if not (doubt := foreign(context.device.type, [model], chip.name, gpu=chip.sms is not None)):
        return ""
    return (
        f"{doubt}: times are compared with a machine that they are not of, and calibrate "
        "refuses them; give --cluster local, or a profile of this machine"
    )


def hosts_doubt(context: Context) -> str:
    """Where the profile's units are not the hosts that ranks run on; empty where they are."""
    per_host = Counter(context.hosts)
    units = context.profile.cluster.unit_sizes
    if len(per_host) < 2 or set(per_host.values()) <= set(units):
        return ""
    told = ", ".join(map(str, sorted(set(per_host.values()))))
    return (
        f"{len(per_host)} hosts have {told} ranks each, but {context.profile.name} has units of "
        f"{', '.join(map(str, units))}: groups inside a unit may cross hosts; give --cluster"
    )


def local_ranks(device: str) -> int:
    """As many ranks as there are GPUs; on a CPU up to four, and at least two."""
    import torch

    if device_type(device) == "cuda":
        return torch.cuda.device_count()
    return min(max(os.cpu_count() or 1, 2), MOST_ON_CPU)


def local(
    options: Options,
    folder: Path,
    ranks: int,
    kernels: Sequence[Kernel] | None = None,
    begun: float | None = None,
) -> Tally:
    """Start ``ranks`` processes here and run the suite on them; rank 0's tally.

    The program has ``begun`` then, by time.time(); left out: now.

    Raises:
        RanksFailed: when a rank raises, dies or hangs; results up to then are in ``folder``.
    """
    need_distributed()
    device = device_type(options.device)
    chosen(options.kernels)  # wrong names are told before any process starts
    load(options.cluster, options.overlay, ranks, device)
    limit = 4 * (options.budget or BUDGET[options.suite]) + 4 * options.timeout + 120
    tallies = processes.run(
        _rank,
        ranks,
        asdict(options),
        str(folder),
        kernels,
        time.time() if begun is None else begun,
        timeout=options.timeout,
        backend=backends(device),
        limit=limit,
        patience=PATIENCE * options.timeout + GRACE,
    )
    tally: Tally = tallies[0]
    return tally


def _rank(
    rank: int,
    ranks: int,
    options: dict[str, object],
    folder: str,
    kernels: Sequence[Kernel] | None,
    begun: float,
) -> Tally:
    return as_rank(Options(**options), Path(folder), kernels, begun)  # type: ignore[arg-type]
