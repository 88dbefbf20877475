"""Figures of the Validate page: predicted against measured, and what each rate reaches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from dashboard import charts, theme
from dashboard.charts import Figure
from dashboard.validate_data import Report, Row, state_of
from roofline.evidence_tables import percent
from roofline.units import show

SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "pentagon", "star", "hexagon")
UNTRUSTED = theme.Look("not trusted", "#8a94a3", symbol="x")
SLOW = theme.CROSSOVER


def looks(rows: Sequence[Row]) -> dict[str, theme.Look]:
    """One look per kernel; from the ninth on a colour comes with another symbol."""
    kernels = list(dict.fromkeys(row["kernel"] for row in rows))
    n = len(SYMBOLS)
    return {
        kernel: theme.Look(kernel, theme.look(i, kernel).color, symbol=SYMBOLS[(i + i // n) % n])
        for i, kernel in enumerate(kernels)
    }


def scatter(found: Report) -> Figure:
    """Predicted over measured, log-log, with y = x; grey crosses are not trusted."""
    rows = [r for r in found["rows"] if r["predicted"] and r["seconds"] > 0]
    style = looks(rows)
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row["kernel"] if row["trusted"] else UNTRUSTED.label].append(row)
    times = np.array([[r["seconds"], r["predicted"]] for r in rows] or [[1.0, 1.0]])
    span = np.array([times.min() / 1.5, times.max() * 1.5])
    traces = [_points(style.get(name, UNTRUSTED), groups[name]) for name in groups]
    line = {"color": "#8a94a3", "width": 1.2, "dash": "dot"}
    exact = {"type": "scatter", "mode": "lines", "x": span, "y": span, "line": line,
             "hoverinfo": "skip", "showlegend": False}  # fmt: skip
    return charts.figure(
        [exact, *traces], _axis("measured", span), _axis("predicted", span), height=520,
        hovermode="closest",
        legend={"x": 1.01, "y": 1, "xanchor": "left", "yanchor": "top", "font": {"size": 11}},
    )  # fmt: skip


def _axis(title: str, span: Any) -> Figure:
    return charts.axis(title, span, "s") | {"range": np.log10(span).tolist()}


def _points(look: theme.Look, rows: Sequence[Row]) -> Figure:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": look.label,
        "x": np.array([row["seconds"] for row in rows], float),
        "y": np.array([row["predicted"] for row in rows], float),
        "marker": {"symbol": look.symbol, "color": look.color, "size": 9, "opacity": 0.8},
        "text": [_hover(row) for row in rows],
        "customdata": [row["case"] for row in rows],
        "hovertemplate": "%{text}<extra></extra>",
    }


def _text(text: str) -> str:
    """Text of a file that plotly takes for nothing but text."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _hover(row: Row) -> str:
    words = "<br>".join(
        _text(row["case"][i : i + 70]) for i in range(0, min(len(row["case"]), 280), 70)
    )
    return (
        f"{words}<br><b>{row['part']}</b>: measured {show(row['seconds'], 's')}, predicted "
        f"{show(row['predicted'], 's')} ({percent(row['error'] or 0, sign=True)}), {state_of(row)}"
    )


def errors(found: Report) -> Figure:
    """Signed median error of each kernel and part, over how much its measurement scatters."""
    rows = [row for row in found["errors"] if row["bytes"] == "all"][::-1]
    labels = [_text(f"{row['kernel']} · {row['part']}") for row in rows]
    bias = np.array([100 * row["bias"] for row in rows])
    spread = np.array([100 * row["spread"] / 2 for row in rows])
    bars = {
        "type": "bar", "orientation": "h", "x": bias, "y": labels, "showlegend": False,
        "marker": {"color": theme.MATH.color},
        "error_x": {"type": "data", "array": spread, "color": "#8a94a3", "thickness": 1.2},
        "text": [f"{row['cases']} cases, median error {percent(row['median'])}, scatter "
                 f"{percent(row['spread'])}" for row in rows],
        "hovertemplate": "%{y}: bias %{x:.0f}%, %{text}<extra></extra>", "textposition": "none",
    }  # fmt: skip
    low, high = min(bias.min(initial=0), -20), max(bias.max(initial=0), 20)
    x = charts.axis("median of predicted / measured − 1", [0], log=False)
    x |= {"range": [max(low * 1.15, -105), min(high * 1.15, 400)], "ticksuffix": "%"}
    x |= {"zeroline": True, "zerolinecolor": "#8a94a3"}
    return _bars(bars, x, len(rows))


def rates(found: Report) -> Figure:
    """What large cases reach of each number of the profile; slow ones red and named."""
    rows = found["rates"][::-1]
    bars = {
        "type": "bar", "orientation": "h", "showlegend": False,
        "x": np.array([100 * row["fraction"] for row in rows]),
        "y": [_text(_rate(row)) for row in rows],
        "marker": {"color": [SLOW if row["slow"] else theme.MATH.color for row in rows]},
        "text": [_text(row["sentence"]) for row in rows], "textposition": "none",
        "hovertemplate": "%{text}<extra></extra>",
    }  # fmt: skip
    top = max([100.0, *(100 * row["fraction"] for row in rows)]) * 1.05
    x = charts.axis("of the profile's rate", [0], log=False) | {
        "range": [0, top],
        "ticksuffix": "%",
    }
    return _bars(bars, x, len(rows))


def _rate(row: Row) -> str:
    """Each bar's own name, told apart by its group; a slow one says so."""
    group = f" {row['size']}×{row['stride']}" if row["size"] > 1 else ""
    what = row["tier"] or row["what"]
    return f"{'slow: ' if row['slow'] else ''}{row['kernel']} {row['variant']} · {what}{group}"


def _bars(bars: Figure, x: Figure, count: int) -> Figure:
    y = {"automargin": True, "tickfont": {"size": 11}, "dtick": 1}
    return charts.figure([bars], x, y, height=90 + 21 * max(count, 3), hovermode="closest")
