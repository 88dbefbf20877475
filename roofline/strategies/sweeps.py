"""Degrees worth a point of a curve: those at which a strategy's groups fill units evenly.

Every number inside a node, then whole nodes up to a scalable unit, then whole units, and so on:
S_i, 2 S_i, … S_{i+1} at tier i. Between them a group would straddle units and the curve would show
the straddling instead of the strategy. Experts are split evenly, stages hold a layer at least, and
FSDP shards divide the machine.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from roofline.machine import Machine
from roofline.workload import Workload

Degrees = NDArray[np.float64]


def degrees(name: str, work: Workload, machine: Machine, *, inner: int = 1) -> Degrees:
    """Degrees from 1 to the largest that the strategy ``name`` can have on ``machine``, ascending.

    ``inner`` is the GPUs that the other axes take for each step of this one; the result is empty
    when they leave none.

    >>> from roofline.machine import Ideal, Tier
    >>> two_levels = Ideal(1.0, (Tier(4, 1.0), Tier(3, 1.0)))
    >>> degrees("data_parallel", Workload(1e6, 8, 8), two_levels).tolist()
    [1.0, 2.0, 3.0, 4.0, 8.0, 12.0]
    >>> degrees("data_parallel", Workload(1e6, 8, 8), two_levels, inner=4).tolist()
    [1.0, 2.0, 3.0]
    """
    gpus = filling(machine)
    most = float(gpus[-1]) // inner
    if name == "expert_parallel":
        return _divisors(float(np.min(work.experts)), most)
    if name == "mixed":
        return _divisors(float(gpus[-1]), most)
    fitting: Degrees = gpus[np.mod(gpus, inner) == 0] / inner
    stages = np.min(work.layers) if name == "pipeline_parallel" else most
    held: Degrees = fitting[fitting <= stages]
    return held


def filling(machine: Machine) -> Degrees:
    """Numbers of GPUs that fill units of the tiers evenly, from 1 to the whole machine.

    >>> from roofline.machine import Ideal, Tier
    >>> filling(Ideal(1.0, (Tier(2, 1.0), Tier(3, 1.0)))).tolist()
    [1.0, 2.0, 4.0, 6.0]
    """
    found, unit = [np.ones(1)], 1.0
    for tier in machine.tiers:
        found.append(unit * np.arange(1.0, float(tier.degree) + 1))
        unit = unit * float(tier.degree)
    return np.unique(np.concatenate(found))


def _divisors(total: float, most: float) -> Degrees:
    numbers = np.arange(1.0, min(total, most) + 1)
    dividing: Degrees = numbers[np.mod(total, numbers) == 0]
    return dividing
