"""Pieces that several pages share: charts with downloads, formulas with their sources, curves as a table."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import streamlit as st

from roofline.bound import Bound, Term
from roofline.units import show


def downloads(name: str, table: Callable[[], Mapping[str, Any]], key: str) -> None:
    """CSV and JSON of what is plotted, made when asked for. Columns are named with their SI units."""
    left = right = st.container(horizontal=True, gap="small")
    options: dict[str, Any] = {
        "on_click": "ignore",
        "type": "tertiary",
        "icon": ":material/download:",
    }
    left.download_button(
        "CSV", lambda: as_csv(table()), f"{name}.csv", "text/csv", key=f"{key}-csv", **options
    )
    right.download_button(
        "JSON",
        lambda: as_json(table()),
        f"{name}.json",
        "application/json",
        key=f"{key}-json",
        **options,
    )


def sources(title: str, *modules: Any, key: str = "") -> None:
    """The text of the modules that the numbers come from; with a key, not before the box is open."""
    lazy: dict[str, Any] = {"on_change": "rerun", "key": key} if key else {}
    box = st.expander(title, icon=":material/function:", **lazy)
    if not key or box.open:
        with box:
            for module in modules:
                st.code(module.__doc__, language=None)


def as_csv(table: Mapping[str, Any]) -> str:
    """Columns of equal length as CSV; a scalar column is repeated."""
    columns = np.broadcast_arrays(*map(np.atleast_1d, table.values()))
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(table)
    writer.writerows(zip(*(column.tolist() for column in columns), strict=True))
    return out.getvalue()


def as_json(table: Mapping[str, Any]) -> str:
    """The same columns as one JSON object."""
    return json.dumps(
        {name: np.asarray(column).tolist() for name, column in table.items()}, indent=1
    )


def curve(x_name: str, x: Any, bound: Bound) -> dict[str, Any]:
    """A swept bound as columns for a download."""
    terms = {f"{term.name} [s]": term.seconds for term in bound.comms}
    return {
        x_name: x,
        "T_math [s]": bound.t_math,
        **terms,
        "T_comms [s]": bound.t_comms,
        "T_lower [s]": bound.t_lower,
    }


def verdict(bound: Bound) -> None:
    """The answer in one sentence, then the numbers that decide it."""
    good = bool(bound.compute_bound)
    icon = ":material/check_circle:" if good else ":material/warning:"
    (st.success if good else st.warning)(bound.sentence(), icon=icon)
    limit = bound.threshold
    columns = st.columns([4, 4, 5, 4])
    columns[0].metric("T_math", show(float(bound.t_math), "s"), border=True)
    columns[1].metric("T_comms", show(float(bound.t_comms), "s"), border=True)
    columns[2].metric(limit.quantity, show(float(limit.actual), digits=4), border=True)
    columns[3].metric(
        "needed", show(float(limit.needed), digits=4), border=True, help=limit.because
    )
    st.caption(f"{limit.because[:1].upper()}{limit.because[1:]}.")


def formulas(bound: Bound, page_text: str, key: str) -> None:
    """Where the numbers come from: each term's formula with its value, the inequality, the text of the module.

    Only made once opened: it is most of what a page would send again at every move of a slider.
    """
    box = st.expander(
        "Formula, numbers and sources",
        icon=":material/function:",
        on_change="rerun",
        key=f"{key}-formulas",
    )
    if not box.open:
        return
    with box:
        _term("T_{math}", bound.math)
        for term in bound.comms:
            _term("T_{comms}", term)
        st.latex(_inequality(bound))
        st.code(page_text, language=None)


def _term(symbol: str, term: Term) -> None:
    number, unit = show(float(np.asarray(term.seconds)), "s").rsplit(" ", 1)
    tier = f", set by the tier *{term.tier}*" if str(term.tier) else ""
    st.latex(rf"{symbol} = {term.formula} = {number}\ \mathrm{{{unit}}}".replace("µ", r"\mu "))
    st.caption(f"{term.name}{tier} — [{term.source}]({term.source.work.url})")


def _inequality(bound: Bound) -> str:
    """The condition under which communication hides, and the two numbers that it compares here."""
    limit = bound.threshold
    relation = r"\geq" if bound.compute_bound else "<"
    have, needed = (
        show(float(side), digits=4).replace(",", "{,}") for side in (limit.actual, limit.needed)
    )
    return (
        rf"{limit.inequality} \qquad {have} \;{relation}\; {needed} \quad \text{{{limit.quantity}}}"
    )


def problems(messages: Sequence[str]) -> None:
    """Errors in a person's words, one a line."""
    for message in messages:
        st.error(message, icon=":material/error:")
