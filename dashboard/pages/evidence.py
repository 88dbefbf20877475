"""Evidence: how far off the calculator is, on runs and problems that others published."""

from __future__ import annotations

from functools import partial

import streamlit as st

from dashboard import evidence_figures as figures
from dashboard import evidence_views as views
from dashboard import live_chart, parts, state
from dashboard.evidence_data import (
    FILTERS,
    Published,
    as_rows,
    chosen,
    facts,
    published,
    source,
    values,
    worst,
)
from dashboard.plain_table import table_html
from dashboard.words import linked, plain
from roofline import accuracy, evidence, evidence_tables
from roofline.backtest import Row
from roofline.evidence_tables import percent
from roofline.units import show

VIEWS = ("Back-test", "Worked problems", "Calibrations")
STRIPS = ("source", "gpu", "family", "precision", "year", "framework", "series")
LABELS = {"gpu": "GPU", "source": "Source", "family": "Family", "precision": "Precision"}


def headline(found: Published) -> None:
    """The answer in one look: how wrong, in sample and left out, beside the baseline."""
    total, left_out = found.summary.total, found.summary.left_out
    st.markdown(
        f"**{total.count:,} published training runs, each predicted from its configuration alone and "
        "held against what was measured.** Nothing is left out. Error is the predicted over the "
        "measured step time, minus 1. The baseline is what one does without a model: one utilisation "
        "per GPU and precision, fitted to the same runs."
    )
    with st.container(horizontal=True, gap="small"):
        card("Half within, in sample", total.median, f"baseline {percent(total.baseline_median)}")
        card("90% within, in sample", total.p90, f"baseline {percent(total.baseline_p90)}")
        for each in sorted(left_out, key=lambda each: -each.left_out.runs)[:2]:
            name = f"{each.calibration.upper()} {each.family}, source left out"
            card(name, each.left_out.median, f"90% within {percent(each.left_out.p90)}")
    st.caption(
        f"Bias of all runs {percent(total.bias, sign=True)}. The calibrations were fitted to these "
        "runs; the last two cards are of runs whose whole source was left out of the fit: half are "
        "within this. All such errors stand under *Calibrations*."
    )


def card(label: str, value: float, below: str) -> None:
    """One number with what to hold it against."""
    st.metric(label, percent(value), below, delta_color="off", delta_arrow="off", border=True)


def filters(found: Published) -> list[Row]:
    """The runs that the filters leave."""
    wanted: dict[str, list[str]] = {}
    for column, field in zip(st.columns([3, 3, 2, 2]), FILTERS, strict=True):
        wanted[field] = column.multiselect(
            LABELS[field], values(found.rows, field), key=f"ev_{field}", placeholder="all",
            **state.BIND,
        )  # fmt: skip
    with st.container(horizontal=True, gap="large", vertical_alignment="bottom"):
        st.segmented_control(
            "Errors by", STRIPS, default=STRIPS[0], key="ev_by", required=True, **state.BIND
        )
        core = st.toggle(
            "Core set only", key="ev_core", help="Runs that state everything that decides their "
            "time, with no flag that casts doubt: the set that left-out errors are quoted on",
            **state.BIND,
        )  # fmt: skip
    state.warn_refused(*(f"ev_{field}" for field in FILTERS), "ev_core", "ev_by")
    return chosen(found.rows, wanted, core)


def picked(chart: str) -> None:
    """Take the run whose point was clicked."""
    id = st.session_state[chart].get("clicked")
    if isinstance(id, str) and id in published().by_id:
        st.session_state["ev_run"] = id


@st.fragment
def backtest(found: Published) -> None:
    """Points, errors, tables, and the run that is picked."""
    rows = filters(found)
    if not rows:
        st.info("No run has all of this. Take a filter back.", icon=":material/filter_alt_off:")
        return
    charts, picker = st.container(), st.container()
    with picker:
        row = pick(found)
    with charts:
        draw(found, rows, row)
    one(found, row)
    tables(found, rows)


