"""Kernels: a module for each family, which lists what it has in ``KERNELS``.

A new one is a module and a line in ``MODULES``; see ``validation/README.md``.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from roofline.names import choose
from validation.case import Kernel

MODULES = (
    "matmul",
    "memory",
    "attention",
    "collectives",
    "data_parallel",
    "tensor_parallel",
    "pipeline_parallel",
    "algorithms",
    "expert_parallel",
    "context_parallel",
    "mesh",
    "recompute",
)


def kernels() -> dict[str, Kernel]:
    """Every kernel by its name, in the order of ``MODULES``."""
    found = (import_module(f"validation.kernels.{module}").KERNELS for module in MODULES)
    return {kernel.name: kernel for rows in found for kernel in rows}


def chosen(names: Sequence[str]) -> list[Kernel]:
    """The kernels called so; every one when there are no names.

    Raises:
        ValueError: when none is called so, naming the nearest.
    """
    known = kernels()
    return [choose("kernels", name, known) for name in names] or list(known.values())
