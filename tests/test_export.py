"""Launch files: names and kinds of options as the frameworks document them, and back again.

The tables here are taken from the frameworks' sources and documentation, not from the writers.
"""

import argparse
import json
import math
import shutil
import subprocess
import tomllib
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hardware_profiles import cluster
from roofline.constraints import misfits
from roofline.dims import Dims
from roofline.export import FORMATS, Description, export, load
from roofline.export.fields import default_recipe, differences, flat
from roofline.export.megatron import arguments
from roofline.export.shell import words
from roofline.layout import FLASH, ORDER, OVERLAP, RECOMPUTE, RING, SCHEDULE, ZERO_KIND, Layout
from roofline.planner import holding
from roofline.presets import preset, presets
from roofline.recipes import RECIPES, recipe
from roofline.training import Training, training

READABLE = [name for name in FORMATS if name != "trace"]
H100 = cluster("dgx-h100-superpod")
FEW = settings(max_examples=40, deadline=None)


def job(name: str, layout: Layout, precision: str = "bf16", **more: Any) -> Training:
    gpus = int(np.max(layout.gpus))
    return training(preset(name).model, layout, holding(H100, gpus), precision, **more)


def changed(first: Training, second: Description) -> dict[str, Any]:
    """Fields that came back with another value; a file may mean a layout that cannot be."""
    sizes = first.model if second.model is None else second.model
    kept = RECIPES[second.recipe] if isinstance(second.recipe, str) else second.recipe
    said = replace(
        first, model=sizes, layout=second.layout, precision=second.precision, recipe=kept
    )
    return differences(flat(first), flat(said))


# Megatron-LM, megatron/training/arguments.py and the model_config.yaml files of its functional
# tests: flags without a value, and arguments with the type of theirs.
FLAGS = """
--swiglu --untie-embeddings-and-output-weights --disable-bias-linear --add-qkv-bias --qk-layernorm
--group-query-attention --multi-latent-attention --sequence-parallel --use-distributed-optimizer
--use-megatron-fsdp --overlap-grad-reduce --overlap-param-gather --tp-comm-overlap
--no-overlap-p2p-communication --account-for-embedding-in-pipeline-split
--account-for-loss-in-pipeline-split --moe-grouped-gemm --moe-router-enable-expert-bias
--moe-shared-expert-gate --moe-pad-expert-input-to-capacity --overlap-moe-expert-parallel-comm
--cross-entropy-loss-fusion --use-precision-aware-optimizer --bf16 --fp16 --fp8-param-gather
--use-tp-pp-dp-mapping
--grad-reduce-in-bf16 --accumulate-allreduce-grads-in-fp32
""".split()  # noqa: SIM905
WHOLE = """
--num-layers --hidden-size --ffn-hidden-size --num-attention-heads --num-query-groups --kv-channels
--vocab-size --make-vocab-size-divisible-by --max-position-embeddings --num-experts
--moe-router-topk --moe-ffn-hidden-size --moe-shared-expert-intermediate-size --mtp-num-layers
--q-lora-rank --kv-lora-rank --qk-head-dim --qk-pos-emb-head-dim --v-head-dim
--tensor-model-parallel-size --pipeline-model-parallel-size --context-parallel-size
--num-virtual-stages-per-pipeline-rank --expert-model-parallel-size --expert-tensor-parallel-size
--micro-batch-size --global-batch-size --seq-length --num-distributed-optimizer-instances
--recompute-num-layers --cpu-offloading-num-layers --moe-router-num-groups --moe-router-group-topk
--window-attn-skip-freq
""".split()  # noqa: SIM905
CHOICES = {
    "--position-embedding-type": ("learned_absolute", "rope", "none"),
    "--normalization": ("LayerNorm", "RMSNorm"),
    "--softmax-type": ("learnable", "vanilla", "off-by-one"),
    "--data-parallel-sharding-strategy": ("no_shard", "optim", "optim_grads", "optim_grads_params"),
    "--recompute-granularity": ("full", "selective"),
    "--recompute-method": ("uniform", "block"),
    "--moe-token-dispatcher-type": ("allgather", "alltoall", "flex"),
    "--moe-flex-dispatcher-backend": ("deepep", "hybridep"),
    "--attention-backend": ("flash", "fused", "unfused", "local", "auto"),
    "--cuda-graph-impl": ("none", "local", "transformer_engine", "full_iteration"),
    "--cross-entropy-fusion-impl": ("native", "te"),
    "--exp-avg-dtype": ("fp32", "bf16", "fp16", "fp8"),
    "--exp-avg-sq-dtype": ("fp32", "bf16", "fp16", "fp8"),
    "--fp8-format": ("e4m3", "hybrid"),
    "--fp8-recipe": ("delayed", "tensorwise", "mxfp8", "blockwise"),
    "--fp4-format": ("e2m1",),
    "--fp4-recipe": ("nvfp4",),
}


def megatron_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    for name in FLAGS:
        parser.add_argument(name, action="store_true")
    for name in WHOLE:
        parser.add_argument(name, type=int)
    for name, choices in CHOICES.items():
        parser.add_argument(name, choices=choices)
    for name in ("--attention-dropout", "--hidden-dropout", "--moe-expert-capacity-factor"):
        parser.add_argument(name, type=float)
    parser.add_argument("--window-size", type=lambda x: tuple(map(int, x.strip("()").split(","))))
    parser.add_argument("--moe-layer-freq", type=str)
    parser.add_argument("--pipeline-model-parallel-layout", type=str)
    parser.add_argument("--cp-comm-type", nargs="+", choices=("p2p", "a2a", "all_gather"))
    modules = ["core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts"]
    parser.add_argument("--recompute-modules", nargs="*", choices=modules)
    return parser