def draw(found: Published, rows: list[Row], row: Row) -> None:
    """Both charts; a click on a point picks its run."""
    by = st.session_state["ev_by"]
    here = accuracy.errors(rows)
    away = figures.beyond(rows)
    measured = live_chart.Panel(
        figures.scatter(rows, found.rows, row),
        f"Predicted against measured step time of {here.count} runs",
        "Predicted against measured",
        f"{here.count:,} runs",
        ": exact on the dotted line, within 10% in the grey band. Filled marks are dense, open ones "
        "mixtures of experts.",
    )
    spread = live_chart.Panel(
        figures.strip(rows, found.rows, by),
        f"Errors of {here.count} runs by {by}",
        f"Errors by {by}",
        f"median {percent(here.median)}, 90% within {percent(here.p90)}",
        f", bias {percent(here.bias, sign=True)}. Red bars are the groups' medians with sign."
        + (f" {away} runs further off than 40% stand at the edge." if away else ""),
    )
    # Apart, so that what changes one of them does not send the points of the other again.
    for column, panel, key in zip(
        st.columns(2, gap="medium"), (measured, spread), ("ev-points", "ev-strip"), strict=True
    ):
        with column:
            live_chart.draw_panels([panel], key, on_click=partial(picked, key))
    parts.downloads("backtest", lambda: evidence.columns(rows), "ev-rows")


def pick(found: Published) -> Row:
    """The run looked at: the worst of all until another is chosen or clicked."""
    ids = sorted(found.by_id)
    first = accuracy.worst(found.rows, 1)[0].id
    id = st.selectbox(
        "A run in full: choose it, or click its point", ids, index=ids.index(first), key="ev_run",
        **state.BIND,
    )  # fmt: skip
    state.warn_refused("ev_run")
    return found.by_id[id]


def one(found: Published, row: Row) -> None:
    """One run: its terms, what was stated, what was assumed, what casts doubt, its source."""
    left, right = st.columns([3, 2], gap="large")
    with left:
        st.markdown(
            f"**Predicted {show(row.predicted, 's')}, measured {show(row.measured or 0.0, 's')}: "
            f"{percent(row.error or 0.0, sign=True)}** (baseline {show(row.baseline, 's')})"
        )
        live_chart.draw(figures.terms(row), "ev-terms", f"Terms of the step of {row.id}")
    with right:
        st.html(table_html(facts(row)))
        doubts = evidence.doubts(row, found.apart)
        if doubts:
            st.markdown(f"**Be careful with it:** {plain('; '.join(doubts))}.")
        if row.assumed:
            st.markdown(f"**Assumed:** {plain('; '.join(row.assumed))}.")
        st.markdown(f"**Source:** {linked(source(row))}")
        if row.run.get("notes"):
            st.caption(plain(str(row.run["notes"])))


def tables(found: Published, rows: list[Row]) -> None:
    """Errors by group, the worst rows, ranks: as the command prints them."""
    whole = len(rows) == len(found.rows)
    st.subheader("Summary", anchor=False)
    st.caption(
        f"{'All runs' if whole else f'The {len(rows):,} runs that the filters leave'}, in sample. The "
        "baseline is one utilisation per GPU and precision, fitted to all runs, times 1 + bubble. "
        "`python -m roofline backtest` prints the same."
    )
    table = evidence_tables.error_table(evidence.groups(rows), ", ".join(evidence.SETS))
    st.html(table_html(as_rows(table)))
    st.subheader("Furthest off", anchor=False)
    st.html(table_html(worst(found, rows)))
    ranks = accuracy.rankings(rows)
    st.subheader("Ranks within sweeps", anchor=False)
    st.caption(
        "Runs of one series on as many GPUs. Tau is 1 where their order is right and -1 where it is "
        "reversed; regret is how much slower the run predicted fastest is than the fastest."
    )
    if ranks:
        st.html(table_html(as_rows(evidence_tables.ranking_table(ranks))))
    else:
        st.info("No sweep of four runs or more is left by the filters.")


def body(found: Published) -> None:
    """The chosen view."""
    view = st.segmented_control(
        "View", VIEWS, default=VIEWS[0], key="ev_view", required=True,
        label_visibility="collapsed", **state.BIND,
    )  # fmt: skip
    state.warn_refused("ev_view")
    {VIEWS[0]: backtest, VIEWS[1]: views.problems, VIEWS[2]: views.fits}[view](found)


def main() -> None:
    """Draw the page."""
    st.title("How wrong is this calculator?", anchor=False)
    found = published()
    headline(found)
    body(found)


main()
