"""Kernels: the FLOPs of one operation and the bytes it must move; their ratio is its intensity.

    x[B, D] · w[D, F]         2 B D F FLOPs         b_x B D + b_w D F + b_o B F bytes
    c = a + b                 1 FLOP                3 b bytes an element: 1/12 in fp32, whatever n
    softmax(q kᵀ) v           4 T S N H FLOPs       T S G / (T G + S) FLOPs per byte in bf16

A matmul's intensity grows with its batch. An elementwise operation's is fixed and low: only fusing
it with others helps, because what one hands to the next is then neither written nor read.

Source: How to Scale Your Model, "Rooflines", "Transformers" and "GPUs".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from roofline.units import Bytes, Count, FlopPerByte


@dataclass(frozen=True, slots=True)
class Kernel:
    """An operation as the roofline sees it."""

    name: str
    flops: Count
    nbytes: Bytes  # every operand once: what must move at the very least
    traffic: Mapping[str, Bytes] = field(default_factory=dict)  # level → bytes, where more moves

    @property
    def intensity(self) -> FlopPerByte:
        """FLOPs per byte that must move. [FLOP/B]"""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.divide(self.flops, self.nbytes)

    def moved(self, level: str) -> Bytes:
        """Bytes that this kernel moves over ``level``. [B]"""
        return self.traffic.get(level, self.nbytes)


def matmul(
    tokens: Count,
    d: Count,
    f: Count,
    *,
    x_bytes: Bytes = 2.0,
    w_bytes: Bytes = 2.0,
    o_bytes: Bytes = 2.0,
    experts: Count = 1,
    experts_per_token: Count = 1,
    exact: bool = False,
    tiles: Mapping[str, tuple[Count, Count]] | None = None,
) -> Kernel:
    """x[B, D] · w[D, F]: 2 k B D F FLOPs and k B (b_x D + b_o F) + E b_w D F bytes.

    Args:
        x_bytes, w_bytes, o_bytes: bytes per element of input, weights and output; 1 for int8
            weights under bf16 math. [B]
        experts, experts_per_token: E matrices of which each token takes k; all are read.
        exact: the k B F (2 D - 1) FLOPs that are done; a sum of D numbers has D - 1 additions.
        tiles: level → rows and columns of the output that one block keeps further in. Over that
            level x comes once for each column of tiles and w once for each row.

    Raises:
        ValueError: when a token takes more experts than there are.
    """
    check_experts(experts, experts_per_token)
    rows = 1.0 * experts_per_token * tokens
    weights = w_bytes * experts * (1.0 * d * f)
    x, o = x_bytes * rows * d, o_bytes * rows * f
    per_output = 2.0 * d - 1 if exact else 2.0 * d
    traffic = {
        level: x * np.ceil(1.0 * f / wide) + weights * np.ceil(rows / experts / high) + o
        for level, (high, wide) in (tiles or {}).items()
    }
    return Kernel("matmul", rows * f * per_output, x + weights + o, traffic)


def elementwise(
    n: Count, *, reads: int = 2, writes: int = 1, flops: Count = 1, element_bytes: Bytes = 4.0
) -> Kernel:
    """``flops`` on each of ``n`` elements of ``reads`` inputs: c = a + b unless told otherwise.

    Compare with the vector rate, not the matmul rate.

    >>> print(round(1 / elementwise(1e6).intensity))
    12
    """
    return Kernel("elementwise", 1.0 * flops * n, (reads + writes) * element_bytes * (1.0 * n))


def dot(n: Count, element_bytes: Bytes = 2.0) -> Kernel:
    """The dot product of two vectors: 2 n - 1 FLOPs, 2 n + 1 elements; intensity 1/b at best."""
    return Kernel("dot product", 2.0 * n - 1, element_bytes * (2.0 * n + 1))


def attention(
    queries: Count,
    keys: Count,
    *,
    heads: Count = 1,
    kv_heads: Count = 1,
    head_dim: Count = 128,
    batch: Count = 1,
    element_bytes: Bytes = 2.0,
    cache_bytes: Bytes | None = None,
    causal: bool = False,
) -> Kernel:
    """softmax(q kᵀ) v of T queries and S keys, scores kept on chip: 4 T S N H FLOPs a sequence.

    Intensity in bf16 is T S G / (T G + S), with G = N/K queries on each key: T G/(G+1) in prefill
    (S = T), which is high, and nearly G in decode (T = 1), whatever the batch.

    Args:
        cache_bytes: bytes per element of keys and values; those of the queries when left out. [B]
        causal: a query sees the keys up to its own position, the last query all of them.

    Source: How to Scale Your Model, "Transformers", question 4, and "Inference".
    """
    t, s = 1.0 * queries, 1.0 * keys
    pairs = t * s - t * (t - 1) / 2 if causal else t * s
    kept = element_bytes if cache_bytes is None else cache_bytes
    nbytes = 2.0 * batch * head_dim * (element_bytes * t * heads + kept * s * kv_heads)
    return Kernel("attention", 4.0 * batch * heads * head_dim * pairs, nbytes)


def einsum_flops(subscripts: str, sizes: Mapping[str, Count]) -> Count:
    """FLOPs of a product of two arrays such as ``"bd,df->bf"``: 2 x every index, summed or not.

    One multiplication for every combination of indices, and one addition where some are summed.

    Raises:
        ValueError: when an index has no size, or there are not two operands and a result.

    >>> print(einsum_flops("bd,df->bf", {"b": 64, "d": 4096, "f": 8192}))
    4294967296.0
    """
    operands, arrow, result = subscripts.replace(" ", "").partition("->")
    if not arrow or operands.count(",") != 1:
        raise ValueError(f"subscripts: {subscripts!r} is not of the form 'bd,df->bf'")
    indices = set(operands) - {","}
    missing = sorted((indices | set(result)) - set(sizes))
    if missing:
        raise ValueError(f"sizes: none is given for {', '.join(missing)} of {subscripts!r}")
    flops: Count = 2.0 if indices - set(result) else 1.0
    for index in sorted(indices):
        flops = flops * sizes[index]
    return flops


@dataclass(frozen=True, slots=True)
class Fusion:
    """Kernels one after the other, and the one kernel that does the same."""

    before: Kernel  # the sums over all of them; each still starts and ends in memory
    after: Kernel

    @property
    def bytes_saved(self) -> Bytes:
        """Traffic that fusing avoids. [B]"""
        return self.before.nbytes - self.after.nbytes


def fuse(kernels: Sequence[Kernel], passed: Bytes) -> Fusion:
    """What fusing saves: ``passed`` bytes of intermediate results are not written and read again.

    Raises:
        ValueError: when more is passed on than the kernels move.

    >>> chain = fuse([elementwise(1e6, reads=1)] * 3, passed=2 * 4e6)
    >>> print(chain.before.intensity, chain.after.intensity)
    0.125 0.375
    """
    flops = sum((kernel.flops for kernel in kernels), 0.0)
    nbytes = sum((kernel.nbytes for kernel in kernels), 0.0)
    if np.any(np.greater(2.0 * passed, nbytes)):
        raise ValueError(
            f"passed: {np.max(passed):g} bytes written and read again are more than the "
            f"{np.min(nbytes):g} that the kernels move"
        )
    name = " + ".join(kernel.name for kernel in kernels)
    return Fusion(Kernel(name, flops, nbytes), Kernel(f"fused {name}", flops, nbytes - 2 * passed))


def check_experts(experts: Count, experts_per_token: Count) -> None:
    """Refuse a token that takes more experts than there are.

    Raises:
        ValueError: saying how many it takes of how many.
    """
    if np.any(np.greater(experts_per_token, experts)):
        raise ValueError(
            f"experts_per_token: {np.max(experts_per_token):g} of {np.min(experts):g} experts; "
            "a token takes at most as many as there are"
        )
