"""The Explain page's first line of numbers, and what a measured step time says."""

from __future__ import annotations

from typing import Any

import numpy as np
import streamlit as st

from dashboard import explain_figures as figures
from dashboard import live_chart, parts, state
from dashboard.explain_data import Explained, Predicted, share
from dashboard.layout_bar import KEPT
from dashboard.plain_table import table_html
from dashboard.words import linked, plain
from roofline.layout import RECOMPUTE, Layout
from roofline.model_flops import CONVENTIONS
from roofline.outcome import Outcome, outcome
from roofline.suspects import Suspicion, suspects
from roofline.training import ACHIEVABLE
from roofline.training import basis as rates_basis
from roofline.units import DAY, parse, show

SHOWN = 10  # suspects
DEFAULT_BUDGET = "15T"
SETTINGS = ("budget", "price", "power", "convention")


def basis(scenario: state.Scenario) -> None:
    """Where a step is no forecast: say so, with the way to one if there is any."""
    if scenario.overlay is not None and scenario.overlay.step is not None:
        return
    known = state.overlay_of(scenario.profile.accelerator.name)
    with st.container(horizontal=True, gap="small", vertical_alignment="center"):
        st.caption(plain(rates_basis(scenario.profile, None)), width="content")
        if known is not None and known.step is not None:
            st.button("Use achievable rates", on_click=state.choose_rates, args=(ACHIEVABLE,),
                      type="tertiary", icon=":material/speed:")  # fmt: skip


def hero(found: Predicted) -> None:
    """Step time with its band, utilisation, rate, memory, days and money."""
    where = st.container(horizontal=True, gap="small")
    brought = _settings(found)
    if brought is None:
        return
    seconds, wide, near = found.seconds, brought.wide, brought.typical
    with where:
        band = "no forecast"
        if near and wide:
            band = f"± {share(float(np.asarray(near.high)) - seconds, seconds)} typically"
        _card("Step time", show(seconds, "s"), band, brought.sentence())
        _card("MFU", _percent(brought.mfu), f"HFU {_percent(brought.hfu)}",
              f"{brought.counting()} Over {show(float(brought.peak), 'FLOP/s')} {brought.dtype} of "
              "a GPU. HFU counts what recomputation runs again.")  # fmt: skip
        rate = float(np.asarray(brought.tokens_per_second_per_gpu))
        _card("Tokens/s a GPU", show(rate),
              f"{show(float(np.asarray(brought.flops_per_second_per_gpu)), 'FLOP/s')}",
              f"{show(float(np.asarray(brought.tokens_per_second)))} tokens/s in all")  # fmt: skip
        _card("Memory", show(found.memory, "B"),
              f"{found.memory / found.capacity:.0%} of {show(found.capacity, 'B')}",
              "Of the fullest stage's GPU, with fragments, NCCL and the CUDA context")  # fmt: skip
        if brought.budget is not None:
            _card_of_budget(brought)
    if found.memory > found.capacity:
        st.warning(
            f"This does not fit: {show(found.memory - found.capacity, 'B')} too much on the fullest "
            f"stage. {_helps(found.job.layout)} help.",
            icon=":material/memory:",
        )
    held = (
        brought.sentence() if found.job.fit is not None else ""
    )  # else the top of the page says it
    st.caption(f"{held} {_energy(brought)}")


def _helps(layout: Layout) -> str:
    """What takes less memory than a layout, as far as it does not do it yet."""
    ways = ["More tensor or pipeline parallelism"]
    if layout.zero < 3 and layout.dp > 1:
        ways.append("a higher ZeRO stage")
    if layout.recompute != RECOMPUTE["full"]:
        ways.append("recomputation")
    *others, last = [*ways, "more GPUs"]
    return f"{', '.join(others)} or {last}"


def where_time_goes(found: Predicted, key: str = "explain") -> None:
    """The step bar, with what it adds up to."""
    first, *more = sorted(found.terms.items(), key=lambda term: -term[1])
    said = ", ".join(f"{name} {share(seconds, found.seconds)}" for name, seconds in more[:3])
    panel = live_chart.Panel(
        figures.step_bar(found),
        f"A step of {show(found.seconds, 's')} by term: {first[0]} {show(first[1], 's')}; {said}",
        "Where the time of a step goes",
        f"{first[0]} {share(first[1], found.seconds)}",
        f", then {said}." if said else ".",
        "Solid: compute. Hatched: communication that is waited for, and waiting.",
    )
    live_chart.draw_panels([panel], f"{key}-step")
    parts.downloads("terms", lambda: {
        "term": list(found.job.time.terms),
        "time [s]": [float(np.asarray(each)) for each in found.job.time.terms.values()],
    }, f"{key}-terms")  # fmt: skip


