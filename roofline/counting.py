"""Counting a transformer from its sizes: parameters, FLOPs, time to train, bytes of cache.

    part          parameters of a layer          FLOPs of a training step, a layer
    MLP           3 E D F (gated), 2 E D F       18 k B T D F, 12 k B T D F
    attention     2 D N H + 2 D K H              12 B T D (N+K) H, 24 B T D N H where K = N
    q kᵀ and a v  none                           12 B T² N H
    vocabulary    2 V D (once)                   6 B T D V (once): the lookup is no matmul

Six FLOPs per parameter and token, 6 Ψ T in all: multiply and add, forward and, twice over,
backward. The rule leaves out the T² of attention and holds while T ≪ 8 D. Dropped: biases, routers
and the FLOPs of everything that is no matmul, together below 1 %.

Source: How to Scale Your Model, "Transformers" and "Training LLaMA 3 on TPUs".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from roofline.strategies.phases import FLOPS, Phase, passes
from roofline.units import DAY, YEAR, Bytes, Count, FlopPerSecond, Seconds


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a transformer; every number may be an array."""

    layers: Count  # L
    d_model: Count  # D
    d_ff: Count  # F, of one expert
    heads: Count  # N, of queries
    kv_heads: Count  # K, of keys and values; N / K queries share one
    head_dim: Count  # H
    vocab: Count  # V
    matrices: int = 3  # 3: gated; 2: W_in and W_out
    experts: Count = 1  # E; 1 is a dense model
    experts_per_token: Count = 1  # k
    shared_experts: Count = 0  # that every token passes besides
    dense_layers: Count = 0  # of the layers, those with a dense MLP instead of experts
    dense_d_ff: Count = 0  # F of those
    tied: bool = False  # one matrix for embedding and head
    norms: Count | None = None  # vectors of D; two a layer and a last one when left out

    @property
    def attention_width(self) -> Count:
        """N H: what all heads together are wide."""
        return 1.0 * self.heads * self.head_dim

    @property
    def kv_width(self) -> Count:
        """K H: what the keys of one token are wide, and so its values."""
        return 1.0 * self.kv_heads * self.head_dim


@dataclass(frozen=True, slots=True)
class Parameters:
    """Parameters by part."""

    mlp: Count
    attention: Count
    vocabulary: Count
    norms: Count

    @property
    def total(self) -> Count:
        """All of them."""
        return self.mlp + self.attention + self.vocabulary + self.norms

    @property
    def matmuls(self) -> Count:
        """All but the norms, as the scaling book counts."""
        return self.mlp + self.attention + self.vocabulary


@dataclass(frozen=True, slots=True)
class Flops:
    """FLOPs by part; ``attention`` is q kᵀ and a v, quadratic in the length."""

    mlp: Count
    projections: Count
    attention: Count
    vocabulary: Count

    @property
    def total(self) -> Count:
        """All of them."""
        return self.mlp + self.projections + self.attention + self.vocabulary

    @property
    def layers(self) -> Count:
        """The matmuls with weights of the layers: what attention is compared with."""
        return self.mlp + self.projections


def parameters(shape: Shape) -> Parameters:
    """Parameters of all layers and the vocabulary.

    >>> llama_2_13b = Shape(40, 5120, 13824, 40, 40, 128, 32000)
    >>> print(parameters(llama_2_13b).matmuls)
    13015449600.0
    """
    return _parameters(shape, shape.experts)


def active_parameters(shape: Shape) -> Parameters:
    """Parameters that one token meets: k experts instead of E. The Ψ of 6 Ψ T."""
    return _parameters(shape, shape.experts_per_token)


def flops(
    shape: Shape, tokens: Count, length: Count, *, phase: Phase = "step", causal: bool = False
) -> Flops:
    """FLOPs of a pass, or of a whole step, over ``tokens`` tokens in sequences of ``length``.

    Args:
        tokens: B T, of the whole batch.
        length: T, of one sequence: all keys that a query sees.
        phase: which pass; a step is forward and backward.
        causal: a query sees the keys before it, half of them on average. The book, and most
            published MFU, count all.

    Raises:
        ValueError: an unknown phase.
    """
    per_parameter = FLOPS["forward"] * passes(phase) * (1.0 * tokens)
    active = active_parameters(shape)
    scores = 2.0 * shape.layers * length * shape.attention_width * (0.5 if causal else 1.0)
    return Flops(
        per_parameter * active.mlp,
        per_parameter * active.attention,
        per_parameter * scores,
        per_parameter * _matrix(shape.vocab, shape.d_model),
    )


def model_flops(
    parameters: Count, tokens: Count, *, phase: Phase = "step", recompute: Count = 0.0
) -> Count:
    """6 Ψ T to train, 2 Ψ T for a forward pass; ``recompute`` is the share of it run once more.

    Ψ of a mixture of experts are the active parameters. What is recomputed takes time but is no
    part of MFU.

    Raises:
        ValueError: an unknown phase.

    >>> print(model_flops(70e9, 15e12))
    6.3e+24
    """
    return FLOPS["forward"] * (passes(phase) + recompute) * parameters * (1.0 * tokens)