# torchtitan 0.2, torchtitan/config/job_config.py.
TORCHTITAN = {
    "model": {"name": str, "flavor": str, "converters": list},
    "training": {
        "seq_len": int,
        "local_batch_size": int,
        "global_batch_size": int,
        "mixed_precision_param": str,
        "mixed_precision_reduce": str,
    },
    "parallelism": {
        "tensor_parallel_degree": int,
        "context_parallel_degree": int,
        "pipeline_parallel_degree": int,
        "expert_parallel_degree": int,
        "expert_tensor_parallel_degree": int,
        "data_parallel_replicate_degree": int,
        "data_parallel_shard_degree": int,
        "fsdp_reshard_after_forward": str,
        "pipeline_parallel_microbatch_size": int,
        "pipeline_parallel_schedule": str,
        "pipeline_parallel_first_stage_less_layers": int,
        "pipeline_parallel_last_stage_less_layers": int,
        "pipeline_parallel_layers_per_stage": int,
        "enable_async_tensor_parallel": bool,
        "context_parallel_rotate_method": str,
        "expert_parallel_comm_backend": str,
    },
    "activation_checkpoint": {"mode": str, "selective_ac_option": str},
    "compile": {"enable": bool, "components": list},
    "quantize": {"linear": dict},
}
# DeepSpeed, docs/_pages/config-json.md; tutorials of AutoTP, MiCS and Ulysses.
DEEPSPEED = {
    "train_batch_size": int,
    "train_micro_batch_size_per_gpu": int,
    "gradient_accumulation_steps": int,
    "data_parallel_size": int,
    "sequence_parallel_size": int,
    "communication_data_type": str,
    "tensor_parallel": {"autotp_size": int},
    "zero_optimization": {
        "stage": int,
        "overlap_comm": bool,
        "reduce_scatter": bool,
        "contiguous_gradients": bool,
        "mics_shard_size": int,
    },
    "bf16": {
        "enabled": bool,
        "bf16_master_weights_and_grads": bool,
        "bf16_optimizer_states": bool,
    },
    "fp16": {"enabled": bool},
    "data_types": {"grad_accum_dtype": str},
    "activation_checkpointing": {
        "partition_activations": bool,
        "cpu_checkpointing": bool,
        "number_checkpoints": int,
    },
}
# nanotron, src/nanotron/config/.
NANOTRON = {
    "parallelism": {
        "dp": int,
        "pp": int,
        "tp": int,
        "pp_engine": str,
        "tp_mode": str,
        "tp_linear_async_communication": bool,
        "recompute_layer": bool,
        "expert_parallel_size": int,
        "context_parallel_size": int,
    },
    "tokens": {"sequence_length": int, "micro_batch_size": int}
    | {"batch_accumulation_per_replica": int},
    "model": {
        "dtype": str,
        "make_vocab_size_divisible_by": int,
        "model_config": {
            "is_llama_config": bool,
            "is_qwen2_config": bool,
            "hidden_size": int,
            "intermediate_size": int,
            "max_position_embeddings": int,
            "num_attention_heads": int,
            "num_hidden_layers": int,
            "num_key_value_heads": int,
            "tie_word_embeddings": bool,
            "vocab_size": int,
            "attention_bias": bool,
            "sliding_window_size": (int, type(None)),
        },
    },
    "optimizer": {"zero_stage": int, "accumulate_grad_in_fp32": bool},
}


def unknown(tree: dict[str, Any], schema: dict[str, Any]) -> list[str]:
    """Keys that a schema lacks, or whose values are of another type."""
    found = []
    for key, value in tree.items():
        rule = schema.get(key)
        if isinstance(rule, dict) and isinstance(value, dict):
            found += unknown(value, rule)
        elif rule is None or not isinstance(value, rule) or (rule is int and value is True):
            found.append(f"{key} = {value}")
    return found


def fits(name: str, layout: Layout) -> bool:
    return not any(misfits(Dims.of(preset(name).model), layout).values())


@st.composite
def jobs(draw: Any, dense: bool = False) -> Training:
    """Layouts that fit their model, of every kind."""
    name = draw(st.sampled_from(["llama-3-8b", "qwen3-30b-a3b", "deepseek-v3", "gpt-3-13b"]))
    assume(not dense or preset(name).model.experts is None)
    power = [1, 2, 4, 8]
    tp, cp, pp, dp = (draw(st.sampled_from(power)) for _ in range(4))
    ep = draw(st.sampled_from([1, tp * cp * dp])) if preset(name).model.experts else 1
    micro = draw(st.sampled_from([1, 2]))
    chunks = draw(st.sampled_from([1, 2])) if pp > 1 else 1
    layout = Layout(
        gpus=tp * cp * pp * dp,
        tp=tp,
        cp=cp,
        pp=pp,
        ep=ep,
        chunks=chunks,
        micro_batch=micro,
        batch=micro * dp * pp * draw(st.integers(1, 4)),
        sequence=draw(st.sampled_from([2048, 8192])),
        sequence_parallel=draw(st.sampled_from([0, 1])),
        zero=(zero := draw(st.sampled_from([0, 1, 2, 3]))),
        reshard=draw(st.sampled_from([0, 1])) if zero == 3 else 1,
        recompute=draw(st.integers(0, len(RECOMPUTE) - 1)),
        schedule=draw(st.integers(0, len(SCHEDULE) - 1)) if chunks == 1 else 0,
        tp_overlap=draw(st.integers(0, len(OVERLAP) - 1)),
        cp_kind=draw(st.integers(0, len(RING) - 1)),
        pp_overlap=draw(st.sampled_from([0, 1])),
        dp_overlap=draw(st.sampled_from([0, 1])),
        deduplicated=draw(st.sampled_from([0, 1])),
        even=draw(st.sampled_from([0, 1])) if pp > 1 else 0,
        graphs=draw(st.sampled_from([0, 1, 2])),
        gradient_bytes=draw(st.sampled_from([2.0, 4.0])),
        order=draw(st.sampled_from(list(ORDER.values()))),
        zero_kind=draw(st.sampled_from(list(ZERO_KIND.values()))),
        dropless=draw(st.sampled_from([0, 1])),
        fused_experts=draw(st.sampled_from([0, 1])),
        compiled=draw(st.sampled_from([0, 1])),
        early=draw(st.sampled_from([0, 1])),
    )
    if not fits(name, layout):
        layout = replace(layout, schedule=0, cp_kind=0, order=0)
    assume(fits(name, layout))
    precision = draw(st.sampled_from(["bf16", "fp16", "fp8", "mxfp8", "nvfp4"]))
    return job(name, layout, precision)


