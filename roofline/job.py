"""A job: a model in a layout on a machine as it behaves; what the step model computes from.

Every field may be an array, or hold arrays: then one job is a table of jobs, a column a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from roofline.communication import Network
from roofline.dims import Dims
from roofline.kernels import Kernels
from roofline.layout import Layout
from roofline.recipes import RECIPES, Recipe
from roofline.units import Bytes, BytesPerSecond, Count, Seconds


@dataclass(frozen=True, slots=True)
class Habits:
    """How a GPU type's jobs behave beyond single kernels: every number is fitted, or ideal."""

    contention: Count = 0.0  # χ: compute seconds lost per second of hidden collective
    fine_overlap: Count = 1.0  # share of TP communication that fine-grained overlap hides
    experts: Count = 1.0  # inflation of routed experts: ragged groups, synchronisation
    host: Seconds = 0.0  # that the host takes to launch an expert layer forward; twice backward
    launch: Seconds = 0.0  # of a kernel of a dense layer, by the host
    fixed: Seconds = 0.0  # per step: loss and norm synchronisation, data, logging
    early: Count = 1.0  # speed of matmuls in software from before kernels for this GPU had ripened
    power: Count = 0.0  # matmuls take longer by this, times their share of the time: clocks fall


@dataclass(frozen=True, slots=True)
class Job:
    """A model in a layout on a machine as calibrated."""

    model: Dims
    layout: Layout
    kernels: Kernels
    network: Network
    habits: Habits = Habits()
    casts: Count = 0.0  # 1 where matmul operands are cast to 8 bits or less
    gather_bytes: Bytes = 2.0  # per element of gathered activations
    host_link: BytesPerSecond = inf  # of one GPU, one way
    recipe: Recipe = RECIPES["mixed"]
