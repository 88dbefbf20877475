"""Ranks: run one function on several processes joined by torch.distributed, and never wait forever.

Every wait has an end: gloo gives up after ``timeout`` seconds, and whoever is still running then is
killed. Processes meet through a file, so no port is needed.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Any

GRACE = 10.0  # seconds between gloo's giving up and ours, to hear what it has to say
TELLING = 7.0  # that the others have to say what they know once one has raised [s]


class RanksFailed(RuntimeError):
    """A rank raised, died or took too long; the message says which and why, with tracebacks."""

    def brief(self) -> str:
        """A line for each rank: its number and the end of what it said."""
        said = re.split(r"^(?=rank \d+: )", str(self), flags=re.MULTILINE)
        lines = [text.strip().splitlines() for text in said if text.strip()]
        return "\n".join(
            text[0] if len(text) == 1 else f"{text[0].partition(':')[0]}: {text[-1]}"
            for text in lines
        )


def run(
    function: Callable[..., Any],
    ranks: int,
    *arguments: Any,
    timeout: float = 60,
    limit: float | None = None,
    patience: float = 0.0,
    backend: str = "gloo",
) -> list[Any]:
    """``function(rank, ranks, *arguments)`` on every rank; the results in order of ranks.

    The function lives at the top of a module, and what it takes and returns can be pickled.

    Args:
        timeout: of one wait between ranks. [s]
        limit: of everything; ``timeout`` when left out. [s]
        patience: how long the others may go on once one has died. When one has raised, it was
            told by the others or tells them, and ``TELLING`` is enough. [s]

    Raises:
        RanksFailed: when a rank raises, dies, or is not done after ``limit`` seconds.
        ValueError: when there are no ranks.
    """
    if ranks < 1:
        raise ValueError(f"ranks: {ranks} is refused; allowed: 1 and more")
    with tempfile.TemporaryDirectory(prefix="ranks-", ignore_cleanup_errors=True) as folder:
        common = (ranks, folder, timeout, backend, function, arguments)
        allowed, start = timeout if limit is None else limit, time.monotonic()
        processes = [
            _context().Process(target=_rank, args=(rank, *common), daemon=True)
            for rank in range(ranks)
        ]
        try:
            with _no_main():
                for process in processes:
                    process.start()
            _wait(processes, start + allowed + GRACE, patience)
            waited = time.monotonic() - start
            codes = [process.exitcode for process in processes]
        finally:
            _stop(processes)
        return _results(Path(folder), waited, codes)


@contextmanager
def _no_main() -> Iterator[None]:
    """Ranks do not run the program that starts them again: it may be a dashboard's page."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def warm_up() -> None:
    """Start the process that ranks are forked from: it loads what they need while others go on."""
    if _context().get_start_method() == "forkserver":
        from multiprocessing.forkserver import ensure_running

        ensure_running()


def _context() -> Any:
    methods = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
    if "forkserver" in methods:
        context.set_forkserver_preload(["torch.distributed", "validation.ahead"])
    return context


def _rank(
    rank: int,
    ranks: int,
    folder: str,
    timeout: float,
    backend: str,
    function: Callable[..., Any],
    arguments: Any,
) -> None:
    """What one process does: join, run, write down the result or the error."""
    try:
        _join(rank, ranks, folder, timeout, backend)
        outcome = (True, function(rank, ranks, *arguments))
        _leave()
    except BaseException:
        outcome = (False, traceback.format_exc())
    part = Path(folder) / f"{rank}.part"
    part.write_bytes(pickle.dumps(outcome))
    part.rename(part.with_suffix(".done"))
    os._exit(0 if outcome[0] else 1)  # without waiting for threads of a broken group


def _join(rank: int, ranks: int, folder: str, timeout: float, backend: str) -> None:
    import torch
    import torch.distributed as dist

    if sys.platform in ("linux", "darwin"):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")
    torch.set_num_threads(1)
    dist.init_process_group(
        backend,
        init_method=(Path(folder) / "store").as_uri(),
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=timeout),
    )


def _leave() -> None:
    import torch.distributed as dist

    dist.barrier()  # nobody goes while another still listens


def _wait(processes: Sequence[BaseProcess], deadline: float, patience: float) -> None:
    """Until all are done, one has failed and the others had time to say so, or time is up."""
    failed = 0
    while time.monotonic() < deadline and any(process.is_alive() for process in processes):
        codes = [process.exitcode for process in processes if process.exitcode]
        if len(codes) > failed:
            failed = len(codes)
            left = min(patience, TELLING) if max(codes) > 0 else patience
            deadline = min(deadline, time.monotonic() + left)
        time.sleep(0.02)


def _stop(processes: Sequence[BaseProcess]) -> None:
    for process in processes:
        if process.pid is not None:
            process.kill()
            process.join()


def _results(folder: Path, waited: float, codes: Sequence[int | None]) -> list[Any]:
    results: list[Any] = []
    errors: list[str] = []
    for rank, code in enumerate(codes):
        file = folder / f"{rank}.done"
        if file.exists():
            fine, value = pickle.loads(file.read_bytes())
            (results if fine else errors).append(value if fine else f"rank {rank}: {value}")
        else:
            errors.append(f"rank {rank}: {_silence(code, waited, any(codes))}")
    if errors:
        raise RanksFailed("\n".join(errors))
    return results


def _silence(code: int | None, waited: float, failed: bool) -> str:
    """Why a rank has left nothing behind: after ``waited`` seconds, or when another had failed."""
    if code is None:
        return f"not done after {waited:.0f} s{', when another had failed' * failed}"
    return f"killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
