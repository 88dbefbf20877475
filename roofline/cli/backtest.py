"""``roofline backtest`` and ``roofline predict``: whole steps, beside published measurements."""

from __future__ import annotations

import json as jsonlib
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from roofline import accuracy, evidence, runs
from roofline import backtest as back
from roofline import evidence_tables as tables
from roofline.backtest import Backtest, Refused, Row
from roofline.cli import inputs, output
from roofline.forecast import Forecast, forecast
from roofline.run_fields import Run
from roofline.units import show

FAILED = 1
WORST = 8  # rows that are told
SHOWN = 25  # refusals that are told
MOST_BYTES = 200_000_000

FileArgument = Annotated[
    Path | None,
    typer.Argument(metavar="FILE.jsonl", help="One run a line; without it, the runs that we ship."),
]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN.json", help="One run.")]
ByOption = Annotated[
    str, typer.Option(metavar="FIELD,…", help=f"Groups: {', '.join(accuracy.GROUPS)}.")
]
MarkdownOption = Annotated[
    bool, typer.Option("--markdown", help="The summary tables as Markdown, as the README has them.")
]
PeakOption = Annotated[bool, typer.Option("--peak", help="At datasheet rates: a lower bound.")]


def backtest(
    file: FileArgument = None,
    by: ByOption = "gpu,family",
    peak: PeakOption = False,
    json: inputs.JsonOption = False,
    markdown: MarkdownOption = False,
) -> None:
    """Predict published runs and compare: errors by group, ranks in sweeps, beside a baseline.

    Examples:

        roofline backtest
        roofline backtest runs.jsonl --by gpu,source,family
        roofline backtest runs.jsonl --json
        roofline backtest --markdown
    """
    names = _groups(by)
    named, unread = back.parse(_text(file)) if file else (_shipped(), [])
    found = back.backtest(named, back.at_peak if peak else back.shipped)
    result = Backtest(found.rows, sorted([*unread, *found.refused], key=_place))
    rows = back.rows_of(result)
    in_sample = file is None and not peak
    if markdown and rows:
        sys.stdout.write(tables.markdown(evidence.summary(result, names), in_sample) + "\n")
    elif json:
        output.as_json(_document(result, rows, names))
    else:
        _tell(result, rows, names, in_sample)
    if not result.rows:
        raise typer.Exit(FAILED)


def predict(file: RunArgument, peak: PeakOption = False, json: inputs.JsonOption = False) -> None:
    """Time of one training step of a run, term by term, with what was assumed.

    Examples:

        roofline predict run.json
        roofline predict run.json --json
    """
    run = _one(_text(file), file)
    fits = back.at_peak if peak else back.shipped
    found = back.backtest([(str(file), run)], fits)
    for refused in found.refused:
        raise ValueError(f"{refused.name}: {refused.reason}")
    row = found.rows[0]
    beside = forecast(runs.job(run), row, fits(row.accelerator))
    if json:
        output.as_json({**back.as_document(row), **_beside(beside)})
        return
    rate = beside.outcome.tokens_per_second_per_gpu
    output.say(f"{row.predicted:.4g} s a step, {rate:,.0f} tokens/s a GPU", style="bold")
    output.say(_said(beside))
    output.table(
        ("term", ">seconds", ">share"),
        [
            (name, f"{seconds:.4g}", f"{seconds / row.predicted:.1%}")
            for name, seconds in row.terms.items()
            if seconds
        ],
    )
    if row.measured is not None and row.error is not None:
        output.say(f"measured {row.measured:.4g} s: the prediction is {row.error:+.1%} off")
    for assumed in row.assumed:
        output.say(f"assumed: {assumed}")


def _beside(found: Forecast) -> dict[str, Any]:
    return {
        "tokens_per_s_per_gpu": found.outcome.tokens_per_second_per_gpu,
        "mfu": found.outcome.mfu,
        "band_s": found.outcome.wide,
        "memory_bytes": found.memory.total,
        "hbm_bytes": found.room,
        "fits": found.fits,
    }


def _said(found: Forecast) -> str:
    """MFU, band and memory in a line."""
    band = "no band: these rates were held against no runs"
    if (wide := found.outcome.wide) is not None:
        low, high = wide
        band = f"nine in ten runs left out of the fit within {low:.4g} to {high:.4g} s"
    fit = "" if found.fits else ": does not fit"
    memory = f"memory {show(float(found.memory.total), 'B')} of {show(found.room, 'B')}{fit}"
    return f"MFU {found.outcome.mfu:.1%}; {band}; {memory}"


