"""Strategies together: the bound of each axis of a layout, with what the others leave it.

N = TP · EP · PP · DP GPUs. Axes meet in three ways only. They divide the work: a tensor-parallel
group sees the tokens of one replica, a data-parallel group reduces the weights of one stage's
slice. They share links: the groups of an axis placed outside others leave a node side by side. And
they relieve each other: model parallelism over m nodes cuts the gradients that each node sends, so
that data parallelism needs m times fewer tokens per GPU.

The order of the axes decides strides and so tiers. What talks most often goes innermost: tensor
parallelism in every layer, experts in every expert layer, the pipeline once per stage, data
parallelism once per step.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from roofline import checks
from roofline.blocks import pointwise
from roofline.bound import Bound
from roofline.collectives import Form
from roofline.machine import Machine
from roofline.strategies import (
    data_parallel,
    expert_parallel,
    pipeline_parallel,
    tensor_parallel,
)
from roofline.strategies.phases import Phase
from roofline.strategies.pipeline_parallel import ENOUGH_MICROBATCHES
from roofline.units import Count
from roofline.workload import Workload

INNERMOST_FIRST = ("tensor", "expert", "pipeline", "data")


class AxisBound(NamedTuple):
    """One axis of a layout, and its strategy's bound there."""

    name: str
    degree: Count
    stride: Count  # ranks between neighbours
    bound: Bound


@pointwise
def combined(
    work: Workload,
    machine: Machine,
    *,
    tensor: Count = 1,
    expert: Count = 1,
    pipeline: Count = 1,
    data: Count = 1,
    order: Sequence[str] = INNERMOST_FIRST,
    microbatches: Count | None = None,
    zero: int = 0,
    phase: Phase = "step",
    form: Form = "rough",
) -> tuple[AxisBound, ...]:
    """The bound of every axis of a TP × EP × PP × DP layout, innermost first.

    Args:
        order: the axes from the inside out.
        microbatches: of the pipeline; four per stage when left out.
        zero: ZeRO stage of the data-parallel axis.
        phase, form: as the strategies have them.

    Raises:
        ValueError: an order that is none, or what a strategy refuses.
    """
    degrees = {"tensor": tensor, "expert": expert, "pipeline": pipeline, "data": data}
    checks.all_at_least(1, **degrees)
    strides = axis_strides(degrees, order)
    count = ENOUGH_MICROBATCHES * pipeline if microbatches is None else microbatches
    sharers = np.multiply(data, expert)  # tokens are split over data and expert axes alike
    evaluate = {
        "tensor": partial(tensor_parallel.bound, work, machine, tensor, data_parallel=sharers),
        "expert": partial(
            expert_parallel.bound, work, machine, expert, data_parallel=data, tensor_parallel=tensor
        ),
        "pipeline": partial(
            pipeline_parallel.bound,
            work,
            machine,
            pipeline,
            microbatches=count,
            tensor_parallel=tensor,
            data_parallel=sharers,
        ),
        "data": partial(
            data_parallel.bound,
            work,
            machine,
            data,
            zero=zero,
            microbatches=np.where(np.greater(pipeline, 1), count, 1.0),
            model_parallel=1.0 * np.multiply(tensor, expert) * pipeline,
        ),
    }
    return tuple(
        AxisBound(
            name, degrees[name], stride, evaluate[name](stride=stride, phase=phase, form=form)
        )
        for name, stride in strides.items()
    )


def axis_strides(degrees: dict[str, Count], order: Sequence[str]) -> dict[str, Count]:
    """Ranks between neighbours of each axis, when the axes are placed in ``order``.

    Raises:
        ValueError: when ``order`` does not hold every axis once.

    >>> {k: float(v) for k, v in axis_strides({"tensor": 8, "data": 4}, ("tensor", "data")).items()}
    {'tensor': 1.0, 'data': 8.0}
    """
    if sorted(order) != sorted(degrees):
        raise ValueError(f"order: {', '.join(order)} must hold each of {', '.join(degrees)} once")
    strides: dict[str, Count] = {}
    stride: Count = 1.0
    for axis in order:
        strides[axis] = stride
        stride = stride * np.asarray(degrees[axis], float)
    return strides
