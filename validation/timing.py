"""Timing: medians over repeats, as many as it takes, decided by all ranks together.

    a repeat   = barrier, ``inner`` calls one after the other, divided by ``inner``
    its time   = that of the slowest rank: a collective is done when its last member is
    the result = median over the repeats, with p10 and p90; the least too, which a noisy host
                 disturbs least

Short calls are timed many at once, so that neither the clock nor leaving the barrier shows. Calls
get a running number, by which kernels rotate their buffers: what was in a cache is gone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from validation.case import Call

if TYPE_CHECKING:
    from validation.context import Context

WARM_UP = 2  # calls; more, while they take less than a tenth of the budget
BATCH = 5  # repeats between two decisions
MOST = 400  # repeats
MOST_INNER = 1000
CLOSE = 0.03  # of (p90 - p10) / median: then no more repeats are needed
REPEAT = {"cpu": 5e-3, "cuda": 1e-3}  # a repeat takes at least so long [s]

Agree = Callable[..., NDArray[np.float64]]


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of one call: a row for each rank, a column for each repeat."""

    by_rank: NDArray[np.float64]
    inner: int
    spent: float  # on this rank, warm-up and barriers between repeats counted too [s]

    @property
    def slowest(self) -> NDArray[np.float64]:
        """Each repeat's slowest rank."""
        return np.asarray(self.by_rank.max(axis=0))

    @property
    def seconds(self) -> float:
        """Median of ``slowest``."""
        return float(np.median(self.slowest))

    @property
    def per_rank(self) -> tuple[float, ...]:
        """Each rank's own median: who is late shows here, where ranks do not wait for others."""
        return tuple(float(median) for median in np.median(self.by_rank, axis=1))

    @property
    def per_rank_p90(self) -> tuple[float, ...]:
        """Each rank's own slow repeats: who is late now and then, but not mostly."""
        return tuple(float(late) for late in np.percentile(self.by_rank, 90, axis=1))

    @property
    def minimum(self) -> float:
        """Of ``slowest``: the one least disturbed by whatever else the host does."""
        return float(self.slowest.min())

    def percentile(self, percent: float) -> float:
        """Of ``slowest``."""
        return float(np.percentile(self.slowest, percent))


def measure(call: Call, context: Context, budget: float, agree: Agree | None = None) -> Times:
    """Time ``call`` on all ranks for about ``budget`` seconds, or until repeats hardly differ.

    Every decision is taken from numbers that all ranks share, so all make the same calls.
    ``agree`` shares them; the context's own unless the runner watches over it.
    """
    share = agree or context.agree
    start = time.perf_counter()
    estimate, calls = _warm_up(call, context, share, budget)
    inner = int(np.clip(np.ceil(REPEAT[context.device.type] / estimate), 1, MOST_INNER))
    mine: list[float] = []
    while True:
        for _ in range(BATCH):
            mine.append(_repeat(call, context, calls, inner))
            calls += inner
            if len(mine) < BATCH and estimate * inner * BATCH > budget and len(mine) >= 3:
                break
        told = share(time.perf_counter() - start, _spread(mine))
        close = len(mine) >= 2 * BATCH and told[:, 1].max() < CLOSE
        if close or told[:, 0].max() >= budget or len(mine) >= MOST:
            break
    return Times(share(*mine), inner, time.perf_counter() - start)


def _warm_up(call: Call, context: Context, share: Agree, budget: float) -> tuple[float, int]:
    """What a call takes, as the slowest rank sees it, and how many were made."""
    calls, start = 0, time.perf_counter()
    while True:
        for _ in range(WARM_UP):
            before = time.perf_counter()
            call(calls)
            context.synchronize()
            last = time.perf_counter() - before
            calls += 1
        told = share(last, time.perf_counter() - start).max(axis=0)
        if told[1] > 0.1 * budget or calls >= 5 * WARM_UP:
            return max(float(told[0]), 1e-7), calls


def _repeat(call: Call, context: Context, first: int, inner: int) -> float:
    """``inner`` calls on this rank, from a start that all ranks share; of one. [s]"""
    context.barrier()
    if context.device.type == "cuda":
        return _events(call, context, first, inner) / inner
    start = time.perf_counter()
    for i in range(first, first + inner):
        call(i)
    return (time.perf_counter() - start) / inner


def _events(call: Call, context: Context, first: int, inner: int) -> float:
    """The same by the device's own clock. [s]"""
    import torch

    event: Any = torch.cuda.Event
    begin, end = (event(enable_timing=True) for _ in range(2))
    begin.record()
    for i in range(first, first + inner):
        call(i)
    end.record()
    context.wait(end)
    return float(begin.elapsed_time(end)) / 1e3


def _spread(times: list[float]) -> float:
    low, middle, high = np.percentile(times, (10, 50, 90))
    return float((high - low) / middle)
