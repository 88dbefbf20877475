"""The collectives of one job's step: what each moves, over which tiers, how often, and what it costs.

The calls are heard from the functions of the step (``roofline.overheard``); here stands which of
them are made, and how often: a step asks for the all-reduce and for the gather and scatter that
may stand in its place, and takes one.

    TP   with sequence parallelism 2 all-gathers and 2 reduce-scatters forward, 4 and 2 backward
    CP   cp - 1 sends round a ring forward, twice that backward; or one gather, then gather, scatter
    EP   dispatch and combine, forward and backward
    PP   v sends each way for a micro-batch, those of the first left to the bubble
    DP   once a step; of ZeRO-3 for every layer and micro-batch
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from roofline import layer as ops
from roofline.adapters import trained
from roofline.gradients import data_parallel
from roofline.job import Job
from roofline.layout import RING, ZERO_KIND
from roofline.microbatch import (
    MicroBatch,
    context_parallel,
    expert_parallel,
    layers_on_a_stage,
    tensor_parallel,
    tensor_parallel_blocks,
)
from roofline.overheard import Call, listening
from roofline.step import StepTime, stage_send

ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class CollectiveRow:
    """One collective of a step, as one GPU sees it."""

    what: str
    axis: str  # TP, CP, EP, PP, DP
    term: str
    call: Call
    times: float  # in a step
    exposed: float  # of a step, waited for

    @property
    def seconds(self) -> float:
        """In a step, hidden or not. [s]"""
        return self.times * self.call.seconds

    @property
    def hidden(self) -> float:
        """Behind compute; what sums of many calls leave by rounding is none. [s]"""
        left = self.seconds - self.exposed
        return left if left > ROUNDING * self.seconds else 0.0

    @property
    def nbytes(self) -> float:
        """Of one call. [B]"""
        return self.call.nbytes


@dataclass(frozen=True, slots=True)
class _Use:
    what: str
    call: Call
    times: float


def collectives(job: Job, part: MicroBatch, time: StepTime) -> Iterator[CollectiveRow]:
    """Every collective that some rank takes part in; ``part`` is the average micro-batch."""
    m = _one(job.layout.microbatches)
    plain, mixed = (_one(each) for each in layers_on_a_stage(job))
    layers = m * (plain + mixed)
    blocks = m * (plain + mixed * _one(tensor_parallel_blocks(job.layout)))
    for axis, term, (forward, backward), exposed in (
        ("TP", "tensor parallel", _tensor(job, blocks), part.tp),
        ("CP", "context parallel", _context(job, layers), part.cp),
        ("EP", "expert parallel", _experts(job, m * mixed), part.ep),
    ):
        yield from _shown(axis, term, forward, m * _one(exposed[0]))
        yield from _shown(axis, term, backward, m * _one(exposed[1]))
    yield from _shown("PP", "pipeline sends", _sends(job, m), time.terms["pipeline sends"])
    yield from _shown("DP", "data parallel", _data(job, part), time.terms["data parallel"])


def _shown(axis: str, term: str, uses: Sequence[_Use], exposed: Any) -> Iterator[CollectiveRow]:
    """Rows, with what is exposed of them together shared out by duration."""
    alive = [use for use in uses if use.times and use.call.ranks > 1]
    total = sum(use.times * use.call.seconds for use in alive)
    for use in alive:
        share = use.times * use.call.seconds / total if total else 1.0 / len(alive)
        yield CollectiveRow(use.what, axis, term, use.call, use.times, _one(exposed) * share)


Uses = tuple[list[_Use], list[_Use]]  # forward, backward


def _tensor(job: Job, blocks: float) -> Uses:
    heard, calls = listening(job)
    tensor_parallel(heard)
    gather, scatter, reduce = calls
    if _one(job.layout.sequence_parallel) > 0:
        return (
            [
                _Use("activations before a block, forward", gather, 2 * blocks),
                _Use("activations after a block, forward", scatter, 2 * blocks),
            ],
            [
                _Use("activations and gradients, backward", gather, 4 * blocks),
                _Use("gradients after a block, backward", scatter, 2 * blocks),
            ],
        )
    return (
        [_Use("activations after a block, forward", reduce, 2 * blocks)],
        [_Use("gradients after a block, backward", reduce, 2 * blocks)],
    )


def _context(job: Job, layers: float) -> Uses:
    cp = _one(job.layout.cp)
    if cp <= 1:
        return [], []
    heard, calls = listening(job)
    context_parallel(heard, ops.core_attention(job.model, job.layout, job.kernels))
    hop, gather, scatter, exchange = calls
    kind = _one(job.layout.cp_kind)
    if kind == RING["ring"]:
        return (
            [_Use("keys and values to the next rank, forward", hop, (cp - 1) * layers)],
            [_Use("keys, values and gradients, backward", hop, 2 * (cp - 1) * layers)],
        )
    if kind == RING["all-gather"]:
        return (
            [_Use("keys and values, forward", gather, layers)],
            [
                _Use("keys and values, backward", gather, layers),
                _Use("their gradients, backward", scatter, layers),
            ],
        )
    return (
        [_Use("heads for sequence, forward", exchange, 4 * layers)],
        [_Use("heads for sequence, backward", exchange, 4 * layers)],
    )


def _experts(job: Job, layers: float) -> Uses:
    if not layers:
        return [], []
    heard, calls = listening(job)
    expert_parallel(heard)
    dispatch, combine = calls
    return (
        [
            _Use("dispatch of tokens, forward", dispatch, layers),
            _Use("combination of tokens, forward", combine, layers),
        ],
        [_Use("dispatch and combination, backward", combine, 2 * layers)],
    )


def _sends(job: Job, m: float) -> list[_Use]:
    """Those of the first micro-batch are part of the bubble.

    A message that tensor-parallel ranks share out is gathered again where it arrives.
    """
    layout = job.layout
    heard, calls = listening(job)
    stage_send(heard)
    gather, send = calls
    times = 2 * (_one(layout.chunks) * m - 1) * (_one(layout.pp) > 1)
    whole = _one(layout.sequence_parallel) <= 0
    return [
        _Use("activations, gradients to a next stage", send, times),
        _Use("activations of the stage before, made whole", gather, times * whole),
    ]


def _data(job: Job, part: MicroBatch) -> list[_Use]:
    heard, calls = listening(job)
    data_parallel(heard, part)
    layout, model = job.layout, job.model
    sent_on = _one(layout.zero_kind) == ZERO_KIND["broadcast"]
    trained_experts = _one(trained(model, layout).experts) > 0
    dense = 3 + sent_on
    once = dense + 3 * trained_experts
    tied = _one(layout.pp) > 1 and _one(model.tied) > 0
    if _one(layout.zero) >= 3:
        return list(_every_layer(job, calls[once + tied :]))
    used = list(_once(job, calls[:dense], calls[dense:once]))
    if tied and calls[once].nbytes:
        used.append(_Use("gradients of the tied embedding", calls[once], 1))
    return used


def _once(job: Job, dense: Sequence[Call], experts: Sequence[Call]) -> Iterator[_Use]:
    """Gradients and weights once a step, dense ones and the experts'."""
    layout = job.layout
    plain = _one(layout.zero) == 0
    whole = plain or _one(layout.shard) > 0 or _one(layout.zero_kind) > 0
    reduce, scatter, *spread = dense  # the last way of spreading weights is the one taken
    yield _Use("gradients", reduce if whole else scatter, 1)
    yield _Use("updated weights", spread[-1], 0 if plain else 1)
    if experts:
        gather, reduce, scatter = experts
        yield _Use("gradients of the experts", reduce if plain else scatter, 1)
        yield _Use("updated weights of the experts", gather, 0 if plain else 1)


def _every_layer(job: Job, calls: Sequence[Call]) -> Iterator[_Use]:
    """ZeRO-3: a layer's weights before each pass, its gradients after; the ends once."""
    layout = job.layout
    m, here = _one(layout.microbatches), _one(job.model.layers) / _one(layout.pp)
    freed = _one(layout.reshard) > 0
    gather, scatter, root, last, outer = calls
    yield _Use("weights of a layer", gather, (2 * m if freed else 1) * here)
    yield _Use("gradients of a layer", scatter, m * here)
    yield _Use("weights of head and embedding", root, m if freed else 0)
    yield _Use("gradients of head and embedding", last, 1)
    yield _Use("gradients between replicas", outer, 1)


def _one(value: Any) -> float:
    return float(np.asarray(value))
