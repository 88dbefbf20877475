"""The baseline: what one does without a model, a single utilisation per GPU and precision.

    baseline = FLOPs / (N · peak · utilisation) · (1 + (p-1)/(vM))

The utilisation is the median over the published runs that come with the package, whichever runs it
is held against: a file of two runs does not fit itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import numpy as np

import hardware_profiles as hw
from roofline import runs
from roofline.calibrated import dtype_of
from roofline.layout import RECOMPUTE
from roofline.model_flops import flops_per_token
from roofline.run_files import published
from roofline.run_gpus import accelerator
from roofline.units import Seconds


@lru_cache(maxsize=256)
def utilisation(name: str, precision: str) -> tuple[float, str]:
    """Of an accelerator in a precision, and of which published runs it is the median.

    Where none ran so: those of the accelerator in the same data type, in any, then of all
    accelerators in the same data type, then in any.

    >>> utilisation("mi300x", "bf16")[1]
    'all GPUs, bf16: no published run is on mi300x'
    """
    dtype = dtype_of(precision)
    here = _shares(name)
    none = f"no published run is on {name}" + f" in {precision}" * bool(here)
    for words, found in (
        (f"{name}, {precision}", here.get(precision, [])),
        (f"{name}, {dtype}: {none}", _of(here, dtype)),
        (f"{name}, any precision: {none}", _of(here)),
    ):
        if found:
            return float(np.median(found)), words
    everywhere = _everywhere()
    alike = _of(everywhere, dtype)
    which = dtype if alike else "any precision"
    return float(np.median(alike or _of(everywhere))), f"all GPUs, {which}: {none}"


def seconds(job: runs.Job) -> tuple[Seconds, str]:
    """The baseline of a run, and of which published runs its utilisation is. [s]"""
    share, words = utilisation(job.accelerator, job.precision)
    return ideal(job) / share, words


def ideal(job: runs.Job) -> float:
    """The run at full peak, recomputation and the bubble of its schedule included. [s]"""
    layout = job.layout
    rate = float(layout.gpus) * hw.accelerator(job.accelerator).flops(dtype_of(job.precision))
    again = 4 / 3 if layout.recompute in (RECOMPUTE["full"], RECOMPUTE["block"]) else 1.0
    bubble = (layout.pp - 1.0) / (layout.chunks * layout.microbatches)
    return float(flops(job) * again / rate * (1.0 + bubble))


def flops(job: runs.Job) -> float:
    """Of the model, in a step."""
    tokens = float(job.layout.batch * job.layout.sequence)
    return tokens * float(flops_per_token(job.model, job.layout.sequence))


def _of(shares: dict[str, list[float]], dtype: str | None = None) -> list[float]:
    kept = (found for p, found in shares.items() if dtype in (None, dtype_of(p)))
    return [share for found in kept for share in found]


@lru_cache(maxsize=64)
def _shares(name: str) -> dict[str, list[float]]:
    """Utilisations of the published runs on an accelerator, by precision."""
    return _by_precision(run for run in _published() if accelerator(run["gpu"]) == name)


@lru_cache(maxsize=1)
def _everywhere() -> dict[str, list[float]]:
    return _by_precision(_published())


@lru_cache(maxsize=1)
def _published() -> list[runs.Run]:
    return published()


def _by_precision(found: Iterable[runs.Run]) -> dict[str, list[float]]:
    shares: dict[str, list[float]] = {}
    for run in found:
        job = runs.job(run)
        if job.measured is not None:
            shares.setdefault(job.precision, []).append(ideal(job) / job.measured)
    return shares
