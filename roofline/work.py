"""What one pass of a layer takes by kind, and the block that adds it up, kernel by kernel.

    matmul     forward x W; backward dgrad and wgrad, whose sum over micro-batches stays in fp32
    grouped    the same of all experts on a GPU: one kernel, or some for each
    stream     bytes read and written, through so many kernels

Where operands are narrower than 16 bits, casts are kernels of their own: of a matmul's output
gradient, and of the rows that experts take. Where somebody wants to know, every operation is
written down as it is added (``roofline.kernels.Noted``).
"""

from __future__ import annotations

from dataclasses import dataclass

from roofline.adapters import FLOPS, Shape, adapted, nbytes, passes, seconds
from roofline.kernels import Kernels, Noted
from roofline.units import Bytes, Count, Seconds

SCALED = 3.0  # kernels of an expert beside its matmul in 8 bits: the cast, scales of both operands

Pair = tuple[Count, Count]  # of a forward and a backward pass
NONE: Pair = (0.0, 0.0)


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


class Block:
    """Adds up kernels of one block, forward and backward."""

    def __init__(self, kernels: Kernels, casts: Count, slow: Count = 1.0) -> None:
        self.kernels = kernels
        self.casts = casts  # 1 where operands are cast to a narrower type
        self.slow = slow  # times as long as its kernels alone
        self.forward = Work(0.0, 0.0, 0.0)
        self.backward = Work(0.0, 0.0, 0.0)

    def add(self, forward: Work, backward: Work) -> None:
        """More work each way."""
        self.forward += forward
        self.backward += backward

    @property
    def inflated(self) -> tuple[Work, Work]:
        """Forward and backward with what they take beyond their kernels."""
        return self.forward.times(self.slow), self.backward.times(self.slow)

    def matmul(
        self, m: Count, n: Count, k: Count, batch: Count = 1.0, name: str = "matmul",
        joint: Count = 1.0,
    ) -> None:  # fmt: skip
        """x[m, k] W[k, n] with dgrad and wgrad; the gradient accumulates in fp32."""
        shape = m, n, k, batch
        forward, grads = passes(self.kernels, shape, joint, seconds(self.kernels))
        cast = self.casts * self.kernels.streams.seconds(4.0 * batch * m * n)
        self.add(Work(forward, 0.0, 0.0), Work(grads, 0.0, cast))
        if self.kernels.notes is not None:
            self._note_matmul(name, shape, joint, (forward, grads))
            moved = 4.0 * batch * m * n * self.casts
            self.note("cast of its output's gradient", "memory", (0.0, cast), nbytes=(0.0, moved))

    def grouped(
        self,
        m: Count,
        n: Count,
        k: Count,
        batch: Count,
        apart: Count,
        name: str,
        joint: Count = 1.0,
    ) -> None:
        """The same of ``batch`` experts: in one kernel, or, where ``apart``, in some for each."""
        kernels = apart * (1.0 + SCALED * self.casts)

        def run(m: Count, n: Count, k: Count, out_bytes: Bytes = 2.0) -> Seconds:
            together = self.kernels.matmuls.seconds(m, n, k, batch, out_bytes)
            each = self.kernels.matmuls.seconds(m, n, k, 1.0, out_bytes)
            return together + kernels * (batch * each - together)

        shape, full = (m, n, k, batch), (run(m, n, k), run(m, k, n) + run(n, k, m, 8.0))
        forward, grads = adapted(self.kernels, shape, joint, full, seconds(self.kernels))
        moved = 4.0 * batch * m * k * self.casts, 4.0 * batch * m * n * self.casts
        casts = self.kernels.streams.seconds(moved[0]), self.kernels.streams.seconds(moved[1])
        casts = self.casts * casts[0], self.casts * casts[1]
        self.add(Work(forward, 0.0, casts[0]), Work(grads, 0.0, casts[1]))
        if self.kernels.notes is not None:
            self._note_matmul(name, shape, joint, (forward, grads))
            self.note("casts of the experts' rows", "memory", casts, nbytes=moved)

    def stream(
        self, forward: Bytes, backward: Bytes, kernels: Count = 1.0, name: str = "memory-bound"
    ) -> None:
        """Memory-bound kernels of so many bytes each way."""
        run = self.kernels.streams.seconds
        ahead, back = run(forward, kernels), run(backward, kernels)
        self.add(Work(0.0, 0.0, ahead), Work(0.0, 0.0, back))
        self.note(name, "memory", (ahead, back), nbytes=(forward, backward))

    def note(
        self, name: str, kind: str, taken: Pair, flops: Pair = NONE, nbytes: Pair = NONE,
        peak: Count = 0.0,
    ) -> None:  # fmt: skip
        """Write an operation down where somebody wants to know."""
        if self.kernels.notes is not None:
            forward, backward = (each * self.slow for each in taken)
            self.kernels.notes.append(Noted(name, kind, (forward, backward), flops, nbytes, peak))

    def _note_matmul(self, name: str, shape: Shape, joint: Count, taken: Pair) -> None:
        flops, moved = (
            passes(self.kernels, shape, joint, measure) for measure in (FLOPS, nbytes(self.kernels))
        )
        self.note(name, "matmuls", taken, flops, moved, self.kernels.matmuls.peak)
