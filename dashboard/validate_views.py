"""The Validate page's second half: a report, and a calibration fitted to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import streamlit as st

from dashboard import live_chart, parts, state
from dashboard import validate_data as data
from dashboard import validate_figures as figures
from dashboard import validate_runs as runs
from dashboard.plain_table import table_html
from dashboard.validate_data import Report
from dashboard.words import plain
from hardware_profiles.errors import ProfileError
from roofline.evidence_tables import percent
from roofline.training import ACHIEVABLE

SHOWN = 60  # cases in the table


def shown(found: Report) -> None:
    """The whole report: numbers, points, errors, rates, suspects, cases."""
    summary, env = found["summary"], found["environment"]
    rates = env["overlay"] or "peak rates"
    st.markdown(f"**{plain(env['profile'])}** at {plain(rates)}")
    st.caption(plain(data.told(found)))
    cards(found)
    for line in found["problems"][:10]:
        st.warning(plain(line), icon=":material/warning:")
    for name, why in env["left_out"].items():
        st.caption(plain(f"Not measured here: {name}: {why}"))
    apart = sum(not row["trusted"] for row in found["rows"])
    panel = live_chart.Panel(
        figures.scatter(found),
        f"Predicted against measured time of {summary['results']} results, by kernel",
        "Predicted against measured",
        f"{summary['trusted']:,} of {summary['results']:,} results are checked",
        ": exact on the dotted line, predicted too fast below it."
        + (f" The {apart} grey crosses are wrong or unchecked and count nowhere." if apart else ""),
    )
    live_chart.draw_panels([panel], "vl-points")
    parts.downloads("validation", lambda: data.columns(found), "vl-rows")
    verdicts(found)
    charts(found)
    tables(found)


def cards(found: Report) -> None:
    """The numbers that come first."""
    summary = found["summary"]
    error, spread = summary["median_error"], summary["median_spread"]
    slow, late = len(summary["slow"]), len(found["stragglers"])
    unchecked = len(found["untrusted"])
    facts = {
        "Median error": ("–" if error is None else percent(error),
                         "" if spread is None else f"measurements scatter by {percent(spread)}"),
        "Cases": (f"{summary['cases']:,}", f"{unchecked:,} wrong or not checked"),
        "Slow rates": (str(slow), f"of {len(found['rates'])}"),
        "Stragglers": (str(late), "ranks or groups"),
        "Failed": (str(summary["failed"]), "cases"),
    }  # fmt: skip
    with st.container(horizontal=True, gap="small"):
        for label, (value, below) in facts.items():
            st.metric(label, value, below, delta_color="off", delta_arrow="off", border=True)


def verdicts(found: Report) -> None:
    """What is slow, what may be behind it, and who lags."""
    left, right = st.columns(2, gap="large")
    with left:
        st.subheader("Suspected causes", anchor=False)
        for cause in found["causes"]:
            st.markdown(f"**{plain(cause['name'])}**: {plain(cause['remedy'])}.")
            st.markdown("\n".join(f"- {plain(line)}" for line in cause["evidence"]))
        if not found["causes"]:
            st.markdown("None of the rules finds one.")
    with right:
        st.subheader("Stragglers", anchor=False)
        lines = [one["sentence"] for one in (*found["stragglers"], *found["starts"])]
        st.markdown(
            "\n".join(f"- {plain(line)}" for line in lines)
            or "No rank computes and no group talks slower than its peers."
        )


def charts(found: Report) -> None:
    """Error by kernel beside what each rate reaches."""
    panels = []
    if found["errors"]:
        panels.append(live_chart.Panel(
            figures.errors(found), "Median error of each kernel and part", "Error by kernel",
            "Left of zero: predicted too fast", ". The thin bar is the scatter of the measurement.",
        ))  # fmt: skip
    if found["rates"]:
        slow = found["summary"]["slow"]
        panels.append(live_chart.Panel(
            figures.rates(found), "What large cases reach of each rate of the profile",
            "Rates reached", f"{len(slow)} of {len(found['rates'])} are slow", " (red).",
        ))  # fmt: skip
    if panels:
        live_chart.draw_panels(panels, "vl-bars")


def tables(found: Report) -> None:
    """Slow rates in words, errors by size, every case."""
    if found["summary"]["slow"]:
        st.subheader("Slow against the profile", anchor=False)
        st.markdown("\n".join(f"- {plain(line)}" for line in found["summary"]["slow"]))
    if found["errors"]:
        with st.expander("Errors by kernel and size", icon=":material/table:"):
            st.html(table_html(data.errors(found)))
    cases = data.cases(found)
    bad = bool(found["failed"] or found["untrusted"])
    with st.expander("Cases, failed and unchecked first", bad, icon=":material/list:"):
        if cases:
            st.html(table_html(cases[:SHOWN]))
        if len(cases) > SHOWN:
            st.caption(f"The first {SHOWN} of {len(cases):,}; all are in the download.")


def calibration(place: Path | None, folder: Path) -> None:
    """Fit one to these results, or bring one; both serve every page of this session."""
    st.subheader("Calibration", anchor=False)
    st.caption(
        "Rates as measured in place of the datasheet's. It is fitted to a random half of the cases and "
        "judged by the other half. Applied here, it lasts for this session, on every page at "
        "*achievable* rates. To keep it, put the file in a folder that `ROOFLINE_PROFILES` names: "
        "pages, planner and commands then take it before the shipped one."
    )
    left, right = st.columns(2, gap="large", vertical_alignment="bottom")
    with left:
        name = st.text_input("Name of the fit", "my-machine", key="vl_name", max_chars=80)
        clicked = st.button(
            "Fit to these results", icon=":material/tune:", key="vl_fit", disabled=place is None
        )
        if clicked and place is not None:
            _fit(place, name, folder)
    right.file_uploader(
        "Or upload one (overlay YAML)", ["yaml", "yml"], key="vl_overlay", max_upload_size=2,
        on_change=_uploaded,
    )  # fmt: skip
    if problem := st.session_state.get("vl_refused"):
        st.error(plain(problem), icon=":material/error:")
    if fit := st.session_state.get("vl_fitted"):
        _fitted(*fit)
    _in_use()


def _fit(place: Path, name: str, folder: Path) -> None:
    st.session_state.update(vl_fitted=None, vl_refused="")
    try:
        with st.spinner("Fitting to half of the cases"):
            told, text = data.calibrated(place, name, folder)
    except (runs.Refused, OSError) as error:
        st.session_state["vl_refused"] = str(error)
    else:
        st.session_state["vl_fitted"] = (told, text)


def _fitted(told: dict[str, Any], text: str) -> None:
    whole = told["whole"]
    if whole["before"] is not None and whole["after"] is not None:
        st.markdown(
            f"**{plain(told['name'])}**: median error on {whole['held_out']} held-out results "
            f"**{percent(whole['before'])} before, {percent(whole['after'])} after**."
        )
    with st.container(horizontal=True, gap="small"):
        st.button(
            "Use it in this session", type="primary", icon=":material/done:", key="vl_use",
            on_click=_use, args=(text.encode(), told["name"]),
        )  # fmt: skip
        st.download_button(
            "Download the YAML", text, f"{told['name']}.yaml", "application/yaml", key="vl_yaml",
            icon=":material/download:", on_click="ignore",
        )  # fmt: skip
    with st.expander("How good the fit is, by kernel", icon=":material/table:"):
        st.html(table_html(data.fits(told)))
        for line in (*told["lacking"], *told["kept"], *told["at_limit"]):
            st.caption(plain(line))
    st.code(f"export ROOFLINE_PROFILES=$HOME/profiles  # with {told['name']}.yaml in it", "bash")


def _uploaded() -> None:
    file = st.session_state["vl_overlay"]
    if file is not None:
        _use(file.getvalue(), file.name)


def _use(text: bytes, where: str) -> None:
    """Put a calibration among this session's, the last first, and turn to achievable rates."""
    try:
        made = data.overlay(text, where)
    except ProfileError as error:
        st.session_state["vl_refused"] = str(error)
        return
    mine = state.calibrations()
    mine.pop(made.name, None)
    mine[made.name] = made
    st.session_state["vl_refused"] = ""
    state.choose_rates(ACHIEVABLE)


def _in_use() -> None:
    """Calibrations of this session, and what the shown cluster takes."""
    mine = state.calibrations()
    accelerator = state.current().profile.accelerator.name
    for made in mine.values():
        covers = accelerator in made.accelerators
        row = st.container(horizontal=True, vertical_alignment="center")
        row.markdown(
            f"In this session: **{plain(made.name)}** for {plain(', '.join(made.accelerators))}. "
            + ("The cluster of the sidebar uses it at achievable rates." if covers
               else f"The cluster of the sidebar has {plain(accelerator)}, and does not use it.")
        )  # fmt: skip
        row.button("Remove", key=f"vl-drop-{made.name}", on_click=_drop, args=(made.name,))


def _drop(name: str) -> None:
    state.calibrations().pop(name, None)
