"""Plans over what a plan takes as given: GPUs, clusters, batch, sequence.

    smallest           fewest GPUs that train on a budget of tokens before a deadline
    cheapest           GPUs that cost least for a budget of tokens, also before a deadline
    over_clusters      as many GPUs of each of several machines
    largest_batch      tokens/s grow with the batch: the smallest that reaches 95 % of the most
    longest_sequence   the longest that fits the memory

Each is a ``Search``: an iterator of plans as they come, which may be left at any time, and an
``answer`` with a sentence. Numbers of GPUs climb a ladder (1, 1½, 2, 3, 4 …) from the fewest that
could do at the peak rate and hold the weights; for a deadline, the eighths of an octave below the
first that meets it are tried as well. An answer is the best of ``answer.tries``, no more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np

from hardware_profiles import Calibration, Cluster
from roofline import checks
from roofline.calibrated import dtype_of
from roofline.compare import one_footing
from roofline.counting import parameters
from roofline.describe import describe
from roofline.model import Transformer
from roofline.model_flops import operations
from roofline.planner import alone, largest, plan
from roofline.training import ACHIEVABLE, PEAK
from roofline.tries import (
    FINER,
    MOST_GPUS,
    Answer,
    Cost,
    Search,
    Try,
    climb,
    each,
    either_way,
    gpu_counts,
    refined,
    saturating,
    slow,
    tries,
)
from roofline.units import DAY, show

EFFICIENT = 0.95  # of the most tokens per second: what a batch still has to reach
SHORTEST, LONGEST = 1024, 1 << 24  # tokens of a sequence
WEIGHT = 0.5  # bytes of a weight in 4 bits, sharded over everything: no layout needs less
MOST_BATCH = 2**28  # tokens of a step

__all__ = [
    "Answer",
    "Search",
    "Try",
    "cheapest",
    "gpu_counts",
    "largest_batch",
    "longest_sequence",
    "over_clusters",
    "smallest",
]


def smallest(
    model: Transformer,
    cluster: Cluster,
    *,
    budget: float,
    days: float,
    most: int = MOST_GPUS,
    price: float | None = None,
    **asked: Any,
) -> Search:
    """Fewest GPUs that train on ``budget`` tokens within ``days``; the batch stays.

    Args:
        most: GPUs at which the search ends.
        asked: what ``plan`` takes: ``tokens`` of a step, ``sequence``, precision, limits.

    Raises:
        ValueError: days or a budget that are not above 0, naming them.
    """
    _above(budget=budget, days=days)
    least = _held(model, cluster)
    start = max(least, _paced(model, cluster, budget, days, asked))
    one = _planner(model, cluster, budget, price, asked)

    def good(found: Try) -> bool:
        return found.fits and found.days <= days

    def conclude(found: Sequence[Try]) -> tuple[str, Try | None]:
        best = next((one for one in found if good(one)), None)
        what = f"{show(budget)} tokens within {days:g} day{'' if days == 1 else 's'}"
        if best is not None:
            return (
                f"{what}: {best.value:,} GPUs, {show(best.days * DAY, 's')}, {_layout(best)}",
                best,
            )
        return _unmet(found, what, days, cluster, most), None

    ladder = climb(one, gpu_counts(cluster, start, most), slow)
    up = refined(ladder, one, cluster, good, start)
    below = gpu_counts(cluster, least, min(start - 1, most))
    return Search(either_way(up, one, below, good), conclude)


def cheapest(
    model: Transformer,
    cluster: Cluster,
    *,
    budget: float,
    price: float | None = None,
    days: float = float("inf"),
    most: int = MOST_GPUS,
    **asked: Any,
) -> Search:
    """GPUs that cost least for ``budget`` tokens, and keep the deadline where there is one.

    Args:
        price: of a GPU for an hour; the cluster profile's where None.
        asked: what ``plan`` takes.

    Raises:
        ValueError: no price, or a price, budget or days that are not above 0, naming them.
    """
    price = cluster.price if price is None else price
    if price is None:
        raise ValueError(
            f"price: the profile of {cluster.name} states none; allowed: a price per GPU and hour, "
            "such as 2.5"
        )
    _above(budget=budget, days=days, price=price)
    least = _held(model, cluster)
    start = max(least, _paced(model, cluster, budget, days, asked))
    one = _planner(model, cluster, budget, price, asked)

    def good(found: Try) -> bool:
        return found.fits and found.days <= days

    def cost(found: Try) -> Cost:
        return (0, found.money) if good(found) else slow(found)

    def conclude(found: Sequence[Try]) -> tuple[str, Try | None]:
        best = min(found, key=cost, default=None)
        what = f"{show(budget)} tokens at {price:g} a GPU hour"
        what += f" within {days:g} day{'' if days == 1 else 's'}" if np.isfinite(days) else ""
        if best is None or cost(best)[0]:
            return _unmet(found, what, days, cluster, most), None
        told = f"{best.money:,.0f} on {best.value:,} GPUs in {show(best.days * DAY, 's')}"
        return f"{what}: {told}, {_layout(best)}", best

    up = climb(one, gpu_counts(cluster, start, most), cost)
    below = gpu_counts(cluster, least, min(start - 1, most))
    return Search(either_way(up, one, below, good), conclude)


def over_clusters(
    model: Transformer,
    clusters: Mapping[str, Cluster] | Sequence[Cluster],
    gpus: int,
    *,
    rates: str | Calibration = ACHIEVABLE,
    **asked: Any,
) -> Search:
    """The best layout on as many GPUs of each of several machines; most tokens per second first.

    A machine that cannot (no such precision, too little memory) keeps its reason. Where one of them
    has no calibration of whole steps, all are predicted at peak rates, and the sentence says so.

    Raises:
        ValueError: no cluster at all.
    """
    rows = clusters if isinstance(clusters, Mapping) else {one.name: one for one in clusters}
    if not rows:
        raise ValueError("clusters: none is given; allowed: one and more")
    footing = one_footing(rows) if rates == ACHIEVABLE else ""
    asked["rates"] = PEAK if footing else rates

    def conclude(found: Sequence[Try]) -> tuple[str, Try | None]:
        fitting = sorted((one for one in found if one.fits), key=lambda one: one.seconds)
        if not fitting:
            return f"none of {len(found)} clusters has a layout that fits", None
        best = fitting[0]
        told = (
            f"{best.value}: {show(best.tokens_per_second / gpus)} tokens/s a GPU, {_layout(best)}"
        )
        behind = [f"{one.value} {one.seconds / best.seconds - 1:.0%} slower" for one in fitting[1:]]
        said = "; ".join([told, *behind])
        return f"{said}. {footing}" if footing else said, best

    return Search(tries(rows, lambda name: plan(model, rows[name], gpus, **asked)), conclude)


def largest_batch(
    model: Transformer,
    cluster: Cluster,
    gpus: int,
    *,
    sequence: int = 4096,
    most: float = MOST_BATCH,
    share: float = EFFICIENT,
    **asked: Any,
) -> Search:
    """How large a batch has to be: tokens per second grow with it, and then no longer.

    Batches double until twice the batch brings less than one per cent; the answer is the smallest
    whose tokens per second are at least ``share`` of the most. A larger one only costs updates.

    Args:
        most: tokens of a step at which the search ends.
        asked: what ``plan`` takes, but for ``tokens``.

    Raises:
        ValueError: a share that is not above 0 and at most 1.
    """
    if not 0 < share <= 1:
        near = 1.0 if share > 1 else EFFICIENT
        raise ValueError(f"share: {share} is refused; allowed: above 0 to 1; the nearest: {near:g}")
    sizes = [size for k in range(-5, 40) if (size := gpus * 2.0**k) >= 1 and size == int(size)]
    batches = [int(size) * sequence for size in sizes if size * sequence <= most]

    def conclude(found: Sequence[Try]) -> tuple[str, Try | None]:
        best = max((one.tokens_per_second for one in found), default=0.0)
        if not best:
            return f"no batch up to {show(most)} tokens has a layout that fits", None
        least = next(one for one in found if one.tokens_per_second >= share * best)
        rate = least.tokens_per_second
        told = (
            f"{show(rate / gpus)} tokens/s a GPU, {rate / best:.0%} of the most, {_layout(least)}"
        )
        return f"{least.value:,} tokens a step: {told}", least

    one = each(lambda tokens: plan(model, cluster, gpus, tokens=tokens, sequence=sequence, **asked))
    return Search(saturating(one, batches), conclude)


def longest_sequence(
    model: Transformer,
    cluster: Cluster,
    gpus: int,
    *,
    tokens: float,
    least: int = SHORTEST,
    most: int = LONGEST,
    **asked: Any,
) -> Search:
    """The longest sequence that fits: doubled until none does, then refined to an eighth of that.

    A step has ``tokens`` tokens, in whole sequences, and at least one sequence.

    Raises:
        ValueError: fewer tokens than 1, or a shortest sequence that is not.
    """
    _above(tokens=tokens)
    checks.at_least("least", least, 1)

    def one(sequence: int, batch: int = 0) -> Try:
        sequences = batch or max(1, int(tokens // sequence))
        size: dict[str, Any] = {"tokens": sequences * sequence, "sequence": sequence}
        return each(lambda value: plan(model, cluster, gpus, **size, **asked))(sequence)

    def steps() -> Iterator[Try]:
        last = 0
        for sequence in (least << k for k in count()):
            found = one(sequence) if sequence <= most else None
            if found is not None:
                yield found
            if found is None or not found.fits:
                break
            last = sequence
        low, high = FINER, 2 * FINER
        while last and last % FINER == 0 and last * 2 <= most and high - low > 1:
            middle = (low + high) // 2
            found = one(last // FINER * middle, max(1, int(tokens // last)))
            yield found
            low, high = (middle, high) if found.fits else (low, middle)

    def conclude(found: Sequence[Try]) -> tuple[str, Try | None]:
        best = max(
            (one for one in found if one.fits), key=lambda one: float(one.value), default=None
        )
        if best is None:
            return f"no sequence of {least:,} tokens and more fits {gpus:,} GPUs", None
        end = next((one.value for one in found if one.value > best.value), None)
        beyond = f"; {end:,} does not fit" if end else f"; nothing longer than {most:,} was tried"
        return f"{best.value:,} tokens: {_layout(best)}{beyond}", best

    return Search(steps(), conclude)


def _planner(
    model: Transformer,
    cluster: Cluster,
    budget: float,
    price: float | None,
    asked: Mapping[str, Any],
) -> Callable[[int], Try]:
    return each(lambda gpus: plan(model, cluster, gpus, **asked), budget=budget, price=price)


def _held(model: Transformer, cluster: Cluster) -> int:
    """GPUs whose memory holds the weights."""
    return max(1, math.ceil(WEIGHT * float(parameters(model.shape).total) / cluster.hbm_bytes))


def _paced(
    model: Transformer, cluster: Cluster, budget: float, days: float, asked: Mapping[str, Any]
) -> int:
    """GPUs that meet a deadline when every matmul runs at the peak."""
    peak = cluster.flops(dtype_of(asked.get("precision", "bf16")))
    token = sum(row.forward for row in operations(model, asked.get("sequence", 4096), "causal"))
    forward, frozen = 3.0 * token, 2.0 * token  # of adapters: no gradients of weights
    need = (forward if asked.get("recipe") is None else frozen) * budget / (days * DAY * peak)
    return max(1, math.ceil(float(np.asarray(need))))


def _above(**values: float) -> None:
    for name, value in values.items():
        checks.above(name, value)


def _layout(found: Try) -> str:
    return describe(found.plan.layout()) if found.plan else ""


def _unmet(found: Sequence[Try], what: str, days: float, cluster: Cluster, most: int) -> str:
    """Why no number of GPUs will do: memory, or a deadline below the fastest step of any number."""
    fitting = [one for one in found if one.fits]
    end = alone(cluster) if most >= largest(cluster) else ""
    most = int(min(most, largest(cluster)))
    if not fitting:
        return f"{what}: no layout fits on up to {most:,} GPUs" + (f"; {end}" if end else "")
    fastest = min(fitting, key=lambda one: one.days)
    asked = fastest.seconds * days / fastest.days
    return (
        f"{what}: not met by any number of GPUs up to {most:,}; the fastest step, "
        f"{show(fastest.seconds, 's')} on {fastest.value:,}, takes {show(fastest.days * DAY, 's')} "
        f"for all, and the deadline asks for steps of {show(asked, 's')}; "
        f"{end or 'a larger batch would keep more GPUs busy'}"
    )
