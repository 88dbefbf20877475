"""One layer on one GPU for one micro-batch: every kernel, forward and backward.

T tokens on this rank, of which T/σ where sequence parallelism splits token-wise work; a heads,
h width, f feed-forward width, t tensor-parallel ranks. A matmul costs its forward, dgrad and wgrad
shape; a memory-bound kernel the bytes that it reads and writes. Bytes per token are counted for
16-bit activations: norm 4h forward and 8h backward, rope 4(a+a_kv)d, activation f(2g+2) and f(4g+2),
residual and dropout 6h and 4h; eager frameworks run chains of kernels in fp32 and pay factors.

Sources: Korthikanti et al., section 4; Megatron-LM's and Transformer Engine's kernels, counted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from roofline.dims import Dims
from roofline.kernels import Kernels
from roofline.layout import FLASH, RING, Layout
from roofline.units import Bytes, Count, Seconds

EAGER_NORM, EAGER_ROPE, EAGER_ACTIVATION = 5.0, 4.0, 1.7  # bytes of eager chains over fused
EAGER_EXPERTS = 8.0  # the same for an expert's clamped activation with its biases
EAGER_LAUNCHES = 40  # kernels of an eager layer forward, twice as many backward
BLOCKED = 50e-6  # seconds that the host takes for one of them when it waits for each
MISALIGNED = 12.0  # slower, batched matmuls over heads whose width is not a multiple of 8


@dataclass(frozen=True, slots=True)
class Work:
    """Seconds of one layer by kind, of one pass."""

    matmuls: Seconds
    attention: Seconds
    memory: Seconds

    @property
    def total(self) -> Seconds:
        """All kinds. [s]"""
        return self.matmuls + self.attention + self.memory

    def __add__(self, other: Work) -> Work:
        return Work(
            self.matmuls + other.matmuls,
            self.attention + other.attention,
            self.memory + other.memory,
        )

    def times(self, factor: Count) -> Work:
        """The same work ``factor`` times."""
        return Work(self.matmuls * factor, self.attention * factor, self.memory * factor)


@dataclass(frozen=True, slots=True)
class Layer:
    """Forward and backward of one layer, and what of the forward a checkpoint need not repeat."""

    forward: Work
    backward: Work
    tail: Work


class _Sum:
    """Adds up kernels of one block, forward and backward."""

    def __init__(self, kernels: Kernels, casts: Count) -> None:
        self.kernels = kernels
        self.casts = casts  # 1 where operands are cast to a narrower type
        self.forward = Work(0.0, 0.0, 0.0)
        self.backward = Work(0.0, 0.0, 0.0)

    def matmul(self, m: Count, n: Count, k: Count, batch: Count = 1.0) -> None:
        """x[m, k] W[k, n] with dgrad and wgrad; the gradient accumulates in fp32."""
        run = self.kernels.matmuls.seconds
        grads = run(m, k, n, batch) + run(n, k, m, batch, out_bytes=8.0)
        cast = self.casts * self.kernels.streams.seconds(4.0 * batch * m * n)
        self.forward += Work(run(m, n, k, batch), 0.0, 0.0)
        self.backward += Work(grads, 0.0, cast)

    def stream(self, forward: Bytes, backward: Bytes, kernels: Count = 1.0) -> None:
        """Memory-bound kernels of so many bytes each way."""
        run = self.kernels.streams.seconds
        self.forward += Work(0.0, 0.0, run(forward, kernels))
        self.backward += Work(0.0, 0.0, run(backward, kernels))


def dense(model: Dims, layout: Layout, kernels: Kernels, casts: Count) -> Layer:
    """A layer with a plain MLP."""
    block = attention_block(model, layout, kernels, casts)
    mlp, tail = _mlp(model, layout, kernels, casts)
    return _layer(layout, block, mlp, tail)


def _layer(layout: Layout, first: _Sum, second: _Sum, tail: Work) -> Layer:
    waits = Work(0.0, 0.0, layout.blocking * EAGER_LAUNCHES * BLOCKED)
    forward = first.forward + second.forward + waits
    return Layer(forward, first.backward + second.backward + waits.times(2), tail)


def mixture(model: Dims, layout: Layout, kernels: Kernels, casts: Count) -> Layer:
    """A layer with experts."""
    block = attention_block(model, layout, kernels, casts)
    experts, tail = _experts(model, layout, kernels, casts)
    return _layer(layout, block, experts, tail)


def attention_block(model: Dims, layout: Layout, kernels: Kernels, casts: Count) -> _Sum:
    """Norm, projections, attention, residual."""
    block = _Sum(kernels, casts)
    tokens, t = layout.tokens, layout.tp
    heads = model.heads / t
    eager = _eager(model, layout)
    _norm(block, model, layout, eager)
    _projections(block, model, layout, eager)
    _core(block, model, layout, heads)
    block.matmul(tokens, model.hidden, heads * model.value_dim)
    _residual(block, model, layout)
    return block


def core_attention(model: Dims, layout: Layout, kernels: Kernels) -> Work:
    """The forward pass of q kᵀ and a v alone: what selective recomputation repeats."""
    block = _Sum(kernels, 0.0)
    _core(block, model, layout, model.heads / layout.tp)
    return block.forward


def _eager(model: Dims, layout: Layout) -> Count:
    """1 where RMSNorm, rope and activation run as chains of eager kernels."""
    return (1.0 - layout.fused) * (1.0 - model.layernorm)


def _norm(block: _Sum, model: Dims, layout: Layout, eager: Count) -> None:
    nbytes = layout.tokens / layout.split * model.hidden
    chain = 1.0 + (EAGER_NORM - 1.0) * eager
    backward = 8.0 + 2.0 * (1.0 - layout.fused) + 4.8 * (chain - 1.0)
    block.stream(4.0 * nbytes * chain, nbytes * backward, 1.0 + 5.0 * eager)


def _projections(block: _Sum, model: Dims, layout: Layout, eager: Count) -> None:
    """Queries, keys and values, plain or latent."""
    tokens, t, h, a = layout.tokens, layout.tp, model.hidden, model.heads / layout.tp
    latent = np.greater(model.latent, 0)
    kv = np.maximum(model.kv_heads / t, 1.0)
    width = (a + 2 * kv) * model.head_dim
    if not np.all(latent):
        plain = np.where(latent, 0.0, 1.0)
        block.matmul(tokens * plain, width, h)
        rope = 4.0 * tokens * (a + kv) * model.head_dim * (1.0 + (EAGER_ROPE - 1.0) * eager)
        packed = 4.0 * tokens * width
        moved = np.where(np.greater(model.rope, 0), rope, packed) * plain
        block.stream(moved, moved, 1.0 + 3.0 * eager)
        bias = 2.0 * tokens * width * model.bias * plain
        block.stream(0.0, bias, model.bias)
    if np.any(latent):
        on = np.where(latent, 1.0, 0.0)
        queries = a * model.head_dim
        rank = np.where(np.greater(model.query_rank, 0), model.query_rank, h)
        block.matmul(tokens * on, rank * np.greater(model.query_rank, 0), h)
        block.matmul(tokens * on, queries, rank)
        block.matmul(tokens * on, model.kv_rank + model.rope_dim, h)
        block.matmul(tokens * on, a * (model.nope_dim + model.value_dim), model.kv_rank)
        moved = on * tokens * a * (6.0 * model.head_dim + 4.0 * (model.nope_dim + model.value_dim))
        block.stream(moved, moved, 4.0 * on)


def _core(block: _Sum, model: Dims, layout: Layout, heads: Count) -> None:
    """q kᵀ, softmax, a v: in one fused kernel, or as matmuls with the scores in memory."""
    width = heads * (model.head_dim + model.value_dim)
    tokens, s = layout.tokens, 1.0 * layout.sequence
    ring = np.logical_and(np.greater(layout.cp, 1), np.equal(layout.cp_kind, RING["ring"]))
    chunk = np.where(ring, np.maximum(s / (2.0 * layout.cp), 256.0), s)
    near = np.minimum(s, model.window)
    seen = 1.0 - model.windowed + model.windowed * np.minimum(1.0, 2.0 * near / s)
    run = block.kernels.attention.of(layout.attention, model.head_dim)
    forward = run.seconds(tokens, s * seen, width, chunk)
    backward = run.backward_seconds(tokens, s * seen, width, chunk)
    unfused = np.equal(layout.attention, FLASH["unfused"])
    if np.any(unfused):
        plain = _unfused(block.kernels, model, layout, heads)
        forward = np.where(unfused, plain[0], forward)
        backward = np.where(unfused, plain[1], backward)
    block.forward += Work(0.0, forward, 0.0)
    block.backward += Work(0.0, backward, 0.0)


def _unfused(
    kernels: Kernels, model: Dims, layout: Layout, heads: Count
) -> tuple[Seconds, Seconds]:
    s, d, batch = 1.0 * layout.sequence, model.head_dim, layout.micro_batch * heads
    run, stream = kernels.half_matmuls.seconds, kernels.streams.seconds
    scores = batch * s * s
    slow = np.where(np.mod(d, 8) > 0, MISALIGNED, 1.0)
    forward = slow * (run(s, s, d, batch) + run(s, d, s, batch))
    forward = forward + stream(scores * (3.0 + 5.0 * layout.dropout), 1.0 + layout.dropout)
    backward = slow * (run(s, s, d, batch) + 3.0 * run(s, d, s, batch))
    backward = backward + stream(scores * (6.0 + 5.0 * layout.dropout), 1.0 + layout.dropout)
    copies = stream(4.0 * layout.tokens * (heads + 2 * model.kv_heads / layout.tp) * d, 2.0)
    return forward + copies, backward + copies


def _residual(block: _Sum, model: Dims, layout: Layout) -> None:
    nbytes = layout.tokens / layout.split * model.hidden
    mask = layout.dropout
    backward = nbytes * (4.0 + mask) * mask + 2.0 * nbytes * model.bias
    block.stream(nbytes * (6.0 + mask), backward)


def _mlp(model: Dims, layout: Layout, kernels: Kernels, casts: Count) -> tuple[_Sum, Work]:
    """Norm, up, activation, down, residual; and the tail that a checkpoint skips."""
    block = _Sum(kernels, casts)
    tokens, h, g = layout.tokens, model.hidden, model.inputs
    f = model.ffn / layout.tp
    eager = _eager(model, layout)
    _norm(block, model, layout, eager)
    block.matmul(tokens, g * f, h)
    chain = 1.0 + (EAGER_ACTIVATION - 1.0) * eager
    moved = tokens * f * chain
    bias = 2.0 * tokens * f * model.bias
    block.stream(moved * (2 * g + 2), moved * (4 * g + 2) + bias, 1.0 + eager)
    block.matmul(tokens, h, f)
    before = block.forward
    _residual(block, model, layout)
    down = kernels.matmuls.seconds(tokens, h, f)
    tail = Work(down, 0.0, block.forward.memory - before.memory)
    return block, tail


def _experts(model: Dims, layout: Layout, kernels: Kernels, casts: Count) -> tuple[_Sum, Work]:
    """Router, permutation, grouped matmuls over the local experts, shared experts, residual."""
    block = _Sum(kernels, casts)
    h, g = model.hidden, model.inputs
    entering = layout.tokens / layout.split
    local = model.experts / layout.ep
    rows = entering * model.top_k * layout.ep * layout.etp / model.experts * layout.imbalance
    f = model.expert_ffn / layout.etp
    _norm(block, model, layout, _eager(model, layout))
    router = entering * (2.0 * h + 12.0 * model.experts)
    block.stream(router, router + 2.0 * h * entering, 6.0)
    permuted = 2.0 * entering * model.top_k * h
    block.stream(4.0 * permuted, 4.0 * permuted, 6.0)
    block.matmul(rows, g * f, h, local)
    moved = rows * local * f * (1.0 + (EAGER_EXPERTS - 1.0) * _eager(model, layout))
    block.stream(moved * (2 * g + 2), moved * (4 * g + 2))
    block.matmul(rows, h, f, local)
    shared = model.shared_ffn / layout.tp
    on = np.greater(shared, 0)
    if np.any(on):
        tokens = layout.tokens * on
        block.matmul(tokens, g * shared, h)
        block.stream(tokens * shared * (2 * g + 2), tokens * shared * (4 * g + 2), on)
        block.matmul(tokens, h, shared)
    before = block.forward
    _residual(block, model, layout)
    return block, Work(0.0, 0.0, block.forward.memory - before.memory)


def head(model: Dims, layout: Layout, kernels: Kernels) -> Layer:
    """Logits and loss over the vocabulary split ``tp`` ways, in 16 bit; MTP has one more each."""
    block = _Sum(kernels, 0.0)
    tokens, width = layout.tokens, model.vocab / layout.tp
    run = kernels.half_matmuls.seconds
    fused = layout.fused_loss
    forward = run(tokens, width, model.hidden)
    backward = run(tokens, model.hidden, width) + run(width, model.hidden, tokens, out_bytes=8.0)
    block.forward += Work(forward, 0.0, 0.0)
    block.backward += Work(backward, 0.0, 0.0)
    logits = tokens * width
    block.stream(logits * (26.0 - 18.0 * fused), logits * (14.0 - 8.0 * fused), 8.0 - 6.0 * fused)
    times = 1.0 + model.mtp
    return Layer(block.forward.times(times), block.backward.times(times), Work(0.0, 0.0, 0.0))


def embedding(model: Dims, layout: Layout, kernels: Kernels) -> Layer:
    """The lookup forward, the scattered addition backward."""
    block = _Sum(kernels, 0.0)
    nbytes = layout.tokens * model.hidden
    block.stream(nbytes * (4.0 + 4.0 * layout.dropout), 14.0 * nbytes / layout.split, 3.0)
    return Layer(block.forward, block.backward, Work(0.0, 0.0, 0.0))
