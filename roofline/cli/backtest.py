"""``roofline backtest`` and ``roofline predict``: whole steps, beside published measurements."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from hardware_profiles.errors import nearest
from roofline import accuracy, evidence, run_files, runs
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
    named, unread = _lines(file) if file else (_shipped(), [])
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
    run = _one(_text(file, "RUN"), file)
    fits = back.at_peak if peak else back.shipped
    found = back.backtest([(str(file), run)], fits)
    for refused in found.refused:
        raise ValueError(f"{refused.name}: {refused.reason}")
    row = found.rows[0]
    beside = forecast(runs.job(run), row, fits(row.accelerator))
    if json:
        output.as_json({**back.as_document(row), **_measures(beside)})
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


def _measures(found: Forecast) -> dict[str, Any]:
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


def _lines(file: Path) -> tuple[list[tuple[str, Run]], list[Refused]]:
    try:
        return back.parse(_text(file, "FILE"))
    except run_files.NoRuns as error:
        raise ValueError(f"FILE: {str(file)!r} {error}") from None


def _text(file: Path, what: str) -> str:
    """What a file holds; ``what`` is its name in the command."""
    named = f"{what}: {str(file)!r}"
    try:
        if file.is_dir():
            raise ValueError(f"{named} is a folder; allowed: a file")
        if not file.exists():
            raise ValueError(f"{named} is no file: nothing has this name{_beside(file)}")
        if file.is_file() and file.stat().st_size > MOST_BYTES:
            raise ValueError(f"{named} is larger than {MOST_BYTES:,} bytes")
        text = file.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{named} is not UTF-8, or no text: {error}") from None
    except OSError as error:
        raise ValueError(f"{named} cannot be read: {error.strerror}") from None
    if "\0" in text:
        raise ValueError(f"{named} is no text: it holds zero bytes")
    return text


def _beside(file: Path) -> str:
    """The files most like it in its folder, as the end of a sentence."""
    try:
        alike = {each.stem: each.name for each in file.parent.glob(f"*{file.suffix}")}
    except OSError:
        return ""
    near = nearest(file.stem, alike)
    if near.startswith("allowed"):
        return ""
    return "; " + ", ".join(f"{name}{file.suffix}" for name in near.split(", "))


def _one(text: str, file: Path) -> Run:
    named = f"RUN: {str(file)!r}"
    if not text.strip():
        raise ValueError(f"{named} holds no run: it is empty")
    try:
        run = run_files.loads(text)
    except (ValueError, RecursionError) as error:
        many = len(text.split("\n", 2)) > 1 and _is_run(text.split("\n", 1)[0])
        told = "; `python -m roofline backtest` takes JSON lines" if many else ""
        raise ValueError(f"{named} is no JSON: {error}{told}") from None
    if not isinstance(run, dict):
        raise ValueError(f"{named} holds no object; one run is asked for")
    return run


def _is_run(line: str) -> bool:
    try:
        return isinstance(run_files.loads(line), dict)
    except (ValueError, RecursionError):
        return False


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
        if not in_sample:
            output.say("Baseline: one utilisation per GPU and precision, of the runs that we ship")
        _tell_left_out(found, rows, in_sample)
        if found.rankings:
            output.table(*tables.ranking_table(found.rankings), title="Ranks within sweeps")
        _tell_worst(rows)
    if not in_sample:
        _tell_strangers(result.rows)
    _tell_counts(result, rows)


def _tell_left_out(found: evidence.Summary, rows: Sequence[Row], in_sample: bool) -> None:
    used = {(row.accelerator, row.family) for row in rows}
    here = [
        each
        for each in found.left_out
        if any((name, each.family) in used for name in each.accelerators)
    ]
    if here:
        title = "Shipped calibrations on the core set: fitted, and with each source left out"
        if not in_sample:
            title = "Shipped calibrations on the runs that we ship, with each source left out"
        output.table(*tables.left_out_table(here, in_sample), title=title)


def _tell_strangers(rows: Sequence[Row]) -> None:
    """Which rows no published run is like: by their baseline, and by their rates."""
    for words in sorted({row.baseline_of for row in rows if ":" in row.baseline_of}):
        output.say(f"baseline of {words}")
    if names := sorted({row.accelerator for row in rows if not row.held}):
        output.say(f"Rates that were held against no run: {', '.join(names)}")


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
    if not result.rows:
        output.say("No run could be predicted", style="bold")
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
