"""Ranks: run one function on several processes joined by torch.distributed, and never wait forever.

Every wait has an end: gloo gives up after ``timeout`` seconds, and whoever is still running then is
killed. Processes meet through a file, so no port is needed.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

GRACE = 10.0  # seconds between gloo's giving up and ours, to hear what it has to say


class RanksFailed(RuntimeError):
    """A rank raised, died or took too long; the message says which and why."""


def run(
    function: Callable[..., Any], ranks: int, *arguments: Any, timeout: float = 60
) -> list[Any]:
    """``function(rank, ranks, *arguments)`` on every rank; the results in order of ranks.

    The function lives at the top of a module, and what it takes and returns can be pickled.

    Raises:
        RanksFailed: when a rank raises, dies, or is not done after ``timeout`` seconds.
        ValueError: when there are no ranks.
    """
    if ranks < 1:
        raise ValueError(f"ranks: {ranks} is refused; allowed: 1 and more")
    with tempfile.TemporaryDirectory(prefix="ranks-", ignore_cleanup_errors=True) as folder:
        common = (ranks, folder, timeout, function, arguments)
        processes = [
            _context().Process(target=_rank, args=(rank, *common), daemon=True)
            for rank in range(ranks)
        ]
        try:
            for process in processes:
                process.start()
            _wait(processes, Path(folder), time.monotonic() + timeout + GRACE)
        finally:
            _stop(processes)
        return _results(ranks, Path(folder), timeout)


def _context() -> Any:
    methods = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
    if "forkserver" in methods:
        context.set_forkserver_preload(["torch.distributed"])
    return context


def _rank(
    rank: int, ranks: int, folder: str, timeout: float, function: Callable[..., Any], arguments: Any
) -> None:
    """What one process does: join, run, write down the result or the error."""
    try:
        _join(rank, ranks, folder, timeout)
        outcome = (True, function(rank, ranks, *arguments))
        _leave()
    except BaseException:
        outcome = (False, traceback.format_exc())
    part = Path(folder) / f"{rank}.part"
    part.write_bytes(pickle.dumps(outcome))
    part.rename(part.with_suffix(".done"))
    os._exit(0 if outcome[0] else 1)  # without waiting for threads of a broken group


def _join(rank: int, ranks: int, folder: str, timeout: float) -> None:
    import torch
    import torch.distributed as dist

    if sys.platform in ("linux", "darwin"):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=(Path(folder) / "store").as_uri(),
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=timeout),
    )


def _leave() -> None:
    import torch.distributed as dist

    dist.barrier()  # nobody goes while another still listens


def _wait(processes: Sequence[BaseProcess], folder: Path, deadline: float) -> None:
    """Until all are done, one has failed, or time is up."""
    while time.monotonic() < deadline and any(process.is_alive() for process in processes):
        if any(process.exitcode for process in processes):
            return
        time.sleep(0.02)


def _stop(processes: Sequence[BaseProcess]) -> None:
    for process in processes:
        if process.pid is not None:
            process.kill()
            process.join()


def _results(ranks: int, folder: Path, timeout: float) -> list[Any]:
    results: list[Any] = []
    errors: list[str] = []
    silent: list[str] = []
    for rank in range(ranks):
        file = folder / f"{rank}.done"
        if not file.exists():
            silent.append(str(rank))
            continue
        fine, value = pickle.loads(file.read_bytes())
        (results if fine else errors).append(value if fine else f"rank {rank}: {value}")
    if errors:
        raise RanksFailed("\n".join(errors))
    if silent:
        raise RanksFailed(f"rank {', '.join(silent)}: not done after {timeout:g} s, or killed")
    return results
