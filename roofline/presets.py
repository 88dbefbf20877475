"""Shapes of published models, each with the place where its numbers stand.

A preset is data for the closed forms: ``shape`` for counting, ``workload`` for the strategies. The
parameters that ``roofline.counting`` finds in it are the published ones to within ``off_by``;
``notes`` says what the closed form cannot know.
"""

from __future__ import annotations

from dataclasses import dataclass

from roofline.counting import Shape
from roofline.names import choose
from roofline.workload import Workload


@dataclass(frozen=True, slots=True)
class Preset:
    """A published model."""

    name: str
    title: str
    shape: Shape
    parameters: float  # as published
    active: float  # those that one token meets, as published
    source: str
    off_by: float = 0.01  # closed form against published, relative, at most
    notes: str = ""


def presets() -> list[str]:
    """Names of all presets."""
    return list(_PRESETS)


def preset(name: str) -> Preset:
    """The preset of this name.

    Raises:
        ValueError: when there is none, naming the nearest.

    >>> preset("llama-3-70b").shape.d_ff
    28672
    """
    return choose("model", name, _PRESETS)


def workload(name: str, tokens: float) -> Workload:
    """The MLP block of a preset and a batch of ``tokens``.

    Every layer of a mixture of experts counts as one with experts; shared experts are left out.

    Raises:
        ValueError: when there is no such preset, naming the nearest.
    """
    shape = preset(name).shape
    return Workload(
        tokens,
        shape.d_model,
        shape.d_ff,
        shape.matrices,
        experts=shape.experts,
        experts_per_token=shape.experts_per_token,
        layers=shape.layers,
    )


def _dense(
    name: str, title: str, billions: float, shape: Shape, source: str, notes: str = ""
) -> Preset:
    return Preset(name, title, shape, billions * 1e9, billions * 1e9, source, notes=notes)


def _config(repository: str) -> str:
    return f"config.json, https://huggingface.co/{repository}"


_ACTIVE = "The published active parameters leave out the embedding. "
_WINDOW = "Every other layer attends only to a window of "

_MLA = (
    "Attention is multi-head latent (MLA); the closed form counts its heads as plain ones of 128, "
    "too many parameters and far too large a cache."
)

