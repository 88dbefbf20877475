"""When there is no answer: what is in the way, and buttons for the ways out that work."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import streamlit as st

from dashboard import plan_controls, plan_data
from dashboard.plan_data import Asked
from roofline.describe import describe
from roofline.planner import Plan
from roofline.units import show

FURTHER = 8  # doublings of the GPUs that are tried
MOST_GPUS = 131_072
_WAY = re.compile(r"(\w+)=(\S+)")
_NUMBERS = re.compile(r"[\d,]*\d")


def nothing_fits(asked: Asked, found: Plan) -> None:
    """The layout that needs the least memory, how much, and what would make room."""
    need, room = float(found.smallest["memory"][0]), found.question.room
    layout = found.layout(0, found.smallest)
    st.error(
        f"**Nothing fits.** None of {found.seen:,} layouts leaves {asked.headroom:.0%} of "
        f"{show(asked.cluster.hbm_bytes, 'B')} free. The smallest, {describe(layout)}, needs "
        f"{show(need, 'B')} a GPU: {show(need - room, 'B')} too much.",
        icon=":material/memory:",
    )
    _buttons("What makes room", dict(_ways(asked, need)))


def _ways(asked: Asked, need: float) -> Iterator[tuple[str, dict[str, Any]]]:
    """Changes after which something fits, each with the values of its controls.

    ``need`` bytes take the smallest layout there is.
    """
    limits = plan_controls.stated()
    for name in limits:
        rest = tuple(pair for pair in asked.limits if pair[0] != name)
        if _fits(plan_data.others(asked, limits=rest)):
            label = (plan_controls.SHOWN | plan_controls.MORE)[name].label
            yield f"No limit on {label}", {"drop": (name,)}
    if asked.limits and _fits(plan_data.others(asked, limits=())):
        yield "No limits", {"drop": tuple(limits)}
    left = 100.0 * (1.0 - need / asked.cluster.hbm_bytes)
    less = [free for free in plan_controls.KEPT_FREE if free <= left]
    if less and _fits(plan_data.others(asked, headroom=less[-1] / 100)):
        yield (
            f"Keep {less[-1]} % free" if less[-1] else "Keep no memory free",
            {"headroom": less[-1]},
        )
    if asked.framework != "any" and _fits(plan_data.others(asked, framework="any")):
        yield "Any framework", {"framework": "any"}
    limit = dict(asked.limits) | {"offload_share": "0,0.5,1"}
    if _fits(plan_data.others(asked, limits=tuple(limit.items()))):
        yield "Offload activations", {"want_offload_share": "0,0.5,1"}
    gpus = asked.gpus
    for _ in range(FURTHER):
        gpus *= 2
        if gpus > MOST_GPUS:
            return
        if _fits(plan_data.others(asked, gpus=gpus)):
            yield f"{gpus:,} GPUs", {"gpus": gpus}
            return


def _fits(asked: Asked) -> bool:
    try:
        return plan_data.planned(asked).fitting > 0
    except ValueError:
        return False


def impossible(error: ValueError, asked: Asked) -> None:
    """Limits that leave nothing, or no limits at all: the planner's words, and its way out."""
    text = str(error)
    st.error(f"{text}.", icon=":material/error:")
    found: dict[str, dict[str, Any]] = {}
    if "nearest that does: " in text:
        values = dict(_WAY.findall(text.partition("nearest that does: ")[2]))
        found[", ".join(_called(name, value) for name, value in values.items())] = {"want": values}
    blamed = text.partition(":")[0]
    if blamed in plan_controls.KEYS:
        label = (plan_controls.SHOWN | plan_controls.MORE)[blamed].label
        found[f"No limit on {label}"] = {"drop": (blamed,)}
    if "or framework any" in text:
        found["Any framework"] = {"framework": "any"}
    if asked.limits:
        found["No limits"] = {"drop": tuple(plan_controls.stated())}
    for tokens in _batches(text, asked):
        words = f"{tokens:.0f}"
        found[f"{show(tokens)} tokens a batch"] = {"tokens": words, "token_stops": [words]}
    _buttons("What works", found)


def _batches(text: str, asked: Asked) -> list[int]:
    """Batches that a message names, in tokens."""
    for mark, each in (("nearest batches that do: ", asked.sequence), ("; the nearest: ", 1)):
        if mark in text:
            numbers = _NUMBERS.findall(text.partition(mark)[2])
            return [each * int(number.replace(",", "")) for number in numbers]
    return []


def _called(name: str, value: str) -> str:
    row = (plan_controls.SHOWN | plan_controls.MORE).get(name)
    return f"{row.label if row else name} {value}"


def _buttons(title: str, ways: dict[str, dict[str, Any]]) -> None:
    if not ways:
        return
    st.caption(title)
    with st.container(horizontal=True, gap="small"):
        for i, (label, values) in enumerate(ways.items()):
            st.button(label, key=f"way-{i}", icon=":material/auto_fix_high:", on_click=_take,
                      args=(values,))  # fmt: skip


def _take(values: dict[str, Any]) -> None:
    own = {name: value for name, value in values.items() if name not in ("drop", "want")}
    if "drop" in values:
        plan_controls.drop(*values["drop"])
    plan_controls.demand(values.get("want", {}))
    st.session_state.update(own)
