"""The runner: every case of a suite on every rank, in one order, and an end to every wait.

A case that fails on some rank is written as failed, with rank and reason, and the run goes on with
new groups. When ranks can no longer agree, one is gone: the run ends and says which. A watchdog
ends a process that does not come back from a call at all.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from validation import timing
from validation.agreement import Agreement, CaseFailed, reason
from validation.case import Call, Case, Correctness, Expected, Kernel
from validation.context import Context, Options
from validation.environment import clocks, header
from validation.joining import RanksLost
from validation.progress import Progress
from validation.results import (
    FILE,
    Correct,
    End,
    Failed,
    Header,
    Line,
    Measured,
    Part,
    Writer,
    read,
)
from validation.signals import ended_in_time
from validation.timing import Times

BUDGET = {"quick": 75.0, "full": 1800.0}  # of measuring [s]
LONGEST = {"quick": 2.0, "full": 10.0}  # a case [s]
SHORTEST = 0.02  # a case [s]
GRACE = 30.0  # the watchdog comes so long after every other wait should have ended [s]
HUNG = 70  # exit code of a process that the watchdog ended

Todo = list[tuple[Kernel, Case]]


@dataclass(slots=True)
class Tally:
    """What a run has come to."""

    measured: int = 0  # cases
    skipped: int = 0
    failed: int = 0
    wrong: int = 0
    unchecked: int = 0
    measuring: float = 0.0  # [s]
    wall: float = 0.0  # first case to last [s]
    startup: float = 0.0  # before the first case [s]
    outcome: Literal["complete", "aborted"] = "complete"

    @property
    def passed(self) -> bool:
        """True when there were cases, and each was measured, checked and right."""
        bad = self.failed + self.wrong + self.unchecked
        return self.outcome == "complete" and not bad and self.measured + self.skipped > 0


@dataclass(slots=True)
class Run:
    """One run on one rank."""

    context: Context
    header: Header
    writer: Writer | None  # rank 0's
    agreement: Agreement
    folder: Path
    case: Failed  # what to write when this process is ended in the middle of a case
    tally: Tally = field(default_factory=Tally)

    def write(self, *lines: Line) -> None:
        """Append on rank 0; what goes wrong there is raised on all.

        Raises:
            OSError: a full disk or the like.
        """
        with _on_all(self):
            if self.writer is not None:
                self.writer.add(*lines)

    def end(self) -> None:
        """The last line, by rank 0 alone; a disk that is full was already told of."""
        t = self.tally
        if self.writer is not None:
            with suppress(OSError):
                self.writer.add(
                    End(
                        run=self.header.run,
                        outcome=t.outcome,
                        wall=t.wall,
                        measuring=t.measuring,
                        startup=t.startup,
                        measured=t.measured,
                        skipped=t.skipped,
                        failed=t.failed,
                        wrong=t.wrong,
                        unchecked=t.unchecked,
                        clocks=clocks(self.context.device),
                    )
                )


def run(
    kernels: Sequence[Kernel], context: Context, options: Options, folder: Path, begun: float
) -> Tally:
    """Measure every case of ``kernels``; rank 0 writes to ``folder``. All ranks call it together.

    The program has ``begun`` at that time.time().

    Raises:
        RanksLost: after what was measured has been written, when a rank is gone.
        OSError: on every rank, when rank 0 cannot write.
    """
    this = _begin(context, options, folder)
    todo = [(kernel, case) for kernel in kernels for case in kernel.cases(context.setting)]
    left = _left(this, todo, options, folder)
    this.tally.skipped = len(todo) - len(left)
    budget = _budget(options, len(left))
    start, this.tally.startup = time.perf_counter(), time.time() - begun

    def end(outcome: Literal["complete", "aborted"]) -> None:
        this.tally.outcome = outcome
        this.tally.wall = time.perf_counter() - start
        this.end()

    def last() -> None:
        _note(this, "ended by SIGTERM: another rank has failed, or the job's time is up")
        end("aborted")

    try:
        with ended_in_time(last), Progress(len(left), shown=context.rank == 0) as progress:
            for kernel, case in left:
                progress.at(case.id)
                this.write(*_guarded(this, kernel, case, budget))
                progress.done()
    except BaseException:
        end("aborted")
        raise
    end("complete")
    return this.tally


def _begin(context: Context, options: Options, folder: Path) -> Run:
    told = header(context, options)
    nothing = Failed(run=told.run, case="", kernel="", parameters={}, rank=context.rank, reason="")
    this = Run(context, told, None, Agreement(context), folder, nothing)
    with _on_all(this):
        if context.rank == 0:
            this.writer = Writer(folder)
    return this


@contextmanager
def _on_all(this: Run) -> Iterator[None]:
    """What goes wrong with a file on one rank is raised on all.

    Raises:
        OSError: on all ranks, with the rank's number.
    """
    error = ""
    try:
        yield
    except OSError as wrong:
        of = f" of {this.case.case}" if this.case.case else ""
        error = f"rank {this.context.rank} cannot write results{of}: {wrong}"
    this.agreement.all_can(error)


def _left(this: Run, todo: Todo, options: Options, folder: Path) -> Todo:
    """Cases that rank 0's file does not have yet. Then, or at once, the header is written."""
    done: set[str] = set()
    if options.resume:
        with _on_all(this):
            if this.writer is not None:
                found = read(folder)
                this.agreement.store.set("done", json.dumps(sorted(found.done(this.header))))
                for problem in found.problems:
                    print(f"note: {problem}", file=sys.stderr)
        done = set(json.loads(this.agreement.get("done")))
    this.write(this.header)
    return [(kernel, case) for kernel, case in todo if case.id not in done]


