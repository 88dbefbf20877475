"""One accelerator: a kernel's FLOPs against the bytes it moves at each memory level.

    T_math = FLOPs / C        T_comms = max over levels  bytes / W        both at once: the larger
    compute-bound while       FLOPs / bytes  ≥  C / W                     (the ridge point)

A kernel is its FLOPs and its bytes; everything else follows. For x[B, D] · w[D, F] and one element
size b, with I = (b/2) C/W, the batch from which on the math takes longer is

    B* = I / (1 - I (1/D + 1/F))        →  I  for wide matrices; none where I (1/D + 1/F) ≥ 1

Quantised weights scale I by their share of b; E experts of which a token takes k scale B* by E/k.

Sources: How to Scale Your Model, "Rooflines" and "GPUs"; Williams, Waterman and Patterson,
"Roofline: an insightful visual performance model", 2009.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from roofline.arithmetic import Kernel, check_experts
from roofline.bound import Bound, Term, Threshold
from roofline.collectives import CollectiveTime
from roofline.sources import SCALING_BOOK
from roofline.units import Bytes, BytesPerSecond, Count, FlopPerByte, FlopPerSecond, Seconds

if TYPE_CHECKING:
    from hardware_profiles import Accelerator

_SOURCE = SCALING_BOOK("Rooflines")


@dataclass(frozen=True, slots=True)
class Level:
    """A memory, or a link, that the operands come over; the numbers are of the whole chip."""

    name: str
    bandwidth: BytesPerSecond
    capacity: Bytes = float("inf")

    def ridge(self, rate: FlopPerSecond) -> FlopPerByte:
        """C / W: the intensity from which on this level keeps up with the math. [FLOP/B]

        >>> print(round(Level("HBM", 3.35e12).ridge(990e12), 1))
        295.5
        """
        return rate / self.bandwidth


def levels(chip: Accelerator) -> tuple[Level, ...]:
    """The memories of ``chip`` from the inside out, those left out whose bandwidth nobody gives.

    The rungs of ``hardware_profiles.derived.memory_ladder``: registers and shared memory as they
    are built, L2 and HBM as the profile says.
    """
    from hardware_profiles.chip import memories

    return tuple(
        Level(memory.name, memory.bandwidth, memory.capacity or float("inf"))
        for memory in memories(chip)
        if memory.bandwidth
    )


def bound(
    kernel: Kernel, rate: FlopPerSecond, memories: Sequence[Level], *, latency: Seconds = 0.0
) -> Bound:
    """T_math against T_comms of ``kernel`` on one accelerator.

    The levels work at the same time, so the slowest is T_comms; ``latency`` is what a launch or an
    access costs however few bytes there are, and is added to it. The threshold is intensity: FLOPs
    per byte that must move, against those that the slowest level asks for.

    >>> from roofline.arithmetic import matmul
    >>> small = bound(matmul(64, 4096, 8192), 2300e12, [Level("HBM", 8e12)])
    >>> print(small.t_lower, binding(small))
    8.585216e-06 HBM
    """
    by_level = tuple(kernel.moved(level.name) / level.bandwidth for level in memories)
    moved = CollectiveTime(tuple(level.name for level in memories), by_level, latency)
    seconds = moved.seconds
    with np.errstate(divide="ignore", invalid="ignore"):
        needed = np.divide(rate * seconds, kernel.nbytes)
    return Bound(
        kernel.name,
        Term(kernel.name, kernel.flops / rate, r"\frac{\mathrm{FLOPs}}{C}", _SOURCE),
        (Term("memory traffic", seconds, r"\max_\ell \frac{V_\ell}{W_\ell}", _SOURCE, moved),),
        Threshold(
            "FLOPs per byte",
            kernel.intensity,
            needed,
            r"\frac{\mathrm{FLOPs}}{\mathrm{bytes}} > \frac{C}{W}",
            "every byte that is fetched must be worth enough arithmetic to keep the chip busy "
            "until the next one comes",
        ),
    )


def binding(bound: Bound) -> NDArray[np.str_]:
    """What sets the time, at every point: ``math``, or the name of the slowest level."""
    names: NDArray[np.str_] = np.where(bound.compute_bound, "math", bound.comms[0].tier)
    return names


@dataclass(frozen=True, slots=True)
class Roof:
    """One level's curve in a roofline chart."""

    level: str
    ridge: FlopPerByte
    flops: FlopPerSecond  # attainable at each intensity


def attainable(
    intensity: FlopPerByte, rate: FlopPerSecond, memories: Sequence[Level]
) -> tuple[Roof, ...]:
    """min(C, I W): the rate that a kernel of ``intensity`` can reach under each level's roof.

    >>> (roof,) = attainable(10.0, 990e12, [Level("HBM", 3.35e12)])
    >>> print(roof.flops)
    33500000000000.0
    """
    return tuple(
        Roof(level.name, level.ridge(rate), np.minimum(rate, intensity * level.bandwidth))
        for level in memories
    )


def critical_batch(
    rate: FlopPerSecond,
    bandwidth: BytesPerSecond,
    d: Count = float("inf"),
    f: Count = float("inf"),
    *,
    x_bytes: Bytes = 2.0,
    w_bytes: Bytes = 2.0,
    o_bytes: Bytes = 2.0,
    experts: Count = 1,
    experts_per_token: Count = 1,
) -> Count:
    """Tokens from which on ``matmul`` is compute-bound; infinite where it never is.

    B* = (E/k) (b_w/2) R / (1 - R (b_x/F + b_o/D) / 2) with R = C/W. With D and F left out, the rule
    for paper: E/k times the ridge point, times b_w/2.

    Source: How to Scale Your Model, "Rooflines", matrix multiplication, its limit of wide matrices
    undone; "Transformers", question 8, for experts.

    Raises:
        ValueError: when a token takes more experts than there are.

    >>> [round(float(critical_batch(2250e12, 8e12, d, 2 * d)), 1) for d in (np.inf, 4096)]
    [281.2, 313.5]
    """
    check_experts(experts, experts_per_token)
    ratio = 1.0 * rate / bandwidth
    left = 1 - ratio * (np.divide(x_bytes, f) + np.divide(o_bytes, d)) / 2
    needed = 1.0 * experts / experts_per_token * w_bytes / 2 * ratio
    with np.errstate(divide="ignore"):
        batch: Count = np.where(left > 0, needed / np.maximum(left, 0.0), np.inf)
    return batch[()] if isinstance(batch, np.ndarray) else batch


def critical_prompt(ridge: FlopPerByte, group: Count = 1, element_bytes: Bytes = 2.0) -> Count:
    """Prompt length from which on the attention of a prefill is compute-bound: (b/2) I (G+1)/G.

    >>> print(critical_prompt(240), critical_prompt(240, group=8))
    480.0 270.0
    """
    return element_bytes / 2 * ridge * (group + 1) / group


def latency_floor(bandwidth: BytesPerSecond, latency: Seconds) -> Bytes:
    """W t: below this many bytes the latency takes longer than the transfer. [B]

    >>> print(latency_floor(450e9, 1e-6))
    450000.0
    """
    return bandwidth * latency
