"""The strategies by name. A new one is a module and a line here.

>>> from roofline.machine import Ideal, Tier
>>> from roofline.workload import Workload
>>> h100 = Ideal(990e12, (Tier(8, 450e9, "node"), Tier(32, 400e9, "network")))
>>> entry = STRATEGIES["data_parallel"]
>>> print(entry.bound(Workload(4e6, 8192, 28672), h100, 16, form="rough").threshold.needed)
2475.0
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import ModuleType

from roofline.bound import Bound
from roofline.strategies import (
    data_parallel,
    expert_parallel,
    mixed,
    pipeline_parallel,
    tensor_parallel,
)

_POWERS = tuple(2**i for i in range(11))


@dataclass(frozen=True, slots=True)
class Strategy:
    """What a page or a command needs to show a strategy."""

    title: str
    module: ModuleType
    bound: Callable[..., Bound]  # of a workload, a machine and a degree
    degree: str  # what the degree counts
    symbol: str  # of the degree
    sweep: tuple[int, ...] = _POWERS  # degrees that a chart shows first
    phase: str = "forward"  # the pass that the book compares

    @property
    def text(self) -> str:
        """The physics in a few lines: the module's own docstring."""
        return inspect.getdoc(self.module) or ""


STRATEGIES = {
    "data_parallel": Strategy(
        "Data parallelism", data_parallel, data_parallel.bound, "replicas", "X", phase="backward"
    ),
    "fsdp": Strategy(
        "FSDP (ZeRO-3)",
        data_parallel,
        partial(data_parallel.bound, zero=3),
        "shards",
        "X",
        phase="backward",
    ),
    "tensor_parallel": Strategy(
        "Tensor parallelism", tensor_parallel, tensor_parallel.bound, "slices", "Y"
    ),
    "mixed": Strategy("FSDP + tensor parallelism", mixed, mixed.bound, "FSDP shards", "X"),
    "expert_parallel": Strategy(
        "Expert parallelism", expert_parallel, expert_parallel.bound, "GPUs that hold experts", "Z"
    ),
    "pipeline_parallel": Strategy(
        "Pipeline parallelism", pipeline_parallel, pipeline_parallel.bound, "stages", "p"
    ),
}