@FEW
@given(jobs())
def test_plain_loses_nothing(one: Training) -> None:
    back = load(export(one, "plain"))
    assert (back.model, back.layout, back.precision) == (one.model, one.layout, one.precision)
    assert RECIPES[str(back.recipe)] == one.recipe
    assert not back.ignored
    assert not back.assumed


@pytest.mark.parametrize("name", READABLE)
@FEW
@given(one=jobs())
def test_notes_are_all_that_a_file_loses(name: str, one: Training) -> None:
    text = export(one, name)
    back = load(text, name)
    lost = changed(one, back)
    assert len([note for note in text.notes if not note.startswith("model: ")]) >= len(lost)
    for field in lost:
        assert any(note.startswith(field.removeprefix("layout.") + " = ") for note in text.notes)
    own = {"--recipe", "--mode"} if name == "bridge" else set()
    assert {item.name for item in back.ignored} <= own


@st.composite
def megatron_jobs(draw: Any) -> Training:
    """Jobs that Megatron-LM can say in full."""
    one = draw(jobs())
    layout = replace(
        one.layout,
        zero=(zero := draw(st.sampled_from([0, 1, 2, 3]))),
        reshard=1,
        order=one.layout.order if zero < 2 else 0,  # which Megatron FSDP does not take
        zero_kind=0,
        dropless=1,
        fused_experts=1,
        compiled=0,
        early=0,
        schedule=0,
        tp_overlap=draw(st.sampled_from([OVERLAP["backward"], OVERLAP["fine"]])),
        recompute=draw(st.sampled_from([RECOMPUTE[n] for n in ("none", "attention", "full")])),
        pp_overlap=1 if one.layout.chunks > 1 else 0,
    )
    short = layout.gradient_bytes == 2  # one buffer of gradients: kept as they are reduced
    return replace(one, layout=layout, recipe=RECIPES[default_recipe(one.precision, short)])


@FEW
@given(megatron_jobs())
def test_megatron_comes_back_as_it_was(one: Training) -> None:
    text = export(one, "megatron")
    back = load(text)
    assert back.format == "megatron"
    assert not back.assumed
    for field in ("gpus", "tp", "cp", "pp", "chunks", "micro_batch", "batch", "sequence"):
        assert getattr(back.layout, field) == getattr(one.layout, field), field
    # Megatron-LM pads the vocabulary to a multiple of tp, and has a position for every token.
    assert changed(one, back).keys() <= {"model.vocab", "model.positions"}
    if one.model.vocab % one.layout.tp == 0 and one.model.rope:
        assert text.notes == ()


@FEW
@given(jobs())
def test_megatron_arguments_are_its_own(one: Training) -> None:
    given = megatron_parser().parse_args(arguments(flat(one)))
    layout = one.layout
    assert given.tensor_model_parallel_size == layout.tp
    assert given.global_batch_size == layout.batch
    assert given.hidden_size == one.model.d_model
    assert given.fp16 == (one.precision == "fp16")
    assert given.bf16 != given.fp16


@pytest.mark.parametrize("name", presets())
def test_every_preset_is_written_for_megatron(name: str) -> None:
    one = job(name, Layout(8, batch=8, micro_batch=1, gradient_bytes=4))
    megatron_parser().parse_args(arguments(flat(one)))
    back = load(export(one, "megatron"))
    assert back.model is not None
    assert (back.model.layers, back.model.d_model) == (one.model.layers, one.model.d_model)
    # Not in Megatron's arguments: chunked windows, norms other than two a layer, uneven biases.
    odd = {"model.window", "model.layer_norms", "model.norm", "model.embedding_norm"}
    odd |= {
        "model.output_bias",
        "model.mlp_bias",
        "model.qkv_bias",
        "model.positions",
        "model.rope",
    }
    for field in changed(one, back):
        assert field.rpartition(".")[0] in odd or field in odd, field


def test_llama_3_70b_for_megatron() -> None:
    layout = Layout(512, tp=8, pp=4, chunks=5, batch=512, sequence=8192, recompute=1)
    line = " ".join(arguments(flat(job("llama-3-70b", layout))))
    for part in (
        "--num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 --num-attention-heads 64",
        "--num-query-groups 8 --group-query-attention",
        "--tensor-model-parallel-size 8 --pipeline-model-parallel-size 4",
        "--num-virtual-stages-per-pipeline-rank 5",
        "--sequence-parallel",
        "--recompute-granularity selective --recompute-modules core_attn",
        "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather",
        "--bf16",
        "--swiglu --untie-embeddings-and-output-weights --position-embedding-type rope",
    ):
        assert part in line
    text = export(job("llama-3-70b", layout), "megatron")
    assert "torchrun --nnodes 64 --nproc-per-node 8" in text


