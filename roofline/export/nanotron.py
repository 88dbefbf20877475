"""nanotron: a YAML configuration.

Sections ``parallelism``, ``tokens``, ``model`` and the ZeRO stage of ``optimizer``; the rest of a
configuration (general, data_stages, checkpoints, learning rate) is left to the user. Models are
Llama's or Qwen2's: RMSNorm, gated, rotary; the size of experts has no options that are certain
between versions, so that a mixture of experts is noted, not written.

Names: huggingface/nanotron, ``src/nanotron/config/parallelism_config.py`` at 19f88fbe (2025),
``config.py`` at 00708b80 and ``models_config.py`` of the same branch, with
``is_qwen2_config`` as in its SmolLM3 configurations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from roofline.export.fields import Fields
from roofline.export.rows import Options, Row, dotted, named, nested, read, same, written

P, T, M = "parallelism.", "tokens.", "model.model_config."
SIZES = {
    "layers": "num_hidden_layers",
    "d_model": "hidden_size",
    "d_ff": "intermediate_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "vocab": "vocab_size",
}


def _replicas(f: Fields) -> int:
    return int(f["layout.gpus"] / (f["layout.tp"] * f["layout.cp"] * f["layout.pp"]))


def _read_replicas(o: Options, f: Fields) -> Fields:
    return {"layout.gpus": o.whole(f"{P}dp", 1) * f["layout.tp"] * f["layout.cp"] * f["layout.pp"]}


def _write_batch(f: Fields) -> Fields:
    micro = f["layout.micro_batch"]
    steps = max(1, int(f["layout.batch"] // (micro * _replicas(f))))
    return {f"{T}micro_batch_size": micro, f"{T}batch_accumulation_per_replica": steps}


def _read_batch(o: Options, f: Fields) -> Fields:
    micro = o.whole(f"{T}micro_batch_size", 1)
    steps = o.whole(f"{T}batch_accumulation_per_replica", 1)
    return {"layout.micro_batch": micro, "layout.batch": micro * steps * _replicas(f)}


def _write_model(f: Fields) -> Fields:
    if "model.layers" not in f:
        return {}
    kind = "qwen2" if f.get("model.qkv_bias") or "model.window.size" in f else "llama"
    found: Fields = {f"{M}is_{kind}_config": True}
    found |= {M + theirs: f[f"model.{ours}"] for ours, theirs in SIZES.items()}
    found[f"{M}intermediate_size"] = f["model.d_ff"] or f["model.experts.d_ff"]
    found[f"{M}tie_word_embeddings"] = bool(f.get("model.tied"))
    found[f"{M}max_position_embeddings"] = f["layout.sequence"]
    if kind == "qwen2":
        found[f"{M}attention_bias"] = bool(f.get("model.qkv_bias"))
        found[f"{M}sliding_window_size"] = f.get("model.window.size")
    return found | {"model.make_vocab_size_divisible_by": f.get("model.vocab_multiple", 1)}


def _read_model(o: Options, f: Fields) -> Fields:
    for name in ("is_llama_config", "is_qwen2_config", "max_position_embeddings"):
        o.take(M + name)
    found = {f"model.{ours}": o.whole(M + theirs) for ours, theirs in SIZES.items()}
    tied, bias = o.flag(f"{M}tie_word_embeddings"), o.flag(f"{M}attention_bias")
    window = o.whole(f"{M}sliding_window_size")
    multiple = o.whole("model.make_vocab_size_divisible_by", 1)
    found["model.kv_heads"] = found["model.kv_heads"] or found["model.heads"]
    if not all(found.values()):
        return {}
    found["model.head_dim"] = max(1, found["model.d_model"] // found["model.heads"])
    found |= {"model.tied": tied, "model.qkv_bias": bias, "model.vocab_multiple": multiple}
    return found | ({"model.window.size": window} if window else {})


def _write_mode(f: Fields) -> Fields:
    split = f.get("layout.sequence_parallel", 1)
    hidden = f.get("layout.tp_overlap", "backward") != "none" and f["layout.tp"] > 1
    return {
        f"{P}tp_mode": "REDUCE_SCATTER" if split else "ALL_REDUCE",
        f"{P}tp_linear_async_communication": bool(hidden),
    }


def _read_mode(o: Options, f: Fields) -> Fields:
    mode, hidden = o.text(f"{P}tp_mode", "all_reduce"), o.flag(f"{P}tp_linear_async_communication")
    if mode not in ("all_reduce", "reduce_scatter"):
        o.refuse(f"{P}tp_mode", mode, "ALL_REDUCE, REDUCE_SCATTER")
    return {
        "layout.sequence_parallel": int(mode == "reduce_scatter"),
        "layout.tp_overlap": "backward" if hidden else "none",
    }


def _write_precision(f: Fields) -> Fields:
    long = f.get("layout.gradient_bytes", 2) == 4
    dtype = "float16" if f["precision"] == "fp16" else "bfloat16"
    return {"model.dtype": dtype, "optimizer.accumulate_grad_in_fp32": long}


def _read_precision(o: Options, f: Fields) -> Fields:
    dtype, long = o.text("model.dtype", "bfloat16"), o.flag("optimizer.accumulate_grad_in_fp32")
    if dtype not in ("bfloat16", "float16"):
        o.assumed.append(f"precision = bf16; the file trains in {dtype}, which is not modelled")
    return {
        "precision": "fp16" if dtype == "float16" else "bf16",
        "recipe": "mixed",
        "layout.gradient_bytes": 4 if long else 2,
        "layout.attention": "flash-2",
        "layout.fused": 0,
    }


def _write_recompute(f: Fields) -> Fields:
    return {f"{P}recompute_layer": f.get("layout.recompute", "none") in ("full", "block")}


def _read_recompute(o: Options, f: Fields) -> Fields:
    return {"layout.recompute": "full" if o.flag(f"{P}recompute_layer") else "none"}


ROWS = (
    same("layout.tp", f"{P}tp", 1),
    same("layout.pp", f"{P}pp", 1),
    same("layout.cp", f"{P}context_parallel_size", 1),
    same("layout.ep", f"{P}expert_parallel_size", 1),
    Row(lambda f: {f"{P}dp": _replicas(f)}, _read_replicas),
    named("layout.schedule", f"{P}pp_engine", {"gpipe": "afab", "1f1b": "1f1b"}, "gpipe"),
    Row(_write_mode, _read_mode),
    Row(_write_recompute, _read_recompute),
    same("layout.sequence", f"{T}sequence_length", 2048),
    Row(_write_batch, _read_batch),
    Row(_write_model, _read_model),
    Row(_write_precision, _read_precision),
    same("layout.zero", "optimizer.zero_stage", 0, least=0),
)


def write(fields: Fields, notes: Sequence[str] = ()) -> str:
    """The YAML text."""
    head = ["# general, data_stages, checkpoints, tokenizer and learning rate are left to you"]
    body = yaml.safe_dump(nested(written(ROWS, fields)), sort_keys=False)
    return "\n".join([*head, *(f"# {note}" for note in notes), body])


def read_text(text: str, gpus: int | None = None) -> tuple[Fields, Options]:
    """Fields of a configuration, and the options that are left.

    Raises:
        ValueError: text that is no YAML mapping, or a value that cannot be.
    """
    try:
        tree: Any = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"not YAML: {' '.join(str(error).split())[:200]}") from None
    if not isinstance(tree, dict):
        raise ValueError(f"YAML: {type(tree).__name__} is refused; allowed: a mapping")
    options = Options(dict(dotted(tree)))
    return read(ROWS, options), options
