"""FSDP and tensor parallelism together: N = X Y GPUs, weights sharded X ways, matrices cut Y ways.

    T_FSDP = 4 D F / (Y W_X)    forward: a GPU gathers only its slice of the weights
    T_TP   = 4 B D / (X W_Y)    forward: and passes on only its share of the tokens
    X_opt  = √( B/F · W_X/W_Y · N )
    hidden while   B / N  ≥  C² / (W_X W_Y F)

More tensor parallelism makes the one cheaper and the other dearer; their maximum is least where
they meet. On a torus each axis has links of its own, M_X and M_Y mesh axes of bandwidth W: W_X =
M_X W and W_Y = M_Y W, and far fewer tokens per chip suffice than with either alone. That is what
X_opt and the critical batch are about, and ``bound`` with ``hierarchical=False``.

GPUs differ: all local ranks of a node share its uplinks, so tensor parallelism inside the node does
not make FSDP cheaper between nodes. ``bound`` puts both on the machine's real tiers, where a tier
that both cross serves one after the other.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from roofline import checks
from roofline.blocks import pointwise
from roofline.bound import Bound, Term, Threshold, busy
from roofline.collectives import Form
from roofline.machine import Ideal, Machine, Tier
from roofline.sources import TRAINING
from roofline.strategies import data_parallel, tensor_parallel
from roofline.strategies.phases import Phase, matmuls
from roofline.units import Count, Seconds
from roofline.workload import Workload

Axes = tuple[Count, Count]  # M_X and M_Y, links of the torus that each axis has to itself

_SOURCE = TRAINING("Combining FSDP and tensor parallelism")


@pointwise
def bound(
    work: Workload,
    machine: Machine,
    degree: Count,
    *,
    gpus: Count | None = None,
    axes: Axes = (1, 1),
    hierarchical: bool = True,
    phase: Phase = "forward",
    form: Form = "rough",
) -> Bound:
    """T_math against T_comms of one layer with FSDP ``degree`` ways, tensor parallel the rest.

    Args:
        degree: X, FSDP shards; tensor parallelism has the other Y = N / X, innermost.
        gpus: N; the whole machine when left out.
        axes: M_X and M_Y, mesh axes of the innermost tier's bandwidth; for a torus.
        hierarchical: the tiers of ``machine``; False gives each axis links of its own, as a torus.
        phase: which pass.
        form: ``rough`` is the book's; ``precise`` has the (d-1)/d.

    Raises:
        ValueError: a degree outside 1 to N or, on tiers, one that does not divide N; links of a
            torus on tiers; or a group larger than the machine.
    """
    total = prod(1.0 * tier.degree for tier in machine.tiers) if gpus is None else gpus
    _check(degree, total, hierarchical, axes)
    math = matmuls(work, machine, phase, total, "N")
    tensor = 1.0 * total / degree
    along_x = machine if hierarchical else _axis(work, machine, "X", axes[0])
    along_y = machine if hierarchical else _axis(work, machine, "Y", axes[1])
    weights, _ = data_parallel.communication(
        work,
        along_x,
        degree,
        zero=3,
        model_parallel=tensor,
        stride=tensor if hierarchical else 1,
        phase=phase,
        form=form,
    )
    activations, _ = tensor_parallel.communication(
        work, along_y, tensor, data_parallel=degree, phase=phase, form=form
    )
    tokens = 1.0 * work.tokens / total
    return Bound(
        "FSDP + tensor parallelism",
        math,
        weights + activations,
        Threshold(
            "tokens per GPU",
            tokens,
            tokens * _shortage(math.seconds, weights, activations),
            r"\frac{B}{N} > \frac{C}{Y\,W_X} \text{ and } \frac{F}{Y} > \frac{C}{W_Y}",
            "gathered weights cost the same however few tokens share them, and slices must be "
            "wide enough for the tokens; the best mix asks the least of both",
            least=1.0,
            never="and no batch is enough: tensor parallelism alone is too slow",
        ),
        concurrent=True,
    )


def optimal_degree(
    work: Workload, machine: Machine, gpus: Count, *, axes: Axes = (1, 1), phase: Phase = "forward"
) -> Count:
    """X_opt = √(B/F · W_X/W_Y · N): FSDP shards for which both axes take equally long.

    A real number, held between 1 and N; on a torus, where each axis has links of its own.

    Source: How to Scale Your Model, "Training", mixed FSDP and tensor parallelism.
    """
    fsdp, slices, _ = _per_unit(work, machine, axes, phase)
    return np.clip(np.sqrt(slices / fsdp * gpus), 1.0, gpus)


def critical_tokens(
    work: Workload, machine: Machine, *, axes: Axes = (1, 1), phase: Phase = "forward"
) -> Count:
    """C² / (W_X W_Y F): tokens per GPU above which the best mix hides its communication.

    On a torus, where each axis has links of its own.
    """
    fsdp, slices, math = _per_unit(work, machine, axes, phase)
    return fsdp * slices / math**2 * work.tokens


def _check(degree: Count, total: Count, hierarchical: bool, axes: Axes) -> None:
    checks.at_least("gpus", total, 1)
    shards = np.asarray(checks.numbers("degree", degree), float)
    wrong = ~((shards >= 1) & (shards <= total))
    if np.any(wrong):
        x, n = _first(wrong, shards, total)
        raise ValueError(
            f"degree: {x:g} is not between 1 and the {n:,.0f} GPUs there are; "
            f"the nearest is {1 if x < 1 else n:.0f}"
        )
    if not hierarchical:
        return
    if any(np.any(np.not_equal(links, 1)) for links in axes):
        shown = ", ".join(f"{np.max(links):g}" for links in axes)
        raise ValueError(
            f"axes: {shown} links are a torus's; with hierarchical=False each axis has its own"
        )
    tensor = total / shards
    odd = tensor != np.floor(tensor)
    if np.any(odd):
        x, n = _first(odd, shards, total)
        near = " and ".join(f"{each:.0f}" for each in _divisors_next_to(x, n))
        raise ValueError(f"degree: {x:g} does not divide {n:,.0f} GPUs; the nearest: {near}")


def _first(wrong: Any, *values: Any) -> list[float]:
    """The values at the first point that is wrong."""
    points = np.broadcast_arrays(wrong, *values)
    where = int(np.argmax(points[0]))
    return [float(point.flat[where]) for point in points[1:]]


def _divisors_next_to(degree: float, total: float) -> list[float]:
    """The nearest divisors of ``total``, one on either side."""
    small = np.arange(1.0, np.floor(np.sqrt(total)) + 1)
    small = small[np.mod(total, small) == 0]
    known = np.unique(np.concatenate([small, total / small]))
    return [float(known[known < degree][-1]), float(known[known > degree][0])]


def _axis(work: Workload, machine: Machine, name: str, links: Count) -> Ideal:
    """A ring, as long as need be, on ``links`` mesh axes of the innermost tier's bandwidth."""
    bandwidth = links * machine.tiers[0].effective_bandwidth
    return Ideal(machine.flops(work.dtype), (Tier(np.inf, bandwidth, f"{name} axis"),))


