"""What the configurations of many families share: sizes by the names of Llama, windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from roofline.model import Sizes, Transformer, Window
from roofline.models.fields import Fields

LOCAL = ("sliding_attention", "chunked_attention")


def sizes(config: Fields, **defaults: int) -> Sizes:
    """L, D, F, N, K, H, V under the names of Llama."""
    d_model = config.whole("hidden_size")
    heads = config.whole("num_attention_heads", defaults.get("heads"))
    return (
        config.whole("num_hidden_layers"),
        d_model,
        config.whole("intermediate_size"),
        heads,
        config.whole("num_key_value_heads", defaults.get("kv_heads", heads)),
        config.whole("head_dim", defaults.get("head_dim", max(d_model // heads, 1))),
        config.whole("vocab_size", defaults.get("vocab")),
    )


def llama(config: Fields, name: str, **more: Any) -> Transformer:
    """A model with the names of Llama; ``more`` states what its family has besides."""
    bias = config.flag("attention_bias", False)
    habits: dict[str, Any] = {
        "tied": config.flag("tie_word_embeddings", False),
        "qkv_bias": bias,
        "output_bias": bias,
        "mlp_bias": config.flag("mlp_bias", False),
    }
    return Transformer(name, *sizes(config), **{**habits, **more})


def everywhere(config: Fields) -> Window | None:
    """A window in every layer, where one is stated."""
    size = config.whole("sliding_window", 0, least=0)
    return Window(size) if size else None


def qwen_window(config: Fields) -> Window | None:
    """Qwen's window, which its published files switch off."""
    if not config.flag("use_sliding_window", False):
        return None
    layers, full = config.whole("num_hidden_layers"), config.whole("max_window_layers", 0, least=0)
    if 0 < full < layers:
        raise config.refused("max_window_layers", full, f"0, or {layers} layers and more")
    return None if full else everywhere(config)


def window(
    config: Fields, field: str, layers: int, full_every: int, chunked: bool = False
) -> Window | None:
    """A window in all but every n-th layer, unless ``layer_types`` says where."""
    size = config.whole(field, 0, least=0)
    if kinds := config.items("layer_types"):
        full_every = _rhythm(config, kinds, layers)
    return Window(size, full_every, chunked) if size and full_every != 1 else None


def _rhythm(config: Fields, kinds: Sequence[Any], layers: int) -> int:
    """n where every n-th layer sees all keys, 0 where none does."""
    local = [kind in LOCAL for kind in kinds]
    every = local.index(False) + 1 if False in local else 0
    wanted = [not every or (i + 1) % every != 0 for i in range(len(local))]
    if len(local) != layers or local != wanted:
        limit = f"{layers} layers, each n-th of them full_attention"
        raise config.refused("layer_types", kinds, limit)
    return every
