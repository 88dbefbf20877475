"""Collectives side by side, without streamlit: algorithms, ragged all-to-alls, sharded arrays."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dashboard import charts, theme
from dashboard.charts import Figure
from dashboard.collectives_figures import (
    SIZES,
    Setting,
    curve,
    here,
    linear_axis,
    size_axis,
)
from roofline import algorithms
from roofline.collectives import (
    ALL_REDUCE,
    ALL_TO_ALL,
    Collective,
    collective,
    sharded_reduce_rough,
)
from roofline.groups import Group
from roofline.machine import TierLike
from roofline.routing import Form, ragged_all_to_all, reached
from roofline.units import parse, show

DOTTED = "lines+markers"
RINGS = ("all-reduce", "all-gather", "reduce-scatter")
VARIANTS = {
    "a ring per tier": {"algorithm": "hierarchical"},
    "one ring through all": {"algorithm": "ring"},
    "tree": {"algorithm": "tree"},
    "SHARP, theory": {"in_network": "theory"},
    "SHARP, measured": {"in_network": "measured"},
}


def variants(setting: Setting, op: Collective) -> dict[str, Setting]:
    """The ways to run ``op`` on the real tiers; adding switches only where a tier has them."""
    adding = op is ALL_REDUCE and any(tier.in_network_reduction for tier in setting.tiers)
    base = {**setting.options, "algorithm": "hierarchical", "in_network": "off"}
    return {
        name: replace(setting, options=base | changed)
        for name, changed in VARIANTS.items()
        if adding or "in_network" not in changed
    }


def variants_figure(setting: Setting, op: Collective, size: float) -> Figure:
    """Time of one collective in every way, against message size, on the hierarchy."""
    curves = {name: there.sweep(op) for name, there in variants(setting, op).items()}
    traces = [
        curve(seconds, theme.look(i, name), "s") for i, (name, seconds) in enumerate(curves.items())
    ]
    times = charts.axis("time", np.concatenate(list(curves.values())), "s")
    return charts.figure(traces, size_axis(), times, height=420, shapes=[here(size)])


@dataclass(frozen=True)
class Domain:
    """Ranks that are all one link away from each other."""

    ranks: int
    link: float  # [B/s]
    latency: float  # [s]

    def rows(self, operation: str) -> dict[str, algorithms.Algorithm]:
        """Algorithms of ``operation`` that can serve so many ranks."""
        return {
            row.name: row
            for row in algorithms.ALGORITHMS
            if row.operation == operation
            and (not row.powers_of_two or self.ranks & (self.ranks - 1) == 0)
        }

    def refused(self, operation: str) -> list[str]:
        """Names of those that cannot."""
        served = self.rows(operation)
        return [
            row.name
            for row in algorithms.ALGORITHMS
            if row.operation == operation and row.name not in served
        ]

    def time(self, name: str, size: Any, ranks: Any = None) -> Any:
        """Time of one algorithm. [s]"""
        count = self.ranks if ranks is None else ranks
        return algorithms.time(name, size, count, self.link, self.latency)


def flat_figure(domain: Domain, operation: str, size: float, against: str) -> Figure:
    """Every algorithm in one flat domain, against message size or against ranks."""
    rows = domain.rows(operation)
    if against == "ranks":
        x, axis = _ranks(domain.ranks)
        times = {name: domain.time(name, size, x) for name in domain.rows(operation)}
        at = float(domain.ranks)
    else:
        x, axis, at = SIZES, size_axis(), size
        times = {name: domain.time(name, SIZES) for name in rows}
    every = [row.name for row in algorithms.ALGORITHMS if row.operation == operation]
    traces = [
        charts.line(x, seconds, theme.look(every.index(name), name), "s")
        for name, seconds in times.items()
    ]
    values = np.concatenate([np.atleast_1d(t) for t in times.values()])
    time_axis = charts.axis("time", values, "s")
    return charts.figure(traces, axis, time_axis, height=420, shapes=[here(at)])


def _ranks(most: int) -> tuple[NDArray[np.float64], Figure]:
    """Powers of two, which every algorithm serves, to beyond the ranks asked for."""
    x = 2.0 ** np.arange(1.0, max(6, int(np.ceil(np.log2(max(most, 2)))) + 2))
    axis = charts.axis("ranks", x, decades=False)
    return x, axis | {"unifiedhovertitle": {"text": "<b>%{x:,.0f} ranks</b>"}}


def flat_table(domain: Domain, operation: str, size: float) -> list[dict[str, str]]:
    """Each algorithm in numbers: time, bytes, steps, memory."""
    return [
        {
            "algorithm": name,
            "time": show(float(domain.time(name, size)), "s"),
            "bytes of the busiest rank": show(
                float(algorithms.traffic(row, size, domain.ranks)), "B"
            ),
            "steps": show(float(algorithms.steps(row, domain.ranks))),
            "messages": show(float(algorithms.messages(row, domain.ranks))),
            "memory beside the array": row.memory,
        }
        for name, row in domain.rows(operation).items()
    ]


def notes(operation: str) -> list[dict[str, str]]:
    """How each algorithm goes about it, and where that is written."""
    return [
        {"algorithm": row.name, "how": row.note, "source": str(row.source)}
        for row in algorithms.ALGORITHMS
        if row.operation == operation
    ]


@dataclass(frozen=True)
class Routed:
    """An all-to-all in which a token goes to k of the E experts only."""

    setting: Setting
    k: int
    experts: int

    def time(self, form: Form, size: Any) -> Any:
        """Time of the ragged all-to-all on padded messages of ``size``. [s]"""
        return ragged_all_to_all(
            self.setting.whole(ALL_TO_ALL, size),
            self.k,
            self.setting.group,
            self.setting.tiers,
            form=form,
            experts=self.experts,
            latency=self.setting.options.get("latency", False),
        ).seconds

    def dense(self, size: Any) -> Any:
        """The same with every destination filled. [s]"""
        return self.setting.at(ALL_TO_ALL, size).seconds

    def share(self, form: Form) -> float:
        """Share of the ranks that a token reaches."""
        n = self.setting.group.size
        return float(reached(self.k, n, form=form, experts=self.experts))


FORMS: dict[Form, theme.Look] = {
    "bound": theme.look(1, "bound min(k/N, 1)"),
    "draws": theme.look(2, "draws with repeats"),
    "distinct": theme.look(0, "exact, k distinct"),
}
DENSE = theme.look(7, "dense")


def divisors(count: int, most: int) -> list[int]:
    """Numbers of ranks over which ``count`` experts spread evenly."""
    return [n for n in range(1, min(count, most) + 1) if count % n == 0]


def routed_figure(routed: Routed, size: float) -> Figure:
    """Ragged against dense all-to-all over message size."""
    times = {name: np.asarray(routed.time(name, SIZES)) for name in FORMS}
    dense = np.asarray(routed.dense(SIZES))
    looks = [(DENSE, dense), *((FORMS[name], seconds) for name, seconds in times.items())]
    shown = [(look, np.where(seconds > 0, seconds, np.nan)) for look, seconds in looks]
    traces = [curve(seconds, look, "s") for look, seconds in shown]
    times_axis = charts.axis("time", np.concatenate([seconds for _, seconds in shown]), "s")
    return charts.figure(traces, size_axis(), times_axis, height=400, shapes=[here(size)])


def reached_figure(k: int, experts: int, ranks: int) -> Figure:
    """Share of N ranks that a token reaches, against N."""
    x = np.array(divisors(experts, experts), float)
    traces = [
        charts.line(x, reached(k, x, form=name, experts=experts), look, "", mode=DOTTED)
        for name, look in FORMS.items()
    ]
    axis = charts.axis("ranks N", x, decades=False) if len(x) > 1 else charts.axis("ranks N", [1])
    return charts.figure(
        traces,
        axis | {"unifiedhovertitle": {"text": "<b>%{x:,.0f} ranks</b>"}},
        linear_axis("share of the ranks that a token reaches", [0.0, 1.0], ""),
        height=400,
        shapes=[here(float(ranks))],
    )


@dataclass(frozen=True)
class Sharded:
    """A collective over X ranks of an array that is also sharded Y ways over another axis."""

    tiers: tuple[TierLike, ...]
    op: Collective
    size: float  # the array over all shards [B]
    inside: bool  # Y is the inner axis: its ranks are neighbours
    options: dict[str, Any]

    def time(self, ranks: Any, shards: Any) -> Any:
        """Exact time on the tiers. [s]"""
        stride = shards if self.inside else np.ones_like(np.asarray(shards, float))
        group = Group(ranks, stride)
        return collective(self.op, self.size / shards, group, self.tiers, **self.options).seconds

    def rough(self, shards: Any) -> Any:
        """The rule for paper, where the machine has a network and Y is inside. [s]"""
        return self.op.passes * sharded_reduce_rough(self.size, shards, self.tiers)

    @property
    def gpus(self) -> int:
        """GPUs of the machine."""
        return int(np.prod([int(tier.degree) for tier in self.tiers]))

    def degrees(self, most: float) -> NDArray[np.float64]:
        """Powers of two up to ``most``."""
        return 2.0 ** np.arange(0.0, int(np.floor(np.log2(max(most, 1)))) + 1)


def sharded_figure(sharded: Sharded, ranks: int, shards: int) -> Figure:
    """Time against the inner degree Y, exact and by the rule for paper."""
    y = sharded.degrees(sharded.gpus / ranks)
    exact = np.asarray(sharded.time(ranks, y)) * np.ones_like(y)
    lines = [(exact, theme.look(0, "exact, tier by tier"))]
    if sharded.inside and len(sharded.tiers) > 1:
        lines.append((sharded.rough(y), theme.look(1, "rule for paper")))
    traces = [
        charts.line(y, np.where(t > 0, t, np.nan), look, "s", mode=DOTTED) for t, look in lines
    ]
    axis = charts.axis("shards Y of the array", y if len(y) > 1 else [1, 2], decades=False)
    return charts.figure(
        traces,
        axis | {"unifiedhovertitle": {"text": "<b>sharded %{x:,.0f} ways</b>"}},
        charts.axis("time", np.concatenate([t for t, _ in lines]), "s"),
        height=400,
        shapes=[here(float(shards))],
    )


def sharded_heat(sharded: Sharded, ranks: int, shards: int) -> Figure:
    """Time for every X and Y that the machine has room for; powers of two, in one unit."""
    every = sharded.degrees(sharded.gpus)
    x, y = np.meshgrid(every[1:], every[:-1], indexing="ij")
    fits = x * y <= sharded.gpus
    times = np.full(x.shape, np.nan)
    times[fits] = sharded.time(x[fits], y[fits])
    unit = show(float(np.nanmax(times)), "s").split()[-1]
    ranks_, shards_ = ([f"{n:,.0f}" for n in axis] for axis in (every[1:], every[:-1]))
    trace = {
        "type": "heatmap",
        "x": shards_,
        "y": ranks_,
        "z": np.log10(times),
        "text": [[_in_unit(t, unit) for t in row] for row in times],
        "customdata": [[show(t, "s") for t in row] for row in times],
        "texttemplate": "%{text}",
        "textfont": {"size": 11},
        "hovertemplate": "%{y} ranks, sharded %{x} ways: %{customdata}<extra></extra>",
        "colorscale": [[0, "#f7efc0"], [0.5, "#7d7f73"], [1, "#0b2e62"]],
        "showscale": False,
        "xgap": 1,
        "ygap": 1,
        "hoverongaps": False,
    }
    frame = {"showgrid": False, "automargin": True, "type": "category"}
    return charts.figure(
        [trace],
        frame | {"title": {"text": "shards Y of the array", "standoff": 8}},
        frame | {"title": {"text": f"ranks X (cells: time in {unit})", "standoff": 8}},
        height=400,
        hovermode="closest",
        shapes=_box(shards_, f"{shards:,}", ranks_, f"{ranks:,}"),
    )


def _in_unit(seconds: float, unit: str) -> str:
    """A cell's number; the unit stands on the axis."""
    if not np.isfinite(seconds):
        return ""
    return show(seconds / parse(f"1 {unit}", "s"), digits=2)


def _box(xs: list[str], x: str, ys: list[str], y: str) -> list[Figure]:
    """A frame around the cell that the controls point at."""
    if x not in xs or y not in ys:
        return []
    left, bottom = xs.index(x) - 0.5, ys.index(y) - 0.5
    line = {"color": theme.CROSSOVER, "width": 2.5}
    corners = {"x0": left, "x1": left + 1, "y0": bottom, "y1": bottom + 1}
    return [{"type": "rect", "line": line} | corners]


def sharded_table(sharded: Sharded, ranks: int) -> dict[str, Any]:
    """The curve over Y as columns for a download."""
    y = sharded.degrees(sharded.gpus / ranks)
    columns = {"shards Y": y, "exact [s]": sharded.time(ranks, y)}
    rough = sharded.inside and len(sharded.tiers) > 1
    return columns | ({"rule for paper [s]": sharded.rough(y)} if rough else {})
