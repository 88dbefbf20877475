"""Collectives: time and bus bandwidth against message size, and what decides them."""

from __future__ import annotations

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from dashboard import collectives_figures as figures
from dashboard import collectives_views as views
from dashboard import live_chart, parts, state
from dashboard.collectives_controls import (
    SOURCES,
    choice,
    fits,
    form,
    group_controls,
    latency,
    message_size,
    put,
)
from dashboard.plain_table import table_html
from roofline import collectives, groups, nccl_log
from roofline.collectives import COLLECTIVES, Collective
from roofline.units import show

VIEWS = ("Size sweep", "Algorithms", "Top-k all-to-all", "Sharded array", "What each does")
DEFAULT = ("all-gather", "all-reduce", "all-to-all")
EXAMPLE = """\
# Made up, to show the format: all_reduce_perf on 8 ranks
#       size         count      type   redop    root     time   algbw   busbw #wrong
        65536         16384     float     sum      -1    29.50    2.22    3.89      0
      1048576        262144     float     sum      -1    41.20   25.45   44.54      0
     16777216       4194304     float     sum      -1   121.40  138.20  241.84      0
    268435456      67108864     float     sum      -1  1312.00  204.60  358.05      0
   4294967296    1073741824     float     sum      -1  20315.0  211.42  369.98      0
"""


def run_options() -> dict[str, str | bool]:
    """How collectives run: form, algorithm, adding switches, latency."""
    with st.container(horizontal=True, gap="medium", vertical_alignment="bottom"):
        return {
            "form": form(),
            "algorithm": choice(
                "Algorithm",
                ("hierarchical", "ring", "tree"),
                "hierarchical",
                "coll_algorithm",
                "A ring in every tier; one ring through all ranks; or a tree: the bytes of the "
                "hierarchical one in log2 steps",
            ),
            "in_network": choice(
                "Switches that add",
                ("off", "theory", "measured"),
                "off",
                "coll_sharp",
                "NVLink SHARP and InfiniBand SHARP for an all-reduce, in tiers that have them",
            ),
            "latency": latency(),
        }


def sweep(scenario: state.Scenario) -> None:
    """Time and bus bandwidth of the chosen collectives over message size."""
    names = st.pills(
        "Collectives", list(COLLECTIVES), selection_mode="multi", default=list(DEFAULT),
        key="coll_ops", **state.BIND,
    )  # fmt: skip
    state.warn_refused("coll_ops")
    group = group_controls(scenario)
    options = run_options()
    ops = [COLLECTIVES[name] for name in COLLECTIVES if name in names]
    if not ops:
        st.info("Choose a collective to see its curve.", icon=":material/touch_app:")
        return
    if not fits(group, scenario):
        return
    setting = figures.Setting(scenario.cluster.tiers, group, options)
    in_words(setting)
    answer, drop, by_level = st.container(), st.container(), st.container()
    with drop:
        measured = measurements(setting)
    with answer:
        at_size(setting, ops, measured, by_level)
    parts.sources(SOURCES, collectives, groups)


def in_words(setting: figures.Setting) -> None:
    """Where the group lies, and what to know before one trusts its numbers."""
    ranks, stride = f"{setting.group.size:,.0f}", f"{setting.group.stride:,.0f}"
    head = f"**{ranks} ranks**" + ("" if stride == "1" else f", **{stride} apart**")
    st.markdown(f"{head} — " + "; ".join(figures.words(setting)) + ".")
    if warning := figures.straddles(setting):
        st.warning(warning, icon=":material/warning:")
    if setting.group.size == 1:
        st.info("A group of one rank moves nothing: every collective is done at once.")


@st.fragment
def at_size(
    setting: figures.Setting,
    ops: list[Collective],
    measured: list[figures.Measured],
    by_level: DeltaGenerator,
) -> None:
    """The slider and what follows from it, apart from the other controls so that it moves fast."""
    size = message_size()
    with st.container(horizontal=True, gap="small"):
        for op in ops:
            card(setting, op, size)
    names = ", ".join(op.name for op in ops)
    told = f"of {names} against message size, {setting.group.size:,.0f} ranks"
    time, bus = (
        figures.time_figure(setting, ops, size, measured),
        figures.bus_figure(setting, ops, size, measured),
    )
    bus["layout"]["showlegend"] = False  # the same curves as beside it
    live_chart.draw_panels(
        [
            live_chart.Panel(time, f"Time {told}", "Time"),
            live_chart.Panel(bus, f"Bus bandwidth {told}", "Bus bandwidth"),
        ],
        "coll-sweep-charts",
    )
    parts.downloads("collectives", lambda: figures.table(setting, ops), "coll-sweep")
    with by_level:
        levels(setting, ops, size)


