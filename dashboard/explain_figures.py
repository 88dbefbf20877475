"""Figures of the Explain page: the step in terms, operations under their ceilings, memory, the pipeline."""

from __future__ import annotations

import numpy as np

from dashboard import charts, term_looks, theme
from dashboard.charts import Figure
from dashboard.explain_data import Explained, Predicted, by_kind, operations, share
from dashboard.theme import Look
from roofline.anatomy import OperationRow
from roofline.timeline import Timeline
from roofline.units import show

MEMORY = {
    "weights": Look("weights", "#3b7dd8"),
    "gradients": Look("gradients", "#e0701a"),
    "optimizer": Look("optimizer", "#7a8fa6"),
    "activations": Look("activations", "#0f9d76"),
    "logits": Look("logits", "#c4649f"),
    "buffers": Look("buffers", "#b8860b"),
    "other": Look("other", "#8a94a3"),
}
SYMBOLS = {"matmuls": "circle", "attention": "diamond"}
PASSES = {
    "F": Look("forward", "#3b7dd8"),
    "B": Look("backward", "#0f9d76"),
    "W": Look("weight gradients", "#c79a00"),
    "FB": Look("both, overlapped", "#8a6fd1"),
}
WIDE = 0.06  # of the step: a term this wide has room for its share inside the bar
LEAST = 1e-3  # of the step: terms below are not drawn


def step_bar(found: Predicted) -> Figure:
    """One bar, cut into the terms of the step in their order."""
    traces = []
    for name, seconds in found.terms.items():
        look = term_looks.of(name)
        part = seconds / found.seconds
        if part < LEAST:
            continue
        traces.append(
            {
                "type": "bar", "orientation": "h", "x": [seconds], "y": [""], "name": name,
                "marker": {"color": look.color, "line": {"width": 1, "color": "rgba(128,128,128,.4)"},
                           "pattern": {"shape": "/" if look.dash != "solid" else "", "size": 7,
                                       "fillmode": "overlay", "fgcolor": "#ffffff",
                                       "fgopacity": 0.3}},
                "text": [share(seconds, found.seconds) if part > WIDE else ""],
                "textposition": "inside", "insidetextanchor": "middle", "textangle": 0,
                "textfont": {"color": "#ffffff", "size": 13},
                "hovertemplate": f"{name}: {seconds:.6g} s, "
                                 f"{share(seconds, found.seconds)}<extra></extra>",
            }
        )  # fmt: skip
    figure = charts.figure(
        traces,
        charts.axis("time in a step", [0.0, found.seconds], "s", log=False)
        | {"range": [0, found.seconds], "ticksuffix": " s", "showgrid": False},
        {"showticklabels": False, "showgrid": False, "zeroline": False, "fixedrange": True},
        height=215,
        hovermode="closest",
        barmode="stack",
        bargap=0.15,
    )
    figure["layout"]["legend"] |= {"traceorder": "normal"}
    return figure


def _log_axis(
    title: str, low: float, high: float, steps: tuple[float, ...], unit: str = ""
) -> Figure:
    """A log axis of few decades, with ticks at ``steps`` of each."""
    decades = 10.0 ** np.arange(np.floor(np.log10(low)), np.log10(high) + 1)
    ticks = [step * decade for decade in decades for step in steps]
    ticks = [tick for tick in ticks if low <= tick <= high]
    return {
        "type": "log", "range": [np.log10(low), np.log10(high)], "tickvals": ticks,
        "ticktext": [show(tick, unit) for tick in ticks], "gridcolor": charts.GRID, "tickangle": 0,
        "title": {"text": title, "standoff": 8}, "zeroline": False, "automargin": True,
    }  # fmt: skip


def roofline(found: Explained) -> Figure:
    """Operations with matmul FLOPs, at their intensity and rate, under the ceilings of the datasheet."""
    rows = [row for row in operations(found) if row.flops]
    kernels = found.job.job.kernels
    hbm = float(np.asarray(kernels.matmuls.hbm))
    peaks = {found.job.precision: float(np.asarray(kernels.matmuls.peak))}
    half = float(np.asarray(kernels.half_matmuls.peak))
    if half != peaks[found.job.precision]:
        peaks["bf16"] = half
    low = min([row.intensity for row in rows] + [half / hbm]) / 3
    high = max([row.intensity for row in rows] + [max(peaks.values()) / hbm]) * 3
    x = np.unique([low, *(peak / hbm for peak in peaks.values()), high])
    traces = [
        charts.line(
            x, np.minimum(peak, x * hbm),
            Look(f"{show(peak, 'FLOP/s')} {name}, HBM {show(hbm, 'B/s')}", "#8a94a3",
                 "solid" if i == 0 else "dash"),
            "FLOP/s", hoverinfo="skip", hovertemplate=None,
        )
        for i, (name, peak) in enumerate(peaks.items())
    ]  # fmt: skip
    for kind in SYMBOLS:
        if of := [row for row in rows if row.kind == kind]:
            traces.append(_points(of, kind, found.seconds))
    rates = [row.achieved for row in rows]
    return charts.figure(
        traces,
        _log_axis("FLOPs per byte of memory traffic", low, high, (1.0, 3.0)),
        _log_axis(
            "FLOP/s of one GPU",
            min(rates) / 1.6,
            1.3 * max(peaks.values()),
            (1.0, 2.0, 3.0, 5.0),
            "FLOP/s",
        ),
        height=430,
        hovermode="closest",
    )


