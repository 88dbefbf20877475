"""DeepSpeed: the JSON configuration that ``deepspeed.initialize`` takes.

It holds the data-parallel side of a job: batches, ZeRO, precision. The model, its pipeline and
what is recomputed stand in the training script; tensor parallelism is AutoTP's, sequence
parallelism Ulysses'. The batch is micro-batch x accumulation x replicas, so that two of three
stated give the number of replicas only together with the third.

Names: deepspeedai/DeepSpeed, ``docs/_pages/config-json.md`` at da9b7738 (2026), the AutoTP training
tutorial for ``tensor_parallel``, ``deepspeed/runtime/zero/config.py`` for ``mics_shard_size``, and
``deepspeed/__init__.py`` for ``data_parallel_size`` and ``sequence_parallel_size``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from roofline.export.fields import Fields, data_ranks
from roofline.export.rows import Options, Row, dotted, nested, read, same, written

Z = "zero_optimization."
A = "activation_checkpointing."
TYPES = {2: "bf16", 4: "fp32"}
ELSEWHERE = {  # field of a layout → where it is stated instead
    "gpus": "the launcher's number of processes",
    "pp": "num_stages of the script's PipelineModule",
    "order": "the topology of the script's PipelineModule",
    "even": "partition_method of the script's PipelineModule",
    "sequence": "the script's data loader",
    "ep": "ep_size of the script's deepspeed.moe.layer.MoE",
    "recompute": "what the script wraps in deepspeed.checkpointing.checkpoint",
    "recompute_share": "what the script wraps in deepspeed.checkpointing.checkpoint",
}


def _replicas(f: Fields) -> int:
    return int(f["layout.gpus"] / (f["layout.tp"] * f["layout.cp"] * f["layout.pp"]))


def _write_batch(f: Fields) -> Fields:
    micro, replicas = f["layout.micro_batch"], _replicas(f)
    return {
        "train_batch_size": f["layout.batch"],
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": max(1, int(f["layout.batch"] // (micro * replicas))),
    }


def _read_batch(o: Options, f: Fields) -> Fields:
    names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    auto = [name for name in names if o.left.get(name) == "auto"]
    for name in auto:
        o.leave(name, o.take(name), "the trainer fills it in; taken as not stated")
    batch, micro, steps = (o.whole(name) for name in names)
    split = o.whole("sequence_parallel_size", 1)
    stated = o.whole("data_parallel_size")
    if batch and micro and steps:
        replicas, rest = divmod(batch, micro * steps)
        if rest:
            limit = f"multiples of {micro} x {steps}, micro-batch x accumulation"
            o.refuse("train_batch_size", batch, limit)
    else:
        replicas = stated or max(1, f.get("layout.gpus", 0) // (split * f["layout.tp"]))
        if not stated and "layout.gpus" not in f:
            o.assumed.append("replicas = 1: the file states too few of the batch sizes")
    micro = micro or max(1, (batch or 1) // (replicas * (steps or 1)))
    batch = batch or micro * (steps or 1) * replicas
    if stated and stated != replicas:
        o.refuse("data_parallel_size", stated, f"{replicas}, as the batch sizes have it")
    return {
        "layout.cp": split,
        "layout.attention": "flash-2",  # the kernels are the script's
        "layout.fused": 0,
        "layout.fused_experts": 0,
        "layout.sequence_parallel": 0,
        "layout.tp_overlap": "none",  # AutoTP waits for its all-reduces
        "layout.gpus": replicas * split * f["layout.tp"],
        "layout.pp": 1,
        "layout.micro_batch": micro,
        "layout.batch": batch,
    } | ({"layout.cp_kind": "ulysses"} if split > 1 else {})


def _write_split(f: Fields) -> Fields:
    if f.get("layout.cp", 1) == 1:
        return {}
    return {"data_parallel_size": _replicas(f), "sequence_parallel_size": f["layout.cp"]}


def _write_zero(f: Fields) -> Fields:
    stage = f.get("layout.zero", 0)
    found: Fields = {f"{Z}stage": stage}
    found[f"{Z}overlap_comm"] = bool(f.get("layout.dp_overlap", 1))
    if stage:
        found |= {f"{Z}reduce_scatter": True, f"{Z}contiguous_gradients": True}
    shard = f.get("layout.shard", 0)
    if stage == 3 and 0 < shard < data_ranks(f):
        found[f"{Z}mics_shard_size"] = shard
    return found


def _read_zero(o: Options, f: Fields) -> Fields:
    stage = o.whole(f"{Z}stage", 0, least=0)
    if stage > 3:
        o.refuse(f"{Z}stage", stage, "0, 1, 2, 3")
    overlap = o.flag(f"{Z}overlap_comm", stage == 3)
    for name in ("reduce_scatter", "contiguous_gradients"):
        o.take(Z + name)
    shard = o.number(f"{Z}mics_shard_size", -1, -1)
    return {
        "layout.zero": stage,
        "layout.dp_overlap": int(overlap),
        "layout.shard": max(0, shard),
    }


def _write_precision(f: Fields) -> Fields:
    half = "fp16" if f["precision"] == "fp16" else "bf16"
    found: Fields = {f"{half}.enabled": True}
    kept = {"deepspeed-bf16": "fp32", "bf16-gradients": "bf16"}.get(str(f.get("recipe")))
    if kept and half == "bf16":
        found["data_types.grad_accum_dtype"] = kept
    if f.get("recipe") == "pure-bf16":
        found |= dict.fromkeys(PURE, True)
    sent = TYPES.get(f.get("layout.gradient_bytes", 2))
    if sent:
        found["communication_data_type"] = "fp16" if (sent, half) == ("bf16", "fp16") else sent
    return found


PURE = ("bf16.bf16_master_weights_and_grads", "bf16.bf16_optimizer_states")


def _read_precision(o: Options, f: Fields) -> Fields:
    auto = [name for name in ("bf16.enabled", "fp16.enabled") if o.left.get(name) == "auto"]
    for name in auto:
        o.leave(name, o.take(name), "the trainer fills it in; taken as false")
    o.clash("bf16.enabled", "fp16.enabled")
    half, brain = o.flag("fp16.enabled"), o.flag("bf16.enabled")
    if not half and not brain:
        o.assumed.append("precision = bf16; neither bf16 nor fp16 is on in the file")
    kept = o.text("data_types.grad_accum_dtype")
    pure = len([name for name in PURE if o.flag(name)]) == len(PURE)
    sent = o.text("communication_data_type", "fp16" if half else "bf16")
    sizes = {"fp16": 2, "bf16": 2, "fp32": 4}
    if sent not in sizes:
        o.refuse("communication_data_type", sent, ", ".join(sizes))
    recipe = "deepspeed-bf16" if kept == "fp32" else "bf16-gradients"
    return {
        "precision": "fp16" if half else "bf16",
        "recipe": "pure-bf16" if pure else recipe,
        "layout.gradient_bytes": sizes[sent],
    }


def _write_checkpoint(f: Fields) -> Fields:
    if f.get("layout.recompute", "none") == "none":
        return {}
    found: Fields = {
        f"{A}partition_activations": False,
        f"{A}cpu_checkpointing": f.get("layout.offload_share", 0) == 1,
    }
    if f["layout.recompute"] in ("full", "block") and "model.layers" in f:
        share = f.get("layout.recompute_share", 1)
        found[f"{A}number_checkpoints"] = max(1, round(share * f["model.layers"]))
    return found


def _read_checkpoint(o: Options, f: Fields) -> Fields:
    on = [o.take(A + name) is not None for name in ("partition_activations",)]
    offload, some = o.flag(f"{A}cpu_checkpointing"), o.whole(f"{A}number_checkpoints")
    found: Fields = {"layout.offload_share": int(offload)}
    if some:
        o.assumed.append("recompute = full: the file counts checkpoints, the script sets them")
        return found | {"layout.recompute": "full"}
    if any(on):
        o.assumed.append("recompute = none: whether layers are checkpointed stands in the script")
    return found


ROWS = (
    same("layout.tp", "tensor_parallel.autotp_size", 1, omit=1),
    Row(_write_batch, _read_batch),
    Row(_write_split, lambda o, f: {}),
    Row(_write_zero, _read_zero),
    Row(_write_precision, _read_precision),
    Row(_write_checkpoint, _read_checkpoint),
)


def write(fields: Fields, notes: Sequence[str] = ()) -> str:
    """The JSON text; notes have no place in it."""
    return json.dumps(nested(written(ROWS, fields)), indent=2) + "\n"


def read_text(text: str, gpus: int | None = None) -> tuple[Fields, Options]:
    """Fields of a configuration, and the options that are left.

    Raises:
        ValueError: text that is no JSON, or a value that cannot be.
    """
    options = Options(dict(dotted(as_mapping(text))))
    return read(ROWS, options, {"layout.gpus": gpus} if gpus else {}), options


def as_mapping(text: str) -> Fields:
    """The JSON object of some text."""
    try:
        tree = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(tree, dict):
        raise ValueError(f"JSON: {type(tree).__name__} is refused; allowed: an object")
    return tree
