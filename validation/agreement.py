"""Agreement: ranks tell each other what they measured, and what went wrong.

An error on one rank reaches all at the next exchange, whatever the others were doing: they either
come to it by themselves, or leave a collective that will never end, by its timeout. So all ranks
count the same exchanges, and all leave a case together.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

from validation.context import Context
from validation.joining import RanksLost, keeps_store, plain

LISTEN = 5.0  # for signs of life, once an exchange has failed [s]


class CaseFailed(RuntimeError):
    """Some rank could not do its part of a case; ``reason`` is that rank's."""

    def __init__(self, rank: int, reason: str) -> None:
        """Say which rank, and what it said."""
        self.rank, self.reason = rank, reason
        super().__init__(f"rank {rank}: {reason}")


class Agreement:
    """Exchanges of one rank with all others, in the same order on each."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.step = 0
        self.store = context.store()

    def exchange(self, *values: float) -> NDArray[np.float64]:
        """What every rank said, a row for each; all ranks give as many values.

        Raises:
            CaseFailed: on all ranks, when one of them reports an error instead.
            RanksLost: when some rank does not come.
        """
        return self._round(values, "")

    def report(self, error: str, when: float | None = None) -> CaseFailed:
        """Tell all ranks of an error on this one; the failure to raise, which they raise too.

        Of several errors the first counts: ``when`` it came, before peers were let out of waits. [s]

        Raises:
            RanksLost: when some rank does not come.
        """
        try:
            self._round((), error, time.time() if when is None else when)
        except CaseFailed as failed:
            return failed
        raise AssertionError("a round with an error in it fails")

    def all_can(self, error: str) -> None:
        """Go on where no rank has an ``error`` with a file.

        Raises:
            OSError: on all ranks, the error of the first.
        """
        try:
            if error:
                raise self.report(error)
            self.exchange()
        except CaseFailed as failed:
            raise OSError(failed.reason) from None

    def get(self, key: str) -> str:
        """What some rank has put into the store, or will."""
        self.store.wait([key], timedelta(seconds=self.context.timeout))
        return str(self.store.get(key).decode())

    def _round(
        self, values: Sequence[float], error: str, when: float = np.inf
    ) -> NDArray[np.float64]:
        step, rank = self.step, self.context.rank
        self.step += 1
        if error:
            self.store.set(f"error/{step}/{rank}", error)
        try:
            # First who failed, and when: a rank that did does not know how many values are asked.
            times = self.context.agree(when)[:, 0]
            if np.isfinite(times).any():
                first = int(np.argmin(times))
                raise CaseFailed(first, self.get(f"error/{step}/{first}"))
            return self.context.agree(*values) if values else times[:, None]
        except CaseFailed:
            raise
        except RuntimeError as gone:
            raise RanksLost(self._silent(step), plain(gone)) from None

    def _silent(self, step: int) -> list[int]:
        """Ranks that give no sign of life after an exchange has failed.

        Asked in a thread: a peer that was cut off never hears from the store again.
        """
        mine = self.context.rank
        left = set(range(self.context.world)) - {mine}
        deadline = time.monotonic() + LISTEN

        def listen() -> None:
            with suppress(RuntimeError):  # the store went with the rank that held it
                self.store.set(f"alive/{step}/{mine}", "1")
                while left and time.monotonic() < deadline:
                    for rank in sorted(left):
                        if self.store.check([f"alive/{step}/{rank}"]):
                            left.discard(rank)
                    time.sleep(0.05)

        asking = threading.Thread(target=listen, daemon=True)
        asking.start()
        asking.join(LISTEN + 1)
        whole = len(left) == self.context.world - 1
        return [0] if whole and mine and keeps_store() else sorted(left)


def reason(error: BaseException) -> str:
    """An error in a line: its kind, its first line, and where in the kernel it came from."""
    import traceback

    frames: list[Any] = traceback.extract_tb(error.__traceback__)
    at = f" ({frames[-1].name}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {plain(error)}{at}"
