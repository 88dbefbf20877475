"""Files of runs: JSON lines, one run each; and those that come with the package."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from roofline.run_fields import Run


@dataclass(frozen=True, slots=True)
class Refused:
    """A run that cannot be predicted."""

    name: str
    reason: str


class NoRuns(ValueError):
    """A text without a single run; the message says what it is instead."""


def published() -> list[Run]:
    """The published runs that come with the package; ``data/published_runs.md`` says from where."""
    text = files("roofline").joinpath("data/published_runs.jsonl").read_text("utf-8")
    return [json.loads(line) for line in text.split("\n") if line]


def parse(text: str) -> tuple[list[tuple[str, Run]], list[Refused]]:
    """Runs of a JSONL text with the names of their lines, and the lines that are none.

    Raises:
        NoRuns: a text that holds nothing, or is one JSON document.
    """
    found: list[tuple[str, Run]] = []
    refused: list[Refused] = []
    for i, line in enumerate(text.split("\n"), 1):  # texts may hold other ends of lines
        if not line.strip():
            continue
        try:
            run = loads(line)
        except (ValueError, RecursionError) as error:
            refused.append(Refused(f"line {i}", f"is no JSON: {error}"))
            continue
        if isinstance(run, dict):
            found.append((f"line {i} ({str(run.get('id'))[:80]})", run))
        else:
            refused.append(Refused(f"line {i}", f"is no object: {line.strip()[:60]!r}"))
    if not found or text.lstrip().startswith("["):
        _whole(text)
    return found, refused


def loads(text: str) -> Any:
    """A JSON document in which every field is stated once.

    Raises:
        ValueError: no JSON, or a field that is stated twice.
        RecursionError: nested too deeply.

    >>> loads('{"tp": 1, "tp": 2}')
    Traceback (most recent call last):
    ValueError: 'tp' is stated twice
    """
    return json.loads(text, object_pairs_hook=_once)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"{key[:60]!r} is stated twice")
        found[key] = value
    return found


def _whole(text: str) -> None:
    """Refuse a text that is JSON as a whole, and so no JSON lines, or nothing."""
    if not text.strip():
        raise NoRuns("holds no run: it is empty")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return
    allowed = "allowed: JSON lines, one run a line without commas between"
    if isinstance(document, list):
        mend = f"; `jq -c '.[]'` writes its {len(document)} elements so" if document else ""
        raise NoRuns(f"is one JSON list; {allowed}{mend}")
    if isinstance(document, dict) and "\n" in text.strip():
        raise NoRuns(
            "is one JSON object over several lines; "
            f"{allowed}; `python -m roofline predict` takes a single run as it is"
        )
