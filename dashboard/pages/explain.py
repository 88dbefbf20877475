"""Explain: where the time and the memory of the current layout go."""

from __future__ import annotations

import json
import math

import numpy as np
import streamlit as st

from dashboard import explain_data as data
from dashboard import explain_figures as figures
from dashboard import explain_views as views
from dashboard import habits, live_chart, parts, state
from dashboard.custom_model import assumed, transformer
from dashboard.explain_data import Explained
from dashboard.layout_bar import layout_bar, words
from dashboard.layout_links import place_button, plan_button
from dashboard.plain_table import table_html
from roofline import anatomy, footprint, layer, microbatch, outcome, playback, step, suspects
from roofline.playback import chrome_trace, schedule_name
from roofline.units import show

SOURCES = (step, microbatch, layer, footprint, outcome, anatomy, playback, suspects)


@st.fragment
def body(scenario: state.Scenario) -> None:
    """Layout, answer, charts and tables; a control reruns this alone."""
    model = transformer(scenario)
    if text := assumed(scenario, model):
        st.caption(text)
    whose = habits.framework(scenario, model)
    layout = layout_bar(scenario, model, habits.base(whose, scenario, model), whose)
    if layout is None or habits.refused(whose, layout, scenario):
        return
    kept = habits.recipe(whose, scenario)
    kept = None if layout.lora_rank else kept
    try:
        found = data.explained(
            model, layout, scenario.machine, scenario.work.dtype, scenario.rates, kept
        )
    except ValueError as error:
        st.error(str(error), icon=":material/error:")
        return
    st.markdown(f"**{words(layout)}**")
    views.hero(found)
    with st.container(horizontal=True, gap="small"):
        place_button(layout, "explain")
        plan_button("explain")
    views.where_time_goes(found)
    views.measured(found)
    ceilings_and_memory(found)
    pipeline(found)
    tables(found)


def ceilings_and_memory(found: Explained) -> None:
    """Operations under their ceilings, and the memory of each stage."""
    rows = data.operations(found)
    top = next(row for row in rows if row.flops)
    left = found.capacity - found.memory
    fits = "fits" if left >= 0 else "does not fit"
    live_chart.draw_panels(
        [
            live_chart.Panel(
                figures.roofline(found),
                "Intensity and rate of each operation under the ceilings of the datasheet",
                "Operations under their ceilings",
                f"{top.name} runs at {show(top.achieved, 'FLOP/s')}",
                f", {top.reached:.0%} of the {top.ceiling}, for {data.share(top.seconds, found.seconds)} "
                "of the step.",
                "Size is time in the step. Memory-bound operations do no matmul FLOPs: the table "
                "has the bandwidth they reach.",
            ),
            live_chart.Panel(
                figures.memory(found),
                f"Memory of a GPU by pipeline stage; {show(found.memory, 'B')} on the fullest",
                "Memory by stage and kind",
                f"{show(found.memory, 'B')} of {show(found.capacity, 'B')}: {fits}",
                f", {show(abs(left), 'B')} {'left' if left >= 0 else 'too much'} on the fullest stage.",
                "Other: fragments of the allocator, NCCL's buffers, the CUDA context.",
            ),
        ],
        "explain-charts",
    )
    parts.downloads("memory", lambda: data.memory_columns(found), "explain-memory")


def pipeline(found: Explained) -> None:
    """The timeline, with its trace to open in Perfetto."""
    drawn = found.timeline
    if drawn is None:
        st.caption(f"No timeline of the pipeline: {found.unplayed}.")
        return
    if drawn.size.stages == 1:
        return
    m = round(float(found.job.layout.microbatches))
    shown = (
        ""
        if found.every
        else f" The first {drawn.size.microbatches} of {m} micro-batches are drawn."
    )
    panel = live_chart.Panel(
        figures.gantt(drawn, found.seconds),
        f"Passes of {drawn.size.stages} pipeline stages over {show(drawn.step, 's')}",
        "The pipeline, pass by pass",
        f"{drawn.share:.1%} idle",
        f": {drawn.size.stages} stages, {drawn.size.microbatches} micro-batches, "
        f"{schedule_name(found.job)}.",
        "Forward and backward passes with their own times on each stage; data parallelism and "
        f"optimizer come after them.{shown}",
    )
    live_chart.draw_panels([panel], "explain-pipeline")
    st.download_button(
        "Trace for Perfetto or chrome://tracing",
        lambda: json.dumps(chrome_trace(playback.played(found.job), words(found.job.layout))),
        "pipeline-trace.json", "application/json", key="explain-trace", type="tertiary",
        icon=":material/timeline:", on_click="ignore",
    )  # fmt: skip


def tables(found: Explained) -> None:
    """Operations, collectives and the rest as tables."""
    for title, rows, columns, empty in (
        ("By operation", data.operation_rows(found), data.operation_columns, ""),
        ("By collective", data.collective_rows(found), data.collective_columns,
         "One rank along every axis: nothing is sent."),
    ):  # fmt: skip
        st.subheader(title, anchor=False)
        if not rows:
            st.caption(empty)
            continue
        st.html(table_html(rows))
        key = title.replace(" ", "-").lower()
        parts.downloads(key, lambda columns=columns: columns(found), f"explain-{key}")  # type: ignore[misc]
    if rest := data.rest_rows(found):
        st.subheader("The rest", anchor=False)
        st.html(table_html(rest))
    st.caption(
        "Times are of one GPU on the average stage; operations and collectives of one layer and "
        "micro-batch, times as often as a step has them. What of an axis hides behind compute is "
        "shared out over its collectives by duration. All rows sum to the step."
    )


def main() -> None:
    """Draw the page."""
    scenario = state.current()
    st.title("Where the time goes", anchor=False)
    st.markdown(scenario.line(steps=True))
    tokens = float(np.asarray(scenario.work.tokens))
    if tokens < scenario.sequence or not math.isfinite(tokens):
        st.error(
            f"A batch of {show(tokens)} tokens holds no whole sequence of {scenario.sequence:,}: "
            "take a larger batch or a shorter sequence in the sidebar.",
            icon=":material/error:",
        )
        return
    views.basis(scenario)
    body(scenario)
    parts.sources("Formulas and sources", *SOURCES, key="explain-sources")


main()
