"""The commands that read results: report and calibrate. They need no torch."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

import hardware_profiles as hp
from hardware_profiles.errors import ProfileError
from roofline.units import show
from validation import page
from validation.calibrate import Calibrated, calibrate
from validation.evidence import gather
from validation.heldout import Judged
from validation.report import Report, report
from validation.saved import write, write_machine

WIDEST = 10_000  # characters of a line

Places = Annotated[list[Path], typer.Argument(help="folders of runs, or files of results")]
Run = Annotated[str, typer.Option(help="only runs under the conditions of this one")]
Overlay = Annotated[str, typer.Option(help="predict with this calibration: a name or a file")]
AsJson = Annotated[bool, typer.Option("--json", help="everything as JSON")]
AsHtml = Annotated[bool, typer.Option("--html", help="one HTML file that needs no network")]
Cases = Annotated[bool, typer.Option("--cases", help="every case in the table")]
Target = Annotated[Path, typer.Option(help="file of the calibration to write")]
Name = Annotated[str, typer.Option(help="of the calibration; left out: the file's")]
Seed = Annotated[int, typer.Option(min=0, help="of the draw of cases to fit to")]


def report_command(
    places: Places,
    run: Run = "",
    overlay: Overlay = "",
    as_json: AsJson = False,
    as_html: AsHtml = False,
    cases: Cases = False,
) -> None:
    """Predicted against measured: errors, slow rates, suspects, stragglers."""
    try:
        found = report(*places, run=run, overlay=hp.calibration(overlay) if overlay else None)
    except (ValueError, ProfileError) as error:
        _refuse(error)
    if as_json:
        typer.echo(json.dumps(found.plain, ensure_ascii=False, allow_nan=False))
    elif as_html:
        typer.echo(page.html(found))
    else:
        _print(found, cases)


def calibrate_command(
    places: Places,
    out: Target = Path("overlay.yaml"),
    name: Name = "",
    seed: Seed = 0,
    run: Run = "",
    as_json: AsJson = False,
) -> None:
    """Fit a calibration to half of the cases, judge it by the others, and write it."""
    try:
        evidence = gather(*places, run=run)
        found = calibrate(evidence, name or out.stem, seed)
        write(found.overlay, out)
        machine = write_machine(evidence.profile.cluster, out)
    except (ValueError, ProfileError) as error:
        _refuse(error)
    except OSError as error:
        _refuse(f"{out}: cannot be written: {error.strerror}")
    if as_json:
        typer.echo(json.dumps(_plain(found, out), ensure_ascii=False))
        return
    _wide(_judged(found))
    for line in _notes(found):
        typer.echo(line)
    use = f"--cluster {machine} --rates {out}" if machine else f"--rates {out}"
    typer.echo(f"written: {out}; use it: {use}, or put it in a folder of ROOFLINE_PROFILES")


def _refuse(error: object) -> Any:
    typer.echo(error, err=True)
    raise typer.Exit(2)


def _print(found: Report, cases: bool) -> None:
    console = Console()
    console.print(page.headline(found), highlight=False, markup=False, soft_wrap=True)
    _wide(_errors(found))
    if cases:
        _wide(_cases(found))
    for title, lines in page.sections(found):
        console.print(f"\n{title}", style="bold")
        for line in lines:
            console.print(f"  {line}", highlight=False, markup=False, soft_wrap=True)


def _wide(table: Table) -> None:
    """Every column whole, however narrow the terminal or the pipe: a cut number is none."""
    console = Console()
    wanted = Measurement.get(console, console.options.update(max_width=WIDEST), table).maximum
    Console(width=max(console.width, wanted)).print(table, soft_wrap=True)


def _errors(found: Report) -> Table:
    columns = ("kernel", "part", "bytes", "cases", "median", "bias", "worst", "spread")
    table = _table(columns, "errors: predicted / measured - 1")
    sizes = Counter((row.kernel, row.part) for row in found.errors)
    for row in found.errors:
        if row.bytes != "all" and sizes[row.kernel, row.part] == 2:
            continue  # one size is all there is
        numbers = (
            f"{row.median:.1%}",
            f"{row.bias:+.1%}",
            f"{row.worst:+.0%}",
            f"{row.spread:.0%}",
        )
        table.add_row(row.kernel, row.part, row.bytes, str(row.cases), *numbers)
    return table


def _cases(found: Report) -> Table:
    table = _table(("case", "part", "measured", "predicted", "error", "correct"), "every case")
    for row in found.rows:
        error = "" if row.error is None else f"{row.error:+.0%}"
        wanted = "" if row.predicted is None else show(row.predicted, "s")
        table.add_row(row.case, row.part, show(row.seconds, "s"), wanted, error, row.correct)
    return table


def _table(columns: Sequence[str], title: str) -> Table:
    table = Table(title=title)
    for i, column in enumerate(columns):
        table.add_column(column, no_wrap=i == 0, overflow="fold")
    return table


def _judged(found: Calibrated) -> Table:
    columns = ("kernel", "fitted", "held out", "error before", "error after", "spread")
    table = _table(columns, "median error of cases that were not fitted to")
    for row in (*found.rows, found.whole):
        table.add_row(row.kernel, str(row.fitted), str(row.held_out), *_numbers(row))
    return table


def _numbers(row: Judged) -> tuple[str, str, str]:
    before, after = ("" if e is None else f"{e:.1%}" for e in (row.before, row.after))
    return before, after, f"{row.spread:.0%}"


def _notes(found: Calibrated) -> list[str]:
    notes = [f"too little, left as it was: {line}" for line in found.lacking]
    notes += [*found.kept, *found.at_limit]
    notes += [*found.worse, *found.problems]
    if found.elsewhere:
        notes.append(f"{found.elsewhere} results are another program's, not checked by this suite")
    if found.untrusted:
        notes.append(f"left out, as wrong or not checked: {found.untrusted} results")
    return notes


def _plain(found: Calibrated, out: Path) -> dict[str, Any]:
    rows = {"rows": [asdict(row) for row in found.rows], "whole": asdict(found.whole)}
    names = ("fitted", "kept", "lacking", "at_limit", "worse", "untrusted", "elsewhere", "problems")
    told = {name: getattr(found, name) for name in names}
    return {"file": str(out), "name": found.overlay.name} | rows | told
