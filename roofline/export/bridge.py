"""Megatron-Bridge, and NeMo recipes on top of it: overrides of a recipe's configuration.

Sizes and degrees stand under ``model``, batches under ``train``, data parallelism under ``ddp``,
overlap under ``comm_overlap``; precision is the name of a preset. A file of overrides changes a
recipe: sizes that it does not state are the recipe's.

Names: NVIDIA-NeMo/Megatron-Bridge, guide "Megatron-LM to Megatron Bridge" at bf0e913d (nightly of
summer 2026), and the API documentation of ``mixed_precision`` and ``comm_overlap``.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Any

import yaml

from roofline.export import core
from roofline.export.fields import Fields, default_recipe
from roofline.export.rows import Options, Row, read, written
from roofline.export.shell import words

GROUPS = {  # of configuration, and the options of Megatron-Core in each
    "train": "micro_batch_size global_batch_size",
    "ddp": """use_distributed_optimizer overlap_grad_reduce overlap_param_gather use_megatron_fsdp
        data_parallel_sharding_strategy num_distributed_optimizer_instances""",
    "comm_overlap": "tp_comm_overlap overlap_moe_expert_parallel_comm",
    "dist": "use_torch_fsdp2 use_tp_pp_dp_mapping",
    "model": """num_layers hidden_size ffn_hidden_size num_attention_heads num_query_groups
        kv_channels vocab_size make_vocab_size_divisible_by should_pad_vocab gated_linear_unit
        activation_func share_embeddings_and_output_weights position_embedding_type
        max_position_embeddings add_bias_linear add_qkv_bias normalization qk_layernorm softmax_type
        multi_latent_attention q_lora_rank kv_lora_rank qk_head_dim qk_pos_emb_head_dim v_head_dim
        window_size window_attn_skip_freq num_moe_experts moe_router_topk moe_ffn_hidden_size
        moe_shared_expert_intermediate_size moe_shared_expert_gate moe_router_enable_expert_bias
        moe_expert_capacity_factor moe_pad_expert_input_to_capacity moe_layer_freq mtp_num_layers
        moe_grouped_gemm tensor_model_parallel_size pipeline_model_parallel_size
        virtual_pipeline_model_parallel_size context_parallel_size cp_comm_type
        expert_model_parallel_size expert_tensor_parallel_size sequence_parallel seq_length
        account_for_embedding_in_pipeline_split account_for_loss_in_pipeline_split
        num_layers_in_first_pipeline_stage num_layers_in_last_pipeline_stage
        pipeline_model_parallel_layout overlap_p2p_comm recompute_granularity recompute_method
        recompute_num_layers recompute_modules cpu_offloading cpu_offloading_num_layers
        moe_token_dispatcher_type moe_flex_dispatcher_backend moe_router_num_groups
        moe_router_group_topk attention_backend attention_dropout hidden_dropout cuda_graph_impl
        cuda_graph_modules cuda_graph_scope cross_entropy_loss_fusion cross_entropy_fusion_impl""",
}
KEYS = {name: f"{group}.{name}" for group, names in GROUPS.items() for name in names.split()}
KEYS["mixed_precision"] = "mixed_precision"
TWICE = {  # kept the same in two places
    "model.seq_length": "dataset.seq_length",
    "ddp.use_distributed_optimizer": "optimizer.use_distributed_optimizer",
    "ddp.use_megatron_fsdp": "dist.use_megatron_fsdp",
}
KNOWN = {key: name for name, key in KEYS.items()} | {
    second: KEYS[first.partition(".")[2]] for first, second in TWICE.items()
}
PRESETS = {
    "bf16": "bf16_mixed",
    "fp16": "fp16_mixed",
    "fp8": "bf16_with_fp8_current_scaling_mixed",
    "mxfp8": "bf16_with_mxfp8_mixed",
    "nvfp4": "bf16_with_nvfp4_mixed",
}
REDUCE = ("mixed_precision.grad_reduce_in_fp32", "ddp.grad_reduce_in_fp32")  # on in bf16 presets
WORDS = ("mxfp8", "nvfp4", "fp8", "bf16")  # of a preset's name, the most telling first
PYTHON = re.compile(r"^\s*(?:cfg|config|recipe|conf)\.([\w.]+)\s*=\s*(.+?)\s*$", re.MULTILINE)


def _read_precision(o: Options, f: Fields) -> Fields:
    preset = o.text("mixed_precision", "bf16_mixed")
    found = next((word for word in WORDS if word in preset), "")
    if not found:
        if "16" not in preset:
            o.refuse("mixed_precision", preset, ", ".join(PRESETS.values()))
        found = "fp16"
    long = [o.flag(name, found != "fp16") for name in REDUCE]
    bytes_of = {"layout.gradient_bytes": 4 if all(long) else 2, "layout.weight_bytes": 2}
    return {"precision": found, "recipe": default_recipe(found, not all(long))} | bytes_of


PRECISION = Row(
    lambda f: {"mixed_precision": PRESETS.get(f["precision"], "bf16_mixed")}, _read_precision
)
ROWS = (*core.ROWS, PRECISION)


def overrides(fields: Fields) -> list[str]:
    """Overrides, ``key=value`` each."""
    options = written(ROWS, fields) | {"global_batch_size": fields["layout.batch"]}
    if options.get("make_vocab_size_divisible_by", 1) > 1:
        options["should_pad_vocab"] = True
    lines = []
    for name, value in options.items():
        if name in KEYS:
            shown = _shown(value)
            lines.append(f"{KEYS[name]}={shown}")
            if KEYS[name] in TWICE:
                lines.append(f"{TWICE[KEYS[name]]}={shown}")
    return lines


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(map(str, value))}]"
    return str(value)


def write(fields: Fields, notes: Sequence[str] = ()) -> str:
    """A script that starts a recipe with these overrides on every node."""
    gpus = int(fields["layout.gpus"])
    each = min(gpus, int(fields.get("node", 8)))
    each = each if gpus % each == 0 else 1
    start = [
        f"torchrun --nnodes={gpus // each} --nproc-per-node={each} scripts/training/run_recipe.py",
        '--recipe "$RECIPE" --mode pretrain',
    ]
    lines = [shlex.quote(one) for one in overrides(fields)]
    head = ["#!/bin/bash", "# RECIPE: a recipe of the model's family; its data and optimizer stay"]
    body = " \\\n    ".join([*start, *lines])
    return "\n".join([*head, *(f"# {note}" for note in notes), body, ""])


def read_text(text: str, gpus: int | None = None) -> tuple[Fields, Options]:
    """Fields of pasted overrides or of lines ``cfg.model.… = …``, and what is left.

    Raises:
        ValueError: a key given twice with two values, or a value that cannot be.
    """
    from roofline.export.megatron import LAUNCHED, launched, parsed

    lines = PYTHON.findall(text)
    line = [] if lines else words(text, keep=("mixed_precision",))
    pairs = lines or [_pair(word) for word in line if _is_pair(word)]
    values: dict[str, Any] = {}
    for key, shown in pairs:
        name, value = KNOWN.get(key, key), _value(shown)
        name = name.partition(".")[2] if key in TWICE.values() else name
        if name in values and values[name] != value:
            both = f"{key} = {values[name]} and {key} = {value}"
            raise ValueError(f"{both} contradict each other; allowed: one of them")
        values[name] = value
    command = parsed([word for word in line if not _is_pair(word)])
    values |= {name: value for name, value in command.items() if name not in LAUNCHED}
    launch = {name: value for name, value in command.items() if name in LAUNCHED}
    options = Options(values, lambda name: KEYS.get(name, name))
    if not options.left.get("should_pad_vocab") and "vocab_size" in options:
        options.left["padded_vocab_size"] = options.left.pop("vocab_size")
    options.take("should_pad_vocab")
    if (recipe := options.take("--recipe")) is not None:
        options.leave("--recipe", recipe, "what the text does not state is as this recipe has it")
    found = read(ROWS, options, launched(launch, gpus))
    return core.batch(options, found), options


def _is_pair(word: str) -> bool:
    return "=" in word and not word.startswith("-")


def _pair(word: str) -> tuple[str, str]:
    key, _, value = word.partition("=")
    return key.lstrip("+~"), value


def _value(shown: str) -> Any:
    plain = shown.split("  #")[0].strip()
    try:
        value = yaml.safe_load(plain)
    except yaml.YAMLError:
        return plain
    return None if value == "None" else value
