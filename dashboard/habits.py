"""Whose habits the current layout has: a framework's, with what it keeps of each parameter, or what the controls say.

A plan for a framework is predicted with habits that the controls of a layout do not show. Choosing the framework here
puts those that they do show into them, and hands on the rest, so that a layout has the number of its plan.
"""

from __future__ import annotations

from dataclasses import replace

import streamlit as st

from dashboard import layout_bar, state
from dashboard.state import Scenario
from roofline.layout import Layout
from roofline.limits import FRAMEWORKS, Framework, allowed, beyond
from roofline.model import Transformer
from roofline.planner import usual
from roofline.training import overlay_of

KEY = "habits"
OWN = "as set here"
SHOWN_BY = layout_bar.KEY_OF | {row[0]: key for key, row in layout_bar.TOGGLES.items()}


def framework(scenario: Scenario, model: Transformer) -> Framework | None:
    """Draw the choice; None where the controls alone count."""
    name = st.selectbox(
        "Framework", [OWN, *FRAMEWORKS], key=KEY, width=160, on_change=_adopt, args=(scenario, model),
        help="Its habits go into the controls; kernels and what is kept of each parameter are its "
        "own, as in a plan for it", **layout_bar.KEPT,
    )  # fmt: skip
    state.warn_refused(KEY)
    return FRAMEWORKS.get(name)


def base(chosen: Framework | None, scenario: Scenario, model: Transformer) -> Layout:
    """A layout with the habits of a framework, as plans begin with; without one the plain layout."""
    if chosen is None:
        return Layout(scenario.gpus)
    kept, precision = recipe(chosen, scenario), scenario.work.dtype
    overlay = overlay_of(scenario.rates, scenario.machine)
    return usual(model, chosen, precision, kept, overlay)


def recipe(chosen: Framework | None, scenario: Scenario) -> str | None:
    """What a framework keeps of each parameter; None: by precision."""
    return None if chosen is None else chosen.recipe(scenario.work.dtype)


def refused(chosen: Framework | None, layout: Layout, scenario: Scenario) -> bool:
    """Whether the framework cannot do the layout; then the page says why, with a button for each way out."""
    for name in chosen.can if chosen else ():
        try:
            beyond(chosen, name, [float(getattr(layout, name))])
        except ValueError as error:
            st.error(str(error), icon=":material/error:")
            _ways_out(chosen, name, layout, scenario)
            return True
    return False


def _ways_out(chosen: Framework, name: str, layout: Layout, scenario: Scenario) -> None:
    with st.container(horizontal=True, gap="small"):
        for said, value in zip(chosen.can[name], allowed(name, chosen.can[name], ()), strict=True):
            layout_bar.way_out(
                f"{layout_bar.NAMES.get(name)} {said}", name, value, layout, scenario
            )
        st.button(f"Framework {OWN}", on_click=st.session_state.update, args=({KEY: OWN},),
                  icon=":material/restart_alt:")  # fmt: skip


def _adopt(scenario: Scenario, model: Transformer) -> None:
    """Put into the controls what the framework does by habit, or alone."""
    st.session_state[KEY] = st.session_state[KEY]  # put anew, so that the address names it
    chosen = FRAMEWORKS.get(st.session_state[KEY])
    if chosen is None or not st.session_state["layout_touched"]:
        return  # what nobody has touched follows by itself
    only = chosen.only()
    shown = layout_bar.values(replace(base(chosen, scenario, model), **only))
    named = {name for row in FRAMEWORKS.values() for name in row.habits} | only.keys()
    keys = {SHOWN_BY.get(name) for name in named}
    st.session_state.update({key: each for key, each in shown.items() if key in keys})
