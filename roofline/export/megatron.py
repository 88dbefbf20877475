"""Megatron-LM: arguments of ``pretrain_gpt.py``, as a list and as a shell script with torchrun.

An argument is Megatron-Core's name with hyphens, but for the few of ``RENAMED`` and ``INVERTED``.
What this calculator does not decide (data, tokenizer, learning rate, checkpoints) is left to
``"$@"``.

Names: NVIDIA/Megatron-LM, ``megatron/training/arguments.py`` at 000c4ac2 (late 2025), checked
against the functional tests of the main branch of summer 2026 (61874f77, 1c3b5080), where CUDA
graphs are chosen by ``--cuda-graph-modules``; the older ``--cuda-graph-scope``, and arguments that
were replaced (``--num-layers-per-virtual-pipeline-stage``), are read as well.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from roofline.export import core
from roofline.export.fields import Fields, default_recipe
from roofline.export.rows import Options, Row, as_number, read, written
from roofline.export.shell import END, words


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


RENAMED = {
    "num_moe_experts": "--num-experts",
    "virtual_pipeline_model_parallel_size": "--num-virtual-stages-per-pipeline-rank",
    "num_layers_in_first_pipeline_stage": "--decoder-first-pipeline-num-layers",
    "num_layers_in_last_pipeline_stage": "--decoder-last-pipeline-num-layers",
    "gated_linear_unit": "--swiglu",
}
INVERTED = {  # the flag says no
    "share_embeddings_and_output_weights": "--untie-embeddings-and-output-weights",
    "add_bias_linear": "--disable-bias-linear",
    "overlap_p2p_comm": "--no-overlap-p2p-communication",
    "torch_fsdp2_reshard_after_forward": "--torch-fsdp2-no-reshard-after-forward",
}
FLAGS = _names("""
    gated_linear_unit quick_geglu group_query_attention add_qkv_bias multi_latent_attention
    qk_layernorm sequence_parallel use_distributed_optimizer use_megatron_fsdp use_torch_fsdp2
    overlap_grad_reduce overlap_param_gather tp_comm_overlap moe_enable_deepep moe_grouped_gemm
    moe_pad_expert_input_to_capacity moe_shared_expert_gate moe_router_enable_expert_bias
    overlap_moe_expert_parallel_comm cross_entropy_loss_fusion use_precision_aware_optimizer
    account_for_embedding_in_pipeline_split account_for_loss_in_pipeline_split enable_cuda_graph
    use_rotary_position_embeddings use_tp_pp_dp_mapping bf16 fp16 fp8_param_gather grad_reduce_in_bf16
    accumulate_allreduce_grads_in_fp32
""")
VALUES = _names("""
    num_layers hidden_size ffn_hidden_size num_attention_heads num_query_groups kv_channels
    vocab_size padded_vocab_size make_vocab_size_divisible_by max_position_embeddings
    position_embedding_type normalization softmax_type window_size window_attn_skip_freq
    num_moe_experts moe_router_topk moe_ffn_hidden_size moe_shared_expert_intermediate_size
    moe_layer_freq moe_expert_capacity_factor mtp_num_layers q_lora_rank kv_lora_rank qk_head_dim
    qk_pos_emb_head_dim v_head_dim tensor_model_parallel_size pipeline_model_parallel_size
    virtual_pipeline_model_parallel_size num_layers_per_virtual_pipeline_stage
    num_layers_in_first_pipeline_stage num_layers_in_last_pipeline_stage
    pipeline_model_parallel_layout context_parallel_size cp_comm_type expert_model_parallel_size
    expert_tensor_parallel_size micro_batch_size global_batch_size seq_length
    data_parallel_sharding_strategy num_distributed_optimizer_instances recompute_granularity
    recompute_method recompute_num_layers recompute_modules cpu_offloading_num_layers
    moe_token_dispatcher_type moe_flex_dispatcher_backend moe_router_num_groups
    moe_router_group_topk attention_backend attention_dropout hidden_dropout cuda_graph_impl
    cuda_graph_modules cuda_graph_scope cross_entropy_fusion_impl exp_avg_dtype exp_avg_sq_dtype
    fp8_format fp8_recipe fp4_format fp4_recipe
