"""The matmuls of a layer, pass by pass: the T_math that every strategy compares itself with.

    forward 2, backward 4, a whole step 6   FLOPs per parameter and token

Multiply and add, once for the activations, then once each for dW and dX.
"""

from __future__ import annotations

from typing import Literal

from roofline.bound import Term
from roofline.machine import Machine
from roofline.sources import TRAINING
from roofline.units import Count
from roofline.workload import Workload

Phase = Literal["forward", "backward", "step"]

FLOPS: dict[Phase, int] = {"forward": 2, "backward": 4, "step": 6}


def matmuls(work: Workload, machine: Machine, phase: Phase, gpus: Count, axes: str) -> Term:
    """T_math of one layer's ``phase``, split evenly over ``gpus``; ``axes`` names them in LaTeX.

    Raises:
        ValueError: an unknown phase.
    """
    flops = passes(phase) * work.forward_flops
    formula = rf"\frac{{{work.matrices * FLOPS[phase]}\,kBDF}}{{{axes}\,C}}"
    seconds = flops / (1.0 * gpus * machine.flops(work.dtype))
    return Term(f"{phase} matmuls", seconds, formula, TRAINING("Transformer math"))


def passes(phase: Phase) -> float:
    """Forward passes that ``phase`` is worth: 1, 2 or 3.

    Raises:
        ValueError: an unknown phase.
    """
    if phase not in FLOPS:
        raise ValueError(f"phase: {phase!r} is not one; allowed: {', '.join(FLOPS)}")
    return FLOPS[phase] / FLOPS["forward"]
