"""The predicted step as a Chrome or Perfetto trace: a process for every pipeline stage.

    compute         forward and backward passes, without what they wait for
    communication   exposed collectives of each pass, kind by kind, and sends that are waited for
    step            what follows the pipeline: data parallelism, optimizer, fixed

Passes are in the order of the schedule, played through by ``roofline.schedule`` and scaled so that
the last slice ends where the predicted step does. Format: Trace Event Format, JSON object form,
times in microseconds (https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from roofline.microbatch import MicroBatch, average
from roofline.playback import playable
from roofline.schedule import timeline
from roofline.step import weight_gradients
from roofline.timeline import Timeline
from roofline.training import Training

AFTER = ("data parallel", "contention", "optimizer", "fixed")  # what follows the pipeline
ROWS = {"compute": 0, "communication": 1, "step": 2}
NAMES = {"F": "forward", "B": "backward", "W": "weight gradients", "FB": "forward and backward"}
MICRO = 1e6
AXES = {
    "tp": "tensor parallel",
    "cp": "context parallel",
    "ep": "expert parallel",
    "host": "waiting for the host",
}


def played(training: Training) -> tuple[Timeline, float]:
    """The schedule with the predicted times of a pass, and what its times have to be scaled by.

    Raises:
        ValueError: a pipeline that the schedule does not work for, or a schedule without an order.
    """
    layout, terms = training.layout, training.time.terms
    stages, count, chunks = int(layout.pp), round(float(layout.microbatches)), int(layout.chunks)
    name = playable(training)
    part = average(training.job).at_power(training.job.habits.power)[0]
    waited = float(terms["pipeline sends"]) / (2 * chunks * count)
    plan = timeline(
        name,
        stages,
        count,
        chunks=chunks if name == "interleaved" else None,
        forward=float(part.forward_seconds),
        backward=float(part.backward_seconds),
        weight=float(weight_gradients(layout, part)),
        send=waited,
    )
    pipeline = sum(float(value) for name, value in terms.items() if name not in AFTER)
    return plan, pipeline / plan.step


def events(training: Training) -> list[dict[str, Any]]:
    """All slices, in the order of stages; ``ts`` and ``dur`` in microseconds."""
    plan, scale = played(training)
    part = average(training.job).at_power(training.job.habits.power)[0]
    shares = {"F": _shares(part, 0), "B": _shares(part, 1)}
    found = [event for stage in range(int(training.layout.pp)) for event in _titles(stage)]
    for row in plan.to_events():
        found += _sent(row, scale) if row["kind"] == "send" else _pass(row, scale, shares)
    terms = [(name, float(training.time.terms[name])) for name in AFTER]
    for stage in range(int(training.layout.pp)):
        at = plan.step * scale
        for name, seconds in terms:
            if seconds > 0:
                found.append(_slice(stage, "step", name, at, seconds))
            at += seconds
    return found


def _titles(stage: int) -> Iterator[dict[str, Any]]:
    yield _title("process_name", stage, 0, f"stage {stage}")
    yield {"ph": "M", "name": "process_sort_index", "pid": stage, "args": {"sort_index": stage}}
    for name, row in ROWS.items():
        yield _title("thread_name", stage, row, name)


def _title(kind: str, stage: int, row: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": stage, "tid": row, "args": {"name": name}}


def _slice(
    stage: int, row: str, name: str, start: float, seconds: float, **args: Any
) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        "cat": row,
        "pid": stage,
        "tid": ROWS[row],
        "ts": start * MICRO,
        "dur": seconds * MICRO,
        "args": args,
    }


def _shares(part: MicroBatch, way: int) -> dict[str, float]:
    """Share of a pass that each exposed communication takes; 0 forward, 1 backward."""
    whole = float(part.backward_seconds if way else part.forward_seconds)
    return {
        name: float(getattr(part, axis)[way]) / whole
        for axis, name in AXES.items()
        if float(getattr(part, axis)[way]) > 0
    }


def _pass(
    row: dict[str, Any], scale: float, shares: dict[str, dict[str, float]]
) -> Iterator[dict[str, Any]]:
    """A pass: its compute, then what it waits for."""
    start, long = row["start"] * scale, (row["end"] - row["start"]) * scale
    waits = shares.get(row["kind"], {})
    work = long * (1.0 - sum(waits.values()))
    about = {key: row[key] for key in ("microbatch", "chunk")}
    name = f"{NAMES[row['kind']]} {row['microbatch']}"
    if work > 0:
        yield _slice(row["device"], "compute", name, start, work, **about)
    at = start + work
    for kind, share in waits.items():
        yield _slice(row["device"], "communication", kind, at, long * share, **about)
        at += long * share


def _sent(row: dict[str, Any], scale: float) -> Iterator[dict[str, Any]]:
    start, long = row["start"] * scale, (row["end"] - row["start"]) * scale
    name = f"send to stage {row['to']}"
    about = {key: row[key] for key in ("microbatch", "chunk", "of")}
    yield _slice(row["device"], "communication", name, start, long, **about)


def write(training: Training, notes: Sequence[str] = ()) -> str:
    """The JSON text of the trace."""
    other: dict[str, Any] = {"model": training.model.name, "cluster": training.cluster.name}
    other |= {"step_s": float(training.time.seconds)}
    tree = {"traceEvents": events(training), "displayTimeUnit": "ms", "otherData": other}
    return json.dumps(tree, allow_nan=False) + "\n"
