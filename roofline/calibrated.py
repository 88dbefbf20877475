"""A cluster profile and its calibration, as the step model takes them: kernels, network, habits.

Peaks come from the profile, what is achieved of them from the calibration's ``step``; without one
every efficiency is 1 and every latency 0, corners of rooflines are hard, and nothing is lost to
contention: the bound that no machine beats.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np

from hardware_profiles.behaviour import COLLECTIVES, FABRICS, IsolatedFit, StepFit
from hardware_profiles.schema import Accelerator, Cluster
from roofline.communication import Link, Network
from roofline.dims import Dims
from roofline.isolated import Fabric, Host, Idle, Wire
from roofline.job import Habits, Job
from roofline.kernels import Attention, Kernels, Matmuls, Streams
from roofline.layout import Layout
from roofline.machine import Tier
from roofline.names import choose
from roofline.recipes import RECIPES, Recipe
from roofline.units import BytesPerSecond, Count

# What a precision's matmuls run in. MX and NV formats have a scale for every 32 or 16 elements.
PRECISIONS = {
    "bf16": "bf16",
    "fp16": "fp16",
    "fp8": "fp8",
    "mxfp8": "fp8",
    "nvfp4": "fp4",
    "mxfp4": "fp4",
    "fp4": "fp4",
}
WIDER = ("fp4", "fp8", "bf16", "fp16")  # what comes nearest to a format that a GPU lacks
OPERAND_BYTES = {"fp32": 4.0, "tf32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "fp4": 0.5625}
GRAPHED = 0.3  # gaps between kernels that a CUDA graph launches, over others
SMS = 148  # where a profile does not say

Dtypes = str | Sequence[str]  # one, or one a row


@dataclass(frozen=True, slots=True)
class Behaviour:
    """A machine as calibrated, in some precision."""

    kernels: Kernels
    network: Network
    habits: Habits
    narrow: Count  # 1 where matmuls run in 8 bits or less
    host_link: BytesPerSecond = inf

    def job(self, model: Dims, layout: Layout, recipe: Recipe = RECIPES["mixed"]) -> Job:
        """A job on it; CUDA graphs close the gaps between kernels."""
        streams = self.kernels.streams
        gap = streams.gap * np.where(np.greater(layout.graphs, 0), GRAPHED, 1.0)
        ripe = np.where(np.greater(layout.early, 0), self.habits.early, 1.0)
        kernels = replace(
            self.kernels,
            matmuls=_at(self.kernels.matmuls, ripe),
            half_matmuls=_at(self.kernels.half_matmuls, ripe),
            streams=replace(streams, gap=gap),
            rank=layout.lora_rank,
            frozen=layout.frozen_bytes,
        )
        gathered = np.where(np.greater(self.narrow, 0), 1.0, 2.0)
        return Job(
            model,
            layout,
            kernels,
            self.network,
            self.habits,
            self.narrow,
            gathered,
            self.host_link,
            recipe,
        )


def _at(matmuls: Matmuls, speed: Count) -> Matmuls:
    return replace(matmuls, efficiency=matmuls.efficiency * speed)


def dtype_of(precision: str) -> str:
    """What matmuls of a training precision run in.

    >>> dtype_of("mxfp8")
    'fp8'
    """
    return choose("precision", precision, PRECISIONS)


def runs_on(chip: Accelerator, precision: str) -> str:
    """The same, where ``chip`` has a rate for it.

    Raises:
        ValueError: where it has none, naming the precisions that it has and the nearest of them.
    """
    dtype = dtype_of(precision)
    if dtype in chip.peak_flops:
        return dtype
    allowed = [name for name, needed in PRECISIONS.items() if needed in chip.peak_flops]
    wider = WIDER[WIDER.index(dtype) :] + WIDER
    near = next((name for name in wider if name in allowed), None)
    rest = f"allowed: {', '.join(allowed)}; the nearest is {near}" if near else "it trains in none"
    raise ValueError(
        f"precision: {precision!r} is refused: {chip.name} has no {dtype} rate; {rest}"
    )


def behaviour(cluster: Cluster, fit: StepFit | None = None, precision: str = "bf16") -> Behaviour:
    """The cluster as ``fit`` has it, or at its peaks.

    Raises:
        ValueError: a precision that nobody trains in, or that this accelerator has no rate for.
    """
    tiers = tuple(
        Tier(t.degree, t.effective_bandwidth, t.name, transit=t.transit, direct=t.direct)
        for t in cluster.tiers
    )
    found = on(cluster.accelerator, tiers, fit, runs_on(cluster.accelerator, precision))
    link = cluster.host_link
    return found if link is None else replace(found, host_link=link.total)


def on(
    chip: Accelerator, tiers: tuple[Tier, ...], fit: StepFit | None, dtypes: Dtypes
) -> Behaviour:
    """The same of an accelerator on tiers of bare numbers, which may be arrays; one dtype a row."""
    operands = _column(dtypes, lambda dtype: OPERAND_BYTES[dtype])
    return Behaviour(
        kernels(chip, fit, dtypes),
        network(tiers, fit),
        Habits() if fit is None else Habits(**fit.habits.model_dump()),
        np.where(np.less(operands, 2.0), 1.0, 0.0),
    )


def kernels(chip: Accelerator, fit: StepFit | None, dtypes: Dtypes) -> Kernels:
    """What runs on one GPU; a dtype without a fit of its own behaves as the narrowest that has."""
    peak = chip.flops("bf16")
    if fit is None:
        attention = Attention(peak, 1.0, 1.0, 1.0, 0.0, 1.0, 1.0)
        streams = Streams(chip.hbm_bandwidth, 1.0, 0.0)
    else:
        a = fit.attention
        attention = Attention(
            peak, a.efficiency, a.flash_2, a.flash_1, a.half, a.backward, a.narrow, a.start
        )
        streams = Streams(chip.hbm_bandwidth, fit.streams.hbm, fit.streams.gap)
    return Kernels(_matmuls(chip, fit, dtypes), _matmuls(chip, fit, "bf16"), attention, streams)


def _matmuls(chip: Accelerator, fit: StepFit | None, dtypes: Dtypes) -> Matmuls:
    def of(field: str, peak: float) -> Any:
        if fit is None:
            return peak
        return _column(dtypes, lambda dtype: getattr(_nearest_fit(fit, dtype), field))

    return Matmuls(
        peak=_column(dtypes, chip.flops),
        sms=float(chip.sms or SMS),
        hbm=chip.hbm_bandwidth,
        efficiency=of("efficiency", 1.0),
        depth=of("depth", 0.0),
        wave=of("wave", 0.0),
        start=of("start", 0.0),
        hbm_fraction=of("hbm", 1.0),
        operand_bytes=_column(dtypes, lambda dtype: OPERAND_BYTES[dtype]),
        soft=fit is not None,
    )


def _nearest_fit(fit: StepFit, dtype: str) -> Any:
    order = {"fp4": ("fp4", "fp8", "bf16")}.get(dtype, (dtype, "bf16"))
    return fit.matmuls[next(name for name in order if name in fit.matmuls)]


def _column(dtypes: Dtypes, value: Callable[[str], float]) -> Any:
    if isinstance(dtypes, str):
        return value(dtypes)
    table = {dtype: value(dtype) for dtype in set(dtypes)}
    return np.array([table[dtype] for dtype in dtypes], float)


def network(tiers: tuple[Tier, ...], fit: StepFit | None) -> Network:
    """The tiers with what collectives achieve on them."""
    if fit is None:
        return Network(
            tiers, {name: Link(0.0, 0.0, 1.0, 0.0) for name in COLLECTIVES}, 1.0, 0.0, 1.0
        )
    links = {
        name: Link(link.start, link.per_rank, link.fraction, link.root)
        for name, link in fit.collectives.items()
    }
    return Network(tiers, links, fit.network.outer, fit.network.hop, fit.network.exchange)


def idle(tiers: tuple[Tier, ...], fit: IsolatedFit, fabric: str = FABRICS[0]) -> Idle:
    """The tiers with one collective and nothing else on them.

    Args:
        fabric: the network beyond the innermost tier; one that was not measured is as InfiniBand.

    Raises:
        ValueError: a fabric that nobody knows.
    """
    known = choose("fabric", fabric, {name: name for name in FABRICS})
    between = fit.fabrics.get(known, fit.fabrics[FABRICS[0]])
    wires = {name: Wire(**wire.model_dump()) for name, wire in fit.wires.items()}
    return Idle(tiers, wires, Fabric(**between.model_dump()), Host(**fit.host.model_dump()))
