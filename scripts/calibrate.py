"""Fit calibrations to published runs, cross-validate them by leaving out whole sources, write them.

    python scripts/calibrate.py RUNS.jsonl [--gpu a100 --gpu h100 …] [--write]

Kernels and collectives start from what was measured of them alone (``kernels.yaml`` beside this
file); whole jobs then say how much of it they get. One vector per GPU type from its dense runs; then
what only expert layers have, on the mixtures of all types at once (``mixtures.py``). Every source
counts, large ones more; priors keep what the runs cannot tell at its measured value. Needs scipy
(``pip install -e .[dev]``).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mixtures
import numpy as np
import overlays
import yaml
from scipy.optimize import least_squares

from hardware_profiles.behaviour import StepFit
from hardware_profiles.catalog import SHIPPED
from roofline import backtest, evidence, runs

HERE = Path(__file__).parent
RAMP = 2e-6  # until a memory-bound kernel streams, beside the gap to the next one
NOISE = 0.03  # of a measured step

# Prior median and standard deviation of the logarithm.
DENSE = {
    "bf16": (0.97, 0.1),
    "fp8": (0.97, 0.1),
    "fp4": (0.97, 0.1),
    "power": (0.10, 0.5),
    "streams": (0.83, 0.02),
    "attention": (0.90, 0.08),
    "flash_1": (1.00, 0.03),
    "fine_overlap": (0.65, 0.15),
    "contention": (0.50, 0.20),
    "outer": (0.85, 0.12),
    "hop": (8e-6, 0.4),
    "gap": (2e-6, 0.2),
    "fixed": (12e-3, 0.3),
}
# Calibration → accelerators whose runs it is fitted to; and whose numbers it starts from.
TARGETS = {
    "a100": ("a100-sxm-80gb", "a100-sxm-40gb"),
    "h100": ("h100-sxm",),
    "h100-hbm2e": ("h100-sxm-hbm2e",),
    "b200": ("b200-sxm",),
    "b300": ("b300-sxm",),
    "gb200": ("gb200",),
    "gb300": ("gb300",),
}
INHERITED = {"h200": "h100", "h800": "h100", "gh200": "h100"}

Vector = dict[str, float]


@dataclass(frozen=True)
class Batch:
    """Runs of one accelerator with what was measured."""

    accelerator: str
    jobs: list[runs.Job]
    seconds: np.ndarray
    sources: np.ndarray
    core: np.ndarray
    moe: np.ndarray

    def errors(self, fit: StepFit) -> np.ndarray:
        """ln(predicted / measured)."""
        parts = backtest.terms(self.jobs, fit)
        return np.log(sum(parts.values()) / self.seconds)

    def only(self, mask: np.ndarray) -> Batch:
        jobs = [job for job, kept in zip(self.jobs, mask, strict=True) if kept]
        arrays = (x[mask] for x in (self.seconds, self.sources, self.core, self.moe))
        return Batch(self.accelerator, jobs, *arrays)


def load(path: Path) -> dict[str, Batch]:
    """Runs that can be fitted to, by accelerator."""
    groups: dict[str, list[tuple[Mapping[str, Any], runs.Job, float]]] = {}
    named, refused = backtest.parse(path.read_text("utf-8"))
    for name, run in named:
        try:
            job, seconds = runs.job(run), runs.measured(run)
        except runs.RunError as error:
            refused.append(backtest.Refused(name, str(error)))
            continue
        if run.get("workload", "pretrain") == "pretrain" and "longseq" not in job.id:
            groups.setdefault(job.accelerator, []).append((run, job, seconds))
    print(f"{len(refused)} runs left out")
    return {name: _batch(name, members) for name, members in groups.items()}


def _batch(name: str, members: Sequence[tuple[Mapping[str, Any], runs.Job, float]]) -> Batch:
    return Batch(
        name,
        [job for _, job, _ in members],
        np.array([seconds for _, _, seconds in members]),
        np.array([job.id.partition("-")[0] for _, job, _ in members]),
        np.array([evidence.in_core(run) for run, _, _ in members]),
        np.array([job.model.experts is not None for _, job, _ in members]),
    )


def fitted(start: StepFit, x: Vector) -> StepFit:
    """``start`` with what a vector says."""
    data = start.model_dump()
    for dtype, one in data["matmuls"].items():
        one["efficiency"] *= x.get(dtype, 1.0)
    a = data["attention"]
    a["efficiency"] *= x["attention"]
    a["flash_2"] *= x["attention"]
    a["flash_1"] *= x["flash_1"]
    data["streams"] = {"hbm": x["streams"], "gap": x["gap"] + RAMP}
    data["network"] |= {"outer": x["outer"], "hop": x["hop"]}
    if "exchange" in x:
        data["network"]["exchange"] = x["exchange"]
    habits = ("contention", "fine_overlap", "experts", "host", "fixed", "power", "early")
    data["habits"] |= {name: x[name] for name in habits if name in x}
    return StepFit.model_validate(data)


def fit(
    batches: Sequence[Batch], starts: Sequence[StepFit], prior: Mapping[str, Any], base: Vector
) -> Vector:
    """The most likely vector: soft L1 of the errors, and the priors."""
    names = list(prior)
    mean = np.log([prior[n][0] for n in names])
    width = np.array([prior[n][1] for n in names])
    weights = _weights(batches)

    def residuals(x: np.ndarray) -> np.ndarray:
        vector = base | dict(zip(names, np.exp(x), strict=True))
        try:
            off = [b.errors(fitted(s, vector)) for b, s in zip(batches, starts, strict=True)]
        except ValueError:  # outside of what a calibration may hold
            return np.full(len(weights) + len(names), 1e3)
        return np.concatenate([np.concatenate(off) / NOISE * weights, (x - mean) / width])

    found = least_squares(residuals, mean, loss="soft_l1", diff_step=1e-3, max_nfev=40)
    return base | {n: float(v) for n, v in zip(names, np.exp(found.x), strict=True)}


def _weights(batches: Sequence[Batch]) -> np.ndarray:
    """Square roots of what each run counts: sources alike, larger ones and core ones more."""
    sources = np.concatenate([b.sources for b in batches])
    core = np.concatenate([b.core for b in batches])
    weight = np.zeros(len(sources))
    for name in set(sources):
        here = sources == name
        total = 30.0 if np.any(core & here) else 6.0
        weight[here] = total / np.sqrt(np.sum(here) * 30)
    return np.sqrt(weight)


def dense(name: str, data: Mapping[str, Batch], starts: Mapping[str, StepFit]) -> Vector | None:
    """The vector of a GPU type from its dense runs; None where it has none."""
    own = [b.only(~b.moe) for b in _own(name, data)]
    own = [b for b in own if len(b.jobs)]
    key = (name, *(job.id for b in own for job in b.jobs))
    if key not in _FOUND:
        start = [starts[name]] * len(own)
        _FOUND[key] = fit(own, start, DENSE, mixtures.medians()) if own else None
    return _FOUND[key]


_FOUND: dict[tuple[str, ...], Vector | None] = {}  # what the same runs gave before


def calibrate_all(data: Mapping[str, Batch], starts: Mapping[str, StepFit]) -> dict[str, Vector]:
    """The vectors of all types that have mixtures: dense runs first, mixtures of all then."""
    key = tuple(job.id for b in data.values() for job in b.jobs)
    if key not in _JOINT:
        used = mixtures.used({name: _own(name, data) for name in mixtures.JOINED})
        base = mixtures.with_siblings({n: dense(n, data, starts) for n in mixtures.JOINED})
        errors = {n: _errors(batches, starts[n]) for n, batches in used.items()}
        weights = _weights([b for batches in used.values() for b in batches])
        _JOINT[key] = mixtures.joint(errors, base, weights, NOISE)
    return _JOINT[key]


_JOINT: dict[tuple[str, ...], dict[str, Vector]] = {}


def _errors(batches: Sequence[Batch], start: StepFit) -> mixtures.Errors:
    return lambda vector: np.concatenate([b.errors(fitted(start, vector)) for b in batches])


def _own(name: str, data: Mapping[str, Batch]) -> list[Batch]:
    return [data[a] for a in TARGETS[name] if a in data]


def calibrate(name: str, data: Mapping[str, Batch], starts: Mapping[str, StepFit]) -> Vector:
    """The vector of a GPU type."""
    if name in mixtures.JOINED:
        return calibrate_all(data, starts)[name]
    return dense(name, data, starts) or mixtures.medians(DENSE | mixtures.SHARED)


def left_out(name: str, data: Mapping[str, Batch], starts: Mapping[str, StepFit]) -> list[Any]:
    """(batch, errors) of every part of the runs, predicted by a fit to the others.

    A part is a source; where a GPU has one source only, it is a model, on all GPUs.
    """
    own = _own(name, data)
    label = _label(own)
    found = []
    for part in sorted({p for b in own for p in label(b)}):
        rest = {a: b.only(label(b) != part) for a, b in data.items()}
        rest = {a: b for a, b in rest.items() if len(b.jobs)}
        vector = calibrate(name, rest, starts) if any(a in rest for a in TARGETS[name]) else None
        for b in own:
            here = b.only(label(b) == part)
            if vector and len(here.jobs):
                found.append((here, here.errors(fitted(starts[name], vector))))
    return found


def _label(own: Sequence[Batch]) -> Callable[[Batch], np.ndarray]:
    if len({s for b in own for s in b.sources}) > 1:
        return lambda batch: batch.sources
    return lambda batch: np.array([job.model.name for job in batch.jobs])


def _how(own: Sequence[Batch]) -> str:
    several = len({s for b in own for s in b.sources}) > 1
    part = "source" if several else "model (there is one source only)"
    return f"each {part} left out of the fit in turn and predicted by a fit to the others, core set"


def spread(errors: np.ndarray) -> dict[str, Any] | None:
    """What a calibration keeps of errors."""
    if not len(errors):
        return None
    off = np.abs(errors)
    return {
        "runs": len(errors),
        "bias": round(float(np.median(errors)), 4),
        "median": round(float(np.median(off)), 4),
        "p90": round(float(np.quantile(off, 0.9)), 4),
    }


def pooled(pairs: Iterable[Any], *, moe: bool, core: bool = True) -> np.ndarray:
    """Errors of dense runs or of mixtures: of the core set, or of all where it has none."""
    pairs = list(pairs)
    chosen = [e[(b.moe == moe) & (b.core | (not core))] for b, e in pairs]
    found = np.concatenate([*chosen, np.array([])])
    return found if len(found) or not core else pooled(pairs, moe=moe, core=False)


def table(title: str, pairs: Sequence[Any]) -> dict[str, Any]:
    """Print errors by source; return those of dense runs and of mixtures."""
    print(f"  {title}")
    for moe in (False, True):
        total = spread(pooled(pairs, moe=moe))
        if total:
            print(f"    {'MoE' if moe else 'dense'} core: {_said(total)}")
        for source in sorted({s for b, _ in pairs for s in b.sources}):
            here = [e[(b.sources == source) & (b.moe == moe)] for b, e in pairs]
            one = spread(np.concatenate(here))
            if one:
                print(f"      {source:12s} {_said(one)}")
    return {"dense": spread(pooled(pairs, moe=False)), "moe": spread(pooled(pairs, moe=True))}


def _said(one: Mapping[str, Any]) -> str:
    return "n={runs:4d}  bias {bias:+.1%}  median {median:.1%}  p90 {p90:.1%}".format(**one)


def measured_kernels() -> dict[str, StepFit]:
    """Starting points: what kernels and collectives take alone."""
    texts = yaml.safe_load((HERE / "kernels.yaml").read_text("utf-8"))
    return {name: StepFit.model_validate(one) for name, one in texts.items()}


def main() -> None:
    """Fit, cross-validate, print, and write where asked to."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("runs", type=Path)
    options.add_argument("--gpu", action="append", choices=list(TARGETS))
    options.add_argument("--write", action="store_true", help="into the shipped calibrations")
    asked = options.parse_args()
    if asked.write and not SHIPPED.is_relative_to(HERE.parent):
        options.error(f"--write goes to {SHIPPED}, another checkout; set PYTHONPATH to this one")
    data, starts = load(asked.runs), measured_kernels()
    for name in asked.gpu or TARGETS:
        vector = calibrate(name, data, starts)
        if (
            name not in mixtures.JOINED
        ):  # no mixtures of its own: launching costs what it does there
            vector = vector | mixtures.software(calibrate_all(data, starts)["h100"])
        print(name, {k: float(f"{v:.3g}") for k, v in vector.items()})
        step = fitted(starts[name], vector)
        own = _own(name, data)
        table("fitted to all", [(b, b.errors(step)) for b in own])
        pairs = left_out(name, data, starts)
        left = table("each part left out in turn", pairs)
        if asked.write:
            _write_all(name, step, {**left, "how": _how(own)})


def _write_all(name: str, step: StepFit, left: Mapping[str, Any]) -> None:
    overlays.write(name, step, left, _sentence(left))
    for heir, parent in INHERITED.items():
        if parent == name:
            note = f"the step model's numbers are the {parent.upper()}'s: no runs to fit to"
            update = {"source": f"{step.source}; taken from the {parent.upper()}"}
            overlays.write(heir, step.model_copy(update=update), None, note)


def _sentence(left: Mapping[str, Any]) -> str:
    parts = [
        f"{family}: median {one['median']:.1%}, 90th percentile {one['p90']:.1%}, bias "
        f"{one['bias']:+.1%} over {one['runs']} runs"
        for family, one in (("dense", left["dense"]), ("MoE", left["moe"]))
        if one
    ]
    return f"step times, {left['how']}: " + "; ".join(parts)


if __name__ == "__main__":
    main()