@pytest.mark.parametrize(
    ("zero", "name", "written"),
    [
        (1, "megatron", "--use-tp-pp-dp-mapping"),
        (1, "bridge", "dist.use_tp_pp_dp_mapping=true"),
        (1, "torchtitan", "order = tp-cp-pp-dp is not in this file"),
        (1, "nanotron", "order = tp-cp-pp-dp is not in this file"),
        (3, "megatron", "order = tp-cp-pp-dp is not in this file"),
    ],
)
def test_replicas_outermost(zero: int, name: str, written: str) -> None:
    """Megatron-LM and Bridge have an option for it, which Megatron FSDP refuses; others do not."""
    layout = Layout(64, tp=2, pp=4, batch=64, zero=zero, order=ORDER["tp-cp-pp-dp"])
    text = export(job("llama-3-8b", layout), name)
    assert written in text
    back = load(text, name)
    assert back.layout.order == (layout.order if written.startswith(("--", "dist.")) else 0)


def test_plain_has_every_field() -> None:
    """Fields without a home in any framework's file: software, adapters, LoRA's frozen weights."""
    layout = Layout(
        16, tp=2, pp=2, batch=64, sequence=4096, order=1, zero=2, shard=2, zero_kind=2, compiled=1, early=1,
        fused_experts=0, dropless=0, lora_rank=32, blocking=1, imbalance=1.5, node_limit=2,
        schedule=SCHEDULE["zb-2p"], weight_bytes=1.0, dispatch_bytes=1.0,
    )  # fmt: skip
    one = job("mixtral-8x7b", replace(layout, etp=2, order=0), recipe="qlora")
    back = load(one.export("plain"))
    assert back.layout == one.layout
    assert back.layout.frozen_bytes == one.recipe.frozen != 2
    assert json.loads(one.export("plain"))["layout"]["zero_kind"] == "broadcast"


@pytest.mark.parametrize("name", ["megatron", "torchtitan", "deepspeed", "bridge", "nanotron"])
def test_what_only_a_prediction_knows_is_a_note(name: str) -> None:
    more = {"early": 1, "compiled": 1, "zero_kind": 1, "schedule": SCHEDULE["zb-2p"]}
    text = export(job("llama-3-8b", Layout(8, pp=2, zero=1, batch=64, **more)), name)
    told = " ".join(text.notes)
    for field in more:
        assert f"{field} = " in told, field


def test_a_capacity_factor_means_that_tokens_are_dropped() -> None:
    sizes = "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --vocab-size 8 --num-experts 2"
    assert load(sizes).layout.dropless == 1
    assert load(f"{sizes} --moe-expert-capacity-factor 1.25").layout.dropless == 0


def test_deepseek_v3_for_megatron() -> None:
    """Sizes as in Megatron-LM's own DeepSeek-V3 configuration: 3 dense layers of 61, MLA, MTP."""
    layout = Layout(2048, pp=16, ep=64, batch=15360, sequence=4096, node_limit=4, schedule=5)
    text = export(job("deepseek-v3", layout, "fp8"), "megatron")
    line = " ".join(words(text))
    assert "--moe-layer-freq ([0]*3+[1]*58)" in line
    assert "--q-lora-rank 1536 --kv-lora-rank 512 --qk-head-dim 128" in line
    assert "--moe-router-num-groups 8 --moe-router-group-topk 4" in line
    assert "--mtp-num-layers 1" in line
    # 61 layers over 16 stages do not divide: 13 stages of 4 and 3 of 3.
    assert f"--pipeline-model-parallel-layout E{'t*4|' * 13}t*3|t*3|t*3mL" in line
    assert any(note.startswith("schedule = dualpipe") for note in text.notes)


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize("name", ["deepseek-v3", "gpt-oss-20b"])
def test_bash_sees_the_same_arguments(name: str) -> None:
    one = job(name, Layout(256, tp=2, pp=16, ep=8, cp=2, cp_kind=2, batch=256, sequence=4096))
    stub = "torchrun() { printf '%s\\n' \"$@\"; }\nRECIPE=one NODE_RANK=0 MASTER_ADDR=a MASTER_PORT=1\n"
    seen = {}
    for kind in ("megatron", "bridge"):
        script = stub + export(one, kind)
        done = subprocess.run(["bash", "-uc", script], capture_output=True, text=True, check=True)
        assert done.stderr == ""
        seen[kind] = done.stdout.splitlines()
    wanted = arguments(flat(one))
    assert seen["megatron"][-len(wanted) :] == wanted
    assert "model.tensor_model_parallel_size=2" in seen["bridge"]


@FEW
@given(jobs())
def test_torchtitan_keys_and_types(one: Training) -> None:
    tree = tomllib.loads(export(one, "torchtitan"))
    assert unknown(tree, TORCHTITAN) == []
    degrees = tree["parallelism"]
    world = math.prod(
        degrees[f"{name}_degree"]
        for name in (
            "data_parallel_replicate",
            "data_parallel_shard",
            "tensor_parallel",
            "context_parallel",
            "pipeline_parallel",
        )
    )
    assert world == one.layout.gpus
    replicas = degrees["data_parallel_replicate_degree"] * degrees["data_parallel_shard_degree"]
    assert tree["training"]["global_batch_size"] % replicas == 0


@FEW
@given(jobs())
def test_deepspeed_keys_and_types(one: Training) -> None:
    tree = json.loads(export(one, "deepspeed"))
    assert unknown(tree, DEEPSPEED) == []
    product = tree["train_micro_batch_size_per_gpu"] * tree["gradient_accumulation_steps"]
    assert product * one.layout.dp == tree["train_batch_size"]  # what DeepSpeed itself checks


@FEW
@given(jobs(dense=True))
def test_nanotron_keys_and_types(one: Training) -> None:
    tree = yaml.safe_load(export(one, "nanotron"))
    assert unknown(tree, NANOTRON) == []
    rows = tree["parallelism"]
    assert rows["dp"] * rows["tp"] * rows["pp"] * rows["context_parallel_size"] == one.layout.gpus