@dataclass(frozen=True, slots=True)
class Run:
    """FLOPs to do and the rate at which the GPUs do them."""

    flops: Count
    rate: FlopPerSecond  # of all GPUs, delivered
    gpus: Count

    @property
    def seconds(self) -> Seconds:
        """6 Ψ T / (n C MFU). [s]"""
        return self.flops / self.rate

    @property
    def days(self) -> Count:
        """The same in days."""
        return self.seconds / DAY

    @property
    def years(self) -> Count:
        """The same in years of 365 days."""
        return self.seconds / YEAR

    @property
    def gpu_hours(self) -> Count:
        """Hours of one GPU, summed over all: what a run is billed by."""
        return self.seconds * self.gpus / 3600.0


def run(
    parameters: Count,
    tokens: Count,
    *,
    gpus: Count,
    rate: FlopPerSecond,
    mfu: Count = 1.0,
    phase: Phase = "step",
    recompute: Count = 0.0,
) -> Run:
    """Training, or a pass, over ``tokens`` on ``gpus`` of dense peak ``rate`` each.

    Args:
        mfu: useful FLOPs over peak; the share of the peak that is delivered where ``recompute``
            is given, which then counts as work.

    Raises:
        ValueError: an unknown phase.

    >>> print(round(run(70e9, 15e12, gpus=4096, rate=990e12, mfu=0.45).days))
    40
    """
    work = model_flops(parameters, tokens, phase=phase, recompute=recompute)
    return Run(work, 1.0 * gpus * rate * mfu, gpus)


def utilization(
    parameters: Count, tokens: Count, *, gpu_seconds: Seconds, rate: FlopPerSecond
) -> Count:
    """MFU: 6 Ψ T over what the GPUs could have done at the dense peak ``rate``.

    Name the peak: the H100's 1979 TFLOP/s of bf16 are with sparsity, twice the dense rate.

    >>> print(round(utilization(37e9, 14.8e12, gpu_seconds=2.79e6 * 3600, rate=1513e12), 3))
    0.216
    """
    return model_flops(parameters, tokens) / (1.0 * gpu_seconds * rate)


def chips_needed(nbytes: Bytes, hbm_bytes: Bytes) -> Count:
    """Fewest chips, or nodes, whose memory holds ``nbytes`` in all: rounded up.

    >>> print(chips_needed(700e9, 80e9))
    9.0
    """
    return np.ceil(np.divide(nbytes, hbm_bytes))


def tokens_per_gpu(sequences: Count, length: Count = 1, gpus: Count = 1) -> Count:
    """B T / n: tokens of a batch that each GPU sees; with one GPU, the batch in tokens.

    >>> print(tokens_per_gpu(384, 4096, 768))
    2048.0
    """
    return 1.0 * sequences * length / gpus


def kv_cache_bytes(shape: Shape, tokens: Count = 1, element_bytes: Bytes = 2.0) -> Bytes:
    """Keys and values of ``tokens`` tokens: 2 b K H L each. [B]

    >>> print(kv_cache_bytes(Shape(80, 8192, 28672, 64, 8, 128, 128256), element_bytes=1))
    163840.0
    """
    return 2.0 * element_bytes * shape.kv_width * shape.layers * tokens


def attention_crossover(shape: Shape) -> Count:
    """Length from which on q kᵀ and a v cost more than all matmuls with weights of the layers.

    8 D for F = 4 D, gated, and N H = D.
    """
    one = flops(shape, 1.0, 1.0)
    return one.layers / one.attention


def projection_crossover(shape: Shape) -> Count:
    """Length from which on q kᵀ and a v cost more than the projections: D (N+K)/N, 2 D for MHA."""
    one = flops(shape, 1.0, 1.0)
    return one.projections / one.attention


def _parameters(shape: Shape, experts: Count) -> Parameters:
    routed = 1.0 * shape.layers - shape.dense_layers
    columns = routed * (experts + shape.shared_experts) * shape.d_ff
    columns = columns + 1.0 * shape.dense_layers * shape.dense_d_ff
    norms = 2.0 * shape.layers + 1.0 if shape.norms is None else 1.0 * shape.norms
    vocabulary = _matrix(shape.vocab, shape.d_model)
    return Parameters(
        shape.matrices * _matrix(columns, shape.d_model),
        2.0 * shape.layers * shape.d_model * (shape.attention_width + shape.kv_width),
        vocabulary if shape.tied else 2.0 * vocabulary,
        norms * shape.d_model,
    )


def _matrix(rows: Count, columns: Count) -> Count:
    return 1.0 * rows * columns
