"""Ranks start whatever the program that starts them is."""

import sys
from pathlib import Path
from types import ModuleType

import pytest

from validation import ranks


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
