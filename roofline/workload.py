"""Workload of the closed forms: the MLP of a transformer layer and a batch of tokens.

    MLP(x) = σ(x W_in) W_out        x[B, D]  W_in[D, F]  W_out[F, D]

The formulas of the scaling book are inequalities about this block: it holds most of the FLOPs, and attention
scales the same way. Every number may be an array.
"""

from __future__ import annotations

from dataclasses import dataclass

from roofline.units import Bytes, Count


@dataclass(frozen=True, slots=True)
class Workload:
    """Sizes of one MLP block and the tokens it sees in a step; bytes are per element."""

    tokens: Count  # B, the whole batch
    d_model: Count  # D
    d_ff: Count  # F, of one expert
    matrices: int = 2  # 2: W_in and W_out; 3: gated
    experts: Count = 1  # E; 1 is a dense model
    experts_per_token: Count = 1  # k
    layers: Count = 1
    dtype: str = "bf16"
    weight_bytes: Bytes = 2.0
    gradient_bytes: Bytes = 2.0
    activation_bytes: Bytes = 2.0

    @property
    def forward_flops(self) -> Count:
        """FLOPs of one layer's forward pass over the whole batch: 2 · matrices · k B D F."""
        return 2.0 * self.matrices * self.experts_per_token * self.tokens * self.d_model * self.d_ff

    @property
    def backward_flops(self) -> Count:
        """Twice the forward pass: one matmul for dW and one for dX per matrix."""
        return 2.0 * self.forward_flops

    @property
    def parameters(self) -> Count:
        """Parameters of one layer: matrices · E D F."""
        return 1.0 * self.matrices * self.experts * self.d_model * self.d_ff
