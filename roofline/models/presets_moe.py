"""Published mixtures of experts: a row each, with the place where its numbers stand."""

from __future__ import annotations

from roofline.model import Experts, Latent, Transformer, Window
from roofline.models.preset import Preset, config

_ACTIVE = "The published active parameters leave out the embedding. "
_SINKS = _ACTIVE + "Every other layer attends only to a window of 128 tokens."
_MLA = (
    "Attention is multi-head latent (MLA); the closed form counts its heads as plain ones of 128, "
    "too many parameters and far too large a cache."
)
_CHUNKS = "Three of four layers attend within chunks of 8192 tokens; vision is left out."


def _llama_4(name: str, experts: int, every: int) -> Transformer:
    return Transformer(
        name, 48, 5120, 16384, 40, 8, 128, 202048,
        window=Window(8192, full_every=4, chunked=True),
        experts=Experts(experts, 1, 8192, shared_d_ff=8192, every=every),
    )  # fmt: skip


def _gpt_oss(name: str, layers: int, experts: int) -> Transformer:
    return Transformer(
        name, layers, 2880, 0, 64, 8, 64, 201088,
        qkv_bias=True, output_bias=True, mlp_bias=True, sinks=True,
        window=Window(128, full_every=2),
        experts=Experts(experts, 4, 2880, router_bias=True),
    )  # fmt: skip


# L, D, F (of dense layers), N, K, H, V
MIXTURES: tuple[Preset, ...] = (
    Preset(
        "Mixtral 8x7B",
        Transformer("mixtral-8x7b", 32, 4096, 0, 32, 8, 128, 32000, experts=Experts(8, 2, 14336)),
        46.7e9,
        12.9e9,
        "https://arxiv.org/abs/2401.04088, table 1",
    ),
    Preset(
        "Mixtral 8x22B",
        Transformer("mixtral-8x22b", 56, 6144, 0, 48, 8, 128, 32768, experts=Experts(8, 2, 16384)),
        141e9,
        39e9,
        config("mistralai/Mixtral-8x22B-Instruct-v0.1"),
    ),
    Preset(
        "DBRX",
        Transformer(
            "dbrx", 40, 6144, 0, 48, 8, 128, 100352,
            norm="layernorm without bias", experts=Experts(16, 4, 10752),
        ),
        132e9,
        36e9,
        config("databricks/dbrx-base"),
    ),
    Preset(
        "Grok-1",
        Transformer(
            "grok-1", 64, 6144, 0, 48, 8, 128, 131072,
            tied=True, layer_norms=4, experts=Experts(8, 2, 32768),
        ),
        314e9,
        86e9,
        "https://github.com/xai-org/grok-1, run.py",
        off_by=0.03,
        notes="Published as 314 B with 86 B active, rounded.",
    ),
    Preset(
        "Llama 4 Scout",
        _llama_4("llama-4-scout", 16, 1),
        109e9,
        17e9,
        config("meta-llama/Llama-4-Scout-17B-16E"),
        off_by=0.02,
        notes=_CHUNKS,
    ),
    Preset(
        "Llama 4 Maverick",
        _llama_4("llama-4-maverick", 128, 2),
        400e9,
        17e9,
        config("meta-llama/Llama-4-Maverick-17B-128E"),
        off_by=0.02,
        notes=_CHUNKS,
    ),
    Preset(
        "Qwen3 30B-A3B",
        Transformer(
            "qwen3-30b-a3b", 48, 2048, 0, 32, 4, 128, 151936,
            qk_norm=True, experts=Experts(128, 8, 768),
        ),
        30.5e9,
        3.3e9,
        config("Qwen/Qwen3-30B-A3B"),
        off_by=0.02,
    ),
    Preset(
        "Qwen3 235B-A22B",
        Transformer(
            "qwen3-235b-a22b", 94, 4096, 0, 64, 4, 128, 151936,
            qk_norm=True, experts=Experts(128, 8, 1536),
        ),
        235e9,
        22e9,
        config("Qwen/Qwen3-235B-A22B"),
    ),
    Preset(
        "gpt-oss 20B",
        _gpt_oss("gpt-oss-20b", 24, 32),
        20.91e9,
        3.61e9,
        "https://arxiv.org/abs/2508.10925, table 1; " + config("openai/gpt-oss-20b"),
        notes=_SINKS,
    ),
    Preset(
        "gpt-oss 120B",
        _gpt_oss("gpt-oss-120b", 36, 128),
        116.83e9,
        5.13e9,
        "https://arxiv.org/abs/2508.10925, table 1; " + config("openai/gpt-oss-120b"),
        notes=_SINKS,
    ),
    Preset(
        "DeepSeek-V2-Lite",
        Transformer(
            "deepseek-v2-lite", 27, 2048, 10944, 16, 16, 128, 102400,
            latent=Latent(0, 512, 128, 64, 128),
            experts=Experts(64, 6, 1408, shared_d_ff=2 * 1408, first=1),
        ),
        15.7e9,
        2.4e9,
        "https://arxiv.org/abs/2405.04434, appendix B; " + config("deepseek-ai/DeepSeek-V2-Lite"),
        off_by=0.03,
        notes=_MLA + " " + _ACTIVE,
    ),
    Preset(
        "DeepSeek-V2",
        Transformer(
            "deepseek-v2", 60, 5120, 12288, 128, 128, 128, 102400,
            latent=Latent(1536, 512, 128, 64, 128),
            experts=Experts(160, 6, 1536, shared_d_ff=2 * 1536, first=1),
        ),
        236e9,
        21e9,
        "https://arxiv.org/abs/2405.04434, section 3.1; " + config("deepseek-ai/DeepSeek-V2"),
        off_by=0.06,
        notes=_MLA,
    ),
    Preset(
        "DeepSeek-V3",
        Transformer(
            "deepseek-v3", 61, 7168, 18432, 128, 128, 128, 129280,
            latent=Latent(1536, 512, 128, 64, 128),
            experts=Experts(256, 8, 2048, shared_d_ff=2048, first=3, router_bias=True),
            mtp=1,
        ),
        671e9,
        37e9,
        "https://arxiv.org/abs/2412.19437, section 4.2; " + config("deepseek-ai/DeepSeek-V3"),
        off_by=0.03,
        notes=_MLA + " The MTP module comes on top of the published parameters.",
    ),
    Preset(
        "Kimi K2",
        Transformer(
            "kimi-k2", 61, 7168, 18432, 64, 64, 128, 163840,
            latent=Latent(1536, 512, 128, 64, 128),
            experts=Experts(384, 8, 2048, shared_d_ff=2048, first=1, router_bias=True),
        ),
        1.04e12,
        32.6e9,
        "https://arxiv.org/abs/2507.20534, table 2; " + config("moonshotai/Kimi-K2-Base"),
        off_by=0.02,
        notes=_MLA,
    ),
)  # fmt: skip
