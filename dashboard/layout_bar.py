"""The current layout: one set of controls and one state for every page that needs it, kept in the address.

Until somebody touches it, the layout follows the scenario: the smallest that fits. A layout that cannot be ends in a
message that names the constraint, with the nearest that can be as buttons.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import streamlit as st

from dashboard import state
from dashboard.state import Scenario
from roofline.first_layout import first
from roofline.fitting import Misfit, check
from roofline.layout import FLASH, ORDER, OVERLAP, RECOMPUTE, RING, SCHEDULE, ZERO_KIND, Layout
from roofline.limits import Framework
from roofline.model import Transformer
from roofline.planner import resized
from roofline.recipes import RECIPES
from roofline.training import kept_of

KEPT: dict[str, Any] = {"persist_state": "session", **state.BIND}
MOST = 131_072


class Control(NamedTuple):
    """A control of a whole number, or of a few named values."""

    field: str
    label: str
    help: str
    rows: Mapping[str, int] = {}


NUMBERS = {
    "tp": Control("tp", "TP", "Tensor parallel: ranks that split every layer's matrices"),
    "cp": Control("cp", "CP", "Context parallel: ranks that split the sequence"),
    "ep": Control("ep", "EP", "Expert parallel: ranks that split the experts; 1 for dense models"),
    "pp": Control("pp", "PP", "Pipeline stages"),
    "chunks": Control("chunks", "Chunks", "Runs of layers per stage: more than 1 interleaves 1F1B"),
    "micro": Control("micro_batch", "Micro-batch", "Sequences of one pass through a replica"),
}
CHOICES = {
    "zero": Control("zero", "ZeRO", "0: DDP; 1: optimizer states sharded; 2: gradients too; 3: "
                   "weights too, as FSDP does", {str(n): n for n in range(4)}),
    "schedule": Control("schedule", "Schedule", "Order of passes in the pipeline", SCHEDULE),
    "recompute": Control("recompute", "Recompute", "attention: q kᵀ and a v alone; block: all but "
                        "the last matmul; half: half of the layer; full: the whole layer; modules: norms, "
                         "activations and MLA up-projections", RECOMPUTE),
}  # fmt: skip
MORE = {
    "overlap": Control("tp_overlap", "TP overlap", "backward: behind weight gradients; fine: "
                      "matmuls cut into chunks", OVERLAP),
    "cp_kind": Control("cp_kind", "Context parallelism by", "How keys and values travel", RING),
    "flash": Control("attention", "Attention kernel", "Of what generation", FLASH),
    "order": Control("order", "Order of the ranks", "Innermost first: which axes lie on the "
                     "faster tiers", ORDER),
    "zero_kind": Control("zero_kind", "ZeRO-1 by", "How gradients are reduced, and weights spread",
                         ZERO_KIND),
    "grads": Control("gradient_bytes", "Gradients sent in", "Megatron sums and sends them in fp32, "
                     "or both in 16 bits", {"16 bits": 2, "fp32": 4}),
    "even": Control("even", "Embedding and head", "What they count as when layers are dealt out to "
                    "stages", {"on top of the layers": 0, "as a layer each": 1, "cut by hand": 2}),
}  # fmt: skip
MORE_NUMBERS = {
    "etp": Control("etp", "Expert TP", "Ranks that split the matrices of an expert"),
    "shard": Control("shard", "FSDP over", "Ranks that ZeRO-3 shards over; 0: all replicas"),
    "lora": Control("lora_rank", "LoRA rank", "Of adapters on every matrix of the layers, which "
                    "alone are trained; 0: all weights are"),
}  # fmt: skip
SHARES = {
    "again_share": Control("recompute_share", "Layers recomputed", "Share of them"),
    "offload": Control("offload_share", "Offloaded", "Share of the activations on the host"),
    "imbalance": Control("imbalance", "Busiest expert rank", "Its tokens over the mean of the expert "
                         "ranks; 1: all alike"),
}  # fmt: skip
BOUNDS = {"imbalance": (1.0, 64.0, 0.1)}  # least, most, step; of others 0 to 1 by a quarter
TOGGLES = {
    "sp": ("sequence_parallel", "Sequence parallel", True,
           "Token-wise work is split over the tensor-parallel ranks too"),
    "dp_overlap": ("dp_overlap", "DP overlap", True, "Gradients and weights travel behind compute"),
    "pp_overlap": ("pp_overlap", "PP overlap", True, "Sends between chunks hide behind passes"),
    "fused_loss": ("fused_loss", "Fused loss", False, "Logits never stand in memory in fp32"),
    "graphs": ("graphs", "CUDA graphs", False, "Parts of a layer are launched as graphs"),
}  # fmt: skip
USUAL = {
    "schedule": "1f1b",
    "recompute": "none",
    "overlap": "backward",
    "cp_kind": "ring",
    "flash": "flash",
    "order": "tp-cp-dp-pp",
    "zero_kind": "scatter",
    "grads": "16 bits",
    "even": "on top of the layers",
}
KEYS = (*NUMBERS, *CHOICES, *MORE, *MORE_NUMBERS, *SHARES, *TOGGLES)
NAMES = {row.field: row.label for row in (*NUMBERS.values(), *CHOICES.values(), *MORE.values(),
                                         *MORE_NUMBERS.values())}  # fmt: skip
NAMES |= {"gpus": "GPUs", "batch": "Batch", "sequence": "Sequence"}
KEY_OF = {row.field: key for key, row in (NUMBERS | CHOICES | MORE | MORE_NUMBERS).items()}


def layout_bar(
    scenario: Scenario, model: Transformer, base: Layout, whose: Framework | None = None
) -> Layout | None:
    """Draw the controls; the layout, or None where it cannot be and the reason is on the page.

    Args:
        base: what the controls do not show.
        whose: the framework that has to be able to do it.
    """
    sequences = _one(scenario.work.tokens) / scenario.sequence
    problem = _follow(scenario, model, sequences, base, whose)
    values = _controls(scenario, model)
    sizes = {"gpus": scenario.gpus, "batch": sequences, "sequence": scenario.sequence}
    layout = replace(base, **sizes, **values)
    try:
        check(model, layout, scenario.machine, names=NAMES)
        if problem:
            raise problem
    except Misfit as error:
        _refused(error, layout, scenario)
        return None
    except ValueError as error:
        st.error(str(error), icon=":material/error:")
        return None
    return layout


def touch() -> None:
    """From now on the layout is the user's, whatever the scenario becomes."""
    st.session_state["layout_touched"] = True


