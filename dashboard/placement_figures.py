"""What the placement page shows, without streamlit: the map of ranks, its groups, ways out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, prod
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dashboard import charts, theme
from dashboard.charts import Figure
from roofline.machine import TierLike
from roofline.placement import AxisPlacement, Mesh, placed

Ints = NDArray[np.int64]
Paint = Literal["group", "position"]

AXES = {
    "TP": ("tensor parallel", "circle"),
    "CP": ("context parallel", "hexagon"),
    "EP": ("expert parallel", "triangle-up"),
    "DP": ("data parallel", "square"),
    "PP": ("pipeline parallel", "diamond"),
}
MOST = 2048  # cells of a map
FAINT = 0.5  # how strong cells outside the groups of the picked rank are
LINES = 32  # rows of a block, where no tier says how many belong together
TINTS = (0.0, 0.42, -0.4)  # lighter, darker: three rounds of the eight colours
SCALE = ("#ecc94b", "#a8b95a", "#63a67c", "#3790a0", "#3d70b5", "#5b4ea8", "#6b2f8a")


@lru_cache(maxsize=32)
def axes(layout: Mesh, tiers: tuple[TierLike, ...]) -> tuple[AxisPlacement, ...]:
    """Where every axis lies; kept, since most controls leave it as it is."""
    return placed(layout, tiers)


def rank_formula(layout: Mesh) -> str:
    """How a rank follows from its coordinates: rank = PP·8 + DP·4 + TP."""
    terms = [
        axis if layout.stride(axis) == 1 else f"{axis}·{layout.stride(axis):,}"
        for axis in reversed(layout.axes)
        if layout.degree(axis) > 1
    ]
    text = "rank = " + (" + ".join(terms) or "0")
    return text.replace(" ", "\u00a0")  # one line


def headline(found: Sequence[AxisPlacement], tiers: Sequence[TierLike]) -> str:
    """Which axis stays where, in one line."""
    node = tiers[0].name
    said = []
    for row in found:
        if row.degree > 1:
            outside = [name for name in row.crossed if name != node]
            where = f"crosses the {' and the '.join(outside)}" if outside else f"stays in a {node}"
            where = where if row.aligned else "straddles"
            said.append(f"**{row.axis} {row.degree:,}** {where}")
    return "; ".join(said) + "." if said else "**One rank**: nobody to talk to."


def group_index(layout: Mesh, axis: str) -> Ints:
    """Which group of ``axis`` each rank is in, in the order of the library's list of groups."""
    groups = layout.groups(axis)
    index = np.empty(layout.size, dtype=np.int64)
    index[groups.ravel()] = np.repeat(np.arange(len(groups)), groups.shape[1])
    return index


@dataclass(frozen=True)
class Grid:
    """Cells on the map: a GPU each, or a whole unit where there are too many GPUs."""

    level: int  # 0: a cell is a GPU; n: a unit of tier n-1
    gpus: int  # in a cell
    rows: Ints
    columns: Ints
    blocks: tuple[tuple[float, float, str], ...]  # column, row and name of each block

    @property
    def shape(self) -> tuple[int, int]:
        """Lines and columns, gaps included."""
        return int(self.rows.max()) + 1, int(self.columns.max()) + 1


