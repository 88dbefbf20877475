"""Workload of the closed forms: the MLP of a transformer layer and a batch of tokens.

    MLP(x) = σ(x W_in) W_out        x[B, D]  W_in[D, F]  W_out[F, D]

The formulas of the scaling book are inequalities about this block: it holds most of the FLOPs, and attention
scales the same way. Every number may be an array.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from roofline import checks
from roofline.units import Bytes, Count


@dataclass(frozen=True, slots=True)
class Workload:
    """Sizes of one MLP block and the tokens it sees in a step; bytes are per element.

    Raises:
        ValueError: a size of none, or NaN, two or three matrices that are not, or k above E.
    """

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

    def __post_init__(self) -> None:
        """Check every field; lists become arrays."""
        for field in ("tokens", "d_model", "d_ff"):
            self._keep(field, checks.above(field, getattr(self, field)))
        for field in ("experts", "experts_per_token", "layers"):
            self._keep(field, checks.at_least(field, getattr(self, field), 1))
        for field in ("weight_bytes", "gradient_bytes", "activation_bytes"):
            self._keep(field, checks.at_least(field, getattr(self, field), 0))
        checks.one_of("matrices", self.matrices, (2, 3))
        if np.any(np.greater(self.experts_per_token, self.experts)):
            raise ValueError(
                f"experts_per_token: {np.max(self.experts_per_token):g} is refused; "
                f"allowed: 1 to the {np.min(self.experts):g} experts"
            )

    def _keep(self, field: str, value: Count) -> None:
        if isinstance(getattr(self, field), list):
            object.__setattr__(self, field, value)

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
