"""Fit calibrations to published runs, cross-validate them by leaving out whole sources, write them.

    python scripts/calibrate.py RUNS.jsonl [--gpu a100 --gpu h100 …] [--write]

Kernels and collectives start from what was measured of them alone (``kernels.yaml`` beside this
file); whole jobs then say how much of it they get. One vector per GPU type: dense runs first, then
what only expert layers have on the runs of mixtures. Every source counts, large ones more; priors
keep what the runs cannot tell at its measured value. Needs scipy (``pip install -e .[dev]``).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from scipy.optimize import least_squares

from hardware_profiles.behaviour import StepFit
from hardware_profiles.catalog import SHIPPED
from roofline import backtest, runs

HERE = Path(__file__).parent
RAMP = 2e-6  # until a memory-bound kernel streams, beside the gap to the next one
NOISE = 0.03  # of a measured step
FLAGGED = {
    "flops_inconsistent_>5%",
    "reported_throughput_inconsistent",
    "reported_mfu_wrong_peak",
    "ep_mismatch",
    "gpu_type_inferred",
    "parallelism_inferred",
    "nonstandard_arch",
    "known_perf_bug_rowwise",
    "sft_padding",
}

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
MOE = {"experts": (1.20, 0.15), "host": (2.5e-3, 0.3), "exchange": (0.75, 0.15)}

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
        np.array([is_core(run) for run, _, _ in members]),
        np.array([job.model.experts is not None for _, job, _ in members]),
    )


def is_core(run: Mapping[str, Any]) -> bool:
    """Everything that decides the time is stated, and nothing is in doubt."""
    stated = run.get("quality") == "A" and run.get("micro_batch_size") and run.get("recompute")
    return bool(stated) and not FLAGGED & set(run.get("flags") or ())


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
    habits = ("contention", "fine_overlap", "experts", "host", "fixed", "power")
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


def both(batches: Sequence[Batch], starts: Sequence[StepFit], prior: Mapping[str, Any]) -> Vector:
    """Dense runs first; then what only expert layers have, on runs of mixtures."""
    dense = [(b.only(~b.moe), s) for b, s in zip(batches, starts, strict=True) if np.any(~b.moe)]
    moe = [(b.only(b.moe), s) for b, s in zip(batches, starts, strict=True) if np.any(b.moe)]
    first = {n: prior[n] for n in DENSE}
    second = {n: prior[n] for n in MOE}
    ready = {n: v[0] for n, v in second.items()}
    if dense:
        ready |= fit([b for b, _ in dense], [s for _, s in dense], first, ready)
    else:  # mixtures alone have to tell how fast matmuls are, too
        ready |= {n: v[0] for n, v in first.items()}
        second |= dict.fromkeys(("bf16", "fp8", "fp4"), (0.97, 0.15))
    if moe:
        ready = fit([b for b, _ in moe], [s for _, s in moe], second, ready)
    return ready


def calibrate(name: str, data: Mapping[str, Batch], starts: Mapping[str, StepFit]) -> Vector:
    """The vector of a GPU type."""
    own = [data[a] for a in TARGETS[name] if a in data]
    return both(own, [starts[name]] * len(own), DENSE | MOE)


def left_out(name: str, data: Mapping[str, Batch], starts: Mapping[str, StepFit]) -> list[Any]:
    """(batch, errors) of every part of the runs, predicted by a fit to the others.

    A part is a source; where a GPU has one source only, it is a model, on all GPUs.
    """
    own = [data[a] for a in TARGETS[name] if a in data]
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


def write(name: str, step: StepFit, accuracy: Mapping[str, Any] | None, error: str) -> None:
    """Replace ``step`` and ``error`` of a shipped calibration, leaving the rest as it is."""
    path = SHIPPED / "calibrations" / f"{name}.yaml"
    text = path.read_text("utf-8").split("\nstep:\n")[0].rstrip("\n")
    lines = [_line(line, error) for line in text.splitlines()]
    data = json.loads(step.model_copy(update={"accuracy": None}).model_dump_json(exclude_none=True))
    if accuracy:
        data["accuracy"] = {k: v for k, v in accuracy.items() if v is not None}
    block = yaml.safe_dump({"step": _rounded(data)}, sort_keys=False, allow_unicode=True, width=100)
    path.write_text("\n".join(lines) + "\n" + block, "utf-8")


def _line(line: str, error: str) -> str:
    return f"error: {json.dumps(error)}" if line.startswith("error:") else line


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _rounded(v) for k, v in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


def main() -> None:
    """Fit, cross-validate, print, and write where asked to."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("runs", type=Path)
    options.add_argument("--gpu", action="append", choices=list(TARGETS))
    options.add_argument("--write", action="store_true", help="into the shipped calibrations")
    asked = options.parse_args()
    data, starts = load(asked.runs), measured_kernels()
    for name in asked.gpu or TARGETS:
        vector = calibrate(name, data, starts)
        print(name, {k: float(f"{v:.3g}") for k, v in vector.items()})
        step = fitted(starts[name], vector)
        own = [data[a] for a in TARGETS[name] if a in data]
        table("fitted to all", [(b, b.errors(step)) for b in own])
        pairs = left_out(name, data, starts)
        left = table("each part left out in turn", pairs)
        if asked.write:
            _write_all(name, step, {**left, "how": _how(own)})


def _write_all(name: str, step: StepFit, left: Mapping[str, Any]) -> None:
    write(name, step, left, _sentence(left))
    for heir, parent in INHERITED.items():
        if parent == name:
            note = f"the step model's numbers are the {parent.upper()}'s: no runs to fit to"
            update = {"source": f"{step.source}; taken from the {parent.upper()}"}
            write(heir, step.model_copy(update=update), None, note)


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