def _card(label: str, value: str, below: str, help: str = "") -> None:
    st.metric(label, value, below, delta_color="off", delta_arrow="off", border=True, width="stretch",
              help=help or None)  # fmt: skip


def _card_of_budget(brought: Outcome) -> None:
    """Days, and what they cost: money where a price is stated, GPU hours where none is."""
    budget = show(float(np.asarray(brought.budget)), "", 4).strip()
    time = float(np.asarray(brought.training_seconds))
    hours = f"{show(float(np.asarray(brought.gpu_hours)))} GPU hours"
    told = [f"{time / DAY:,.4g} days without interruptions, {hours}."]
    cost = hours
    if brought.price is not None:
        cost = f"${show(float(np.asarray(brought.money)))}"
        told.append(f"Rent at ${brought.price:g} a GPU hour ({plain(brought.price_source)}).")
    else:
        told.append("State a price under Budget and price to see money.")
    _card(f"{budget} tokens in", show(time, "s"), cost, " ".join(told).replace("$", "\\$"))


def _energy(brought: Outcome) -> str:
    """What the budget's tokens take, where the power of a GPU is known."""
    if brought.budget is None or brought.power is None:
        return ""
    watt_hours = 1e3 * float(np.asarray(brought.kilowatt_hours))  # for a unit with a prefix
    return f"All tokens take the GPUs at most {show(watt_hours)}Wh, at {brought.power:g} W each."


def _percent(value: Any) -> str:
    return f"{100 * float(np.asarray(value)):.3g} %"


def _settings(found: Predicted) -> Outcome | None:
    """Budget, price, power and convention, in a corner: they change no time."""
    chip = found.job.cluster.accelerator
    state.carried(*SETTINGS)
    with st.popover("Budget and price", icon=":material/payments:", type="tertiary"):
        text = st.text_input("Tokens to train on", DEFAULT_BUDGET, key="budget",
                             help="Such as 15T, 300e9 or 2Ti", **KEPT)  # fmt: skip
        price = st.number_input("Price of a GPU hour [$]", 0.0, 1e4, found.job.cluster.price,
                                key="price", placeholder="not stated", **KEPT)  # fmt: skip
        power = st.number_input("Power of a GPU [W]", 0.0, 1e5, chip.power, key="power",
                                placeholder="not stated", **KEPT)  # fmt: skip
        if chip.power:
            st.caption(f"{chip.power:g} W is the limit of the datasheet: "
                       f"{linked(chip.source_of('power'))}")  # fmt: skip
        titles = {row.title: name for name, row in CONVENTIONS.items()}
        title = st.selectbox("FLOPs of MFU", list(titles), key="convention", **KEPT)
        convention = titles[title]
    state.carry(*SETTINGS)
    state.warn_refused(*SETTINGS)
    own = None if power == chip.power else power
    try:
        budget = parse(f"{text}B", "B") if text.strip() else None
        return outcome(found.job, convention=convention, budget=budget, price=price, power=own)
    except ValueError as error:
        st.error(f"Tokens to train on: {plain(text)} is no number of tokens; allowed: such as 15T "
                 f"or 300e9 ({plain(str(error))})", icon=":material/error:")  # fmt: skip
    return outcome(found.job, convention=convention, price=price, power=own)


@st.fragment
def measured(found: Explained) -> None:
    """A measured step time, and what could explain it."""
    st.subheader("Measured something else?", anchor=False)
    seconds = st.number_input(
        "Measured step time [s]", 0.0, 1e6, None, format="%.4g", key="measured", width=260,
        placeholder=f"predicted: {found.seconds:.4g}",
        help="Seconds of one optimizer step of your job in this layout", **state.BIND,
    )  # fmt: skip
    state.warn_refused("measured")
    if not seconds:
        st.caption("Put in the step time of your job: each thing that may be otherwise than the "
                   "layout above says is predicted anew and ranked by how well it explains the "
                   "difference.")  # fmt: skip
        return
    said = suspects(found.job, float(seconds))
    (st.success if said.within else st.warning)(
        said.sentence(),
        icon=":material/check_circle:" if said.within else ":material/troubleshoot:",
    )
    if said.suspects:
        st.html(table_html(_suspect_rows(said)))


def _suspect_rows(said: Suspicion) -> list[dict[str, str]]:
    return [
        {
            "suspect": each.name,
            "a step would take": show(each.seconds, "s"),
            "explains": f"{each.explained:.0%}",
            "what to look at": each.story
            or f"this term would have to be {each.factor:.3g} times as long",
        }
        for each in said.suspects[:SHOWN]
    ]
