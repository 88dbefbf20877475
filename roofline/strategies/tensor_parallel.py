"""Tensor parallelism: Y GPUs hold slices of every matrix and pass the activations around.

    T_math  = 4 B D F / (Y C)     forward pass: multiply-add, two matrices
    T_comms = 4 B D / W           bf16 activations: all-gather in, reduce-scatter out
    hidden while   Y  ≤  F W / C

Tokens cancel: only the width of a GPU's slice, F/Y, matters. fp8 doubles C; the limit stays as it
is if the activations travel in one byte too, and is half if they still travel in two. The backward
pass gathers dOut and scatters dIn, as many bytes (half as many again if the input is gathered anew)
against twice the math. A gated MLP has three matrices and the same activations: Y ≤ 3/2 F W / C.
Megatron without sequence sharding runs one all-reduce per pass instead of the pair, of the same
bytes.

Over M whole nodes the network costs (M-1)/M and its limit is Y ≤ F W/C + 8, but the 7/8 inside each
node stays: Y ≤ 8/7 F W_gpu/C. An expert layer computes k experts on tokens gathered once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from roofline import checks
from roofline.blocks import pointwise
from roofline.bound import Bound, Term, Threshold
from roofline.collectives import ALL_GATHER, Form, collective
from roofline.groups import Group
from roofline.machine import Ideal, Machine, Tier, TierLike
from roofline.sources import GPUS
from roofline.strategies.phases import Phase, matmuls, passes
from roofline.units import Count, Seconds
from roofline.workload import Workload

_SOURCE = GPUS("Tensor parallelism")


@pointwise
def bound(
    work: Workload,
    machine: Machine,
    degree: Count,
    *,
    data_parallel: Count = 1,
    stride: Count = 1,
    sequence_sharded: bool = True,
    gather_again: bool = False,
    phase: Phase = "forward",
    form: Form = "precise",
) -> Bound:
    """T_math against T_comms of one layer under ``degree``-way tensor parallelism.

    Args:
        degree: Y, slices of each matrix.
        data_parallel: X, replicas that share the tokens; each tensor-parallel group sees B / X.
        stride: ranks between neighbours of this axis; 1 is innermost.
        sequence_sharded: activations rest in slices along the sequence; else whole on every GPU.
        gather_again: the input is gathered once more for dW instead of being kept.
        phase: which pass.
        form: ``rough`` is the book's F W/C; ``precise`` has the (d-1)/d of every tier.

    Raises:
        ValueError: an unknown phase, a degree below 1, a group larger than the machine, or
            ``gather_again`` where nothing is ever gathered.
    """
    checks.at_least("degree", degree, 1)
    checks.at_least("data_parallel", data_parallel, 1)
    math = matmuls(work, machine, phase, 1.0 * degree * data_parallel, "XY")
    terms, seconds = communication(
        work,
        machine,
        degree,
        data_parallel=data_parallel,
        stride=stride,
        sequence_sharded=sequence_sharded,
        gather_again=gather_again,
        phase=phase,
        form=form,
    )
    flops = (
        2.0 * passes(phase) * work.matrices * work.experts_per_token
    )  # per column and activation
    return Bound(
        "tensor parallelism",
        math,
        terms,
        Threshold(
            "feed-forward columns per GPU",
            1.0 * work.d_ff / degree,
            seconds * machine.flops(work.dtype) / flops,
            r"\frac{F}{Y} > \frac{C}{W}",
            "every GPU passes whole activations on, however thin its slice of the matrices, "
            "so the slice must be wide enough to keep it busy meanwhile",
            least=1.0,
        ),
    )


def communication(
    work: Workload,
    machine: Machine,
    degree: Count,
    *,
    data_parallel: Count = 1,
    stride: Count = 1,
    sequence_sharded: bool = True,
    gather_again: bool = False,
    phase: Phase = "forward",
    form: Form = "precise",
) -> tuple[tuple[Term, ...], Seconds]:
    """The terms of T_comms, and their time for a single activation.

    The arguments, and what is refused, are those of ``bound``.
    """
    activations = work.activation_bytes * (1.0 * work.tokens / data_parallel) * work.d_model
    unit = collective(ALL_GATHER, 1.0, Group(degree, stride), machine.tiers, form=form)
    per_byte = unit.seconds
    moves = _moves(phase, sequence_sharded, gather_again)
    nbytes = {times: activations * times for times in {move.gathers for move in moves}}
    seconds = {times: each * per_byte for times, each in nbytes.items()}
    terms = tuple(
        Term(
            move.name,
            seconds[move.gathers],
            move.formula,
            _SOURCE,
            unit,
            nbytes[move.gathers],
        )
        for move in moves
    )
    return terms, sum(move.gathers for move in moves) * work.activation_bytes * per_byte


class _Move(NamedTuple):
    """A collective over the activations of a group."""

    name: str
    gathers: int  # all-gathers that it is worth
    formula: str


def _moves(phase: Phase, sharded: bool, again: bool) -> list[_Move]:
    if again and not sharded:
        raise ValueError("gather_again: True needs sequence_sharded; whole activations are at hand")
    once, twice = r"\frac{b\,BD}{X\,W}", r"\frac{2\,b\,BD}{X\,W}"
    if sharded:
        forward = [_Move("input all-gather", 1, once), _Move("output reduce-scatter", 1, once)]
        backward = [_Move("dOut all-gather", 1, once), _Move("dIn reduce-scatter", 1, once)]
        backward += [_Move("input all-gather, again", 1, once)] if again else []
    else:
        forward = [_Move("output all-reduce", 2, twice)]
        backward = [_Move("dIn all-reduce", 2, twice)]
    return {"forward": forward, "backward": backward, "step": forward + backward}[phase]


@dataclass(frozen=True, slots=True)
class DegreeLimit:
    """How far one tier's links carry tensor parallelism, whatever the other tiers allow."""

    tier: str
    unit: Count  # GPUs under one unit of the tier
    rough: Count  # F W / C
    partial: Count  # F W / C + S, while this is the outermost tier crossed; S GPUs under a child
    filled: Count  # F W / C · d/(d-1), once whole units are in use
    # Without a switch the links grow with the group: all of a unit is hidden, or nothing of it.

    @property
    def largest(self) -> Count:
        """Largest degree that these links hide, inside one unit or beyond it."""
        return np.where(np.less(self.partial, self.unit), self.partial, self.filled)


