"""Memory of one GPU for a whole training job, part by part, on any stage of the pipeline.

    states        weights, gradients and optimizer, by recipe, sharded by ZeRO, FSDP or HSDP
    activations   what a layer keeps · layers · micro-batches in flight, logits on the last stage
    buffers       gathered layers, tensors in collectives
    beside them   4 % of fragments, NCCL's buffers, the CUDA context

Three totals, since tools measure three things: ``allocated`` is torch.cuda.max_memory_allocated,
``reserved`` is max_memory_reserved, ``total`` is what nvidia-smi shows and what has to fit. Of a
pipeline the fullest stage counts: the first has most micro-batches in flight, the last the logits.
Past about 92 % of the memory expect allocator retries: steps 13 to 25 % slower (llm-foundry's
tables).

Sources: Korthikanti et al., section 4; Megatron-LM, theoretical_memory_usage.py; ZeRO, section 5;
https://arxiv.org/abs/2412.19437, table 2; numbers of NCCL and CUDA at their constants.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from roofline.dims import Dims
from roofline.kept import KINDS, layer
from roofline.layout import SCHEDULE, Layout
from roofline.memory import States, gather_buffer, model_states
from roofline.recipes import RECIPES, Recipe, adapters
from roofline.stages import Stage, held, stage
from roofline.units import Bytes, Count

SLACK = 0.04  # of what is allocated: fragments that the caching allocator cannot hand out
NCCL = 0.4e9  # bytes of communicators and channel buffers (aiconfigurator's nccl_mem)
CONTEXT = 0.8e9  # bytes of the CUDA context and loaded kernels; 1.6e9 on drivers of 2022
LOGITS_KEPT = 2.0, 4.0  # bytes per logit until its backward pass: fused loss, eager fp32 loss
LOGITS_PASSING = 2.0, 8.0  # and beside them in it: gradients, and fp32 copies where eager


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
    for index in others:
        other = job.on(stage(model, layout, index, in_flight))
        fuller = np.greater(other.total, most.total)
        pairs = zip(other.parts.values(), most.parts.values(), strict=True)
        most = Footprint(*(np.where(fuller, more, less) for more, less in pairs))
    return most


class _Job:
    """What does not depend on the stage, computed once."""

    def __init__(self, model: Dims, layout: Layout, recipe: Recipe) -> None:
        self.model, self.layout, self.recipe = model, layout, recipe
        self.kept = layer(model, layout, recipe)
        self.unit = held(model, layout, 1.0, 0.0, 0.0)
        self.trained = adapters(model, layout, 1.0, recipe.rank) if recipe.adapted else self.unit
        self.shards = layout.shards
        inside = self.shards * layout.tp / (1.0 * layout.ep * layout.etp)
        self.expert_shards = np.maximum(1.0, inside)
        self.dense = self._per_parameter(self.shards)
        several = np.any(np.greater(model.moe_layers, 0))
        self.experts = self._per_parameter(self.expert_shards) if several else self.dense

    def _per_parameter(self, shards: Count) -> States:
        states = self.recipe.states
        return model_states(1.0, self.layout.zero, shards, bytes_per_parameter=states)

    def on(self, part: Stage) -> Footprint:
        """All parts on one stage."""
        states = self._states(part)
        found = [
            *(states.weights, states.gradients, states.optimizer),
            *self._kept(part),
            *(self._working(part), self._logits(part)),
            *(self._gathered(part), self._exchanged()),
        ]
        allocated = sum(found, start=np.float64(0.0))
        nccl = NCCL * np.greater(self.layout.gpus, 1)
        return Footprint(*found, SLACK * allocated, nccl, CONTEXT)

    def _states(self, part: Stage) -> States:
        """Trained parameters by kind; frozen ones are weights too."""
        model, recipe = self.model, self.recipe
        every = held(model, self.layout, part.layers, model.mtp * part.head, part.ends(model.tied))
        trained, frozen = every, 0.0
        if recipe.adapted:
            trained = adapters(model, self.layout, part.layers, recipe.rank)
            frozen = recipe.frozen / recipe.states.weights
        dense, experts = trained.dense + trained.ends, trained.experts
        still = (every.dense + every.ends) * frozen, every.experts * frozen
        return States(
            self.dense.weights * (dense + still[0]) + self.experts.weights * (experts + still[1]),
            self.dense.gradients * dense + self.experts.gradients * experts,
            self.dense.optimizer * dense + self.experts.optimizer * experts,
        )

    def _kept(self, part: Stage) -> list[Bytes]:
        """Of every layer and micro-batch, by kind, and the mask behind the embedding."""
        layout = self.layout
        here = part.alive * (1.0 - layout.offload_share)
        kinds = [self.kept[kind].stays * here for kind in KINDS]
        mask = layout.dropout * layout.tokens * self.model.hidden / layout.split
        kinds[0] = kinds[0] + mask * part.in_flight * part.embedding
        return kinds

    def _working(self, part: Stage) -> Bytes:
        """One layer's activations while its backward pass runs: made again, or fetched."""
        layout, parts = self.layout, self.kept.values()
        again = sum((kind.again for kind in parts), start=np.float64(0.0))
        stays = sum((kind.stays for kind in parts), start=np.float64(0.0))
        made = again * np.minimum(1.0, layout.recompute_share * part.alive)
        return made + stays * layout.offload_share * np.minimum(1.0, part.alive)

    def _logits(self, part: Stage) -> Bytes:
        """Of one micro-batch, since its backward pass follows at once; GPipe keeps all."""
        model, layout = self.model, self.layout
        width, fused = model.vocab / layout.tp, np.greater(layout.fused_loss, 0)
        kept = 2.0 * self.recipe.element * model.hidden / layout.split
        kept = kept + width * np.where(fused, *LOGITS_KEPT)
        passing = width * np.where(fused, *LOGITS_PASSING)
        times = np.where(np.equal(layout.schedule, SCHEDULE["gpipe"]), part.in_flight, 1.0)
        heads = (1.0 + model.mtp) * part.head
        return heads * layout.tokens * (kept * times + passing)

    def _gathered(self, part: Stage) -> Bytes:
        """FSDP: the layer at work and the next one, or all where none is freed; a gradient."""
        model, layout, unit = self.model, self.layout, self.unit
        if not np.any(np.equal(layout.zero, 3)):
            return 0.0
        one_end = model.embedding / layout.tp * np.maximum(part.embedding, part.head)
        stays = np.equal(layout.reshard, 0)
        units = np.where(stays, part.layers, 2.0)
        sizes = np.where(stays, unit.dense, np.maximum(unit.dense, one_end))
        found: Bytes = 0.0
        for size, shards in ((sizes, self.shards), (unit.experts, self.expert_shards)):
            found = found + gather_buffer(
                size, layout.zero, shards, weight_bytes=layout.weight_bytes, units=units
            )
        ends = np.where(stays, part.ends(model.tied) * model.embedding / layout.tp, 0.0)
        whole = ends * layout.weight_bytes + self.trained.total * layout.gradient_bytes
        return found + whole * (np.equal(layout.zero, 3) & np.greater(self.shards, 1))

    def _exchanged(self) -> Bytes:
        """A full input and a full gradient under sequence parallelism; rows sent to experts."""
        model, layout = self.model, self.layout
        element, entering = self.recipe.element, layout.tokens / layout.split
        whole = 2.0 * element * layout.tokens * model.hidden * np.greater(layout.split, 1)
        rows = entering * model.top_k * layout.imbalance * np.greater(model.moe_layers, 0)
        away = np.greater(1.0 * layout.ep * layout.etp, 1)
        return whole + rows * model.hidden * (layout.dispatch_bytes + element) * away
