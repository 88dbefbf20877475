"""Placement: which rank sits on which GPU, and which groups cross which level."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from dashboard import live_chart, parts, state
from dashboard import placement_advice as advise
from dashboard import placement_figures as figures
from dashboard.plain_table import table_html
from roofline import groups, placement
from roofline.placement import Mesh, example_32, mesh
from roofline.planner import resized

NONE = "none"
EXAMPLE = {
    "cluster": "alps-gh200",  # a profile with nodes of 4 GPUs
    "gpus": 32,
    "place_axes": ["TP", "DP", "PP"],
    "place_open": NONE,
    "place_by": "TP",
    "place_rank": 0,
}
EXAMPLE_AXES = {"model": "TP", "data": "DP", "pipe": "PP"}


def put(values: Mapping[str, Any]) -> None:
    """Give controls other values."""
    for key, value in values.items():
        st.session_state[key] = value


def show_example() -> None:
    """Turn to the 32 workers on 8 nodes of 4 GPUs; what was there before is kept."""
    keys = [*EXAMPLE, *(f"place_{axis}" for axis in figures.AXES)]
    st.session_state["place_before"] = {
        k: st.session_state[k] for k in keys if k in st.session_state
    }
    example = example_32()
    degrees = {
        f"place_{EXAMPLE_AXES[axis]}": degree
        for axis, degree in zip(example.axes, example.degrees, strict=True)
    }
    put(EXAMPLE | degrees)


def go_back() -> None:
    """Return from the example."""
    put(st.session_state.pop("place_before", {}))


def examples() -> None:
    """The button of the 3D-parallelism example, and the way back."""
    with st.container(horizontal=True, gap="small"):
        st.button(
            "32-worker example", on_click=show_example, icon=":material/school:",
            help="8 nodes of 4 GPUs: tensor 4, data 2, pipeline 4 (DeepSpeed's picture of 3D "
            "parallelism). Changes cluster and GPUs in the sidebar too.",
        )  # fmt: skip
        if "place_before" in st.session_state:
            st.button("Back to my layout", on_click=go_back, icon=":material/undo:")


def order() -> tuple[list[str], str]:
    """The axes in use, innermost first, and the one that takes what the others leave."""
    with st.container(horizontal=True, gap="medium", vertical_alignment="bottom"):
        chosen: list[str] = st.multiselect(
            "Axes, innermost first",
            list(figures.AXES),
            default=["TP", "DP", "PP"],
            key="place_axes",
            width=380,
            help="Ranks of the first axis are neighbours. Take an axis out and add it again to "
            "move it outwards, or use the arrows.",
            **state.BIND,
        )
        if not chosen:
            return [], NONE
        open_ = st.segmented_control(
            "Takes what the others leave",
            [*chosen, NONE],
            default="DP" if "DP" in chosen else NONE,
            key="place_open",
            required=True,
            **state.BIND,
        )
    state.warn_refused("place_axes", "place_open")
    return chosen, open_ or NONE


def move(axes: list[str], axis: str, by: int) -> None:
    """Swap an axis with its neighbour."""
    at = axes.index(axis)
    swapped = list(axes)
    swapped[at], swapped[at + by] = swapped[at + by], swapped[at]
    st.session_state["place_axes"] = swapped


def degree_controls(scenario: state.Scenario, axes: list[str], left: str) -> dict[str, int | None]:
    """A degree for every axis but the one that is left open, with arrows to move each."""
    node = int(scenario.cluster.tiers[0].degree)
    usual = {"TP": min(8, node), "PP": 1 if scenario.gpus % (4 * node) else 4}
    degrees: dict[str, int | None] = {}
    with st.container(horizontal=True, gap="small"):
        for i, axis in enumerate(axes):
            with st.container(horizontal=True, gap=None, vertical_alignment="bottom", width=190):
                if axis == left:
                    st.text_input(axis, "the rest", disabled=True, key=f"rest-{axis}", width=130)
                    degrees[axis] = None
                else:
                    degrees[axis] = _degree(scenario, axis, usual.get(axis, 1))
                for by, icon, word in (
                    (-1, "chevron_left", "inwards"),
                    (1, "chevron_right", "outwards"),
                ):
                    st.button(
                        "", key=f"move-{axis}-{by}", icon=f":material/{icon}:", type="tertiary",
                        help=f"Move {axis} {word}", disabled=not 0 <= i + by < len(axes),
                        on_click=move, args=(axes, axis, by),
                    )  # fmt: skip
    state.warn_refused(*(f"place_{axis}" for axis in axes if axis != left))
    return degrees


def _degree(scenario: state.Scenario, axis: str, default: int) -> int:
    value = st.number_input(
        axis, 1, max(scenario.gpus, 8), min(default, scenario.gpus), key=f"place_{axis}",
        width=130, **state.BIND,
    )  # fmt: skip
    return int(value)


def made(scenario: state.Scenario, degrees: dict[str, int | None]) -> Mesh | None:
    """The mesh, or what does not fit with the nearest choices as buttons."""
    try:
        return mesh(scenario.gpus, degrees)
    except ValueError as error:
        st.error(str(error), icon=":material/error:")
    with st.container(horizontal=True, gap="small"):
        ways = [{axis: d} for axis, d in advise.fitting(scenario.gpus, degrees).items()]
        absorb = next((axis for axis in degrees if degrees[axis] is None), None)
        absorb = absorb or ("DP" if "DP" in degrees else list(degrees)[-1])
        near = advise.rounded(scenario.gpus, degrees, absorb)
        near = {axis: d for axis, d in near.items() if degrees[axis] not in (None, d)}
        for way in [near] * bool(near) + [way for way in ways if way != near]:
            fix("fit", way)
        for gpus in room_for(scenario, degrees):
            if st.button(
                f"{gpus:,} GPUs", key=f"gpus-{gpus}", on_click=put, args=({"gpus": gpus},)
            ):
                st.rerun()
    return None


def fix(kind: str, degrees: Mapping[str, int]) -> None:
    """A button that changes degrees."""
    label = ", ".join(f"{axis} {degree:,}" for axis, degree in degrees.items())
    values = {f"place_{axis}": degree for axis, degree in degrees.items()}
    st.button(label, key=f"{kind}-{label}", on_click=put, args=(values,),
              icon=":material/auto_fix_high:")  # fmt: skip


def room_for(scenario: state.Scenario, degrees: dict[str, int | None]) -> list[int]:
    """Numbers of GPUs next to this one that the degrees fill and the cluster can have."""
    known = 1
    for degree in degrees.values():
        known *= degree or 1
    below = scenario.gpus // known * known
    found = []
    for gpus in (below, below + known):
        if gpus > max(scenario.profile.gpus, 131_072):  # more than the sidebar takes
            continue
        try:
            resized(scenario.profile, gpus)
        except ValueError:
            continue
        found.append(gpus)
    return found


def advice(layout: Mesh, scenario: state.Scenario) -> None:
    """What is wrong with this placement, each with the nearest that is right as a button."""
    tiers = scenario.cluster.tiers
    node, found = tiers[0].name, figures.axes(layout, tiers)
    if crooked := [row for row in found if not row.aligned]:
        names = " and ".join(f"{row.axis} {row.degree:,}" for row in crooked)
        text = (
            f"**{names} {'are' if len(crooked) > 1 else 'is'} misaligned**: the groups fill neither "
            "whole units nor equal parts of them, so some straddle more units than others."
        )
        offer(layout, crooked[0].axis, text, lambda m: advise.all_aligned(m, tiers))
    tp = next((row for row in found if row.axis == "TP"), None)
    if tp and tp not in crooked and (outside := [name for name in tp.crossed if name != node]):
        text = (
            f"**TP {tp.degree:,} leaves the {node}**, over the {' and the '.join(outside)}: every "
            "layer waits for its all-reduces on links that are far slower than those inside."
        )
        offer(layout, "TP", text, lambda m: advise.inside_node(m, "TP", tiers))


def offer(layout: Mesh, axis: str, text: str, good: Any) -> None:
    """A warning and the way out of it."""
    st.warning(text, icon=":material/warning:")
    absorb = ["DP", *(other for other in reversed(layout.axes) if other != "DP")]
    with st.container(horizontal=True, gap="small"):
        if found := advise.nearest(layout, axis, good, absorb):
            changed = zip(found.axes, found.degrees, layout.degrees, strict=True)
            fix("better", {name: new for name, new, old in changed if new != old})
        if axis == "TP" and layout.stride("TP") > 1:
            first = ["TP", *(other for other in layout.axes if other != "TP")]
            st.button("Make TP the innermost axis", key="tp-first", on_click=put,
                      args=({"place_axes": first},), icon=":material/first_page:")  # fmt: skip


@st.fragment
def body(scenario: state.Scenario) -> None:
    """Controls, map and table; a control reruns this alone."""
    axes, left = order()
    if not axes:
        st.info("Choose at least one axis.", icon=":material/touch_app:")
        return
    degrees = degree_controls(scenario, axes, left)
    layout = made(scenario, degrees)
    if layout is None:
        return
    tiers = scenario.cluster.tiers
    st.markdown(
        f"{figures.headline(figures.axes(layout, tiers), tiers)} `{figures.rank_formula(layout)}`"
    )
    advice(layout, scenario)
    the_map(layout, scenario)


def ink() -> str:
    """Colour of text, light or dark as the theme has it."""
    return "#e6eaf0" if st.context.theme.type == "dark" else "#1b2430"


def picked() -> None:
    """Take the rank of the cell that was clicked."""
    cell = st.session_state["place-map"].get("clicked")
    if isinstance(cell, list) and len(cell) == 2 and str(cell[1]).isdigit():
        st.session_state["place_rank"] = int(cell[1])


@st.fragment
def the_map(layout: Mesh, scenario: state.Scenario) -> None:
    """The map and the table, with the rank that is picked."""
    tiers = scenario.cluster.tiers
    with st.container(horizontal=True, gap="medium", vertical_alignment="bottom"):
        axis = st.segmented_control("Colour by the group of", layout.axes, default=layout.axes[0],
                                    key="place_by", required=True, **state.BIND)  # fmt: skip
        paint = st.segmented_control(
            "Colour means", ["group", "position"], default="group", key="place_paint", required=True,
            help="group: who belongs together; position: the place within the group, such as the "
            "pipeline stage", **state.BIND,
        )  # fmt: skip
        rank = st.number_input("Rank", 0, layout.size - 1, 0, key="place_rank", width=150,
                               help="Its groups are marked; a click on the map picks one too",
                               **state.BIND)  # fmt: skip
        state.warn_refused("place_by", "place_paint", "place_rank")
    figure = figures.map_figure(layout, tiers, axis, paint, int(rank), ink())
    alt = f"{layout.size:,} GPUs coloured by {axis} {paint}; the groups of rank {rank} are marked"
    live_chart.draw(figure, "place-map", alt, on_click=picked)
    st.caption(figures.what_is_drawn(layout, tiers) + " Click one to mark its groups.")
    st.html(table_html(figures.table(figures.axes(layout, tiers), layout, int(rank))))
    parts.downloads("placement", lambda: figures.rank_table(layout, tiers), "place")


def main() -> None:
    """Draw the page."""
    scenario = state.current()
    st.title("Who sits where", anchor=False)
    st.markdown(scenario.line())
    examples()
    body(scenario)
    parts.sources("How ranks are placed, and sources", placement, groups)


main()
