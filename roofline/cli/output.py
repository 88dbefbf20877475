"""What the commands print: tables for people, or one JSON document in SI units.

JSON has no NaN and no infinity: both are null. Everything else on standard output is for reading;
errors and notes about progress never stand there.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from roofline.bound import Term
from roofline.export import Export, named
from roofline.outcome import Outcome
from roofline.units import show

FILE_WIDTH = 140  # columns of a table that no terminal shows


def plain(value: Any) -> Any:
    """``value`` as JSON has it: lists and numbers for arrays, null for what is not finite."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, str | int | None) else str(value)


def as_json(document: Mapping[str, Any]) -> None:
    """One JSON document on standard output."""
    sys.stdout.write(json.dumps(plain(document), indent=2, allow_nan=False) + "\n")


def writable(file: Path | None) -> None:
    """Pass where a file can be written, before anybody waits for what goes into it.

    Raises:
        ValueError: a folder, one that is not there, or no leave to write.
    """
    if file is None:
        return
    folder = file.absolute().parent
    if file.is_dir():
        why = f"is a folder; the nearest: {file / 'launch.sh'}"
    elif not folder.is_dir():
        why = f"cannot be written: there is no folder {folder}"
    elif not os.access(file if file.exists() else folder, os.W_OK):
        why = "may not be written; allowed: a file of your own"
    else:
        return
    raise ValueError(f"output: {file} {why}")


def save(file: Path, text: str) -> None:
    """Write a whole file or none."""
    part = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        part.write_text(text, "utf-8")
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)


def wanted(params: Mapping[str, Any]) -> str | None:
    """The format of the launch file that the options of a plan ask for, before anybody searches.

    Raises:
        ValueError: an unknown format, a file without a format, or one that cannot be written.
    """
    form = None if params["export"] is None else named(params["export"], "export")
    if form is None and params["output_file"] is not None:
        raise ValueError("output: a launch file needs --export FORMAT; allowed: both or none")
    writable(params["output_file"])
    return form


def exported(launch: Export) -> dict[str, Any]:
    """A launch file, for JSON."""
    return {"format": launch.row.title, "text": launch, "notes": launch.notes}


def hand_over(launch: Export, file: Path | None, json: bool = False) -> None:
    """A launch file to where it belongs: a file, or standard output unless JSON stands there."""
    if file is not None:
        save(file, launch)
        console(stderr=True).print(f"{launch.row.title}: {file}")
    elif not json:
        say("", f"{launch.row.title}:", style="bold")
        say(*launch.splitlines())
    if not json and launch.row.language == "json":  # which has no comments for them
        for note in launch.notes:
            console(stderr=True).print(f"note: {note}", soft_wrap=True)


def console(stderr: bool = False) -> Console:
    """Standard output or error as it is now; as wide as the terminal, or wide enough for a file."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(
        stderr=stderr,
        width=None if stream.isatty() else FILE_WIDTH,
        highlight=False,
        markup=False,
        emoji=False,
    )


def say(*lines: str, style: str = "") -> None:
    """Sentences, left unwrapped for the terminal to break."""
    there = console()
    for line in lines:
        there.print(Text(line, style=style), soft_wrap=True)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], title: str = "") -> None:
    """Rows under their columns, nothing where there is no row; a column whose name begins with ">" is of numbers."""
    listed = list(rows)
    if not listed:
        return
    found = Table(
        box=box.SIMPLE_HEAD,
        title=Text(title) if title else None,
        title_justify="left",
        title_style="bold",
        pad_edge=False,
    )
    for name in columns:
        numbers = name.startswith(">")
        justify: Literal["left", "right"] = "right" if numbers else "left"
        found.add_column(Text(name.removeprefix(">")), justify=justify, overflow="fold")
    for row in listed:
        found.add_row(*map(Text, row))
    console().print(found)


def number(value: Any, unit: str = "", digits: int = 3) -> str:
    """A number for a table; a dash where there is none."""
    return "–" if value is None else show(float(value), unit, digits)


def counted(value: Any, noun: str) -> str:
    """A number of things: 1 rank, 1,024 ranks.

    >>> counted(1, "rank"), counted(1024, "rank")
    ('1 rank', '1,024 ranks')
    """
    return f"{value:,.0f} {noun}{'' if value == 1 else 's'}"


def held(found: Outcome) -> str:
    """How far a step time may be off: by which runs that is known, and the band of nine in ten."""
    if found.wide is None:
        return found.sentence()
    low, high = (show(float(end), "s") for end in found.wide)
    return f"{found.sentence().removesuffix('.')}: {low} to {high}."


def known(found: Outcome) -> dict[str, Any]:
    """The same, for JSON."""
    return {"basis": found.sentence(), "band_s": found.wide}


def readable(latex: str) -> str:
    """A formula's LaTeX as a line of text.

    >>> readable(r"\\frac{12\\,kBDF}{X\\,C}")
    '12 kBDF / (X C)'
    """
    text = re.sub(r"(?<=[}\d])\\,(?=\\)", " · ", latex)
    for command, sign in _SIGNS.items():
        text = text.replace(command, sign)
    text = re.sub(r"\\tfrac(\d)(\d)", r"\1/\2", text)
    text = re.sub(r"\\frac\{([^{}]*)\}\{([^{}]*)\}", _quotient, text)
    return " ".join(text.split())


_SIGNS = {r"\,": " ", r"\left": "", r"\right": "", r"\min": "min", r"\max": "max"}


def _quotient(found: re.Match[str]) -> str:
    above, below = (part.strip() for part in found.groups())
    above = f"({above})" if re.search(r"[+-]", above) else above
    return f"{above} / {f'({below})' if re.search(r'[ +-]', below) else below}"


def term_of(term: Term) -> dict[str, Any]:
    """One addend of a time, for JSON."""
    return {
        "name": term.name,
        "seconds": float(term.seconds),
        "tier": str(term.tier) or None,
        "formula": term.formula,
        "source": str(term.source),
    }
