"""Configurations of Hugging Face models, family by family, as a Transformer.

Each family names its sizes in its own way and has habits that its configuration does not state (a
norm more, a bias, a window in every other layer): a function each. Vision towers and quantization
are left out.

Source: the configuration and modeling files of https://github.com/huggingface/transformers,
src/transformers/models; llm-foundry for mpt; https://github.com/xai-org/grok-1 for grok-1.
"""

from __future__ import annotations

from collections.abc import Callable

from roofline.model import Transformer
from roofline.models import families_dense, families_moe
from roofline.models.families_common import llama
from roofline.models.fields import Fields
from roofline.names import choose


def transformer(config: Fields, name: str = "") -> Transformer:
    """The model that a configuration describes.

    Args:
        config: its fields, as in ``config.json``.
        name: of the model; by default what the configuration calls itself.

    Raises:
        ValueError: an unknown ``model_type``, or a field that is missing, of a wrong type, or
            does not fit the others; the message names it.
    """
    family = config.text("model_type")
    read = choose(config.named("model_type"), family, FAMILIES)
    if family in WITH_VISION and config.has("text_config"):
        config = config.section("text_config")
    called = name or config.text("_name_or_path", family) or family
    return config.explain(lambda: read(config, called))


WITH_VISION = ("gemma3", "llama4")

FAMILIES: dict[str, Callable[[Fields, str], Transformer]] = {
    "bloom": families_dense.bloom,
    "deepseek_v2": families_moe.deepseek,
    "deepseek_v3": families_moe.deepseek,
    "gemma": families_dense.gemma,
    "gemma2": families_dense.gemma2,
    "gemma3": families_dense.gemma3,
    "gemma3_text": families_dense.gemma3,
    "gpt2": families_dense.gpt2,
    "gpt_neox": families_dense.gpt_neox,
    "gpt_oss": families_moe.gpt_oss,
    "grok-1": families_moe.grok,
    "kimi_k2": families_moe.deepseek,
    "llama": llama,
    "llama4": families_moe.llama4,
    "llama4_text": families_moe.llama4,
    "mistral": families_dense.mistral,
    "mixtral": families_moe.mixtral,
    "mpt": families_dense.mpt,
    "nemotron": families_dense.nemotron,
    "qwen2": families_dense.qwen2,
    "qwen2_moe": families_moe.qwen2_moe,
    "qwen3": families_dense.qwen3,
    "qwen3_moe": families_moe.qwen3_moe,
}
