"""Configurations of mixtures of experts."""

from __future__ import annotations

from typing import Any

from roofline.model import Experts, Latent, Transformer
from roofline.models.families_common import everywhere, llama, qwen_window, sizes, window
from roofline.models.fields import Fields

_DEEPSEEK_TOP_K = {
    "deepseek_v2": "greedy",
    "deepseek_v3": "noaux_tc",
    "kimi_k2": "noaux_tc",
}


def mixtral(config: Fields, name: str) -> Transformer:
    """Llama with experts in every layer."""
    experts = Experts(
        config.whole("num_local_experts"),
        config.whole("num_experts_per_tok"),
        config.whole("intermediate_size"),
    )
    return llama(config, name, window=everywhere(config), experts=experts)


def qwen2_moe(config: Fields, name: str) -> Transformer:
    """Qwen2 with shared and routed experts."""
    shared = config.whole("shared_expert_intermediate_size")
    experts = _qwen_experts(config, shared_d_ff=shared, shared_gate=True)
    return llama(config, name, qkv_bias=True, window=qwen_window(config), experts=experts)


def qwen3_moe(config: Fields, name: str) -> Transformer:
    """Qwen3 with routed experts."""
    experts = _qwen_experts(config)
    return llama(config, name, qk_norm=True, window=qwen_window(config), experts=experts)


def _qwen_experts(config: Fields, **more: Any) -> Experts:
    dense = config.items("mlp_only_layers")
    if dense != list(range(len(dense))):
        raise config.refused("mlp_only_layers", dense, "only layers from the bottom: 0, 1, ...")
    every = config.whole("decoder_sparse_step", 1)
    return Experts(
        config.whole("num_experts"),
        config.whole("num_experts_per_tok"),
        config.whole("moe_intermediate_size"),
        first=len(dense) - len(dense) % every,
        every=every,
        **more,
    )


def deepseek(config: Fields, name: str) -> Transformer:
    """Latent attention, dense layers first, shared experts; V3 with a biased router and MTP."""
    latent = Latent(
        config.whole("q_lora_rank", 0, least=0),
        config.whole("kv_lora_rank"),
        config.whole("qk_nope_head_dim"),
        config.whole("qk_rope_head_dim"),
        config.whole("v_head_dim"),
    )
    d_ff = config.whole("moe_intermediate_size")
    if (every := config.whole("moe_layer_freq", 1)) != 1:
        raise config.refused("moe_layer_freq", every, "1")
    experts = Experts(
        config.whole("n_routed_experts"),
        config.whole("num_experts_per_tok"),
        d_ff,
        shared_d_ff=config.whole("n_shared_experts", 0, least=0) * d_ff,
        first=config.whole("first_k_dense_replace", 0, least=0),
        router_bias=config.text("topk_method", _DEEPSEEK_TOP_K[config.text("model_type")])
        == "noaux_tc",
    )
    layers, d_model, dense, heads, _, _, vocab = sizes(config)
    bias = config.flag("attention_bias", False)
    return Transformer(
        name, layers, d_model, dense, heads, heads, latent.value_dim, vocab,
        tied=config.flag("tie_word_embeddings", False),
        qkv_bias=bias,
        output_bias=bias,
        latent=latent,
        experts=experts,
        mtp=config.whole("num_nextn_predict_layers", 0, least=0),
    )  # fmt: skip


def llama4(config: Fields, name: str) -> Transformer:
    """A shared expert, experts in every layer or every n-th, attention in chunks."""
    layers, d_model, d_ff, heads, kv_heads, head_dim, vocab = sizes(config)
    experts = Experts(
        config.whole("num_local_experts"),
        config.whole("num_experts_per_tok"),
        d_ff,
        shared_d_ff=d_ff,
        every=config.whole("interleave_moe_layer_step", 1),
    )
    return Transformer(
        name, layers, d_model, config.whole("intermediate_size_mlp"),
        heads, kv_heads, head_dim, vocab,
        tied=config.flag("tie_word_embeddings", False),
        window=window(config, "attention_chunk_size", layers, full_every=4, chunked=True),
        experts=experts,
    )  # fmt: skip


def gpt_oss(config: Fields, name: str) -> Transformer:
    """Biases everywhere, sinks, a window in every other layer."""
    numbers = sizes(config)
    top = "num_experts_per_tok" if config.has("num_experts_per_tok") else "experts_per_token"
    experts = Experts(
        config.whole("num_local_experts"), config.whole(top), numbers[2], router_bias=True
    )
    bias = config.flag("attention_bias", True)
    return Transformer(
        name, *numbers,
        tied=config.flag("tie_word_embeddings", False),
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=True,
        sinks=True,
        window=window(config, "sliding_window", numbers[0], full_every=2),
        experts=experts,
    )  # fmt: skip


def grok(config: Fields, name: str) -> Transformer:
    """Four norms a layer, tied."""
    experts = Experts(
        config.whole("num_experts"),
        config.whole("num_experts_per_tok"),
        config.whole("intermediate_size"),
    )
    tied = config.flag("tie_word_embeddings", True)
    return Transformer(name, *sizes(config), tied=tied, layer_norms=4, experts=experts)