""")
SEVERAL = ("recompute_modules", "cp_comm_type", "cuda_graph_modules", "cuda_graph_scope")
EVERYTHING = ("$@", "$*")  # what the script itself is given
LAUNCHER = {"node-rank", "master-addr", "master-port", "standalone"}
LAUNCHED = ("nnodes", "nproc-per-node")
NARROW = {"fp8": ("fp8", "tensorwise"), "mxfp8": ("fp8", "mxfp8"), "nvfp4": ("fp4", "nvfp4")}
FORMATS = {"fp8": "hybrid", "fp4": "e2m1"}
SLURM = re.compile(r"^#SBATCH\s+(?:--|-)([\w-]+)[= ]\s*(?:gpu:(?:\w+:)?)?(\d+)", re.MULTILINE)


def argument(name: str) -> str:
    """The argument that sets an option of Megatron-Core.

    >>> argument("num_moe_experts"), argument("add_bias_linear")
    ('--num-experts', '--disable-bias-linear')
    """
    plain = "--" + name.replace("_", "-")
    return RENAMED.get(name) or INVERTED.get(name) or plain


NAMES = {*FLAGS, *INVERTED, *VALUES}
KNOWN = {argument(name): name for name in (*FLAGS, *INVERTED, *VALUES)}


def _write_precision(f: Fields) -> Fields:
    half = "fp16" if f["precision"] == "fp16" else "bf16"
    found: Fields = {half: True}
    kind, recipe = NARROW.get(f["precision"], ("", ""))
    if kind:
        found |= {f"{kind}_format": FORMATS[kind], f"{kind}_recipe": recipe}
    if kind == "fp8" and f.get("layout.weight_bytes") == 1:
        found["fp8_param_gather"] = True
    short = f.get("layout.gradient_bytes", 2) == 2
    if half == "bf16":
        return found | ({"grad_reduce_in_bf16": True} if short else {})
    return found | ({} if short else {"accumulate_allreduce_grads_in_fp32": True})


def _read_precision(o: Options, f: Fields) -> Fields:
    o.clash("bf16", "fp16")
    o.clash("fp8_format", "fp4_format")
    half = "fp16" if o.flag("fp16") else "bf16"
    single = not o.flag("bf16") and half == "bf16"
    eight, four = o.text("fp8_format"), o.text("fp4_format")
    recipes = [o.text("fp8_recipe", "delayed"), o.text("fp4_recipe", "nvfp4")]
    gathered = o.flag("fp8_param_gather") and bool(eight)
    long, short = o.flag("accumulate_allreduce_grads_in_fp32"), o.flag("grad_reduce_in_bf16")
    precision = half
    if eight:
        precision = "mxfp8" if recipes[0] == "mxfp8" else "fp8"
    elif four:
        precision = "nvfp4"
    if single:
        told = "precision = bf16; the file trains in fp32"
        if eight or four:
            told = f"bf16 beside the matmuls in {precision}; the file has fp32 there"
        o.assumed.append(f"{told}, which is not modelled")
    wide = long if half == "fp16" else not short
    return {
        "precision": precision,
        "layout.gradient_bytes": 4 if wide else 2,
        "layout.weight_bytes": 1 if gathered else 2,
        "recipe": "fp8-weights" if gathered else default_recipe(precision, not wide),
    }


ROWS = (*core.ROWS, Row(_write_precision, _read_precision), core.MOMENTS)


def arguments(fields: Fields) -> list[str]:
    """Arguments of ``pretrain_gpt.py``, one word each.

    >>> arguments({"layout.tp": 8, "layout.pp": 1, "layout.gpus": 8, "precision": "bf16"})[:2]
    ['--tensor-model-parallel-size', '8']
    """
    return [word for line in _lines(fields) for word in line]


def _lines(fields: Fields) -> list[list[str]]:
    options = written(ROWS, fields)
    if "layout.batch" in fields:
        options["global_batch_size"] = fields["layout.batch"]
    lines = []
    for name, value in options.items():
        if name in INVERTED:
            lines += [] if value else [[argument(name)]]
        elif name in FLAGS:
            lines += [[argument(name)]] if value else []
        elif name in VALUES:
            lines.append([argument(name), *_shown(name, value)])
        if name == "num_query_groups":
            lines.append(["--group-query-attention"])
    return lines


def _shown(name: str, value: Any) -> list[str]:
    if name == "moe_layer_freq":
        return [_runs(value)]
    if name in SEVERAL and isinstance(value, list):
        return [str(one) for one in value]
    return [",".join(map(str, value)) if isinstance(value, list) else str(value)]


def _runs(pattern: Sequence[int]) -> str:
    """A pattern of layers, runs of equal ones joined: ([0]*3+[1]*58)."""
    runs: list[list[int]] = []
    for one in pattern:
        if runs and runs[-1][0] == one:
            runs[-1][1] += 1
        else:
            runs.append([one, 1])
    return "(" + "+".join(f"[{one}]*{count}" for one, count in runs) + ")"


def write(fields: Fields, notes: Sequence[str] = ()) -> str:
    """A script that starts the job on every node."""
    gpus = int(fields["layout.gpus"])
    each = min(gpus, int(fields.get("node", 8)))
    each = each if gpus % each == 0 else 1
    nodes = gpus // each
    where = ""
    if nodes > 1:
        where = (
            ' --node-rank "$NODE_RANK" --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT"'
        )
    start = f"torchrun --nnodes {nodes} --nproc-per-node {each}{where} pretrain_gpt.py"
    lines = [" ".join(shlex.quote(word) for word in line) for line in _lines(fields)]
    head = ["#!/bin/bash", *(f"# {note}" for note in notes)]
    if fields.get("layout.zero", 0) < 2:
        head.append("export CUDA_DEVICE_MAX_CONNECTIONS=1")
    last = '"$@"  # data, tokenizer, optimizer, checkpoints'
    return "\n".join([*head, " \\\n    ".join([start, *lines, last]), ""])


def read_text(text: str, gpus: int | None = None) -> tuple[Fields, Options]:
    """Fields of a pasted script or list of arguments, and the options that are left.

    Raises:
        ValueError: an argument given twice with two values, a flag with a value, a value that
            cannot be.
    """
    given = parsed(words(text))
    launch = dict(SLURM.findall(text)) | {n: v for n, v in given.items() if n in LAUNCHED}
    values = {KNOWN.get(name, name): v for name, v in given.items() if name not in LAUNCHED}
    for name in INVERTED:
        if name in values:
            values[name] = False
    values.setdefault("group_query_attention", False)
    options = Options(values, lambda name: argument(name) if name in NAMES else name)
    found = read(ROWS, options, launched(launch, gpus))
    return core.batch(options, found), options


def launched(launch: Mapping[str, Any], gpus: int | None = None) -> Fields:
    """GPUs and nodes, as torchrun or Slurm are told; ``gpus`` where they are told nothing."""
    number = {name: as_number(value) for name, value in launch.items()}
    each = number.get("nproc-per-node") or number.get("gpus-per-node") or number.get("gres")
    each = each or number.get("ntasks-per-node")
    nodes = number.get("nnodes") or number.get("nodes") or number.get("N")
    if not each:
        return {"layout.gpus": gpus} if gpus else {}
    return {"layout.gpus": int(each * (nodes or 1)), "node": int(each)}


def parsed(line: Sequence[str]) -> dict[str, Any]:
    """Options of a command: what is Megatron's with ``--``, what is the launcher's without.

    Raises:
        ValueError: an option with two values, or a flag with one.
    """
    found: dict[str, Any] = {}
    at = 0
    while at < len(line):
        word, at = line[at], at + 1
        if not word.startswith("--") or word == "--":
            continue
        name, equals, value = word.partition("=")
        values = [value] if equals else []
        flag = _flag(KNOWN.get(name))
        while not equals and at < len(line) and not _new(line[at]):
            if line[at].startswith("$") and (flag or values):
                found |= {} if line[at] in EVERYTHING else {line[at]: None}
            else:
                values.append(line[at])
            at += 1
        _put(found, name, values)
    return found


def _flag(option: str | None) -> bool:
    return option in FLAGS or option in INVERTED


def _new(word: str) -> bool:
    return word.startswith("--") or word in END or word.endswith(".py") or word == "-m"


def _put(found: dict[str, Any], name: str, values: list[str]) -> None:
    launcher = name[2:].replace("_", "-")
    if launcher in LAUNCHER:
        return
    if launcher in LAUNCHED:
        name = launcher
    option = KNOWN.get(name)
    if _flag(option) and values:
        raise ValueError(f"{name}: {values[0]!r} is refused; allowed: nothing, it is a flag")
    if option in VALUES and not values:
        raise ValueError(f"{name}: no value is given; allowed: one")
    several = option in SEVERAL or (option is None and len(values) > 1)
    value = True if not values else values if several else values[0]
    if option in VALUES and not several and len(values) > 1:
        raise ValueError(f"{name}: {' '.join(values)[:60]!r} is refused; allowed: one value")
    if name in found and found[name] != value:
        both = f"{name} = {found[name]} and {name} = {value}"
        raise ValueError(f"{both} contradict each other; allowed: one of them")
    found[name] = value
