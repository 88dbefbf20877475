"""Figures of the Evidence page: predicted against measured, errors by group, the terms of one run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from dashboard import charts, term_looks, theme
from dashboard.charts import Figure
from roofline import accuracy
from roofline.backtest import Row
from roofline.evidence import LeftOut
from roofline.evidence_tables import percent
from roofline.units import show

BAND = 0.10  # drawn around y = x
EDGE = 0.40  # errors beyond stand at the edge of the strip
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "pentagon", "star", "hexagon",
           "triangle-down")  # fmt: skip
MEDIAN = "#d64541"


def looks(rows: Sequence[Row]) -> dict[str, theme.Look]:
    """One look per GPU, whatever is chosen; the ninth has the first's colour and its own symbol."""
    gpus = sorted({row.accelerator for row in rows})
    return {
        gpu: theme.Look(gpu, theme.look(i, gpu).color, symbol=SYMBOLS[i % len(SYMBOLS)])
        for i, gpu in enumerate(gpus)
    }


def hover(row: Row) -> str:
    """A run in four short lines."""
    return (
        f"<b>{row.id}</b><br>measured {show(row.measured or 0, 's')}, "
        f"predicted {show(row.predicted, 's')} ({percent(row.error or 0, sign=True)})<br>"
        f"{row.gpus:,} × {row.accelerator}, {row.precision}"
    )


def scatter(rows: Sequence[Row], every: Sequence[Row], chosen: Row | None) -> Figure:
    """Predicted over measured, log-log, on y = x with its band; the frame is that of ``every`` run."""
    style = looks(every)
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.accelerator, row.family].append(row)
    times = np.array([[row.measured or np.nan, row.predicted] for row in every])
    span = np.array([np.nanmin(times) / 1.3, np.nanmax(times) * 1.3])
    points = [_points(style[g], f, groups[g, f]) for g, f in sorted(groups)]
    named: set[str] = set()
    for trace in points:  # one entry a GPU
        trace["showlegend"] = trace["name"] not in named
        named.add(trace["name"])
    traces = [*_diagonal(span), *points]
    if chosen is not None:
        traces.append(_ring(chosen))
    found = charts.figure(
        traces,
        _log_axis("measured step time", span),
        _log_axis("predicted step time", span),
        height=520,
        hovermode="closest",
        legend={
            "x": 0.01,
            "y": 0.99,
            "xanchor": "left",
            "yanchor": "top",
            "font": {"size": 11},
            "traceorder": "normal",
        },
    )
    return found


def _log_axis(title: str, span: Any) -> Figure:
    axis = charts.axis(title, span, "s")
    return axis | {"range": np.log10(span).tolist()}


def _points(look: theme.Look, family: str, rows: Sequence[Row]) -> Figure:
    """Runs of a GPU and family: filled where dense, open where mixtures of experts."""
    return {
        "type": "scatter",
        "mode": "markers",
        "name": look.label,
        "legendgroup": look.label,
        "x": np.array([row.measured for row in rows], float),
        "y": np.array([row.predicted for row in rows]),
        "marker": {
            "symbol": look.symbol + ("-open" if family == "moe" else ""),
            "color": look.color,
            "size": 8,
            "opacity": 0.75,
            "line": {"width": 1.6 if family == "moe" else 0},
        },
        "text": [hover(row) for row in rows],
        "customdata": [row.id for row in rows],
        "hovertemplate": "%{text}<extra></extra>",
    }


def _diagonal(span: Any) -> list[Figure]:
    """y = x and the band around it."""
    common: Figure = {"type": "scatter", "mode": "lines", "x": span, "hoverinfo": "skip"}
    edge = {"color": "rgba(128,140,155,0.0)", "width": 0}
    low = common | {"y": span * (1 - BAND), "line": edge, "showlegend": False}
    high = common | {
        "y": span * (1 + BAND), "line": edge, "fill": "tonexty",
        "fillcolor": "rgba(128,140,155,0.22)", "showlegend": False,
    }  # fmt: skip
    line = {"color": "#8a94a3", "width": 1.2, "dash": "dot"}
    return [low, high, common | {"y": span, "line": line, "showlegend": False}]


