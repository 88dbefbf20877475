"""A plan for people: one line, a table, a frame, HTML for a notebook."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING, Any

from roofline.describe import describe
from roofline.limits import NAMED
from roofline.space import CHOICES
from roofline.units import show

if TYPE_CHECKING:
    from roofline.planner import Plan
    from roofline.ranking import Rows

SHOWN = 10  # layouts of a table


def headline(plan: Plan) -> str:
    """The answer in a sentence or two."""
    asked = plan.question
    what = f"{asked.model.name} on {asked.gpus:,} × {asked.cluster.accelerator.title}"
    best = plan.best
    if best is None:
        need = float(plan.smallest["memory"][0])
        return (
            f"{what}: none of {plan.seen:,} layouts fits {show(asked.room, 'B')} a GPU; the smallest, "
            f"{describe(plan.layout(0, plan.smallest))}, needs {show(need, 'B')}"
        )
    seconds, memory = float(best.time.seconds), float(best.memory.total)
    return (
        f"{what}: {describe(best.layout)}: {show(seconds, 's')} a step, "
        f"{show(asked.tokens / seconds / asked.gpus)} tokens/s a GPU, "
        f"{show(memory, 'B')} of {show(asked.cluster.hbm_bytes, 'B')}"
    )


def table(plan: Plan, count: int = SHOWN, rows: Rows | None = None) -> list[dict[str, Any]]:
    """The first places of the ranking, or of other rows of the plan, a row each, in SI units."""
    ranked = plan.ranked if rows is None else rows
    found = []
    for place in range(min(count, len(ranked.get("seconds", ())))):
        layout = plan.layout(place, ranked)
        number = int(ranked["place"][place]) if "place" in ranked else place + 1
        row: dict[str, Any] = {"place": number, "dp": float(layout.dp)}
        row |= {name: _said(name, float(ranked[name][place])) for name in CHOICES}
        seconds = float(ranked["seconds"][place])
        row |= {
            "step_s": seconds,
            "slower": seconds / float(ranked["seconds"][0]) - 1,
            "memory_bytes": float(ranked["memory"][place]),
            "complexity": float(ranked["complexity"][place]),
            "layout": describe(layout),
        }
        found.append(row)
    return found


def frame(plan: Plan) -> Any:
    """All kept places of the ranking as a pandas frame."""
    from pandas import DataFrame  # type: ignore[import-untyped]

    return DataFrame(table(plan, len(plan.ranked.get("seconds", ()))))


def text(plan: Plan) -> str:
    """Headline, counts and the first places, one of each kind."""
    lines = [headline(plan), f"{plan.seen:,} layouts, {plan.fitting:,} fit"]
    for row in table(plan, 5, plan.distinct):
        lines.append(f"{row['place']:3d}  {show(row['step_s'], 's'):>9}  {row['layout']}")
    lines += _uncalibrated(plan)
    return "\n".join(lines)


def html(plan: Plan) -> str:
    """The same as a table of HTML."""
    head = "".join(f"<th>{name}</th>" for name in ("", "layout", "step", "slower", "memory"))
    body = "".join(_html_row(row) for row in table(plan, SHOWN, plan.distinct))
    said = "".join(f"<p>{escape(line)}</p>" for line in _uncalibrated(plan))
    return f"<p><b>{escape(headline(plan))}</b></p><table><tr>{head}</tr>{body}</table>{said}"


def _uncalibrated(plan: Plan) -> list[str]:
    """That the times are no forecast, where they are none."""
    return [plan.best.basis] if plan.best is not None and plan.best.fit is None else []


def _html_row(row: Mapping[str, Any]) -> str:
    cells = (
        row["place"],
        escape(row["layout"]),
        show(row["step_s"], "s"),
        f"{row['slower']:+.1%}",
        show(row["memory_bytes"], "B"),
    )
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _said(name: str, value: float) -> Any:
    if name in NAMED:
        return next(word for word, number in NAMED[name].items() if number == value)
    return int(value) if value == int(value) and not name.endswith("share") else value