@FEW
@given(jobs())
def test_bridge_overrides_are_keys_of_its_groups(one: Training) -> None:
    groups = {"model", "train", "ddp", "optimizer", "comm_overlap", "dataset", "dist"}
    pairs = [
        word for word in words(export(one, "bridge"), keep=("mixed_precision",)) if "=" in word
    ]
    for key, _, value in (pair.partition("=") for pair in pairs if not pair.startswith("-")):
        assert key == "mixed_precision" or key.partition(".")[0] in groups
        assert value
        yaml.safe_load(value)


def test_torchtitan_flavor_round_trip() -> None:
    layout = Layout(
        256, tp=8, pp=4, chunks=2, batch=256, sequence=8192, zero=3, reshard=0,
        recompute=RECOMPUTE["block"], tp_overlap=OVERLAP["fine"], gradient_bytes=4.0,
        attention=FLASH["flash-2"],
    )  # fmt: skip
    one = job("llama-3-70b", layout, recipe="fsdp-dtensor")
    text = export(one, "torchtitan")
    assert text.notes == ()
    back = load(text)
    assert back.model == one.model
    assert back.layout == one.layout


def test_deepspeed_round_trip() -> None:
    layout = Layout(
        64, tp=4, batch=256, micro_batch=2, sequence=2048, zero=2, sequence_parallel=0, tp_overlap=0,
        attention=FLASH["flash-2"], fused=0, fused_experts=0,
    )  # fmt: skip
    one = job("llama-3-8b", layout, recipe="bf16-gradients")
    text = export(one, "deepspeed")
    assert text.notes == ("model: its sizes have no options in this file",)
    back = load(text)
    assert back.model is None
    assert back.layout == layout
    with pytest.raises(ValueError, match="model: the DeepSpeed JSON"):
        back.training(H100)


def test_own_recipe_in_plain() -> None:
    one = job("llama-3-8b", Layout(8, batch=8), recipe=recipe("qlora", 64))
    assert load(export(one, "plain")).recipe == one.recipe


# -- what people paste ----------------------------------------------------------------------------

SCRIPT = r"""
#!/bin/bash
#SBATCH --nodes=16
# Runs Llama 3 on 128 GPUs; don't change
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NNODES=${SLURM_NNODES:-16}
WORLD_SIZE=$(($GPUS_PER_NODE*$NNODES))
TP=${TP:-8}
PP="4"
DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NNODES
    --master_addr ${MASTER_ADDR:-localhost}
)
GPT_MODEL_ARGS=(
    --num-layers 32  # as published
    --hidden-size 4096
    --ffn-hidden-size=14336
    --num-attention-heads 32
    --group-query-attention --num-query-groups 8
    --seq-length 8192 --max-position-embeddings 8192
    --position-embedding-type rope --normalization RMSNorm --swiglu
    --disable-bias-linear --untie-embeddings-and-output-weights
    --vocab-size 128256 --make-vocab-size-divisible-by 16
    # --num-experts 8
)
TRAINING_ARGS="--micro-batch-size 1 --global-batch-size $((WORLD_SIZE * 2)) --lr 3.0e-4 \
    --bf16 --attention-dropout 0.0 --hidden-dropout 0.0"
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py \
    "${GPT_MODEL_ARGS[@]}" \
    $TRAINING_ARGS \
    --tensor-model-parallel-size ${TP} \
    --pipeline-model-parallel-size $PP --num-layers-per-virtual-pipeline-stage 4 \
    --sequence-parallel --use-distributed-optimizer --overlap-grad-reduce \
    --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 \
    --data-path $DATA_PATH --split 949,50,1 \
    ${EVAL_ARGS[@]} 2>&1 | tee log.txt
"""


def test_megatron_script_with_variables_arrays_and_comments() -> None:
    found = load(SCRIPT)
    assert found.format == "megatron"
    assert found.model is not None
    sizes = (found.model.layers, found.model.d_ff, found.model.kv_heads, found.model.padded_vocab)
    assert sizes == (32, 14336, 8, 128256)
    assert not found.model.experts
    layout = found.layout
    assert (layout.gpus, layout.tp, layout.pp, layout.chunks) == (128, 8, 4, 2)
    assert (layout.batch, layout.dp, layout.microbatches) == (256, 4, 64)
    assert (layout.zero, layout.sequence_parallel, layout.recompute) == (1, 1, RECOMPUTE["full"])
    assert found.precision == "bf16"
    assert found.problems == []
    ignored = {item.name: item for item in found.ignored}
    assert {"--lr", "--data-path", "--split", "${EVAL_ARGS[@]}"} == ignored.keys()
    assert "no value" in ignored["${EVAL_ARGS[@]}"].why


def test_the_same_in_equals_form() -> None:
    spaced = "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --vocab-size 32000 "
    spaced += "--tensor-model-parallel-size 2 --moe-layer-freq ([0]*1+[1]*31) --num-experts 8"
    pairs = spaced.split()
    equals = " ".join(f"{name}={value}" for name, value in zip(*[iter(pairs)] * 2, strict=True))
    first, second = (load(text.replace("(", "'(").replace(")", ")'")) for text in (spaced, equals))
    assert first == second
    assert first.model is not None
    assert first.model.moe_layers == 31


