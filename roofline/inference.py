"""Inference: prefill is a forward pass; decoding reads everything to make one token of each.

    T_step    = B · KV / W_hbm  +  max( 2 B Ψ / C,  w Ψ / W_hbm )      caches are never shared
    T_prefill = 2 Ψ T / (C MFU)
    matmuls compute-bound while   B  ≥  (w/2) E/k · C / W_hbm

B sequences of KV bytes each on n chips, which divide every term. Weights may be cut over Y chips
while their bytes take longer to read than the activations to pass round: Y ≤ F / (B β) with β =
W_hbm / W_link. FLOPs of attention are left out; the cache costs bandwidth, not math.

Source: How to Scale Your Model, "Inference" and "Serving LLaMA 3-70B on TPUs".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from roofline import chip
from roofline.bound import Term
from roofline.counting import model_flops
from roofline.machine import Machine
from roofline.sources import ESTI, SCALING_BOOK, Source
from roofline.units import Bytes, BytesPerSecond, Count, Num, Seconds

_SOURCE = SCALING_BOOK("Inference, theoretical estimates for LLM latency and throughput")


@dataclass(frozen=True, slots=True)
class Decode:
    """One decode step: a token for every sequence of the batch."""

    batch: Count  # B
    cache: Term  # reading keys and values
    weights: Term  # reading the weights
    math: Term  # matmuls with the weights, at the same time
    memory: Bytes  # caches and weights, over all chips

    @property
    def seconds(self) -> Seconds:
        """Cache, then weights or matmuls, whichever takes longer. [s]"""
        return self.cache.seconds + np.maximum(self.weights.seconds, self.math.seconds)

    @property
    def throughput(self) -> Count:
        """Tokens per second of the whole batch."""
        return self.batch / self.seconds

    @property
    def compute_bound(self) -> NDArray[np.bool_]:
        """True where the matmuls take longer than reading their weights."""
        return np.greater_equal(self.math.seconds, self.weights.seconds)


def decode(
    machine: Machine,
    *,
    parameters: Count,
    batch: Count,
    cache_bytes: Bytes,
    gpus: Count = 1,
    weight_bytes: Bytes = 2.0,
    active: Count | None = None,
    dtype: str = "bf16",
) -> Decode:
    """The roofline of a decode step, weights and caches spread evenly over ``gpus``.

    Args:
        parameters: Ψ, all of which are read.
        batch: B, sequences.
        cache_bytes: keys and values of one sequence, all its tokens; see
            ``counting.kv_cache_bytes``. [B]
        weight_bytes: per parameter: 1 for int8, 0.5 for int4. [B]
        active: parameters that one token meets; ``parameters`` when left out.
        dtype: of the matmuls.

    >>> from roofline.machine import Ideal
    >>> v5e = Ideal(197e12, hbm_bandwidth=810e9)
    >>> step = decode(v5e, parameters=30e9, batch=4, cache_bytes=8192e5, gpus=16, weight_bytes=1)
    >>> print(round(step.seconds * 1e3, 2))
    2.57
    """
    bandwidth = 1.0 * gpus * machine.hbm_bandwidth
    caches = batch * (1.0 * cache_bytes)
    weights = weight_bytes * (1.0 * parameters)
    work = model_flops(parameters if active is None else active, batch, phase="forward")
    return Decode(
        batch,
        _term("cache", caches / bandwidth, r"\frac{B\,KV}{n\,W}"),
        _term("weights", weights / bandwidth, r"\frac{w\,\Psi}{n\,W}"),
        _term("matmuls", work / (1.0 * gpus * machine.flops(dtype)), r"\frac{2\,B\,\Psi}{n\,C}"),
        caches + weights,
    )


def largest_batch(
    machine: Machine,
    *,
    parameters: Count,
    cache_bytes: Bytes,
    gpus: Count = 1,
    weight_bytes: Bytes = 2.0,
    usable: Count = 1.0,
) -> Count:
    """Sequences whose caches fit beside the weights; 0 where the weights alone do not fit."""
    room = usable * gpus * machine.hbm_bytes - weight_bytes * (1.0 * parameters)
    batch: Count = np.floor(np.maximum(0.0, room) / cache_bytes)
    return batch


def critical_batch(
    machine: Machine,
    *,
    weight_bytes: Bytes = 2.0,
    experts: Count = 1,
    experts_per_token: Count = 1,
    dtype: str = "bf16",
) -> Count:
    """Batch from which on matmuls are compute-bound: (w/2) E/k C/W, any number of chips.

    Raises:
        ValueError: when a token takes more experts than there are.

    >>> from roofline.machine import Ideal
    >>> print(round(critical_batch(Ideal(197e12, hbm_bandwidth=820e9))))
    240
    """
    return chip.critical_batch(
        machine.flops(dtype),
        machine.hbm_bandwidth,
        w_bytes=weight_bytes,
        experts=experts,
        experts_per_token=experts_per_token,
    )


def prefill(
    machine: Machine,
    *,
    parameters: Count,
    tokens: Count,
    gpus: Count = 1,
    mfu: Count = 1.0,
    dtype: str = "bf16",
) -> Term:
    """Time of a prompt of ``tokens``: 2 Ψ T / (n C MFU). Ψ are the active parameters."""
    work = model_flops(parameters, tokens, phase="forward")
    rate = 1.0 * gpus * machine.flops(dtype) * mfu
    return _term("prefill", work / rate, r"\frac{2\,\Psi T}{n\,C\,\mathrm{MFU}}")


def hbm_over_link(machine: Machine, tier: int = 0) -> Num:
    """β = W_hbm / W_link: memory is so much faster than the links of a tier.

    Raises:
        ValueError: when there is no such tier.
    """
    if not 0 <= tier < len(machine.tiers):
        raise ValueError(f"tier: {tier} is none of the machine's {len(machine.tiers)}, from 0")
    ratio: Num = machine.hbm_bandwidth / machine.tiers[tier].effective_bandwidth
    return ratio


def sharding_limit(d_ff: Count, batch: Count, beta: Count) -> Count:
    """Ways to cut the weights before passing activations round takes longer: F / (B β).

    Source: How to Scale Your Model, "Inference", distributing over multiple accelerators.

    >>> print(sharding_limit(16384, batch=32, beta=8))
    64.0
    """
    return 1.0 * d_ff / (1.0 * batch * beta)


def evicted_tokens(batch: Count, prompt: Count, generated: Count) -> Count:
    """Cached tokens that leave per step: B (P+G)/G, as a sequence ends every G/B steps.

    >>> print(evicted_tokens(32, 8192, 4096))
    96.0
    """
    return 1.0 * batch * (1.0 * prompt + generated) / generated


def server_ratio(
    prefill_seconds: Seconds, step_seconds: Seconds, batch: Count, generated: Count
) -> Count:
    """Prefill servers per generate server: what each sequence costs the one over the other.

    A prompt takes T_prefill of a server to itself, its G tokens G T_step of a server that B share.
    """
    return prefill_seconds * batch / (1.0 * step_seconds * generated)


def latency_bound_bytes(bandwidth: BytesPerSecond, latency: Seconds, shards: Count = 1) -> Bytes:
    """Buffer below which a collective over ``shards`` is bound by latency: n W t. [B]

    Source: How to Scale Your Model, "Inference", appendix C.

    >>> print(latency_bound_bytes(45e9, 1e-6, 8))
    360000.0
    """
    return chip.latency_floor(bandwidth, latency) * shards


class Lanes(NamedTuple):
    """Links that each part of the mesh has, in units of one link's bandwidth.

    A torus: three axes, X one and Y Z two of them. Behind a switch all share the one uplink.
    """

    x: int = 1
    yz: int = 2
    both: int = 3


TORUS = Lanes()
SWITCH = Lanes(1, 1, 1)


@dataclass(frozen=True, slots=True)
class WeightStationary:
    """An MLP whose weights stay put, cut along F alone (1D) or along D and F (2D)."""

    one_dimensional: Seconds
    two_dimensional: Seconds
    x: Count  # parts of D that make 2D fastest; F is cut into the other n / x
    crossover: Count  # chips from which on 2D is faster
    source: Source


def weight_stationary(
    tokens: Count,
    d_model: Count,
    d_ff: Count,
    gpus: Count,
    bandwidth: BytesPerSecond,
    *,
    lanes: Lanes = TORUS,
    element_bytes: Bytes = 2.0,
) -> WeightStationary:
    """Communication of one MLP cut along F alone, against cut along D and F.

        T_1D = 2 b B D / (M W)
        T_2D = 2 b B D / (X M_yz W)  +  2 b B F X / (n M_x W)      least at X = √(n M_x D/(M_yz F))
        2D is faster while   n > 4 M² F / (M_x M_yz D)              72 for F = 4 D on a torus

    1D gathers and scatters [B, D] over all chips; 2D does so over n/X of them with a share of D,
    and adds up [B, F] over X in between.

    Source: Pope et al., "Efficiently Scaling Transformer Inference"; How to Scale Your Model,
    "Inference", question 7 (whose 81 is 128 (3/4)² = 72).
    """
    link = element_bytes * (1.0 * tokens) / bandwidth  # time of one column of activations
    x = np.clip(np.sqrt(1.0 * gpus * lanes.x * d_model / (1.0 * lanes.yz * d_ff)), 1.0, gpus)
    shared = np.greater(gpus, 1)
    sums = np.greater(x, 1) * d_ff * x / (1.0 * gpus * lanes.x)
    return WeightStationary(
        2.0 * link * shared * d_model / lanes.both,
        2.0 * link * (shared * d_model / (x * lanes.yz) + sums),
        x,
        4.0 * lanes.both**2 * d_ff / (1.0 * lanes.x * lanes.yz * d_model),
        ESTI("section 3.2"),
    )


def _term(name: str, seconds: Seconds, formula: str) -> Term:
    return Term(name, seconds, formula, _SOURCE)
