"""The pipeline of a job played through: its own passes, stage by stage, on its own schedule.

    F_i, B_i   layers of stage i · time of a layer, and embedding or head where it has them
    W_i        ``step.weight_gradients`` of its layers: what zero-bubble schedules move

The closed forms of ``roofline.step`` say how long the pipeline takes; this says what happens when.
Data parallelism, optimizer and fixed cost come after it and are not played.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from roofline import layer as ops
from roofline.layout import SCHEDULE
from roofline.microbatch import average
from roofline.schedule import timeline
from roofline.stages import stage
from roofline.step import stage_send, weight_gradients
from roofline.timeline import Timeline
from roofline.training import Training

# Schedules without an order of passes of their own, why, and the nearest that has one.
UNORDERED = {
    "zb-2p": "a solver orders its passes anew for each job, within twice the memory of 1F1B; the "
    "nearest that can be played is zb-h2"
}


def schedule_name(training: Training) -> str:
    """The schedule of a single layout, as ``roofline.bubbles`` calls it."""
    if _one(training.layout.pp) <= 1:
        return "1f1b"
    if _one(training.layout.chunks) > 1:
        return "interleaved"
    return list(SCHEDULE)[int(_one(training.layout.schedule))]


def playable(training: Training) -> str:
    """The same, where it has an order of passes.

    Raises:
        ValueError: where it has none, naming the nearest that has.
    """
    name = schedule_name(training)
    if name in UNORDERED:
        raise ValueError(f"schedule: {name} cannot be played; {UNORDERED[name]}")
    return name


def played(training: Training, microbatches: int | None = None) -> Timeline:
    """The pipeline of a single layout, pass by pass.

    Args:
        microbatches: how many to play; all of a step where None.

    Raises:
        ValueError: a schedule that does not work with so many, or has no order of its own.
    """
    name = playable(training)
    job, layout = training.job, training.layout
    stages, chunks = int(_one(layout.pp)), int(_one(layout.chunks))
    part, _ = average(job).at_power(job.habits.power)
    held = stage(job.model, layout, np.arange(stages, dtype=np.float64))
    twice = 2.0 if name == "dualpipe" and stages > 1 else 1.0
    share = held.layers * stages / (twice * job.model.layers)
    head = ops.head(job.model, layout, job.kernels)
    bottom = ops.embedding(job.model, layout, job.kernels)

    def passes(middle: Any, first: Any, last: Any) -> Any:
        return share * middle + (held.embedding * first + held.head * last) / twice

    forward = passes(part.forward_seconds, bottom.forward.total, head.forward.total)
    backward = passes(part.backward_seconds, bottom.backward.total, head.backward.total)
    weight = np.minimum(share * weight_gradients(layout, part), backward)
    return timeline(
        name,
        stages,
        round(_one(layout.microbatches)) if microbatches is None else microbatches,
        chunks=chunks if chunks > 1 else None,
        forward=np.broadcast_to(forward, stages),
        backward=np.broadcast_to(backward, stages),
        weight=np.broadcast_to(weight, stages),
        send=_one(stage_send(job)) if stages > 1 else 0.0,
    )


def chrome_trace(found: Timeline, title: str) -> dict[str, Any]:
    """A timeline as Chrome and Perfetto read it: a track for each stage, times in µs.

    Source: Trace Event Format, complete events ("ph": "X") and metadata ("ph": "M").
    """
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": title}}
    ]
    events += [
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": i, "args": {"name": f"stage {i}"}}
        for i in range(found.size.stages)
    ]
    for event in found.to_events():
        if event["kind"] == "send":
            continue
        events.append(
            {
                "ph": "X",
                "name": f"{event['kind']}{event['microbatch']}",
                "cat": event["kind"],
                "pid": 0,
                "tid": event["device"],
                "ts": 1e6 * event["start"],
                "dur": 1e6 * (event["end"] - event["start"]),
                "args": {"microbatch": event["microbatch"], "chunk": event["chunk"]},
            }
        )
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _one(value: Any) -> float:
    return float(np.asarray(value))
