"""What the collectives page shows, without streamlit: sweeps over message size, tiers, words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dashboard import charts, theme
from dashboard.charts import Figure
from roofline.collectives import (
    COLLECTIVES,
    Collective,
    CollectiveTime,
    bus_bandwidth,
    collective,
    nccl_size,
)
from roofline.groups import Group, aligned, spans
from roofline.machine import TierLike
from roofline.nccl_log import Run, median_error
from roofline.units import GIB, KIB, MIB, Bytes, Num, show

CUSTOM = "custom"
SIZES = 2.0 ** np.linspace(10, 34, 49)
STOPS = 2.0 ** np.arange(10, 35)


def size_label(nbytes: float) -> str:
    """A message size as one says it: 1 KiB, 64 MiB, 16 GiB.

    >>> size_label(65536)
    '64 KiB'
    """
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if nbytes >= unit:
            return f"{nbytes / unit:.4g} {name}"
    return f"{nbytes:.4g} B"


LABELS = {size_label(size): float(size) for size in STOPS}


@dataclass(frozen=True)
class Setting:
    """A group on some tiers, and how its collectives run."""

    tiers: tuple[TierLike, ...]
    group: Group
    options: Mapping[str, Any] = field(default_factory=dict)

    def at(self, op: Collective, size: Bytes) -> CollectiveTime:
        """``op`` on a message of nccl-tests' ``size``."""
        return collective(op, self.whole(op, size), self.group, self.tiers, **self.options)

    def whole(self, op: Collective, size: Bytes) -> Bytes:
        """The whole array V that a message size stands for. [B]"""
        return size / nccl_size(op, 1.0, self.group.size)

    def bus(self, op: Collective, size: Bytes, seconds: Num) -> Num:
        """Bus bandwidth; nan where nothing moves. [B/s]"""
        moving = np.where(np.greater(seconds, 0), seconds, np.nan)
        return bus_bandwidth(op, size, self.group.size, moving)

    def sweep(self, op: Collective) -> NDArray[np.float64]:
        """Times of ``op`` over all message sizes; nan where nothing moves. [s]"""
        seconds = np.asarray(self.at(op, SIZES).seconds)
        return np.where(seconds > 0, seconds, np.nan) * np.ones_like(SIZES)


@dataclass(frozen=True)
class Measured:
    """A measured run and what this setting says of its sizes."""

    run: Run
    predicted: NDArray[np.float64]

    @property
    def error(self) -> float:
        """Median relative error of the prediction."""
        return median_error(self.predicted, self.run.seconds)


def look(op: Collective) -> theme.Look:
    """One colour and dash per collective, wherever it is drawn."""
    return theme.look(list(COLLECTIVES).index(op.name), op.name)


