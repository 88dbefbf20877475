"""Rooflines: T_math against T_comms of every strategy, and where they cross."""

from __future__ import annotations

from typing import Any

import streamlit as st

from dashboard import charts, live_chart, parts, rooflines, state, theme
from roofline.strategies import STRATEGIES
from roofline.units import show

OVERVIEW = "overview"
NAMES = {OVERVIEW: "Overview"} | {name: rooflines.short_title(name) for name in STRATEGIES}


def overview(scenario: state.Scenario) -> None:
    """Data, tensor, expert and pipeline parallelism side by side, each on its own."""
    for left, right in (
        ("data_parallel", "tensor_parallel"),
        ("expert_parallel", "pipeline_parallel"),
    ):
        for column, name in zip(st.columns(2, gap="medium"), (left, right), strict=True):
            with column:
                panel(scenario, name)


def panel(scenario: state.Scenario, name: str) -> None:
    """One strategy's curve with its verdict over it."""
    entry = STRATEGIES[name]
    try:
        sweep = rooflines.sweep(name, scenario.work, scenario.cluster, {})
    except ValueError as error:
        st.subheader(entry.title)
        st.info(str(error), icon=":material/info:")
        return
    st.subheader(entry.title, anchor=False)
    st.markdown(rooflines.headline(sweep))
    figure = charts.crossing(
        sweep.degrees,
        sweep.bound,
        theme.COMMS[name],
        rooflines.x_title(name),
        rooflines.y_title(name),
    )
    live_chart.draw(figure, f"panel-{name}", rooflines.headline(sweep))
    if sweep.note:
        st.caption(sweep.note)


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
    live_chart.draw(figure, f"detail-{name}", rooflines.headline(sweep))
    parts.downloads(name, lambda: parts.curve(entry.degree, sweep.degrees, sweep.bound), name)
    levels(sweep)
    parts.formulas(here, entry.text)


def levels(sweep: rooflines.Sweep) -> None:
    """The same strategy when it fills a node, a scalable unit, the whole cluster, and with switches that add."""
    st.subheader("Level by level", anchor=False)
    st.caption(
        "The group grown until it fills each unit of the hierarchy: what the slowest link then asks for. "
        "A headroom above 1 hides the communication."
    )
    rows = rooflines.levels(sweep)
    st.dataframe(
        [
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
            for row in rows
        ],
        hide_index=True,
        width="stretch",
    )


def controls(scenario: state.Scenario, name: str) -> dict[str, Any]:
    """What can be asked of a strategy beyond its degree, as keyword arguments of its bound."""
    options: dict[str, Any] = {}
    with st.container(horizontal=True, gap="medium", vertical_alignment="bottom"):
        if name != "mixed":
            options["phase"] = _choice(
                "Pass", ("forward", "backward", "step"), STRATEGIES[name].phase, f"{name}_phase"
            )
        options["form"] = _choice(
            "Form",
            ("precise", "rough"),
            "precise",
            f"{name}_form",
            "rough drops the (d-1)/d, as one does on paper",
        )
        if name in ("data_parallel", "fsdp"):
            options["model_parallel"] = _degree("GPUs in a replica", 1, scenario.gpus, f"{name}_inner",
                                                "TP × PP × EP inside each replica")  # fmt: skip
        if name == "data_parallel":
            options["in_network"] = _choice("Switches that add", ("off", "theory", "measured"), "off", "dp_sharp",
                                            "NVLink SHARP and InfiniBand SHARP, where the profile has them")  # fmt: skip
        if name in ("tensor_parallel", "expert_parallel", "pipeline_parallel"):
            options["data_parallel"] = _degree(
                "Replicas", 1, scenario.gpus, f"{name}_dp", "data parallelism around it"
            )
        if name == "expert_parallel":
            options["deduplicated"] = st.toggle(
                "One copy per node", True, key="ep_dedup", **state.BIND
            )
        if name == "pipeline_parallel":
            options["microbatches"] = _degree(
                "Micro-batches", 32, 4096, "pp_microbatches", "of one pipeline and step"
            )
            options["chunks"] = _degree(
                "Chunks per stage",
                1,
                32,
                "pp_chunks",
                "interleaving: v passes through the pipeline",
            )
        if name == "mixed":
            options["hierarchical"] = st.toggle(
                "On the real tiers", True, key="mixed_tiers",
                help="Off: an axis of links for each, as on a torus. On: FSDP and TP share the cluster's tiers.",
                **state.BIND,
            )  # fmt: skip
    return options


def _choice(
    label: str, values: tuple[str, ...], default: str, key: str, help: str | None = None
) -> str:
    value: str = st.segmented_control(
        label, values, default=default, key=key, help=help, required=True, **state.BIND
    )
    state.warn_refused(key)
    return value


def _degree(label: str, default: int, most: int, key: str, help: str) -> int:
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
