"""From a layout to the pages that look at it: its terms, its ranks, and the search for a better one."""

from __future__ import annotations

from typing import Any

import streamlit as st
from streamlit.errors import StreamlitAPIException

from dashboard import habits, layout_bar
from roofline.layout import ORDER, Layout

PAGES = "dashboard/pages"
EXPLAIN, PLACE, PLAN = f"{PAGES}/explain.py", f"{PAGES}/placement.py", f"{PAGES}/plan.py"


def explain_button(layout: Layout, framework: str, key: str) -> None:
    """Make the layout the current one, with the habits of a framework, and turn to Explain."""
    if st.button("Explain this layout", key=f"{key}-explain", icon=":material/troubleshoot:"):
        layout_bar.take(layout)
        st.session_state[habits.KEY] = framework
        _turn_to(EXPLAIN, {habits.KEY: framework, **_unusual(layout)})


def place_button(layout: Layout, key: str) -> None:
    """Turn to Placement with the layout's degrees."""
    help = "Which rank sits on which GPU, and which groups cross which level"
    if st.button("Place this layout", key=f"{key}-place", icon=":material/grid_view:", help=help):
        st.session_state.update(placement(layout))
        _turn_to(PLACE, placement(layout))


def plan_button(key: str) -> None:
    """Turn to the search for the best layout."""
    if st.button("Find the best layout", key=f"{key}-plan", icon=":material/search:"):
        _turn_to(PLAN, {})


def _turn_to(page: str, values: dict[str, Any]) -> None:
    """Another page, with these values in its address; those of the sidebar come back by themselves."""
    words = {key: _words(value) for key, value in values.items()}
    try:
        st.switch_page(page, query_params=words)
    except StreamlitAPIException:  # a parameter that a widget still holds may not be set
        st.switch_page(page, query_params={})


def _unusual(layout: Layout) -> dict[str, Any]:
    """What the controls of the layout show other than when nobody has touched them."""
    usual = layout_bar.values(Layout(layout.gpus))
    return {key: each for key, each in layout_bar.values(layout).items() if each != usual[key]}


def _words(value: Any) -> Any:
    """A value as it stands in an address."""
    if isinstance(value, list):
        return [str(item) for item in value]
    return str(value).lower() if isinstance(value, bool) else f"{value}"


def placement(layout: Layout) -> dict[str, Any]:
    """Values of the controls of Placement: axes in use, innermost first, replicas take the rest.

    Experts' ranks are an axis of that mesh where they lie whole inside the replicas: without
    context parallelism, and with the experts' matrices split like all others.
    """
    inside = layout.cp == 1 and layout.etp == layout.tp
    ranks = {"TP": layout.tp, "CP": layout.cp, "EP": layout.ep if inside else 1, "PP": layout.pp}
    axes = [axis for axis in ("TP", "CP", "EP") if ranks[axis] > 1]
    outer = [*["PP"] * bool(ranks["PP"] > 1), "DP"]
    axes += outer if layout.order == ORDER["tp-cp-pp-dp"] else outer[::-1]
    values = {f"place_{axis}": int(ranks[axis]) for axis in axes if axis != "DP"}
    return {**values, "place_axes": axes, "place_open": "DP", "place_by": axes[0], "place_rank": 0}
