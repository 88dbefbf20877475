"""Configurations of published repositories, and what people get wrong in them."""

import json
from pathlib import Path
from typing import Any

import pytest

from roofline.model import Transformer, Window
from roofline.models.config import MAX_BYTES, from_config
from roofline.models.families import FAMILIES
from roofline.models.parts import parameters
from roofline.presets import preset


def llama(kind: str, layers: int, d: int, f: int, n: int, k: int, v: int, **more: Any) -> dict:
    """The sizes under the names that most families use."""
    return {
        "model_type": kind,
        "num_hidden_layers": layers,
        "hidden_size": d,
        "intermediate_size": f,
        "num_attention_heads": n,
        "num_key_value_heads": k,
        "vocab_size": v,
    } | more


LATENT = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
V3 = LATENT | {"q_lora_rank": 1536, "n_shared_experts": 1, "num_experts_per_tok": 8}
V3 |= {"moe_intermediate_size": 2048, "moe_layer_freq": 1, "topk_method": "noaux_tc"}
GEMMA_3 = {"sliding_window": 1024, "num_hidden_layers": 34, "hidden_size": 2560}
ALTERNATING = ["sliding_attention", "full_attention"]

# The fields of each config.json that matter here, and the preset that it is.
SAME = {
    "llama-2-7b": llama("llama", 32, 4096, 11008, 32, 32, 32000, tie_word_embeddings=False),
    "llama-3-70b": llama("llama", 80, 8192, 28672, 64, 8, 128256, attention_bias=False),
    "mistral-7b": llama("mistral", 32, 4096, 14336, 32, 8, 32000, sliding_window=4096),
    "qwen2.5-72b": llama(
        "qwen2", 80, 8192, 29568, 64, 8, 152064,
        use_sliding_window=False, sliding_window=131072, max_window_layers=80,
    ),
    "qwen2.5-0.5b": llama("qwen2", 24, 896, 4864, 14, 2, 151936, tie_word_embeddings=True),
    "qwen3-4b": llama(
        "qwen3", 36, 2560, 9728, 32, 8, 151936,
        head_dim=128, tie_word_embeddings=True, sliding_window=None, attention_bias=False,
    ),
    "nemotron-4-15b": llama("nemotron", 32, 6144, 24576, 48, 8, 256000, head_dim=128),
    "gpt-neox-20b": llama("gpt_neox", 44, 6144, 24576, 64, 64, 50432),
    "bloom-176b": {
        "model_type": "bloom", "n_embed": 14336, "n_layer": 70, "num_attention_heads": 112,
        "vocab_size": 250880,
    },
    "gemma-3-4b": {
        "model_type": "gemma3", "vision_config": {"hidden_size": 1152},
        "text_config": GEMMA_3 | {"intermediate_size": 10240, "model_type": "gemma3_text"},
    },
    "gemma-3-1b": llama(
        "gemma3_text", 26, 1152, 6912, 4, 1, 262144,
        head_dim=256, sliding_window=512, sliding_window_pattern=6,
    ),
    "llama-4-maverick": {
        "model_type": "llama4",
        "text_config": llama(
            "llama4_text", 48, 5120, 8192, 40, 8, 202048,
            intermediate_size_mlp=16384, num_local_experts=128, num_experts_per_tok=1,
            interleave_moe_layer_step=2, attention_chunk_size=8192, head_dim=128,
        ),
    },
    "deepseek-v3": llama(
        "deepseek_v3", 61, 7168, 18432, 128, 128, 129280,
        **V3, n_routed_experts=256, first_k_dense_replace=3, num_nextn_predict_layers=1,
    ),
    "kimi-k2": llama(
        "kimi_k2", 61, 7168, 18432, 64, 64, 163840,
        **V3, n_routed_experts=384, first_k_dense_replace=1, num_nextn_predict_layers=0,
    ),
    "deepseek-v2-lite": llama(
        "deepseek_v2", 27, 2048, 10944, 16, 16, 102400,
        **LATENT, q_lora_rank=None, n_shared_experts=2, n_routed_experts=64,
        num_experts_per_tok=6, moe_intermediate_size=1408, first_k_dense_replace=1,
        topk_method="greedy",
    ),
}  # fmt: skip