def card(setting: figures.Setting, op: Collective, size: float) -> None:
    """One collective at the chosen size."""
    time = setting.at(op, size)
    bus = float(setting.bus(op, size, float(time.seconds)))
    with st.container(border=True, width=262, gap="small"):
        st.metric(
            f"{op.name}, {figures.size_label(size)}",
            show(float(time.seconds), "s"),
            f"{show(bus, 'B/s')} bus bandwidth",
            delta_color="off",
            delta_arrow="off",
        )
        st.html(figures.bars(time))


def levels(setting: figures.Setting, ops: list[Collective], size: float) -> None:
    """The same collectives inside a node, across nodes, at the spine."""
    st.subheader("Level by level", anchor=False)
    st.caption(
        f"The same {figures.size_label(size)} on each group that fills a unit of the cluster: "
        "time, bus bandwidth, and the tier that binds."
    )
    st.html(table_html(figures.level_rows(setting, ops, size)))


def measurements(setting: figures.Setting) -> list[figures.Measured]:
    """Measured curves that somebody dropped here, with the prediction for their sizes."""
    with st.expander("Drop measured curves on top: an nccl-tests log", icon=":material/upload:"):
        left, right = st.columns([3, 2], gap="medium")
        pasted = left.text_area(
            "Paste the output of nccl-tests", key="coll_log", height=150, placeholder=EXAMPLE
        )
        file = right.file_uploader("or upload it", ["txt", "log", "out"], key="coll_file")
        right.button("Use an example", on_click=put, args=("coll_log", EXAMPLE), type="tertiary",
                     icon=":material/lightbulb:")  # fmt: skip
        text = file.getvalue().decode("utf-8", "replace") if file else pasted
        return reported(read(text), setting) if text else []


@st.cache_data(max_entries=8, show_spinner=False)
def read(text: str) -> nccl_log.Log:
    """The log; reading it again on every slider's move would take too long."""
    return nccl_log.read(text)


def reported(log: nccl_log.Log, setting: figures.Setting) -> list[figures.Measured]:
    """Each run against its prediction, and the lines that held none."""
    found = []
    for i, run in enumerate(log.runs):
        try:
            measured = figures.compare(run, setting)
        except ValueError as error:
            st.warning(f"{run.operation} on {run.ranks} ranks is not drawn: {error}")
            continue
        found.append(measured)
        how = " (taken from the columns: the log names no program)" if run.guessed else ""
        st.markdown(
            f"**{run.operation}**{how}, {run.ranks or 'unknown'} ranks, {len(run.size)} sizes: "
            f"**median error of the prediction {measured.error:.1%}**"
        )
        if run.ranks and run.ranks != setting.group.size:
            st.button(f"Show curves for {run.ranks} ranks", key=f"match-{i}", on_click=match,
                      args=(run.operation, run.ranks), icon=":material/tune:")  # fmt: skip
    if not log.runs:
        st.warning(
            "No row of nccl-tests was found. A row has size, count, type, redop, root, time, algbw "
            "and busbw.", icon=":material/search_off:",
        )  # fmt: skip
    if log.skipped:
        st.caption(f"{len(log.skipped):,} lines skipped")
        lines = [f"line {s.line}: {s.why}: {s.text}" for s in log.skipped[:8]]
        st.code("\n".join(lines), language=None)
    return found


def match(operation: str, ranks: int) -> None:
    """Set the controls to what a log measured."""
    chosen = st.session_state.get("coll_ops", [])
    put("coll_ops", [*chosen, *([] if operation in chosen else [operation])])
    put("coll_group", figures.CUSTOM)
    put("coll_ranks", ranks)
    put("coll_stride", 1)


@st.fragment
def body(scenario: state.Scenario) -> None:
    """The chosen view; a control reruns this alone."""
    view = st.segmented_control(
        "View", VIEWS, default=VIEWS[0], key="coll_view", required=True,
        label_visibility="collapsed", **state.BIND,
    )  # fmt: skip
    state.warn_refused("coll_view")
    {
        VIEWS[0]: sweep,
        VIEWS[1]: views.side_by_side,
        VIEWS[2]: views.routed,
        VIEWS[3]: views.sharded,
        VIEWS[4]: views.semantic,
    }[view](scenario)


def main() -> None:
    """Draw the page."""
    scenario = state.current()
    st.title("What a collective costs", anchor=False)
    st.markdown(scenario.line())
    body(scenario)


main()