@lru_cache(maxsize=32)
def grid(gpus: int, tiers: tuple[TierLike, ...]) -> Grid:
    """Units of the next tier as rows, of the one after as blocks side by side."""
    sizes = [prod(int(tier.degree) for tier in tiers[:i]) for i in range(len(tiers) + 1)]
    level = next((i for i, size in enumerate(sizes) if gpus / size <= MOST), len(sizes) - 1)
    level = min(level, len(tiers) - 1)
    cells = np.arange(ceil(gpus / sizes[level]))
    width = int(tiers[level].degree)
    line = width if width <= 72 else LINES
    per_block = int(tiers[level + 1].degree) if level + 2 < len(tiers) else 0
    tall = ceil(width / line) * (per_block or ceil(len(cells) / width))
    wrapped = not per_block or tall > 2 * LINES
    tall = min(tall, LINES) if wrapped else tall
    row, column = cells // line, cells % line
    block, row = row // tall, row % tall
    count = int(block.max()) + 1
    across = min(count, max(1, round((2.2 * count * (tall + 2) / (line + 1)) ** 0.5)))
    if across * 2 > count:
        across = count if count <= 8 else across
    name = "" if wrapped or count == 1 else tiers[level + 1].name
    blocks = [
        ((b % across) * (line + 1), (b // across) * (tall + 2), f"{name} {b}" if name else "")
        for b in range(count)
    ]
    left = np.array([x for x, _, _ in blocks])
    top = np.array([y for _, y, _ in blocks])
    return Grid(level, sizes[level], row + top[block], column + left[block], tuple(blocks))


def palette() -> list[str]:
    """Eight colours in three shades, so that groups next to each other differ."""
    return [_shade(color, tint) for tint in TINTS for color in theme.SEQUENCE]


def _shade(color: str, tint: float) -> str:
    channels = [int(color[i : i + 2], 16) for i in (1, 3, 5)]
    to = 255 if tint > 0 else 0
    return "#" + "".join(f"{round(c + (to - c) * abs(tint)):02x}" for c in channels)


def map_figure(
    layout: Mesh, tiers: tuple[TierLike, ...], axis: str, paint: Paint, rank: int, ink: str
) -> Figure:
    """Every GPU in its place, painted by its group (or its place in it); one rank's groups marked.

    ``ink`` is the colour of text on the page's background.

    Where there are too many GPUs, a cell is a unit and has the colour of its first rank.
    """
    cells = grid(layout.size, tiers)
    first = np.arange(len(cells.rows)) * cells.gpus
    places = layout.coordinates(first)
    value = places[axis] if paint == "position" else group_index(layout, axis)[first]
    lines, wide = cells.shape
    z, faint, hover, ranks = (np.full((lines, wide), None, dtype=object) for _ in range(4))
    text = np.full((lines, wide), "", dtype=object)
    at = (cells.rows, cells.columns)
    paints = _paints(paint, layout.degree(axis))
    value = value % len(paints) if paint == "group" else value * len(paints) // layout.degree(axis)
    chosen = _chosen(layout, cells, rank)
    faint[at] = value
    z[cells.rows[chosen], cells.columns[chosen]] = value[chosen]
    hover[at] = list(_hovers(layout, tiers, cells, first))
    ranks[at] = first
    text[at] = list(_labels(cells, first, places))
    strong: Figure = {
        "type": "heatmap",
        "z": z.tolist(),
        "hoverinfo": "skip",
        "showscale": False,
        "zmin": -0.5,
        "zmax": len(paints) - 0.5,
        "colorscale": _steps(paints),
        "xgap": 1,
        "ygap": 1,
    }
    heat = strong | {
        "z": faint.tolist(),
        "opacity": FAINT,
        "text": text.tolist(),
        "texttemplate": "%{text}",
        "textfont": {"size": 11, "color": ink},
        "customdata": np.stack([hover, ranks], axis=-1).tolist(),
        "hoverinfo": "text",
        "hovertemplate": "%{customdata[0]}<extra></extra>",
        "hoverongaps": False,
    }
    return _framed([strong, heat, *_marks(layout, cells, rank)], cells)


def _chosen(layout: Mesh, cells: Grid, rank: int) -> NDArray[np.bool_]:
    """Cells that hold a rank of one of the groups of ``rank``."""
    chosen = np.zeros(len(cells.rows), dtype=bool)
    for axis in layout.axes:
        chosen[members_of(layout, axis, rank) // cells.gpus] = True
    return chosen


def _paints(paint: Paint, degree: int) -> list[str]:
    """A colour for each group in turn, or a scale from the first to the last place."""
    if paint == "group":
        return palette()
    points = np.linspace(0, len(SCALE) - 1, min(degree, len(SCALE)))
    return [SCALE[round(p)] for p in points] if degree <= len(SCALE) else _blend(degree)


def _blend(degree: int) -> list[str]:
    """As many colours of the scale as there are places."""
    rgb = np.array([[int(c[i : i + 2], 16) for i in (1, 3, 5)] for c in SCALE], float)
    at = np.linspace(0, len(SCALE) - 1, min(degree, 64))
    mixed = np.stack([np.interp(at, np.arange(len(SCALE)), rgb[:, i]) for i in range(3)], axis=1)
    return [f"#{r:02x}{g:02x}{b:02x}" for r, g, b in mixed.round().astype(int)]


def _steps(paints: Sequence[str]) -> list[list[Any]]:
    """A colour scale without shades between its colours."""
    edges = np.linspace(0, 1, len(paints) + 1)
    return [[float(e), p] for i, p in enumerate(paints) for e in (edges[i], edges[i + 1])]


def _hovers(layout: Mesh, tiers: Sequence[TierLike], cells: Grid, first: Ints) -> Iterator[str]:
    """What a cell is: its ranks, where they sit, their coordinates."""
    places = layout.coordinates(first)
    units = [(tier.name, first // _size(tiers, i + 1)) for i, tier in enumerate(tiers)]
    shown = [(name, at.tolist()) for name, at in units[max(cells.level - 1, 0) : -1] or units]
    coordinates = [(axis, at.tolist()) for axis, at in places.items()]
    for i, rank in enumerate(first.tolist()):
        last = f" to {rank + cells.gpus - 1:,}" if cells.gpus > 1 else ""
        where = ", ".join(f"{name} {at[i]:,}" for name, at in shown)
        what = " ".join(f"{axis} {at[i]:,}" for axis, at in coordinates)
        yield f"<b>rank {rank:,}{last}</b><br>{where}<br>{'first: ' if last else ''}{what}"


def _labels(cells: Grid, first: Ints, places: Mapping[str, Ints]) -> Iterator[str]:
    """Text in the cells, as far as it fits."""
    few, some = len(first) <= 32 and cells.level == 0, _labelled(cells)
    for i, rank in enumerate(first.tolist()):
        what = " ".join(f"{axis[0]}{int(at[i])}" for axis, at in places.items())
        yield f"<b>{rank}</b><br>{what}" if few else str(rank) if some else ""


def _labelled(cells: Grid) -> bool:
    return cells.level == 0 and len(cells.rows) <= 128


def _size(tiers: Sequence[TierLike], level: int) -> int:
    return prod(int(tier.degree) for tier in tiers[:level])


def _marks(layout: Mesh, cells: Grid, rank: int) -> Iterator[Figure]:
    """The groups of one rank: a sign of its own for every axis, white with a dark line."""
    size = 13 if len(cells.rows) <= 64 else 9 if len(cells.rows) <= 512 else 7
    for axis in layout.axes:
        if layout.degree(axis) == 1:
            continue
        members = np.unique(members_of(layout, axis, rank) // cells.gpus)
        members = members[members != rank // cells.gpus]
        yield _points(cells, members, f"{axis} group of {rank:,}", AXES[axis][1], size)
    here = np.array([rank // cells.gpus])
    yield _points(cells, here, f"rank {rank:,}", "star", size + 6)


def _points(cells: Grid, members: Ints, name: str, symbol: str, size: int) -> Figure:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": cells.columns[members] - (0.33 if _labelled(cells) else 0.0),
        "y": cells.rows[members],
        "customdata": np.stack([members, members * cells.gpus], axis=-1),
        "name": name,
        "marker": {
            "symbol": symbol,
            "size": size,
            "color": "#ffffff",
            "line": {"color": "#11161d", "width": 1.5},
        },
        "hoverinfo": "skip",
    }


def members_of(layout: Mesh, axis: str, rank: int) -> Ints:
    """The group of ``axis`` that ``rank`` is in."""
    place = {name: int(at) for name, at in layout.coordinates(rank).items()}
    return layout.rank(**(place | {axis: np.arange(layout.degree(axis))}))


def _framed(traces: list[Figure], cells: Grid) -> Figure:
    lines, wide = cells.shape
    named = [block for block in cells.blocks if block[2]]
    hidden = {"showgrid": False, "zeroline": False, "showticklabels": False, "ticks": ""}
    notes = [
        {
            "x": x - 0.5, "y": y - 1.1, "text": name, "showarrow": False, "xanchor": "left",
            "font": {"size": 12, "color": theme.BUBBLE.color},
        }
        for x, y, name in named
        if len(named) <= 24
    ]  # fmt: skip
    cell = min(40, max(9, 560 / lines))
    return charts.figure(
        traces,
        hidden | {"range": [-0.7, wide - 0.3]},
        hidden | {"range": [lines - 0.3, -1.9 if named else -0.7]},
        height=int(min(640, 90 + cell * (lines + 1))),
        hovermode="closest",
        annotations=notes,
        margin={"l": 4, "r": 4, "t": 30, "b": 4},
    )


def what_is_drawn(layout: Mesh, tiers: tuple[TierLike, ...]) -> str:
    """What a cell, a row and a block are."""
    cells = grid(layout.size, tiers)
    cell = "GPU" if cells.level == 0 else tiers[cells.level - 1].name
    row = tiers[cells.level].name
    said = f"A cell is a {cell}, a row {'part of ' if int(tiers[cells.level].degree) > 72 else ''}"
    said += f"a {row}"
    if cells.blocks[0][2]:
        said += f", a block a {tiers[cells.level + 1].name}"
    if cells.level:
        said += (
            f". {layout.size:,} GPUs are too many to draw: {cells.gpus:,} share a cell, which has "
            "the colour of the first"
        )
    return said + "."


def table(found: Sequence[AxisPlacement], layout: Mesh, rank: int) -> list[dict[str, str]]:
    """Each axis: degree, stride, groups, links used, siblings, fit, and one rank's group."""
    rows = []
    for row in found:
        used = [crossing for crossing in row.crossings if crossing.children > 1]
        group = members_of(layout, row.axis, rank)
        shown = ", ".join(f"{member:,}" for member in group[:4])
        rows.append(
            {
                "axis": f"{row.axis} ({AXES[row.axis][0]})",
                "degree": f"{row.degree:,}",
                "stride": f"{row.stride:,}",
                "groups": f"{row.groups:,}",
                "tiers crossed": " · ".join(f"{c.tier} x{c.children:,}" for c in used) or "–",
                "siblings on an uplink": " · ".join(f"{c.siblings:,}" for c in used) or "–",
                "fit": "✓ aligned" if row.aligned else "✗ straddles",
                f"group of rank {rank:,}": shown + (", …" if len(group) > 4 else ""),
            }
        )
    return rows


def rank_table(layout: Mesh, tiers: Sequence[TierLike]) -> dict[str, Any]:
    """Every rank with its units and coordinates, for a download."""
    ranks = np.arange(layout.size)
    units = {tier.name: ranks // _size(tiers, i + 1) for i, tier in enumerate(tiers)}
    groups = {f"{axis} group": group_index(layout, axis) for axis in layout.axes}
    return {"rank": ranks} | units | layout.coordinates(ranks) | groups