def _ring(row: Row) -> Figure:
    return {
        "type": "scatter", "mode": "markers", "x": [row.measured], "y": [row.predicted],
        "marker": {"symbol": "circle-open", "size": 20, "color": MEDIAN, "line": {"width": 2.5}},
        "hoverinfo": "skip", "showlegend": False,
    }  # fmt: skip


def strip(rows: Sequence[Row], every: Sequence[Row], by: str) -> Figure:
    """Errors, a line of points per group with its median; far ones stand at the edge."""
    key, style = accuracy.GROUPS[by], looks(every)
    names = sorted({key(row) for row in rows}, reverse=True)
    place = {name: i for i, name in enumerate(names)}
    off = np.array([row.error or 0.0 for row in rows])
    groups: dict[str, list[float]] = defaultdict(list)
    for row, error in zip(rows, off, strict=True):
        groups[key(row)].append(error)
    jitter = (np.arange(len(rows)) * 0.618034) % 1.0 - 0.5
    points = {
        "type": "scatter", "mode": "markers", "name": "a run",
        "x": 100 * np.clip(off, -EDGE, EDGE),
        "y": np.array([place[key(row)] for row in rows]) + 0.6 * jitter,
        "marker": {
            "color": [style[row.accelerator].color for row in rows],
            "symbol": [_strip_symbol(row) for row in rows],
            "size": 6, "opacity": 0.65,
        },
        "text": [hover(row) for row in rows], "customdata": [row.id for row in rows],
        "hovertemplate": "%{text}<extra></extra>",
    }  # fmt: skip
    medians = {
        "type": "scatter", "mode": "markers", "name": "median", "y": np.arange(len(names)),
        "x": 100 * np.clip([np.median(groups[name]) for name in names], -EDGE, EDGE),
        "marker": {"symbol": "line-ns-open", "size": 20, "color": MEDIAN, "line": {"width": 3}},
        "text": [_group_hover(name, groups[name]) for name in names],
        "hovertemplate": "%{text}<extra></extra>",
    }  # fmt: skip
    return charts.figure(
        [points, medians],
        _error_axis(),
        _names_axis([f"{name} ({len(groups[name])})" for name in names]),
        height=520,
        hovermode="closest",
        showlegend=False,
        shapes=[_band(), _zero()],
    )


def _strip_symbol(row: Row) -> str:
    error = row.error or 0.0
    if abs(error) > EDGE:
        return "triangle-right" if error > 0 else "triangle-left"
    return "circle-open" if row.family == "moe" else "circle"


def _group_hover(name: str, errors: Sequence[float]) -> str:
    size = np.abs(errors)
    return (
        f"<b>{name}</b>, {len(errors)} runs<br>bias {percent(float(np.median(errors)), sign=True)}, "
        f"median {percent(float(np.median(size)))}, 90% within {percent(float(np.quantile(size, 0.9)))}"
    )


def _error_axis() -> Figure:
    ticks = np.arange(-40, 41, 20)
    return {
        "title": {"text": "error: predicted over measured, minus 1", "standoff": 8},
        "range": [-44, 44], "tickangle": 0, "tickvals": ticks, "ticktext": [f"{t:+d}%" if t else "0" for t in ticks],
        "gridcolor": charts.GRID, "zeroline": False, "automargin": True,
    }  # fmt: skip


def _names_axis(names: Sequence[str]) -> Figure:
    return {
        "tickvals": np.arange(len(names)), "ticktext": list(names), "automargin": True,
        "range": [-0.6, len(names) - 0.4], "showgrid": False, "zeroline": False,
    }  # fmt: skip


