"""What the Explain page shows, computed once for each job, and as tables for reading and downloads."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

import hardware_profiles as hw
from roofline.anatomy import Anatomy, OperationRow, anatomy
from roofline.anatomy_collectives import CollectiveRow
from roofline.footprint import Footprint, footprint
from roofline.layout import Layout
from roofline.model import Transformer
from roofline.playback import played
from roofline.timeline import Timeline
from roofline.training import Training, training
from roofline.units import show

PASSES = 1600  # of a timeline that is drawn: more are no longer seen
PLAYED = 60_000  # passes that are played through, to know the idle share
KINDS = {
    "weights": ("weights",),
    "gradients": ("gradients",),
    "optimizer": ("optimizer",),
    "activations": ("residual", "attention", "scores", "mlp", "experts", "working"),
    "logits": ("logits",),
    "buffers": ("gathered", "exchanged"),
    "other": ("slack", "nccl", "context"),
}


@dataclass(frozen=True)
class Predicted:
    """A job with its totals as plain numbers."""

    job: Training

    @property
    def seconds(self) -> float:
        """The step. [s]"""
        return float(np.asarray(self.job.time.seconds))

    @property
    def terms(self) -> dict[str, float]:
        """Terms of the step that take any time. [s]"""
        found = {name: float(np.asarray(each)) for name, each in self.job.time.terms.items()}
        return {name: each for name, each in found.items() if each > 0}

    @property
    def memory(self) -> float:
        """Of the fullest stage's GPU. [B]"""
        return float(np.asarray(self.job.memory.total))

    @property
    def capacity(self) -> float:
        """Of a GPU. [B]"""
        return float(self.job.cluster.hbm_bytes)


@dataclass(frozen=True)
class Explained(Predicted):
    """A job with its rows, its stages and its pipeline."""

    anatomy: Anatomy
    stages: Footprint  # a column, one row a stage
    timeline: Timeline | None  # None where this schedule cannot be played
    every: bool  # whether the timeline has all micro-batches
    idle: float  # share of the pipeline's time, of all micro-batches where they can be played
    unplayed: str  # why there is no timeline