# The same for mixtures that state a dense width which no layer has.
SAME_SIZE = {
    "mixtral-8x7b": llama(
        "mixtral", 32, 4096, 14336, 32, 8, 32000,
        num_local_experts=8, num_experts_per_tok=2, sliding_window=None,
    ),
    "qwen3-235b-a22b": llama(
        "qwen3_moe", 94, 4096, 12288, 64, 4, 151936, head_dim=128,
        num_experts=128, num_experts_per_tok=8, moe_intermediate_size=1536,
        decoder_sparse_step=1, mlp_only_layers=[],
    ),
    "llama-4-scout": llama(
        "llama4_text", 48, 5120, 8192, 40, 8, 202048,
        intermediate_size_mlp=16384, num_local_experts=16, num_experts_per_tok=1,
        attention_chunk_size=8192, layer_types=(["chunked_attention"] * 3 + ["full_attention"]) * 12,
    ),
    "gpt-oss-120b": llama(
        "gpt_oss", 36, 2880, 2880, 64, 8, 201088,
        head_dim=64, num_local_experts=128, experts_per_token=4, sliding_window=128,
        layer_types=ALTERNATING * 18,
    ),
    "grok-1": llama(
        "grok-1", 64, 6144, 32768, 48, 8, 131072, num_experts=8, num_experts_per_tok=2
    ),
}  # fmt: skip

