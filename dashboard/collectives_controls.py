"""Controls of the collectives page that several of its views share."""

from __future__ import annotations

from typing import Any

import streamlit as st

from dashboard import collectives_figures as figures
from dashboard import state
from roofline.groups import Group, spans

SOURCES = "Formula, numbers and sources"  # heading of the box that holds them


def choice(label: str, values: tuple[str, ...], default: str, key: str, help: str = "") -> str:
    """One of a few words."""
    value: str = st.segmented_control(
        label, values, default=default, key=key, help=help or None, required=True, **state.BIND
    )
    state.warn_refused(key)
    return value


def number(label: str, most: int, default: int, key: str, help: str = "") -> int:
    """A whole number from 1 to ``most``."""
    value = st.number_input(
        label, 1, most, min(default, most), key=key, help=help or None, width=130, **state.BIND
    )
    state.warn_refused(key)
    return int(value)


def message_size() -> float:
    """The point whose numbers are shown."""
    label = st.select_slider(
        "Message size",
        list(figures.LABELS),
        "1 GiB",
        key="coll_size",
        help="As nccl-tests counts it: the whole array of an all-gather, reduce-scatter, scatter "
        "or gather; what one rank holds for an all-reduce, all-to-all, broadcast or reduce; the "
        "message of a point-to-point.",
        **state.BIND,
    )
    state.warn_refused("coll_size")
    return figures.LABELS[label]


def group_controls(scenario: state.Scenario) -> Group:
    """Which ranks take part: a unit of the machine by name, or a size and a stride."""
    tiers = scenario.cluster.tiers
    named = figures.levels(tiers)
    with st.container(horizontal=True, gap="medium", vertical_alignment="bottom"):
        last = tiers[-1].name
        level = choice(
            "The group fills",
            (*named, figures.CUSTOM),
            last,
            "coll_group",
            "A unit of the cluster, every GPU in it; or one GPU of each node; or ranks and stride.",
        )
        group = named.get(level)
        if group is None:
            gpus = scenario.gpus
            size = number("Ranks in the group", gpus, int(tiers[0].degree), "coll_ranks")
            stride = number(
                "Stride", gpus, 1, "coll_stride", "Ranks between neighbours of the group"
            )
            group = Group(size, stride)
        if group.stride > 1:
            alone = st.toggle(
                "Siblings silent",
                False,
                key="coll_alone",
                help="Off: every sibling group runs the same collective at the same time, as in "
                "training, and shares the uplinks. On: this group has them for itself.",
                **state.BIND,
            )
            state.warn_refused("coll_alone")
            group = Group(group.size, group.stride, alone)
    return group


def fits(group: Group, scenario: state.Scenario) -> bool:
    """True if the machine has room for ``group``; else say why not, with ways out as buttons."""
    try:
        spans(group, scenario.cluster.tiers)
    except ValueError as error:
        st.error(str(error), icon=":material/error:")
        _ways_out(group, scenario.gpus)
        return False
    return True


def _ways_out(group: Group, gpus: int) -> None:
    with st.container(horizontal=True):
        for key, value, label in (
            ("coll_ranks", gpus // int(group.stride), "ranks"),
            ("coll_stride", gpus // int(group.size), "stride"),
        ):
            if value >= 1:
                st.button(f"{label} {value:,}", key=f"fix-{key}", on_click=put, args=(key, value))


def form() -> str:
    """With or without the (d-1)/d of rings."""
    help = "rough drops the (d-1)/d of rings, as one does on paper"
    return choice("Form", ("precise", "rough"), "precise", "coll_form", help)


def latency() -> bool:
    """Whether message steps cost time of their own."""
    on = st.toggle(
        "Latency",
        True,
        key="coll_latency",
        help="Add each tier's α for every message that has to wait for another",
        **state.BIND,
    )
    state.warn_refused("coll_latency")
    return on


def put(key: str, value: Any) -> None:
    """Give a control another value."""
    st.session_state[key] = value