class _Key:
    """A job's inputs; profiles hold dicts, so that their text stands for them."""

    def __init__(self, *inputs: Any) -> None:
        self.inputs = inputs
        told = (
            i.model_dump_json() if isinstance(i, hw.Cluster | hw.Calibration) else i for i in inputs
        )
        self.text = tuple(told)

    def __hash__(self) -> int:
        return hash(self.text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self.text == other.text


def explained(
    model: Transformer,
    layout: Layout,
    cluster: hw.Cluster,
    precision: str,
    rates: str | hw.Calibration,
    recipe: str | None = None,
) -> Explained:
    """The job taken apart; kept, since most controls of the page leave it as it is."""
    return _explained(_Key(model, layout, cluster, precision, rates, recipe))


@lru_cache(maxsize=16)
def _explained(key: _Key) -> Explained:
    model, layout, cluster, precision, rates, recipe = key.inputs
    job = training(model, layout, cluster, precision, recipe=recipe, rates=rates)
    stages = np.arange(float(layout.pp))
    by_stage = footprint(job.dims, layout, job.recipe, stages)
    count = drawn(job)
    m = round(float(layout.microbatches))
    try:
        short, unplayed = played(job, count), ""
        whole = played(job, m) if count < m and m * passes(job) <= PLAYED else short
    except ValueError as error:
        short = whole = None
        unplayed = str(error)
    idle = whole.share if whole else 0.0
    return Explained(job, anatomy(job), by_stage, short, count == m, idle, unplayed)


def passes(job: Training) -> int:
    """Passes of a micro-batch over all stages, at most."""
    return 3 * int(float(job.layout.pp)) * int(float(job.layout.chunks))


def drawn(job: Training) -> int:
    """Micro-batches of the timeline that is drawn: all, or as many whole rounds as can be seen."""
    layout = job.layout
    pp, m = int(float(layout.pp)), round(float(layout.microbatches))
    each = passes(job)
    return m if m * each <= PASSES else min(m, max(2 * pp, PASSES // each // pp * pp))


def by_kind(memory: Footprint) -> dict[str, Any]:
    """Bytes by kind, the parts of each together; columns of as many rows as stages."""
    rows = np.shape(np.asarray(memory.total))
    return {
        kind: sum(np.broadcast_to(memory.parts[part], rows) for part in parts)
        for kind, parts in KINDS.items()
    }


def operations(found: Explained) -> list[OperationRow]:
    """Operations that are waited for, the longest first."""
    rows = (row for row in found.anatomy.operations if row.seconds > 0)
    return sorted(rows, key=lambda row: -row.seconds)


def collectives(found: Explained) -> list[CollectiveRow]:
    """Collectives, those waited for longest first."""
    return sorted(found.anatomy.collectives, key=lambda row: (-row.exposed, -row.seconds))


def operation_rows(found: Explained) -> list[dict[str, str]]:
    """The table of operations, for reading."""
    return [
        {
            "operation": row.name,
            "in": row.where,
            "intensity": f"{show(row.intensity)} FLOP/B" if row.flops else "–",
            "runs at": show(row.achieved, "FLOP/s") if row.flops else show(row.bandwidth, "B/s"),
            "of its ceiling": f"{row.reached:.0%} of {row.ceiling}",
            "forward": show(row.forward, "s"),
            "backward": show(row.backward, "s"),
            "times": f"{row.times:,.0f}",
            "in a step": show(row.seconds, "s"),
            "of the step": share(row.seconds, found.seconds),
        }
        for row in operations(found)
    ]


def collective_rows(found: Explained) -> list[dict[str, str]]:
    """The table of collectives, for reading."""
    return [
        {
            "axis": row.axis,
            "what": row.what,
            "collective": row.call.op,
            "bytes": show(row.nbytes, "B"),
            "each": show(row.call.seconds, "s"),
            "times": f"{row.times:,.0f}",
            "exposed": show(row.exposed, "s"),
            "of the step": share(row.exposed, found.seconds),
            "hidden": show(row.hidden, "s"),
            "ranks": f"{row.call.ranks:,.0f}"
            + (f", {row.call.stride:,.0f} apart" if row.call.stride > 1 else ""),
            "over, slowest in brackets": " → ".join(
                f"[{tier}]" if tier == row.call.slowest and len(row.call.tiers) > 1 else tier
                for tier in row.call.tiers
            ),
        }
        for row in collectives(found)
    ]


def rest_rows(found: Explained) -> list[dict[str, str]]:
    """What is neither, for reading."""
    return [
        {
            "what": row.name,
            "in a step": show(row.seconds, "s"),
            "of the step": share(row.seconds, found.seconds),
            "why": row.why,
        }
        for row in sorted(found.anatomy.rest, key=lambda row: -row.seconds)
        if abs(row.seconds) > 1e-9
    ]


def share(part: float, whole: float) -> str:
    """A part in percent."""
    value = 100 * part / whole
    return f"{value:.3g} %" if abs(value) >= 0.1 else "< 0.1 %"


def operation_columns(found: Explained) -> dict[str, Any]:
    """Operations as columns in SI units."""
    rows = operations(found)
    return {
        "operation": [row.name for row in rows],
        "in": [row.where for row in rows],
        "kind": [row.kind for row in rows],
        "FLOPs forward": [row.forward_flops for row in rows],
        "FLOPs backward": [row.backward_flops for row in rows],
        "memory traffic [B]": [row.nbytes for row in rows],
        "intensity [FLOP/B]": [row.intensity for row in rows],
        "achieved [FLOP/s]": [row.achieved for row in rows],
        "achieved [B/s]": [row.bandwidth for row in rows],
        "ceiling": [row.ceiling for row in rows],
        "of ceiling": [row.reached for row in rows],
        "forward [s]": [row.forward for row in rows],
        "backward [s]": [row.backward for row in rows],
        "times in a step": [row.times for row in rows],
        "in a step [s]": [row.seconds for row in rows],
    }


def collective_columns(found: Explained) -> dict[str, Any]:
    """Collectives as columns in SI units."""
    rows = collectives(found)
    return {
        "axis": [row.axis for row in rows],
        "what": [row.what for row in rows],
        "collective": [row.call.op for row in rows],
        "bytes [B]": [row.nbytes for row in rows],
        "ranks": [row.call.ranks for row in rows],
        "stride": [row.call.stride for row in rows],
        "tiers": [" > ".join(row.call.tiers) for row in rows],
        "slowest tier": [row.call.slowest for row in rows],
        "each [s]": [row.call.seconds for row in rows],
        "times in a step": [row.times for row in rows],
        "in a step [s]": [row.seconds for row in rows],
        "exposed [s]": [row.exposed for row in rows],
    }


def memory_columns(found: Explained) -> dict[str, Any]:
    """Memory of each stage as columns."""
    parts = {f"{name} [B]": each for name, each in found.stages.parts.items()}
    total = np.atleast_1d(np.asarray(found.stages.total))
    return {"stage": np.arange(total.size), **parts, "total [B]": total}
