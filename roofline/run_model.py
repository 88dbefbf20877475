"""The model of a published run, from its sizes."""

from __future__ import annotations

import re

from roofline.model import LARGEST, Experts, Latent, Transformer, Window
from roofline.run_fields import Reading, RunError, refused

OF_EXPERTS = ("top_k", "moe_ffn_hidden", "shared_experts", "moe_layers", "dense_layers")

# What a run calls a size, where ``Transformer`` has another name.
OURS = {
    "d_model": "hidden",
    "d_ff": "ffn_hidden",
    "per_token": "top_k",
    "count": "experts",
    "shared_d_ff": "shared_experts",
    "first": "dense_layers",
}


def model(read: Reading) -> Transformer:
    """The sizes of the run's model; the vocabulary padded as Megatron does.

    Raises:
        RunError: sizes that do not go together.
    """
    hidden, heads = read.whole("model.hidden"), read.whole("model.heads")
    latent, tp = _latent(read), read.whole("tp", forced=read.whole("n_gpus") == 1)
    gated = read.flag("model.gated_mlp", False)
    all_experts = bool(read.stated("model.experts") and not read.stated("model.dense_layers"))
    own = all_experts and read.stated("model.moe_ffn_hidden") is not None
    try:
        return Transformer(
            name=read.text("model.name", "model", forced=True),
            layers=read.whole("model.layers"),
            d_model=hidden,
            d_ff=read.whole("model.ffn_hidden", 4 * hidden, forced=own),
            heads=heads,
            kv_heads=heads if latent else read.whole("model.kv_heads", heads),
            head_dim=read.whole("model.head_dim", max(1, hidden // heads), forced=bool(latent)),
            vocab=read.whole("model.vocab"),
            vocab_multiple=min(LARGEST, 128 * tp),
            gated=gated,
            tied=read.flag("model.tied_embeddings", not gated),
            norm="rmsnorm" if gated else "layernorm",
            positions=0 if gated else 1,
            rope=gated,
            mlp_bias=not gated,
            latent=latent,
            window=_window(read),
            experts=_experts(read),
            mtp=read.whole("model.mtp_layers", 0, forced=True),
        )
    except RunError:
        raise
    except ValueError as error:
        name, _, rest = str(error).partition(": ")
        raise RunError(f"model.{OURS.get(name, name)}: {rest}") from None


def _window(read: Reading) -> Window | None:
    """Local attention; chunks no shorter than the sequence are none."""
    words = read.text("model.attn_window", "", forced=True).lower()
    if not words:
        return None
    size, *layers = (int(digits) for digits in re.findall(r"\d+", words.partition("(")[0]))
    if size < 1:
        raise refused("model.attn_window", words, "windows of 1 token and more")
    if not words.startswith("chunked"):
        return Window(size, full_every=2 if "every other" in words else 0)
    local, of = layers
    if size >= read.whole("model.seq_len"):
        return None
    whole = of - local
    if whole < 0 or (whole and of % whole):
        raise refused("model.attn_window", words, "so many of n layers that one in k is left")
    return Window(size, full_every=of // whole if whole else 0, chunked=True)


def _latent(read: Reading) -> Latent | None:
    if not read.stated("model.mla"):
        return None
    return Latent(
        query_rank=read.whole("model.mla.q_lora_rank", 0, forced=True),
        kv_rank=read.whole("model.mla.kv_lora_rank"),
        nope_dim=read.whole("model.mla.qk_nope_head_dim"),
        rope_dim=read.whole("model.mla.qk_rope_head_dim"),
        value_dim=read.whole("model.mla.v_head_dim"),
    )


def _experts(read: Reading) -> Experts | None:
    if not read.stated("model.experts"):
        for key in OF_EXPERTS:
            if value := read.stated(f"model.{key}"):
                raise refused(f"model.{key}", value, "null, for model.experts is not stated")
        return None
    if read.stated("model.top_k") is None:
        raise RunError("model.top_k: missing, and there is no default where there are experts")
    wide = read.whole("model.ffn_hidden", 4 * read.whole("model.hidden"), forced=True)
    one = read.whole("model.moe_ffn_hidden", wide)
    layers = read.whole("model.layers")
    dense = read.whole("model.dense_layers", 0, forced=True)
    if dense >= layers:
        raise refused("model.dense_layers", dense, f"0 to {layers - 1}, of {layers} layers")
    mixed = read.whole("model.moe_layers", layers - dense)
    if dense + mixed > layers:
        limit = f"1 to {layers - dense}, the layers that are not dense"
        raise refused("model.moe_layers", mixed, limit)
    every = max(1, round((layers - dense) / mixed)) if dense + mixed < layers else 1
    if dense * 2 == layers:
        dense, every = 0, 2
    return Experts(
        count=read.whole("model.experts"),
        per_token=read.whole("model.top_k"),
        d_ff=one,
        shared_d_ff=one * read.whole("model.shared_experts", 0, forced=True),
        first=dense,
        every=every,
    )
