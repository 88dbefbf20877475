"""Many machines, not all alike and none for ever: stragglers, failures, checkpoints.

    synchronous step      max_i t_i + T_AR              everybody waits for the slowest
    asynchronous rate     Σ_i 1 / (t_i + t_exchange)    nobody waits; gradients are stale
    MTBF of n             MTBF of one / n
    checkpoint every      √(2 t_save MTBF)              Young
    goodput               τ / (M e^(R/M) (e^((τ+δ)/M) - 1))

Goodput is the share of wall time that ends up in the model, when failures come at random with mean
time M between them, a checkpoint of δ seconds follows each τ of work, and R passes before work goes
on. At first order that is 1 - δ/τ - (τ/2 + R)/M.

Sources: Young, "A first order approximation to the optimum checkpoint interval", 1974; Daly, "A
higher order estimate of the optimum checkpoint interval for restart dumps", 2006, equation 13.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from roofline.units import Count, Seconds


def synchronous_step(workers: ArrayLike, all_reduce: Seconds = 0.0) -> Seconds:
    """Step of workers that wait for each other; the last axis of ``workers`` counts them. [s]

    >>> print(round(synchronous_step([1.0, 1.1, 1.0, 1.6], all_reduce=0.1), 1))
    1.7
    """
    slowest: Seconds = np.max(np.asarray(workers, float), axis=-1)
    return slowest + all_reduce


def synchronous_rate(workers: ArrayLike, all_reduce: Seconds = 0.0) -> Count:
    """Contributions per second of workers that wait: n / step."""
    rate: Count = np.shape(workers)[-1] / synchronous_step(workers, all_reduce)
    return rate


def asynchronous_rate(workers: ArrayLike, exchange: Seconds = 0.0) -> Count:
    """Contributions per second of workers that do not wait: Σ 1/(t + t_exchange).

    They are up to n - 1 updates stale: it is not the same algorithm.

    >>> print(round(asynchronous_rate([1.0, 1.1, 1.0, 1.6], exchange=0.1), 2))
    3.24
    """
    rate: Count = np.sum(1.0 / (np.asarray(workers, float) + exchange), axis=-1)
    return rate


def cluster_mtbf(mtbf: Seconds, gpus: Count) -> Seconds:
    """Mean time between failures of ``gpus`` of which each fails every ``mtbf``. [s]"""
    return 1.0 * mtbf / gpus


def checkpoint_interval(save: Seconds, mtbf: Seconds) -> Seconds:
    """Work between two checkpoints that loses least time: √(2 t_save MTBF), for t_save ≪ MTBF. [s]

    >>> print(checkpoint_interval(save=50, mtbf=3600))
    600.0
    """
    return np.sqrt(2.0 * save * mtbf)


def goodput(
    save: Seconds, mtbf: Seconds, *, interval: Seconds | None = None, restart: Seconds = 0.0
) -> Count:
    """Share of wall time that is kept work.

    Args:
        save: δ, while training stands still; a checkpoint copied in the background costs less.
        mtbf: M, of the whole job.
        interval: τ; Young's when left out.
        restart: R, from a failure until work goes on.
    """
    work = checkpoint_interval(save, mtbf) if interval is None else interval
    work = np.maximum(work, 1e-9 * mtbf)  # free checkpoints all the time lose nothing
    with np.errstate(over="ignore"):
        retries = np.exp(restart / mtbf) * np.expm1((work + save) / mtbf)
    return work / (mtbf * retries)
