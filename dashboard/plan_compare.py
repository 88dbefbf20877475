"""Candidates side by side, term by term: layouts, numbers of GPUs, clusters or models."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import streamlit as st

from dashboard import layout_bar, live_chart, parts, plan_data, state
from dashboard import plan_figures as figures
from dashboard.plain_table import table_html
from dashboard.plan_data import Asked, Chosen
from roofline import compare as comparison
from roofline import presets
from roofline.export import load
from roofline.space import CHOICES
from roofline.units import show

WHAT = ("layouts", "GPUs", "clusters", "models")
MOST = 6  # candidates
_TYPED = re.compile(r"([a-z][a-z_-]*)\s*[= ]\s*([\w.,-]+)", re.IGNORECASE)
SHORT = {"mbs": "micro_batch", "vpp": "chunks", "vp": "chunks", "microbatch": "micro_batch"}
TYPED = "TP 8 PP 8, or the arguments of your launch file"


@st.fragment
def compare(asked: Asked, best: Chosen, now: Chosen | None) -> None:
    """Choose what to hold against the best, and see it term by term."""
    st.subheader("Compare", anchor=False)
    what = st.segmented_control("Compare", WHAT, default=WHAT[0], key="compare", required=True,
                                label_visibility="collapsed", **layout_bar.KEPT)  # fmt: skip
    choose: dict[str, Callable[[Asked, Chosen, Chosen | None], list[Chosen]]] = {
        "layouts": _layouts, "GPUs": _gpus, "clusters": _clusters, "models": _models,
    }  # fmt: skip
    candidates = choose[what or WHAT[0]](asked, best, now)
    state.warn_refused("compare", "compare_places", "compare_gpus", "compare_clusters",
                       "compare_models")  # fmt: skip
    if len(candidates) < 2:
        st.caption("Choose at least one to hold against the best.")
        return
    draw(candidates)


def draw(candidates: list[Chosen]) -> None:
    """Bars, what separates each from the first, and a table with a column for each."""
    found = comparison.compare([one.job for one in candidates], [one.name for one in candidates])
    candidates = [replace(one, job=job) for one, job in zip(candidates, found.jobs, strict=True)]
    numbers = {one.name: one.numbers for one in candidates}
    first, *rest = found.sentences
    said = ", ".join(f"{name} {show(one.seconds, 's')}" for name, one in numbers.items())
    panel = live_chart.Panel(
        figures.side_by_side(numbers), f"Steps cut into terms: {said}", "Steps, term by term",
        first, " " + " ".join([*rest, found.footing]),
        "Solid: compute. Hatched: communication that is waited for, and waiting.",
    )  # fmt: skip
    live_chart.draw_panels([panel], "plan-compare")
    head = ("", *found.names)
    st.html(table_html([dict(zip(head, row, strict=True)) for row in found.text_rows()]))
    parts.downloads("comparison", lambda: _columns(found.table()), "plan-compare")


def _columns(rows: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Rows as columns; numbers and words stand in the same column."""
    return {name: [str(row[name]) for row in rows] for name in rows[0]}


def _layouts(asked: Asked, best: Chosen, now: Chosen | None) -> list[Chosen]:
    """The best, others of the table, the one chosen above, one that is typed."""
    others = {str(number): one for number, one in enumerate(plan_data.ways(asked), 1)}
    others.pop("1")
    left, right = st.columns([3, 2])
    with left:
        picked = st.multiselect(
            "Places of the table above", list(others), list(others)[:1], key="compare_places",
            max_selections=MOST - 1, **layout_bar.KEPT,
        )  # fmt: skip
    with right:
        typed = st.text_area("Your layout", key="compare_typed", placeholder=TYPED, height=68,
                             max_chars=20_000)  # fmt: skip
    listed = [best, *(others[number] for number in picked)]
    if now is not None and now.layout != best.layout:
        listed.append(Chosen("chosen above", now.job))
    if typed.strip():
        try:
            listed.append(typed_layout(asked, typed))
        except ValueError as error:
            st.error(f"Your layout: {error}.", icon=":material/error:")
    return listed


def typed_layout(asked: Asked, text: str) -> Chosen:
    """Degrees as people write them, the rest at its best; or a launch file as it is.

    Raises:
        ValueError: text that is neither, or a layout that cannot be.
    """
    pairs = [(SHORT.get(k.lower(), k.lower()), value) for k, value in _TYPED.findall(text)]
    if pairs and all(name in CHOICES for name, _ in pairs) and "--" not in text:
        free = tuple(pair for pair in asked.limits if pair[0] not in dict(pairs))
        question = plan_data.others(asked, limits=free + tuple(pairs))
        found = plan_data.planned(question)
        rows = found.ranked if found.fitting else found.smallest
        return Chosen("yours", found.question.training(found.layout(0, rows)))
    layout = load(text, gpus=asked.gpus).layout
    if float(layout.gpus) != asked.gpus:
        raise ValueError(f"it is for {layout.gpus:,.0f} GPUs, and the sidebar says {asked.gpus:,}")
    question = plan_data.planned(asked).question
    return Chosen("yours", question.training(replace(layout, imbalance=asked.imbalance)))


def _gpus(asked: Asked, best: Chosen, now: Chosen | None) -> list[Chosen]:
    """The same job on more or fewer."""
    near = [asked.gpus * n // 8 for n in (1, 2, 4, 16, 32, 64) if asked.gpus * n >= 8]
    counts = st.pills("GPUs", near, default=[asked.gpus * 2], key="compare_gpus",
                      selection_mode="multi", format_func=lambda n: f"{n:,}")  # fmt: skip
    named = [Chosen(f"{asked.gpus:,} GPUs", best.job)]
    return named + _each(asked, [(f"{n:,} GPUs", {"gpus": n}) for n in counts])


def _clusters(asked: Asked, best: Chosen, now: Chosen | None) -> list[Chosen]:
    """The same job on as many GPUs of other clusters."""
    names = [name for name in state.cluster_names() if name != asked.cluster.name]
    usual = [name for name in ("dgx-b200-superpod",) if name in names]
    picked = st.multiselect("Clusters", names, usual, key="compare_clusters",
                            max_selections=MOST - 1)  # fmt: skip
    named = [Chosen(asked.cluster.name, best.job)]
    return named + _each(asked, [(n, {"cluster": state.cluster(n)}) for n in picked])


def _models(asked: Asked, best: Chosen, now: Chosen | None) -> list[Chosen]:
    """Other models on the same GPUs."""
    names = [name for name in presets.presets() if name != asked.model.name]
    picked = st.multiselect("Models", names, names[:1], key="compare_models",
                            max_selections=MOST - 1)  # fmt: skip
    named = [Chosen(asked.model.name, best.job)]
    return named + _each(asked, [(n, _of_model(asked, n)) for n in picked])


def _of_model(asked: Asked, name: str) -> dict[str, Any]:
    """What changes with the model: one without experts has no busiest rank of them."""
    model = presets.preset(name).model
    return {"model": model, "imbalance": asked.imbalance if model.experts else 1.0}


def _each(asked: Asked, changes: list[tuple[str, dict[str, Any]]]) -> list[Chosen]:
    """The best layout of each change of a question; what has none says why."""
    made = []
    for name, change in changes:
        try:
            made.append(plan_data.best(plan_data.others(asked, **change), name))
        except ValueError as error:
            st.warning(f"{name}: {str(error).removeprefix(f'{name}: ')}.", icon=":material/block:")
    return made