def levels(tiers: Sequence[TierLike]) -> dict[str, Group]:
    """Groups that one asks for by name: each unit filled, and one rank a node across them all."""
    found, unit = {}, 1
    for tier in tiers:
        unit *= int(tier.degree)
        found[tier.name] = Group(unit)
    node = int(tiers[0].degree)
    if len(tiers) > 1 and node > 1:
        found[f"one GPU per {tiers[0].name}"] = Group(unit // node, node)
    return found


def words(setting: Setting) -> list[str]:
    """The group at each tier that it crosses, one sentence a tier."""
    group, child, said = setting.group, "GPU", []
    for reach in spans(group, setting.tiers):
        degree, members, sharing = (int(x) for x in (reach.degree, reach.members, reach.sharing))
        if degree > 1:
            rate = show(float(reach.bandwidth()), "B/s")
            each = f", {members:,} ranks in each" if members > 1 else ""
            text = f"**{reach.tier.name}**: {degree:,} {plural(child)}{each}; {rate} out of each"
            lanes = int(reach.lanes())
            if sharing > 1:
                text += f", shared by {sharing:,} sibling groups that leave it together"
            elif lanes > 1:
                text += f", of which the group's own network cards carry one in {lanes:,}"
            said.append(text)
        child = reach.tier.name
    return said or ["one rank has nobody to talk to"]


def plural(noun: str) -> str:
    """More than one of it; names of tiers are nouns."""
    return noun + ("es" if noun.endswith(("s", "x", "ch")) else "s")


def straddles(setting: Setting) -> str:
    """What is wrong with a group that does not fill its units evenly; empty if nothing is."""
    if aligned(setting.group, setting.tiers):
        return ""
    group = setting.group
    return (
        f"{group.size:,.0f} ranks, {group.stride:,.0f} apart, do not fill whole units or equal "
        "parts of them: some groups straddle more units than others. The numbers are those of a "
        "group that is charged for every unit it touches."
    )


BADGE = (
    f'<span style="border:1px solid {theme.CROSSOVER};color:{theme.CROSSOVER};border-radius:9px;'
    'padding:0 6px;font-size:.72rem">binds</span>'
)


def bars(time: CollectiveTime) -> str:
    """How long each tier's links are busy, as bars that need no script; the binding one named."""
    longest = max(map(float, time.by_tier), default=0.0)
    lines = [] if longest else ["nothing moves"]
    for tier, seconds in zip(time.tiers, map(float, time.by_tier), strict=True):
        if seconds == 0:
            continue
        binds = tier == str(time.binding)
        width = 100 * seconds / longest
        paint = theme.CROSSOVER if binds else "rgba(128,140,155,0.55)"
        name = f"<b>{escape(tier)}</b> {BADGE}" if binds else escape(tier)
        lines.append(
            f'<div title="{escape(tier)}: {seconds:.6g} s" style="font-size:.8rem;margin:3px 0">'
            f'<div style="display:flex;justify-content:space-between;gap:8px"><span>{name}</span>'
            f"<span>{show(seconds, 's')}</span></div>"
            '<div style="background:rgba(128,140,155,.18);border-radius:3px;height:7px">'
            f'<div style="width:{width:.1f}%;background:{paint};border-radius:3px;height:7px">'
            "</div></div></div>"
        )
    if float(time.latency) > 0:
        lines.append(
            f'<div style="font-size:.8rem;margin-top:5px;opacity:.8" title="{time.latency:.6g} s">'
            f"+ latency {show(float(time.latency), 's')}</div>"
        )
    return "".join(lines)


def size_axis() -> Figure:
    """Message sizes as people name them."""
    ticks = STOPS[::4]
    return charts.axis("message size", SIZES, decades=False) | {
        "tickvals": ticks,
        "ticktext": [size_label(tick) for tick in ticks],
        "range": [np.log10(SIZES[0]), np.log10(SIZES[-1])],
        "unifiedhovertitle": {"text": "<b>%{x:,.0f} B</b>"},
        "ticklabelstandoff": 5,
    }


def linear_axis(title: str, values: Any, unit: str) -> Figure:
    """An axis from zero with round ticks in a person's units."""
    finite = np.asarray(values, float)
    high = float(np.max(finite[np.isfinite(finite)], initial=0.0)) or 1.0
    base = 10.0 ** np.floor(np.log10(high))
    step = next(base * s for s in (0.2, 0.25, 0.5, 1, 2, 5) if high / (base * s) <= 6)
    ticks = np.arange(0, high * 1.1 + step, step)
    return charts.axis(title, [0.0, high], log=False) | {
        "range": [0, high * 1.06],
        "tickvals": ticks,
        "ticktext": [show(tick, unit) for tick in ticks],
    }


def curve(y: Any, look: theme.Look, unit: str, **more: Any) -> Figure:
    """One curve over all message sizes."""
    return charts.line(SIZES, y, look, unit, **more)


def points(x: Any, y: Any, run: Run, unit: str) -> Figure:
    """Measured values as crosses of their own colour."""
    label = f"{theme.MEASURED.label} {run.operation}"
    return {
        "type": "scatter",
        "mode": "markers",
        "x": np.asarray(x, float),
        "y": np.asarray(y, float),
        "name": label,
        "marker": {
            "symbol": theme.MEASURED.symbol,
            "size": 8,
            "color": theme.MEASURED.color,
            "line": {"width": 1},
        },
        "text": [show(value, unit) for value in y],
        "hovertemplate": "%{text}<extra>" + label + "</extra>",
    }


def time_figure(
    setting: Setting, ops: Sequence[Collective], size: float, measured: Sequence[Measured] = ()
) -> Figure:
    """Time of each collective against message size, measured points on top."""
    curves = {op.name: setting.sweep(op) for op in ops}
    traces = [curve(curves[op.name], look(op), "s") for op in ops]
    traces += [points(m.run.size, m.run.seconds, m.run, "s") for m in measured]
    values = np.concatenate([*curves.values(), *(m.run.seconds for m in measured)])
    return charts.figure(
        traces, size_axis(), charts.axis("time", values, "s"), height=400, shapes=[here(size)]
    )


def bus_figure(
    setting: Setting, ops: Sequence[Collective], size: float, measured: Sequence[Measured] = ()
) -> Figure:
    """Bus bandwidth against message size: the ramp of latency, then what the slowest tier gives."""
    curves = {op.name: setting.bus(op, SIZES, setting.sweep(op)) for op in ops}
    traces = [curve(curves[op.name], look(op), "B/s") for op in ops]
    traces += [points(m.run.size, m.run.busbw, m.run, "B/s") for m in measured]
    values = np.concatenate([*curves.values(), *(m.run.busbw for m in measured)])
    return charts.figure(
        traces,
        size_axis(),
        linear_axis("bus bandwidth", values, "B/s"),
        height=400,
        shapes=[here(size)],
    )


def here(size: float) -> Figure:
    """The message size of the slider."""
    return {
        "type": "line", "xref": "x", "yref": "paper", "x0": size, "x1": size, "y0": 0, "y1": 1,
        "line": {"color": theme.BUBBLE.color, "width": 1.5, "dash": "dot"},
    }  # fmt: skip


def table(setting: Setting, ops: Sequence[Collective]) -> dict[str, Any]:
    """The curves as columns for a download."""
    columns: dict[str, Any] = {"message size [B]": SIZES}
    for op in ops:
        seconds = setting.sweep(op)
        columns[f"{op.name} time [s]"] = seconds
        columns[f"{op.name} bus bandwidth [B/s]"] = setting.bus(op, SIZES, seconds)
        columns[f"{op.name} binding tier"] = np.broadcast_to(
            setting.at(op, SIZES).binding, SIZES.shape
        )
    return columns


def level_rows(setting: Setting, ops: Sequence[Collective], size: float) -> list[dict[str, str]]:
    """The same message on every group that has a name: time, bus bandwidth, the tier that binds."""
    rows = []
    for name, group in levels(setting.tiers).items():
        there = Setting(setting.tiers, group, setting.options)
        row = {"group fills": name, "ranks": f"{int(group.size):,}"}
        for op in ops:
            time = there.at(op, size)
            bus = float(there.bus(op, size, float(time.seconds)))
            row[op.name] = " · ".join(
                (show(float(time.seconds), "s"), show(bus, "B/s"), str(time.binding) or "–")
            )
        rows.append(row)
    return rows


def compare(run: Run, setting: Setting) -> Measured:
    """A measured run against its collective, on the setting's group if that has as many ranks.

    Raises:
        ValueError: when the machine has not that many GPUs.
    """
    group = setting.group
    run = run.out_of_place
    if run.ranks is not None and run.ranks != group.size:
        group = Group(run.ranks)
    there = Setting(setting.tiers, group, setting.options)
    return Measured(run, np.asarray(there.at(COLLECTIVES[run.operation], run.size).seconds))
