"""Expert parallelism: E experts on Z GPUs, and two all-to-alls bring each token there and back.

    T_math  = 4 k B D F / (Z C)                               forward, two matrices
    T_A2A   = 2 B D / W · (Z-8)/Z · min(8k/Z, 1)              over nodes of 8, one copy per node
    T_comms = 2 T_A2A                                         dispatch and combine
    hidden while   F  ≥  C/W · (Z-8)/k · min(8k/Z, 1)

A node owns 8/Z of the tokens and sends each to at most k of the nodes. Up to Z = 8k every token
goes to all of them and the limit is Z ≤ 8 + k F W/C; beyond, traffic no longer grows and the limit
tends to F ≥ 8 C/W, far wider than any expert. Inside one node the same holds with 1 for 8 and
the node's bandwidth. The backward pass repeats both all-to-alls against twice the math.

``precise`` puts the expected number of nodes that top-k of E experts really touches (uniform
routing) in place of the bound min(8k/Z, 1).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from roofline import checks
from roofline.blocks import pointwise
from roofline.bound import Bound, Term, Threshold
from roofline.collectives import Form
from roofline.groups import Group
from roofline.machine import Machine, TierLike
from roofline.routing import Form as Routing
from roofline.routing import dispatch
from roofline.sources import GPUS
from roofline.strategies.phases import Phase, matmuls, passes
from roofline.units import Count
from roofline.workload import Workload

_SOURCE = GPUS("Expert parallelism")
_FORMULA = r"\frac{b\,BD}{X\,W}\,\frac{Z-8}{Z}\,\min\left(\frac{8k}{Z}, 1\right)"
_ROUTING: dict[Form, Routing] = {"rough": "bound", "precise": "distinct"}
_FORWARD = ("dispatch", "combine")
_BACKWARD = ("combine's gradient", "dispatch's gradient")
_MOVES: dict[Phase, tuple[str, ...]] = {
    "forward": _FORWARD,
    "backward": _BACKWARD,
    "step": _FORWARD + _BACKWARD,
}


@pointwise
def bound(
    work: Workload,
    machine: Machine,
    degree: Count,
    *,
    data_parallel: Count = 1,
    tensor_parallel: Count = 1,
    stride: Count | None = None,
    deduplicated: bool = True,
    node_limit: Count | None = None,
    capacity: Count = 1.0,
    imbalance: Count = 1.0,
    phase: Phase = "forward",
    form: Form = "rough",
) -> Bound:
    """T_math against T_comms of one expert layer under ``degree``-way expert parallelism.

    Args:
        degree: Z, GPUs that the experts are split over.
        data_parallel: X, such groups; each sees B / X tokens.
        tensor_parallel: Y, GPUs that share every expert, each with its slice of the tokens.
        stride: ranks between neighbours of this axis; Y when left out.
        deduplicated: one copy per destination node, fanned out inside it; else one per GPU.
        node_limit: the router picks experts on at most this many nodes.
        capacity: bytes sent per byte needed, where experts have slots to fill.
        imbalance: load of the busiest GPU over the mean; it sets T_math.
        phase: which pass.
        form: ``rough`` bounds the nodes that a token reaches by k, ``precise`` expects them.

    Raises:
        ValueError: more GPUs or more experts per token than experts, an unknown phase, or a group
            larger than the machine.
    """
    others = {"data_parallel": data_parallel, "tensor_parallel": tensor_parallel}
    checks.all_at_least(1, degree=degree, **others, imbalance=imbalance)
    checks.above("capacity", capacity)
    math = matmuls(work, machine, phase, 1.0 * degree * tensor_parallel * data_parallel, "XYZ")
    _check(work, degree)
    unit = dispatch(
        1.0,
        work.experts_per_token,
        Group(degree, tensor_parallel if stride is None else stride),
        machine.tiers,
        deduplicated=deduplicated,
        form=_ROUTING[form],
        experts=work.experts,
        node_limit=node_limit,
        padding=capacity,
    )
    token = work.activation_bytes * work.d_model / tensor_parallel
    nbytes = token * (1.0 * work.tokens / data_parallel)
    per_byte = unit.seconds
    seconds = nbytes * per_byte
    return Bound(
        "expert parallelism",
        replace(math, seconds=math.seconds * imbalance),
        tuple(Term(name, seconds, _FORMULA, _SOURCE, unit, nbytes) for name in _MOVES[phase]),
        Threshold(
            "feed-forward columns per expert",
            1.0 * work.d_ff,
            _balance(work, machine, phase) * per_byte * degree / imbalance,
            r"F > \frac{C}{W}\,\frac{Z-8}{k}\,\min\left(\frac{8k}{Z}, 1\right)",
            "a token travels whole to every expert, so an expert must be wide enough "
            "to do much with it",
        ),
    )


@dataclass(frozen=True, slots=True)
class DegreeLimit:
    """How far one tier's links carry expert parallelism; S GPUs are under one of its children."""

    tier: str
    few: Count  # S + k F W/C, while a token reaches every child
    many: Count  # S² / (S - F W/C), once Z > S k; infinite for experts wider than S C/W
    turn: Count  # S k, where the regimes meet

    @property
    def largest(self) -> Count:
        """The limit of the regime that it lies in."""
        return np.where(np.less_equal(self.few, self.turn), self.few, self.many)


