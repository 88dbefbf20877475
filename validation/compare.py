"""Published sweeps of collectives against the shipped overlays: errors of every point, and medians."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hardware_profiles.behaviour import IsolatedFit
from hardware_profiles.calibration import for_accelerator
from roofline.calibrated import idle
from roofline.groups import Group
from roofline.isolated import Calls
from roofline.machine import Tier
from validation import sweeps
from validation.sweeps import Point, Refused

LARGE = 1e6  # bytes from which a message is large, as nccl-tests counts
BEYOND = 1e6  # units that the network joins: more than there are

Fits = Callable[[str], IsolatedFit | None]  # accelerator → what its overlay has


@dataclass(frozen=True, slots=True)
class Row:
    """A point and its prediction."""

    point: Point
    predicted: float  # [s]
    fitted: bool  # its source was used in the fit

    @property
    def error(self) -> float:
        """predicted / measured - 1."""
        return self.predicted / self.point.seconds - 1

    @property
    def large(self) -> bool:
        """1 MB and more."""
        return self.point.size >= LARGE


@dataclass(frozen=True, slots=True)
class Comparison:
    """All points that could be predicted, and those that could not."""

    rows: list[Row]
    refused: list[Refused]


def shipped(accelerator: str) -> IsolatedFit | None:
    """What the overlay that comes with the package says of an idle network."""
    overlay = for_accelerator(accelerator)
    return None if overlay is None else overlay.isolated


def compare(text: str, fits: Fits = shipped) -> Comparison:
    """Every point of a JSONL text against ``roofline.isolated``."""
    points, refused = sweeps.parse(text)
    groups: dict[tuple[str, str, str], list[Point]] = defaultdict(list)
    for point in points:
        groups[point.accelerator, point.collective, point.fabric].append(point)
    rows: list[Row] = []
    for (accelerator, operation, _), members in groups.items():
        fit = fits(accelerator)
        if fit is None or operation not in fit.wires:
            why = f"no overlay has {operation} of {accelerator} on an idle network"
            refused.extend(Refused(point.id, why) for point in members)
            continue
        seconds = predict(members, fit)
        rows.extend(
            Row(point, float(each), point.source in fit.fitted_to)
            for point, each in zip(members, seconds, strict=True)
        )
    order = {point.id: i for i, point in enumerate(points)}
    return Comparison(sorted(rows, key=lambda row: order[row.point.id]), refused)


def predict(points: Sequence[Point], fit: IsolatedFit) -> np.ndarray:
    """Seconds of points with the same accelerator, collective and fabric."""
    first = points[0]
    unit, card, ranks, nbytes, *called = (
        np.array([float(getattr(point, name)) for point in points])
        for name in ("unit", "card", "ranks", "nbytes", "per_thread", "waits", "queues")
    )
    node = Tier(unit, sweeps.inside(first.accelerator), "node", transit=False)
    tiers = (node, Tier(BEYOND, card * unit, "network"))
    machine = idle(tiers, fit, first.fabric)
    found = machine.seconds(first.collective, nbytes, Group(ranks), Calls(*called))
    return np.broadcast_to(np.asarray(found, float), len(points))


def nodes_of(point: Point) -> str:
    """How many hosts, in few classes."""
    names = ((1, "1"), (2, "2"), (31, "3-31"), (float("inf"), "32+"))
    return next(name for most, name in names if point.nodes <= most)


def medians(rows: Iterable[Row]) -> dict[str, Any]:
    """Median of |error| above and below 1 MB, and how many points each is of."""
    found: dict[str, Any] = {}
    members = list(rows)
    for name, large in (("large", True), ("small", False)):
        off = [abs(row.error) for row in members if row.large == large]
        found[f"median_error_{name}"] = float(np.median(off)) if off else None
        found[f"points_{name}"] = len(off)
    return found


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Medians of all rows, and by GPU, collective, node count and kind of network."""
    ways: dict[str, Callable[[Row], str]] = {
        "by_gpu": lambda row: row.point.gpu,
        "by_collective": lambda row: row.point.collective,
        "by_nodes": lambda row: nodes_of(row.point),
        "by_network": lambda row: row.point.fabric if row.point.across else "inside",
    }
    return medians(rows) | {
        way: {
            name: medians(row for row in rows if key(row) == name)
            for name in sorted({key(row) for row in rows})
        }
        for way, key in ways.items()
    }


def document(found: Comparison) -> dict[str, Any]:
    """For JSON: ``rows``, ``refused``, and ``summary`` of all, of held-out and of fitted sources."""
    held = [row for row in found.rows if not row.fitted]
    whole = summary(found.rows) | {
        "large_from_bytes": LARGE,
        "predicted": len(found.rows),
        "refused": len(found.refused),
        "held_out": summary(held),
        "fitted": summary([row for row in found.rows if row.fitted]),
    }
    refused = [{"id": each.id, "reason": each.reason} for each in found.refused]
    return {"rows": [as_document(row) for row in found.rows], "refused": refused, "summary": whole}


def as_document(row: Row) -> dict[str, Any]:
    """A row for JSON."""
    point = row.point
    return {
        "id": point.id,
        "gpu": point.gpu,
        "collective": point.collective,
        "nodes": point.nodes,
        "ranks": point.ranks,
        "bytes": point.size,
        "predicted_s": row.predicted,
        "measured_s": point.seconds,
        "error": row.error,
        "fitted": row.fitted,
        "network": point.fabric if point.across else "inside",
        "source": point.source,
    }