def _budget(options: Options, cases: int) -> float:
    """Seconds for a case: an equal part of the suite's, within limits."""
    whole = options.budget or BUDGET[options.suite]
    return float(np.clip(whole / max(cases, 1), SHORTEST, LONGEST[options.suite]))


def _guarded(this: Run, kernel: Kernel, case: Case, budget: float) -> Sequence[Line]:
    """Lines of one case: its parts, or its failure once all ranks know of it."""
    this.case = Failed(
        run=this.header.run,
        case=case.id,
        kernel=kernel.name,
        parameters=dict(case.parameters),
        rank=this.context.rank,
        reason="",
    )
    try:
        with _watchdog(this, "the watchdog ended it: no call came back"):
            return _one(this, kernel, case, budget)
    except CaseFailed as failed:
        this.context.renew_groups()
        this.tally.failed += 1
        return [_failure(this, failed.rank, failed.reason)]
    except RanksLost as lost:
        told = RanksLost(lost.ranks, lost.reason, case.id)
        this.tally.failed += 1
        gone = [*lost.ranks, -1]
        heir = min(set(range(this.context.world)) - set(gone), default=0)
        if this.writer is None and this.context.rank == heir:
            # Rank 0 is gone. Where its file can be seen from here, the loss is noted in it.
            this.writer = Writer(this.folder) if (this.folder / FILE).exists() else None
        _note(this, str(told), gone[0])
        raise told from None


def _failure(this: Run, rank: int, why: str) -> Failed:
    return this.case.model_copy(update={"rank": rank, "reason": why})


def _note(this: Run, why: str, rank: int | None = None) -> None:
    """Write that the case now running has failed, without asking other ranks."""
    if this.writer is not None and this.case.case:
        with suppress(OSError):
            this.writer.add(_failure(this, this.context.rank if rank is None else rank, why))


def _one(this: Run, kernel: Kernel, case: Case, budget: float) -> list[Measured]:
    """Prepare, check and time one case; what goes wrong on this rank is told to all."""
    try:
        this.context.connect(case.size, case.stride)
        work = kernel.prepare(case, this.context)
        expected = {e.part: e for e in kernel.predict(case, this.context.profile)}
        correct = work.check() if work.check else None
        this.context.synchronize()
    except Exception as error:
        raise _told(this, error) from error
    worst = _worst(this, correct)
    lines = []
    for part, call in work.parts.items():
        times = _timed(this, call, budget / len(work.parts))
        this.tally.measuring += times.spent
        lines.append(_line(this, case, part, len(work.parts), times, expected.get(part), worst))
    this.tally.measured += 1
    this.tally.wrong += worst is not None and not worst.passed
    this.tally.unchecked += worst is None
    return lines


def _timed(this: Run, call: Call, budget: float) -> Times:
    try:
        return timing.measure(call, this.context, budget, this.agreement.exchange)
    except (CaseFailed, RanksLost):
        raise
    except Exception as error:
        raise _told(this, error) from error


def _told(this: Run, error: Exception) -> CaseFailed:
    """Let the peers out of what they wait for, and tell them why."""
    when = time.time()
    this.context.leave_groups()
    return this.agreement.report(reason(error), when)


def _worst(this: Run, mine: Correctness | None) -> Correctness | None:
    """The largest error of any rank; infinite where one is no number."""
    told = this.agreement.exchange(0.0 if mine is None else mine.max_error)
    largest = float(told.max()) if np.isfinite(told).all() else np.inf
    return None if mine is None else Correctness(largest, mine.tolerance)


def _line(
    this: Run,
    case: Case,
    part: Part,
    parts: int,
    times: Times,
    expected: Expected | None,
    worst: Correctness | None,
) -> Measured:
    correct: Correct = "unchecked" if worst is None else "yes" if worst.passed else "no"
    return Measured(
        run=this.header.run,
        case=case.id,
        kernel=case.kernel,
        part=part,
        parts=parts,
        parameters=dict(case.parameters),
        size=case.size,
        stride=case.stride,
        world=this.context.world,
        seconds=times.seconds,
        minimum=times.minimum,
        p10=times.percentile(10),
        p90=times.percentile(90),
        repeats=times.by_rank.shape[1],
        inner=times.inner,
        per_rank=times.per_rank,
        per_rank_p90=times.per_rank_p90,
        predicted=None if expected is None else expected.seconds,
        flops=0.0 if expected is None else expected.flops,
        nbytes=0.0 if expected is None else expected.nbytes,
        correct=correct,
        max_error=worst.max_error if worst is not None and np.isfinite(worst.max_error) else None,
        tolerance=None if worst is None else worst.tolerance,
    )


@contextmanager
def _watchdog(this: Run, why: str) -> Iterator[None]:
    """End this process when what it does here has no end of its own."""
    limit = 3 * this.context.timeout + GRACE

    def bite() -> None:
        print(
            f"rank {this.context.rank}: {this.case.case}: not done after {limit:g} s",
            file=sys.stderr,
        )
        with suppress(Exception):
            _note(this, why)
        os._exit(HUNG)

    timer = threading.Timer(limit, bite)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
