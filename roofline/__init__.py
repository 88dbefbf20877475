"""Roofline: T_math against T_comms of every way to spread a model over GPUs.

>>> from roofline import Ideal, Tier, Workload, strategies
>>> h100 = Ideal(990e12, (Tier(8, 450e9, "node"), Tier(32, 400e9, "network")))
>>> work = Workload(tokens=4e6, d_model=8192, d_ff=28672)
>>> print(strategies.data_parallel.bound(work, h100, 256, form="rough").threshold.needed)
2475.0
"""

from importlib import import_module
from types import ModuleType

from roofline.bound import Bound, Term, Threshold, crossings
from roofline.collectives import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    BROADCAST,
    COLLECTIVES,
    GATHER,
    REDUCE,
    REDUCE_SCATTER,
    SCATTER,
    SEND,
    Collective,
    CollectiveTime,
    bandwidth,
    bus_bandwidth,
    collective,
    seconds,
)
from roofline.groups import Group
from roofline.machine import Ideal, Machine, Tier
from roofline.strategies import STRATEGIES
from roofline.units import parse, show
from roofline.workload import Workload

__all__ = [
    "ALL_GATHER",
    "ALL_REDUCE",
    "ALL_TO_ALL",
    "BROADCAST",
    "COLLECTIVES",
    "GATHER",
    "REDUCE",
    "REDUCE_SCATTER",
    "SCATTER",
    "SEND",
    "STRATEGIES",
    "Bound",
    "Collective",
    "CollectiveTime",
    "Group",
    "Ideal",
    "Machine",
    "Term",
    "Threshold",
    "Tier",
    "Workload",
    "algorithms",
    "arithmetic",
    "bandwidth",
    "bubbles",
    "bus_bandwidth",
    "chip",
    "collective",
    "counting",
    "crossings",
    "guide",
    "memory",
    "parse",
    "placement",
    "presets",
    "routing",
    "seconds",
    "show",
    "strategies",
    "torus",
]

# Modules that are loaded when they are first asked for, so that ``import roofline`` stays light.
MODULES = (
    "algorithms",
    "arithmetic",
    "bubbles",
    "chip",
    "counting",
    "footprint",
    "guide",
    "memory",
    "placement",
    "presets",
    "routing",
    "torus",
)


def __getattr__(name: str) -> ModuleType:
    """``roofline.presets`` and its like without an import of their own."""
    if name not in MODULES:
        raise AttributeError(f"module 'roofline' has no attribute {name!r}")
    return import_module(f"roofline.{name}")