# Elements of checkpoints that are no presets (safetensors metadata on https://huggingface.co).
ELEMENTS = {
    "gpt2": (
        {"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "n_positions": 1024}
        | {"vocab_size": 50257},
        124_439_808,
    ),
    "gpt2-xl": (
        {"model_type": "gpt2", "n_layer": 48, "n_embd": 1600, "n_head": 25, "n_positions": 1024}
        | {"vocab_size": 50257, "n_inner": None},
        1_557_611_200,
    ),
    "Llama-3.2-1B": (
        llama("llama", 16, 2048, 8192, 32, 8, 128256, tie_word_embeddings=True, head_dim=64),
        1_235_814_400,
    ),
    "gemma-2b": (llama("gemma", 18, 2048, 16384, 8, 1, 256000, head_dim=256), 2_506_172_416),
    "gemma-2-9b": (
        llama("gemma2", 42, 3584, 14336, 16, 8, 256000, head_dim=256, sliding_window=4096),
        9_241_705_984,
    ),
    "Qwen1.5-MoE-A2.7B": (
        llama(
            "qwen2_moe", 24, 2048, 5632, 16, 16, 151936, num_experts=60, num_experts_per_tok=4,
            moe_intermediate_size=1408, shared_expert_intermediate_size=5632,
        ),
        14_315_784_192,
    ),
    "mpt-7b": (
        {"model_type": "mpt", "d_model": 4096, "n_heads": 32, "n_layers": 32, "vocab_size": 50432}
        | {"expansion_ratio": 4, "max_seq_len": 2048, "no_bias": True, "learned_pos_emb": True}
        | {"attn_config": {"alibi": True, "attn_type": "multihead_attention"}},
        6_649_286_656,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SAME)
def test_a_configuration_is_the_preset(name: str) -> None:
    """Field by field."""
    assert from_config(SAME[name], name) == preset(name).model


@pytest.mark.parametrize("name", SAME_SIZE)
def test_a_mixture_is_the_preset(name: str) -> None:
    """But for the width of dense layers, where there are none."""
    model, wanted = from_config(SAME_SIZE[name], name), preset(name).model
    assert parameters(model) == parameters(wanted)
    assert (model.experts, model.window) == (wanted.experts, wanted.window)


@pytest.mark.parametrize(("config", "elements"), ELEMENTS.values(), ids=ELEMENTS)
def test_elements_of_the_checkpoint(config: dict[str, Any], elements: int) -> None:
    """Other published checkpoints, to the last parameter."""
    assert parameters(from_config(config)).total == elements


def test_every_family_is_tried() -> None:
    """No reader without a published model behind it."""
    tried = [*SAME.values(), *SAME_SIZE.values(), *(config for config, _ in ELEMENTS.values())]
    assert {config["model_type"] for config in tried} == set(FAMILIES)


def test_mpt_with_learned_positions_and_biases() -> None:
    """llm-foundry's own: a vector for every position, 6,658,859,008 parameters in its README."""
    config = ELEMENTS["mpt-7b"][0] | {"vocab_size": 50368, "no_bias": False, "attn_config": {}}
    model = from_config(config, "mpt-7b")
    assert model == preset("mpt-7b").model
    grouped = from_config(config | {"attn_config": {"attn_type": "multiquery_attention"}})
    assert grouped.kv_heads == 1
    assert from_config(config | {"attn_config": {"rope": True}}).rope


def test_windows_as_layers_state_them() -> None:
    """``layer_types`` says where attention is local."""
    base = SAME["gemma-3-1b"]
    full = from_config(base | {"layer_types": ["full_attention"] * 26})
    local = from_config(base | {"layer_types": ["sliding_attention"] * 26})
    assert full.window is None
    assert local.window == Window(512)
    qwen = SAME["qwen2.5-72b"] | {"use_sliding_window": True}
    assert from_config(qwen).window is None
    assert from_config(qwen | {"max_window_layers": 0}).window == Window(131072)


def test_dense_layers_of_qwen() -> None:
    """``mlp_only_layers`` from the bottom, and experts in every n-th layer."""
    base = SAME_SIZE["qwen3-235b-a22b"]
    first = from_config(base | {"mlp_only_layers": [0, 1, 2]})
    assert first.has_experts[:5] == (False, False, False, True, True)
    sparse = from_config(base | {"mlp_only_layers": [0, 1, 2], "decoder_sparse_step": 2})
    assert sparse.has_experts[:6] == (False, False, False, True, False, True)


def test_from_a_file_or_its_folder(tmp_path: Path) -> None:
    """As ``huggingface_hub`` leaves it."""
    file = tmp_path / "config.json"
    file.write_text(json.dumps(SAME["llama-2-7b"] | {"_name_or_path": "meta-llama/Llama-2-7b"}))
    for source in (file, str(file), tmp_path):
        assert from_config(source).name == "meta-llama/Llama-2-7b"
    assert from_config(file, "mine").name == "mine"
    assert isinstance(from_config(file), Transformer)


LLAMA = SAME["llama-2-7b"]


def without(field: str, **more: Any) -> dict[str, Any]:
    return {name: value for name, value in LLAMA.items() if name != field} | more


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, r"config: model_type: missing, and there is no default"),
        ({"model_type": 7}, r"model_type: 7 is refused; allowed: a text"),
        ({"model_type": "lama"}, r"config: model_type: 'lama' is not one; the nearest .* llama"),
        ({"model_type": "t5"}, r"model_type: 't5' is not one; allowed: bloom, .*qwen3_moe"),
        (without("hidden_size"), r"config: hidden_size: missing"),
        (
            LLAMA | {"hidden_size": None},
            r"hidden_size: missing, and there is no default(?!.*is hidden_size)",
        ),
        ({"model_type": None}, r"model_type: missing, and there is no default$"),
        (without("hidden_size", hiden_size=4096), r"hidden_size: missing.*nearest .*hiden_size"),
        (LLAMA | {"vocab_size": "32000"}, r"vocab_size: '32000' is refused; allowed: a whole"),
        (LLAMA | {"vocab_size": 32000.5}, r"vocab_size: 32000.5"),
        (LLAMA | {"num_hidden_layers": 0}, r"num_hidden_layers: 0 .*whole number from 1"),
        (LLAMA | {"num_hidden_layers": True}, r"num_hidden_layers: True"),
        (
            LLAMA | {"num_hidden_layers": 10**30},
            r"config: num_hidden_layers \(layers\): 10+ is .*nearest is 10000000",
        ),
        (LLAMA | {"tie_word_embeddings": "no"}, r"tie_word_embeddings: 'no' .*true or false"),
        (
            LLAMA | {"num_key_value_heads": 5},
            r"config: num_key_value_heads \(kv_heads\): 5 .*32 heads; the nearest is 4",
        ),
        (SAME["llama-4-maverick"] | {"text_config": 3}, r"text_config: 3 .*a mapping"),
        (
            SAME["llama-4-maverick"] | {"text_config": {}},
            r"config: text_config.num_hidden_layers: missing|config: text_config.hidden_size",
        ),
        (SAME["deepseek-v3"] | {"moe_layer_freq": 2}, r"moe_layer_freq: 2 .*allowed: 1"),
        (
            SAME["deepseek-v3"] | {"num_experts_per_tok": 300},
            r"config: num_experts_per_tok \(per_token\): 300 is refused; allowed: 1 to the 256 ",
        ),
        (
            SAME_SIZE["gpt-oss-120b"] | {"experts_per_token": 129},
            r"config: experts_per_token \(per_token\): 129 is refused; allowed: 1 to the 128 ",
        ),
        (
            SAME["deepseek-v3"] | {"first_k_dense_replace": 61},
            r"first_k_dense_replace \(experts.first, experts.every\): \(61, 1\) is refused",
        ),
        (
            SAME["deepseek-v3"] | {"moe_intermediate_size": 10**8},
            r"config: moe_intermediate_size \(d_ff\): 100000000 is refused",
        ),
        (SAME["gemma-3-1b"] | {"layer_types": ALTERNATING}, r"layer_types: .*26 layers"),
        (SAME["gemma-3-1b"] | {"layer_types": "all"}, r"layer_types: 'all' .*a list"),
        (SAME_SIZE["qwen3-235b-a22b"] | {"mlp_only_layers": [5]}, r"mlp_only_layers: \[5\]"),
        (
            SAME["qwen2.5-72b"] | {"use_sliding_window": True, "max_window_layers": 28},
            r"max_window_layers: 28",
        ),
        (ELEMENTS["gpt2"][0] | {"n_head": 7}, r"config: n_head: 7 .*divisor of the width 768"),
    ],
)
def test_what_is_wrong_is_told(config: dict[str, Any], message: str) -> None:
    """The field, its value, what is allowed."""
    with pytest.raises(ValueError, match=message):
        from_config(config)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"config.json: not JSON: .*line 1, column 1"),
        ('{"model_type": "llama",', r"not JSON: .*line 1"),
        ("[1, 2]", r"a mapping of fields to values, not a list"),
        ("[" * 100_000, r"config.json: "),
        ('{"model_type": "llama", "hidden_size": ' + "9" * 5000 + "}", r"cannot be read"),
        ("\x00", r"not JSON"),
        ('{"model_type": "llama", "hidden_size": NaN}', r"hidden_size: nan"),
    ],
)
def test_a_broken_file_is_told(tmp_path: Path, text: str, message: str) -> None:
    """The file, and where in it."""
    file = tmp_path / "config.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=message):
        from_config(file)


def test_a_file_that_is_none_is_told(tmp_path: Path) -> None:
    """Missing, binary, or far too large."""
    with pytest.raises(ValueError, match=r"cannot be read: No such file"):
        from_config(tmp_path / "cofnig.json")
    with pytest.raises(ValueError, match=r"config.json: cannot be read"):
        from_config(tmp_path)
    with pytest.raises(ValueError, match=r"cannot be read"):
        from_config("\x00")
    (tmp_path / "a").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"not text in UTF-8"):
        from_config(tmp_path / "a")
    (tmp_path / "b").write_text(" " * (MAX_BYTES + 1))
    with pytest.raises(ValueError, match=r"allowed: up to 1000000"):
        from_config(tmp_path / "b")
