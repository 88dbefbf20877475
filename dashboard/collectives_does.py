"""What each collective does, as a picture: who holds which part before, and who after."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dashboard import charts, theme
from dashboard.charts import Figure
from roofline import semantics

Held = list[Any]


def _from_first(operation: Callable[..., Held]) -> Callable[[Held], Held]:
    return lambda ranks: operation(ranks, 0)


DOES: dict[str, tuple[Callable[[Held], Held], Callable[..., Held]]] = {
    "all-gather": (semantics.all_gather, semantics.all_gather),
    "reduce-scatter": (semantics.reduce_scatter, semantics.reduce_scatter),
    "all-reduce": (semantics.all_reduce, semantics.all_reduce),
    "all-to-all": (semantics.all_to_all, semantics.all_to_all),
    "broadcast": (_from_first(semantics.broadcast), semantics.broadcast),
    "reduce": (_from_first(semantics.reduce), semantics.reduce),
    "scatter": (lambda ranks: semantics.scatter(ranks[0], len(ranks)), semantics.scatter),
    "gather": (_from_first(semantics.gather), semantics.gather),
    "point-to-point": (semantics.send_recv_ring, semantics.send_recv_ring),
}
ONE_PART = ("all-gather", "gather")  # what a rank begins with; else one part for every rank
FROM_ROOT = ("broadcast", "scatter")  # only the root's array matters
LETTERS = "ABCDEFGH"
SUM = "#6b7684"


def sentence(op: str) -> str:
    """The definition in one sentence."""
    text = DOES[op][1].__doc__ or ""
    return " ".join(text.split("\n\n")[0].split())


def before(op: str, count: int) -> Held:
    """What ``count`` ranks hold at first: letters for ranks, numbers for parts."""
    parts = 1 if op in ONE_PART else count
    return [
        np.array([f"{letter}{part}" for part in range(parts)], dtype=object)
        for letter in LETTERS[:count]
    ]


def after(op: str, count: int) -> Held:
    """What they hold then, by the very definition; None where it leaves nothing."""
    return DOES[op][0](before(op, count))


def figure(op: str, count: int) -> Figure:
    """Before and after side by side: ranks down, parts across, a colour for who they came from."""
    first = before(op, count)
    if op in FROM_ROOT:
        first = [first[0], *[None] * (count - 1)]
    last = after(op, count)
    traces = [_grid(first, count, ""), _grid(last, count, "2")]
    hidden = {"showgrid": False, "zeroline": False, "showticklabels": False, "ticks": ""}
    rows = [f"rank {rank}" for rank in range(count)]
    ranks = hidden | {
        "showticklabels": True,
        "tickvals": list(range(count)),
        "ticktext": rows,
        "range": [count - 0.5, -0.5],
        "automargin": True,
    }
    wide = {"range": [-0.5, count - 0.5]}
    return charts.figure(
        traces,
        hidden | wide | {"title": {"text": "before"}, "domain": [0, 0.46], "side": "top"},
        ranks,
        height=70 + 52 * count,
        hovermode="closest",
        xaxis2=hidden | wide | {"title": {"text": "after"}, "domain": [0.54, 1], "side": "top"},
        yaxis2=ranks | {"anchor": "x2", "showticklabels": False},
        margin={"l": 10, "r": 10, "t": 40, "b": 8},
    )


def _grid(held: Held, count: int, axis: str) -> Figure:
    paints = [*theme.SEQUENCE[:count], SUM]
    cells = [[_cell(array, part, count) for part in range(count)] for array in held]
    return {
        "type": "heatmap",
        "z": [[value for value, _, _ in row] for row in cells],
        "text": [[text for _, text, _ in row] for row in cells],
        "customdata": [[long for _, _, long in row] for row in cells],
        "texttemplate": "%{text}",
        "textfont": {"size": 15, "color": "#ffffff"},
        "hovertemplate": "rank %{y}: %{customdata}<extra></extra>",
        "zmin": -0.5,
        "zmax": count + 0.5,
        "colorscale": _steps(paints),
        "showscale": False,
        "xgap": 3,
        "ygap": 8,
        "hoverongaps": False,
        "xaxis": f"x{axis}",
        "yaxis": f"y{axis}",
    }


def _cell(array: Any, part: int, count: int) -> tuple[float, str, str]:
    """Colour, short and long text of one part; a sum's string is all of its addends."""
    if array is None or part >= len(array):
        return float("nan"), "", ""
    text = str(array[part])
    if len(text) > 2:
        addends = [text[i : i + 2] for i in range(0, len(text), 2)]
        return float(count), f"Σ{text[1]}", " + ".join(addends)
    return float(LETTERS.index(text[0])), text, text


def _steps(paints: list[str]) -> list[list[Any]]:
    """A colour scale without shades between its colours."""
    edges = np.linspace(0, 1, len(paints) + 1)
    return [
        [float(edge), paint] for i, paint in enumerate(paints) for edge in (edges[i], edges[i + 1])
    ]