def degree_limits(
    work: Workload, machine: Machine, *, phase: Phase = "forward"
) -> tuple[DegreeLimit, ...]:
    """The largest degree on the node's own links, and on those between nodes, as real numbers.

    Of the rough form with one copy per node. Source: How to Scale Your Model, "GPUs", expert
    parallelism.
    """
    limits = []
    inside: Count = 1.0
    for tier in machine.tiers[:2]:
        spare = _degree_per_gpu(work, machine, tier, phase)
        k = work.experts_per_token
        left = np.asarray(inside - spare / k, float)
        many = np.divide(inside * inside, left, out=np.full(left.shape, np.inf), where=left > 0)
        few = inside + spare
        if tier.direct:  # links grow with the group: all of it is hidden, or nothing
            keeps = spare >= (np.asarray(tier.degree, float) - 1) * inside
            few = many = np.where(keeps, np.inf, inside)
        limits.append(DegreeLimit(tier.name, few, many, inside * k))
        inside = inside * np.asarray(tier.degree, float)
    return tuple(limits)


def largest_degree(work: Workload, machine: Machine, *, phase: Phase = "forward") -> Count:
    """The largest degree whose communication hides inside and between nodes, as a real number."""
    node, *network = degree_limits(work, machine, phase=phase)
    if not network:
        return node.largest
    size = np.asarray(machine.tiers[0].degree, float)
    spare = _degree_per_gpu(work, machine, machine.tiers[0], phase)
    with np.errstate(divide="ignore"):
        filled = spare * np.divide(size, size - 1)  # all of a node's GPUs get what they need
    filled = np.where(filled < work.experts_per_token, filled, np.inf)
    outside = np.minimum(network[0].largest, filled)
    largest: Count = np.where(np.less(node.largest, size), node.largest, outside)
    return largest


def _degree_per_gpu(work: Workload, machine: Machine, tier: TierLike, phase: Phase) -> Count:
    """k F W/C on the links of one tier."""
    spare: Count = tier.effective_bandwidth * work.d_ff / _balance(work, machine, phase)
    return spare


def _balance(work: Workload, machine: Machine, phase: Phase) -> Count:
    """Columns per expert and GPU that hide one byte per second of dispatch. [B/s]"""
    moved = len(_MOVES[phase]) * work.activation_bytes
    flops = 2.0 * passes(phase) * work.matrices * work.experts_per_token
    balance: Count = moved * machine.flops(work.dtype) / flops
    return balance


def _check(work: Workload, degree: Count) -> None:
    if np.any(np.greater(degree, work.experts)):
        raise ValueError(
            f"degree: {np.max(degree):g} GPUs for {np.min(work.experts):g} experts leave some "
            f"without one; the nearest is {np.min(work.experts):g}"
        )
