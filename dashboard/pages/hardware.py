"""Hardware: the machine drawn, its numbers with their sources, compared, calibrated, and edited."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

import streamlit as st

import hardware_profiles as hw
from dashboard import hardware_figures as figures
from dashboard import hardware_tables as tables
from dashboard import live_chart, parts, state
from dashboard.hardware_drawing import hierarchy
from dashboard.hardware_editor import editor
from dashboard.words import URL, linked, plain
from hardware_profiles.derived import capacities, fat_tree

RIVALS = ["dgx-b200-superpod", "gb200-nvl72-superpod", "mi355x-pod"]
PORTS = [16, 32, 36, 40, 48, 64, 128, 144]
SCOPES = ["whole profile", "this job"]
EDIT = "Edit a copy"


def shown(scenario: state.Scenario, whole: bool) -> hw.Cluster:
    """The profile or the job's part of it, at the rates that the sidebar asks for."""
    if not whole:
        return scenario.cluster
    overlay = scenario.overlay
    return hw.calibrate(scenario.profile, overlay) if overlay else scenario.profile


def drawn(machine: hw.Cluster) -> None:
    """The hierarchy, tier by tier."""
    st.html(hierarchy(machine))
    st.caption(
        "From the outside in; the first unit of each tier is opened below it. A link is drawn a "
        "little wider for each doubling of its bandwidth; a dashed bar means that the profile does "
        "not count switches there. Bandwidths are one way. Hover a number for all its digits."
    )
    parts.downloads("tiers", lambda: _columns(machine), "hw-tiers")


def _columns(machine: hw.Cluster) -> dict[str, list[object]]:
    rows = [asdict(row) for row in capacities(machine)]
    return {name: [row[name] for row in rows] for name in rows[0]}


def ladder(machine: hw.Cluster, dtype: str) -> None:
    """Every level that data can come over: what it holds and delivers, where math overtakes it."""
    alt = f"Attainable FLOP/s against FLOPs per byte in {dtype}, a roof for each level"
    live_chart.draw(figures.roofs(machine, dtype), "hw-roofs", alt)
    st.caption(
        "Left of a circle that level sets the pace, right of it the math does. Links are one "
        "accelerator's part; registers and shared memory are peaks by construction."
    )
    st.dataframe(
        tables.ladder_table(machine, dtype),
        hide_index=True,
        column_config={
            "C/W": st.column_config.Column(
                help="Over what one child of the level sends, all its accelerators together: what "
                "a collective meets (2475 beyond a node, in the scaling book)."
            )
        },
        alt="Memory ladder",
    )
    st.markdown("**Ridge by dtype**: FLOPs per byte, of one accelerator's part of each level")
    st.dataframe(tables.ridges(machine), hide_index=True, alt="Ridge points by dtype and level")
    parts.downloads("ridges", lambda: tables.ridges(machine), "hw-ridges")


def sources(profile: hw.Cluster) -> None:
    """Every number of the profile with where it was read."""
    found = tables.numbers(profile)
    with_link = sum(bool(URL.search(number.source)) for number in found)
    st.markdown(
        f"**{len(found)} numbers, all with a source; {with_link} link to a page.** "
        "As the profile states them, whatever the sidebar's rates."
    )
    for note in filter(None, (profile.accelerator.notes, profile.notes)):
        st.caption(linked(note))
    st.table(tables.sources(profile), border="horizontal", alt="Numbers and their sources")
    rows = [asdict(number) for number in found]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    parts.downloads(f"{profile.name}-sources", lambda: columns, "hw-sources")


def compared(scenario: state.Scenario) -> None:
    """The cluster of the sidebar against up to three others, chips or clusters."""
    mine = scenario.profile.name
    clusters = [name for name in state.cluster_names() if name != mine]
    chips = [name for name in hw.accelerators() if name not in clusters]
    default = [name for name in RIVALS if name != mine][: figures.MOST_COMPARED - 2]
    chosen = st.multiselect(
        f"Compare **{plain(mine)}** with",
        clusters + chips,
        default,
        max_selections=figures.MOST_COMPARED - 1,
        help="Clusters first, then accelerators without a cluster.",
        key="hw_compare",
        **state.BIND,
    )
    state.warn_refused("hw_compare")
    others = [name for name in chosen if name != mine][: figures.MOST_COMPARED - 1]
    profiles: dict[str, hw.Cluster | hw.Accelerator] = {mine: scenario.profile}
    for name in others:
        try:
            profiles[name] = hw.accelerator(name) if name in chips else state.cluster(name)
        except hw.ProfileError as error:  # a user's own file may be broken
            parts.problems([str(error)])
    table = figures.compare(profiles, scenario.work.dtype)
    if len(profiles) == 1:
        st.info(f"Choose up to {figures.MOST_COMPARED - 1} to compare with {mine}.")
    else:
        alt = f"{', '.join(list(profiles)[1:])} as multiples of {mine}"
        live_chart.draw(figures.comparison(table), "hw-comparison", alt)
    st.caption(
        "Datasheet rates, one way. A unit is one of the innermost tier: a node, a rack. A bar to "
        "the right is more than the first has, not always better: a high ridge is hard to reach."
    )
    st.dataframe(
        {"": list(table[mine])}
        | {name: list(map(str, row.values())) for name, row in table.items()},
        hide_index=True,
        height="content",
        alt="Profiles side by side",
    )
    parts.downloads("comparison", lambda: _raw(table), "hw-compared")


def _raw(table: figures.Table) -> dict[str, list[object]]:
    rows = next(iter(table.values()))
    columns: dict[str, list[object]] = {
        "measure": list(rows),
        "unit": [measure.unit for measure in rows.values()],
    }
    return columns | {name: [m.value for m in row.values()] for name, row in table.items()}


