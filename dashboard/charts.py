"""Results in, plotly figures out, as plain dicts: light to build, light to send, and testable without a browser.

Axis ranges follow from the data and are rounded out to whole decades, so that a slider moves curves, not the frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dashboard import theme
from roofline.bound import Bound, crossings
from roofline.units import show

Figure = dict[str, Any]

GRID = "rgba(128,140,155,0.22)"


def line(x: Any, y: Any, look: theme.Look, unit: str, **more: Any) -> Figure:
    """One curve; hovering shows the value with its unit."""
    x, y = np.asarray(x, float), np.asarray(y, float)
    return {
        "type": "scatter",
        "mode": "lines",
        "x": x,
        "y": np.broadcast_to(y, x.shape).copy(),
        "name": look.label,
        "line": {"color": look.color, "dash": look.dash, "width": 2.5},
        "text": [show(v, unit) for v in np.broadcast_to(y, x.shape)],
        "hovertemplate": "%{text}<extra>" + look.label + "</extra>",
    } | more


def figure(
    traces: Sequence[Figure], x: Figure, y: Figure, height: int = 360, **layout: Any
) -> Figure:
    """Traces on two axes in the house's frame."""
    return {
        "data": list(traces),
        "layout": {
            "height": height,
            "margin": {"l": 10, "r": 12, "t": 28, "b": 10},
            "xaxis": x,
            "yaxis": y,
            "hovermode": "x unified",
            "hoverlabel": {"namelength": -1},
            "legend": {
                "orientation": "h",
                "y": 1.0,
                "yanchor": "bottom",
                "x": 0,
                "font": {"size": 12},
            },
            "template": "none",
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
        }
        | layout,
    }


def axis(title: str, values: Any, unit: str = "", log: bool = True, decades: bool = True) -> Figure:
    """An axis that fits ``values``, with ticks a person reads ("10 µs"), log where decades matter."""
    finite = np.asarray(values, float)
    finite = finite[np.isfinite(finite) & ((finite > 0) | (not log))]
    common = {
        "title": {"text": title, "standoff": 8},
        "gridcolor": GRID,
        "zeroline": False,
        "automargin": True,
    }
    if not finite.size:
        return common | {"range": [0, 1]}
    low, high = float(finite.min()), float(finite.max())
    if not log:
        return common | {"range": [min(0.0, low), high * 1.05 or 1.0], "rangemode": "tozero"}
    if decades:
        bottom, top = np.floor(np.log10(low) + 1e-9), np.ceil(np.log10(high) - 1e-9)
        bottom, top = (bottom, top) if top > bottom else (bottom - 1, top + 1)
        step = max(1, int(np.ceil((top - bottom) / 7)))
        ticks = 10.0 ** np.arange(bottom, top + 1, step)
    else:
        margin = 0.02 * max(np.log10(high / low), 0.1)
        bottom, top = np.log10(low) - margin, np.log10(high) + margin
        powers = np.arange(np.ceil(np.log2(low) - 1e-9), np.floor(np.log2(high) + 1e-9) + 1)
        ticks = 2.0 ** powers[:: max(1, int(np.ceil(len(powers) / 9)))]
    return common | {
        "type": "log",
        "range": [bottom, top],
        "tickvals": ticks,
        "ticktext": [_tick(tick, unit) for tick in ticks],
    }


def _tick(value: float, unit: str) -> str:
    """A decade as a label; seconds stay seconds, so that an axis reads in one unit."""
    return f"{value:,.0f} s" if unit == "s" and value >= 1 else show(value, unit)


def crossing(
    x: Any,
    bound: Bound,
    look: theme.Look,
    x_title: str,
    y_title: str,
    *,
    current: float | None = None,
    height: int = 330,
    legend: bool = True,
) -> Figure:
    """T_math against T_comms over ``x``: where they cross, and the region where communication wins."""
    x = np.asarray(x, float)
    t_math, t_comms = (
        np.broadcast_to(np.asarray(t, float), x.shape) for t in (bound.t_math, bound.t_comms)
    )
    traces = [
        line(x, t_math, theme.MATH, "s"),
        line(
            x,
            np.where(t_comms > 0, t_comms, np.nan),
            theme.Look("T_comms", look.color, look.dash),
            "s",
        ),
    ]
    marks = crossings(x, bound)
    if marks.size:
        height_at = np.exp(np.interp(np.log(marks), np.log(x), np.log(t_math)))
        traces.append(crossover_marks(marks, height_at, marks > x[0] * (x[-1] / x[0]) ** 0.85))
    return figure(
        traces,
        axis(x_title, x, decades=False),
        axis(y_title, np.concatenate([t_math, t_comms]), "s"),
        height=height,
        showlegend=legend,
        shapes=forbidden(x, t_comms > t_math, marks) + ([_here(current)] if current else []),
    )


def crossover_marks(x: Any, y: Any, near_edge: Any) -> Figure:
    """The points where the sides change, named by where they are; to the left where the right edge is near."""
    return {
        "type": "scatter",
        "mode": "markers+text",
        "x": np.asarray(x, float),
        "y": np.asarray(y, float),
        "name": "crossover",
        "marker": {
            "symbol": "circle-open",
            "size": 12,
            "color": theme.CROSSOVER,
            "line": {"width": 2.5},
        },
        "text": [f"<b> {show(v)} </b>" for v in np.atleast_1d(x)],
        "textposition": [
            "bottom left" if edge else "top right" for edge in np.atleast_1d(near_edge)
        ],
        "textfont": {"color": theme.CROSSOVER, "size": 13},
        "hovertemplate": "crossover at %{text}<extra></extra>",
        "showlegend": False,
    }


def forbidden(x: Any, where: Any, edges: Any) -> list[Figure]:
    """Shading over the stretches of ``x`` where communication takes longer, from crossover to crossover."""
    bounds = np.concatenate([[x[0]], np.atleast_1d(edges), [x[-1]]])
    middles = np.sqrt(bounds[:-1] * bounds[1:])
    inside = np.asarray(where)[np.argmin(np.abs(np.log(x[:, None] / middles)), axis=0)]
    return [
        {
            "type": "rect", "xref": "x", "yref": "paper", "x0": left, "x1": right, "y0": 0, "y1": 1,
            "fillcolor": theme.FORBIDDEN, "line": {"width": 0}, "layer": "below",
        }
        for left, right, shaded in zip(bounds[:-1], bounds[1:], inside, strict=True)
        if shaded
    ]  # fmt: skip


def _here(x: float) -> Figure:
    return {
        "type": "line", "xref": "x", "yref": "paper", "x0": x, "x1": x, "y0": 0, "y1": 1,
        "line": {"color": "#8a94a3", "width": 1.5, "dash": "dot"},
    }  # fmt: skip
