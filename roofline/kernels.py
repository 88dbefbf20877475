"""Time of one kernel on one GPU, as measured kernels behave: a roofline with soft corners.

    matmul      τ = [ (2 M N (K+K₀) · w̃/w / (e P))⁴ + (bytes / (η W))⁴ ]^¼ + τ₀,   w̃ = √(w² + w₀²)
    attention   τ = 2 T s a (d_qk + d_v) κ / (e s'/(s'+s₀) · P)        κ = ½: the causal half alone
    memory      τ = bytes / (η W) + n · gap

w is the number of waves that the output tiles of 128 × 256 make on the GPU's SMs: an output smaller
than a fraction w₀ of a wave takes as long as that fraction, and K₀ is what filling and draining the
main loop costs in units of K. The five numbers per GPU and data type are fitted on some ten
thousand measured shapes; the 4-norm lies at most 19 % over the plain maximum, where both sides are
equal. Backward of flash attention is 2.5 times the forward FLOPs: it computes q kᵀ anew.

Sources: FlashAttention-2, section 3.1; the fit in ``scripts/fit_kernels.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from roofline.layout import FLASH
from roofline.units import Bytes, BytesPerSecond, Count, FlopPerSecond, Seconds

TILE = 128 * 256
BACKWARD_ATTENTION = 2.5


@dataclass(frozen=True, slots=True)
class Matmuls:
    """Matmul rates of one GPU in one data type; every field may be an array."""

    peak: FlopPerSecond
    sms: Count
    hbm: BytesPerSecond
    efficiency: Count  # e: of large shapes
    depth: Count  # K₀
    wave: Count  # w₀
    start: Seconds  # τ₀
    hbm_fraction: Count  # η
    operand_bytes: Bytes  # per element of A and B
    soft: bool = True  # the corner of the roofline; hard where every rate is a peak

    def seconds(
        self, m: Count, n: Count, k: Count, batch: Count = 1.0, out_bytes: Bytes = 2.0
    ) -> Seconds:
        """C[m, n] = A[m, k] B[k, n], ``batch`` times in one kernel. [s]"""
        waves = batch * m * n / (TILE * self.sms)
        filled = np.sqrt(waves * waves + self.wave * self.wave)
        flops = filled * self.sms * (TILE * 2.0) * (k + self.depth)
        compute = flops / (self.peak * self.efficiency)
        nbytes = self.nbytes(m, n, k, batch, out_bytes)
        corner = norm4 if self.soft else np.maximum
        seconds: Seconds = corner(compute, nbytes / (self.hbm * self.hbm_fraction)) + self.start
        return seconds

    def nbytes(
        self, m: Count, n: Count, k: Count, batch: Count = 1.0, out_bytes: Bytes = 2.0
    ) -> Bytes:
        """Operands read and output written, once each. [B]"""
        return batch * (self.operand_bytes * k * (m + n) + out_bytes * m * n)


@dataclass(frozen=True, slots=True)
class Attention:
    """Fused attention on one GPU."""

    peak: FlopPerSecond  # of bf16, whatever the layers' matmuls run in
    efficiency: Count  # of long sequences and heads of 128, by the newest kernels
    flash_2: Count  # the same of FlashAttention-2
    flash_1: Count  # and of the first FlashAttention, as in Triton
    half: Count  # s₀: keys at which half of it is reached
    backward: Count  # ρ: efficiency backward over forward
    narrow: Count  # of heads of 64, over heads of 128
    start: Seconds = 0.0

    def of(self, kind: Count, head_dim: Count) -> Attention:
        """The kernels of generation ``kind`` (a row of ``FLASH``) over heads of ``head_dim``."""
        older = {
            "flash-2": self.flash_2,
            "flash-1": self.flash_1,
            "flash-2024": (self.flash_2 + self.efficiency) / 2,  # cuDNN of early 2024, on its way
        }
        rows = [np.equal(kind, FLASH[name]) for name in older]
        efficiency = np.select(rows, list(older.values()), self.efficiency)
        short = np.clip((128.0 - head_dim) / 64.0, -0.5, 1.0)
        return replace(self, efficiency=efficiency * (1.0 - (1.0 - self.narrow) * short))

    def flops(self, queries: Count, keys: Count, width: Count, causal: Count = 0.5) -> Count:
        """q kᵀ and a v forward, of the keys that are seen."""
        return 2.0 * queries * keys * width * causal

    def seconds(
        self, queries: Count, keys: Count, width: Count, chunk: Count, causal: Count = 0.5
    ) -> Seconds:
        """Forward, ``width`` = heads · (d_qk + d_v) on this GPU; ``chunk`` keys at a time. [s]"""
        flops = self.flops(queries, keys, width, causal)
        return flops * (chunk + self.half) / (chunk * self.efficiency * self.peak) + self.start

    def backward_seconds(
        self, queries: Count, keys: Count, width: Count, chunk: Count, causal: Count = 0.5
    ) -> Seconds:
        """Backward, which computes the scores anew. [s]"""
        forward = self.seconds(queries, keys, width, chunk, causal) - self.start
        return forward * BACKWARD_ATTENTION / self.backward + self.start


@dataclass(frozen=True, slots=True)
class Streams:
    """Kernels that do nothing but read and write memory."""

    hbm: BytesPerSecond
    fraction: Count
    gap: Seconds  # that each kernel takes beside: until it streams, and until the next one starts

    def seconds(self, nbytes: Bytes, kernels: Count = 1.0) -> Seconds:
        """``nbytes`` in all through ``kernels`` launches. [s]"""
        return nbytes / (self.hbm * self.fraction) + kernels * self.gap


@dataclass(frozen=True, slots=True)
class Noted:
    """One operation of a layer and micro-batch as it was added up; pairs are forward, backward."""

    name: str
    kind: str  # a field of ``roofline.work.Work``
    seconds: tuple[Seconds, Seconds]
    flops: tuple[Count, Count]  # of matmuls; 0 where it is memory-bound
    nbytes: tuple[Bytes, Bytes]
    peak: FlopPerSecond = 0.0  # of the data type that its matmuls run in


@dataclass(frozen=True, slots=True)
class Kernels:
    """Everything that runs on one GPU."""

    matmuls: Matmuls
    half_matmuls: Matmuls  # the same in bf16: the head, and attention that is not fused
    attention: Attention
    streams: Streams
    rank: Count = 0  # of LoRA's adapters beside every matrix of the layers; 0: all is trained
    frozen: Bytes = 2.0  # of a weight that is not trained
    notes: list[Noted] | None = None  # where every operation of a layer is written down, if it is


def norm4(a: Seconds, b: Seconds) -> Seconds:
    """A maximum with a soft corner: (a⁴ + b⁴)^¼."""
    a, b = a * a, b * b
    return np.sqrt(np.sqrt(a * a + b * b))
