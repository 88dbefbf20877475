"""What the rooflines page shows, without streamlit: sweeps, verdicts in a line, the levels of the hierarchy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dashboard import theme
from hardware_profiles import Cluster
from roofline.bound import Bound, crossings
from roofline.strategies import STRATEGIES, Strategy
from roofline.strategies.sweeps import degrees
from roofline.units import show
from roofline.workload import Workload

STAND_IN = {"experts": 64, "experts_per_token": 2}  # a dense block shown as experts of its own size
MOST = {"tensor_parallel": 64, "expert_parallel": 1024, "pipeline_parallel": 512}
POINTS = 90


@dataclass(frozen=True)
class Sweep:
    """A strategy over its degree on one cluster."""

    entry: Strategy
    work: Workload
    cluster: Cluster
    options: Mapping[str, Any]
    degrees: NDArray[np.float64]
    bound: Bound
    note: str = ""

    @property
    def stops(self) -> list[int]:
        """Degrees that a slider offers: powers of two, and the last one."""
        last = int(self.degrees[-1])
        return sorted({2**n for n in range(last.bit_length()) if 2**n in self.degrees} | {1, last})

    def nearest_stop(self, degree: int) -> int:
        """The slider's stop next to ``degree``."""
        return min(self.stops, key=lambda stop: abs(stop - degree))

    def at(self, degree: float) -> Bound:
        """The strategy at one degree."""
        return self.entry.bound(self.work, self.cluster, degree, **self.options)


@dataclass(frozen=True)
class Level:
    """A sweep where its group fills one unit of a tier."""

    name: str
    degree: int
    bound: Bound
    with_switches: dict[str, Bound]  # the same where switches add: in theory, as measured

    @property
    def binding(self) -> str:
        """The tier that sets the longest communication."""
        return (
            str(max(self.bound.comms, key=lambda term: float(term.seconds)).tier)
            if self.bound.comms
            else "–"
        )


def sweep(name: str, work: Workload, cluster: Cluster, options: Mapping[str, Any]) -> Sweep:
    """The strategy ``name`` over every degree that ``cluster`` and ``work`` allow.

    Raises:
        ValueError: what the strategy refuses, in its own words.
    """
    entry, note = STRATEGIES[name], ""
    if name == "expert_parallel" and work.experts == 1:
        work = replace(work, **STAND_IN)
        note = "dense model: shown as {experts} experts of this width, {experts_per_token} per token".format(
            **STAND_IN
        )
    inner = options.get("model_parallel", 1) * options.get("data_parallel", 1)
    found = degrees(name, work, cluster, inner=inner)
    if not found.size:
        raise ValueError(
            f"{inner} GPUs for the other axes leave none of {cluster.gpus} for {entry.degree}"
        )
    found = _thinned(found[found <= MOST.get(name, cluster.gpus)])
    return Sweep(
        entry, work, cluster, options, found, entry.bound(work, cluster, found, **options), note
    )


def _thinned(degrees: NDArray[np.float64]) -> NDArray[np.float64]:
    """At most ``POINTS`` of the degrees, evenly on a log axis, the units' own sizes among them."""
    if len(degrees) <= POINTS:
        return degrees
    wanted = np.geomspace(degrees[0], degrees[-1], POINTS)
    nearest = degrees[np.searchsorted(degrees, wanted * 0.999)]
    powers = degrees[np.log2(degrees) % 1 == 0]
    return np.unique(np.concatenate([nearest, powers]))


def headline(found: Sweep) -> tuple[str, str]:
    """Where the strategy stops paying, in one line: its gist, and the rest of the sentence."""
    bound, noun = found.bound, found.entry.degree
    crossed = crossings(found.degrees, bound)
    end = bool(np.atleast_1d(bound.compute_bound)[-1])
    if not crossed.size:
        gist = "compute-bound" if end else "communication-bound"
        return gist, f" at every degree up to {found.degrees[-1]:,.0f} {noun}"
    if end:
        return f"communication-bound until {show(crossed[-1])} {noun}", ", compute-bound beyond"
    return f"compute-bound up to {show(crossed[0])} {noun}", ", communication-bound beyond"


def short_title(name: str) -> str:
    """The strategy in a word or two, for a button."""
    return theme.COMMS[name].label[:1].upper() + theme.COMMS[name].label[1:]


def y_title(name: str) -> str:
    """Title of the time axis: what the formulas of the strategy count."""
    return "time of all layers" if name == "pipeline_parallel" else "time per layer"


def x_title(name: str) -> str:
    """Title of the swept axis."""
    entry = STRATEGIES[name]
    return f"{entry.degree[:1].upper()}{entry.degree[1:]} ({entry.symbol})"


def levels(found: Sweep) -> list[Level]:
    """The strategy with its group grown to fill a unit of every tier it reaches."""
    stride = found.options.get("model_parallel", 1)
    reached = []
    for tier, unit in zip(found.cluster.tiers, found.cluster.unit_sizes[1:], strict=True):
        degree = max(1, unit // stride)
        if degree <= found.degrees[-1]:
            adding = {
                how: found.entry.bound(
                    found.work, found.cluster, degree, **{**found.options, "in_network": how}
                )
                for how in ("theory", "measured")
                if "in_network" in found.options
            }
            reached.append(Level(f"one {tier.name}", degree, found.at(degree), adding))
    return reached
