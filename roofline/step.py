"""One training step of a whole decoder: the terms that make up its time, exactly.

    stage      t = Σ layers (forward + backward + recompute + exposed TP, CP, EP)
    pipeline   M · (slowest stage + exposed sends) + fill and drain
    step       pipeline + exposed data parallelism + contention + optimizer + fixed

The slowest stage carries the head and the loss, or the embedding, or one layer more than the others
where layers do not divide; ``even`` layouts give embedding and head the slot of a layer each. Sends
of plain 1F1B are waited for, those between interleaved chunks may hide. What fills and drains the
pipeline depends on the schedule: w is the part of the backward that makes weight gradients.

    1F1B, GPipe  (p-1)(f+b)/v    ZB-H1  (p-1)(f+b-2w)    ZB-H2  (p-1)(f+b-3w)    ZB-V  0
    DualPipe     (p/2-1)(f + 2b - 3w)

Sources: Megatron-LM (arXiv:2104.04473), section 2.2; Zero Bubble (arXiv:2401.10241), table 1;
DeepSeek-V3 (arXiv:2412.19437), table 2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from roofline import layer as ops
from roofline.gradients import data_parallel, optimizer
from roofline.groups import Group
from roofline.job import Job
from roofline.layer import Work
from roofline.layout import SCHEDULE, Layout
from roofline.microbatch import MicroBatch, average
from roofline.units import Count, Seconds


@dataclass(frozen=True, slots=True)
class StepTime:
    """The terms of a step; their sum is the step."""

    terms: dict[str, Seconds]

    @property
    def seconds(self) -> Seconds:
        """The step. [s]"""
        total: Seconds = 0.0
        for seconds in self.terms.values():
            total = total + seconds
        return total


def predict(job: Job) -> StepTime:
    """Time of one optimizer step, term by term."""
    part, slow = average(job).at_power(job.habits.power)
    m = job.layout.microbatches
    return StepTime(
        {
            "matmuls": m * (part.forward.matmuls + part.backward.matmuls),
            "attention": m * (part.forward.attention + part.backward.attention),
            "memory-bound": m * (part.forward.memory + part.backward.memory),
            "recompute": m * part.again,
            "tensor parallel": m * (part.tp[0] + part.tp[1]),
            "context parallel": m * (part.cp[0] + part.cp[1]),
            "expert parallel": m * (part.ep[0] + part.ep[1]),
            "waiting for the host": m * (part.host[0] + part.host[1]),
            **_pipeline(job, part, slow),
            **data_parallel(job, part),
            "optimizer": optimizer(job),
            "fixed": job.habits.fixed * np.ones_like(m),
        }
    )


def _pipeline(job: Job, part: MicroBatch, slow: Count) -> dict[str, Seconds]:
    """What the stages add to the work of the average one: the ends, the sends, the bubble."""
    layout, model = job.layout, job.model
    p, v, m = 1.0 * layout.pp, 1.0 * layout.chunks, layout.microbatches
    several = p > 1
    top, bottom = _ends(job, slow)
    worst = np.maximum(top, bottom)
    slots = np.where(np.greater(layout.even, 0), 1.0, 0.0)
    one = part.seconds * p / model.layers
    longest = one * v * np.ceil((model.layers + 2 * slots) / (p * v) - 1e-9)
    at_end = np.where(np.greater(layout.even, 1), worst, longest - slots * one + worst)
    extra = np.where(several, np.maximum(longest, at_end) - part.seconds, top + bottom)
    send = _send(job)
    waits = np.where(np.greater(layout.pp_overlap, 0), 0.0, 2.0 * v * send)
    return {
        "head, embedding and uneven stages": m * extra,
        "pipeline sends": m * np.where(several, waits, 0.0),
        "bubble": np.where(several, _fill(layout, part, send), 0.0),
    }


def _fill(layout: Layout, part: MicroBatch, send: Seconds) -> Seconds:
    """Filling and draining, by schedule."""
    p, v = 1.0 * layout.pp, 1.0 * layout.chunks
    f, b, w = part.forward_seconds, part.backward_seconds, part.backward.matmuls / 2
    sends = 2.0 * v * send
    plain = (p - 1) * (f + b + sends) / v
    by_schedule = {
        "1f1b": plain,
        "gpipe": plain,
        "zb-h1": (p - 1) * (f + b - 2 * w + sends),
        "zb-h2": (p - 1) * (np.maximum(f + b - 3 * w, 0.0) + sends),
        "zb-v": (p - 1) * sends,
        "dualpipe": np.maximum(p / 2 - 1, 0.0) * (f + b + b - 3 * w + sends),
    }
    kinds = [np.equal(layout.schedule, SCHEDULE[name]) for name in by_schedule]
    return np.select(kinds, list(by_schedule.values()))


def _ends(job: Job, slow: Count) -> tuple[Seconds, Seconds]:
    """Head with loss, and embedding, with the collectives that tensor parallelism costs them."""
    layout, model = job.layout, job.model
    top = ops.head(model, layout, job.kernels)
    bottom = ops.embedding(model, layout, job.kernels)
    route = job.network.route(Group(layout.tp))
    nbytes = 2.0 * layout.tokens * model.hidden
    split = np.greater(layout.sequence_parallel, 0)
    gather, scatter, reduce = route.gather(nbytes), route.scatter(nbytes), route.reduce(nbytes)
    return (
        _slowed(top.forward + top.backward, slow) + np.where(split, gather, reduce),
        bottom.forward.total + bottom.backward.total + np.where(split, 2 * scatter, reduce),
    )


def _slowed(work: Work, slow: Count) -> Seconds:
    return work.matmuls * slow + work.attention + work.memory


def _send(job: Job) -> Seconds:
    """Activations of a micro-batch to the next stage, shared out over the tensor-parallel ranks."""
    layout, model = job.layout, job.model
    route = job.network.route(Group(layout.pp, layout.tp * layout.cp * layout.dp))
    nbytes = 2.0 * layout.tokens * model.hidden
    whole = np.logical_and(np.greater(layout.tp, 1), ~np.greater(layout.sequence_parallel, 0))
    again = job.network.route(Group(layout.tp)).gather(nbytes)
    return route.send(nbytes / layout.tp) + np.where(whole, again, 0.0)
