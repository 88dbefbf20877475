"""Memory of one GPU for a whole training job, part by part, on any stage of the pipeline.

    states        weights, gradients and optimizer, by recipe, sharded by ZeRO, FSDP or HSDP
    activations   what a layer keeps · layers · micro-batches in flight, logits on the last stage
    buffers       gathered layers, tensors in collectives
    beside them   4 % of fragments, NCCL's buffers, the CUDA context

Three totals, since tools measure three things: ``allocated`` is torch.cuda.max_memory_allocated,
``reserved`` is max_memory_reserved, ``total`` is what nvidia-smi shows and what has to fit. Of a
pipeline the fullest stage counts: the first has most micro-batches in flight, the last the logits.
Past about 92 % of the memory expect allocator retries: steps 13 to 25 % slower (llm-foundry's
tables). Logits and gathered layers peak at different moments and are added all the same: with FSDP2
9 % over PyTorch's memory tracker for four small layers, 3 % for sixteen.

Sources: Korthikanti et al., section 4; Megatron-LM, theoretical_memory_usage.py; ZeRO, section 5;
https://arxiv.org/abs/2412.19437, table 2; numbers of NCCL and CUDA at their constants.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from roofline.dims import Dims
from roofline.distinct import once, only, without
from roofline.kept import KINDS, in_a_layer
from roofline.layout import FLASH, OF_THE_STEP, SCHEDULE, Layout
from roofline.recipes import RECIPES, Recipe
from roofline.stage_states import NOTHING, OF_A_STAGE, OnAStage, on_fullest, on_stage
from roofline.stages import Cut
from roofline.units import Bytes, Count

SLACK = 0.04  # of what is allocated: fragments that the caching allocator cannot hand out
NCCL = 0.4e9  # bytes of communicators and channel buffers (aiconfigurator's nccl_mem)
CONTEXT = 0.8e9  # bytes of the CUDA context and loaded kernels; 1.6e9 on drivers of 2022
LOGITS_KEPT = 2.0, 4.0  # bytes per logit until its backward pass: fused loss, eager fp32 loss
LOGITS_PASSING = 2.0, 8.0  # and beside them in it: gradients, and fp32 copies where eager
LOGITS_DTENSOR = 4.0  # one fp32 copy more where eager DTensors cut the vocabulary


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes on one GPU of a stage; every part may be an array. Their sum is ``total``."""

    weights: Bytes
    gradients: Bytes
    optimizer: Bytes
    residual: Bytes  # activations of the layers, by kind: see ``roofline.kept``
    attention: Bytes
    scores: Bytes
    mlp: Bytes
    experts: Bytes
    working: Bytes  # of the layer at work: made again, or fetched from the host
    logits: Bytes
    gathered: Bytes  # weights and gradients that FSDP holds whole for a moment
    exchanged: Bytes  # activations on the way between GPUs
    slack: Bytes
    nccl: Bytes
    context: Bytes

    @property
    def parts(self) -> dict[str, Bytes]:
        """All of them, by name. [B]"""
        return {part.name: getattr(self, part.name) for part in fields(self)}

    @property
    def states(self) -> Bytes:
        """Weights, gradients and optimizer. [B]"""
        return self.weights + self.gradients + self.optimizer

    @property
    def activations(self) -> Bytes:
        """Kept for the backward pass, or at work in it. [B]"""
        kept = self.residual + self.attention + self.scores + self.mlp + self.experts
        return kept + self.working + self.logits

    @property
    def buffers(self) -> Bytes:
        """For collectives. [B]"""
        return self.gathered + self.exchanged

    @property
    def allocated(self) -> Bytes:
        """In tensors: what torch.cuda.max_memory_allocated says. [B]"""
        return self.states + self.activations + self.buffers

    @property
    def reserved(self) -> Bytes:
        """Taken by the allocator: what torch.cuda.max_memory_reserved says. [B]"""
        return self.allocated + self.slack

    @property
    def total(self) -> Bytes:
        """Everything: what nvidia-smi says. [B]"""
        return self.reserved + self.nccl + self.context

    def headroom(self, hbm: Bytes) -> Bytes:
        """What is left of a GPU's memory; negative where it does not fit. [B]"""
        return hbm - self.total

    def fits(self, hbm: Bytes) -> NDArray[np.bool_]:
        """True where it fits."""
        return np.greater_equal(self.headroom(hbm), 0)