def test_arguments_alone_assume_what_is_missing() -> None:
    found = load("--tensor-model-parallel-size 4 --pipeline-model-parallel-size 2 --bf16")
    assert found.model is None
    assert found.layout.gpus == 8
    assert any(line.startswith("gpus = 8") for line in found.assumed)
    assert any(line.startswith("batch = 1") for line in found.assumed)
    assert any(line.startswith("sequence = ") for line in found.assumed)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("--bf16 --fp16 --micro-batch-size 1", "--bf16 = True and --fp16 = True contradict"),
        ("--tensor-model-parallel-size 8 --tensor-model-parallel-size=4", "= 8 and .* = 4 contrad"),
        ("--tensor-model-parallel-size eight", "--tensor-model-parallel-size: 'eight' is refused"),
        ("--tensor-model-parallel-size 0", "'0' is refused; allowed: numbers from 1"),
        ("--tensor-model-parallel-size 2.5", "allowed: whole numbers"),
        ("--tensor-model-parallel-size $TP", "no value in the text"),
        ("--tensor-model-parallel-size", "no value is given"),
        ("--swiglu false --num-layers 2", "--swiglu: 'false' is refused; allowed: nothing"),
        ("--num-layers '2 --hidden-size 3", "closed quotation"),
        (
            "--num-layers 30 --hidden-size 64 --num-attention-heads 4 "
            "--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 4",
            "--num-layers-per-virtual-pipeline-stage: '4' is refused; allowed: divisors of 30",
        ),
        (
            "--num-layers-per-virtual-pipeline-stage 4 --num-virtual-stages-per-pipeline-rank 2",
            "contradict each other",
        ),
        ("--data-parallel-sharding-strategy full --bf16", "'full' is refused; allowed: no_shard"),
        ("--recompute-granularity some-of-it", "allowed: full, selective"),
        (
            "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --vocab-size 8 "
            "--num-experts 2 --moe-layer-freq '[1]*9'",
            "of 4 layers",
        ),
        (
            "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --vocab-size 8 "
            "--num-experts 2 --moe-layer-freq __import__('os').getcwd()",
            "--moe-layer-freq: .* is refused",
        ),
    ],
)
def test_megatron_refuses(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load(text, "megatron")


def test_misspelt_options_are_ignored_with_the_nearest() -> None:
    found = load("--tensor-model-paralel-size 8 --bf16")
    assert found.layout.tp == 1
    (item,) = found.ignored
    assert (item.name, item.value) == ("--tensor-model-paralel-size", "8")
    assert "--tensor-model-parallel-size" in item.why


def test_every_second_layer_with_experts() -> None:
    """Megatron counts from the first layer: n means layers 0, n, 2n."""
    sizes = "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --vocab-size 8 --num-experts 2"
    first = load(f"{sizes} --moe-layer-freq 2").model
    second = load(f"{sizes} --moe-layer-freq '[0,1]*2'").model
    assert first is not None
    assert second is not None
    assert first.moe_layers == second.moe_layers == 2
    assert second.has_experts == (False, True, False, True)


SIZES = "--num-layers 61 --hidden-size 64 --num-attention-heads 4 --vocab-size 8 "


def test_stages_cut_by_hand() -> None:
    """The layout of Megatron-LM's DeepSeek-V3 example for 16 stages of 2: Et*3|(tt|)*29m|L."""
    text = f"{SIZES} --mtp-num-layers 1 --pipeline-model-parallel-size 16 "
    found = load(text + '--pipeline-model-parallel-layout "Et*3|(tt|)*29m|L"')
    assert (found.layout.pp, found.layout.chunks, found.layout.even) == (16, 2, 2)
    assert any("cut by hand" in line for line in found.assumed)
    with pytest.raises(ValueError, match="stages in multiples of 16; it has 3"):
        load(text + "--pipeline-model-parallel-layout Ett|tt|L")
    even = load(text + f"--pipeline-model-parallel-layout E{'t*4|' * 13}t*3|t*3|t*3mL")
    assert even.layout.even == 0
    assert not any("by hand" in line for line in even.assumed)


TITAN = """
[model]
name = "llama3"
flavor = "405B"
hf_assets_path = "./assets/hf/Llama-3.1-405B"
converters = ["quantize.linear.float8"]
[optimizer]
lr = 8e-5
[training]
local_batch_size = 2
seq_len = 8192
[parallelism]
data_parallel_replicate_degree = 1
data_parallel_shard_degree = 64  # HSDP
tensor_parallel_degree = 8
enable_async_tensor_parallel = true
pipeline_parallel_degree = 1
context_parallel_degree = 1
[activation_checkpoint]
mode = 'full'
[compile]
enable = true
components = ["model", "loss"]
[quantize.linear.float8]
enable_fsdp_float8_all_gather = true
precompute_float8_dynamic_scale_for_fsdp = true
filter_fqns = ["output"]
"""


def test_torchtitan_405b() -> None:
    """torchtitan's own train_configs/llama3_405b.toml, in parts."""
    found = load(TITAN)
    assert found.format == "torchtitan"
    assert found.model == preset("llama-3-405b").model
    layout = found.layout
    assert (layout.gpus, layout.tp, layout.micro_batch, layout.batch) == (512, 8, 2, 128)
    assert (layout.zero, layout.reshard, layout.weight_bytes) == (3, 1, 1)
    assert layout.recompute == RECOMPUTE["block"]
    assert layout.tp_overlap == OVERLAP["fine"]
    assert (found.precision, found.recipe) == ("fp8", "fsdp-dtensor-fp8")
    left = {item.name for item in found.ignored}
    scale = "quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp"
    assert left == {"model.hf_assets_path", "optimizer.lr", scale}


def test_torchtitan_command() -> None:
    """Overrides of torchtitan's main branch, whose configurations are Python."""
    text = (
        "torchrun --nproc_per_node 8 --nnodes 2 -m torchtitan.train --module llama3 \\\n"
        "  --config llama3_8b --parallelism.tensor_parallel_degree 2 \\\n"
        "  --parallelism.data-parallel-shard-degree=-1 --training.local_batch_size 4"
    )
    found = load(text)
    assert found.format == "torchtitan"
    assert (found.layout.gpus, found.layout.tp, found.layout.batch) == (16, 2, 32)
    assert {item.name for item in found.ignored} == {"module", "config"}


def test_the_caller_may_know_the_gpus() -> None:
    assert load("--tensor-model-parallel-size 4 --bf16", gpus=64).layout.dp == 16
    titan = load(TITAN.replace("= 64", "= -1"), gpus=1024)
    assert (titan.layout.gpus, titan.layout.batch) == (1024, 256)
    ds = load('{"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 2}}', gpus=16)
    assert (ds.layout.gpus, ds.layout.batch) == (16, 32)


def test_deepspeed_json_with_auto_and_offload() -> None:
    text = json.dumps(
        {
            "zero_optimization": {
                "stage": 3,
                "overlap_comm": True,
                "offload_optimizer": {"device": "cpu"},
                "reduce_bucket_size": 5e8,
            },
            "bf16": {"enabled": "auto"},
            "fp16": {"enabled": False},
            "train_micro_batch_size_per_gpu": 2,
            "gradient_accumulation_steps": 4,
            "train_batch_size": 64,
        }
    )
    found = load(text)
    assert found.format == "deepspeed"
    assert (found.layout.gpus, found.layout.zero, found.layout.micro_batch) == (8, 3, 2)
    names = {item.name for item in found.ignored}
    assert "zero_optimization.offload_optimizer.device" in names
    assert "bf16.enabled" in names
    with pytest.raises(ValueError, match=r"train_batch_size: '60' is refused; allowed: multiples"):
        load(text.replace("64", "60"))
    with pytest.raises(ValueError, match="contradict"):
        load('{"bf16": {"enabled": true}, "fp16": {"enabled": true}, "train_batch_size": 8}')


def test_bridge_overrides_and_python_lines() -> None:
    shell = (
        "uv run torchrun --nproc-per-node=8 --nnodes=4 scripts/training/run_recipe.py \\\n"
        "  --recipe llama3_8b_pretrain_2gpu_h100_bf16_config \\\n"
        "  model.tensor_model_parallel_size=4 model.sequence_parallel=true \\\n"
        "  ++model.virtual_pipeline_model_parallel_size=null \\\n"
        "  train.micro_batch_size=2 train.global_batch_size=128 checkpoint.save=/ckpts \\\n"
        "  mixed_precision=bf16_with_mxfp8_mixed model.seq_length=4096 dataset.seq_length=4096"
    )
    found = load(shell)
    assert found.format == "bridge"
    layout = found.layout
    assert (layout.gpus, layout.tp, layout.batch, layout.sequence) == (32, 4, 128, 4096)
    assert (found.precision, found.model) == ("mxfp8", None)
    assert {"--recipe", "checkpoint.save"} == {item.name for item in found.ignored}
    python = (
        "cfg.model.tensor_model_parallel_size = 4\n"
        "cfg.model.pipeline_model_parallel_size = 2  # two stages\n"
        "cfg.mixed_precision.grad_reduce_in_fp32 = False\n"
        "cfg.train.global_batch_size = 64\n"
        "cfg.ddp.overlap_grad_reduce = True\n"
    )
    lines = load(python)
    assert (lines.layout.tp, lines.layout.pp, lines.layout.batch) == (4, 2, 64)
    assert (lines.layout.gradient_bytes, lines.layout.dp_overlap) == (2, 1)
    with pytest.raises(ValueError, match=r"model.seq_length|dataset.seq_length"):
        load("model.seq_length=4096 dataset.seq_length=8192")


def test_nanotron_yaml() -> None:
    found = load(
        "parallelism: {dp: 4, tp: 2, pp: 2, pp_engine: 1f1b, tp_mode: REDUCE_SCATTER}\n"
        "tokens: {sequence_length: 4096, micro_batch_size: 2, batch_accumulation_per_replica: 8}\n"
        "optimizer: {zero_stage: 1, weight_decay: 0.1}\n"
        "model:\n  dtype: bfloat16\n  model_config: {hidden_size: 2048, intermediate_size: 8192,\n"
        "    num_hidden_layers: 24, num_attention_heads: 32, vocab_size: 49152}\n"
    )
    assert found.format == "nanotron"
    assert (found.layout.gpus, found.layout.batch, found.layout.zero) == (16, 64, 1)
    assert found.model is not None
    assert (found.model.kv_heads, found.model.head_dim) == (32, 64)
    assert [item.name for item in found.ignored] == ["optimizer.weight_decay"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hello world", "in no format that is known"),
        ("", "in no format that is known"),
        ("{", "not JSON"),
        ('{"a": 1}', "keys of no format"),
        ('{"traceEvents": []}', "'trace' cannot be read"),
        ('{"roofline": 2, "layout": {"gpus": 8}}', "version '2' is refused"),
        ('{"roofline": 1, "layout": {"tp": 8}}', "layout.gpus: missing"),
        ('{"roofline": 1, "layout": {"gpus": 8, "tpp": 8}}', "the nearest are tp"),
        ('{"roofline": 1, "layout": {"gpus": 8, "schedule": "1f1c"}}', "the nearest is 1f1b"),
    ],
)
def test_texts_that_are_no_job(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load(text)


def test_unknown_format_and_columns() -> None:
    one = job("llama-3-8b", Layout(8, batch=8))
    with pytest.raises(ValueError, match="the nearest are megatron"):
        export(one, "megatrom")
    with pytest.raises(ValueError, match="format: 'toml' is not one"):
        load("--bf16", "toml")
    with pytest.raises(ValueError, match=r"layout.tp: \(2,\) values are refused"):
        export(job("llama-3-8b", Layout(8, tp=np.array([1, 2]), batch=8)), "plain")


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 5), st.floats(), st.text(max_size=5),
    st.just([]), st.just({}), st.just([1, "a"]), st.just({"a": {"b": 1}}), st.just(10**30),
)  # fmt: skip
ONE = job("deepseek-v3", Layout(64, tp=2, pp=2, ep=8, batch=64, node_limit=4), "fp8")