def achieved(scenario: state.Scenario) -> None:
    """Datasheet against what is reached, where somebody measured."""
    profile = scenario.profile
    overlay = state.overlay_of(profile.accelerator.name)
    if overlay is None:
        st.info(
            f"Nobody has calibrated {plain(profile.accelerator.title)} yet. The *Validate* "
            "page measures a node and writes a calibration.",
            icon=":material/straighten:",
        )
        return
    rows = figures.achieved(profile, overlay, hw.calibrate(profile, overlay))
    st.markdown(
        f"What machines reach of the datasheet, by the calibration **{overlay.name}**. "
        "*Rates: achievable* in the sidebar counts with these on every page."
    )
    live_chart.draw(figures.fractions(rows), "hw-fractions", "Achieved over peak for each rate")
    st.caption(f"{linked(overlay.source)} Error of predictions: {overlay.error or 'unknown'}.")
    columns = {name: [getattr(row, name) for row in rows] for name in figures.Achieved.__slots__}
    parts.downloads(f"calibration-{overlay.name}", lambda: columns, "hw-achieved")


def tree(scenario: state.Scenario) -> None:
    """Switches of a non-blocking fat tree for any number of GPUs."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        gpus = st.number_input(
            "GPUs to join",
            1,
            10_000_000,
            scenario.gpus,
            key="hw_tree_gpus",
            width=170,
            **state.BIND,
        )
        ports = st.selectbox(
            "Ports of a switch",
            PORTS,
            PORTS.index(64),
            key="hw_tree_ports",
            width=150,
            **state.BIND,
        )
        rails = st.number_input(
            "Rails", 1, 72, 8, key="hw_tree_rails", width=120,
            help="NICs of a node that each have a leaf switch of their own.", **state.BIND,
        )  # fmt: skip
    state.warn_refused("hw_tree_gpus", "hw_tree_ports", "hw_tree_rails")
    try:
        found = fat_tree(int(gpus), int(ports), int(rails))
    except ValueError as error:
        st.error(str(error), icon=":material/error:")
        _larger(int(gpus), int(rails))
        return
    levels = "three levels" if found.cores else "two levels"
    st.success(
        f"**{found.switches:,} switches** in {levels} join {gpus:,} GPUs without blocking: "
        f"{found.leaves:,} leaves, {found.spines:,} spines, {found.cores:,} cores, in "
        f"{found.scalable_units:,} scalable units.",
        icon=":material/account_tree:",
    )
    alt = f"Leaves, spines and cores of {ports}-port switches against the number of GPUs"
    curve = figures.trees(int(ports), int(rails))
    live_chart.draw(figures.switches(curve, int(gpus)), "hw-tree", alt)
    st.caption(
        "One NIC a GPU, one leaf a rail and scalable unit; a unit that is not full still needs all "
        "its leaves. [DGX SuperPOD reference architecture](https://docs.nvidia.com/dgx-superpod/)."
    )
    parts.downloads("fat-tree", lambda: curve, "hw-trees")


def _larger(gpus: int, rails: int) -> None:
    """A button for the smallest switch that does join so many."""
    for ports in PORTS:
        try:
            fat_tree(gpus, ports, rails)
        except ValueError:
            continue
        st.button(f"{ports} ports", on_click=_ports, args=(ports,), key="hw_larger")
        return


def _ports(ports: int) -> None:
    st.session_state["hw_tree_ports"] = ports


@st.fragment
def views(scenario: state.Scenario, whole: bool) -> None:
    """The tabs; only the open one runs."""
    machine, dtype = shown(scenario, whole), scenario.work.dtype
    contents: dict[str, Callable[[], None]] = {
        "Hierarchy": lambda: drawn(machine),
        "Memory ladder": lambda: ladder(machine, dtype),
        "Sources": lambda: sources(scenario.profile),
        "Compare": lambda: compared(scenario),
        "Peak and achieved": lambda: achieved(scenario),
        "Fat tree": lambda: tree(scenario),
        EDIT: lambda: editor(scenario),
    }
    above = st.container()
    tabs = st.tabs(list(contents), key="hw_view", **state.BIND)
    with above:
        state.warn_refused("hw_view")
    for tab, draw in zip(tabs, contents.values(), strict=True):
        if tab.open:
            with tab:
                draw()


def header(scenario: state.Scenario) -> bool:
    """Title, verdict and the numbers that matter; whether the whole profile is meant."""
    profile = scenario.profile
    st.title("Hardware", anchor=False)
    whole = True
    if scenario.gpus != profile.gpus:
        chosen = st.segmented_control(
            f"Show all {profile.gpus:,} GPUs of the profile, or the {scenario.gpus:,} of the job",
            SCOPES, default=SCOPES[0], key="hw_scope", required=True, **state.BIND,
        )  # fmt: skip
        state.warn_refused("hw_scope")
        whole = chosen == SCOPES[0]
    machine = shown(scenario, whole)
    basis = f"as achieved ({scenario.overlay.name})" if scenario.overlay else "datasheet rates"
    st.markdown(
        f"**{plain(profile.title)}** · {machine.gpus:,} × "
        f"{plain(profile.accelerator.title)} · {basis}"
    )
    st.markdown(tables.verdict(machine, scenario.work.dtype))
    with st.grid(4, min_column_width=150):
        for tile in tables.tiles(machine, scenario.work.dtype):
            st.metric(
                tile.label, tile.value, tile.note, help=tile.help, border=True,
                delta_color="off", delta_arrow="off",
            )  # fmt: skip
    return whole


def main() -> None:
    """Draw the page."""
    scenario = state.current()
    views(scenario, header(scenario))


main()
