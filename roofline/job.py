"""A job: a model in a layout on a machine as it behaves; what the step model computes from.

Every field may be an array, or hold arrays: then one job is a table of jobs, a column a row.
"""

from __future__ import annotations

from dataclasses import dataclass

from roofline.communication import Network
from roofline.dims import Dims
from roofline.kernels import Kernels
from roofline.layout import Layout
from roofline.units import Bytes, Count, Seconds


@dataclass(frozen=True, slots=True)
class Habits:
    """How a GPU type's jobs behave beyond single kernels: every number is fitted, or ideal."""

    contention: Count = 0.0  # χ: compute seconds lost per second of hidden collective
    fine_overlap: Count = 1.0  # share of TP communication that fine-grained overlap hides
    experts: Count = 1.0  # inflation of expert layers: ragged groups, synchronisation
    host: Seconds = 0.0  # that the host takes to launch an expert layer forward; twice backward
    fixed: Seconds = 0.0  # per step: loss and norm synchronisation, data, logging
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
