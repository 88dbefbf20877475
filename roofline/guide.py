"""Which strategy when: the decision guide for one GPU, one node and many nodes.

The guide asks whether the model fits one GPU, whether its largest layer does, and whether the links
inside and between nodes are fast; first named is first tried. ``assess`` answers the questions from
numbers: what fits stays below 0.9 of the memory, memory is low when one node together cannot hold
the model's states, and a link is fast when data parallelism over it hides behind the tokens that a
GPU has.

Source: Hugging Face, "Parallelism methods", which strategy to use when. It leaves slow links with
ample memory open: there replicas that reduce gradients once per step ask least of the network.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Literal, get_args

from roofline.machine import Machine, node_size
from roofline.memory import CONVENTIONS, Convention, fits, model_states
from roofline.sources import HF_GUIDE, Source
from roofline.strategies import data_parallel
from roofline.workload import Workload

Scale = Literal["single gpu", "single node", "multi node"]

_SOURCE = HF_GUIDE("Which strategy to use when")


@dataclass(frozen=True, slots=True)
class Situation:
    """What the guide asks; None is unknown or of no matter at this scale."""

    scale: Scale
    model_fits_one_gpu: bool
    largest_layer_fits_one_gpu: bool = True
    fast_intra_node: bool | None = None
    fast_inter_node: bool | None = None
    low_gpu_memory: bool | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """A strategy to try, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Choices, the likeliest to be fast first; tied ones are about as fast as each other."""

    choices: tuple[Choice, ...]
    tied: bool = False
    note: str = ""
    source: Source = _SOURCE

    @property
    def names(self) -> tuple[str, ...]:
        """The choices by name, in order."""
        return tuple(choice.name for choice in self.choices)


_NORMAL = Choice("normal use", "everything fits one GPU: there is nothing to divide")
_OFFLOAD = Choice(
    "ZeRO + CPU offload (+ NVMe)", "states that are not in use wait in the host's memory"
)
_OFFLOAD_TILED = Choice(
    "ZeRO + CPU offload (+ NVMe) with memory-centric tiling",
    "the largest layer alone is too large, so it runs in tiles",
)
_DDP = Choice("DDP", "the model fits, so GPUs only agree on gradients once per step")
_ZERO_MAYBE = Choice("ZeRO", "frees memory for larger batches; may or may not be faster than DDP")
_PP = Choice("PP", "sends least: activations at a few borders")
_ZERO = Choice("ZeRO", "needs next to no change of the model's code")
_TP = Choice("TP", "divides every layer, and sends activations in each")
_TP_LAYER = Choice("TP", "divides the layer that fits no GPU")
_ZERO_TILED = Choice(
    "ZeRO with memory-centric tiling", "gathers the layer that fits no GPU tile by tile"
)
_3D = Choice("PP+TP+DP", "sends less than ZeRO, for large changes of the model's code")
_3D_ZERO = Choice(
    "DP+PP+TP+ZeRO-1",
    "TP stays inside the node, PP and DP send little between nodes, and ZeRO-1 shards the "
    "optimizer at no extra traffic; stages 2 and 3 would pay in every micro-batch",
)
_DDP_SLOW = Choice("DDP", "whole replicas send gradients once per step: least over slow links")
_HSDP = Choice(
    "HSDP", "weights are sharded inside the node, and only their gradients' shards leave it"
)


def recommend(situation: Situation) -> Recommendation:
    """What the guide says for a situation.

    Raises:
        ValueError: an unknown scale, or a question left open that decides.

    >>> recommend(Situation("single node", model_fits_one_gpu=True)).names
    ('DDP', 'ZeRO')
    """
    if situation.scale not in get_args(Scale):
        allowed = ", ".join(get_args(Scale))
        raise ValueError(f"scale: {situation.scale!r} is not one; allowed: {allowed}")
    if situation.scale == "single gpu":
        return _one_gpu(situation)
    return _one_node(situation) if situation.scale == "single node" else _many_nodes(situation)


def _one_gpu(situation: Situation) -> Recommendation:
    if situation.model_fits_one_gpu:
        return Recommendation((_NORMAL,))
    fits = situation.largest_layer_fits_one_gpu
    return Recommendation((_OFFLOAD if fits else _OFFLOAD_TILED,))


def _one_node(situation: Situation) -> Recommendation:
    if situation.model_fits_one_gpu:
        return Recommendation((_DDP, _ZERO_MAYBE))
    if not situation.largest_layer_fits_one_gpu:
        return Recommendation((_TP_LAYER, _ZERO_TILED))
    if situation.fast_intra_node:
        return Recommendation((_PP, _ZERO, _TP), tied=True, note="with NVLink all are about equal")
    return Recommendation((_PP, _ZERO, _TP), note="without NVLink PP is faster than TP and ZeRO")


def _many_nodes(situation: Situation) -> Recommendation:
    if situation.fast_inter_node is None:
        raise ValueError("fast_inter_node: None leaves open what decides; allowed: True, False")
    if situation.fast_inter_node:
        return _fast_nodes(situation)
    low = situation.low_gpu_memory
    if low or (low is None and not situation.model_fits_one_gpu):
        return Recommendation((_3D_ZERO,))
    note = "the guide leaves this case open"
    if situation.model_fits_one_gpu:
        return Recommendation((_DDP_SLOW, _HSDP), note=note)
    return Recommendation((_HSDP, _3D_ZERO), note=note)


def _fast_nodes(situation: Situation) -> Recommendation:
    if situation.model_fits_one_gpu:
        note = "the guide names ZeRO and PP+TP+DP; a model that fits needs neither"
        return Recommendation((_DDP, _ZERO_MAYBE), note=note)
    if not situation.largest_layer_fits_one_gpu:
        return Recommendation((_3D, _ZERO_TILED), note="the largest layer needs TP or tiles")
    return Recommendation((_ZERO, _3D))


def assess(
    work: Workload,
    machine: Machine,
    *,
    gpus: int,
    parameters: float,
    largest_layer: float,
    activations: float = 0.0,
    bytes_per_parameter: Convention = CONVENTIONS["zero"],
) -> Situation:
    """The guide's questions answered by numbers.

    Args:
        work: the layer and the batch of the whole job; its tokens decide what is fast.
        gpus: N, filling the machine's nodes in order.
        parameters: of the whole model.
        largest_layer: parameters of its largest layer.
        activations: what one GPU keeps besides. [B]
        bytes_per_parameter: of weights, gradients and optimizer.

    Raises:
        ValueError: no GPU, or more than the machine has.
    """
    node = min(gpus, node_size(machine.tiers))
    size = prod(int(tier.degree) for tier in machine.tiers)
    if not 1 <= gpus <= size:
        raise ValueError(f"gpus: {gpus} is refused; allowed: 1 to the {size} of the machine")

    def fit(params: float, replicas: int = 1) -> bool:
        states = model_states(params, 3, replicas, bytes_per_parameter=bytes_per_parameter)
        return bool(fits(machine, states.total, activations).fits)

    local = replace(work, tokens=1.0 * work.tokens * node / gpus)
    return Situation(
        scale="single gpu" if gpus == 1 else "single node" if gpus == node else "multi node",
        model_fits_one_gpu=fit(parameters),
        largest_layer_fits_one_gpu=fit(largest_layer),
        fast_intra_node=_fast(local, machine, node) if node > 1 else None,
        fast_inter_node=_fast(work, machine, gpus) if gpus > node else None,
        low_gpu_memory=not fit(parameters, node),
    )


def _fast(work: Workload, machine: Machine, gpus: int) -> bool:
    """True when data parallelism over ``gpus`` hides behind the tokens there are."""
    return bool(data_parallel.bound(work, machine, gpus).compute_bound)