# Shape: L, D, F, N, K, H, V
_PRESETS: dict[str, Preset] = {
    row.name: row
    for row in (
        _dense(
            "gpt-3-175b",
            "GPT-3 175B",
            175.0,
            Shape(96, 12288, 49152, 96, 96, 128, 50257, matrices=2, tied=True),
            "https://arxiv.org/abs/2005.14165, table 2.1; vocabulary of GPT-2, section 2.1",
        ),
        _dense(
            "palm-540b",
            "PaLM 540B",
            540.35,
            Shape(118, 18432, 73728, 48, 1, 256, 256000, tied=True),
            "https://arxiv.org/abs/2204.02311, table 1 and section 2",
        ),
        _dense(
            "llama-2-7b",
            "Llama 2 7B",
            6.74,
            Shape(32, 4096, 11008, 32, 32, 128, 32000),
            _config("meta-llama/Llama-2-7b-hf"),
        ),
        _dense(
            "llama-2-13b",
            "Llama 2 13B",
            13.02,
            Shape(40, 5120, 13824, 40, 40, 128, 32000),
            _config("meta-llama/Llama-2-13b-hf"),
        ),
        _dense(
            "llama-2-70b",
            "Llama 2 70B",
            68.98,
            Shape(80, 8192, 28672, 64, 8, 128, 32000),
            _config("meta-llama/Llama-2-70b-hf"),
        ),
        _dense(
            "llama-3-8b",
            "Llama 3 8B",
            8.03,
            Shape(32, 4096, 14336, 32, 8, 128, 128256),
            _config("meta-llama/Meta-Llama-3-8B"),
        ),
        _dense(
            "llama-3-70b",
            "Llama 3 70B",
            70.55,
            Shape(80, 8192, 28672, 64, 8, 128, 128256),
            _config("meta-llama/Meta-Llama-3-70B"),
        ),
        _dense(
            "llama-3-405b",
            "Llama 3.1 405B",
            405.85,
            Shape(126, 16384, 53248, 128, 8, 128, 128256),
            "https://arxiv.org/abs/2407.21783, table 3",
        ),
        _dense(
            "mistral-7b",
            "Mistral 7B",
            7.24,
            Shape(32, 4096, 14336, 32, 8, 128, 32000),
            "https://arxiv.org/abs/2310.06825, table 1",
            notes="Attention slides over 4096 tokens.",
        ),
        _dense(
            "gemma-2-9b",
            "Gemma 2 9B",
            9.24,
            Shape(42, 3584, 14336, 16, 8, 256, 256128, tied=True, norms=4 * 42 + 1),
            "https://arxiv.org/abs/2408.00118, tables 1 and 2",
            notes=_WINDOW + "4096 tokens.",
        ),
        _dense(
            "gemma-2-27b",
            "Gemma 2 27B",
            27.23,
            Shape(46, 4608, 36864, 32, 16, 128, 256128, tied=True, norms=4 * 46 + 1),
            "https://arxiv.org/abs/2408.00118, tables 1 and 2",
            notes=_WINDOW + "4096 tokens.",
        ),
        _dense(
            "qwen2.5-72b",
            "Qwen2.5 72B",
            72.7,
            Shape(80, 8192, 29568, 64, 8, 128, 152064),
            _config("Qwen/Qwen2.5-72B"),
        ),
        _dense(
            "nemotron-4-340b",
            "Nemotron-4 340B",
            341.0,
            Shape(96, 18432, 73728, 96, 8, 192, 256000, matrices=2),
            "https://arxiv.org/abs/2406.11704, table 1 and section 2.2",
            notes="Published as 9.4 B embedding and 331.6 B other parameters.",
        ),
        Preset(
            "mixtral-8x7b",
            "Mixtral 8x7B",
            Shape(32, 4096, 14336, 32, 8, 128, 32000, experts=8, experts_per_token=2),
            46.7e9,
            12.9e9,
            "https://arxiv.org/abs/2401.04088, table 1",
        ),
        Preset(
            "mixtral-8x22b",
            "Mixtral 8x22B",
            Shape(56, 6144, 16384, 48, 8, 128, 32768, experts=8, experts_per_token=2),
            141e9,
            39e9,
            _config("mistralai/Mixtral-8x22B-Instruct-v0.1"),
        ),
        Preset(
            "dbrx",
            "DBRX",
            Shape(40, 6144, 10752, 48, 8, 128, 100352, experts=16, experts_per_token=4),
            132e9,
            36e9,
            _config("databricks/dbrx-base"),
        ),
        Preset(
            "grok-1",
            "Grok-1",
            Shape(64, 6144, 32768, 48, 8, 128, 131072, experts=8, experts_per_token=2, tied=True),
            314e9,
            86e9,
            "https://github.com/xai-org/grok-1, run.py",
            off_by=0.03,
            notes="Published as 314 B with 86 B active, rounded.",
        ),
        Preset(
            "qwen3-30b-a3b",
            "Qwen3 30B-A3B",
            Shape(48, 2048, 768, 32, 4, 128, 151936, experts=128, experts_per_token=8),
            30.5e9,
            3.3e9,
            _config("Qwen/Qwen3-30B-A3B"),
            off_by=0.02,
        ),
        Preset(
            "qwen3-235b-a22b",
            "Qwen3 235B-A22B",
            Shape(94, 4096, 1536, 64, 4, 128, 151936, experts=128, experts_per_token=8),
            235e9,
            22e9,
            _config("Qwen/Qwen3-235B-A22B"),
        ),
        Preset(
            "gpt-oss-20b",
            "gpt-oss 20B",
            Shape(24, 2880, 2880, 64, 8, 64, 201088, experts=32, experts_per_token=4),
            20.91e9,
            3.61e9,
            "https://arxiv.org/abs/2508.10925, table 1; " + _config("openai/gpt-oss-20b"),
            notes=_ACTIVE + _WINDOW + "128 tokens.",
        ),
        Preset(
            "gpt-oss-120b",
            "gpt-oss 120B",
            Shape(36, 2880, 2880, 64, 8, 64, 201088, experts=128, experts_per_token=4),
            116.83e9,
            5.13e9,
            "https://arxiv.org/abs/2508.10925, table 1; " + _config("openai/gpt-oss-120b"),
            notes=_ACTIVE + _WINDOW + "128 tokens.",
        ),
        Preset(
            "deepseek-v3",
            "DeepSeek-V3",
            Shape(
                61,
                7168,
                2048,
                128,
                128,
                128,
                129280,
                experts=256,
                experts_per_token=8,
                shared_experts=1,
                dense_layers=3,
                dense_d_ff=18432,
            ),
            671e9,
            37e9,
            "https://arxiv.org/abs/2412.19437, section 4.2; " + _config("deepseek-ai/DeepSeek-V3"),
            off_by=0.03,
            notes=_MLA,
        ),
        Preset(
            "kimi-k2",
            "Kimi K2",
            Shape(
                61,
                7168,
                2048,
                64,
                64,
                128,
                163840,
                experts=384,
                experts_per_token=8,
                shared_experts=1,
                dense_layers=1,
                dense_d_ff=18432,
            ),
            1.04e12,
            32.6e9,
            "https://arxiv.org/abs/2507.20534, table 2; " + _config("moonshotai/Kimi-K2-Base"),
            off_by=0.02,
            notes=_MLA,
        ),
    )
}
