"""What the Evidence page shows, computed once: the back-test of the published runs, and its choices."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import streamlit as st

from roofline import accuracy, backtest, evidence
from roofline.backtest import Backtest, Row
from roofline.evidence_tables import Table, percent
from roofline.units import show

FILTERS = ("gpu", "source", "family", "precision")
WORST = 15


@dataclass(frozen=True)
class Published:
    """Every published run predicted, and what follows from all of them."""

    result: Backtest
    rows: list[Row]  # measured ones
    by_id: dict[str, Row]
    summary: evidence.Summary
    apart: dict[str, tuple[float, float]]


@st.cache_resource(max_entries=1, show_spinner="Predicting every published run …")
def published() -> Published:
    """The back-test that ``python -m roofline backtest`` does; nothing on this page changes it."""
    result = backtest.backtest((str(run["id"]), run) for run in backtest.published())
    rows = backtest.rows_of(result)
    return Published(
        result=result,
        rows=rows,
        by_id={row.id: row for row in rows},
        summary=evidence.summary(result),
        apart=evidence.repeated(rows),
    )


def values(rows: Sequence[Row], field: str) -> list[str]:
    """What a field can be, sorted."""
    return sorted({accuracy.GROUPS[field](row) for row in rows})


def chosen(rows: Sequence[Row], wanted: dict[str, list[str]], core: bool) -> list[Row]:
    """Rows with one of the wanted values of each field; nothing wanted is everything."""
    return [
        row
        for row in rows
        if all(not some or accuracy.GROUPS[f](row) in some for f, some in wanted.items())
        and (not core or evidence.in_core(row.run))
    ]


def as_rows(table: Table) -> list[dict[str, str]]:
    """A table of the summary for ``plain_table``."""
    names, rows = table
    return [dict(zip((n.removeprefix(">") for n in names), row, strict=True)) for row in rows]


def worst(found: Published, rows: Sequence[Row]) -> list[dict[str, str]]:
    """The rows furthest off, with what they are made of and why they may be off."""
    return [
        {
            "run": row.id,
            "error": percent(row.error or 0.0, sign=True),
            "measured": show(row.measured or 0.0, "s"),
            "mostly": ", ".join(accuracy.dominant(row, 2)),
            "known of it": "; ".join(evidence.doubts(row, found.apart)) or "nothing",
        }
        for row in accuracy.worst(rows, WORST)
    ]


def fitted_on(rows: Sequence[Row], accelerators: Sequence[str]) -> str:
    """Sources of the runs of some GPUs with how many each has."""
    counts = Counter(row.source for row in rows if row.accelerator in accelerators)
    return ", ".join(f"{name} {count}" for name, count in counts.most_common()) or "none"


_ADDRESS = (
    (re.compile(r"(?<![/.\w])(github\.com|docs\.nvidia\.com)/"), r"https://\1/"),
    (re.compile(r"arXiv[: ]?(\d{4}\.\d{5})", re.IGNORECASE), r"https://arxiv.org/abs/\1"),
    (re.compile(r"^(NVIDIA|NVIDIA-NeMo|mosaicml|InternLM|pytorch|bigscience-workshop)/([\w.-]+)"),
     r"https://github.com/\1/\2"),
)  # fmt: skip


def source(row: Row) -> str:
    """Where a run was published, with the addresses that its source only names."""
    text = str(row.run.get("source") or "not stated")
    for pattern, address in _ADDRESS:
        text = pattern.sub(address, text)
    return text


def facts(row: Row) -> list[dict[str, str]]:
    """The configuration of a run as its source states it."""
    run = row.run
    degrees = ("tp", "pp", "vpp", "cp", "ep", "etp", "dp", "zero_stage")
    stated: dict[str, Any] = {
        "model": f"{run['model'].get('name')}, sequence {run['model'].get('seq_len'):,}",
        "GPUs": f"{row.gpus:,} × {run.get('gpu')}",
        "degrees": ", ".join(f"{k} {run[k]}" for k in degrees if run.get(k) not in (None, 1)),
        "batch": f"{run.get('global_batch_size')} sequences, "
        f"micro-batch {run.get('micro_batch_size') or 'not stated'}",
        "precision": run.get("precision_detail") or row.precision,
        "recompute": run.get("recompute") or "not stated",
        "framework": row.framework,
        "year": accuracy.stated(row, "year"),
        "quality": accuracy.stated(row, "quality"),
    }
    return [{"": name, "as stated": str(value) or "–"} for name, value in stated.items()]
