"""The Plan page below the answer: the field of all layouts, the top of the ranking, what would help, the file."""

from __future__ import annotations

import streamlit as st

from dashboard import layout_bar, live_chart, parts, plan_data, state
from dashboard import plan_figures as figures
from dashboard.layout_links import explain_button, place_button
from dashboard.plain_table import table_html
from dashboard.plan_data import Asked, Chosen
from roofline import plan_text
from roofline.describe import degrees, describe
from roofline.explain import versus
from roofline.export import FORMATS, export
from roofline.planner import Plan
from roofline.space import CHOICES
from roofline.units import show

SMALLEST = "smallest"  # needs the least memory, where nothing fits
PICK = "pick"  # of the address: the choices of the layout looked at


def picked(found: Plan) -> Chosen | None:
    """The layout that somebody chose, if it can be here; else None, told."""
    word = st.query_params.get(PICK) or st.session_state.get(PICK)
    if not word:
        return None
    try:
        chosen = plan_data.from_code(found, word)
    except ValueError as error:
        st.info(f"The layout chosen before is not possible here ({error}): the best one is shown.",
                icon=":material/info:")  # fmt: skip
        unpick()
        return None
    st.session_state[PICK] = st.query_params[PICK] = word
    return chosen


def unpick() -> None:
    """Back to the best layout."""
    st.session_state.pop(PICK, None)
    st.query_params.pop(PICK, None)


def pick(word: str) -> None:
    """Look at the layout of this word from now on."""
    st.session_state[PICK] = st.query_params[PICK] = word


def clicked() -> None:
    """Take the layout of the point that was clicked."""
    word = st.session_state["plan-field"].get("clicked")
    if isinstance(word, str):
        pick(word)


def the_field(asked: Asked, found: Plan, best: Chosen | None, now: Chosen) -> None:
    """All layouts by memory and step time; beside them the one looked at."""
    drawn = plan_data.points(asked)
    left, right = st.columns([3, 2], gap="large")
    out = found.seen - found.fitting
    with left:
        panel = live_chart.Panel(
            figures.field(drawn, found.question.cluster.hbm_bytes, found.question.room, best, now),
            f"Memory against step time of {found.seen:,} layouts; {found.fitting:,} fit",
            "Every layout",
            f"{found.fitting:,} of {found.seen:,} fit",
            f"; {out:,} need more than {show(found.question.room, 'B')} a GPU.",
            "Click a point to look at its layout. Crosses do not fit: hover says by how much. The "
            "green line: no other layout is both faster and smaller. Layouts beyond four times the "
            "best step or the memory are left out.",
        )
        live_chart.draw_panels([panel], "plan-field", clicked)
        parts.downloads("layouts", lambda: _drawn(drawn), "plan-layouts")
    with right:
        looked_at(best, now, asked.framework)


def looked_at(best: Chosen | None, now: Chosen, framework: str) -> None:
    """The layout that the rest of the page is about."""
    same = best is not None and now.layout == best.layout
    title = "The best layout" if same else "The layout chosen"
    st.subheader("The smallest layout" if now.name == SMALLEST else title, anchor=False)
    st.markdown(f"**{degrees(now.layout)}**  \n{_rest(now)}")
    one = now.numbers
    st.markdown(
        f"{show(one.seconds, 's')} a step · {show(one.memory, 'B')} of {show(one.capacity, 'B')}"
    )
    if not same and best is not None:
        st.markdown(f"Beside the best: {_because(best, now)}")
    with st.container(horizontal=True, gap="small"):
        explain_button(now.layout, framework, "plan")
        place_button(now.layout, "plan")
        if not same and best is not None:
            st.button("Back to the best", on_click=unpick, icon=":material/undo:", type="tertiary")
    if best is not None:
        st.caption("What would help, scaling and the launch file below are of this layout.")


def _rest(chosen: Chosen) -> str:
    """Everything that a layout says beyond its degrees."""
    rest = describe(chosen.layout).removeprefix(degrees(chosen.layout)).removeprefix(", ")
    return rest[:1].upper() + rest[1:]


def _because(best: Chosen, other: Chosen) -> str:
    """What separates a layout from the best, without its name."""
    return versus(best.job, other.job).removeprefix(f"{degrees(other.layout)} is ") + "."


def _drawn(drawn: plan_data.Field) -> dict[str, object]:
    """The points of the picture as columns, in SI units."""
    words = [
        words.replace("<br>", ", ").replace("<b>", "").replace("</b>", "") for words in drawn.words
    ]
    rows = {name: drawn.rows[name] for name in (*CHOICES, "complexity", "fits")}
    times = {"step [s]": drawn.rows["seconds"], "memory [B]": drawn.rows["memory"]}
    return {"layout": words, **times, **rows}


