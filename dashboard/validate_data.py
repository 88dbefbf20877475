"""Results, uploaded or lying here, as reports and rows of tables."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

import hardware_profiles as hw
from dashboard import validate_runs as runs
from hardware_profiles import reading
from hardware_profiles.errors import ProfileError, explain
from roofline.evidence_tables import percent
from roofline.units import show

Report = dict[str, Any]
Row = Mapping[str, Any]

MOST_RESULTS = 64  # MB of an upload
MOST_LOG = 8
DEEP = ("results.jsonl", "*/results.jsonl", "*/*/results.jsonl")
NAME = re.compile(r"[\w .()+-]{0,120}")
NAMED = re.compile(r"[\w-]{1,80}")
KINDS = ("header", "measured", "failed", "end")


def places(root: Path) -> list[Path]:
    """Folders of results below ``root``, the newest first."""
    files = {file for pattern in DEEP for file in root.glob(pattern) if file.is_file()}
    return [file.parent for file in sorted(files, key=lambda f: -f.stat().st_mtime)][:50]


def stored(name: str, data: bytes, folder: Path) -> Path:
    """An uploaded file as a folder of results: lines of ours, or a log of nccl-tests.

    Raises:
        ValueError: too large, no text, or neither of the two; saying what is wrong.
    """
    limit = MOST_RESULTS if name.endswith(".jsonl") else MOST_LOG
    if len(data) > limit * 10**6:
        raise ValueError(f"{name}: {len(data):,} bytes; allowed: {limit} MB")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{name}: this is no text") from None
    target = Path(tempfile.mkdtemp(dir=folder))
    if name.endswith(".jsonl"):
        _check_lines(name, text)
        (target / runs.FILE).write_text(text, "utf-8")
        return target
    log = target / "nccl.log"
    log.write_text(text, "utf-8")
    try:
        runs.ask("import", "nccl-tests", str(log), "--out", str(target))
    except runs.Refused as error:
        raise ValueError(f"{name}: {str(error).replace(str(log), 'the log')}") from None
    return target


def _check_lines(name: str, text: str) -> None:
    """At least one header of ours, which names no file of this machine."""
    headers = 0
    for record in _records(text):
        headers += record["record"] == "header"
        cluster = record.get("cluster")
        if not NAME.fullmatch(str(record.get("overlay", ""))) or (
            isinstance(cluster, dict) and isinstance(cluster.get("accelerator"), str)
        ):
            raise ValueError(f"{name}: its header refers to a file, which an upload may not do")
    if not headers:
        raise ValueError(
            f"{name}: no header of a run; allowed: {runs.FILE} as `python -m validation` writes it"
        )


def _records(text: str) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue  # the report lists lines that it cannot use
        if isinstance(record, dict) and record.get("record") in KINDS:
            yield record


def report(place: Path, overlay: Path | None = None) -> Report:
    """The report on a folder of results.

    Raises:
        runs.Refused: there is nothing to judge, with the reason.
    """
    words = ["--overlay", str(overlay)] if overlay else []
    found: Report = json.loads(runs.ask("report", str(place), "--json", *words))
    return found


def calibrated(place: Path, name: str, folder: Path) -> tuple[dict[str, Any], str]:
    """How good a fit to half of the cases is on the others, and the fit itself as YAML.

    Raises:
        runs.Refused: too little was measured, or the name is none.
    """
    if not NAMED.fullmatch(name):
        raise runs.Refused(f"name {name!r}; allowed: letters, digits, - and _, such as my-node")
    target = folder / f"{name}.yaml"
    told = json.loads(runs.ask("calibrate", str(place), "--out", str(target), "--json"))
    return told, target.read_text("utf-8")


def overlay(data: bytes, where: str) -> hw.Calibration:
    """The calibration in an uploaded file.

    Raises:
        ProfileError: naming the field, the value and what is allowed.
    """
    if len(data) > reading.MAX_BYTES:
        raise ProfileError(f"{where}: {len(data):,} bytes; allowed: {reading.MAX_BYTES:,}")
    try:
        fields = reading.mapping(data.decode("utf-8-sig"), where)
    except UnicodeDecodeError:
        raise ProfileError(f"{where}: this is no text") from None
    kind = fields.pop("kind", "calibration")
    if kind != "calibration":
        raise ProfileError(f"{where}: kind: {str(kind)[:80]!r} is not a calibration")
    try:
        return hw.Calibration.model_validate(fields)
    except ValidationError as error:
        raise explain(error, where, hw.Calibration) from None


def told(found: Report) -> str:
    """Where it was measured, in one line of plain text."""
    env = found["environment"]
    hosts = ", ".join(f"{n} ({r} ranks)" for n, r in list(env["hosts"].items())[:3])
    more = f" and {len(env['hosts']) - 3} more hosts" if len(env["hosts"]) > 3 else ""
    versions = ", ".join(f"{n} {v}" for n, v in env["versions"].items())
    parts = (env["started"], hosts + more, ", ".join(env["devices"]), env["backend"], versions)
    return " · ".join(filter(None, parts))


def errors(found: Report) -> list[dict[str, str]]:
    """Errors by kernel and part, then by size where there are several."""
    rows: list[dict[str, Any]] = found["errors"]
    several = {
        (r["kernel"], r["part"])
        for r in rows
        if sum((o["kernel"], o["part"]) == (r["kernel"], r["part"]) for o in rows) > 2
    }
    return [
        {
            "kernel": r["kernel"],
            "part": r["part"],
            "bytes": r["bytes"],
            "cases": str(r["cases"]),
            "median error": percent(r["median"]),
            "bias": percent(r["bias"], sign=True),
            "worst": percent(r["worst"], sign=True),
            "scatter of the measurement": percent(r["spread"]),
        }
        for r in rows
        if r["bytes"] == "all" or (r["kernel"], r["part"]) in several
    ]


def cases(found: Report) -> list[dict[str, str]]:
    """Every part of every case, what failed first, then what is not trusted, then the furthest off."""
    rows = sorted(found["rows"], key=lambda r: (r["trusted"], -abs(r["error"] or 0)))
    lost = [
        {"case": f["case"], "part": "", "measured": "", "predicted": "", "error": "",
         "state": f"failed on rank {f['rank']}: {f['reason']}"}
        for f in found["failed"]
    ]  # fmt: skip
    return lost + [
        {
            "case": r["case"],
            "part": r["part"],
            "measured": show(r["seconds"], "s"),
            "predicted": "" if r["predicted"] is None else show(r["predicted"], "s"),
            "error": "" if r["error"] is None else percent(r["error"], sign=True),
            "state": state_of(r),
        }
        for r in rows
    ]


def state_of(row: Row) -> str:
    """Whether the run checked this result."""
    if row["trusted"]:
        return "checked"
    return {"no": "wrong result", "unchecked": "not checked"}.get(row["correct"], "no time")


def fits(told: Mapping[str, Any]) -> list[dict[str, str]]:
    """Errors on cases that a calibration was not fitted to, before and after."""
    every: Sequence[Mapping[str, Any]] = [*told["rows"], told["whole"]]
    return [
        {
            "kernel": r["kernel"],
            "fitted": str(r["fitted"]),
            "held out": str(r["held_out"]),
            "error before": "" if r["before"] is None else percent(r["before"]),
            "error after": "" if r["after"] is None else percent(r["after"]),
        }
        for r in every
    ]


def columns(found: Report) -> dict[str, list[Any]]:
    """The points as columns with SI units, for a download."""
    names = {"case": "case", "kernel": "kernel", "part": "part", "seconds": "measured [s]",
             "predicted": "predicted [s]", "error": "error", "correct": "checked"}  # fmt: skip
    return {title: [row[name] for row in found["rows"]] for name, title in names.items()}
