"""Ranks start whatever the program that starts them is."""

import os
import signal
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

from validation import ranks


def stop(rank: int, world: int) -> None:
    if rank:
        os.kill(os.getpid(), signal.SIGSTOP)
        signal.pause()  # also where the kernel wakes it, as it does when a shell has gone
    raise LookupError("rank 1 does not answer")


@pytest.mark.distributed
def test_a_rank_that_does_not_end_is_told_with_the_time_it_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not the limit of the whole run, which was not waited for."""
    monkeypatch.setattr(ranks, "TELLING", 1.0)
    before = time.monotonic()
    with pytest.raises(ranks.RanksFailed, match=r"rank 1: not done after \d+ s, when an") as told:
        ranks.run(stop, 2, timeout=20, limit=500, patience=1.0)
    said = int(str(told.value).rpartition("not done after ")[2].split()[0])
    assert said <= time.monotonic() - before + 1 < 60


def place(rank: int, world: int) -> tuple[int, int]:
    return rank, world


@pytest.mark.distributed
def test_the_program_that_starts_ranks_is_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dashboard's page as ``__main__``, which nothing but a server can run."""
    page = tmp_path / "page.py"
    page.write_text("raise SystemExit('a page is no program')")
    main = ModuleType("__main__")
    main.__file__ = str(page)
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert ranks.run(place, 2, timeout=60) == [(0, 2), (1, 2)]
    assert sys.modules["__main__"] is main


def _loaded(rank: int, world: int) -> bool:
    return {"torch._dynamo", "torch.distributed.fsdp", "validation.launch"} <= sys.modules.keys()


@pytest.mark.distributed
def test_what_ranks_need_is_loaded_before_they_are_forked() -> None:
    ranks.warm_up()
    assert ranks.run(_loaded, 2) == [True, True]