def untouch() -> None:
    """Let the layout follow the scenario again."""
    st.session_state["layout_touched"] = False


def take(layout: Layout) -> None:
    """Make ``layout`` the current one: for buttons of other pages."""
    touch()
    st.session_state.update(values(layout))


def values(layout: Layout) -> dict[str, Any]:
    """What the controls show for a layout, by their keys."""
    numbers = {
        key: int(_one(getattr(layout, row.field))) for key, row in (NUMBERS | MORE_NUMBERS).items()
    }
    shares = {key: _one(getattr(layout, row.field)) for key, row in SHARES.items()}
    named = {
        key: next(
            word for word, code in row.rows.items() if code == _one(getattr(layout, row.field))
        )
        for key, row in (CHOICES | MORE).items()
    }
    flags = {key: _one(getattr(layout, row[0])) > 0 for key, row in TOGGLES.items()}
    return numbers | shares | named | flags


def _follow(
    scenario: Scenario,
    model: Transformer,
    sequences: float,
    base: Layout,
    whose: Framework | None,
) -> ValueError | None:
    """Put the scenario's own layout into the controls, unless they are somebody's choice."""
    asked = st.session_state.get("asked", {})
    touched = st.session_state.setdefault("layout_touched", any(key in asked for key in KEYS))
    plain = replace(Layout(scenario.gpus), **whose.only() if whose else {})
    for key, value in values(plain).items():
        if key not in asked:
            st.session_state.setdefault(key, value)
    if touched:
        return None
    precision = scenario.work.dtype
    kept = kept_of(whose.recipe(precision), precision) if whose else RECIPES["mixed"]
    try:
        found = first(model, scenario.machine, scenario.gpus, sequences, scenario.sequence, kept)
    except ValueError as error:
        return error
    st.session_state.update(values(whose.cut_as(found.layout, base) if whose else found.layout))
    return None


