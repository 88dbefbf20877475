"""One training step of a whole decoder: the terms that make up its time, exactly.

    stage      t = Σ layers (forward + backward + recompute + exposed TP, CP, EP)
    pipeline   M · (slowest stage + exposed sends) + fill and drain
    step       pipeline + exposed data parallelism + contention + optimizer + fixed

The slowest stage carries the head and the loss, or the embedding, or one layer more than the others
where layers do not divide; ``even`` layouts give embedding and head the slot of a layer each. Sends
of plain 1F1B are waited for, those between interleaved chunks may hide. What fills and drains the
pipeline is the schedule's (``roofline.bubbles``), with two sends for every step of it. ZB-2p is the
order that a search finds for unequal f, b and w in the memory of ZB-H2: published ones have no bubble
at f + b of 2.4 to 3.4 w, and without w no order of one chunk per stage has less than 1F1B.

Sources: Megatron-LM (arXiv:2104.04473), section 2.2; Zero Bubble (arXiv:2401.10241), table 1;
DeepSeek-V3 (arXiv:2412.19437), table 2.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from roofline import layer as ops
from roofline.bubbles import SCHEDULES, Shares
from roofline.distinct import once, only, without
from roofline.gradients import data_parallel
from roofline.job import Job
from roofline.layout import OF_THE_STEP, SCHEDULE, Layout
from roofline.microbatch import MicroBatch, all_layers
from roofline.offload import offload
from roofline.units import Count, Seconds
from roofline.work import Work


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


@dataclass(frozen=True, slots=True)
class _Whole:
    """One micro-batch through the whole model."""

    layers: MicroBatch
    top: Seconds  # head and loss
    bottom: Seconds  # embedding


# What fills and drains each schedule of a layout: plain 1F1B is interleaved with one chunk.
IDLES_AS = SCHEDULES | {
    "1f1b": SCHEDULES["interleaved"],
    "zb-2p": replace(SCHEDULES["zb-h2"], idle=Shares(1, 1, -5), at_least=()),
}

# Fields of a layout that sending activations on to the next stage depends on.
_SENT = ("gpus", "order", "tp", "cp", "pp", "micro_batch", "sequence", "sequence_parallel")


def predict(job: Job) -> StepTime:
    """Time of one optimizer step, term by term."""
    whole = once(_whole, without(job, *OF_THE_STEP))
    part = whole.layers.times(1.0 / job.layout.pp)
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
            "offload": m * offload(job, part),
            **_pipeline(job, part, whole),
            **data_parallel(job, part),
            "fixed": job.habits.fixed * np.ones_like(m),
        }
    )


def _whole(job: Job) -> _Whole:
    layers, slow = all_layers(job).at_power(job.habits.power)
    return _Whole(layers, *ends(job, slow))


def _pipeline(job: Job, part: MicroBatch, whole: _Whole) -> dict[str, Seconds]:
    """What the stages add to the work of the average one: the ends, the sends, the bubble."""
    layout, model = job.layout, job.model
    p, v, m = 1.0 * layout.pp, 1.0 * layout.chunks, layout.microbatches
    several = p > 1
    top, bottom = whole.top, whole.bottom
    worst = np.maximum(top, bottom)
    slots = np.where(np.greater(layout.even, 0), 1.0, 0.0)
    one = part.seconds * p / model.layers
    longest = one * v * np.ceil((model.layers + 2 * slots) / (p * v) - 1e-9)
    at_end = np.where(np.greater(layout.even, 1), worst, longest - slots * one + worst)
    extra = np.where(several, np.maximum(longest, at_end) - part.seconds, top + bottom)
    send = once(stage_send, only(job, *_SENT))
    hops = v * m - 1.0  # the first micro-batch's are in the filling of the pipeline
    hidden = np.greater(layout.pp_overlap, 0) & np.greater(v, 1)  # behind other chunks alone
    waits = np.where(hidden, 0.0, 2.0 * hops * send)
    return {
        "head, embedding and uneven stages": m * extra,
        "pipeline sends": np.where(several, waits, 0.0),
        "bubble": np.where(several, filling(layout, part, send), 0.0),
    }


def filling(layout: Layout, part: MicroBatch, send: Seconds) -> Seconds:
    """Filling and draining, by schedule: each filling step waits for its passes and two sends."""
    p, v, m = 1.0 * layout.pp, 1.0 * layout.chunks, layout.microbatches
    f, b, w = part.forward_seconds, part.backward_seconds, weight_gradients(layout, part)
    sends = 2.0 * v * send
    found: Seconds = 0.0
    for name, number in SCHEDULE.items():
        if np.any(chosen := np.equal(layout.schedule, number)):
            row = IDLES_AS[name]
            seconds = np.maximum(row.filling(p, m, v), 0.0) * (row.waits(f, b, w, f + b) + sends)
            found = np.where(chosen, seconds, found)
    return found


def weight_gradients(layout: Layout, part: MicroBatch) -> Seconds:
    """W, what zero-bubble schedules move: half of the backward matmuls, none of frozen weights. [s]"""
    return np.where(np.greater(layout.lora_rank, 0), 0.0, part.backward.matmuls / 2.0)


def ends(job: Job, slow: Count) -> tuple[Seconds, Seconds]:
    """Head with loss, and embedding, with the collectives that tensor parallelism costs them."""
    layout, model = job.layout, job.model
    top = ops.head(model, layout, job.kernels)
    bottom = ops.embedding(model, layout, job.kernels)
    route = job.network.route(layout.tp_group)
    nbytes = 2.0 * layout.tokens * model.hidden
    split = np.greater(layout.sequence_parallel, 0)
    gather, scatter, reduce = route.gather(nbytes), route.scatter(nbytes), route.reduce(nbytes)
    return (
        _slowed(top.forward + top.backward, slow) + np.where(split, gather, reduce),
        bottom.forward.total + bottom.backward.total + np.where(split, 2 * scatter, reduce),
    )


def _slowed(work: Work, slow: Count) -> Seconds:
    return work.matmuls * slow + work.attention + work.memory


def stage_send(job: Job) -> Seconds:
    """Activations of a micro-batch to the next stage, shared out over the tensor-parallel ranks."""
    layout, model = job.layout, job.model
    route = job.network.route(layout.pp_group)
    nbytes = 2.0 * layout.tokens * model.hidden
    whole = np.logical_and(np.greater(layout.tp, 1), ~np.greater(layout.sequence_parallel, 0))
    again = job.network.route(layout.tp_group).gather(nbytes)
    return route.send(nbytes / layout.tp) + np.where(whole, again, 0.0)
