"""Sizes of a model as Megatron-Core calls them: rows from and to ``Transformer``.

A layer pattern is a list of 0 (dense) and 1 (experts), bottom first; a number n stands for one
layer with experts in n, beginning with the first. A window (w, 0) sees w keys back and its own.
"""

from __future__ import annotations

import ast
from typing import Any

from roofline.export.fields import Fields
from roofline.export.rows import Options, Row, same

NORMS = {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm", "layernorm without bias": "LayerNorm"}


def _moe(f: Fields) -> bool:
    return "model.experts.count" in f


def _there(f: Fields) -> bool:
    return "model.layers" in f and "model.d_model" in f


def _write_ffn(f: Fields) -> Fields:
    if not _there(f):
        return {}
    return {"ffn_hidden_size": f.get("model.d_ff") or f.get("model.experts.d_ff", 1)}


def _read_ffn(o: Options, f: Fields) -> Fields:
    stated = o.whole("ffn_hidden_size")
    return {"model.d_ff": stated or 4 * f["model.d_model"]} if _there(f) else {}


def _write_heads(f: Fields) -> Fields:
    if not _there(f):
        return {}
    found: Fields = {"kv_channels": f["model.head_dim"]}
    if f["model.kv_heads"] != f["model.heads"]:
        found["num_query_groups"] = f["model.kv_heads"]
    return found


def _read_heads(o: Options, f: Fields) -> Fields:
    groups, grouped = o.whole("num_query_groups"), o.flag("group_query_attention", True)
    channels, heads = o.whole("kv_channels"), f.get("model.heads")
    if heads is None or not _there(f):
        return {}
    kv = groups if groups and grouped and not o.left.get("multi_latent_attention") else heads
    if heads % kv:
        o.refuse("num_query_groups", kv, f"divisors of the {heads} heads")
    return {
        "model.kv_heads": kv,
        "model.head_dim": channels or max(1, f["model.d_model"] // heads),
    }


def _write_vocab(f: Fields) -> Fields:
    if "model.vocab" not in f:
        return {}
    per_rank, rest = divmod(f.get("model.vocab_multiple", 1), f["layout.tp"])
    return {
        "vocab_size": f["model.vocab"],
        "make_vocab_size_divisible_by": per_rank if per_rank and not rest else 1,
    }


def _read_vocab(o: Options, f: Fields) -> Fields:
    divisor, padded = o.whole("make_vocab_size_divisible_by", 128), o.whole("padded_vocab_size")
    vocab = o.whole("vocab_size")
    if padded:
        return {"model.vocab": padded}
    if vocab is None:
        return {}
    tp = o.left.get("tensor_model_parallel_size", 1)
    multiple = divisor * (int(tp) if str(tp).isdigit() else 1)
    return {"model.vocab": vocab, "model.vocab_multiple": multiple}


def _write_gate(f: Fields) -> Fields:
    gated = _there(f) and f.get("model.gated", True)
    return {"gated_linear_unit": True, "activation_func": "silu"} if gated else {}


def _read_gate(o: Options, f: Fields) -> Fields:
    gated = o.flag("gated_linear_unit") or o.flag("quick_geglu")
    o.take("activation_func")
    return {"model.gated": gated} if _there(f) else {}


def _write_positions(f: Fields) -> Fields:
    if not _there(f):
        return {}
    learned, sequence = f.get("model.positions", 0), f.get("layout.sequence", 1)
    kind = "rope" if f.get("model.rope", True) else "none"
    found: Fields = {"max_position_embeddings": max(learned, sequence)}
    return {"position_embedding_type": "learned_absolute" if learned else kind} | found


def _read_positions(o: Options, f: Fields) -> Fields:
    kind = o.text("position_embedding_type", "learned_absolute")
    if o.flag("use_rotary_position_embeddings"):
        kind = "rope"
    most = o.whole("max_position_embeddings")
    if not _there(f):
        return {}
    learned = (most or 1) if kind == "learned_absolute" else 0
    return {"model.positions": learned, "model.rope": kind not in ("learned_absolute", "none")}


def _write_bias(f: Fields) -> Fields:
    if not _there(f):
        return {}
    biased = bool(f.get("model.mlp_bias"))
    queries = {"add_qkv_bias": True} if f.get("model.qkv_bias") and not biased else {}
    return {"add_bias_linear": biased} | queries


def _read_bias(o: Options, f: Fields) -> Fields:
    biased, queries = o.flag("add_bias_linear", True), o.flag("add_qkv_bias")
    if not _there(f):
        return {}
    return {
        "model.mlp_bias": biased,
        "model.output_bias": biased,
        "model.qkv_bias": biased or queries,
    }


def _write_norm(f: Fields) -> Fields:
    found: Fields = {"normalization": NORMS[f.get("model.norm", "rmsnorm")]} if _there(f) else {}
    if f.get("model.qk_norm") or "model.latent.kv_rank" in f:
        found["qk_layernorm"] = True
    return found


def _read_norm(o: Options, f: Fields) -> Fields:
    kind, queries = o.text("normalization", "layernorm"), o.flag("qk_layernorm")
    if kind not in NORMS:
        o.refuse("normalization", kind, "LayerNorm, RMSNorm")
    if not _there(f):
        return {}
    return {"model.norm": kind, "model.qk_norm": queries and "model.latent.kv_rank" not in f}


LATENT = {
    "kv_rank": ("kv_lora_rank", 32),
    "nope_dim": ("qk_head_dim", 128),
    "rope_dim": ("qk_pos_emb_head_dim", 64),
    "value_dim": ("v_head_dim", 128),
}


def _write_latent(f: Fields) -> Fields:
    if "model.latent.kv_rank" not in f:
        return {}
    queries = f["model.latent.query_rank"]
    found: Fields = {"multi_latent_attention": True}
    found |= {"q_lora_rank": queries} if queries else {}
    return found | {name: f[f"model.latent.{ours}"] for ours, (name, _) in LATENT.items()}


def _read_latent(o: Options, f: Fields) -> Fields:
    latent, queries = o.flag("multi_latent_attention"), o.whole("q_lora_rank", 0, least=0)
    sizes = {f"model.latent.{n}": o.whole(name, usual) for n, (name, usual) in LATENT.items()}
    return sizes | {"model.latent.query_rank": queries} if latent and _there(f) else {}


def _write_window(f: Fields) -> Fields:
    if "model.window.size" not in f or f.get("model.window.chunked"):
        return {}
    every = f.get("model.window.full_every", 0)
    skip = {"window_attn_skip_freq": every} if every else {}
    return {"window_size": [f["model.window.size"] - 1, 0]} | skip


def _read_window(o: Options, f: Fields) -> Fields:
    given, skip = o.take("window_size"), o.take("window_attn_skip_freq", 0)
    if given is None:
        return {}
    sides = given if isinstance(given, list | tuple) else str(given).strip("()[] ").split(",")
    back = str(sides[0]).strip()
    if not back.isdigit():
        o.refuse("window_size", given, "two whole numbers, as 127,0")
    if not str(skip).isdigit():
        o.leave("window_attn_skip_freq", skip, "a pattern; a window in every layer in its place")
        skip = 0
    return {"model.window.size": int(back) + 1, "model.window.full_every": int(skip)}


def pattern(first: int, every: int, layers: int) -> list[int]:
    """0 or 1 for each layer from the bottom: whether it has experts.

    >>> pattern(1, 2, 6)
    [0, 0, 1, 0, 1, 0]
    """
    return [int(i >= first and (i - first + 1) % every == 0) for i in range(layers)]


def _write_pattern(f: Fields) -> Fields:
    first, every = f.get("model.experts.first", 0), f.get("model.experts.every", 1)
    if not _moe(f) or (first, every) == (0, 1):
        return {}
    return {"moe_layer_freq": pattern(first, every, f["model.layers"])}


def _read_pattern(o: Options, f: Fields) -> Fields:
    given = o.take("moe_layer_freq", 1)
    if not _moe(f) or not _there(f):
        return {}
    layers = f["model.layers"]
    wanted = _layers(o, given, layers)
    zeros = wanted.index(1) if 1 in wanted else layers
    for every in range(1, zeros + 2):
        if pattern(zeros - every + 1, every, layers) == wanted:
            return {"model.experts.first": zeros - every + 1, "model.experts.every": every}
    every = max(1, round(layers / max(1, sum(wanted))))
    o.assumed.append(f"{o.label('moe_layer_freq')}: experts in one layer of {every}, as many or so")
    return {"model.experts.first": 0, "model.experts.every": every}


def _layers(o: Options, given: Any, layers: int) -> list[int]:
    text = str(given)
    if text.isdigit() and int(text):
        return [int(i % int(text) == 0) for i in range(layers)]
    try:
        found = _list(ast.parse(text, mode="eval").body, layers)
    except (SyntaxError, ValueError, RecursionError):
        found = []
    if len(found) != layers or set(found) - {0, 1}:
        o.refuse("moe_layer_freq", given, f"a number, or a list of 0 and 1 of {layers} layers")
    return found


def _list(node: ast.expr, most: int) -> list[int]:
    """The value of lists joined by + and repeated by *."""
    if isinstance(node, ast.List | ast.Tuple):
        return [_int(item) for item in node.elts]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _list(node.left, most) + _list(node.right, most)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return _list(node.left, most) * min(most + 1, _int(node.right))
    raise ValueError("no list")


def _int(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    raise ValueError("no whole number")


def _read_experts(o: Options, f: Fields) -> Fields:
    count = o.whole("num_moe_experts")
    width, top_k = o.whole("moe_ffn_hidden_size"), o.whole("moe_router_topk", 2)
    shared = o.whole("moe_shared_expert_intermediate_size", 0, least=0)
    gate, bias = o.flag("moe_shared_expert_gate"), o.flag("moe_router_enable_expert_bias")
    factor = o.number("moe_expert_capacity_factor", None, 0)
    padded, _ = o.flag("moe_pad_expert_input_to_capacity"), o.flag("moe_grouped_gemm")
    if not count or not _there(f):
        return {}
    if factor and not padded:
        o.assumed.append("experts padded to their capacity; the file drops tokens without padding")
    return {
        "model.experts.count": count,
        "model.experts.per_token": top_k,
        "model.experts.d_ff": width or f["model.d_ff"],
        "model.experts.shared_d_ff": shared,
        "model.experts.shared_gate": gate,
        "model.experts.router_bias": bias,
        "model.experts.capacity_factor": factor or None,
        "layout.dropless": int(not factor),
    }


EXPERTS = {
    "count": "num_moe_experts",
    "per_token": "moe_router_topk",
    "d_ff": "moe_ffn_hidden_size",
    "shared_d_ff": "moe_shared_expert_intermediate_size",
    "shared_gate": "moe_shared_expert_gate",
    "router_bias": "moe_router_enable_expert_bias",
    "capacity_factor": "moe_expert_capacity_factor",
}


def _write_experts(f: Fields) -> Fields:
    if not _moe(f):
        return {}
    found = {theirs: f.get(f"model.experts.{ours}") for ours, theirs in EXPERTS.items()}
    found["moe_grouped_gemm"] = True
    if f.get("model.experts.capacity_factor"):
        found["moe_pad_expert_input_to_capacity"] = True
    return {name: value for name, value in found.items() if value}


def _write_sinks(f: Fields) -> Fields:
    return {"softmax_type": "learnable"} if f.get("model.sinks") else {}


def _read_sinks(o: Options, f: Fields) -> Fields:
    learned = o.text("softmax_type", "vanilla") == "learnable"
    return {"model.sinks": learned} if _there(f) else {}


def _read_mtp(o: Options, f: Fields) -> Fields:
    some = o.whole("mtp_num_layers", 0, least=0)
    return {"model.mtp": some} if _there(f) else {}


def _write_mtp(f: Fields) -> Fields:
    return {"mtp_num_layers": f["model.mtp"]} if f.get("model.mtp") else {}


def _read_tied(o: Options, f: Fields) -> Fields:
    tied = o.flag("share_embeddings_and_output_weights", True)
    return {"model.tied": tied} if _there(f) else {}


def _write_tied(f: Fields) -> Fields:
    return {"share_embeddings_and_output_weights": bool(f["model.tied"])} if _there(f) else {}


MODEL = (
    same("model.layers", "num_layers"),
    same("model.d_model", "hidden_size"),
    Row(_write_ffn, _read_ffn),
    same("model.heads", "num_attention_heads"),
    Row(_write_heads, _read_heads),
    Row(_write_vocab, _read_vocab),
    Row(_write_gate, _read_gate),
    Row(_write_tied, _read_tied),
    Row(_write_positions, _read_positions),
    Row(_write_bias, _read_bias),
    Row(_write_latent, _read_latent),
    Row(_write_norm, _read_norm),
    Row(_write_sinks, _read_sinks),
    Row(_write_window, _read_window),
    Row(_write_experts, _read_experts),
    Row(_write_pattern, _read_pattern),
    Row(_write_mtp, _read_mtp),
)
