"""What the hardware page draws, as plain plotly figures: roofs, comparisons, fat trees."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dashboard import charts, theme
from dashboard.charts import Figure
from dashboard.hardware_drawing import color
from dashboard.hardware_tables import intensity, ladder
from hardware_profiles import Accelerator, Calibration, Cluster
from hardware_profiles.derived import (
    bisection,
    egress,
    fat_tree,
    memory_ladder,
    per_gpu,
    slowest_collective,
)
from roofline.chip import Level, attainable
from roofline.units import show

POINTS = 61
MOST_COMPARED = 4
INSIDE = {"registers": 5, "shared memory": 6, "L2": 7, "HBM": 0}  # colours beside the tiers' own
KINDS = ("leaves", "spines", "cores")
PATTERNS = ("", "/", "x", ".")


def roofs(cluster: Cluster, dtype: str) -> Figure:
    """One roof for each level that data can come over: what a kernel of some intensity reaches."""
    rate, memories = cluster.flops(dtype), _merged(cluster)
    ends = [float(level.ridge(rate)) for level in memories]
    low, high = (10.0 ** round(math.log10(end)) for end in (min(ends) / 10, max(ends) * 10))
    x = np.unique([*np.geomspace(low, high, POINTS), *ends])
    traces = [
        charts.line(x, roof.flops, _look(cluster, level, i, roof.ridge), "FLOP/s")
        for i, (level, roof) in enumerate(zip(memories, attainable(x, rate, memories), strict=True))
    ]
    traces.append(_corners(memories, ends, rate))
    floor = min(float(trace["y"][0]) for trace in traces)
    room = [math.log10(floor), math.log10(rate) + 0.3]  # so that the roof is not the frame
    y = charts.axis(f"attainable a GPU, {dtype}", [floor, rate], "FLOP/s") | {"range": room}
    return charts.figure(
        traces,
        charts.axis("FLOPs for each byte moved", x),
        y,
        height=430,
        hovermode="closest",
    )


def _merged(cluster: Cluster) -> list[Level]:
    """The ladder with levels of one bandwidth as one: a full fat tree is no slower further out."""
    found: list[Level] = []
    for level in ladder(cluster):
        if found and found[-1].bandwidth == level.bandwidth:
            level = Level(f"{found.pop().name}, {level.name}", level.bandwidth, level.capacity)
        found.append(level)
    return found


def _look(cluster: Cluster, level: Level, order: int, ridge: Any) -> theme.Look:
    label = f"{level.name}: {intensity(float(ridge))}"
    if level.name in INSIDE:
        hue = theme.SEQUENCE[INSIDE[level.name]]
    else:
        first = level.name.split(", ")[0]
        hue = color(next((i for i, t in enumerate(cluster.tiers) if t.name == first), 0))
    return theme.Look(label, hue, theme.DASHES[order % len(theme.DASHES)])


def _corners(memories: Sequence[Level], ends: list[float], rate: float) -> Figure:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": np.array(ends),
        "y": np.full(len(ends), rate),
        "marker": {"symbol": "circle-open", "size": 11, "color": theme.CROSSOVER},
        "text": [
            f"ridge of {m.name}: {e:,.6g} FLOP/B" for m, e in zip(memories, ends, strict=True)
        ],
        "hovertemplate": "%{text}<extra></extra>",
        "showlegend": False,
    }


@dataclass(frozen=True, slots=True)
class Measure:
    """A number that profiles are compared by; None where a profile has none."""

    value: float | None
    unit: str

    def __str__(self) -> str:
        if self.value is None or not math.isfinite(self.value):
            return "–"
        return intensity(self.value) if self.unit == "FLOP/B" else show(self.value, self.unit)


def measures(profile: Cluster | Accelerator, dtype: str) -> dict[str, Measure]:
    """What there is to compare, under the same names for a chip and for a cluster."""
    machine = profile if isinstance(profile, Cluster) else None
    chip = profile.accelerator if isinstance(profile, Cluster) else profile
    dtypes = dict.fromkeys((dtype, "fp8", "fp4"))
    found = {f"{d} peak": Measure(chip.peak_flops.get(d), "FLOP/s") for d in dtypes}
    rate = chip.peak_flops.get(dtype)
    hbm = [r for r in memory_ladder(chip, dtype) if r.level == "HBM"] if rate else []
    tiers = range(len(machine.tiers)) if machine else range(0)
    outer = machine if machine and len(tiers) > 1 else None
    whole = machine if machine and machine.gpus > 1 else None
    return found | {
        "HBM": Measure(chip.hbm_bytes, "B"),
        "HBM bandwidth": Measure(chip.hbm_bandwidth, "B/s"),
        f"HBM ridge, {dtype}": Measure(hbm[0].ridge if hbm else None, "FLOP/B"),
        "power": Measure(chip.power, "W"),
        "GPUs in a unit": Measure(machine.tiers[0].degree if machine else None, ""),
        "to a GPU inside a unit": Measure(per_gpu(machine, 0) if machine else None, "B/s"),
        "to a GPU outside it": Measure(per_gpu(outer, 1) if outer else None, "B/s"),
        "out of a unit": Measure(egress(outer, 0) if outer else None, "B/s"),
        "collective over all": Measure(
            slowest_collective(whole).bandwidth if whole else None, "B/s"
        ),
        "bisection": Measure(bisection(machine.tiers[-1]) if machine else None, "B/s"),
        "GPUs": Measure(machine.gpus if machine else None, ""),
        "price of a GPU": Measure(machine.price if machine else None, "USD/h"),
    }


Row = Mapping[str, Measure]
Table = Mapping[str, Row]


def compare(profiles: Mapping[str, Cluster | Accelerator], dtype: str) -> Table:
    """Measures of each profile, by its name; what no profile has is left out."""
    table = {name: measures(profile, dtype) for name, profile in profiles.items()}
    kept = [
        m for m in next(iter(table.values())) if any(t[m].value is not None for t in table.values())
    ]
    return {name: {measure: row[measure] for measure in kept} for name, row in table.items()}


def comparison(table: Table) -> Figure:
    """Bars from the first profile's value: twice as much to the right, half as much to the left."""
    first, *others = table
    base = {m: at.value for m, at in table[first].items() if at.value}
    traces = [_against(name, i + 1, table[name], base) for i, name in enumerate(others)]
    ratios = [r for trace in traces for r in trace["customdata"]]
    low, high = min([0.5, *ratios]), max([2.0, *ratios])
    return charts.figure(
        traces,
        _ratio_axis(low, high, first),
        {"autorange": "reversed", "automargin": True, "type": "category", "showgrid": False},
        height=90 + 30 * len(base) + 8 * len(base) * len(others),
        barmode="group",
        bargap=0.25,
        hovermode="closest",
        shapes=[_line_at(1.0)],
    )