def _per_unit(
    work: Workload, machine: Machine, axes: Axes, phase: Phase
) -> tuple[Seconds, Seconds, Seconds]:
    """T_FSDP · Y, T_TP · X and T_math · N: what does not depend on how N is split."""
    two = bound(work, machine, 2, gpus=4, axes=axes, hierarchical=False, phase=phase)
    return 2 * _total(two.comms, "X axis"), 2 * _total(two.comms, "Y axis"), 4 * two.t_math


def _total(terms: tuple[Term, ...], tier: str) -> Seconds:
    return busy(terms)[tier]


def _shortage(math: Seconds, weights: tuple[Term, ...], activations: tuple[Term, ...]) -> Count:
    """Tokens needed over tokens there are. Weights weigh the same; the rest grows with tokens.

    On every tier  T_FSDP + n T_TP ≤ n T_math,  so n ≥ T_FSDP / (T_math - T_TP), and no n is
    enough where T_TP alone exceeds T_math.
    """
    fixed, growing = busy(weights), busy(activations)
    needed: Count = 0.0
    with np.errstate(divide="ignore", invalid="ignore"):
        for tier in fixed | growing:
            spare = math - growing.get(tier, 0.0)
            times = np.divide(fixed.get(tier, 0.0), spare)
            needed = np.fmax(needed, np.where(spare < 0, np.inf, times))  # 0/0: nothing to hide
    return needed
