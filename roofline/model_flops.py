"""FLOPs of a token: by operation, by sequence length, and as each publisher counts them.

    matmul with weights   2 · inputs · outputs a token          backward twice that
    q kᵀ and a v          2 N (H_q + H_v) · keys seen           backward twice that
    keys seen             s / 2 causal, s all, less in a window

Who publishes TFLOP/s or MFU picks what to count; the same run differs by 2 to 12 % at a length of
8 K and by 1.4 at 128 K. A convention is a row of ``CONVENTIONS``: compare tokens per second, and
convert a published number with the row of its source and date.

Dropped: biases, norms, softmax, activations and the lookup of the embedding, which are no matmuls.
A flash kernel forms q kᵀ once more in its backward pass: that is time, and no part of MFU.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from roofline.counting import model_flops
from roofline.model import Transformer, Window
from roofline.models.parts import active_parameters, matrices
from roofline.names import choose
from roofline.sources import (
    FOUNDRY,
    INTERNEVO,
    MEGATRON,
    MEGATRON_LM,
    PALM,
    RECOMPUTE,
    TORCHTITAN,
    TRAINING,
    Source,
)
from roofline.units import Count, Num

Windows = Literal["seen", "halved", "ignored"]
Weights = Literal["matmuls", "parameters", "parameters without embedding"]


@dataclass(frozen=True, slots=True)
class Convention:
    """What a publisher counts, in passes worth a forward pass each: 3 is forward and backward."""

    name: str
    title: str
    source: Source
    causal: bool  # a query sees the keys before it, half of them on average
    windows: Windows = "seen"  # halved: min(window, s) / 2, as if the window were a sequence
    weights: Weights = "matmuls"
    router: bool = True
    mtp: bool = True
    layers: float = 3.0
    attention: float = 3.0  # q kᵀ and a v
    head: float = 3.0
    as_gpt: bool = False  # as if the MLP were two matrices of 4 D and attention D wide


CONVENTIONS = {
    row.name: row
    for row in (
        Convention("causal", "Matmuls, keys that are seen", TRAINING("Transformer math"), True),
        Convention(
            "full", "Matmuls, all keys", TRAINING("Transformer math"), False, windows="ignored"
        ),
        Convention(
            "hardware",
            "Matmuls, keys that are seen, every layer computed twice",
            TRAINING("Transformer math"),
            True,
            layers=4.0,
            attention=4.0,
        ),
        Convention(
            "k22",
            "Model FLOPs of Korthikanti et al.; NeMo up to 25.07, Megatron before 2025-03-06",
            RECOMPUTE("appendix A"),
            False,
            windows="ignored",
            router=False,
            mtp=False,
        ),
        Convention(
            "k22-selective",
            "Hardware FLOPs of Korthikanti et al.: attention computed twice",
            RECOMPUTE("appendix A"),
            False,
            windows="ignored",
            router=False,
            mtp=False,
            attention=4.0,
        ),
        Convention(
            "sc21",
            "Hardware FLOPs of Narayanan et al.: every layer computed twice",
            MEGATRON("equation 3"),
            False,
            windows="ignored",
            router=False,
            mtp=False,
            layers=4.0,
            attention=4.0,
        ),
        Convention(
            "sc21-gpt",
            "The same, written for an MLP of 4 D: InternEvo with recomputation",
            INTERNEVO("train_performance.md"),
            False,
            windows="ignored",
            layers=4.0,
            attention=4.0,
            as_gpt=True,
        ),
        Convention(
            "k22-gpt",
            "Model FLOPs written for an MLP of 4 D: DGX Cloud recipes before v25.04.01",
            RECOMPUTE("appendix A"),
            False,
            windows="ignored",
            as_gpt=True,
        ),
        Convention(
            "megatron",
            "Megatron since 2025-03-06; Megatron-Bridge",
            MEGATRON_LM("num_floating_point_operations, commit 8873b55d6a"),
            True,
            windows="halved",
            router=False,
        ),
        Convention(
            "6n",
            "Six FLOPs per parameter",
            TRAINING("Transformer math"),
            False,
            weights="parameters",
            mtp=False,
            attention=0.0,
        ),
        Convention(
            "palm",
            "6 N + 12 L N H s: PaLM; llm-foundry MFU",
            PALM("appendix B"),
            False,
            windows="ignored",
            weights="parameters",
            mtp=False,
        ),
        Convention(
            "foundry-hfu",
            "llm-foundry HFU: all of it computed twice",
            FOUNDRY("scripts/train/benchmarking"),
            False,
            windows="ignored",
            weights="parameters",
            mtp=False,
            layers=4.0,
            attention=4.0,
        ),
        Convention(
            "torchtitan",
            "6 N without the embedding + 12 L N H s: torchtitan",
            TORCHTITAN("models/utils.py"),
            False,
            windows="ignored",
            weights="parameters without embedding",
            mtp=False,
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Operation:
    """FLOPs of one operation, per token, all its layers together."""

    name: str
    part: str  # attention, mlp, experts, router, shared, head, mtp, or parameters
    layers: int
    forward: Num
    passes: float  # that the convention counts where weights are trained, in forward passes
    gradients: Num = 2.0  # dX and dW, in forward passes; 1 where the weight is frozen

    @property
    def backward(self) -> Num:
        """Twice forward: dW and dX; once, dX alone, where the weight is frozen."""
        return self.gradients * self.forward

    @property
    def recomputed(self) -> Num:
        """Forward once more, where the convention counts it."""
        return (self.passes - 3.0) * self.forward

    @property
    def total(self) -> Num:
        """All of them."""
        return (self.passes - 2.0 + self.gradients) * self.forward


def flops_per_token(model: Transformer, sequence: Count, convention: str = "causal") -> Num:
    """FLOPs of a training step per token, in sequences of ``sequence`` tokens.

    Args:
        sequence: its length, or an array of lengths; of packed documents see ``packed_length``.
        convention: one of ``CONVENTIONS``: who counts.

    Raises:
        ValueError: an unknown convention, naming the nearest.

    >>> llama_3_8b = Transformer("llama-3-8b", 32, 4096, 14336, 32, 8, 128, 128256)
    >>> print(flops_per_token(llama_3_8b, 8192), flops_per_token(llama_3_8b, 8192, "k22"))
    51470401536.0 57912852480.0
    """
    found = sum(row.total for row in operations(model, sequence, convention))
    return np.asarray(found)[()]


def operations(
    model: Transformer, sequence: Count, convention: str = "causal"
) -> tuple[Operation, ...]:
    """FLOPs of a training step per token, operation by operation, as ``convention`` counts them.

    A convention that counts parameters has one operation for all matmuls with weights.

    Raises:
        ValueError: an unknown convention, naming the nearest.
    """
    rule = choose("convention", convention, CONVENTIONS)
    return tuple(_operations(_as_gpt(model) if rule.as_gpt else model, sequence, rule))


def keys_seen(sequence: Count, window: Window | None = None, *, causal: bool = True) -> Count:
    """Keys that a query sees, on average over a sequence of ``sequence`` tokens.

        causal          s / 2
        sliding window  W - W² / 2 s        where W ≤ s
        chunks          W / 2               where W divides s

    The diagonal counts half, as everywhere in print: one more half a key would be exact.

    Raises:
        ValueError: a sequence without tokens.

    >>> print(keys_seen(8192), keys_seen(8192, Window(1024)))
    4096.0 960.0
    """
    length = 1.0 * np.asarray(sequence)
    if not np.all(length > 0):
        raise ValueError(f"sequence: {np.min(length):g} is refused; allowed: 1 token and more")
    if window is None:
        return length * (0.5 if causal else 1.0)
    size = np.minimum(1.0 * window.size, length)
    if not causal:
        return size
    if window.chunked:
        rest = length % window.size
        return ((length - rest) * window.size + rest**2) / (2.0 * length)
    return size - size**2 / (2.0 * length)


def packed_length(lengths: Count) -> Num:
    """Length of equal sequences with as much attention as documents of ``lengths``: Σs² / Σs.

    >>> print(packed_length(np.array([1024.0, 3072.0])))
    2560.0
    """
    longs = 1.0 * np.asarray(lengths)
    return float(np.sum(longs**2) / np.sum(longs))


def _operations(model: Transformer, sequence: Count, rule: Convention) -> Iterator[Operation]:
    yield from _weights(model, rule)
    if rule.attention:
        yield from _attention(model, sequence, rule)


def _weights(model: Transformer, rule: Convention) -> Iterator[Operation]:
    if rule.weights != "matmuls":
        counted = active_parameters(model)
        left = counted.embedding if rule.weights.endswith("embedding") and not model.tied else 0
        forward = model_flops(counted.main - left, 1.0, phase="forward")
        yield Operation("parameters", "parameters", model.layers, forward, rule.layers)
        return
    for row in matrices(model):
        skipped = (row.name.endswith("router") and not rule.router) or (
            row.part == "mtp" and not rule.mtp
        )
        if not skipped:
            passes = rule.head if row.name.endswith("head") else rule.layers
            flops = 1.0 * row.forward_flops
            yield Operation(row.name, row.part, row.layers, flops, passes)


def _attention(model: Transformer, sequence: Count, rule: Convention) -> Iterator[Operation]:
    ignored = rule.windows == "ignored"
    local = 0 if ignored else model.windowed_layers
    all_keys = keys_seen(sequence, causal=rule.causal)
    groups = [
        ("", "attention", model.layers - local, all_keys),
        ("window ", "attention", local, _local_keys(model, sequence, rule)),
        ("mtp ", "mtp", model.mtp if rule.mtp else 0, all_keys),
    ]
    for prefix, part, layers, keys in groups:
        for name, width in (("scores", model.query_dim), ("values", model.value_dim)):
            if layers:
                forward = 2.0 * layers * model.heads * width * keys
                yield Operation(prefix + name, part, layers, forward, rule.attention)


def _local_keys(model: Transformer, sequence: Count, rule: Convention) -> Count:
    if rule.windows == "halved" and model.window:
        return 0.5 * keys_seen(sequence, model.window, causal=False)
    return keys_seen(sequence, model.window, causal=rule.causal)


def _as_gpt(model: Transformer) -> Transformer:
    return replace(
        model,
        d_ff=4 * model.d_model,
        heads=1,
        kv_heads=1,
        head_dim=model.d_model,
        gated=False,
        latent=None,
        window=None,
        experts=None,
        mtp=0,
    )
