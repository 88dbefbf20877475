"""Configurations of dense models."""

from __future__ import annotations

from typing import Any

from roofline.model import Transformer
from roofline.models.families_common import everywhere, llama, qwen_window, sizes, window
from roofline.models.fields import Fields


def mistral(config: Fields, name: str) -> Transformer:
    """Llama with a window in every layer."""
    return llama(config, name, window=everywhere(config))


def qwen2(config: Fields, name: str) -> Transformer:
    """Llama with biases on queries, keys and values."""
    return llama(config, name, qkv_bias=True, output_bias=False, window=qwen_window(config))


def qwen3(config: Fields, name: str) -> Transformer:
    """Llama with norms of queries and keys."""
    return llama(config, name, qk_norm=True, window=qwen_window(config))


def gemma(config: Fields, name: str) -> Transformer:
    """Llama, tied."""
    return llama(config, name, tied=config.flag("tie_word_embeddings", True))


def gemma2(config: Fields, name: str) -> Transformer:
    """Four norms a layer, a window in every other layer."""
    tied, layers = config.flag("tie_word_embeddings", True), config.whole("num_hidden_layers")
    local = window(config, "sliding_window", layers, full_every=2)
    return llama(config, name, tied=tied, layer_norms=4, window=local)


def gemma3(config: Fields, name: str) -> Transformer:
    """Published files leave out what equals the defaults of the 4 B model."""
    numbers = sizes(config, heads=8, kv_heads=4, head_dim=256, vocab=262208)
    every = config.whole("sliding_window_pattern", 6)
    return Transformer(
        name,
        *numbers,
        tied=config.flag("tie_word_embeddings", True),
        layer_norms=4,
        qk_norm=True,
        window=window(config, "sliding_window", numbers[0], full_every=every),
    )


def nemotron(config: Fields, name: str) -> Transformer:
    """A plain MLP and layer norms."""
    return llama(config, name, gated=False, norm="layernorm")


def gpt2(config: Fields, name: str) -> Transformer:
    """Learned positions and biases everywhere."""
    d_model = config.whole("n_embd")
    positions = config.whole("n_positions")
    return _gpt(
        config, name, config.whole("n_layer"), d_model, config.whole("n_head"),
        config.whole("n_inner", 4 * d_model), positions=positions, tied=True, rope=False,
    )  # fmt: skip


def gpt_neox(config: Fields, name: str) -> Transformer:
    """Biases everywhere, not tied."""
    bias = config.flag("attention_bias", True)
    return _gpt(
        config, name, config.whole("num_hidden_layers"), config.whole("hidden_size"),
        config.whole("num_attention_heads"), config.whole("intermediate_size"),
        tied=False, qkv_bias=bias, output_bias=bias,
    )  # fmt: skip


def bloom(config: Fields, name: str) -> Transformer:
    """Biases everywhere, ALiBi, and a norm of the embedding."""
    d_model = config.whole(config.first("n_embed", "hidden_size"))
    heads = config.whole(config.first("n_head", "num_attention_heads"))
    layers = config.whole(config.first("n_layer", "num_hidden_layers"))
    return _gpt(
        config, name, layers, d_model, heads, 4 * d_model,
        tied=True, rope=False, embedding_norm=True,
    )  # fmt: skip


def mpt(config: Fields, name: str) -> Transformer:
    """MPT: learned positions unless attention has ALiBi or RoPE."""
    d_model, heads = config.whole("d_model"), config.whole("n_heads")
    attention = config.section("attn_config") if config.has("attn_config") else Fields({})
    rope = attention.flag("rope", False)
    learned = config.flag("learned_pos_emb", True) and not (rope or attention.flag("alibi", False))
    shared = attention.text("attn_type", "") == "multiquery_attention"
    bias = not config.flag("no_bias", True)
    return _gpt(
        config, name, config.whole("n_layers"), d_model, heads,
        config.whole("expansion_ratio", 4) * d_model,
        kv_heads=1 if shared else attention.whole("kv_n_heads", heads),
        tied=True,
        rope=rope,
        norm="layernorm" if bias else "layernorm without bias",
        positions=config.whole("max_seq_len") if learned else 0,
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=bias,
    )  # fmt: skip


def _gpt(
    config: Fields, name: str, layers: int, d_model: int, heads: int, d_ff: int,
    *, tied: bool, kv_heads: int = 0, **more: Any,
) -> Transformer:  # fmt: skip
    if d_model % heads:
        stated = config.first("n_head", "num_attention_heads", "n_heads")
        raise config.refused(stated, heads, f"a divisor of the width {d_model}")
    habits: dict[str, Any] = {
        "gated": False,
        "norm": "layernorm",
        "qkv_bias": True,
        "output_bias": True,
        "mlp_bias": True,
        "tied": config.flag("tie_word_embeddings", tied),
    }
    vocab = config.whole("vocab_size")
    numbers = (layers, d_model, d_ff, heads, kv_heads or heads, d_model // heads, vocab)
    return Transformer(name, *numbers, **{**habits, **more})