def _against(name: str, order: int, row: Row, base: Mapping[str, float]) -> Figure:
    ratio = {m: (row[m].value or 0) / value for m, value in base.items() if row[m].value}
    lengths = np.array(list(ratio.values())) - 1  # a bar starts at 1
    return {
        "type": "bar",
        "orientation": "h",
        "y": list(ratio),
        "base": np.ones_like(lengths),
        "x": lengths,
        "customdata": list(ratio.values()),
        "name": name,
        "text": [f"{r:.3g} ×" for r in ratio.values()],
        "textposition": "outside",
        "cliponaxis": False,
        "hovertext": [f"{name}: {row[m]}, {r:.4g} × as much" for m, r in ratio.items()],
        "hovertemplate": "%{hovertext}<extra>%{y}</extra>",
        "marker": {
            "color": theme.SEQUENCE[order],
            "pattern": {
                "shape": PATTERNS[order - 1],
                "fillmode": "overlay",
                "fgcolor": "rgba(255,255,255,0.55)",
                "size": 7,
            },
        },
    }


def _ratio_axis(low: float, high: float, first: str) -> Figure:
    powers = np.arange(math.floor(math.log2(low)), math.ceil(math.log2(high)) + 1)
    ticks = 2.0 ** powers[:: max(1, math.ceil(len(powers) / 9))]
    return {
        "type": "log",
        "title": {"text": f"× {first}", "standoff": 8},
        "range": [math.log10(low / 2.5), math.log10(high * 2)],  # room for the bars' numbers
        "tickvals": ticks,
        "ticktext": [f"{tick:g}" if tick >= 1 else f"1/{1 / tick:g}" for tick in ticks],
        "gridcolor": charts.GRID,
        "zeroline": False,
        "automargin": True,
    }


