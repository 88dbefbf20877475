"""The Evidence page: it says what the command says, filters, and shows any run in full."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dashboard import evidence_data as data
from dashboard import evidence_figures as figures
from dashboard import term_looks
from roofline import accuracy, evidence, worked
from roofline import backtest as back
from roofline.evidence_tables import percent, summary_table
from roofline.units import show
from tests.pages import drawn, opened, said

APP = str(Path(__file__).parent.parent / "app.py")
VIEWS = ("Back-test", "Worked problems", "Calibrations")


@pytest.fixture(scope="module")
def found() -> back.Backtest:
    return back.backtest((run["id"], run) for run in back.published())


def points(figure: dict[str, Any]) -> list[str]:
    """Ids of the runs that a figure has points of."""
    return [id for trace in figure["data"] for id in trace.get("customdata", [])]


def test_first_paint_says_how_wrong_it_is(found: back.Backtest) -> None:
    app = opened("evidence")
    assert not app.exception
    assert not app.error
    total = evidence.summary(found).total
    assert [metric.value for metric in app.metric[:2]] == [
        percent(total.median),
        percent(total.p90),
    ]
    assert f"baseline {percent(total.baseline_p90)}" in app.metric[1].delta
    text = said(app)
    for row in summary_table(evidence.summary(found))[1]:
        assert "".join(f">{cell}<" for cell in row[:1]) in text
    scatter, strip, terms = drawn(app)
    everything = {row.id for row in back.rows_of(found)}
    assert set(points(scatter)) == set(points(strip)) == everything
    worst = accuracy.worst(back.rows_of(found), 1)[0]
    seconds = sum(terms["data"][0]["x"])
    assert seconds == pytest.approx(worst.predicted)
    assert f"Predicted {show(worst.predicted, 's')}, measured" in text


def test_filters_leave_what_they_name(found: back.Backtest) -> None:
    app = opened("evidence", ev_gpu=["gb200", "b200-sxm"], ev_family="moe", ev_core="true")
    assert not app.exception
    wanted = {
        row.id
        for row in back.rows_of(found)
        if row.accelerator in ("gb200", "b200-sxm")
        and row.family == "moe"
        and evidence.in_core(row.run)
    }
    assert wanted
    assert set(points(drawn(app)[0])) == wanted
    assert f"The {len(wanted)} runs that the filters leave" in said(app)


def test_filters_that_leave_nothing() -> None:
    app = opened("evidence", ev_gpu="h200-sxm", ev_family="moe")
    assert not app.exception
    assert "No run has all of this" in app.info[0].value


def test_a_run_in_full(found: back.Backtest) -> None:
    row = next(row for row in back.rows_of(found) if row.id == "zerobubble-28.3b-1f1b-i-m256")
    app = opened("evidence", ev_run=row.id)
    text = said(app)
    assert "its precision is assumed; its vocabulary is assumed" in text
    assert "https://arxiv.org/abs/2401.10241" in text
    for name, seconds in row.terms.items():
        if seconds > 0:
            assert any(
                name in label for f in drawn(app) for label in f["layout"]["yaxis"]["ticktext"]
            )
            assert term_looks.of(name).label == name


@pytest.mark.parametrize("by", ["gpu", "family", "precision", "year", "framework", "series"])
def test_errors_by_any_group(found: back.Backtest, by: str) -> None:
    strip = drawn(opened("evidence", ev_by=by))[1]
    groups = accuracy.by(back.rows_of(found), [by])
    assert len(strip["layout"]["yaxis"]["ticktext"]) == len(groups)
    medians = strip["data"][1]["x"]
    assert medians == pytest.approx(
        [100 * each.bias for each in sorted(groups, key=lambda each: each.group, reverse=True)]
    )


@pytest.mark.parametrize("show_", ["errata", "loose or last digit", "all", "without a formula"])
def test_worked_problems(show_: str) -> None:
    app = opened("evidence", ev_view=VIEWS[1], ev_worked=show_)
    assert not app.exception
    text = said(app)
    results = worked.check()
    assert f"**{sum(r.passed for r in results)} of {len(results)}** worked problems" in text
    if show_ == "all":
        assert all(result.problem.id in text for result in results)
        assert text.count(">an erratum<") >= sum(r.problem.erratum for r in results)
    if show_ == "without a formula":
        assert all(id in text for id in worked.not_covered())


def test_a_search_among_worked_problems() -> None:
    app = opened("evidence", ev_view=VIEWS[1], ev_worked="all", ev_search="q2.3-allgather-time")
    assert "1 problem" in [caption.value for caption in app.caption]
    assert ">q2.3-allgather-time<" in said(app)
    app = opened("evidence", ev_view=VIEWS[1], ev_search="no such thing")
    assert "No problem matches" in said(app)


def test_calibrations_say_their_band(found: back.Backtest) -> None:
    app = opened("evidence", ev_view=VIEWS[2])
    assert not app.exception
    text = said(app)
    for each in evidence.left_out(back.rows_of(found)):
        out = each.left_out
        assert f"{each.family}: half within {percent(out.median)}, 90% within" in text
        assert f">{each.calibration}, {each.family}<" in text


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("ev_view", "x"),
        ("ev_by", "evil"),
        ("ev_gpu", "z80"),
        ("ev_run", "<script>"),
        ("ev_core", "7"),
    ],
)
def test_a_bad_address_is_told_and_the_default_shown(key: str, value: str) -> None:
    app = opened("evidence", **{key: value})
    assert not app.exception
    assert any(f"{key}={value}" in warning.value for warning in app.warning)


def test_far_errors_stand_at_the_edge(found: back.Backtest) -> None:
    rows = back.rows_of(found)
    strip = figures.strip(rows, rows, "source")
    x = np.asarray(strip["data"][0]["x"])
    assert np.max(np.abs(x)) <= 100 * figures.EDGE
    assert np.sum(np.abs(x) == 100 * figures.EDGE) == figures.beyond(rows)


def test_every_source_leads_somewhere_or_names_its_paper(found: back.Backtest) -> None:
    linked = [row for row in found.rows if "https://" in data.source(row)]
    assert len(linked) > 0.85 * len(found.rows)
