"""Back-test: published runs predicted from their configuration, beside what was measured.

Runs of one accelerator are one call of the step model, a row each. A run that cannot be predicted
is listed with its reason; the others go on. Errors are predicted over measured step time, minus 1:
positive where the prediction is too slow. The baseline is what one does without a model: a single
utilisation per GPU and precision, fitted to these very runs, times the bubble of the schedule.

    baseline = FLOPs / (N · peak · utilisation) · (1 + (p-1)/(vM))
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

import hardware_profiles as hw
from hardware_profiles.behaviour import StepFit
from hardware_profiles.calibration import for_accelerator
from roofline import calibrated, runs
from roofline.dims import Dims
from roofline.layout import RECOMPUTE, stack
from roofline.machine import Tier
from roofline.model_flops import flops_per_token
from roofline.run_fields import NotMeasured, Run, RunError
from roofline.step import predict

Column = NDArray[np.float64]

Member = tuple[str, Run, runs.Job]  # with the name that a refusal is listed under
WRONG = (ValueError, TypeError, ArithmeticError, AttributeError, LookupError, RecursionError)

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

    @property
    def error(self) -> float | None:
        """Predicted over measured, minus 1; None where nothing was measured."""
        return None if self.measured is None else self.predicted / self.measured - 1


@dataclass(frozen=True, slots=True)
class Refused:
    """A run that cannot be predicted."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Backtest:
    """All rows, and what was refused."""

    rows: list[Row]
    refused: list[Refused]


def published() -> list[Run]:
    """The published runs that come with the package; ``data/published_runs.md`` says from where."""
    text = files("roofline").joinpath("data/published_runs.jsonl").read_text("utf-8")
    return [json.loads(line) for line in text.split("\n") if line]


def parse(text: str) -> tuple[list[tuple[str, Run]], list[Refused]]:
    """Runs of a JSONL text with the names of their lines, and the lines that are none."""
    found: list[tuple[str, Run]] = []
    refused: list[Refused] = []
    for i, line in enumerate(text.split("\n"), 1):  # texts may hold other ends of lines
        if not line.strip():
            continue
        try:
            run = json.loads(line)
        except (ValueError, RecursionError) as error:
            refused.append(Refused(f"line {i}", f"is no JSON: {error}"))
            continue
        if isinstance(run, dict):
            found.append((f"line {i} ({str(run.get('id'))[:80]})", run))
        else:
            refused.append(Refused(f"line {i}", f"is no object: {line.strip()[:60]!r}"))
    return found, refused


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
            _measured(run)
            dtype = calibrated.dtype_of(job.precision)
            rates = hw.accelerator(job.accelerator).peak_flops
            if dtype not in rates:
                known = ", ".join(rates)
                raise RunError(f"precision: {job.accelerator} has no {dtype} rate; it has {known}")
            groups[job.accelerator].append((name, run, job))
        except WRONG as error:
            refused.append(Refused(name, _told(error)))
    rows: list[Row] = []
    for accelerator, members in groups.items():
        parts = _parts(members, fits(accelerator))
        tried = list(zip(members, parts, strict=True))
        refused += [Refused(m[0], _told(p)) for m, p in tried if isinstance(p, Exception)]
        rows += _predicted(accelerator, [(m, p) for m, p in tried if isinstance(p, dict)])
    return Backtest(rows, refused)


def _told(error: Exception) -> str:
    return str(error) or type(error).__name__


def _parts(members: list[Member], fit: StepFit | None) -> list[dict[str, float] | Exception]:
    """Terms of every run, or why it has none: each alone only where they cannot be all at once."""
    try:
        columns = terms([job for _, _, job in members], fit)
        if np.all(np.isfinite(sum(columns.values()))):
            return [{k: float(x[i]) for k, x in columns.items()} for i in range(len(members))]
    except WRONG as error:
        if len(members) == 1:
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
    reference = hw.cluster(reference_cluster(jobs[0].accelerator))
    inner = reference.tiers[0]
    card = reference.tiers[1].bandwidth / inner.degree if reference.tiers[1:] else inner.bandwidth
    domain = np.array([float(job.domain) for job in jobs])
    nic = np.array([card if job.nic is None else job.nic for job in jobs])
    outside = max(float(np.max([job.layout.gpus for job in jobs])), 2.0)
    return (
        Tier(domain, inner.bandwidth, inner.name, transit=False),
        Tier(outside, domain * nic, "network"),
    )


def reference_cluster(accelerator: str) -> str:
    """A shipped cluster of this accelerator: the vendor's own system, if there is one."""
    alike = {"h100-sxm-hbm2e": "h100-sxm"}.get(accelerator, accelerator)
    for name in sorted(hw.clusters(), key=lambda name: ("superpod" not in name, name)):
        if name != "local" and hw.cluster(name).accelerator.name == alike:
            return name
    raise RunError(f"gpu: no cluster with {accelerator} comes with the package")


def _predicted(name: str, members: list[tuple[Member, dict[str, float]]]) -> list[Row]:
    jobs = [job for (_, _, job), _ in members]
    flops = np.array([_flops(job) for job in jobs])
    seconds = [_measured(run) for (_, run, _), _ in members]
    base = _baseline(name, jobs, flops, seconds)
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
            measured=seconds[i],
            baseline=float(base[i]),
            flops=float(flops[i]),
            terms=parts,
            assumed=job.assumed,
            framework=job.framework.name,
            run=run,
        )
        for i, ((_, run, job), parts) in enumerate(members)
    ]


def _measured(run: Run) -> float | None:
    try:
        return runs.measured(run)
    except NotMeasured:
        return None


def _flops(job: runs.Job) -> float:
    layout = job.layout
    tokens = float(layout.batch * layout.sequence)
    return tokens * float(flops_per_token(job.model, layout.sequence))


def _baseline(
    name: str, jobs: Sequence[runs.Job], flops: Column, seconds: Sequence[float | None]
) -> Column:
    """One utilisation per precision, the median of these runs, and the schedule's bubble."""
    chip, base = hw.accelerator(name), np.empty(len(jobs))
    ideal = np.empty(len(jobs))
    for i, job in enumerate(jobs):
        layout = job.layout
        rate = float(layout.gpus) * chip.flops(calibrated.dtype_of(job.precision))
        again = 4 / 3 if layout.recompute in (RECOMPUTE["full"], RECOMPUTE["block"]) else 1.0
        bubble = (layout.pp - 1.0) / (layout.chunks * layout.microbatches)
        ideal[i] = flops[i] * again / rate * (1.0 + bubble)
    for precision in {job.precision for job in jobs}:
        here = [i for i, job in enumerate(jobs) if job.precision == precision]
        known = [ideal[i] / seconds[i] for i in here if seconds[i]]
        base[here] = ideal[here] / (np.median(known) if known else 1.0)
    return base


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
        "accelerator": row.accelerator,
        "family": row.family,
        "assumed": list(row.assumed),
        "terms_s": row.terms,
    }