def _line_at(x: float) -> Figure:
    return {
        "type": "line", "xref": "x", "yref": "paper", "x0": x, "x1": x, "y0": 0, "y1": 1,
        "line": {"color": theme.BUBBLE.color, "width": 1.5},
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Achieved:
    """One rate of a machine: what the datasheet says, what is reached, the fraction of the two."""

    what: str
    fraction: float
    peak: str
    reached: str


def achieved(cluster: Cluster, overlay: Calibration, lowered: Cluster) -> list[Achieved]:
    """Every rate that the overlay scales; ``lowered`` is ``cluster`` as calibrated."""
    chip, slow = cluster.accelerator, lowered.accelerator
    rows = [
        Achieved(f"{d} matmul", overlay.matmul_fraction(d), show(peak, "FLOP/s"),
                 show(slow.flops(d), "FLOP/s"))
        for d, peak in chip.peak_flops.items() if d in overlay.matmul
    ]  # fmt: skip
    rows.append(
        Achieved(
            "HBM", overlay.hbm, show(chip.hbm_bandwidth, "B/s"), show(slow.hbm_bandwidth, "B/s")
        )
    )
    for i, (tier, less) in enumerate(zip(cluster.tiers, lowered.tiers, strict=True)):
        pair = show(tier.effective_bandwidth, "B/s"), show(less.effective_bandwidth, "B/s")
        rows.append(Achieved(tier.name, overlay.tier(i).bandwidth, *pair))
    return rows


def fractions(rows: Sequence[Achieved]) -> Figure:
    """Achieved over peak, a bar each."""
    values = np.array([row.fraction for row in rows])
    trace = {
        "type": "bar",
        "orientation": "h",
        "y": [row.what for row in rows],
        "x": values,
        "text": [f"{row.fraction:.0%}: {row.reached} of {row.peak}" for row in rows],
        "textposition": "auto",
        "insidetextanchor": "start",
        "hovertemplate": "%{text}<extra>%{y}</extra>",
        "marker": {"color": theme.MATH.color, "pattern": {"shape": ""}},
        "showlegend": False,
    }
    return charts.figure(
        [trace],
        charts.axis("achieved of peak", [1.0, *values], log=False) | {"tickformat": ".0%"},
        {"autorange": "reversed", "automargin": True, "type": "category"},
        height=80 + 38 * len(rows),
        hovermode="closest",
        shapes=[_line_at(1.0)],
    )


def trees(ports: int, rails: int) -> dict[str, Any]:
    """Switches of fat trees of every size that three levels reach, as columns."""
    gpus = np.unique(np.round(np.geomspace(1, ports**3 // 4, 2 * POINTS)).astype(int))
    found = [fat_tree(int(n), ports, rails) for n in gpus]
    kinds = {kind: [getattr(tree, kind) for tree in found] for kind in KINDS}
    return {"GPUs": gpus} | {kind: np.array(counts, float) for kind, counts in kinds.items()}


def switches(table: Mapping[str, Any], gpus: int) -> Figure:
    """Leaves, spines and cores of fat trees against the GPUs that they join."""
    traces = []
    for i, kind in enumerate(KINDS):
        look = theme.look(i, kind)
        step = {"color": look.color, "dash": look.dash, "width": 2.5, "shape": "hv"}
        some = np.where(table[kind] > 0, table[kind], np.nan)
        traces.append(charts.line(table["GPUs"], some, look, "") | {"line": step})
    return charts.figure(
        traces,
        charts.axis("GPUs", table["GPUs"]),
        charts.axis("switches", [1, *table["leaves"]]),
        height=330,
        shapes=[_line_at(float(gpus))],
    )