def _place(refused: Refused) -> int:
    """The number of its line; 0 for what has none."""
    words = refused.name.split()
    return int(words[1]) if words[:1] == ["line"] and words[1:2][0].isdigit() else 0


def _shipped() -> list[tuple[str, Run]]:
    return [(str(run["id"]), run) for run in back.published()]


def _groups(by: str) -> list[str]:
    names = [name.strip() for name in by.split(",") if name.strip()]
    unknown = [name for name in names if name not in accuracy.GROUPS]
    if unknown or not names:
        allowed = ", ".join(accuracy.GROUPS)
        raise ValueError(f"--by: {by!r} is refused; allowed: {allowed}, with commas between")
    return names


def _text(file: Path) -> str:
    if not file.is_file():
        raise ValueError(f"FILE: {str(file)!r} is no file")
    if file.stat().st_size > MOST_BYTES:
        raise ValueError(f"FILE: {str(file)!r} is larger than {MOST_BYTES:,} bytes")
    try:
        return file.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"FILE: {str(file)!r} is not UTF-8: {error}") from None


def _one(text: str, file: Path) -> Run:
    try:
        run = jsonlib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"RUN: {str(file)!r} is no JSON: {error}") from None
    if not isinstance(run, dict):
        raise ValueError(f"RUN: {str(file)!r} holds no object; one run is asked for")
    return run


def _document(result: Backtest, rows: Sequence[Row], names: list[str]) -> dict[str, Any]:
    return {
        "rows": [back.as_document(row) for row in result.rows],
        "refused": result.refused,
        "summary": {
            "predicted": len(result.rows),
            "refused": len(result.refused),
            "unmeasured": len(result.rows) - len(rows),
            "all": accuracy.errors(rows) if rows else None,
            "by": names,
            "groups": accuracy.by(rows, names),
            "left_out": evidence.left_out(rows),
            "rankings": accuracy.rankings(rows),
            "worst": [
                {"id": row.id, "error": row.error, "dominant": accuracy.dominant(row)}
                for row in accuracy.worst(rows, WORST)
            ],
        },
    }


def _tell(result: Backtest, rows: Sequence[Row], names: list[str], in_sample: bool) -> None:
    if rows:
        found = evidence.summary(result, names)
        title = "Predicted over measured step time, minus 1"
        seen = "; in sample: calibrations were fitted to these runs" if in_sample else ""
        output.table(*tables.summary_table(found), title=title + seen)
        _tell_left_out(found, rows)
        if found.rankings:
            output.table(*tables.ranking_table(found.rankings), title="Ranks within sweeps")
        _tell_worst(rows)
    _tell_counts(result, rows)


def _tell_left_out(found: evidence.Summary, rows: Sequence[Row]) -> None:
    used = {row.accelerator for row in rows}
    here = [each for each in found.left_out if used & set(each.accelerators)]
    if here:
        title = "Shipped calibrations on the core set: fitted, and with each source left out"
        output.table(*tables.left_out_table(here), title=title)


def _tell_counts(result: Backtest, rows: Sequence[Row]) -> None:
    """How many could not be predicted, or not compared, and why."""
    if unmeasured := len(result.rows) - len(rows):
        output.say(f"{output.counted(unmeasured, 'run')} predicted without a measurement beside")
    twice = [id for id, count in Counter(row.id for row in result.rows).items() if count > 1]
    if twice:
        ids = f"{', '.join(twice[:3])}{', …' if twice[3:] else ''}"
        output.say(
            f"{output.counted(len(twice), 'id')} on several lines, each of them counted: {ids}"
        )
    if result.refused:
        output.say(f"{output.counted(len(result.refused), 'run')} failed:", style="bold")
        for refused in result.refused[:SHOWN]:
            output.say(f"  {refused.name}: {refused.reason}")
        if len(result.refused) > SHOWN:
            output.say(f"  and {len(result.refused) - SHOWN} more: --json lists them all")


def _tell_worst(rows: Sequence[Row]) -> None:
    output.table(
        ("run", ">error", "mostly"),
        [
            (row.id, f"{row.error or 0.0:+.1%}", ", ".join(accuracy.dominant(row)))
            for row in accuracy.worst(rows, WORST)
        ],
        title="Furthest off",
    )
