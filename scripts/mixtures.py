"""What expert layers cost beyond their kernels: one set of numbers for mixtures on all GPU types.

No GPU type has runs of mixtures from more than three sources, so that a vector of its own would
learn the habits of a release. Launching kernels, synchronising and ragged groups are software: all
types share them (``SHARED``), fitted to all mixtures at once. Blackwell types, whose dense runs are
few and old, let their mixtures correct how fast their matmuls and their attention are (``OWN``),
near what dense runs and siblings say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.optimize import least_squares

# Prior median and standard deviation of the logarithm; of the latter alone, about a type's own.
SHARED = {
    "experts": (1.15, 0.10),
    "host": (2.5e-3, 0.3),
    "exchange": (0.75, 0.15),
    "early": (0.95, 0.05),
}
OWN = {"bf16": 0.08, "fp8": 0.08, "attention": 0.08}
JOINED = ("h100", "b200", "b300", "gb200", "gb300")
YOUNG = ("b200", "b300", "gb200", "gb300")
SIBLINGS = {"b300": ("b200", "gb300")}  # for a type without dense runs

Vector = dict[str, float]
Errors = Callable[[Vector], np.ndarray]  # ln(predicted / measured) by a vector


def medians(priors: Mapping[str, tuple[float, float]] = SHARED) -> Vector:
    """The priors' medians."""
    return {name: median for name, (median, _) in priors.items()}


def software(vector: Vector) -> Vector:
    """What of a vector every type shares."""
    return {name: vector[name] for name in SHARED}


def with_siblings(found: Mapping[str, Vector | None]) -> dict[str, Vector]:
    """Types without a vector get the geometric mean of their siblings', where these have one."""
    have = {name: vector for name, vector in found.items() if vector}
    for name in set(found) - set(have):
        near = [have[s] for s in SIBLINGS.get(name, YOUNG) if found.get(s)] or list(have.values())
        have[name] = {n: float(np.exp(np.mean([np.log(v[n]) for v in near]))) for n in near[0]}
    return have


def joint(
    errors: Mapping[str, Errors],
    base: Mapping[str, Vector],
    weights: np.ndarray,
    noise: float,
) -> dict[str, Vector]:
    """The most likely vectors of all types; ``weights`` are square roots, in the order of errors.

    Errors count as soft L1, priors as they are.
    """
    free = [(name, n) for name in errors if name in YOUNG for n in OWN]
    mean = np.log([SHARED[n][0] for n in SHARED] + [base[name][n] for name, n in free])
    width = np.array([SHARED[n][1] for n in SHARED] + [OWN[n] for _, n in free])

    def vector(x: np.ndarray, name: str) -> Vector:
        values = [float(v) for v in np.exp(x)]
        one = dict(base[name]) | dict(zip(SHARED, values, strict=False))
        one |= {n: values[len(SHARED) + i] for i, (g, n) in enumerate(free) if g == name}
        return one | {"early": min(one["early"], 1.0) if name in YOUNG else 1.0}

    def residuals(x: np.ndarray) -> np.ndarray:
        try:
            off = [of(vector(x, name)) for name, of in errors.items()]
        except ValueError:  # outside of what a calibration may hold
            return np.full(len(weights) + len(x), 1e2)
        scaled = np.concatenate(off) / noise * weights
        soft = np.sign(scaled) * np.sqrt(2.0 * (np.sqrt(1.0 + scaled**2) - 1.0))
        return np.concatenate([soft, (x - mean) / width])

    found = least_squares(residuals, mean, diff_step=1e-3, max_nfev=30)
    return {name: vector(found.x, name) for name in base}


def used(own: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
    """Batches that the joint fit looks at: mixtures, and dense runs of young types."""
    kept = {n: [b if n in YOUNG else b.only(b.moe) for b in batches] for n, batches in own.items()}
    kept = {n: [b for b in batches if len(b.jobs)] for n, batches in kept.items()}
    return {n: batches for n, batches in kept.items() if batches}