def degree_limits(
    work: Workload, machine: Machine, *, phase: Phase = "forward"
) -> tuple[DegreeLimit, ...]:
    """The largest degree tier by tier, as real numbers.

    Source: How to Scale Your Model, "GPUs", tensor parallelism, and the node's own level added.
    """
    limits = []
    inside: Count = 1.0
    for tier in machine.tiers:
        degree = np.asarray(tier.degree, float)
        needed = _needed(work, machine, tier, phase)
        rough = work.d_ff / needed
        with np.errstate(divide="ignore"):
            filled = rough * np.divide(degree, degree - 1)
        unit = inside * degree
        partial = rough + inside
        if tier.direct:
            partial = np.where(rough >= (degree - 1) * inside, unit, inside)
        limits.append(DegreeLimit(tier.name, unit, rough, partial, filled))
        inside = unit
    return tuple(limits)


def _needed(work: Workload, machine: Machine, tier: TierLike, phase: Phase) -> Count:
    """Columns per GPU that hide the whole activations on the links of one tier."""
    pair = Ideal(machine.flops(work.dtype), (Tier(2, tier.effective_bandwidth),))
    return bound(work, pair, 2, phase=phase, form="rough").threshold.needed


def largest_degree(work: Workload, machine: Machine, *, phase: Phase = "forward") -> Count:
    """The largest degree whose communication hides on every tier, as a real number."""
    largest: Count = np.inf
    for limit in degree_limits(work, machine, phase=phase):
        largest = np.minimum(largest, limit.largest)
    return largest
