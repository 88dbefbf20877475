"""Logs of nccl-tests: a run for each table, a case for each row, in place and out of place."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from roofline import nccl_log
from roofline.collectives import SEND, SWAP, array_bytes
from validation.importing.records import Found, Sample, typed
from validation.results import Correct, Value


def read(text: str) -> list[Found]:
    """Every table of a log; lines that are none of it are listed with the first one."""
    log = nccl_log.read(text)
    runs = [_found(run) for run in log.runs]
    if not runs:
        runs = [Found("nccl-tests", 1)]
    runs[0].left_out += [f"line {s.line}: {s.why}: {s.text[:80]!r}" for s in log.skipped]
    return runs


def _found(run: nccl_log.Run) -> Found:
    if run.ranks is None:
        found = Found("nccl-tests", 1)
        found.left_out.append(f"{run.operation}: the log does not say on how many ranks it ran")
        return found
    told = {"NCCL": "nccl", "RCCL": "nccl"}
    versions = {told.get(name, name): version for name, version in run.versions.items()}
    found = Found("nccl-tests", run.ranks, dict(run.hosts), dict(run.devices), versions)
    if sum(run.hosts.values()) != run.ranks:
        found.hosts = {}  # a header that was cut: nobody knows who is where
    if run.ranks == 1:
        found.left_out.append(f"{run.operation}: one rank has nobody to talk to")
        return found
    if run.per_thread and run.ranks % run.per_thread:
        found.left_out.append(
            f"{run.operation}: nGpus {run.per_thread} of {run.ranks} ranks: taken as not said"
        )
        run = replace(run, per_thread=None)
    for i in range(len(run.size)):
        try:
            found.samples += _samples(run, found, i)
        except ValueError as error:
            found.left_out.append(f"{run.operation} of {run.size[i]:.0f} B: {error}")
    return found


def _samples(run: nccl_log.Run, found: Found, i: int) -> Iterator[Sample]:
    nbytes = int(array_bytes(run.operation, float(run.size[i]), found.world))
    # Of sendrecv_perf: each rank sends to the next and receives from the one before.
    kernel = SWAP.name if run.operation == SEND.name else run.operation
    told: dict[str, Value] = {"bytes": nbytes} | typed(run.dtypes[i] or "float")
    if run.per_thread and run.per_thread > 1:  # one launches after the other
        told["per_thread"] = run.per_thread
    places = (
        (False, run.seconds[i], run.wrong[i]),
        (True, run.in_place_seconds[i], run.in_place_wrong[i]),
    )
    for in_place, seconds, wrong in places:
        if _correct(float(wrong)) == "no":
            place = "in place" if in_place else "out of place"
            found.left_out.append(
                f"{run.operation} of {run.size[i]:.0f} B {place}: {wrong:g} results are wrong: "
                "kept as wrong, trusted for nothing"
            )
        if math.isfinite(seconds):
            parameters = told | ({"in_place": True} if in_place else {})
            yield Sample(
                kernel,
                "comms",
                parameters,
                [float(seconds)],
                found.world,
                correct=_correct(float(wrong)),
            )


def _correct(wrong: float) -> Correct:
    """Counts are whole; versions before 2.12 print the largest error instead."""
    if math.isnan(wrong):
        return "elsewhere"  # run with -c 0
    return "yes" if 0 <= wrong < 1 else "no"