def _points(rows: list[OperationRow], kind: str, step: float) -> Figure:
    """Operations of a kind, the larger the more time they take."""
    labels = _labels(rows, step)
    return {
        "type": "scatter", "mode": "markers+text", "name": kind,
        "x": np.array([row.intensity for row in rows]),
        "y": np.array([row.achieved for row in rows]),
        "marker": {"color": term_looks.of(kind).color, "symbol": SYMBOLS[kind], "opacity": 0.85,
                   "size": np.array([8 + 22 * (row.seconds / step) ** 0.5 for row in rows]),
                   "line": {"width": 1, "color": "#ffffff"}},
        "text": labels, "textposition": _places(rows, labels),
        "textfont": {"size": 11, "color": "#8a94a3"},
        "hovertemplate": "%{customdata}<extra></extra>",
        "customdata": [_hover(row, step) for row in rows],
    }  # fmt: skip


def _labels(rows: list[OperationRow], step: float) -> list[str]:
    """Names of those that take longest: all of them would lie on each other."""
    found: list[str] = []
    for row in rows:
        new = len([*filter(None, found)]) < 4 and row.name not in found
        found.append(row.name if new and row.seconds > 0.02 * step else "")
    return found


def _places(rows: list[OperationRow], labels: list[str]) -> list[str]:
    """Labels away from each other: left and right of the middle, the fastest above its point."""
    named = sorted((i for i, label in enumerate(labels) if label), key=lambda i: rows[i].intensity)
    places = ["top center"] * len(rows)
    half = (len(named) + 1) // 2
    for side, those in (("left", named[:half]), ("right", named[half:])):
        top = max(those, key=lambda i: rows[i].achieved, default=None)
        for i in those:
            places[i] = f"{'top' if i == top else 'bottom'} {side}"
    return places


def _hover(row: OperationRow, step: float) -> str:
    return (
        f"<b>{row.name}</b> ({row.where})<br>{show(row.achieved, 'FLOP/s')}, "
        f"{row.reached:.0%} of the {row.ceiling}<br>{show(row.intensity)} FLOP/B<br>"
        f"{show(row.seconds, 's')} in a step, {share(row.seconds, step)}"
    )


def memory(found: Explained) -> Figure:
    """Memory of a GPU of each stage, by kind, against its capacity."""
    kinds = by_kind(found.stages)
    total = np.atleast_1d(np.asarray(found.stages.total, float))
    stages = np.arange(total.size)
    traces: list[Figure] = [
        {
            "type": "bar", "x": stages, "y": np.atleast_1d(values) / 1e9, "name": kind,
            "marker": {"color": MEMORY[kind].color},
            "hovertemplate": "%{text}<extra>stage %{x}, " + kind + "</extra>",
            "text": [show(value, "B") for value in np.atleast_1d(values)],
            "textposition": "none",
        }
        for kind, values in kinds.items()
        if np.any(values)
    ]  # fmt: skip
    top = max(float(total.max()), found.capacity) / 1e9
    line = {
        "type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": found.capacity / 1e9,
        "y1": found.capacity / 1e9, "line": {"color": theme.CROSSOVER, "width": 2, "dash": "dot"},
    }  # fmt: skip
    note = {
        "xref": "paper", "x": 1, "y": found.capacity / 1e9, "xanchor": "right", "yanchor": "bottom",
        "text": f"{show(found.capacity, 'B')} a GPU", "showarrow": False,
        "font": {"color": theme.CROSSOVER, "size": 12},
        "bgcolor": "rgba(255,255,255,.85)", "borderpad": 1,
    }  # fmt: skip
    step = max(1, -(-total.size // 16))
    return charts.figure(
        traces,
        {"title": {"text": "pipeline stage"}, "tickvals": stages[::step], "showgrid": False,
         "zeroline": False, "automargin": True, "range": [-0.6, total.size - 0.4]},
        {"title": {"text": "GB on one GPU"}, "range": [0, 1.12 * top], "gridcolor": charts.GRID,
         "zeroline": False, "automargin": True},
        height=430,
        hovermode="closest",
        barmode="stack",
        bargap=0.3 if total.size > 1 else 0.6,
        shapes=[line],
        annotations=[note],
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "traceorder": "normal",
                "font": {"size": 12}},
    )  # fmt: skip


def gantt(found: Timeline, step: float) -> Figure:
    """Passes of every stage over time."""
    length = found.end - found.start
    traces = []
    for kind, look in PASSES.items():
        rows = np.flatnonzero(found.kind == kind)
        if not rows.size:
            continue
        traces.append(
            {
                "type": "bar", "orientation": "h", "name": look.label,
                "base": found.start[rows], "x": length[rows], "y": found.device[rows],
                "marker": {"color": look.color,
                           "line": {"width": 0.5, "color": "rgba(255,255,255,.6)"}},
                "customdata": found.microbatch[rows],
                "hovertemplate": f"{look.label} of micro-batch %{{customdata}}<br>"
                                 "from %{base:.4g} s for %{x:.3g} s<extra>stage %{y}</extra>",
            }
        )  # fmt: skip
    stages = found.size.stages
    every = max(1, -(-stages // 16))
    return charts.figure(
        traces,
        {"title": {"text": "time [s]"}, "range": [0, found.step], "showgrid": False,
         "zeroline": False, "automargin": True},
        {"title": {"text": "stage"}, "tickvals": np.arange(0, stages, every),
         "range": [stages - 0.4, -0.6], "showgrid": False, "zeroline": False, "automargin": True},
        height=int(min(520, 130 + 30 * stages)),
        hovermode="closest",
        barmode="overlay",
        bargap=0.12,
    )  # fmt: skip
