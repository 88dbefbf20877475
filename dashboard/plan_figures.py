"""Figures of the Plan page: all layouts at once, what would help, scaling, and candidates side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dashboard import charts, term_looks, theme
from dashboard.charts import Figure
from dashboard.explain_data import Predicted
from dashboard.plan_data import Chosen, Field
from roofline.describe import SCHEDULES
from roofline.explain import Choice, Rate
from roofline.scaling import PAYS, Scaling
from roofline.units import show

FITS = theme.Look("fits", "#3b7dd8")
OUT = theme.Look("does not fit", "#9aa3ae", symbol="x-thin")
FRONT = theme.Look("Pareto front", "#0f9d76")
FASTER, SLOWER = "#0f9d76", "#e0701a"
AXES = {"dp": "data_parallel", "tp": "tensor_parallel", "pp": "pipeline_parallel",
        "ep": "expert_parallel"}  # fmt: skip
NAMES = {"dp": "data parallel", "tp": "tensor parallel", "cp": "context parallel",
         "pp": "pipeline parallel", "ep": "expert parallel"}  # fmt: skip
WORDS = {
    "micro_batch": "micro-batch", "zero": "ZeRO", "etp": "expert TP", "shard": "FSDP over",
    "recompute": "recompute", "recompute_share": "layers recomputed", "order": "order",
    "sequence_parallel": "sequence parallel", "offload_share": "offloaded",
}  # fmt: skip
BARS = 12  # of a tornado
LEAST = 5e-4  # of the step: effects below are not drawn
FARTHEST = 0.6  # of the step: longer bars are cut there


def field(drawn: Field, capacity: float, room: float, best: Chosen | None, now: Chosen) -> Figure:
    """Every layout by its memory and its step time, with the front and the one looked at."""
    rows, fits = drawn.rows, drawn.rows["fits"] > 0
    traces = [_cloud(drawn, ~fits, OUT), _cloud(drawn, fits, FITS)]
    traces.append(
        {
            "type": "scatter", "mode": "lines", "name": FRONT.label, "hoverinfo": "skip",
            "x": drawn.front["memory"] / 1e9, "y": drawn.front["seconds"],
            "line": {"color": FRONT.color, "width": 2, "shape": "hv"},
        }
    )  # fmt: skip
    if best is not None:
        traces.append(_mark(best.numbers, "best", "star", FRONT.color, 15))
    if best is None or now.layout != best.layout:
        traces.append(_mark(now.numbers, "chosen", "circle-open", theme.CROSSOVER, 17))
    return charts.figure(
        traces,
        _log("GB on the fullest GPU", np.append(rows["memory"], room) / 1e9),
        _log("step time [s]", rows["seconds"]),
        height=440,
        hovermode="closest",
        shapes=[_wall(capacity)],
        annotations=[_said(capacity)],
    )


def _cloud(drawn: Field, which: Any, look: theme.Look) -> Figure:
    places = np.flatnonzero(which)
    crossed = look.symbol == "x-thin"
    return {
        "type": "scatter", "mode": "markers", "name": look.label,
        "x": drawn.rows["memory"][places] / 1e9, "y": drawn.rows["seconds"][places],
        "text": [drawn.words[i] for i in places], "customdata": [drawn.codes[i] for i in places],
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {"color": look.color, "symbol": look.symbol, "size": 6 if crossed else 7,
                   "opacity": 0.75, "line": {"width": 1.2 if crossed else 0, "color": look.color}},
    }  # fmt: skip


def _mark(one: Predicted, name: str, symbol: str, color: str, size: int) -> Figure:
    return {
        "type": "scatter", "mode": "markers", "name": name, "hoverinfo": "skip",
        "x": [one.memory / 1e9], "y": [one.seconds],
        "marker": {"symbol": symbol, "size": size, "color": color,
                   "line": {"width": 2.5 if "open" in symbol else 1, "color": color}},
    }  # fmt: skip


def _log(title: str, values: Any) -> Figure:
    """A log axis with ticks at 1, 2 and 5 of each decade."""
    low, high = float(np.min(values)) / 1.12, float(np.max(values)) * 1.12
    decades = 10.0 ** np.arange(np.floor(np.log10(low)), np.ceil(np.log10(high)) + 1)
    ticks = [step * decade for decade in decades for step in (1.0, 2.0, 3.0, 5.0)]
    ticks = [tick for tick in ticks if low <= tick <= high]
    return {
        "type": "log", "range": [np.log10(low), np.log10(high)], "tickvals": ticks,
        "ticktext": [f"{tick:,.0f}" if tick >= 1 else f"{tick:g}" for tick in ticks],
        "gridcolor": charts.GRID, "tickangle": 0,
        "title": {"text": title, "standoff": 8}, "zeroline": False, "automargin": True,
    }  # fmt: skip


def _wall(capacity: float) -> Figure:
    return {
        "type": "line", "xref": "x", "yref": "paper", "x0": capacity / 1e9, "x1": capacity / 1e9,
        "y0": 0, "y1": 1, "line": {"color": theme.CROSSOVER, "width": 2, "dash": "dot"},
    }  # fmt: skip


def _said(capacity: float) -> Figure:
    return {
        "xref": "x", "yref": "paper", "x": np.log10(capacity / 1e9), "y": 0.99, "xanchor": "left",
        "yanchor": "top", "text": f" {show(capacity, 'B')} a GPU", "showarrow": False,
        "font": {"color": theme.CROSSOVER, "size": 12},
    }  # fmt: skip


def rates(found: Sequence[Rate]) -> Figure:
    """Step time with each rate doubled."""
    kept = [row for row in found if abs(row.doubled - 1) > LEAST][:BARS]
    return _tornado(
        [row.name for row in kept],
        [row.doubled - 1 for row in kept],
        [False] * len(kept),
        [
            f"twice the {row.name}: {row.doubled - 1:+.1%} step time; near today's value, "
            f"1 % more brings {-row.elasticity:.2f} %"
            for row in kept
        ],
    )


def choices(found: Sequence[Choice]) -> Figure:
    """Step time with one choice of the layout changed."""
    kept = telling(found)
    return _tornado(
        [choice_words(row) for row in kept],
        [row.slower for row in kept],
        [not row.fits for row in kept],
        [
            f"{choice_words(row)}: {show(row.seconds, 's')}, {row.slower:+.1%}; "
            f"{show(row.memory, 'B')} a GPU{'' if row.fits else ', which does not fit'}"
            for row in kept
        ],
    )


def telling(found: Sequence[Choice]) -> list[Choice]:
    """Changes that matter: the fastest, and of those that cost time the nearest of each choice."""
    seen: dict[str, Choice] = {}
    for row in found:
        if row.slower > LEAST:
            seen.setdefault(row.name, row)
    faster = [row for row in found if row.slower < -LEAST]
    near = [row for row in seen.values() if not any(row.name == one.name for one in faster)]
    return (faster + sorted(near, key=lambda row: row.slower))[:BARS]


def choice_words(row: Choice) -> str:
    """A changed choice as people say it."""
    value = SCHEDULES.get(row.value, row.value) if row.name == "schedule" else row.value
    return f"{WORDS.get(row.name, row.name.upper() if len(row.name) < 4 else row.name)} {value}"


def _tornado(names: list[str], effects: list[float], out: list[bool], hover: list[str]) -> Figure:
    """Bars to either side of the step as it is, the most helpful on top."""
    names = [f"{name} ✗" if no else name for name, no in zip(names, out, strict=True)]
    percent = 100 * np.clip(np.array(effects, float), -FARTHEST, FARTHEST)
    low, high = np.min(percent, initial=-3.0), np.max(percent, initial=3.0)
    room = 0.4 * (high - low)  # for the words at the ends of the bars
    trace = {
        "type": "bar", "orientation": "h", "x": percent, "y": names,
        "text": [f"{100 * e:+.1f} %" for e in effects],
        "textposition": "outside", "cliponaxis": False, "hovertext": hover,
        "hovertemplate": "%{hovertext}<extra></extra>",
        "marker": {"color": [OUT.color if o else FASTER if e < 0 else SLOWER
                             for e, o in zip(effects, out, strict=True)],
                   "pattern": {"shape": ["/" if o else "" for o in out], "size": 6,
                               "fillmode": "overlay", "fgcolor": "#ffffff", "fgopacity": 0.4}},
    }  # fmt: skip
    return charts.figure(
        [trace],
        {"title": {"text": "change of the step time [%]"}, "range": [low - room, high + room],
         "gridcolor": charts.GRID, "zeroline": True, "zerolinecolor": "#8a94a3", "automargin": True},
        {"autorange": "reversed", "showgrid": False, "automargin": True, "type": "category"},
        height=110 + 28 * max(3, len(names)),
        hovermode="closest",
        showlegend=False,
        bargap=0.35,
    )  # fmt: skip


def scaling(found: Mapping[str, Scaling]) -> Figure:
    """Tokens per second and GPU against the number of GPUs, axis by axis."""
    traces: list[Figure] = []
    for axis, row in found.items():
        look = _axis(axis)
        traces.append(
            charts.line(row.gpus, 100 * row.efficiency, look, "") | {
                "mode": "lines+markers",
                "text": [_point(axis, row, i) for i in range(len(row.gpus))],
                "marker": {"size": 8, "color": look.color,
                           "symbol": [look.symbol if fit else f"{look.symbol}-open"
                                      for fit in row.fits]},
            }
        )  # fmt: skip
    every = np.concatenate([row.gpus for row in found.values()])
    top = max(float(np.max(row.efficiency)) for row in found.values())
    return charts.figure(
        traces,
        charts.axis("GPUs", every, decades=False) | {"title": {"text": "GPUs"}},
        {"title": {"text": "tokens/s a GPU, of today's [%]"}, "range": [0, 100 * max(1.05, 1.05 * top)],
         "gridcolor": charts.GRID, "zeroline": False, "automargin": True},
        height=360,
        hovermode="closest",
    )  # fmt: skip


def _axis(axis: str) -> theme.Look:
    if axis in AXES:
        return theme.COMMS[AXES[axis]]
    return term_looks.of(NAMES[axis])


def _point(axis: str, row: Scaling, i: int) -> str:
    text = f"{axis.upper()} {row.degree[i]:g} on {row.gpus[i]:,.0f} GPUs: "
    text += f"{show(float(row.seconds[i]), 's')} a step, {row.efficiency[i]:.0%}"
    return text if row.fits[i] else f"{text}; does not fit"


def pays(found: Mapping[str, Scaling]) -> str:
    """Where each axis stops paying, in a sentence."""
    parts = [
        f"{NAMES[axis]} to {row.stops:,.0f}"
        for axis, row in sorted(found.items(), key=lambda pair: -pair[1].stops)
        if row.stops > row.gpus[0]
    ]
    text = f"{', '.join(parts)} GPUs" if parts else "nowhere"
    return (
        f" by doubling one axis: {text}. Doubling pays while it fits and brings "
        f"{PAYS:g} times the tokens/s."
    )


def side_by_side(candidates: Mapping[str, Predicted]) -> Figure:
    """A bar for each candidate, cut into the terms of its step."""
    names = list(candidates)
    terms = list(dict.fromkeys(name for one in candidates.values() for name in one.terms))
    longest = max(one.seconds for one in candidates.values())
    traces = []
    for term in terms:
        look = term_looks.of(term)
        seconds = np.array([one.terms.get(term, 0.0) for one in candidates.values()])
        if seconds.max() < 1e-3 * longest:
            continue
        traces.append(
            {
                "type": "bar", "orientation": "h", "x": seconds, "y": names, "name": term,
                "marker": {"color": look.color, "line": {"width": 1, "color": "rgba(128,128,128,.4)"},
                           "pattern": {"shape": "/" if look.dash != "solid" else "", "size": 7,
                                       "fillmode": "overlay", "fgcolor": "#ffffff",
                                       "fgopacity": 0.3}},
                "hovertemplate": f"{term}: %{{x:.4g}} s<extra>%{{y}}</extra>",
            }
        )  # fmt: skip
    return charts.figure(
        traces,
        {"title": {"text": "time in a step [s]"}, "range": [0, 1.02 * longest],
         "gridcolor": charts.GRID, "zeroline": False, "automargin": True},
        {"autorange": "reversed", "showgrid": False, "automargin": True, "type": "category"},
        height=150 + 52 * len(names),
        hovermode="closest",
        barmode="stack",
        bargap=0.3,
        legend={"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0, "traceorder": "normal",
                "font": {"size": 12}},
    )  # fmt: skip
