"""What one pipeline stage holds: layers, ends of the model, parameters, micro-batches in flight.

    layers      ⌈L/pv⌉ or ⌊L/pv⌋ in each of its v chunks, the longer ones first
    ends        the embedding on the first stage, head and MTP on the last; a V has both on the first
    in flight   1F1B          p - i                       on stage i, from 0
                interleaved   (2(p-1-i) + (v-1)p + 1)/v   in units of a whole stage
                ZB-H1, ZB-V   p       ZB-H2, ZB-2p  2p - 1       DualPipe  p + 1       GPipe  M

and never more than all M. A zero-bubble schedule keeps a micro-batch until its weight gradients are
made, so that late stages hold as much as early ones. ``roofline.schedule`` plays the same schedules
through; a test holds the two together.

Sources: https://arxiv.org/abs/2104.04473, section 2.2; https://arxiv.org/abs/2401.10241, table 2;
https://arxiv.org/abs/2412.19437, table 2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from roofline.dims import Dims
from roofline.layout import SCHEDULE, Layout
from roofline.units import Count


@dataclass(frozen=True, slots=True)
class Owned:
    """Parameters that one GPU holds before data parallelism."""

    dense: Count
    experts: Count
    ends: Count  # embedding or head on a stage that has one

    @property
    def total(self) -> Count:
        """All of them."""
        return self.dense + self.experts + self.ends


def owned(model: Dims, layout: Layout) -> Owned:
    """Parameters of an average stage with one end of the model, data parallelism apart."""
    p = 1.0 * layout.pp
    once = np.logical_or(np.greater(p, 1), np.greater(model.tied, 0))
    return held(model, layout, model.layers / p, model.mtp / p, np.where(once, 1.0, 2.0))


def held(model: Dims, layout: Layout, layers: Count, mtp: Count, ends: Count) -> Owned:
    """Parameters of some layers, MTP modules and matrices V x D, cut by tp, ep and etp.

    Layers with experts count as spread evenly; norms and routers are whole on every GPU.

    Args:
        layers: how many of the model's layers.
        mtp: how many of its MTP modules: a layer each, and a projection 2D x D.
        ends: how many of embedding and head.
    """
    t, share = 1.0 * layout.tp, layers / model.layers
    routed = np.greater(model.moe_layers, 0)
    with_mlp = share * model.dense_layers + mtp * ~routed
    with_experts = share * model.moe_layers + mtp * routed
    wide = (layers + mtp) * model.attention + with_mlp * model.mlp + with_experts * model.shared
    wide = wide + mtp * 2.0 * model.hidden**2
    narrow = (layers + mtp) * model.small + with_experts * model.hidden * model.experts
    experts = with_experts * (model.expert * model.experts) / (1.0 * layout.ep * layout.etp)
    return Owned(wide / t + narrow, experts, ends * model.embedding / t)


@dataclass(frozen=True, slots=True)
class Stage:
    """The part of the model on the GPUs of one pipeline stage, and how often it is in flight."""

    layers: Count  # whose parameters it holds: of both directions in DualPipe
    embedding: Count  # 1 where it has the embedding
    head: Count  # 1 where it has the head
    in_flight: Count  # micro-batches, in units of all layers of a stage
    alive: Count  # layers times micro-batches whose activations it holds


def stage(model: Dims, layout: Layout, index: Count, in_flight: Count | None = None) -> Stage:
    """Stage ``index`` of the pipeline, from 0.

    Args:
        in_flight: micro-batches that it holds at once, where the schedule is none of ``SCHEDULE``.

    Raises:
        ValueError: where the pipeline has no such stage.
    """
    part = cut(model, layout, index)
    flying = part.in_flight(layout.microbatches) if in_flight is None else in_flight
    return Stage(part.layers, part.embedding, part.head, flying, flying * part.alive)


@dataclass(frozen=True, slots=True)
class Cut:
    """A stage, however many micro-batches there are."""

    layers: Count
    embedding: Count
    head: Count
    most: Count  # micro-batches in flight, where there are so many
    alive: Count  # layers of one of them, MTP modules among them

    def in_flight(self, microbatches: Count) -> Count:
        """Micro-batches that it holds at once, of so many in a step."""
        return np.minimum(microbatches, self.most)

    def ends(self, tied: Count) -> Count:
        """Matrices V x D: a tied one is one where embedding and head meet."""
        return self.embedding + self.head * (1.0 - tied * self.embedding)


def cut(model: Dims, layout: Layout, index: Count) -> Cut:
    """What stage ``index`` of the pipeline has, from 0.

    Raises:
        ValueError: where the pipeline has no such stage.
    """
    p = 1.0 * layout.pp
    if not np.all(np.logical_and(np.greater_equal(index, 0), np.less(index, p))):
        limit = np.max(p) - 1
        raise ValueError(
            f"stage: {index} is refused; allowed: 0 to stages - 1, at most {limit:.0f}"
        )
    first, last = 1.0 * np.equal(index, 0), 1.0 * np.equal(index, p - 1)
    layers = _layers(model, layout, index)
    both = _is(layout, "dualpipe") & np.greater(p, 1)
    alive = layers
    if np.any(both):
        mirrored = layers + _layers(model, layout, p - 1 - index)
        layers = np.where(both, mirrored, layers)
        alive = np.where(both, mirrored / 2, alive)
        first, last = np.where(both, first + last, first), np.where(both, first + last, last)
    folded = _is(layout, "zb-v")
    if np.any(folded):
        last = np.where(folded, first, last)
    return Cut(layers, first, last, _most_in_flight(layout, index), alive + model.mtp * last)


def fullest(layout: Layout) -> list[Count]:
    """Stages of which one holds the most: the first, the second, the last, or DualPipe's middle.

    In all schedules layers and micro-batches in flight fall from the second stage to the last but
    one, so that no other can be fuller.
    """
    p = 1.0 * layout.pp
    if not np.any(np.greater(p, 1)):
        return [0]
    outer: list[Count] = [0, np.minimum(1.0, p - 1), p - 1]
    return [*outer, np.floor((p - 1) / 2)] if np.any(_is(layout, "dualpipe")) else outer


def _layers(model: Dims, layout: Layout, index: Count) -> Count:
    """Layers of one stage; where the ends count as layers, the outer ones have one less."""
    p, v = 1.0 * layout.pp, 1.0 * layout.chunks
    even = 1.0 * np.greater(layout.even, 0)
    slots = model.layers + even * (2.0 + model.mtp)
    short = np.floor(slots / (p * v))
    longer = np.clip(np.ceil((slots - short * p * v - index) / p), 0.0, v)
    outer: Count = 1.0 * np.equal(index, 0) + (1.0 + model.mtp) * np.equal(index, p - 1)
    layers: Count = np.maximum(0.0, short * v + longer - even * outer)
    return layers


def in_flight_on(layout: Layout, index: Count) -> Count:
    """Micro-batches whose activations stage ``index`` holds at once, in units of a whole stage.

    >>> in_flight_on(Layout(4, pp=4, batch=8), np.arange(4)).tolist()
    [4.0, 3.0, 2.0, 1.0]
    """
    return np.minimum(layout.microbatches, _most_in_flight(layout, index))


def _most_in_flight(layout: Layout, index: Count) -> Count:
    """However many there are."""
    p = 1.0 * layout.pp
    found: Count = 1.0
    for name, most in _IN_FLIGHT.items():
        if np.any(chosen := _is(layout, name)):
            found = np.where(chosen, most(p, index, layout), found)
    return np.where(np.greater(p, 1), found, 1.0)


def _warm(p: Count, index: Count, layout: Layout) -> Count:
    v = 1.0 * layout.chunks
    return (2.0 * (p - 1 - index) * np.where(np.greater(v, 1), 1.0, 0.5) + (v - 1) * p + 1) / v


_IN_FLIGHT: dict[str, Callable[[Count, Count, Layout], Count]] = {
    "1f1b": _warm,
    "gpipe": lambda p, index, layout: np.inf,
    "zb-h1": lambda p, index, layout: p,
    "zb-h2": lambda p, index, layout: 2.0 * p - 1,
    "zb-2p": lambda p, index, layout: 2.0 * p - 1,
    "zb-v": lambda p, index, layout: p,
    "dualpipe": lambda p, index, layout: p + 1.0,
}


def _is(layout: Layout, name: str) -> NDArray[np.bool_]:
    return np.asarray(np.equal(layout.schedule, SCHEDULE[name]))
