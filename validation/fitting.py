"""Least squares for few and noisy measurements: soft-L1 loss, bounds, and a prior for each number.

    minimise  Σ 2(√(1 + rᵢ²) - 1)  +  Σ ((xⱼ - x̄ⱼ)/σⱼ)²        low ≤ x ≤ high

A residual rᵢ is an error over what it may be; one that is far off counts with its size, not with
its square. The prior keeps numbers where they are usual when the measurements cannot tell them
apart. Solved by Levenberg-Marquardt steps with weights of the loss (iteratively reweighted). Where
there are enough, residuals that are far off all others are then left out, and the rest fitted anew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]

FAR = 6.0  # standard deviations, by the median of the others
ENOUGH = 8  # residuals
STEP = 1e-4  # of the numerical derivative
STEPS = 60
CLOSE = 1e-7  # relative fall of the loss at which it is done


@dataclass(frozen=True, slots=True)
class Prior:
    """Where numbers usually are, how sure that is, and between what they must stay."""

    usual: Vector
    doubt: Vector  # standard deviation
    low: Vector
    high: Vector

    def clipped(self, x: Vector) -> Vector:
        """``x`` inside the bounds."""
        return np.clip(x, self.low, self.high)


def fit(residuals: Callable[[Vector], Vector], prior: Prior, *starts: Vector) -> Vector:
    """The best numbers found from ``starts`` and from the usual ones.

    >>> t = np.array([1.0, 2.0, 3.0, 40.0])
    >>> free = Prior(np.zeros(1), np.full(1, 1e3), np.full(1, -9.0), np.full(1, 9.0))
    >>> print(fit(lambda x: (x[0] * t - np.array([2.0, 4.0, 6.0, 800.0])) / t / 0.01, free).round(1))
    [2.]
    """
    ends = [_descend(residuals, prior, prior.clipped(start)) for start in (prior.usual, *starts)]
    found = min(ends, key=lambda x: _loss(residuals(x), x, prior))
    off = np.abs(residuals(found))
    near = off < FAR * max(1.4826 * float(np.median(off)), 1.0)
    if near.all() or near.size < ENOUGH:
        return found
    return _descend(lambda x: residuals(x)[near], prior, found)


def _loss(r: Vector, x: Vector, prior: Prior) -> float:
    data = 2 * (np.sqrt(1 + r * r) - 1)
    return float(data.sum() + (((x - prior.usual) / prior.doubt) ** 2).sum())


def _descend(residuals: Callable[[Vector], Vector], prior: Prior, x: Vector) -> Vector:
    damping = 1e-2
    r = residuals(x)
    loss = _loss(r, x, prior)
    for _ in range(STEPS):
        hessian, slope = _quadratic(residuals, prior, x, r)
        while damping < 1e8:
            step = np.linalg.solve(hessian + damping * np.diag(np.diag(hessian)), -slope)
            there = prior.clipped(x + step)
            r_there = residuals(there)
            better = _loss(r_there, there, prior)
            if better < loss:
                break
            damping *= 5
        else:
            break
        fell, x, r, loss, damping = loss - better, there, r_there, better, damping / 5
        if fell < CLOSE * (1 + loss):
            break
    return x


def _quadratic(
    residuals: Callable[[Vector], Vector], prior: Prior, x: Vector, r: Vector
) -> tuple[NDArray[np.float64], Vector]:
    """Curvature and slope of the loss at ``x``, halved; bounds that hold are left alone."""
    columns = [(residuals(x + STEP * unit) - r) / STEP for unit in np.eye(len(x))]
    jacobian = np.stack(columns, axis=1)
    weight = 1 / np.sqrt(1 + r * r)
    hessian = jacobian.T @ (weight[:, None] * jacobian) + np.diag(prior.doubt**-2)
    slope = jacobian.T @ (weight * r) + (x - prior.usual) / prior.doubt**2
    held = ((x <= prior.low) & (slope > 0)) | ((x >= prior.high) & (slope < 0))
    hessian[held, :] = hessian[:, held] = 0.0
    hessian[held, held] = 1.0
    slope[held] = 0.0
    return hessian, slope
