"""Plan: the best layout for a model on a cluster, why it is, what would help, and the file that launches it."""

from __future__ import annotations

import time

import streamlit as st

from dashboard import (
    explain_views,
    parts,
    plan_compare,
    plan_controls,
    plan_data,
    plan_refused,
    state,
)
from dashboard import plan_views as views
from dashboard.custom_model import assumed, transformer
from dashboard.plan_data import Asked, Chosen
from roofline import limits, planner, ranking, space
from roofline import scaling as scaling_module
from roofline.describe import degrees, describe
from roofline.planner import Plan, Progress

SOURCES = (planner, space, limits, ranking, scaling_module)
PATIENCE = 1.0  # seconds of a search before it shows how far it is


def watcher() -> Progress:
    """Called after each block of a search: a bar once it takes long, with a way to stop it.

    Pressing the button asks for a new run, and Streamlit ends this one at the next change of the bar.
    """
    start, box = time.monotonic(), st.empty()
    drawn = []

    def progress(share: float, seen: int) -> None:
        if time.monotonic() - start < PATIENCE:
            return
        if not drawn:
            place = box.container(horizontal=True, vertical_alignment="center")
            drawn.append(place.progress(0.0))
            place.button("Cancel", on_click=cancel, key="plan-cancel", icon=":material/cancel:")
        drawn[0].progress(min(share, 1.0), f"{seen:,} layouts, {share:.0%} of the space")
        if share >= 1.0:
            box.empty()

    return progress


def cancel() -> None:
    """Leave the search alone until it is asked for again."""
    st.session_state["plan_cancelled"] = True


def search(asked: Asked) -> Plan | None:
    """The plan, or why there is none."""
    if st.session_state.pop("plan_cancelled", False):
        st.info("The search was cancelled.", icon=":material/cancel:")
        st.button("Search again", icon=":material/search:")
        return None
    try:
        return plan_data.planned(asked, watcher())
    except ValueError as error:
        plan_refused.impossible(error, asked)
        return None


def answer(found: Plan, asked: Asked, best: Chosen) -> None:
    """The best layout in words and numbers."""
    head, rest = degrees(best.layout), describe(best.layout)
    st.header(head, anchor=False)
    st.markdown(
        f"{rest.removeprefix(head).removeprefix(', ')} · the fastest of {found.seen:,} layouts, "
        f"{found.fitting:,} of which fit"
    )
    explain_views.hero(best.numbers)
    explain_views.where_time_goes(best.numbers, "plan")


def main() -> None:
    """Draw the page."""
    scenario = state.current()
    st.title("Which layout?", anchor=False)
    st.markdown(scenario.line(steps=True))
    model = transformer(scenario)
    if text := assumed(scenario, model):
        st.caption(text)
    asked = plan_controls.controls(scenario, model)
    explain_views.basis(scenario)
    found = search(asked)
    if found is None:
        return
    now = views.picked(found)
    if found.best is None:
        plan_refused.nothing_fits(asked, found)
        small = found.question.training(found.layout(0, found.smallest))
        views.the_field(asked, found, None, now or Chosen(views.SMALLEST, small))
        return
    best = Chosen("best", found.best)
    answer(found, asked, best)
    views.the_field(asked, found, best, now or best)
    views.top(asked, found, best)
    views.what_would_help(found, now or best)
    views.scaling(found, now or best)
    views.launch(now or best)
    plan_compare.compare(asked, best, now)
    parts.sources("How it searches, and sources", *SOURCES, key="plan-sources")


main()
