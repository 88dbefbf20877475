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

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from roofline.dims import Dims
from roofline.distinct import once, without
from roofline.kept import KINDS, Kept, in_a_layer
from roofline.layout import FLASH, OF_THE_STEP, SCHEDULE, Layout
from roofline.memory import States, gather_buffer, model_states
from roofline.recipes import RECIPES, Recipe, adapters
from roofline.stages import Stage, held, stage
from roofline.units import Bytes, Count

SLACK = 0.04  # of what is allocated: fragments that the caching allocator cannot hand out
NCCL = 0.4e9  # bytes of communicators and channel buffers (aiconfigurator's nccl_mem)
CONTEXT = 0.8e9  # bytes of the CUDA context and loaded kernels; 1.6e9 on drivers of 2022
FROZEN_ENDS = 2.0  # bytes per weight of embedding and head; bitsandbytes packs layers alone
NOTHING: Bytes = 0.0
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
    return _Job(model, layout, recipe).on(stage(model, layout, index, in_flight))


def peak(
    model: Dims,
    layout: Layout,
    recipe: Recipe = RECIPES["mixed"],
    *,
    in_flight: Count | None = None,
) -> Footprint:
    """Memory of the fullest stage's GPU: the first, the second, the last, or DualPipe's middle. [B]

    In all schedules layers and micro-batches in flight fall from the second stage to the last but
    one, so that no other can be fuller.
    """
    job, p = _Job(model, layout, recipe), 1.0 * layout.pp
    most = job.on(stage(model, layout, 0, in_flight))
    if not np.any(np.greater(p, 1)):
        return most
    others = [np.minimum(1.0, p - 1), p - 1]
    if np.any(np.equal(layout.schedule, SCHEDULE["dualpipe"])):
        others.append(np.floor((p - 1) / 2))
    total = most.total
    for index in others:
        other = job.on(stage(model, layout, index, in_flight))
        here = other.total
        fuller, total = np.greater(here, total), np.maximum(here, total)
        pairs = zip(other.parts.values(), most.parts.values(), strict=True)
        most = Footprint(
            *(less if more is less else np.where(fuller, more, less) for more, less in pairs)
        )
    return most


@dataclass(frozen=True, slots=True)
class _MicroBatch:
    """Bytes of one micro-batch, whatever the stage."""

    kept: dict[str, Kept]  # in a layer, by kind
    again: Bytes
    stays: Bytes
    logits: tuple[Bytes, Bytes]  # kept, and passing
    exchanged: Bytes
    passing: Bytes  # through the softmax of attention that is no single kernel


