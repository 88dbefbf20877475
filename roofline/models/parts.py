"""The matrices of a decoder, and from them its parameters.

A matmul is a row: [inputs, outputs], in so many layers, of which a layer stores ``stored`` copies
and a token meets ``met``. Parameters are layers · stored · inputs · outputs, FLOPs of a forward
pass 2 · layers · met · inputs · outputs a token: one list for both.

    attention    qkv D → (N+2K) H, output N H → D
      latent     query D → q → N (d+r), kv D → (c+r), c → N (d+v), output N v → D
    mlp          up D → F, twice as wide where gated, down F → D
    experts      the same, E stored and k met;  router D → E
    head         D → V, stored once more than the embedding unless tied

Source: https://arxiv.org/abs/2405.04434, section 2.1 (latent); https://arxiv.org/abs/2412.19437,
section 2.2 (MTP); parameter counts of published checkpoints (tests/test_model.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace

from roofline.model import NORMS, Experts, Latent, Transformer


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matmul with weights, in every layer that has it."""

    name: str
    part: str  # a field of Parameters
    inputs: int
    outputs: int
    layers: int
    stored: int = 1  # copies in a layer
    met: int = 1  # copies that a token goes through
    biases: int = 0  # of one copy

    def parameters(self, copies: int) -> int:
        """Weights and biases of so many copies in each layer."""
        return self.layers * copies * (self.inputs * self.outputs + self.biases)

    @property
    def forward_flops(self) -> int:
        """FLOPs of a token's forward pass, all layers: 2 · inputs · outputs each."""
        return 2 * self.layers * self.met * self.inputs * self.outputs


@dataclass(frozen=True, slots=True)
class Parameters:
    """Parameters by part."""

    attention: int = 0
    mlp: int = 0
    experts: int = 0
    router: int = 0
    shared: int = 0
    norms: int = 0
    embedding: int = 0
    head: int = 0  # 0 where tied
    positions: int = 0
    mtp: int = 0  # what the MTP modules add: they share embedding and head

    @property
    def total(self) -> int:
        """All of them."""
        return sum(getattr(self, part.name) for part in fields(self))

    @property
    def main(self) -> int:
        """Without MTP: the count that a publisher names."""
        return self.total - self.mtp


def parameters(model: Transformer) -> Parameters:
    """Parameters by part, to the last one.

    >>> llama_3_8b = Transformer("llama-3-8b", 32, 4096, 14336, 32, 8, 128, 128256)
    >>> print(parameters(llama_3_8b).total)
    8030261248
    """
    return _parameters(model, lambda row: row.stored)


def active_parameters(model: Transformer) -> Parameters:
    """Parameters that one token meets: k experts for E; the embedding counts whole.

    Publishers differ: Mixtral's 12.9 B hold the embedding, gpt-oss's 5.1 B do not.
    """
    return _parameters(model, lambda row: min(row.stored, row.met))


def matrices(model: Transformer) -> tuple[Matrix, ...]:
    """Every matmul with weights, from the bottom to the logits, then those of MTP."""
    layers = [
        *_attention(model, model.layers),
        *_mlp(model, "mlp", model.d_ff, model.dense_layers),
        *(_experts(model, model.experts, model.moe_layers) if model.experts else ()),
    ]
    stored = 0 if model.tied else 1
    head = Matrix("head", "head", model.d_model, model.padded_vocab, 1, stored)
    return (*(row for row in layers if row.layers and row.outputs), head, *_mtp(model))


def _parameters(model: Transformer, copies: Callable[[Matrix], int]) -> Parameters:
    vectors = NORMS[model.norm]
    counted = {part.name: 0 for part in fields(Parameters)}
    for row in matrices(model):
        counted[row.part] += row.parameters(copies(row))
    layer = _layer_norms(model)
    outside = (2 if model.embedding_norm else 1) * model.d_model * vectors
    counted["norms"] += model.layers * layer + outside
    counted["attention"] += model.layers * model.heads * model.sinks
    counted["embedding"] += model.padded_vocab * model.d_model
    counted["positions"] += model.positions * model.d_model
    counted["mtp"] += model.mtp * (layer + model.heads * model.sinks + 3 * model.d_model * vectors)
    return Parameters(**counted)


def _layer_norms(model: Transformer) -> int:
    width = model.layer_norms * model.d_model + 2 * model.head_dim * model.qk_norm
    if model.latent:
        width += model.latent.query_rank + model.latent.kv_rank
    return width * NORMS[model.norm]


def _attention(model: Transformer, layers: int) -> Iterator[Matrix]:
    if model.latent:
        yield from _latent(model, model.latent, layers)
    else:
        wide = model.heads * model.head_dim + 2 * model.kv_width
        bias = wide * model.qkv_bias
        yield Matrix("qkv", "attention", model.d_model, wide, layers, biases=bias)
    wide, bias = model.heads * model.value_dim, model.d_model * model.output_bias
    yield Matrix("output", "attention", wide, model.d_model, layers, biases=bias)


def _latent(model: Transformer, latent: Latent, layers: int) -> Iterator[Matrix]:
    d_model, queries = model.d_model, model.heads * model.query_dim
    rank, narrow = latent.query_rank, latent.kv_rank + latent.rope_dim
    wide = model.heads * (latent.nope_dim + latent.value_dim)
    if rank:
        bias = rank * model.qkv_bias
        yield Matrix("query down", "attention", d_model, rank, layers, biases=bias)
        yield Matrix("query up", "attention", rank, queries, layers)
    else:
        yield Matrix("query", "attention", d_model, queries, layers)
    bias = narrow * model.qkv_bias
    yield Matrix("kv down", "attention", d_model, narrow, layers, biases=bias)
    yield Matrix("kv up", "attention", latent.kv_rank, wide, layers)


def _mlp(
    model: Transformer, part: str, d_ff: int, layers: int, stored: int = 1, met: int = 1
) -> Iterator[Matrix]:
    wide, d_model = (model.matrices - 1) * d_ff, model.d_model
    up, down = (wide, d_model) if model.mlp_bias and d_ff else (0, 0)
    yield Matrix(f"{part} up", part, d_model, wide, layers, stored, met, up)
    yield Matrix(f"{part} down", part, d_ff, d_model, layers if d_ff else 0, stored, met, down)


def _experts(model: Transformer, mixture: Experts, layers: int) -> Iterator[Matrix]:
    bias = mixture.count * mixture.router_bias
    yield Matrix("router", "router", model.d_model, mixture.count, layers, biases=bias)
    copies = (mixture.count, mixture.per_token)
    yield from _mlp(model, "experts", mixture.d_ff, layers, *copies)
    yield from _mlp(model, "shared", mixture.shared_d_ff, layers)
    gated = layers if mixture.shared_gate and mixture.shared_d_ff else 0
    yield Matrix("shared gate", "shared", model.d_model, 1, gated)


def _mtp(model: Transformer) -> Iterator[Matrix]:
    """A projection of two vectors to one, a layer like the last one, and the head, shared."""
    if not model.mtp:
        return
    yield Matrix("mtp projection", "mtp", 2 * model.d_model, model.d_model, model.mtp)
    layer = [*_attention(model, model.mtp)]
    if model.experts and model.has_experts[-1]:
        layer += _experts(model, model.experts, model.mtp)
    else:
        layer += _mlp(model, "mlp", model.d_ff, model.mtp)
    for row in layer:
        if row.layers and row.outputs:
            yield replace(row, name=f"mtp {row.name}", part="mtp")
    yield Matrix("mtp head", "mtp", model.d_model, model.padded_vocab, model.mtp, stored=0)
