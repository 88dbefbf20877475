"""One layer on one GPU for one micro-batch: every kernel, forward and backward.

T tokens on this rank, of which T/σ where sequence parallelism splits token-wise work; a heads,
h width, f feed-forward width, t tensor-parallel ranks. A matmul costs its forward, dgrad and wgrad
shape; a memory-bound kernel the bytes that it reads and writes. Bytes per token are counted for
16-bit activations: norm 4h forward and 8h backward, rope 4(a+a_kv)d, activation f(2g+2) and f(4g+2),
residual and dropout 6h and 4h; eager frameworks run chains of kernels in fp32 and pay factors.
Routed experts on one GPU have kernels of their own, each of which starts and ends on an idle GPU;
only where one graph holds the iteration does one kernel do them all.

Sources: Korthikanti et al., section 4; Megatron-LM's and Transformer Engine's kernels, counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from roofline.dims import Dims
from roofline.kernels import BACKWARD_ATTENTION, Kernels
from roofline.layout import FLASH, MODULES, RING, Layout
from roofline.units import Count, Seconds
from roofline.work import Block, Work

EAGER_NORM, EAGER_ROPE, EAGER_ACTIVATION = 5.0, 4.0, 1.7  # bytes of eager chains over fused
EAGER_EXPERTS = 18.0  # the same in fp32 for experts with biases and a clamped activation
EAGER_LAUNCHES = 40  # kernels of an eager layer forward, twice as many backward
BLOCKED = 50e-6  # seconds that the host takes for one of them when it waits for each
NO_WORK = Work(0.0, 0.0, 0.0)
MISALIGNED = 12.0  # slower, batched matmuls over heads whose width is not a multiple of 8


@dataclass(frozen=True, slots=True)
class Layer:
    """Forward and backward of one layer, and what of the forward a checkpoint need not repeat."""

    forward: Work
    backward: Work
    tail: Work
    attention: tuple[Work, Work] = (NO_WORK, NO_WORK)  # forward and backward of that block alone


def dense(model: Dims, layout: Layout, kernels: Kernels, casts: Count) -> Layer:
    """A layer with a plain MLP."""
    block = attention_block(model, layout, kernels, casts)
    mlp, tail = _mlp(model, layout, kernels, casts)
    return _layer(layout, block, mlp, tail)


def _layer(layout: Layout, first: Block, second: Block, tail: Work) -> Layer:
    waits = Work(0.0, 0.0, layout.blocking * EAGER_LAUNCHES * BLOCKED)
    first.note("waits for every kernel", "memory", (waits.memory, 2 * waits.memory))
    forward = first.forward + second.forward + waits
    backward = first.backward + second.backward + waits.times(2)
    return Layer(forward, backward, tail, (first.forward, first.backward))


def mixture(
    model: Dims, layout: Layout, kernels: Kernels, casts: Count, slow: Count = 1.0
) -> Layer:
    """A layer with experts, whose own kernels take ``slow`` times as long."""
    block = attention_block(model, layout, kernels, casts)
    experts, tail = _experts(model, layout, kernels, casts, slow)
    return _layer(layout, block, experts, tail)


def attention_block(model: Dims, layout: Layout, kernels: Kernels, casts: Count) -> Block:
    """Norm, projections, attention, residual."""
    block = Block(kernels, casts)
    tokens, t = layout.tokens, layout.tp
    heads = model.heads / t
    eager = _eager(model, layout)
    _norm(block, model, layout, eager)
    _projections(block, model, layout, eager)
    _core(block, model, layout, heads)
    block.matmul(tokens, model.hidden, heads * model.value_dim, name="attention output")
    _residual(block, model, layout)
    return block


def modules(
    model: Dims, layout: Layout, kernels: Kernels, casts: Count, slow: Count, mixed: bool
) -> dict[str, Work]:
    """Forward passes of the parts of a layer that recomputation may name: see ``layout.MODULES``.

    Of a layer with experts where ``mixed``, else with a plain MLP; both norms; collectives apart.
    """
    found = dict.fromkeys(MODULES, Work(0.0, 0.0, 0.0))
    quiet, eager = replace(kernels, notes=None), _eager(model, layout)

    def run(name: str, part: Callable[[Block], object], times: Count = 1.0) -> None:
        block = Block(quiet, casts)
        part(block)
        found[name] = block.forward.times(times)

    run("attention", lambda block: _core(block, model, layout, model.heads / layout.tp))
    run("norms", lambda block: _norm(block, model, layout, eager), 2.0)
    run("mla-up", lambda block: _latent_up(block, model, layout))
    if mixed:
        run("experts", lambda block: _all_experts(block, model, layout, slow))
        run("activation", lambda block: _expert_activations(block, model, layout, slow))
    else:
        run("mlp", lambda block: _matrices(block, model, layout, eager))
        run("activation", lambda block: _activation(block, model, layout, eager))
    return found


def core_attention(model: Dims, layout: Layout, kernels: Kernels) -> Work:
    """The forward pass of q kᵀ and a v alone: what selective recomputation repeats."""
    block = Block(kernels, 0.0)
    _core(block, model, layout, model.heads / layout.tp)
    return block.forward


def _eager(model: Dims, layout: Layout) -> Count:
    """1 where RMSNorm, rope and activation run as chains of eager kernels."""
    return (1.0 - layout.fused) * (1.0 - model.layernorm)


def _norm(block: Block, model: Dims, layout: Layout, eager: Count) -> None:
    nbytes = layout.tokens / layout.split * model.hidden
    chain = 1.0 + (EAGER_NORM - 1.0) * eager
    backward = 8.0 + 2.0 * (1.0 - layout.fused) + 4.8 * (chain - 1.0)
    block.stream(4.0 * nbytes * chain, nbytes * backward, 1.0 + 5.0 * eager, name="norm")


def _projections(block: Block, model: Dims, layout: Layout, eager: Count) -> None:
    """Queries, keys and values, plain or latent."""
    tokens, t, h, a = layout.tokens, layout.tp, model.hidden, model.heads / layout.tp
    latent = np.greater(model.latent, 0)
    kv = np.maximum(model.kv_heads / t, 1.0)
    width = (a + 2 * kv) * model.head_dim
    if not np.all(latent):
        plain = np.where(latent, 0.0, 1.0)
        block.matmul(tokens * plain, width, h, name="query, key, value", joint=3.0)
        rope = 4.0 * tokens * (a + kv) * model.head_dim * (1.0 + (EAGER_ROPE - 1.0) * eager)
        packed = 4.0 * tokens * width
        moved = np.where(np.greater(model.rope, 0), rope, packed) * plain
        block.stream(moved, moved, 1.0 + 3.0 * eager, name="rope")
        bias = 2.0 * tokens * width * model.bias * plain
        block.stream(0.0, bias, model.bias, name="bias gradient")
    if np.any(latent):
        on = np.where(latent, 1.0, 0.0)
        block.matmul(tokens * on, model.query_rank, h, name="query down")
        block.matmul(tokens * on, model.kv_rank + model.rope_dim, h, name="key, value down")
        _latent_up(block, model, layout)


def _latent_up(block: Block, model: Dims, layout: Layout) -> None:
    """Queries, keys and values of all heads from the compressed ones, and rope."""
    if not np.any(np.greater(model.latent, 0)):
        return
    on = np.where(np.greater(model.latent, 0), 1.0, 0.0)
    tokens, a = layout.tokens, model.heads / layout.tp
    rank = np.where(np.greater(model.query_rank, 0), model.query_rank, model.hidden)
    block.matmul(tokens * on, a * model.head_dim, rank, name="query up")
    wide = a * (model.nope_dim + model.value_dim)
    block.matmul(tokens * on, wide, model.kv_rank, name="key, value up")
    moved = on * tokens * a * (6.0 * model.head_dim + 4.0 * (model.nope_dim + model.value_dim))
    block.stream(moved, moved, 4.0 * on, name="rope")


def _core(block: Block, model: Dims, layout: Layout, heads: Count) -> None:
    """q kᵀ, softmax, a v: in one fused kernel, or as matmuls with the scores in memory."""
    width = heads * (model.head_dim + model.value_dim)
    tokens, s = layout.tokens, 1.0 * layout.sequence
    ring = np.logical_and(np.greater(layout.cp, 1), np.equal(layout.cp_kind, RING["ring"]))
    chunk = np.where(ring, np.maximum(s / layout.cp, 256.0), s)
    near = np.minimum(s, model.window)
    seen = 1.0 - model.windowed + model.windowed * np.minimum(1.0, 2.0 * near / s)
    run = block.kernels.attention.of(layout.attention, (model.head_dim + model.value_dim) / 2)
    forward = run.seconds(tokens, s * seen, width, chunk)
    backward = run.backward_seconds(tokens, s * seen, width, chunk)
    unfused = np.equal(layout.attention, FLASH["unfused"])
    if np.any(unfused):
        plain = _unfused(block.kernels, model, layout, heads)
        forward = np.where(unfused, plain[0], forward)
        backward = np.where(unfused, plain[1], backward)
    block.add(Work(0.0, forward, 0.0), Work(0.0, backward, 0.0))
    flops = run.flops(tokens, s * seen, width)
    shared = np.maximum(model.kv_heads / layout.tp, 1.0) * (model.head_dim + model.value_dim)
    nbytes = 2.0 * tokens * (width + shared)  # q, k, v and the output once; all twice backward
    block.note(
        "attention", "attention", (forward, backward),
        (flops, BACKWARD_ATTENTION * flops), (nbytes, 2.0 * nbytes), run.peak,
    )  # fmt: skip


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


def _residual(block: Block, model: Dims, layout: Layout) -> None:
    nbytes = layout.tokens / layout.split * model.hidden
    mask = layout.dropout
    backward = nbytes * (4.0 + mask) * mask + 2.0 * nbytes * model.bias
    block.stream(nbytes * (6.0 + mask), backward, name="residual")


def _mlp(model: Dims, layout: Layout, kernels: Kernels, casts: Count) -> tuple[Block, Work]:
    """Norm, up, activation, down, residual; and the tail that a checkpoint skips."""
    block = Block(kernels, casts)
    eager = _eager(model, layout)
    _norm(block, model, layout, eager)
    _matrices(block, model, layout, eager)
    before = block.forward
    _residual(block, model, layout)
    down = kernels.matmuls.seconds(layout.tokens, model.hidden, model.ffn / layout.tp)
    tail = Work(down, 0.0, block.forward.memory - before.memory)
    return block, tail


def _matrices(block: Block, model: Dims, layout: Layout, eager: Count) -> None:
    tokens, h, f = layout.tokens, model.hidden, model.ffn / layout.tp
    block.matmul(tokens, model.inputs * f, h, name="MLP up", joint=model.inputs)
    _activation(block, model, layout, eager)
    block.matmul(tokens, h, f, name="MLP down")


def _activation(block: Block, model: Dims, layout: Layout, eager: Count) -> None:
    tokens, f, g = layout.tokens, model.ffn / layout.tp, model.inputs
    moved = tokens * f * (1.0 + (EAGER_ACTIVATION - 1.0) * eager)
    backward = moved * (4 * g + 2) + 2.0 * tokens * f * model.bias
    block.stream(moved * (2 * g + 2), backward, 1.0 + eager, name="activation")


def _experts(
    model: Dims, layout: Layout, kernels: Kernels, casts: Count, slow: Count
) -> tuple[Block, Work]:
    """Norm, routed experts, shared experts, residual; and the tail that a checkpoint skips."""
    block = Block(kernels, casts)
    _norm(block, model, layout, _eager(model, layout))
    _all_experts(block, model, layout, slow)
    before = block.forward
    _residual(block, model, layout)
    return block, Work(0.0, 0.0, block.forward.memory - before.memory)


def _all_experts(block: Block, model: Dims, layout: Layout, slow: Count) -> None:
    """Routed and shared."""
    h, g = model.hidden, model.inputs
    block.add(*_routed(model, layout, block.kernels, block.casts, slow).inflated)
    shared = model.shared_ffn / layout.tp
    on = np.greater(shared, 0)
    if np.any(on):
        tokens = layout.tokens * on
        block.matmul(tokens, g * shared, h, name="shared expert up", joint=g)
        _shared_activation(block, model, layout)
        block.matmul(tokens, h, shared, name="shared expert down")


def _shared_activation(block: Block, model: Dims, layout: Layout) -> None:
    g, shared = model.inputs, model.shared_ffn / layout.tp
    on = np.greater(shared, 0)
    wide = layout.tokens * on * shared
    block.stream(wide * (2 * g + 2), wide * (4 * g + 2), on, name="shared activation")


def _expert_activations(block: Block, model: Dims, layout: Layout, slow: Count) -> None:
    """Of routed and shared experts, as one kernel each: chains of eager kernels are mostly biases,
    which recomputation leaves alone (gpt-oss with and without it, Megatron-Bridge 26.02 to 26.06).
    """
    routed = Block(block.kernels, block.casts, slow)
    _routed_activation(routed, model, replace(layout, fused=1, fused_experts=1))
    block.add(*routed.inflated)
    if np.any(np.greater(model.shared_ffn, 0)):
        _shared_activation(block, model, layout)


def _rows(model: Dims, layout: Layout) -> Count:
    """Tokens of one local expert."""
    entering = layout.tokens / layout.split
    return entering * model.top_k * layout.ep * layout.etp / model.experts * layout.busiest


def _routed(model: Dims, layout: Layout, kernels: Kernels, casts: Count, slow: Count) -> Block:
    """Router, permutation, and the matmuls of the local experts."""
    block = Block(kernels, casts, slow)
    h, g = model.hidden, model.inputs
    entering = layout.tokens / layout.split
    local, rows = model.experts / layout.ep, _rows(model, layout)
    f = model.expert_ffn / layout.etp
    router = entering * (2.0 * h + 12.0 * model.experts)
    block.stream(router, router + 2.0 * h * entering, 6.0, name="router")
    permuted = 2.0 * entering * model.top_k * h
    block.stream(4.0 * permuted, 4.0 * permuted, 6.0, name="permutation")
    apart = np.where(np.greater(layout.graphs, 1), 0.0, 1.0)
    block.grouped(rows, g * f, h, local, apart, "experts up", joint=g)
    _routed_activation(block, model, layout)
    block.grouped(rows, h, f, local, apart, "experts down")
    return block


def _routed_activation(block: Block, model: Dims, layout: Layout) -> None:
    g, local = model.inputs, model.experts / layout.ep
    eager = 1.0 - layout.fused * layout.fused_experts
    numbers = _rows(model, layout) * local * (model.expert_ffn / layout.etp)
    moved = numbers * (1.0 + (EAGER_EXPERTS - 1.0) * eager)
    block.stream(moved * (2 * g + 2), moved * (4 * g + 2), name="activation")


def head(model: Dims, layout: Layout, kernels: Kernels) -> Layer:
    """Logits and loss over the vocabulary split ``tp`` ways, in 16 bit; MTP has one more each."""
    block = Block(kernels, 0.0)
    tokens, width = layout.tokens, model.vocab / layout.tp
    run = kernels.half_matmuls.seconds
    fused = layout.fused_loss
    forward = run(tokens, width, model.hidden)
    learns = np.where(np.greater(kernels.rank, 0), 0.0, 1.0)
    weights = run(width, model.hidden, tokens, out_bytes=8.0)
    backward = run(tokens, model.hidden, width) + learns * weights
    block.add(Work(forward, 0.0, 0.0), Work(backward, 0.0, 0.0))
    flops, nbytes = 2.0 * tokens * width * model.hidden, kernels.half_matmuls.nbytes
    grads = nbytes(tokens, model.hidden, width)
    grads = grads + learns * nbytes(width, model.hidden, tokens, out_bytes=8.0)
    block.note(
        "head", "matmuls", (forward, backward), (flops, flops * (1.0 + learns)),
        (nbytes(tokens, width, model.hidden), grads), kernels.half_matmuls.peak,
    )  # fmt: skip
    logits = tokens * width
    moved = logits * (26.0 - 18.0 * fused), logits * (14.0 - 8.0 * fused)
    block.stream(*moved, 8.0 - 6.0 * fused, name="loss")
    times = 1.0 + model.mtp
    return Layer(block.forward.times(times), block.backward.times(times), NO_WORK)


def embedding(model: Dims, layout: Layout, kernels: Kernels) -> Layer:
    """The lookup forward, the scattered addition backward."""
    block = Block(kernels, 0.0)
    nbytes = layout.tokens * model.hidden
    backward = 14.0 * nbytes / layout.split * np.equal(kernels.rank, 0)
    block.stream(nbytes * (4.0 + 4.0 * layout.dropout), backward, 3.0, name="embedding")
    return Layer(block.forward, block.backward, NO_WORK)
