"""Published dense models: a row each, with the place where its numbers stand."""

from __future__ import annotations

from typing import Any

from roofline.model import Sizes, Transformer, Window
from roofline.models.preset import Preset, config

_GPT: dict[str, Any] = {
    "gated": False,
    "norm": "layernorm",
    "qkv_bias": True,
    "output_bias": True,
    "mlp_bias": True,
}
_NEMOTRON: dict[str, Any] = {"gated": False, "norm": "layernorm"}


_GPT_3 = "https://arxiv.org/abs/2005.14165, table 2.1; vocabulary of GPT-2, section 2.1"
_GPT_3_NOTES = "Heads are as many as D / H where the table's do not fit (1.3 B), and D of 13 B is 5120 for 5140."
_FOUNDRY = "https://github.com/mosaicml/llm-foundry, scripts/train: yamls/pretrain, benchmarking"
_FOUNDRY_NOTES = "As benchmarked: biases, and learned positions, one for each token of a sequence."


def _row(
    title: str,
    billions: float,
    model: Transformer,
    source: str,
    notes: str = "",
    off_by: float = 0.01,
) -> Preset:
    return Preset(title, model, billions * 1e9, billions * 1e9, source, off_by, notes)


def _gpt(name: str, layers: int, d_model: int, heads: int, vocab: int) -> Transformer:
    sizes = (layers, d_model, 4 * d_model, heads, heads, d_model // heads, vocab)
    return Transformer(name, *sizes, tied=True, positions=2048, rope=False, **_GPT)


def _gpt_3(size: str, billions: float, layers: int, d_model: int, heads: int) -> Preset:
    model = _gpt(f"gpt-3-{size}", layers, d_model, heads, 50257)
    return _row(f"GPT-3 {size.upper()}", billions, model, _GPT_3, _GPT_3_NOTES, off_by=0.03)


def _mpt(size: str, billions: float, layers: int, d_model: int, heads: int) -> Preset:
    model = _gpt(f"mpt-{size}", layers, d_model, heads, 50368)
    return _row(f"MPT {size.upper()}", billions, model, _FOUNDRY, _FOUNDRY_NOTES, off_by=0.02)


def _qwen(series: str, size: str, billions: float, sizes: Sizes, tied: bool = False) -> Preset:
    new = series == "qwen3"
    model = Transformer(f"{series}-{size}", *sizes, tied=tied, qkv_bias=not new, qk_norm=new)
    title = series.capitalize()
    return _row(f"{title} {size.upper()}", billions, model, config(f"Qwen/{title}-{size.upper()}"))


def _gemma(
    name: str, billions: float, sizes: Sizes, window: Window, source: str, notes: str
) -> Preset:
    third = name.startswith("gemma-3")
    model = Transformer(name, *sizes, tied=True, layer_norms=4, qk_norm=third, window=window)
    title = name.replace("-", " ").title().replace("b", "B")
    return _row(title, billions, model, source, notes)


_GEMMA_2 = "https://arxiv.org/abs/2408.00118, tables 1 and 2"
_GEMMA_3 = "https://arxiv.org/abs/2503.19786, table 1; "
_EVERY_OTHER = "Every other layer attends only to a window of 4096 tokens."
_FIVE_OF_SIX = "Five of six layers attend only to a window; the vision encoder is left out."

# L, D, F, N, K, H, V
DENSE: tuple[Preset, ...] = (
    _gpt_3("125m", 0.125, 12, 768, 12),
    _gpt_3("350m", 0.350, 24, 1024, 16),
    _gpt_3("760m", 0.760, 24, 1536, 16),
    _gpt_3("1.3b", 1.3, 24, 2048, 16),
    _gpt_3("2.7b", 2.7, 32, 2560, 32),
    _gpt_3("6.7b", 6.7, 32, 4096, 32),
    _gpt_3("13b", 13.0, 40, 5120, 40),
    _gpt_3("175b", 175.0, 96, 12288, 96),
    _row(
        "PaLM 540B",
        540.35,
        Transformer(
            "palm-540b", 118, 18432, 73728, 48, 1, 256, 256000,
            tied=True, norm="layernorm without bias", layer_norms=1,
        ),
        "https://arxiv.org/abs/2204.02311, table 1 and section 2",
    ),
    _row(
        "GPT-NeoX 20B",
        20.55,
        Transformer("gpt-neox-20b", 44, 6144, 24576, 64, 64, 96, 50432, **_GPT),
        "https://arxiv.org/abs/2204.06745; " + config("EleutherAI/gpt-neox-20b"),
    ),
    _row(
        "BLOOM 176B",
        176.25,
        Transformer(
            "bloom-176b", 70, 14336, 57344, 112, 112, 128, 250880,
            tied=True, rope=False, embedding_norm=True, **_GPT,
        ),
        "https://arxiv.org/abs/2211.05100; " + config("bigscience/bloom"),
    ),
    _mpt("125m", 0.125, 12, 768, 12),
    _mpt("350m", 0.350, 24, 1024, 16),
    _mpt("760m", 0.760, 24, 1536, 12),
    _mpt("1b", 1.316, 24, 2048, 16),
    _mpt("3b", 2.652, 32, 2560, 20),
    _mpt("7b", 6.659, 32, 4096, 32),
    _mpt("13b", 12.854, 40, 5120, 40),
    _mpt("30b", 29.975, 48, 7168, 56),
    _mpt("70b", 64.862, 80, 8192, 64),
    _row(
        "Llama 2 7B",
        6.74,
        Transformer("llama-2-7b", 32, 4096, 11008, 32, 32, 128, 32000),
        config("meta-llama/Llama-2-7b-hf"),
    ),
    _row(
        "Llama 2 13B",
        13.02,
        Transformer("llama-2-13b", 40, 5120, 13824, 40, 40, 128, 32000),
        config("meta-llama/Llama-2-13b-hf"),
    ),
    _row(
        "Llama 2 70B",
        68.98,
        Transformer("llama-2-70b", 80, 8192, 28672, 64, 8, 128, 32000),
        config("meta-llama/Llama-2-70b-hf"),
    ),
    _row(
        "Llama 3 8B",
        8.03,
        Transformer("llama-3-8b", 32, 4096, 14336, 32, 8, 128, 128256),
        config("meta-llama/Meta-Llama-3-8B"),
    ),
    _row(
        "Llama 3 70B",
        70.55,
        Transformer("llama-3-70b", 80, 8192, 28672, 64, 8, 128, 128256),
        config("meta-llama/Meta-Llama-3-70B"),
    ),
    _row(
        "Llama 3.1 405B",
        405.85,
        Transformer("llama-3-405b", 126, 16384, 53248, 128, 8, 128, 128256),
        "https://arxiv.org/abs/2407.21783, table 3",
    ),
    _row(
        "Mistral 7B",
        7.24,
        Transformer("mistral-7b", 32, 4096, 14336, 32, 8, 128, 32000, window=Window(4096)),
        "https://arxiv.org/abs/2310.06825, table 1",
        "Attention slides over 4096 tokens.",
    ),
    _gemma(
        "gemma-2-2b", 2.61, (26, 2304, 9216, 8, 4, 256, 256128),
        Window(4096, full_every=2), _GEMMA_2, _EVERY_OTHER,
    ),
    _gemma(
        "gemma-2-9b", 9.24, (42, 3584, 14336, 16, 8, 256, 256128),
        Window(4096, full_every=2), _GEMMA_2, _EVERY_OTHER,
    ),
    _gemma(
        "gemma-2-27b", 27.23, (46, 4608, 36864, 32, 16, 128, 256128),
        Window(4096, full_every=2), _GEMMA_2, _EVERY_OTHER,
    ),
    _gemma(
        "gemma-3-1b", 1.0, (26, 1152, 6912, 4, 1, 256, 262144),
        Window(512, full_every=6), _GEMMA_3 + config("google/gemma-3-1b-pt"), _FIVE_OF_SIX,
    ),
    _gemma(
        "gemma-3-4b", 3.88, (34, 2560, 10240, 8, 4, 256, 262208),
        Window(1024, full_every=6), _GEMMA_3 + config("google/gemma-3-4b-pt"), _FIVE_OF_SIX,
    ),
    _gemma(
        "gemma-3-12b", 11.77, (48, 3840, 15360, 16, 8, 256, 262208),
        Window(1024, full_every=6), _GEMMA_3 + config("google/gemma-3-12b-pt"), _FIVE_OF_SIX,
    ),
    _gemma(
        "gemma-3-27b", 27.01, (62, 5376, 21504, 32, 16, 128, 262208),
        Window(1024, full_every=6), _GEMMA_3 + config("google/gemma-3-27b-pt"), _FIVE_OF_SIX,
    ),
    _qwen("qwen2.5", "0.5b", 0.494, (24, 896, 4864, 14, 2, 64, 151936), tied=True),
    _qwen("qwen2.5", "1.5b", 1.544, (28, 1536, 8960, 12, 2, 128, 151936), tied=True),
    _qwen("qwen2.5", "3b", 3.086, (36, 2048, 11008, 16, 2, 128, 151936), tied=True),
    _qwen("qwen2.5", "7b", 7.616, (28, 3584, 18944, 28, 4, 128, 152064)),
    _qwen("qwen2.5", "14b", 14.77, (48, 5120, 13824, 40, 8, 128, 152064)),
    _qwen("qwen2.5", "32b", 32.76, (64, 5120, 27648, 40, 8, 128, 152064)),
    _qwen("qwen2.5", "72b", 72.7, (80, 8192, 29568, 64, 8, 128, 152064)),
    _qwen("qwen3", "0.6b", 0.596, (28, 1024, 3072, 16, 8, 128, 151936), tied=True),
    _qwen("qwen3", "1.7b", 1.72, (28, 2048, 6144, 16, 8, 128, 151936), tied=True),
    _qwen("qwen3", "4b", 4.02, (36, 2560, 9728, 32, 8, 128, 151936), tied=True),
    _qwen("qwen3", "8b", 8.19, (36, 4096, 12288, 32, 8, 128, 151936)),
    _qwen("qwen3", "14b", 14.77, (40, 5120, 17408, 40, 8, 128, 151936)),
    _qwen("qwen3", "32b", 32.76, (64, 5120, 25600, 64, 8, 128, 151936)),
    _row(
        "Nemotron-4 15B",
        15.6,
        Transformer("nemotron-4-15b", 32, 6144, 24576, 48, 8, 128, 256000, **_NEMOTRON),
        "https://arxiv.org/abs/2402.16819",
        "Published as 3.2 B embedding and 12.5 B other parameters.",
    ),
    _row(
        "Nemotron-4 340B",
        341.0,
        Transformer("nemotron-4-340b", 96, 18432, 73728, 96, 8, 192, 256000, **_NEMOTRON),
        "https://arxiv.org/abs/2406.11704, table 1 and section 2.2",
        "Published as 9.4 B embedding and 331.6 B other parameters.",
    ),
)  # fmt: skip
