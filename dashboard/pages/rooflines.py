"""Rooflines: T_math against T_comms of every strategy, and where they cross."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import streamlit as st

from dashboard import charts, live_chart, parts, rooflines, state, theme
from dashboard.plain_table import table_html
from roofline.strategies import STRATEGIES
from roofline.units import show

OVERVIEW = "overview"
NAMES = {OVERVIEW: "Overview"} | {name: rooflines.short_title(name) for name in STRATEGIES}


def overview(scenario: state.Scenario) -> None:
    """Data, tensor, expert and pipeline parallelism side by side, each on its own."""
    panels = []
    for name in ("data_parallel", "tensor_parallel", "expert_parallel", "pipeline_parallel"):
        try:
            panels.append(panel(rooflines.sweep(name, scenario.work, scenario.cluster, {}), name))
        except ValueError as error:
            st.info(f"{STRATEGIES[name].title}: {error}", icon=":material/info:")
    st.caption("Solid: T_math. Dashed: T_comms. Shaded: communication takes longer.")
    live_chart.draw_panels(panels, "overview")


def panel(sweep: rooflines.Sweep, name: str) -> live_chart.Panel:
    """One strategy's curve with its verdict over it."""
    strong, rest = rooflines.headline(sweep)
    titles = (rooflines.x_title(name), rooflines.y_title(name))
    figure = charts.crossing(sweep.degrees, sweep.bound, theme.COMMS[name], *titles, legend=False)
    return live_chart.Panel(figure, strong + rest, STRATEGIES[name].title, strong, rest, sweep.note)


@st.fragment
def detail(scenario: state.Scenario, name: str) -> None:
    """One strategy in full: its controls, the verdict at one degree, the curve, the levels, the formula."""
    entry = STRATEGIES[name]
    options = controls(scenario, name)
    try:
        sweep = rooflines.sweep(name, scenario.work, scenario.cluster, options)
        degree = st.select_slider(
            rooflines.x_title(name),
            sweep.stops,
            sweep.nearest_stop(
                scenario.gpus if "model_parallel" in options else scenario.cluster.tiers[0].degree
            ),
            key=f"{name}_degree",
            **state.BIND,
        )
        here = sweep.at(degree)
    except ValueError as error:
        st.error(str(error), icon=":material/error:")
        return
    state.warn_refused(f"{name}_degree")
    parts.verdict(here)
    figure = charts.crossing(
        sweep.degrees,
        sweep.bound,
        theme.COMMS[name],
        rooflines.x_title(name),
        rooflines.y_title(name),
        current=degree,
        height=430,
    )
    live_chart.draw(figure, f"detail-{name}", "".join(rooflines.headline(sweep)))
    parts.downloads(name, lambda: parts.curve(entry.degree, sweep.degrees, sweep.bound), name)
    levels(sweep)
    parts.formulas(here, entry.text, name)


def levels(sweep: rooflines.Sweep) -> None:
    """The same strategy when it fills a node, a scalable unit, the whole cluster, and with switches that add."""
    st.subheader("Level by level", anchor=False)
    st.caption(
        "The group grown until it fills each unit of the hierarchy: what the slowest link then asks for. "
        "A headroom above 1 hides the communication."
    )
    rows = [
        {
            "the group fills": row.name,
            sweep.entry.degree: f"{row.degree:,.0f}",
            "T_math": show(row.bound.t_math, "s"),
            "T_comms": show(row.bound.t_comms, "s"),
            "set by": row.binding,
            f"{row.bound.threshold.quantity}": show(row.bound.threshold.actual, digits=4),
            "needed": show(row.bound.threshold.needed, digits=4),
            "headroom": show(row.bound.threshold.headroom),
        }
        | {
            f"needed with SHARP, {how}": show(bound.threshold.needed, digits=4)
            for how, bound in row.with_switches.items()
        }
        for row in rooflines.levels(sweep)
    ]
    if rows:
        st.html(table_html(rows))


