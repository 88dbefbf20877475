"""A progress bar on rank 0, on the error stream; plain lines where that is no terminal."""

from __future__ import annotations

import sys
import time
from typing import Any

EVERY = 10.0  # seconds between lines where there is no terminal


class Progress:
    """Cases done of all, and the one that runs."""

    def __init__(self, cases: int, *, shown: bool) -> None:
        self.cases, self.shown = cases, shown
        self.count = 0
        self._bar: Any = None
        self._told = float("-inf")  # the first case is told at once, and with it how many there are

    def __enter__(self) -> Progress:
        if self.shown and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress as Bar

            self._bar = Bar(console=Console(stderr=True), transient=True)
            self._bar.start()
            self._bar.add_task("measuring", total=self.cases)
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def at(self, case: str) -> None:
        """The case that begins."""
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], description=case)
        elif self.shown and time.monotonic() - self._told > EVERY:
            self._told = time.monotonic()
            print(f"{self.count} of {self.cases} cases; now {case}", file=sys.stderr, flush=True)

    def done(self) -> None:
        """The case that began is over."""
        self.count += 1
        if self._bar is not None:
            self._bar.advance(self._bar.task_ids[0])
