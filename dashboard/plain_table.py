"""A table as plain HTML: a data grid takes longer to draw than a slider may take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape


def table_html(rows: Sequence[Mapping[str, str]]) -> str:
    """Rows with a heading; whatever stands in them is shown, never run."""
    edge = "border-bottom:1px solid rgba(128,140,155,.3);padding:5px 14px 5px 0;text-align:left"
    head = "".join(f'<th style="{edge};font-weight:600">{escape(name)}</th>' for name in rows[0])
    body = "".join(
        "<tr>" + "".join(f'<td style="{edge};{_wrap(cell)}">{escape(cell)}</td>' for cell in cells)
        for cells in (row.values() for row in rows)
    )
    return (
        '<div style="overflow-x:auto;font-size:.86rem"><table style="border-collapse:collapse;'
        f'min-width:60%"><thead><tr style="white-space:nowrap">{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _wrap(cell: str) -> str:
    """A long text may break into lines, a number may not."""
    return "min-width:11em" if len(cell) > 40 else "white-space:nowrap"