def controls(scenario: state.Scenario, name: str) -> dict[str, Any]:
    """What can be asked of a strategy beyond its degree, as keyword arguments of its bound."""
    options: dict[str, Any] = {}
    with st.container(horizontal=True, gap="medium", vertical_alignment="bottom"):
        for option in OPTIONS[name]:
            options[option] = CONTROLS[option](scenario, name)
    return options


def _phase(scenario: state.Scenario, name: str) -> str:
    return _choice("Pass", ("forward", "backward", "step"), STRATEGIES[name].phase, f"{name}_phase")


def _form(scenario: state.Scenario, name: str) -> str:
    help = "rough drops the (d-1)/d of every tier, as one does on paper"
    return _choice("Form", ("precise", "rough"), "precise", f"{name}_form", help)


def _switches(scenario: state.Scenario, name: str) -> str:
    help = "SHARP: NVLink and InfiniBand switches that sum on the way, where the profile has them"
    return _choice("Switches that add", ("off", "theory", "measured"), "off", f"{name}_sharp", help)


def _inner(scenario: state.Scenario, name: str) -> int:
    help = "TP × PP × EP: GPUs that share one replica of the model"
    return _number("GPUs in a replica", 1, scenario.gpus, f"{name}_inner", help)


def _replicas(scenario: state.Scenario, name: str) -> int:
    return _number("Replicas", 1, scenario.gpus, f"{name}_dp", "data parallelism around it")


def _copies(scenario: state.Scenario, name: str) -> bool:
    help = (
        "A token goes once to each node that needs it, and spreads inside; off, once to each GPU."
    )
    return st.toggle("One copy per node", True, key="ep_dedup", help=help, **state.BIND)


def _microbatches(scenario: state.Scenario, name: str) -> int:
    return _number("Micro-batches", 32, 4096, "pp_microbatches", "of one pipeline and step")


def _chunks(scenario: state.Scenario, name: str) -> int:
    return _number("Chunks per stage", 1, 32, "pp_chunks", "interleaving: runs of layers per stage")


def _tiers(scenario: state.Scenario, name: str) -> bool:
    help = (
        "Off: an axis of links for each, as on a torus. On: FSDP and TP share the cluster's tiers."
    )
    return st.toggle("On the real tiers", True, key="mixed_tiers", help=help, **state.BIND)


CONTROLS: dict[str, Callable[[state.Scenario, str], Any]] = {
    "phase": _phase,
    "form": _form,
    "in_network": _switches,
    "model_parallel": _inner,
    "data_parallel": _replicas,
    "deduplicated": _copies,
    "microbatches": _microbatches,
    "chunks": _chunks,
    "hierarchical": _tiers,
}
OPTIONS = {
    "data_parallel": ("phase", "form", "model_parallel", "in_network"),
    "fsdp": ("phase", "form", "model_parallel"),
    "tensor_parallel": ("phase", "form", "data_parallel"),
    "mixed": ("phase", "form", "hierarchical"),
    "expert_parallel": ("phase", "form", "data_parallel", "deduplicated"),
    "pipeline_parallel": ("phase", "form", "data_parallel", "microbatches", "chunks"),
}


def _choice(
    label: str, values: tuple[str, ...], default: str, key: str, help: str | None = None
) -> str:
    value: str = st.segmented_control(
        label, values, default=default, key=key, help=help, required=True, **state.BIND
    )
    state.warn_refused(key)
    return value


def _number(label: str, default: int, most: int, key: str, help: str) -> int:
    value = st.number_input(
        label, 1, most, min(default, most), key=key, help=help, width=150, **state.BIND
    )
    state.warn_refused(key)
    return int(value)


def main() -> None:
    """Draw the page."""
    scenario = state.current()
    st.title("Where communication takes over", anchor=False)
    st.markdown(scenario.line())
    labels = list(NAMES.values())
    chosen = st.segmented_control(
        "Strategy",
        labels,
        default=labels[0],
        key="strategy",
        required=True,
        label_visibility="collapsed",
        **state.BIND,
    )
    state.warn_refused("strategy")
    name = list(NAMES)[labels.index(chosen)]
    if name == OVERVIEW:
        overview(scenario)
    else:
        detail(scenario, name)


main()
