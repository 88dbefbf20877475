"""What a GPU keeps of one micro-batch in one layer for the backward pass, tensor by tensor.

T tokens, h width, a heads of d, f of the MLP, g matrices that read its input; t ways of tensor
parallelism, σ = t with sequence parallelism and 1 without. Bytes in 16 bits, δ = 1 with dropout:

    residual     T h (4 + 4 + 2δ) / σ          inputs of both norms, their outputs, masks
    attention    2 T (2a + 2 a_kv) d / t       q, k, v and the output; 4 T a / t of the log-sum
      latent     2 T (2 q_r + 2 k_r + d_r)     compressed, and normed; q, k, v and the output as
                                               wide as they are
    scores       (2 + 3δ) a s T / t            where attention is not one fused kernel
    MLP          2 T (g + 1) f / t             up, and what the down matrix reads
    experts      R (4h + 2 (g + 1) f_e / t_e)  R = k T t_e / σ rows, and shared experts as an MLP

For GPT (f = 4h, a d = h, δ = 1) that is s b h (34 + 5 a s / h) / t, equation 4 of Korthikanti et
al., and its equations 2 and 6. Recomputation of a layer keeps less:

    attention    all but the scores
    half         its input, q, v, both attention and MLP outputs, one up matrix: every second matmul
    block, full  its input
    modules      by name: the outputs of all norms; what the down matrix reads (and gates that are
                 kernels of their own), and what it makes of an expert's rows, since the router's
                 weights are then part of the activation; q, k, v made from the compressed ones; the
                 scores; all of the MLP or the experts but their input

Where DTensor cuts matrices the outputs of both norms are kept as gathered, on all t ranks, but for
asynchronous tensor parallelism. Eager frameworks keep more: 6 h for each RMSNorm, and the
activation of a gate, 2 f. Left out: router logits and LoRA's narrow tensors, each below 1 %, and
keys and values that eager code repeats for all heads, 9 % of a Llama 3 8B layer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from roofline.dims import Dims
from roofline.layout import FLASH, OVERLAP, RECOMPUTE, Layout
from roofline.recipes import Recipe
from roofline.units import Bytes, Count

EAGER_NORM = 6.0  # bytes per number of an RMSNorm of single kernels: fp32 input, 16-bit quotient

KINDS = ("residual", "attention", "scores", "mlp", "experts")

# Share that stays, by kind of recomputation and by how soon a tensor is given up.
_STAYS = {
    "none": (1.0, 1.0, 1.0),
    "attention": (0.0, 1.0, 1.0),
    "half": (0.0, 0.0, 1.0),
    "block": (0.0, 0.0, 0.0),
    "full": (0.0, 0.0, 0.0),
    "modules": (1.0, 1.0, 1.0),
}
# Which module gives up a part of each kind, and which all of it.
_PART = {
    "residual": "norms",
    "attention": "mla-up",
    "scores": "attention",
    "mlp": "activation",
    "experts": "activation",
}
_WHOLE = {"mlp": "mlp", "experts": "experts"}
_TABLE = np.array([_STAYS[name] for name in RECOMPUTE])


@dataclass(frozen=True, slots=True)
class Tensors:
    """Tensors of one kind, by how soon recomputation gives them up. [B]"""

    input: Bytes = 0.0  # of the layer: never
    every_second: Bytes = 0.0  # by whole blocks
    others: Bytes = 0.0  # by every second matmul
    scores: Bytes = 0.0  # by attention alone
    module: Bytes = 0.0  # of all these: what the kind's module makes, see ``_PART``


_NONE = Tensors()


@dataclass(frozen=True, slots=True)
class Kept:
    """Bytes of one kind in an average layer: kept of every one, and made again for one."""

    stays: Bytes
    again: Bytes


def in_a_layer(model: Dims, layout: Layout, recipe: Recipe) -> dict[str, Kept]:
    """What an average layer keeps of a micro-batch, by kind, after recomputation. [B]"""
    share_moe = model.moe_layers / model.layers
    scores, others, second = (1.0 - column for column in _TABLE[_codes(layout)].T)
    share, by_module = layout.recompute_share, np.any(layout.recompute == RECOMPUTE["modules"])
    found = {}
    for kind, part in _tensors(model, layout, recipe).items():
        if part is _NONE:
            found[kind] = Kept(0.0, 0.0)
            continue
        times = {"mlp": 1.0 - share_moe, "experts": share_moe}.get(kind, 1.0)
        gone = part.every_second * second + part.others * others + part.scores * scores
        whole = part.input + part.every_second + part.others + part.scores
        if by_module:
            gone = gone + _gone_by_module(kind, part, whole, layout)
        found[kind] = Kept((whole - gone * share) * times, gone * times)
    return found


def _gone_by_module(kind: str, part: Tensors, whole: Bytes, layout: Layout) -> Bytes:
    gone = np.where(layout.repeats(_PART[kind]), part.module, 0.0)
    return np.where(layout.repeats(_WHOLE[kind]), whole, gone) if kind in _WHOLE else gone


def _codes(layout: Layout) -> NDArray[np.int64]:
    return np.asarray(layout.recompute, dtype=np.int64)


def _tensors(model: Dims, layout: Layout, recipe: Recipe) -> dict[str, Tensors]:
    attention, scores = _attention(model, layout, recipe)
    dense, moe = model.dense_layers, model.moe_layers
    return {
        "residual": _residual(model, layout, recipe),
        "attention": attention,
        "scores": scores,
        "mlp": _mlp(model, layout, recipe) if np.any(dense) else _NONE,
        "experts": _experts(model, layout, recipe) if np.any(moe) else _NONE,
    }


def _residual(model: Dims, layout: Layout, recipe: Recipe) -> Tensors:
    stream = layout.tokens * model.hidden / layout.split
    chains = EAGER_NORM * (1.0 - layout.fused) * (1.0 - model.layernorm)
    read = recipe.operand * np.where(np.greater(recipe.dtensor, 0), layout.split, 1.0)
    alone = np.where(np.equal(layout.tp_overlap, OVERLAP["fine"]), recipe.operand, read)
    narrow = layout.tokens * recipe.operand * (model.query_rank + model.kv_rank)
    norms = stream * (2.0 * (alone + chains)) + narrow
    masks = stream * (2.0 * layout.dropout)
    kept = recipe.element * stream
    return Tensors(kept, kept, norms + masks, module=norms)


def _attention(model: Dims, layout: Layout, recipe: Recipe) -> tuple[Tensors, Tensors]:
    tokens, t, e = layout.tokens, 1.0 * layout.tp, recipe.element
    a, latent = model.heads / t, np.greater(model.latent, 0)
    unfused = 1.0 * np.equal(layout.attention, FLASH["unfused"])
    key_heads = np.where(latent, a, np.maximum(model.kv_heads / t, 1.0))
    keys, values = key_heads * model.head_dim, key_heads * model.value_dim
    narrow = np.where(latent, model.query_rank + model.kv_rank + model.rope_dim, 0.0)
    queries, out = a * model.head_dim, a * model.value_dim
    copy = recipe.operand * np.not_equal(recipe.operand, e)  # of the output, for the next matmul
    kept_out, copy = (recipe.attended, 0.0) if recipe.attended else (e, copy)
    log_sum = 4.0 * a * (1.0 - unfused)
    scores = a * layout.sequence * (e + (1.0 + e) * layout.dropout) * unfused
    second = tokens * (e * (narrow + queries + values) + kept_out * out + log_sum)
    up = np.where(latent, tokens * (e * (queries + keys + values)), 0.0)
    kept = tokens * scores
    return (
        Tensors(every_second=second, others=tokens * (e * keys + copy * out), module=up),
        Tensors(scores=kept, module=kept) if np.any(unfused) else _NONE,
    )


def _mlp(model: Dims, layout: Layout, recipe: Recipe) -> Tensors:
    return _gated(layout.tokens * model.ffn / layout.tp, model, layout, recipe)


def _experts(model: Dims, layout: Layout, recipe: Recipe) -> Tensors:
    rows = layout.tokens / layout.split * model.top_k * layout.etp * layout.busiest
    inside = _gated(rows * model.expert_ffn / layout.etp, model, layout, recipe)
    shared = _gated(layout.tokens * model.shared_ffn / layout.tp, model, layout, recipe)
    out = recipe.element * rows * model.hidden
    return Tensors(
        every_second=inside.every_second + shared.every_second + out,
        others=inside.others + shared.others + recipe.operand * rows * model.hidden,
        module=inside.module + shared.module + out,
    )


def _gated(numbers: Count, model: Dims, layout: Layout, recipe: Recipe) -> Tensors:
    """Up matrices, the activation of the gate where it is a kernel by itself, and their product."""
    gates = model.inputs - 1.0
    up = recipe.up or recipe.element
    made = recipe.element * gates * (1.0 - layout.fused) + recipe.operand
    rest = up * gates + made
    return Tensors(every_second=up * numbers, others=numbers * rest, module=numbers * made)
