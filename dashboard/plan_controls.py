"""Controls of the Plan page: framework, memory that stays free, limits; all of them in the address."""

from __future__ import annotations

from typing import Any, NamedTuple

import streamlit as st

from dashboard import layout_bar, state
from dashboard.plan_data import Asked
from dashboard.state import Scenario
from roofline.export import FORMATS
from roofline.layout import RECOMPUTE, SCHEDULE
from roofline.limits import FRAMEWORKS
from roofline.model import Transformer
from roofline.planner import HEADROOM

KEPT = layout_bar.KEPT
USUAL = round(100 * HEADROOM)
KEPT_FREE = [0, 5, USUAL, 10, 15, 20, 30]  # percent
LAUNCHES = {"fsdp": "torchtitan", "any": "megatron"}  # of what format, where the name is none
HOW = "One value (8), several (2,4) or a range (1-8); empty: whatever is sensible"


class Limited(NamedTuple):
    """A limit that people state."""

    label: str
    help: str
    names: tuple[str, ...] = ()


SHOWN = {
    "tp": Limited("TP", "Tensor parallel ranks"),
    "cp": Limited("CP", "Context parallel ranks"),
    "ep": Limited("EP", "Expert parallel ranks"),
    "pp": Limited("PP", "Pipeline stages"),
    "micro_batch": Limited("Micro-batch", "Sequences of one pass"),
}
MORE = {
    "chunks": Limited("Chunks of a stage", "More than 1 interleaves 1F1B"),
    "etp": Limited("Expert TP", "Ranks that split an expert's matrices"),
    "zero": Limited("ZeRO stage", "0 to 3"),
    "offload_share": Limited("Offloaded share", "Of the activations, to the host: 0 to 1"),
    "recompute": Limited("Recompute", "What may be computed again", tuple(RECOMPUTE)),
    "schedule": Limited("Schedule", "Orders of passes that are allowed", tuple(SCHEDULE)),
}
KEYS = {name: f"want_{name}" for name in (*SHOWN, *MORE)}


def controls(scenario: Scenario, model: Transformer) -> Asked:
    """Draw them; the question to the planner."""
    with st.container(horizontal=True, gap="small", vertical_alignment="bottom"):
        framework = st.selectbox(
            "Framework", list(FRAMEWORKS), list(FRAMEWORKS).index("megatron"), key="framework",
            help="What it can run, and its habits: Megatron overlaps tensor parallelism in chunks, "
            "others do not", width=132, on_change=_launch, **KEPT,
        )  # fmt: skip
        free = st.selectbox(
            "Kept free [%]", KEPT_FREE, KEPT_FREE.index(USUAL), key="headroom",
            width=116,
            help="Share of a GPU's memory that a layout must leave: allocators retry near the end",
            **KEPT,
        )  # fmt: skip
        for name, row in SHOWN.items():
            if name != "ep" or model.experts:
                _limit(name, row, 112 if name == "micro_batch" else 84)
        uneven = _imbalance() if model.experts else 1.0
        with st.popover("More limits", icon=":material/tune:", type="tertiary"):
            for name, row in MORE.items():
                _limit(name, row)
        if stated():
            st.button("No limits", icon=":material/filter_alt_off:", type="tertiary", on_click=drop)
    state.warn_refused("framework", "headroom", "uneven", *KEYS.values())
    tokens = round(float(scenario.work.tokens))
    return Asked(
        model, scenario.profile, scenario.gpus, tokens, scenario.sequence, scenario.work.dtype,
        scenario.rates, framework or "any", (free or 0) / 100, tuple(stated().items()),
        uneven,
    )  # fmt: skip


def _imbalance() -> float:
    return st.number_input(
        "Imbalance", *layout_bar.BOUNDS["imbalance"][:2], step=0.1, key="uneven", width=110,
        help="Tokens of the busiest expert rank over the mean of all; 1: balanced", **KEPT,
    )  # fmt: skip


def _limit(name: str, row: Limited, width: Any = "stretch") -> None:
    if row.names:
        st.multiselect(
            row.label, row.names, key=KEYS[name], help=row.help, placeholder="any", **KEPT
        )
        return
    st.text_input(row.label, key=KEYS[name], placeholder="any", help=f"{row.help}. {HOW}",
                  width=width, max_chars=60, **KEPT)  # fmt: skip


def stated() -> dict[str, Any]:
    """Limits that are set, as the planner takes them."""
    found: dict[str, Any] = {}
    for name, key in KEYS.items():
        value = st.session_state.get(key)
        if isinstance(value, str) and value.strip():
            found[name] = value.strip()
        elif value and not isinstance(value, str):
            found[name] = tuple(value)
    return found


def drop(*names: str) -> None:
    """Forget these limits, or all."""
    for name in names or KEYS:
        row = (SHOWN | MORE)[name]
        st.session_state[KEYS[name]] = [] if row.names else ""


def demand(values: dict[str, str]) -> None:
    """Give limits other values."""
    for name, value in values.items():
        row = (SHOWN | MORE).get(name)
        if row:
            st.session_state[KEYS[name]] = value.split(",") if row.names else value


def _launch() -> None:
    """A framework's own file is the first that is shown."""
    name = st.session_state["framework"]
    st.session_state["launch"] = FORMATS[LAUNCHES.get(name, name)].title