def footprint(
    model: Dims,
    layout: Layout,
    recipe: Recipe = RECIPES["mixed"],
    index: Count = 0,
    *,
    in_flight: Count | None = None,
) -> Footprint:
    """Memory of one GPU on stage ``index`` of the pipeline, from 0. [B]

    Args:
        in_flight: micro-batches that it holds at once, for a schedule that the layout cannot name.

    Raises:
        ValueError: where the pipeline has no such stage.
    """
    part = once(on_stage, model, only(layout, *OF_A_STAGE), recipe, index)
    return _Job(model, layout, recipe, in_flight).on(part)


def peak(
    model: Dims,
    layout: Layout,
    recipe: Recipe = RECIPES["mixed"],
    *,
    in_flight: Count | None = None,
) -> Footprint:
    """Memory of the fullest stage's GPU, part by part. [B]"""
    most, *others = _of_the_fullest(model, layout, recipe, in_flight)
    total = most.total
    for other in others:
        here = other.total
        fuller, total = np.greater(here, total), np.maximum(here, total)
        pairs = zip(other.parts.values(), most.parts.values(), strict=True)
        most = Footprint(
            *(less if more is less else np.where(fuller, more, less) for more, less in pairs)
        )
    return most


def peak_bytes(model: Dims, layout: Layout, recipe: Recipe = RECIPES["mixed"]) -> Bytes:
    """The same in total. [B]"""
    return reduce(np.maximum, (one.total for one in _of_the_fullest(model, layout, recipe)))


def _of_the_fullest(
    model: Dims, layout: Layout, recipe: Recipe, in_flight: Count | None = None
) -> Iterator[Footprint]:
    """All stages of which one holds the most, in turn."""
    job = _Job(model, layout, recipe, in_flight)
    return map(job.on, once(on_fullest, model, only(layout, *OF_A_STAGE), recipe))


@dataclass(frozen=True, slots=True)
class _MicroBatch:
    """Bytes of one micro-batch, whatever the stage."""

    kept: tuple[Bytes, ...]  # in a layer, by kind
    again: Bytes
    logits: tuple[Bytes, Bytes]  # kept, and passing
    exchanged: Bytes
    passing: Bytes  # through the softmax of attention that is no single kernel


