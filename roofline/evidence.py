"""How far to believe the calculator: one summary for the command, the README and the dashboard.

Three tables. Errors on every run there is, which the calibrations were fitted to (in sample).
Errors on runs of sources that were left out of the fit, as ``scripts/calibrate.py`` found them and
each calibration carries them, beside the errors in sample on the same runs. Ranks within sweeps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hardware_profiles.behaviour import Spread
from hardware_profiles.calibration import calibration, calibrations
from roofline import accuracy
from roofline.accuracy import Errors, Ranking
from roofline.backtest import Backtest, Row, rows_of
from roofline.run_fields import Run

SETS = ("gpu", "family")  # groups of the summary
APART = 1.1  # the same configuration measured again: told where times are further apart

# What a run may be flagged with, in words; the first eight bar it from the core set.
BARRING = {
    "flops_inconsistent_>5%": "its printed FLOP/s and tokens/s differ by more than 5 %",
    "reported_throughput_inconsistent": "its printed throughputs contradict each other",
    "reported_mfu_wrong_peak": "its MFU was printed over another GPU's peak",
    "ep_mismatch": "its expert parallelism does not fit its GPUs",
    "gpu_type_inferred": "its GPU is inferred",
    "parallelism_inferred": "its degrees are inferred",
    "nonstandard_arch": "its architecture is not standard",
    "known_perf_bug_rowwise": "its source reports a performance bug in this run",
}
DOUBTS = BARRING | {
    "layers_not_divisible_by_pp": "its layers do not divide by its stages",
    "precision_assumed": "its precision is assumed",
    "vocab_assumed": "its vocabulary is assumed",
    "proxy_model": "it is a cut-down model",
    "docs_revision_superseded": "a later revision of its source prints another number",
    "schedule_zero_bubble": "it runs a zero-bubble schedule",
    "etp_assumed": "its tensor parallelism of experts is assumed",
    "mbs_missing": "its micro-batch is not stated",
    "mbs_inferred": "its micro-batch is inferred",
    "microbatch_inferred": "its micro-batch is inferred",
    "vpp_uncertain": "its interleaving is uncertain",
    "convention_assumed": "how its FLOPs were counted is assumed",
    "sft_padding": "its batches hold padding that its tokens/s do not tell",
    "gbs_mbs_swapped_in_source": "its source swaps batch and micro-batch",
}


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A calibration on runs of one family: fitted to them, and with whole sources left out."""

    calibration: str
    accelerators: tuple[str, ...]
    family: str
    fitted: Spread | None  # in sample, on the core set
    left_out: Spread
    how: str


@dataclass(frozen=True, slots=True)
class Summary:
    """What the command, the README and the Evidence page say."""

    total: Errors
    groups: list[Errors]  # by ``by``, then families, then all
    by: tuple[str, ...]
    left_out: list[LeftOut]
    rankings: list[Ranking]
    predicted: int
    refused: int


def summary(result: Backtest, by: Sequence[str] = SETS) -> Summary:
    """Everything measured, nothing left out.

    Raises:
        ValueError: when no row was measured.
    """
    rows = rows_of(result)
    return Summary(
        total=accuracy.errors(rows),
        groups=groups(rows, by),
        by=tuple(by),
        left_out=left_out(rows),
        rankings=accuracy.rankings(rows),
        predicted=len(result.rows),
        refused=len(result.refused),
    )


def groups(rows: Sequence[Row], by: Sequence[str] = SETS) -> list[Errors]:
    """Errors by fields, then of each family whole, then of all."""
    families = [replace(each, group=f"all {each.group}") for each in accuracy.by(rows, ["family"])]
    if len(families) == 1 or tuple(by) == ("family",):
        families = []
    return [*accuracy.by(rows, by), *families, accuracy.errors(rows)]


def left_out(rows: Iterable[Row]) -> list[LeftOut]:
    """Each shipped calibration that carries what it does on sources left out of its fit."""
    core = [row for row in rows if in_core(row.run)]
    found = []
    for overlay in map(calibration, calibrations()):
        known = overlay.step.accuracy if overlay.step else None
        for family in ("dense", "moe") if known else ():
            spread: Spread | None = getattr(known, family)
            if known and spread:
                here = [r for r in core if r.accelerator in overlay.accelerators]
                fitted = spread_of([r for r in here if r.family == family])
                found.append(
                    LeftOut(overlay.name, overlay.accelerators, family, fitted, spread, known.how)
                )
    return found


def spread_of(rows: Sequence[Row]) -> Spread | None:
    """ln(predicted / measured) of measured rows, as calibrations keep it; None without rows."""
    if not rows:
        return None
    off = np.log([row.predicted / row.measured for row in rows if row.measured])
    return Spread(
        runs=len(off),
        bias=float(np.median(off)),
        median=float(np.median(np.abs(off))),
        p90=float(np.quantile(np.abs(off), 0.9)),
    )


def in_core(run: Run) -> bool:
    """Everything that decides the time is stated and nothing is in doubt (``published_runs.md``)."""
    stated = run.get("quality") == "A" and run.get("micro_batch_size") and run.get("recompute")
    pretraining = run.get("workload", "pretrain") == "pretrain"
    return bool(stated) and pretraining and not BARRING.keys() & set(flags(run))


def flags(run: Run) -> list[str]:
    """Names of what a run is flagged with."""
    found = run.get("flags")
    return [str(flag) for flag in found] if isinstance(found, list | tuple) else []


def doubts(row: Row, apart: dict[str, tuple[float, float]] | None = None) -> list[str]:
    """Why a run may be far off though the model is right: its flags, its gaps, its repetitions."""
    said = [DOUBTS.get(flag, flag) for flag in flags(row.run)]
    span = (apart or {}).get(str(row.run.get("repeat_group") or ""))
    if span:
        low, high = span
        said.append(f"its configuration took {low:.3g} to {high:.3g} s, release by release")
    if not row.run.get("recompute"):
        said.append("its recompute is not stated")
    return said


def repeated(rows: Iterable[Row]) -> dict[str, tuple[float, float]]:
    """Configurations measured more than once, with the fastest and slowest step, if far apart. [s]"""
    times: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        if row.measured and row.run.get("repeat_group"):
            times[str(row.run["repeat_group"])].append(row.measured)
    spans = {name: (min(found), max(found)) for name, found in times.items()}
    return {name: span for name, span in spans.items() if span[1] > APART * span[0]}


def columns(rows: Sequence[Row]) -> dict[str, Any]:
    """Rows as columns for a file; units stand in the names."""
    names = list(dict.fromkeys(name for row in rows for name in row.terms))
    return {
        "id": [row.id for row in rows],
        **{name: [str(value(row)) for row in rows] for name, value in accuracy.GROUPS.items()},
        "gpus": [row.gpus for row in rows],
        "core set": [in_core(row.run) for row in rows],
        "predicted [s]": [row.predicted for row in rows],
        "measured [s]": [row.measured for row in rows],
        "error": [row.error for row in rows],
        "baseline [s]": [row.baseline for row in rows],
        **{f"{name} [s]": [row.terms.get(name, 0.0) for row in rows] for name in names},
    }
