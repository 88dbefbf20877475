"""Starting a run: under torchrun this process is a rank; else ranks are started on this machine."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from validation import ranks as processes
from validation.case import Kernel
from validation.context import Context, Options, open_context
from validation.joining import backends, device_type, join, need_distributed
from validation.kernels import chosen
from validation.profile import load
from validation.runner import BUDGET, GRACE, Tally, run

MOST_ON_CPU = 4
LOST = 3  # exit code when ranks are gone
PATIENCE = 3.0  # timeouts that ranks have to tell of a failure, before the launcher ends them


def under_torchrun() -> bool:
    """True in a process that torchrun, or whatever sets the same variables, has started."""
    return {"RANK", "WORLD_SIZE"} <= os.environ.keys()


def as_rank(options: Options, folder: Path, kernels: Sequence[Kernel] | None = None) -> Tally:
    """Be one rank: join, measure, leave.

    Raises:
        ValueError: options that do not fit what is here.
        RanksLost: a rank is gone; ``OSError``: results cannot be written.
    """
    start = time.perf_counter()
    todo = chosen(options.kernels) if kernels is None else kernels
    join(options.timeout, options.device)
    context = open_context(options)
    if context.rank == 0 and (doubt := hosts_doubt(context)):
        print(f"note: {doubt}", file=sys.stderr)
    return run(todo, context, options, folder, time.perf_counter() - start)


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
    options: Options, folder: Path, ranks: int, kernels: Sequence[Kernel] | None = None
) -> Tally:
    """Start ``ranks`` processes here and run the suite on them; rank 0's tally.

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
        timeout=options.timeout,
        backend=backends(device),
        limit=limit,
        patience=PATIENCE * options.timeout + GRACE,
    )
    tally: Tally = tallies[0]
    return tally


def _rank(
    rank: int, ranks: int, options: dict[str, object], folder: str, kernels: Sequence[Kernel] | None
) -> Tally:
    return as_rank(Options(**options), Path(folder), kernels)  # type: ignore[arg-type]