class _Job:
    """What does not depend on the stage, computed once."""

    def __init__(
        self, model: Dims, layout: Layout, recipe: Recipe, in_flight: Count | None
    ) -> None:
        self.model, self.layout, self.recipe, self.in_flight = model, layout, recipe, in_flight
        self.one = once(_of_a_microbatch, model, without(layout, *OF_THE_STEP), recipe)
        self.kept = [kept if np.any(kept) else NOTHING for kept in self.one.kept]
        self.microbatches = layout.microbatches
        self.nccl = NCCL * np.greater(layout.gpus, 1)

    def on(self, part: OnAStage) -> Footprint:
        """All parts on one stage."""
        flying, states = self.in_flight, part.states
        flying = part.cut.in_flight(self.microbatches) if flying is None else flying
        alive = flying * part.cut.alive
        found = [
            *(states.weights, states.gradients, states.optimizer),
            *self._kept(part.cut, flying, alive),
            *(self._working(alive), self._logits(part.cut, flying)),
            *(part.gathered, self.one.exchanged),
        ]
        allocated = sum(found, start=NOTHING)
        return Footprint(*[*found, SLACK * allocated + part.flat, self.nccl, CONTEXT])

    def _kept(self, part: Cut, flying: Count, alive: Count) -> list[Bytes]:
        """Of every layer and micro-batch, by kind, and the mask behind the embedding."""
        layout = self.layout
        here = alive * (1.0 - layout.offload_share) if np.any(layout.offload_share) else alive
        kinds = [NOTHING if each is NOTHING else each * here for each in self.kept]
        if np.any(layout.dropout):
            mask = layout.dropout * layout.tokens * self.model.hidden / layout.split
            kinds[0] = kinds[0] + mask * flying * part.embedding
        if self.recipe.outputs:
            sent = 2.0 * layout.tokens * self.model.hidden * np.greater(layout.pp, 1)
            kinds[0] = kinds[0] + self.recipe.outputs * sent * flying * (1.0 - part.head)
        return kinds

    def _working(self, alive: Count) -> Bytes:
        """One layer's activations while its backward pass runs: made again, or fetched, or gradients
        of scores on the way through dropout and softmax.
        """
        layout, one = self.layout, self.one
        made = one.again * np.minimum(1.0, layout.recompute_share * alive)
        if np.any(one.passing):
            made = made + one.passing * np.minimum(1.0, alive)
        if np.any(layout.offload_share):
            stays = sum(one.kept, start=NOTHING)
            made = made + stays * layout.offload_share * np.minimum(1.0, alive)
        return made

    def _logits(self, part: Cut, flying: Count) -> Bytes:
        """Of one micro-batch, since its backward pass follows at once; GPipe keeps all."""
        kept, passing = self.one.logits
        times: Count = 1.0
        if np.any(gpipe := np.equal(self.layout.schedule, SCHEDULE["gpipe"])):
            times = np.where(gpipe, flying, 1.0)
        return part.head * (kept * times + passing)


def _passing(model: Dims, layout: Layout, recipe: Recipe) -> Bytes:
    """Into and out of the softmax, where attention is no single kernel. [B]"""
    unfused = np.equal(layout.attention, FLASH["unfused"])
    if not np.any(unfused):
        return NOTHING
    scores = layout.tokens * layout.sequence * model.heads / layout.tp
    return 2.0 * recipe.element * scores * unfused


def _of_a_microbatch(model: Dims, layout: Layout, recipe: Recipe) -> _MicroBatch:
    kept = in_a_layer(model, layout, recipe)
    return _MicroBatch(
        tuple(kept[kind].stays for kind in KINDS),
        sum((kind.again for kind in kept.values()), start=NOTHING),
        _logits(model, layout, recipe),
        _exchanged(model, layout, recipe),
        _passing(model, layout, recipe),
    )


def _logits(model: Dims, layout: Layout, recipe: Recipe) -> tuple[Bytes, Bytes]:
    """Inputs of the final norm and of the head, logits; and what passes in the backward pass. [B]"""
    width, fused = model.vocab / layout.tp, np.greater(layout.fused_loss, 0)
    frozen = np.greater(recipe.rank, 0)  # a frozen head does not ask for its input again
    inputs = np.where(frozen, 1.0, 2.0) * recipe.element * model.hidden / layout.split
    tokens = (1.0 + model.mtp) * layout.tokens
    kept = tokens * (inputs + width * np.where(fused, *LOGITS_KEPT))
    passing = np.where(fused, *LOGITS_PASSING)
    cut = recipe.dtensor * np.greater(layout.tp, 1) * ~fused
    return kept, tokens * width * (passing + LOGITS_DTENSOR * cut)


def _exchanged(model: Dims, layout: Layout, recipe: Recipe) -> Bytes:
    """A full input and a full gradient under sequence parallelism; rows sent to experts. [B]"""
    stream, several = layout.tokens * model.hidden, np.greater(layout.split, 1)
    whole = 2.0 * recipe.element * stream * several
    if not np.any(model.moe_layers):
        return whole
    rows = model.top_k * layout.busiest * np.greater(model.moe_layers, 0) / layout.split
    away = np.greater(1.0 * layout.ep * layout.etp, 1)
    return whole + stream * rows * (layout.dispatch_bytes + recipe.element) * away