def told(reading: Any) -> None:
    """Read, or be told in a sentence why not; any other error is a bug."""
    message = "read"
    try:
        found = reading()
        found.problems  # noqa: B018
    except ValueError as error:
        message = str(error)
    assert message


def leaves(tree: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    if not isinstance(tree, dict):
        return [path]
    return [path, *(p for key in tree for p in leaves(tree[key], (*path, key)))][bool(not path) :]


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(["plain", "deepspeed", "nanotron"]), st.data())
def test_a_wrong_value_anywhere_is_told(name: str, data: st.DataObject) -> None:
    text = export(ONE, name)
    tree = yaml.safe_load(text)  # JSON is YAML
    path = data.draw(st.sampled_from(leaves(tree)))
    place = tree
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = data.draw(VALUES)
    changed_text = yaml.safe_dump(tree) if name == "nanotron" else json.dumps(tree)
    told(lambda: load(changed_text, name))


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(["megatron", "bridge"]), st.data())
def test_a_wrong_word_anywhere_is_told(name: str, data: st.DataObject) -> None:
    line = words(export(ONE, name), keep=("mixed_precision",))
    at = data.draw(st.integers(0, len(line) - 1))
    word = data.draw(
        st.sampled_from(["-1", "0", "x", "1e99", "nan", "$A", "[1", "--", "{}", "=", ""])
    )
    key, equals, _ = line[at].partition("=")
    line[at] = f"{key}={word}" if equals else word
    told(lambda: load(" ".join(line), name))


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_wrong_value_in_toml_is_told(data: st.DataObject) -> None:
    lines = export(ONE, "torchtitan").splitlines()
    at = data.draw(st.sampled_from([i for i, line in enumerate(lines) if " = " in line]))
    kinds = ["-1", "0", "1.5", '"x"', "[]", "[1]", "true", "{a = 1}", "nan", "inf", "10000000000"]
    lines[at] = f"{lines[at].partition(' = ')[0]} = {data.draw(st.sampled_from(kinds))}"
    told(lambda: load("\n".join(lines), "torchtitan"))


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=200), st.sampled_from([None, *READABLE]))
def test_no_text_ends_in_another_error(text: str, name: str | None) -> None:
    told(lambda: load(text, name))