def _band() -> Figure:
    return {
        "type": "rect", "xref": "x", "yref": "paper", "x0": -100 * BAND, "x1": 100 * BAND,
        "y0": 0, "y1": 1, "fillcolor": "rgba(128,140,155,0.18)", "line": {"width": 0},
        "layer": "below",
    }  # fmt: skip


def _zero() -> Figure:
    return {
        "type": "line", "xref": "x", "yref": "paper", "x0": 0, "x1": 0, "y0": 0, "y1": 1,
        "line": {"color": "#8a94a3", "width": 1.2, "dash": "dot"}, "layer": "below",
    }  # fmt: skip


def beyond(rows: Sequence[Row]) -> int:
    """How many runs stand at the edge of the strip."""
    return sum(abs(row.error or 0.0) > EDGE for row in rows)


def terms(row: Row) -> Figure:
    """The terms of one prediction, the largest on top."""
    names = sorted((n for n, s in row.terms.items() if s > 0), key=lambda n: row.terms[n])
    seconds = np.array([row.terms[name] for name in names])
    labels = [f" {show(s, 's')}, {_share(s / row.predicted)}" for s in seconds]
    trace = {
        "type": "bar", "orientation": "h", "x": seconds, "y": np.arange(len(names)),
        "marker": {"color": [term_looks.of(name).color for name in names]},
        "text": labels, "textposition": "outside", "cliponaxis": False,
        "hovertemplate": "%{customdata}<extra></extra>",
        "customdata": [f"{n}: {s:.6g} s" for n, s in zip(names, seconds, strict=True)],
    }  # fmt: skip
    return charts.figure(
        [trace],
        {"range": [0, 1.35 * float(seconds.max())], "showgrid": False, "zeroline": False,
         "showticklabels": False, "title": {"text": "seconds of a step"}},
        _names_axis([f"{name} " for name in names]),
        height=max(180, 60 + 26 * len(names)),
        hovermode="closest",
        showlegend=False,
    )  # fmt: skip


def _share(part: float) -> str:
    return percent(part) if part >= 5e-4 else "<0.1%"


def calibrations(found: Sequence[LeftOut]) -> Figure:
    """Median and 90th percentile of each calibration: as fitted, and with sources left out."""
    names = [f"{each.calibration}, {each.family} ({each.left_out.runs})" for each in found][::-1]
    place = np.arange(len(names), dtype=float)
    traces = []
    for label, color, symbol, shift in (
        ("left out", MEDIAN, "diamond", 0.14),
        ("fitted", theme.MATH.color, "circle", -0.14),
    ):
        spreads = [e.left_out if label == "left out" else e.fitted for e in found][::-1]
        middle, far = (
            100 * np.array([getattr(s, field) if s else np.nan for s in spreads])
            for field in ("median", "p90")
        )
        traces.append(
            {
                "type": "scatter", "mode": "markers", "name": f"{label}: median → 90%",
                "x": middle, "y": place + shift,
                "marker": {"color": color, "symbol": symbol, "size": 10},
                "error_x": {"type": "data", "symmetric": False, "array": far - middle,
                            "arrayminus": 0 * middle, "color": color, "thickness": 1.8, "width": 4},
                "text": [_spread_hover(label, n, m, f)
                         for n, m, f in zip(names, middle, far, strict=True)],
                "hovertemplate": "%{text}<extra></extra>",
            }
        )  # fmt: skip
    most = max([each.left_out.p90 for each in found], default=0.1)
    return charts.figure(
        traces,
        {"title": {"text": "error of the step time", "standoff": 8}, "ticksuffix": "%",
         "range": [0, 105 * most], "gridcolor": charts.GRID, "zeroline": False, "automargin": True},
        _names_axis(names),
        height=110 + 36 * len(names),
        hovermode="closest",
    )  # fmt: skip


def _spread_hover(label: str, name: str, middle: float, far: float) -> str:
    return f"<b>{name}</b><br>{label}: median {middle:.1f}%, 90% within {far:.1f}%"
