"""LoRA in a step: frozen matrices, and the narrow matmuls of their adapters [in, r] and [r, out].

    frozen      forward and dgrad, no wgrad; in 4 bits, unpacked before each of the two
    adapters    x A and (x A) B forward, four matmuls backward: 3 · 2 T r (in + out) FLOPs
    both        their outputs, and the gradients of their input, are added up by a kernel each

Nothing of a frozen weight is reduced or updated: gradients, optimizer and the gathering of updated
weights are the adapters' alone. ZeRO-3 still gathers the frozen ones.

What a LoRA run needs, and its MFU counts, is 4 FLOPs a token for each frozen parameter that a token
meets (2 forward, 2 for the gradient of its input) and 6 for each of the adapters. Attention without
weights has both its gradients, as ever. The lowest layer's input has a gradient too, for that is
what checkpointing asks for (enable_input_require_grads).

Sources: Hu et al., https://arxiv.org/abs/2106.09685, section 4; Dettmers et al.,
https://arxiv.org/abs/2305.14314, section 3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from roofline.dims import Dims
from roofline.kernels import Kernels
from roofline.layout import Layout
from roofline.model import Transformer
from roofline.model_flops import Operation, operations
from roofline.recipes import adapters
from roofline.stages import Owned, owned
from roofline.units import Bytes, Count

Shape = tuple[Count, Count, Count, Count]  # m, n, k and how many such in one kernel
Passes = tuple[Count, Count]  # forward, backward
SUM = 6.0  # bytes per element of a sum in 16 bits: two read, one written
UNPACKED = 2.0  # bytes per weight that a matmul reads


class Measure(NamedTuple):
    """What is counted of kernels: of a matmul of m, n, k and batch, and of bytes streamed."""

    run: Callable[..., Count]
    stream: Callable[[Bytes], Count]


def seconds(kernels: Kernels) -> Measure:
    """Time. [s]"""
    return Measure(kernels.matmuls.seconds, kernels.streams.seconds)


def nbytes(kernels: Kernels) -> Measure:
    """Memory traffic. [B]"""
    return Measure(kernels.matmuls.nbytes, lambda moved: moved)


def _flops(m: Count, n: Count, k: Count, batch: Count = 1.0, out_bytes: Bytes = 0.0) -> Count:
    return 2.0 * m * n * k * batch


FLOPS = Measure(_flops, lambda moved: 0.0)


def passes(kernels: Kernels, shape: Shape, joint: Count, measure: Measure) -> Passes:
    """Forward and backward of x[m, k] W[k, n], whether W is trained or has an adapter.

    Args:
        joint: matrices that are one matmul, each with an A of its own: 3 for q, k and v.
    """
    m, n, k, batch = shape
    run = measure.run
    full = run(m, n, k, batch), run(m, k, n, batch) + run(n, k, m, batch, out_bytes=8.0)
    return adapted(kernels, shape, joint, full, measure)


def adapted(kernels: Kernels, shape: Shape, joint: Count, full: Passes, measure: Measure) -> Passes:
    """The same where ``full`` is forward and backward with all trained."""
    on = np.greater(kernels.rank, 0)
    if not np.any(on):
        return full
    m, n, k, batch = shape
    rank, run, stream = kernels.rank, measure.run, measure.stream
    packed = np.less(kernels.frozen, UNPACKED)
    unpacked = packed * stream((kernels.frozen + UNPACKED) * k * n * batch)
    wide = rank * joint
    forward = run(m, wide, k, batch) + run(m, n, rank, batch) + stream(SUM * batch * m * n)
    weights = run(k, wide, m, batch, out_bytes=8.0) + run(rank, n, m, batch, out_bytes=8.0)
    inputs = run(m, rank, n, batch) + run(m, k, wide, batch) + stream(SUM * batch * m * k)
    dgrad = run(m, k, n, batch)
    return (
        np.where(on, full[0] + forward + unpacked, full[0]),
        np.where(on, dgrad + inputs + weights + unpacked, full[1]),
    )


def trained(model: Dims, layout: Layout) -> Owned:
    """Parameters with a gradient on one GPU of an average stage, data parallelism apart."""
    every = owned(model, layout)
    on = np.greater(layout.lora_rank, 0)
    if not np.any(on):
        return every
    some = adapters(model, layout, model.layers / layout.pp, layout.lora_rank)
    return Owned(
        np.where(on, some.dense, every.dense),
        np.where(on, some.experts, every.experts),
        np.where(on, 0.0, every.ends),
    )


ADAPTERS = "adapters"  # name of the operation that stands for all of them
WEIGHTLESS = ("scores", "values")  # q kᵀ and a v: their two gradients are both of inputs


def counted(model: Transformer, layout: Layout, convention: str) -> tuple[Operation, ...]:
    """FLOPs per token of a training step, as ``convention`` counts them, where weights are frozen too.

        frozen matrix    2 N forward, 2 N dX                 no dW
        adapters         2 Ψ forward, 4 Ψ backward           Ψ = Σ r (in + out) that a token meets

    Without adapters these are ``model_flops.operations``.

    Source: Hu et al., section 4.2: gradients of the adapters alone.

    Raises:
        ValueError: an unknown convention, naming the nearest.
    """
    rows = operations(model, layout.sequence, convention)
    on = np.greater(layout.lora_rank, 0)
    if not np.any(on):
        return rows
    once = np.where(on, 1.0, 2.0)
    frozen = (
        row if row.name.split()[-1] in WEIGHTLESS else replace(row, gradients=once) for row in rows
    )
    some = adapters(Dims.of(model), Layout(1), model.layers, layout.lora_rank)
    share = model.experts.per_token / model.experts.count if model.experts else 0.0
    forward = 2.0 * (some.dense + share * some.experts)
    return (*frozen, Operation(ADAPTERS, ADAPTERS, model.layers, forward, 3.0))