class _Job:
    """What does not depend on the stage, computed once: bytes per parameter, per layer, per end."""

    def __init__(self, model: Dims, layout: Layout, recipe: Recipe) -> None:
        self.model, self.layout, self.recipe = model, layout, recipe
        held_of_one = once(_of_a_microbatch, model, without(layout, *OF_THE_STEP), recipe)
        self.kept, self.again, self.stays = held_of_one.kept, held_of_one.again, held_of_one.stays
        self.logits, self.exchanged = held_of_one.logits, held_of_one.exchanged
        self.passing = held_of_one.passing
        self.unit = held(model, layout, 1.0, 0.0, 0.0)
        self.mtp = held(model, layout, 0.0, 1.0, 0.0)
        self.end = held(model, layout, 0.0, 0.0, 1.0).ends
        self.trained = adapters(model, layout, 1.0, recipe.rank) if recipe.adapted else self.unit
        shards = layout.shards
        inside = np.maximum(1.0, shards * layout.tp / (1.0 * layout.ep * layout.etp))
        mixed = np.any(np.greater(model.moe_layers, 0))
        self.dense, self.dense_whole = self._per_parameter(shards)
        self.experts, self.experts_whole = (
            self._per_parameter(inside) if mixed else (self.dense, self.dense_whole)
        )
        self.nccl = NCCL * np.greater(layout.gpus, 1)

    def _per_parameter(self, shards: Count) -> tuple[States, Bytes]:
        """States after sharding, and what FSDP gathers, of one parameter."""
        states, layout = self.recipe.states, self.layout
        whole = gather_buffer(1.0, layout.zero, shards, weight_bytes=layout.weight_bytes, units=1)
        return model_states(1.0, layout.zero, shards, bytes_per_parameter=states), whole

    def on(self, part: Stage) -> Footprint:
        """All parts on one stage."""
        states = self._states(part)
        found = [
            *(states.weights, states.gradients, states.optimizer),
            *self._kept(part),
            *(self._working(part), self._logits(part)),
            *(self._gathered(part), self.exchanged),
        ]
        allocated = sum(found, start=NOTHING)
        return Footprint(*[*found, SLACK * allocated + self._flat(part), self.nccl, CONTEXT])

    def _flat(self, part: Stage) -> Bytes:
        """Buffers of one piece: too long for what the allocator has cached of activations."""
        recipe, layout = self.recipe, self.layout
        if not (recipe.buckets or recipe.flat):
            return NOTHING
        owned = self.unit.total * part.layers + self.end * part.ends(self.model.tied)
        return recipe.buckets + recipe.flat * owned / layout.shards

    def _states(self, part: Stage) -> States:
        """Trained parameters by kind; frozen ones are weights too."""
        mtp = self.model.mtp * part.head
        dense = part.layers * self.unit.dense + part.ends(self.model.tied) * self.end
        dense = dense + mtp * self.mtp.dense
        experts = part.layers * self.unit.experts + mtp * self.mtp.experts
        weights = self.dense.weights * dense + self.experts.weights * experts
        if self.recipe.adapted:
            dense, experts = part.layers * self.trained.dense, part.layers * self.trained.experts
            ends = self.dense.weights * part.ends(self.model.tied) * self.end
            weights = self.recipe.frozen * weights + (FROZEN_ENDS - self.recipe.frozen) * ends
            weights = weights / self.recipe.states.weights
            weights = weights + self.dense.weights * dense + self.experts.weights * experts
        return States(
            weights,
            self.dense.gradients * dense + self.experts.gradients * experts,
            self.dense.optimizer * dense + self.experts.optimizer * experts,
        )

    def _kept(self, part: Stage) -> list[Bytes]:
        """Of every layer and micro-batch, by kind, and the mask behind the embedding."""
        layout = self.layout
        here = part.alive * (1.0 - layout.offload_share)
        parts = [self.kept[kind].stays for kind in KINDS]
        kinds = [part * here if np.any(part) else NOTHING for part in parts]
        if np.any(layout.dropout):
            mask = layout.dropout * layout.tokens * self.model.hidden / layout.split
            kinds[0] = kinds[0] + mask * part.in_flight * part.embedding
        if self.recipe.outputs:
            sent = 2.0 * layout.tokens * self.model.hidden * np.greater(layout.pp, 1)
            kinds[0] = kinds[0] + self.recipe.outputs * sent * part.in_flight * (1.0 - part.head)
        return kinds

    def _working(self, part: Stage) -> Bytes:
        """One layer's activations while its backward pass runs: made again, or fetched, or gradients
        of scores on the way through dropout and softmax.
        """
        made = self.again * np.minimum(1.0, self.layout.recompute_share * part.alive)
        made = made + self.passing * np.minimum(1.0, part.alive)
        if not np.any(self.layout.offload_share):
            return made
        return made + self.stays * self.layout.offload_share * np.minimum(1.0, part.alive)

    def _logits(self, part: Stage) -> Bytes:
        """Of one micro-batch, since its backward pass follows at once; GPipe keeps all."""
        kept, passing = self.logits
        times: Count = 1.0
        if np.any(gpipe := np.equal(self.layout.schedule, SCHEDULE["gpipe"])):
            times = np.where(gpipe, part.in_flight, 1.0)
        return part.head * (kept * times + passing)

    def _gathered(self, part: Stage) -> Bytes:
        """FSDP: the unit at work and the next one, and a gradient; all of them where none is freed.

        A unit is a layer, or embedding or head where they are larger. A pipeline whose stages keep
        their weights adds the gradients of its micro-batches up before it scatters them.
        """
        layout, unit, trained = self.layout, self.unit, self.trained.total
        if not np.any(np.equal(layout.zero, 3)):
            return NOTHING
        one_end = self.end * np.maximum(part.embedding, part.head)
        gradient = trained if self.recipe.adapted else np.maximum(trained, one_end)
        dense, experts = 2.0 * np.maximum(unit.dense, one_end), 2.0 * unit.experts
        stays = np.equal(layout.reshard, 0)
        if np.any(stays):
            ends = part.ends(self.model.tied) * self.end
            added = part.layers * trained + ends * (not self.recipe.adapted)
            gradient = np.where(stays & np.greater(layout.pp, 1), added, gradient)
            dense = np.where(stays, part.layers * unit.dense + ends, dense)
            experts = np.where(stays, part.layers * unit.experts, experts)
        weights = self.dense_whole * dense + self.experts_whole * experts
        return weights + layout.gradient_bytes * gradient * np.greater(self.dense_whole, 0)


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
        kept,
        sum((kind.again for kind in kept.values()), start=NOTHING),
        sum((kind.stays for kind in kept.values()), start=NOTHING),
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
