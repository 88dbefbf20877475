"""A decoder as numbers that broadcast: what the step and its memory are computed from.

``Dims.of(model)`` holds scalars; ``Dims.stack`` holds a column per size, one row per model, so that a
thousand published runs of sixty models are one call. Kinds become numbers: 0 or 1 for yes or no.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from roofline.model import Transformer
from roofline.units import Count


@dataclass(frozen=True, slots=True)
class Dims:
    """Sizes of a decoder; every field may be an array."""

    layers: Count  # L
    hidden: Count  # h
    ffn: Count  # f, of a dense layer
    heads: Count  # a
    kv_heads: Count
    head_dim: Count  # of queries and keys
    value_dim: Count
    vocab: Count  # padded
    inputs: Count  # g: matrices from h to f, 2 where gated
    tied: Count
    bias: Count
    layernorm: Count  # 0 where RMSNorm
    rope: Count
    latent: Count  # 1 where attention is latent (MLA)
    query_rank: Count
    kv_rank: Count
    nope_dim: Count
    rope_dim: Count
    moe_layers: Count
    experts: Count  # E
    top_k: Count  # k, times the capacity factor where padded
    expert_ffn: Count
    shared_ffn: Count
    mtp: Count
    windowed: Count  # share of the layers whose attention is local
    window: Count  # keys that they see

    @staticmethod
    def of(model: Transformer) -> Dims:
        """The sizes of one model."""
        latent, mixture, window = model.latent, model.experts, model.window
        return Dims(
            layers=model.layers,
            hidden=float(model.d_model),
            ffn=float(model.d_ff),
            heads=float(model.heads),
            kv_heads=float(model.kv_heads),
            head_dim=float(model.query_dim),
            value_dim=float(model.value_dim),
            vocab=float(model.padded_vocab),
            inputs=2.0 if model.gated else 1.0,
            tied=float(model.tied),
            bias=float(model.mlp_bias),
            layernorm=float(model.norm != "rmsnorm"),
            rope=float(model.rope),
            latent=float(latent is not None),
            query_rank=float(latent.query_rank) if latent else 0.0,
            kv_rank=float(latent.kv_rank) if latent else 0.0,
            nope_dim=float(latent.nope_dim) if latent else 0.0,
            rope_dim=float(latent.rope_dim) if latent else 0.0,
            moe_layers=float(model.moe_layers),
            experts=float(mixture.count) if mixture else 1.0,
            top_k=float(mixture.slots_per_token) if mixture else 1.0,
            expert_ffn=float(mixture.d_ff) if mixture else 1.0,
            shared_ffn=float(mixture.shared_d_ff) if mixture else 0.0,
            mtp=float(model.mtp),
            windowed=model.windowed_layers / model.layers,
            window=float(window.size) if window else float("inf"),
        )

    @staticmethod
    def stack(models: Sequence[Transformer]) -> Dims:
        """The sizes of many models, a column each."""
        rows = [Dims.of(model) for model in models]
        return Dims(*(np.array([getattr(r, f.name) for r in rows], float) for f in fields(Dims)))

    @property
    def dense_layers(self) -> Count:
        """Layers with a plain MLP."""
        return self.layers - self.moe_layers

    @property
    def attention(self) -> Count:
        """Parameters of one layer's attention."""
        h, a = self.hidden, self.heads
        plain = h * (a + 2 * self.kv_heads) * self.head_dim + a * self.value_dim * h
        queries = np.where(
            np.greater(self.query_rank, 0),
            self.query_rank * (h + a * self.head_dim),
            h * a * self.head_dim,
        )
        latent = (
            queries
            + h * (self.kv_rank + self.rope_dim)
            + self.kv_rank * a * (self.nope_dim + self.value_dim)
            + a * self.value_dim * h
        )
        return np.where(np.greater(self.latent, 0), latent, plain)

    @property
    def mlp(self) -> Count:
        """Parameters of one dense layer's MLP."""
        return (self.inputs + 1) * self.hidden * self.ffn

    @property
    def expert(self) -> Count:
        """Parameters of one expert."""
        return (self.inputs + 1) * self.hidden * self.expert_ffn

    @property
    def shared(self) -> Count:
        """Parameters of one layer's shared experts."""
        return (self.inputs + 1) * self.hidden * self.shared_ffn

    @property
    def small(self) -> Count:
        """Norms and biases of one layer: replicated over tensor parallelism."""
        biases = (self.heads + 2 * self.kv_heads) * self.head_dim + self.ffn + 2 * self.hidden
        return 2 * self.hidden * (1 + self.layernorm) + self.bias * biases

    @property
    def embedding(self) -> Count:
        """Parameters of the embedding, and of a head that is not tied to it."""
        return self.vocab * self.hidden
