"""Memory of one GPU: model states, buffers, what shrinks them, and what fits.

    states   (w + g + o) Ψ bytes     weights, gradients, optimizer
    ZeRO-1, 2, 3                     divide o, then g, then w by the N replicas
    TP, PP                           divide Ψ;  EP divides the parameters of the experts
    fits     states + activations + buffers  ≤  0.9 of the memory

How many bytes a parameter takes is a convention, and sources differ: choose one by name. ZeRO pays
in bytes moved: 2 Ψ b (N-1)/N a step for plain data parallelism and stages 1 and 2, 3 Ψ b (N-1)/N
for stage 3, and in a pipeline stages 2 and 3 pay in every micro-batch. Activations stand in
``roofline.activations``.

Source: Rajbhandari et al., "ZeRO", figure 1 and section 7.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from roofline import checks
from roofline.blocks import pointwise
from roofline.counting import Shape, parameters
from roofline.machine import Machine
from roofline.names import choose
from roofline.units import Bytes, Count

USABLE = 0.9  # of the memory; the rest is for fragments, the framework and the CUDA context


class Convention(NamedTuple):
    """Bytes kept per parameter."""

    weights: Bytes
    gradients: Bytes
    optimizer: Bytes
    about: str

    @property
    def total(self) -> Bytes:
        """All three. [B]"""
        return self.weights + self.gradients + self.optimizer


CONVENTIONS = {
    "book": Convention(2, 0, 8, "bf16 weights, fp32 moments (How to Scale Your Model)"),
    "zero": Convention(2, 2, 12, "16 bit, fp32 copy of the weights and moments (ZeRO, CS336)"),
    "fp32": Convention(4, 4, 8, "everything in fp32, Adam (CS336)"),
    "fp32-gradients": Convention(
        6, 4, 8, "bf16 and fp32 weights, fp32 gradients and moments (ml-engineering)"
    ),
    "adagrad": Convention(4, 4, 4, "everything in fp32, one accumulator (CS336)"),
    "inference": Convention(2, 0, 0, "bf16 weights alone"),
}

# The ZeRO stage that starts to shard each.
SHARDED_FROM = {"optimizer": 1, "gradients": 2, "weights": 3}


def convention(name: str) -> Convention:
    """The bytes per parameter of this name.

    Raises:
        ValueError: when there is none, naming the nearest.

    >>> convention("zero").total
    16
    """
    return choose("convention", name, CONVENTIONS)


@dataclass(frozen=True, slots=True)
class States:
    """Model states of one GPU, by kind. [B]"""

    weights: Bytes
    gradients: Bytes
    optimizer: Bytes

    @property
    def total(self) -> Bytes:
        """All three. [B]"""
        return self.weights + self.gradients + self.optimizer


@pointwise
def model_states(
    params: Count,
    zero: Count = 0,
    data_parallel: Count = 1,
    *,
    bytes_per_parameter: Convention = CONVENTIONS["zero"],
    tensor_parallel: Count = 1,
    pipeline_parallel: Count = 1,
    expert_parallel: Count = 1,
    expert_share: Count = 0.0,
) -> States:
    """Weights, gradients and optimizer states on one GPU. [B]

    Args:
        params: Ψ, of the whole model. A pipeline's first stage holds more than Ψ/p: see
            ``stage_parameters``.
        zero: stage 0 to 3; may be an array.
        data_parallel: N, GPUs that see different tokens. Expert parallelism lies inside it, so the
            experts have N/Z replicas and ZeRO shards them over those.
        expert_share: share of the parameters that are experts'.

    Raises:
        ValueError: a stage that is none, negative parameters, a degree below 1, or a share outside
            0 to 1.

    >>> [round(float(model_states(7.5e9, stage, 64).total) / 1e9, 1) for stage in range(4)]
    [120.0, 31.4, 16.6, 1.9]
    """
    _stages(zero)
    checks.at_least("params", params, 0)
    checks.between("expert_share", expert_share, 0, 1)
    checks.all_at_least(
        1,
        data_parallel=data_parallel,
        tensor_parallel=tensor_parallel,
        pipeline_parallel=pipeline_parallel,
        expert_parallel=expert_parallel,
    )
    local = 1.0 * params / (1.0 * tensor_parallel * pipeline_parallel)
    experts = local * expert_share / expert_parallel
    dense = local - local * expert_share
    whole = dense + experts
    sharded = dense / data_parallel + experts / np.maximum(
        1.0, 1.0 * data_parallel / expert_parallel
    )
    held = {
        kind: np.where(np.greater_equal(zero, stage), sharded, whole)
        for kind, stage in SHARDED_FROM.items()
    }
    return States(
        bytes_per_parameter.weights * held["weights"],
        bytes_per_parameter.gradients * held["gradients"],
        bytes_per_parameter.optimizer * held["optimizer"],
    )


def stage_parameters(shape: Shape, stages: Count) -> Count:
    """Parameters of a pipeline's fullest stage: L/p layers, rounded up, and one end of the model.

    The embedding sits on the first stage and the head on the last, a tied matrix on both.
    """
    parts = parameters(shape)
    per_layer = (parts.mlp + parts.attention + parts.norms) / shape.layers
    one_end = 1.0 * shape.vocab * shape.d_model
    ends = np.where(np.greater(stages, 1), one_end, parts.vocabulary)
    return per_layer * np.ceil(np.divide(shape.layers, stages)) + ends


def gather_buffer(
    unit_params: Count,
    zero: Count = 3,
    data_parallel: Count = np.inf,
    *,
    weight_bytes: Bytes = 2.0,
    units: Count = 2,
) -> Bytes:
    """What ZeRO-3 gathers and throws away again: the largest unit, and the next one prefetched. [B]

    Raises:
        ValueError: a stage that is none.
    """
    _stages(zero)
    checks.at_least("unit_params", unit_params, 0)
    gathers = np.equal(zero, 3) & np.greater(data_parallel, 1)
    return np.where(gathers, weight_bytes * units * (1.0 * unit_params), 0.0)


@dataclass(frozen=True, slots=True)
class Moved:
    """Bytes that one GPU sends in a step to keep replicas alike; it receives as many. [B]"""

    gradients: Bytes
    weights: Bytes

    @property
    def total(self) -> Bytes:
        """Both. [B]"""
        return self.gradients + self.weights


def bytes_moved(
    params: Count,
    zero: Count = 0,
    data_parallel: Count = np.inf,
    *,
    microbatches: Count = 1,
    weight_bytes: Bytes = 2.0,
    gradient_bytes: Bytes = 2.0,
) -> Moved:
    """Bytes sent per GPU and step by ZeRO stage: 2, 2, 2, 3 times Ψ b (N-1)/N. [B]

        stage    gradients                            weights
        0        all-reduce, twice                    none
        1        reduce-scatter                       all-gather
        2        reduce-scatter, every micro-batch    all-gather
        3        reduce-scatter, every micro-batch    all-gather, twice, every micro-batch

    Args:
        params: Ψ of one GPU's part of the model, TP and PP divided out.
        data_parallel: N; infinite, as on paper, when left out.
        microbatches: passes per step in which gradients are not accumulated locally: a pipeline's.

    Source: Rajbhandari et al., "ZeRO", section 7; Hugging Face, "Parallelism methods", for PP.

    Raises:
        ValueError: a stage that is none.

    >>> [float(bytes_moved(10e9, stage).total) / 1e9 for stage in range(4)]
    [40.0, 40.0, 40.0, 60.0]
    """
    _stages(zero)
    checks.at_least("params", params, 0)
    checks.at_least("data_parallel", data_parallel, 1)
    checks.at_least("microbatches", microbatches, 1)
    share = (1.0 - 1.0 / np.asarray(data_parallel, float)) * params
    scatters = np.where(np.equal(zero, 0), 2.0, np.where(np.less(zero, 2), 1.0, microbatches))
    gathers = np.where(np.equal(zero, 0), 0.0, np.where(np.less(zero, 3), 1.0, 2.0 * microbatches))
    return Moved(share * gradient_bytes * scatters, share * weight_bytes * gathers)


@dataclass(frozen=True, slots=True)
class Fit:
    """What one GPU must hold against what it may. [B]"""

    states: Bytes
    activations: Bytes
    buffers: Bytes
    usable: Bytes

    @property
    def total(self) -> Bytes:
        """States, activations and buffers. [B]"""
        return self.states + self.activations + self.buffers

    @property
    def fits(self) -> NDArray[np.bool_]:
        """True where all of it fits."""
        return np.less_equal(self.total, self.usable)

    @property
    def spare(self) -> Bytes:
        """Memory left over; negative where it does not fit. [B]"""
        return self.usable - self.total


def fits(
    machine: Machine,
    states: Bytes,
    activations: Bytes = 0.0,
    buffers: Bytes = 0.0,
    *,
    usable: Count = USABLE,
) -> Fit:
    """States + activations + buffers against ``usable`` of the machine's memory per GPU."""
    return Fit(states, activations, buffers, usable * machine.hbm_bytes)


def largest_model(
    machine: Machine,
    zero: Count = 0,
    data_parallel: Count = 1,
    *,
    bytes_per_parameter: Convention = CONVENTIONS["zero"],
    tensor_parallel: Count = 1,
    pipeline_parallel: Count = 1,
    other: Bytes = 0.0,
    usable: Count = USABLE,
) -> Count:
    """Parameters of the largest model whose states fit beside ``other`` bytes on every GPU.

    Raises:
        ValueError: a stage that is none.
    """
    one = model_states(
        1.0,
        zero,
        data_parallel,
        bytes_per_parameter=bytes_per_parameter,
        tensor_parallel=tensor_parallel,
        pipeline_parallel=pipeline_parallel,
    )
    room: Bytes = np.maximum(0.0, usable * machine.hbm_bytes - other)
    return room / one.total


def _stages(zero: Count) -> None:
    if not np.all(np.isin(zero, (0, 1, 2, 3))):
        raise ValueError(f"zero: {zero!r} is not a ZeRO stage; allowed: 0, 1, 2, 3")
