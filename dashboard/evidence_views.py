"""Two views of the Evidence page: the worked problems, and what the calibrations are worth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import streamlit as st

from dashboard import evidence_figures as figures
from dashboard import live_chart, parts, state
from dashboard.evidence_data import Published, as_rows, fitted_on
from dashboard.plain_table import table_html
from dashboard.words import linked
from hardware_profiles.calibration import calibration, calibrations
from roofline import evidence_tables, worked
from roofline.evidence_tables import percent
from roofline.units import show
from roofline.worked import Problem, Result

RELATION = {
    "rounds": "rounded",
    "last_digit": "off in the last digit",
    "loose": "approximate in the source",
    "erratum": "an erratum",
    None: "not given",
}
SHOWN = ("errata", "loose or last digit", "all", "without a formula")


@st.cache_resource(max_entries=1, show_spinner="Solving every worked problem …")
def solved() -> list[Result]:
    """Every worked problem, solved through the public formulas."""
    return worked.check()


def problems(_found: Published) -> None:
    """The worked problems: ours beside the printed value."""
    results = solved()
    right = sum(each.passed for each in results)
    errata = sum(each.problem.erratum for each in results)
    st.markdown(
        f"**{right} of {len(results)}** worked problems come out right; in **{errata}** of them the "
        f"source slipped and ours is the corrected value. {len(worked.not_covered())} more are "
        "measurements or plain identities: no formula should give them."
    )
    with st.container(horizontal=True, gap="medium", vertical_alignment="bottom"):
        kind = st.segmented_control(
            "Show", SHOWN, default=SHOWN[0], key="ev_worked", required=True, **state.BIND
        )
        asked = st.text_input("Search", key="ev_search", placeholder="all-reduce, h100, quiz …",
                              width=320, **state.BIND)  # fmt: skip
    state.warn_refused("ev_worked")
    if kind == SHOWN[3]:
        reasons = worked.not_covered()
        st.html(table_html([{"problem": id, "why": why} for id, why in reasons.items()]))
        return
    here = [each for each in results if _wanted(each.problem, kind) and _holds(each, asked)]
    if not here:
        st.info("No problem matches.", icon=":material/search_off:")
        return
    st.caption("1 problem" if len(here) == 1 else f"{len(here)} problems")
    with st.container(height=560 if len(here) > 14 else "content", border=False):
        st.html(table_html([_line(each) for each in here]))
    parts.downloads("worked-problems", lambda: _columns(here), "ev-worked")
    _one(here)


def _wanted(problem: Problem, kind: str) -> bool:
    if kind == SHOWN[0]:
        return problem.erratum
    return kind == SHOWN[2] or problem.status in ("loose", "last_digit")


def _holds(result: Result, asked: str) -> bool:
    problem = result.problem
    text = f"{problem.id} {problem.quantity} {problem.source} {problem.notes}".lower()
    return all(word in text for word in asked.lower().split())


def _line(result: Result) -> dict[str, str]:
    problem = result.problem
    return {
        "problem": problem.id,
        "quantity": problem.quantity,
        "ours": _shown(result.ours, problem.unit) + ("" if result.passed else " (WRONG)"),
        "the book has": problem.printed or "–",
        "which is": RELATION.get(problem.status, str(problem.status)),
        "source": problem.source,
    }


def _shown(value: float, unit: str) -> str:
    return show(value, "" if unit == "1" else unit, 4)


def _columns(results: Sequence[Result]) -> dict[str, Any]:
    return {
        "id": [each.problem.id for each in results],
        "quantity": [each.problem.quantity for each in results],
        "unit": [each.problem.unit for each in results],
        "ours": [each.ours for each in results],
        "expected": [each.problem.expected for each in results],
        "printed": [each.problem.printed for each in results],
        "status": [each.problem.status or "" for each in results],
        "source": [each.problem.source for each in results],
    }


def _one(results: Sequence[Result]) -> None:
    """One problem in full."""
    known = {each.problem.id: each for each in results}
    id = st.selectbox("One of them in full", list(known), key="ev_problem")
    result = known[id]
    problem = result.problem
    given = ", ".join(f"{name} = {value:g}" for name, value in problem.inputs.items())
    rows = {
        "quantity": problem.quantity,
        "formula of the source": problem.formula,
        "inputs": given or "none",
        "ours": f"{result.ours:.10g} {problem.unit}",
        "expected": f"{problem.expected:.10g} {problem.unit}",
        "printed": problem.printed or "nothing",
        "the printed value is": RELATION.get(problem.status, str(problem.status)),
        "source": problem.source,
        "notes": problem.notes or "none",
    }
    st.html(table_html([{"": name, problem.id: text} for name, text in rows.items()]))


def fits(found: Published) -> None:
    """Each calibration: its error on sources that it has not seen, and what it was fitted to."""
    known = found.summary.left_out
    st.markdown(
        "A calibration is a small vector of rates per GPU type, fitted to published runs. To see what "
        "it is worth on runs that it has not seen, each source was left out of the fit in turn and "
        "predicted by a fit to the others. **This is the band that a prediction carries.** Core set "
        "only: runs that state everything that decides their time."
    )
    live_chart.draw(
        figures.calibrations(known),
        "ev-fits",
        "Median and 90th percentile of the error of each calibration, fitted and left out",
    )
    st.caption(
        "Marks are medians, lines end at the 90th percentile; in brackets, runs of the core set. Where "
        "they are few, the left-out error is uncertain itself."
    )
    st.html(table_html(as_rows(evidence_tables.left_out_table(known))))
    parts.downloads("calibrations", lambda: _spreads(found), "ev-fits")
    st.subheader("Every calibration, and the runs that there are to fit it to", anchor=False)
    overlays = [calibration(name) for name in calibrations()]
    st.html(table_html([_overlay(each, found) for each in overlays]))
    name = st.selectbox("Sources of", [each.name for each in overlays], key="ev_overlay")
    overlay = calibration(name)
    st.markdown(linked(overlay.source))
    if overlay.step:
        st.markdown(f"Whole steps: {linked(overlay.step.source)}")


def _overlay(overlay: Any, found: Published) -> dict[str, str]:
    here = [each for each in found.summary.left_out if each.calibration == overlay.name]
    return {
        "calibration": overlay.name,
        "GPUs": ", ".join(overlay.accelerators),
        "published runs of these GPUs, by source": fitted_on(found.rows, overlay.accelerators),
        "band on unseen sources": "; ".join(_band(each) for each in here)
        or overlay.error
        or "not known",
    }


def _band(each: Any) -> str:
    out = each.left_out
    return f"{each.family}: half within {percent(out.median)}, 90% within {percent(out.p90)}"


def _spreads(found: Published) -> dict[str, Any]:
    known = found.summary.left_out
    columns: dict[str, Any] = {
        "calibration": [each.calibration for each in known],
        "family": [each.family for each in known],
        "runs": [each.left_out.runs for each in known],
    }
    for field in ("bias", "median", "p90"):
        columns[f"fitted {field}"] = [
            getattr(each.fitted, field) if each.fitted else None for each in known
        ]
        columns[f"left out {field}"] = [getattr(each.left_out, field) for each in known]
    return columns
