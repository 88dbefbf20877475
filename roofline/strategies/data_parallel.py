"""Data parallelism: X replicas see different tokens and agree on one gradient.

    T_math  = 8 k B D F / (X C)       backward pass: multiply-add, dW and dX, two matrices
    T_comms = 8 E D F / W             gradients in bf16: reduce-scatter + all-gather, two matrices
    hidden while   B / X  ≥  (E / k) C / W

The larger the layer the longer both take, so D and F cancel and only tokens per GPU matter; a
third matrix (a gated MLP) scales both sides too. ZeRO-1 and ZeRO-2 move the same bytes in the same
two halves. ZeRO-3 (FSDP) has thrown its weights away: it gathers them again for the forward pass
(4 E D F / W against half the math) and for the backward pass, where the gradients are only
reduce-scattered: the same ratio in each pass, so the same threshold.

Model parallelism of degree Y inside each replica (tensor, pipeline, or experts over an axis of
their own) leaves 1/Y of the gradients to a group and puts Y groups side by side: while they fit in
one node that changes nothing between nodes; over m nodes the threshold falls m-fold. Over X nodes
the network costs (X-1)/X of the whole, and the links inside the node may then be the slower ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from roofline import checks
from roofline.blocks import pointwise
from roofline.bound import Bound, Term, Threshold
from roofline.collectives import (
    ALL_GATHER,
    ALL_REDUCE,
    REDUCE_SCATTER,
    Collective,
    CollectiveTime,
    Form,
    InNetwork,
    collective,
)
from roofline.groups import Group
from roofline.machine import Machine, TierLike
from roofline.sources import GPUS
from roofline.strategies.phases import FLOPS, Phase, matmuls
from roofline.units import Bytes, Count, Seconds
from roofline.workload import Workload

_SOURCE = GPUS("Data parallelism")


@pointwise
def bound(
    work: Workload,
    machine: Machine,
    degree: Count,
    *,
    zero: int = 0,
    model_parallel: Count = 1,
    stride: Count | None = None,
    microbatches: Count = 1,
    phase: Phase = "backward",
    form: Form = "precise",
    in_network: InNetwork = "off",
) -> Bound:
    """T_math against T_comms of one layer under ``degree``-way data parallelism.

    Args:
        degree: X, replicas.
        zero: ZeRO stage 0 to 3; 3 is FSDP.
        model_parallel: Y, GPUs inside each replica (TP × PP, and EP for the weights of experts).
        stride: ranks between neighbours of this axis; Y when left out: replicas placed outermost.
        microbatches: passes per step in each of which ZeRO-2 reduces its gradients and ZeRO-3
            gathers its weights too; plain DP and ZeRO-1 wait for the last. A pipeline has many.
        phase: which pass; plain DP and ZeRO-1/2 communicate in the backward pass alone.
        form: ``rough`` is the book's C/W; ``precise`` has the (d-1)/d of every tier.
        in_network: switches that add halve the bytes of plain DP's all-reduce, where the tier can.

    Raises:
        ValueError: an unknown ZeRO stage or phase, a degree below 1, or a group larger than the
            machine.
    """
    checks.all_at_least(1, degree=degree, model_parallel=model_parallel, microbatches=microbatches)
    math = matmuls(work, machine, phase, 1.0 * degree * model_parallel, "X")
    terms, seconds = communication(
        work,
        machine,
        degree,
        zero=zero,
        model_parallel=model_parallel,
        stride=stride,
        microbatches=microbatches,
        phase=phase,
        form=form,
        in_network=in_network,
    )
    active = work.experts_per_token / work.experts
    return Bound(
        "FSDP" if zero == 3 else "data parallelism",
        math,
        terms,
        Threshold(
            "tokens per GPU",
            work.tokens / (1.0 * degree * model_parallel),
            seconds * machine.flops(work.dtype) / (FLOPS[phase] * active * model_parallel),
            r"\frac{B}{X} > \frac{E}{k}\,\frac{C}{W}",
            "gradients weigh the same however few tokens a GPU saw, "
            "so it must see enough of them to be worth the trip",
            least=1.0,
        ),
    )


def communication(
    work: Workload,
    machine: Machine,
    degree: Count,
    *,
    zero: int = 0,
    model_parallel: Count = 1,
    stride: Count | None = None,
    microbatches: Count = 1,
    phase: Phase = "backward",
    form: Form = "precise",
    in_network: InNetwork = "off",
) -> tuple[tuple[Term, ...], Seconds]:
    """The terms of T_comms, and their time for a single parameter of one GPU's part of a layer.

    The arguments, and what is refused, are those of ``bound``.
    """
    moves = _moves(work, zero, phase, microbatches)
    group = Group(degree, model_parallel if stride is None else stride)
    unit = _unit_times([move.op for move in moves], group, machine.tiers, form, in_network)
    shard = work.parameters / model_parallel  # one GPU's part of the layer
    once = {id(time): time.seconds for time in unit.values()}
    each = [move.nbytes * once[id(unit[move.op])] for move in moves]  # per parameter
    terms = tuple(
        Term(
            move.name,
            shard * seconds,
            move.formula(work),
            _SOURCE,
            unit[move.op],
            shard * move.nbytes,
        )
        for move, seconds in zip(moves, each, strict=True)
    )
    return terms, sum(each, 0.0)


class _Move(NamedTuple):
    """A collective over the parameters of a layer."""

    name: str
    op: Collective
    nbytes: Bytes  # per parameter, repetitions included

    def formula(self, work: Workload) -> str:
        return rf"\frac{{{work.matrices * self.op.passes}\,b\,EDF}}{{W}}"


def _moves(work: Workload, zero: int, phase: Phase, microbatches: Count) -> list[_Move]:
    if np.ndim(zero) or zero not in (0, 1, 2, 3):
        raise ValueError(f"zero: {zero!r} is not a ZeRO stage; allowed: 0, 1, 2, 3")
    gathers = microbatches if zero == 3 else 1
    scatters = microbatches if zero >= 2 else 1
    gather = _Move("parameter all-gather", ALL_GATHER, work.weight_bytes * gathers)
    scatter = _Move("gradient reduce-scatter", REDUCE_SCATTER, work.gradient_bytes * scatters)
    reduce = _Move("gradient all-reduce", ALL_REDUCE, work.gradient_bytes)
    forward = [gather] if zero == 3 else []
    backward = [reduce] if zero == 0 else [scatter, gather]
    return {"forward": forward, "backward": backward, "step": forward + backward}[phase]


def _unit_times(
    ops: list[Collective],
    group: Group,
    tiers: Sequence[TierLike],
    form: Form,
    in_network: InNetwork,
) -> dict[Collective, CollectiveTime]:
    """Time of each operation on one byte; a gather and a scatter in a ring are worked out once."""
    found: dict[Collective, CollectiveTime] = {}
    for op in ops:
        alike = [known for known in found if (known.share, known.passes) == (op.share, op.passes)]
        found[op] = (
            found[alike[0]]
            if alike
            else collective(op, 1.0, group, tiers, form=form, in_network=in_network)
        )
    return found
