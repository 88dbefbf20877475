"""What a pipeline stage holds on one GPU, however many micro-batches there are.

    states      weights, gradients and optimizer, by recipe, sharded by ZeRO, FSDP or HSDP
    gathered    weights and gradients that FSDP holds whole for a moment
    flat        buffers of one piece

Parameters by kind and bytes of one parameter are the same on every stage: they are found once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from roofline.dims import Dims
from roofline.layout import Layout
from roofline.memory import States, gather_buffer, model_states
from roofline.recipes import Recipe, adapters
from roofline.stages import Cut, cut, fullest, held
from roofline.units import Bytes, Count

FROZEN_ENDS = 2.0  # bytes per weight of embedding and head; bitsandbytes packs layers alone
NOTHING: Bytes = 0.0

# Fields of a layout that these depend on.
OF_A_STAGE = (
    *("gpus", "tp", "cp", "pp", "ep", "etp", "chunks", "schedule", "even"),
    *("zero", "shard", "reshard", "weight_bytes", "gradient_bytes"),
)


@dataclass(frozen=True, slots=True)
class OnAStage:
    """A stage and the bytes on one of its GPUs."""

    cut: Cut
    states: States
    gathered: Bytes
    flat: Bytes


def on_stage(model: Dims, layout: Layout, recipe: Recipe, index: Count) -> OnAStage:
    """Of stage ``index``, from 0.

    Raises:
        ValueError: where the pipeline has no such stage.
    """
    return _Parameters(model, layout, recipe).on(cut(model, layout, index))


def on_fullest(model: Dims, layout: Layout, recipe: Recipe) -> tuple[OnAStage, ...]:
    """Of every stage that may hold the most."""
    job = _Parameters(model, layout, recipe)
    return tuple(job.on(cut(model, layout, index)) for index in fullest(layout))


class _Parameters:
    """What does not depend on the stage: parameters of a layer and of an end, bytes of one."""

    def __init__(self, model: Dims, layout: Layout, recipe: Recipe) -> None:
        self.model, self.layout, self.recipe = model, layout, recipe
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

    def on(self, part: Cut) -> OnAStage:
        """All parts on one stage."""
        return OnAStage(part, self._states(part), self._gathered(part), self._flat(part))

    def _per_parameter(self, shards: Count) -> tuple[States, Bytes]:
        """States after sharding, and what FSDP gathers, of one parameter."""
        states, layout = self.recipe.states, self.layout
        whole = gather_buffer(1.0, layout.zero, shards, weight_bytes=layout.weight_bytes, units=1)
        return model_states(1.0, layout.zero, shards, bytes_per_parameter=states), whole

    def _states(self, part: Cut) -> States:
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

    def _gathered(self, part: Cut) -> Bytes:
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

    def _flat(self, part: Cut) -> Bytes:
        """Buffers of one piece: too long for what the allocator has cached of activations."""
        recipe, layout = self.recipe, self.layout
        if not (recipe.buckets or recipe.flat):
            return NOTHING
        owned = self.unit.total * part.layers + self.end * part.ends(self.model.tied)
        return recipe.buckets + recipe.flat * owned / layout.shards