def _controls(scenario: Scenario, model: Transformer) -> dict[str, Any]:
    values: dict[str, Any] = {}
    with st.container(horizontal=True, gap="small", vertical_alignment="bottom"):
        for key, number in NUMBERS.items():
            if key == "ep" and not model.experts and st.session_state.get("ep", 1) == 1:
                continue
            values[number.field] = st.number_input(
                number.label, 1, MOST, key=key, help=number.help, width=98, on_change=touch, **KEPT
            )
        split = values["tp"] * values["cp"] * values["pp"]
        st.text_input("DP", f"{scenario.gpus / split:g}", disabled=True, width=80,
                      help="Replicas: what TP · CP · PP leave of the GPUs")  # fmt: skip
        zero = st.segmented_control(
            "ZeRO", list(CHOICES["zero"].rows), default="1", key="zero", required=True,
            help=CHOICES["zero"].help, on_change=touch, **KEPT,
        )  # fmt: skip
        values["zero"] = int(zero or 1)
        for key in ("schedule", "recompute"):
            values[CHOICES[key].field] = _choose(key, CHOICES[key])
        with st.popover("More", icon=":material/tune:"):
            for key, row in MORE.items():
                values[row.field] = _choose(key, row)
            for key, row in MORE_NUMBERS.items():
                values[row.field] = st.number_input(row.label, int(key == "etp"), MOST, key=key,
                                                    help=row.help, on_change=touch, **KEPT)  # fmt: skip
            for key, row in SHARES.items():
                if key == "imbalance" and not model.experts:
                    continue
                least, most, step = BOUNDS.get(key, (0.0, 1.0, 0.25))
                values[row.field] = st.number_input(row.label, least, most, step=step, key=key,
                                                    help=row.help, on_change=touch, **KEPT)  # fmt: skip
            for key, (field, label, usual, help) in TOGGLES.items():
                values[field] = float(
                    st.toggle(label, usual, key=key, help=help, on_change=touch, **KEPT)
                )
        st.button("Smallest that fits", icon=":material/restart_alt:", on_click=untouch,
                  type="tertiary", help="Let the layout follow the scenario again: the least model "
                  "parallelism whose memory fits")  # fmt: skip
    state.warn_refused(*(key for key in KEYS if key in st.session_state))
    return values


def _choose(key: str, row: Control) -> int:
    names = list(row.rows)
    chosen = st.selectbox(row.label, names, names.index(USUAL[key]), key=key, help=row.help,
                          width=128, on_change=touch, **KEPT)  # fmt: skip
    return row.rows[chosen]


def _refused(error: Misfit, layout: Layout, scenario: Scenario) -> None:
    """The constraint, and a button for each way out."""
    st.error(f"{error}.", icon=":material/error:")
    field = next((name for name, label in NAMES.items() if label == error.field), error.field)
    with st.container(horizontal=True, gap="small"):
        for value in error.nearest:
            way_out(f"{error.field} {value:,.10g}", field, value, layout, scenario)
        st.button("Smallest that fits", key="mend-all", on_click=untouch,
                  icon=":material/restart_alt:")  # fmt: skip


def way_out(text: str, field: str, value: float, layout: Layout, scenario: Scenario) -> None:
    """A button that sets a field of the layout; none where no widget can."""
    values = _set(field, value, layout, scenario)
    if not values:
        return
    pressed = st.button(text, key=f"mend-{field}-{value}", on_click=_mend, args=(values,),
                        icon=":material/auto_fix_high:")  # fmt: skip
    if pressed and not set(values) <= set(KEYS):
        st.rerun()  # the sidebar changed, and not this part of the page alone


def _mend(values: Mapping[str, Any]) -> None:
    touch()
    st.session_state.update(values)


def _set(field: str, value: float, layout: Layout, scenario: Scenario) -> dict[str, Any]:
    """Values of the widgets that set a field of the layout; none where no widget can."""
    if field in KEY_OF:
        row = (NUMBERS | CHOICES | MORE | MORE_NUMBERS)[KEY_OF[field]]
        return {KEY_OF[field]: list(row.rows)[int(value)] if row.rows else int(value)}
    if field == "gpus":
        try:
            resized(scenario.profile, int(value))
        except ValueError:
            return {}
        return {"gpus": int(value)}
    if field == "sequence":
        return {"sequence": int(value)} if value in state.SEQUENCES else {}
    if field == "batch":
        text = f"{value * scenario.sequence:.0f}"
        return {"token_stops": [text], "tokens": text}
    return {}


def _one(value: Any) -> float:
    return float(np.asarray(value))


def words(layout: Layout) -> str:
    """The layout in one line: only what is split, and choices that differ from the usual."""
    degrees = [f"{row.label} {_one(getattr(layout, row.field)):g}" for row in NUMBERS.values()
               if row.field not in ("chunks", "micro_batch") and _one(getattr(layout, row.field)) > 1]  # fmt: skip
    said = [" × ".join([*degrees, f"DP {_one(layout.dp):g}"]), f"ZeRO-{_one(layout.zero):g}"]
    said.append(f"micro-batch {_one(layout.micro_batch):g} × {_one(layout.microbatches):g}")
    if _one(layout.pp) > 1:
        chunks = _one(layout.chunks)
        name = list(SCHEDULE)[int(_one(layout.schedule))]
        said.append(f"interleaved × {chunks:g}" if chunks > 1 else name)
    recompute = list(RECOMPUTE)[int(_one(layout.recompute))]
    if _one(layout.lora_rank):
        said.append(f"LoRA of rank {_one(layout.lora_rank):g}")
    return " · ".join([*said, f"recompute {recompute}"] if recompute != "none" else said)