def _columns(found: Plan) -> dict[str, list[object]]:
    rows = plan_text.table(found, len(found.ranked.get("seconds", ())))
    return {name: [row[name] for row in rows] for name in rows[0]} if rows else {}


def top(asked: Asked, found: Plan, best: Chosen) -> None:
    """The best of each way to cut the GPUs, and what separates it from the first."""
    listed = plan_data.ways(asked)
    st.subheader("The best of each way to cut the GPUs", anchor=False)
    st.html(table_html([_row(number, one, best) for number, one in enumerate(listed, 1)]))
    with st.container(horizontal=True, gap="small", vertical_alignment="center"):
        st.caption("Look at", width="content")
        for number, one in enumerate(listed, 1):
            st.button(str(number), key=f"plan-look-{number}", on_click=pick, type="tertiary",
                      args=(one.code,), help=degrees(one.layout))  # fmt: skip
    parts.downloads("ranking", lambda: _columns(found), "plan-ranking")


def _row(number: int, one: Chosen, best: Chosen) -> dict[str, str]:
    numbers = one.numbers
    return {
        "": str(number),
        "layout": degrees(one.layout),
        "the rest": _rest(one),
        "step": show(numbers.seconds, "s"),
        "against the best": f"{numbers.seconds / best.numbers.seconds - 1:+.1%}"
        if number > 1
        else "",
        "memory": show(numbers.memory, "B"),
        "what separates it": versus(best.job, one.job).partition(": ")[2] or "–",
    }


def what_would_help(found: Plan, now: Chosen) -> None:
    """Rates doubled, choices changed."""
    said = plan_data.helpful(found.question, now)
    first = said.rates[0]
    changed = figures.telling(said.choices)
    quick = next((row for row in changed if row.fits and row.slower < 0), None)
    blocked = next((row for row in changed if not row.fits and row.slower < 0), None)
    rest = "; no single change that fits is faster."
    strong = "Nothing else to choose"
    if quick is not None:
        strong = f"{figures.choice_words(quick)}: {quick.slower:+.1%}"
        rest = ", and it fits."
    elif blocked is not None:
        strong = f"{figures.choice_words(blocked)} would bring {-blocked.slower:.1%}"
        rest = f", but needs {show(blocked.memory, 'B')} a GPU."
    elif changed:
        strong = "No single change is faster"
        rest = f"; the nearest, {figures.choice_words(changed[0])}, costs {changed[0].slower:.1%}."
    live_chart.draw_panels(
        [
            live_chart.Panel(
                figures.rates(said.rates),
                "Change of the step time with each rate of the machine doubled",
                "What hardware would help",
                f"Twice the {first.name}: {first.doubled - 1:+.1%}",
                " step time, the layout staying as it is.",
            ),
            live_chart.Panel(
                figures.choices(said.choices),
                "Change of the step time with one choice of the layout changed",
                "What another choice would do",
                strong,
                rest,
                "One choice changed, all others kept. Hatched, ✗: does not fit the memory.",
            ),
        ],
        "plan-help",
    )


def scaling(found: Plan, now: Chosen) -> None:
    """More GPUs for this layout, axis by axis."""
    curves = plan_data.scaled(found.question, now.layout)
    panels = [
        live_chart.Panel(
            figures.scaling(axes),
            f"Tokens per second and GPU against the number of GPUs where {case}",
            f"More GPUs, where {case}",
            "Pays",
            figures.pays(axes),
            "Open markers do not fit; a curve ends where its axis no longer divides.",
        )
        for case, axes in curves.items()
        if axes
    ]
    if panels:
        live_chart.draw_panels(panels, "plan-scaling")


@st.fragment
def launch(now: Chosen) -> None:
    """The layout as a file of each framework."""
    st.subheader("Launch it", anchor=False)
    titles = {row.title: name for name, row in FORMATS.items()}  # an address holds what is shown
    title = st.segmented_control(
        "Format", list(titles), default=FORMATS["megatron"].title, key="launch", required=True,
        label_visibility="collapsed", **layout_bar.KEPT,
    )  # fmt: skip
    state.warn_refused("launch")
    name = titles[title or FORMATS["megatron"].title]
    row = FORMATS[name]
    try:
        text = export(now.job, name)
    except ValueError as error:
        st.warning(f"{row.title}: {error}", icon=":material/block:")
        return
    st.download_button(
        f"Download {row.suffix}", str(text), f"launch-{name}{row.suffix}", key="plan-download",
        icon=":material/download:", on_click="ignore",
    )  # fmt: skip
    if text.notes:
        st.warning("This format cannot say everything: " + "; ".join(text.notes) + ".",
                   icon=":material/rule:")  # fmt: skip
    if row.write is None:
        st.caption("The predicted step, pass by pass: open it in Perfetto or chrome://tracing.")
        return
    st.code(str(text), language=row.language, height=360)
