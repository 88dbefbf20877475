"""Back-test: published runs predicted from their configuration, beside what was measured.

Runs of one accelerator are one call of the step model, a row each. A run that cannot be predicted
is listed with its reason; the others go on. Errors are predicted over measured step time, minus 1:
positive where the prediction is too slow. ``roofline.baseline`` is what one does without a model.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import hardware_profiles as hw
from hardware_profiles.behaviour import StepFit
from hardware_profiles.calibration import for_accelerator
from roofline import baseline, calibrated, runs
from roofline.dims import Dims
from roofline.layout import stack
from roofline.machine import Tier
from roofline.run_fields import Run, RunError
from roofline.run_files import Refused, parse, published
from roofline.run_gpus import inside, reference_cluster
from roofline.step import predict

__all__ = [
    "Backtest",
    "Refused",
    "Row",
    "as_document",
    "at_peak",
    "backtest",
    "parse",
    "published",
    "reference_cluster",
    "rows_of",
    "shipped",
    "terms",
]

Column = NDArray[np.float64]

Member = tuple[str, Run, runs.Job]  # with the name that a refusal is listed under
ATTENTION = "bf16"  # whose rate attention and the head are counted at, whatever the precision
WRONG = (ValueError, ArithmeticError)  # sizes that no double holds are the second

UNHELD = "rates of"  # what the line begins with that says whose rates were held against no run

Fits = Callable[[str], StepFit | None]  # accelerator → what its calibration says, if anything


@dataclass(frozen=True, slots=True)
class Row:
    """One run: what was predicted, what was measured, and of what the prediction is made."""

    id: str
    accelerator: str
    source: str  # the part of the id before its first dash
    family: str  # dense or moe
    precision: str
    gpus: int
    sweep: str  # runs that may be ranked against each other; empty where there are none
    predicted: float
    measured: float | None
    baseline: float
    flops: float  # of the model, a step
    terms: dict[str, float]
    assumed: tuple[str, ...]
    framework: str
    run: Run  # as it was stated
    baseline_of: str = ""  # the published runs whose utilisation the baseline takes

    @property
    def held(self) -> bool:
        """Whether the rates of its GPU were held against runs."""
        return not any(line.startswith(UNHELD) for line in self.assumed)

    @property
    def error(self) -> float | None:
        """Predicted over measured, minus 1; None where nothing was measured."""
        return None if self.measured is None else self.predicted / self.measured - 1


@dataclass(frozen=True, slots=True)
class Backtest:
    """All rows, and what was refused."""

    rows: list[Row]
    refused: list[Refused]


def shipped(accelerator: str) -> StepFit | None:
    """What the calibration of an accelerator that comes with the package says of whole steps."""
    overlay = for_accelerator(accelerator)
    return None if overlay is None else overlay.step


def at_peak(accelerator: str) -> StepFit | None:
    """Nothing: every rate as the datasheet has it."""
    return None


def backtest(named: Iterable[tuple[str, Run]], fits: Fits = shipped) -> Backtest:
    """Every run predicted; ``named`` are runs with the names that a refusal is listed under."""
    refused: list[Refused] = []
    groups: dict[str, list[Member]] = defaultdict(list)
    for name, run in named:
        try:
            job = runs.job(run)
            dtype = calibrated.dtype_of(job.precision)
            rates = hw.accelerator(job.accelerator).peak_flops
            for field, needed in (("precision", dtype), ("gpu", ATTENTION)):
                if needed not in rates:
                    known = f"has no {needed} rate; it has {', '.join(rates)}"
                    raise RunError(f"{field}: {job.accelerator} {known}")
            groups[job.accelerator].append((name, run, job))
        except ValueError as error:
            refused.append(Refused(name, str(error)))
    rows: list[Row] = []
    for accelerator, members in groups.items():
        fit = fits(accelerator)
        parts = _parts(members, fit)
        tried = list(zip(members, parts, strict=True))
        refused += [Refused(m[0], str(p)) for m, p in tried if isinstance(p, Exception)]
        told = _rates(accelerator, fit)
        rows += _predicted(accelerator, [(m, p) for m, p in tried if isinstance(p, dict)], told)
    return Backtest(rows, refused)


def _rates(accelerator: str, fit: StepFit | None) -> tuple[str, ...]:
    """What is assumed where rates were not held against runs of this GPU."""
    if fit is None:
        return (f"{UNHELD} {accelerator} are the datasheet's peaks, held against no run",)
    if fit.accuracy is None:
        return (f"{UNHELD} {accelerator}: its calibration was held against no run left out of it",)
    return ()


def _parts(members: list[Member], fit: StepFit | None) -> list[dict[str, float] | Exception]:
    """Terms of every run, or why it has none: each alone only where they cannot be all at once."""
    try:
        columns = terms([job for _, _, job in members], fit)
        if np.all(np.isfinite(sum(columns.values()))):
            return [{k: float(x[i]) for k, x in columns.items()} for i in range(len(members))]
    except WRONG as error:
        if len(members) == 1 and isinstance(error, ValueError):
            return [error]
    if len(members) == 1:
        return [RunError("model: its sizes are too large to compute with")]
    return [_parts([member], fit)[0] for member in members]


def terms(jobs: Sequence[runs.Job], fit: StepFit | None) -> dict[str, Column]:
    """Seconds of each term of runs on one accelerator, a column each. [s]"""
    chip = hw.accelerator(jobs[0].accelerator)
    dtypes = [calibrated.dtype_of(job.precision) for job in jobs]
    machine = calibrated.on(chip, _tiers(jobs), fit, dtypes)
    model, layout = Dims.stack([j.model for j in jobs]), stack([j.layout for j in jobs])
    found = predict(machine.job(model, layout)).terms
    return {name: np.broadcast_to(np.asarray(x), len(jobs)) for name, x in found.items()}


def _tiers(jobs: Sequence[runs.Job]) -> tuple[Tier, ...]:
    """The domain that a run states, and beyond it one network of its cards."""
    inner, card = inside(jobs[0].accelerator)
    domain = np.array([float(job.domain) for job in jobs])
    nic = np.array([card if job.nic is None else job.nic for job in jobs])
    outside = max(float(np.max([job.layout.gpus for job in jobs])), 2.0)
    return (
        Tier(domain, inner.bandwidth, inner.name, transit=False),
        Tier(outside, domain * nic, "network"),
    )


def _predicted(
    name: str, members: list[tuple[Member, dict[str, float]]], rates: tuple[str, ...]
) -> list[Row]:
    base = [baseline.seconds(job) for (_, _, job), _ in members]
    return [
        Row(
            id=job.id,
            accelerator=name,
            source=job.id.partition("-")[0],
            family="moe" if job.model.experts else "dense",
            precision=job.precision,
            gpus=int(job.layout.gpus),
            sweep=_sweep(run, job),
            predicted=sum(parts.values()),
            measured=job.measured,
            baseline=float(base[i][0]),
            flops=baseline.flops(job),
            terms=parts,
            assumed=(*job.assumed, *rates),
            framework=job.framework.name,
            run=run,
            baseline_of=base[i][1],
        )
        for i, ((_, run, job), parts) in enumerate(members)
    ]


def _sweep(run: Run, job: runs.Job) -> str:
    """Runs of one series on as many GPUs; a search over shapes spans models, others do not."""
    series = str(run.get("series") or "")
    if not series or series == "point" or series.endswith("scaling"):
        return ""
    shape = "" if "search" in series else f", {job.model.name}"
    return f"{job.id.partition('-')[0]} {series}, {job.layout.gpus:g} {job.accelerator}{shape}"


def rows_of(back: Backtest, **wanted: str) -> list[Row]:
    """Measured rows whose fields have these values."""
    return [
        row
        for row in back.rows
        if row.measured is not None and all(getattr(row, k) == v for k, v in wanted.items())
    ]


def as_document(row: Row) -> Mapping[str, Any]:
    """A row for JSON."""
    return {
        "id": row.id,
        "predicted_s": row.predicted,
        "measured_s": row.measured,
        "error": row.error,
        "baseline_s": row.baseline,
        "baseline_of": row.baseline_of,
        "accelerator": row.accelerator,
        "family": row.family,
        "assumed": list(row.assumed),
        "terms_s": row.terms,
    }