# -- trace ----------------------------------------------------------------------------------------

TRACED = {
    "one stage": Layout(8, batch=32, micro_batch=1, zero=3),
    "1F1B": Layout(64, tp=8, pp=4, batch=32, pp_overlap=0),
    "interleaved": Layout(64, tp=8, pp=4, chunks=2, batch=32),
    "GPipe": Layout(32, tp=2, pp=4, batch=32, schedule=SCHEDULE["gpipe"]),
    "ZB-H1": Layout(32, tp=2, pp=4, batch=64, schedule=SCHEDULE["zb-h1"]),
    "ZB-V": Layout(32, tp=2, pp=4, batch=64, schedule=SCHEDULE["zb-v"]),
    "DualPipe": Layout(32, tp=2, pp=4, batch=64, schedule=SCHEDULE["dualpipe"]),
}


@pytest.mark.parametrize("name", TRACED)
def test_trace_ends_with_the_predicted_step(name: str) -> None:
    one = job("llama-3-8b", TRACED[name])
    tree = json.loads(export(one, "trace"))
    assert tree["displayTimeUnit"] in ("ms", "ns")
    slices = [event for event in tree["traceEvents"] if event["ph"] == "X"]
    for event in slices:
        assert {"name", "cat", "ph", "pid", "tid", "ts", "dur", "args"} <= event.keys()
        assert event["ts"] >= 0
        assert event["dur"] > 0
    assert max(e["ts"] + e["dur"] for e in slices) / 1e6 == pytest.approx(
        float(one.time.seconds), rel=1e-9
    )
    names = [e for e in tree["traceEvents"] if e["name"] == "process_name"]
    assert len(names) == one.layout.pp
    forward = [e for e in slices if e["name"].startswith("forward") and e["pid"] == 0]
    backward = "and backward" if name == "DualPipe" else "forward"
    assert any(backward in e["name"] for e in forward)
    if name not in ("DualPipe",):
        passes = one.layout.microbatches * (2 if name in ("interleaved", "ZB-V") else 1)
        assert len(forward) == passes


@pytest.mark.parametrize("name", ["one stage", "1F1B", "interleaved", "ZB-H1"])
def test_slices_of_a_row_do_not_overlap(name: str) -> None:
    tree = json.loads(export(job("llama-3-8b", TRACED[name]), "trace"))
    rows: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in tree["traceEvents"]:
        if event["ph"] == "X" and not event["name"].startswith("send"):
            span = (event["ts"], event["ts"] + event["dur"])
            rows.setdefault((event["pid"], event["tid"]), []).append(span)
    for spans in rows.values():
        spans.sort()
        for (_, end), (start, _) in pairwise(spans):
            assert start >= end - 1e-3 * 1e-6 * end - 1e-6


def test_a_schedule_without_an_order_has_no_trace() -> None:
    """ZB-2p: its paper lets a solver find the order of each job."""
    layout = Layout(8, pp=8, batch=64, schedule=SCHEDULE["zb-2p"])
    with pytest.raises(ValueError, match=r"schedule: zb-2p cannot be played; .* is zb-h2$"):
        export(job("llama-3-8b", layout), "trace")
