"""torchtitan: a TOML job configuration.

Models are chosen by name and flavor, so only those that torchtitan ships can be written. Data
parallelism is FSDP2 over ``data_parallel_shard_degree`` x cp ranks, replicated
``data_parallel_replicate_degree`` times; with a pipeline, the local batch holds all micro-batches
of a step.

Names: pytorch/torchtitan, ``torchtitan/config/job_config.py`` of the releases 0.2.x (at 6404b932
and later), the last with TOML files. The main branch of 2026 has the same names in Python
(``torchtitan/config/configs.py`` at 1a618d1d), and takes them as ``--parallelism.…`` overrides.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from typing import Any

from roofline.export.fields import Fields, data_ranks, differences, flat_model
from roofline.export.megatron import LAUNCHED, launched, parsed
from roofline.export.rows import Options, Row, dotted, named, nested, read, same, written
from roofline.export.shell import words
from roofline.presets import preset

FLAVORS = {
    "llama-3-8b": ("llama3", "8B"),
    "llama-3-70b": ("llama3", "70B"),
    "llama-3-405b": ("llama3", "405B"),
    "llama-4-scout": ("llama4", "17bx16e"),
    "llama-4-maverick": ("llama4", "17bx128e"),
    "deepseek-v2-lite": ("deepseek_v3", "16B"),
    "deepseek-v2": ("deepseek_v3", "236B"),
    "deepseek-v3": ("deepseek_v3", "671B"),
    "qwen3-0.6b": ("qwen3", "0.6B"),
    "qwen3-1.7b": ("qwen3", "1.7B"),
    "qwen3-4b": ("qwen3", "4B"),
    "qwen3-8b": ("qwen3", "8B"),
    "qwen3-14b": ("qwen3", "14B"),
    "qwen3-32b": ("qwen3", "32B"),
    "qwen3-30b-a3b": ("qwen3", "30B-A3B"),
    "qwen3-235b-a22b": ("qwen3", "235B-A22B"),
    "gpt-oss-20b": ("gpt_oss", "20b"),
    "gpt-oss-120b": ("gpt_oss", "120b"),
}
SCHEDULES = {"1f1b": "1F1B", "gpipe": "GPipe", "zb-v": "ZBVZeroBubble"}
LOOPED = "interleaved1f1b"
FLOAT8, MX = "quantize.linear.float8", "quantize.linear.mx"
P = "parallelism."
COMMAND = re.compile(r"(?:^|\s)--(?:parallelism|training|activation_checkpoint)\.\w", re.MULTILINE)


def _write_model(f: Fields) -> Fields:
    sizes = {key: value for key, value in f.items() if key.startswith("model.")}
    degrees = {key: value for key, value in f.items() if key.startswith("layout.")}
    for name, (family, flavor) in FLAVORS.items():
        row = flat_model(preset(name).model)
        if sizes and not differences(sizes | degrees, row | degrees):
            return {"model.name": family, "model.flavor": flavor}
    return {}


def _read_model(o: Options, f: Fields) -> Fields:
    family, flavor = o.take("model.name"), o.take("model.flavor")
    if flavor is None:
        return {}
    for name, row in FLAVORS.items():
        if row == (family, flavor):
            return flat_model(preset(name).model)
    o.leave("model.flavor", f"{family} {flavor}", "the sizes of this model are not known here")
    return {}


def _write_data(f: Fields) -> Fields:
    ranks, cp = data_ranks(f), f.get("layout.cp", 1)
    shard = f.get("layout.shard", 0) or ranks
    if f.get("layout.zero", 0) == 0:
        shard = cp
    degree = int(max(1, min(shard, ranks) // cp))
    again = f.get("layout.reshard", 1) and f.get("layout.zero", 0) == 3
    return {
        f"{P}data_parallel_replicate_degree": int(max(1, ranks // cp // degree)),
        f"{P}data_parallel_shard_degree": degree,
        f"{P}fsdp_reshard_after_forward": "always" if again else "never",
    }


def _read_data(o: Options, f: Fields) -> Fields:
    replicas = o.whole(f"{P}data_parallel_replicate_degree", 1)
    degree = o.whole(f"{P}data_parallel_shard_degree", -1, least=-1)
    again = o.text(f"{P}fsdp_reshard_after_forward", "default")
    if again not in ("default", "always", "never"):
        o.refuse(f"{P}fsdp_reshard_after_forward", again, "default, always, never")
    inner = f["layout.tp"] * f["layout.cp"] * f["layout.pp"]
    if degree < 1:
        degree = max(1, f.get("layout.gpus", 0) // (replicas * inner))
        if "layout.gpus" not in f:
            o.assumed.append("data_parallel_shard_degree = -1: all GPUs that are left; here as 1")
    gpus = replicas * degree * inner
    whole = replicas == 1
    plain = degree == 1 and f["layout.cp"] == 1
    return {
        "layout.gpus": gpus,
        "layout.zero": 0 if plain else 3,
        "layout.shard": 0 if whole or plain else degree * f["layout.cp"],
        "layout.reshard": int(again == "always" or (again == "default" and f["layout.pp"] == 1)),
        "layout.gradient_bytes": 4,
    }


def _write_batch(f: Fields) -> Fields:
    micro, local = f["layout.micro_batch"], f["layout.micro_batch"]
    found: Fields = {}
    if f.get("layout.pp", 1) > 1:
        replicas = f["layout.gpus"] / (f["layout.tp"] * f["layout.cp"] * f["layout.pp"])
        local = int(max(micro, f["layout.batch"] / replicas))
        found[f"{P}pipeline_parallel_microbatch_size"] = micro
    return {"training.local_batch_size": local, "training.global_batch_size": f["layout.batch"]} | (
        found
    )


def _read_batch(o: Options, f: Fields) -> Fields:
    local = o.whole("training.local_batch_size", 8)
    micro = o.whole(f"{P}pipeline_parallel_microbatch_size", 1)
    whole = o.number("training.global_batch_size", -1, -1)
    replicas = f["layout.gpus"] // (f["layout.tp"] * f["layout.cp"] * f["layout.pp"])
    return {
        "layout.micro_batch": micro if f["layout.pp"] > 1 else local,
        "layout.batch": whole if whole > 0 else local * replicas,
    }


def _slots(f: Fields) -> Any:
    """Layers, with the ends where they take the slot of one."""
    return f["model.layers"] + 2 * (f.get("layout.even", 0) == 1)


def _write_pipeline(f: Fields) -> Fields:
    stages, chunks = f.get("layout.pp", 1), f.get("layout.chunks", 1)
    if stages == 1:
        return {}
    kind = SCHEDULES.get(f.get("layout.schedule", "1f1b"), "1F1B")
    looped = kind == "1F1B" and chunks > 1
    less = int(f.get("layout.even", 0) == 1)
    found: Fields = {
        f"{P}pipeline_parallel_schedule": "Interleaved1F1B" if looped else kind,
        f"{P}pipeline_parallel_first_stage_less_layers": less,
        f"{P}pipeline_parallel_last_stage_less_layers": less,
    }
    if looped and "model.layers" in f:
        some = -(-_slots(f) // (stages * chunks))
        if -(-_slots(f) // some) == stages * chunks:
            found[f"{P}pipeline_parallel_layers_per_stage"] = some
    return found


def _read_pipeline(o: Options, f: Fields) -> Fields:
    ours = {theirs.lower(): name for name, theirs in SCHEDULES.items()}
    shown = o.take(f"{P}pipeline_parallel_schedule", "1F1B")
    kind = str(shown).lower()
    ends = [o.whole(f"{P}pipeline_parallel_{end}_stage_less_layers", 1, 0) for end in ENDS]
    some = o.whole(f"{P}pipeline_parallel_layers_per_stage")
    if kind not in ours and kind != LOOPED:
        o.leave(f"{P}pipeline_parallel_schedule", shown, "not modelled; 1F1B in its place")
    found = {"layout.schedule": ours.get(kind, "1f1b"), "layout.even": int(all(ends))}
    chunks = 2 if kind == LOOPED else 1
    if some and kind == LOOPED and "model.layers" in f:
        chunks = max(1, -(-_slots(f | found) // some) // f["layout.pp"])
    return found | {"layout.chunks": chunks}


ENDS = ("first", "last")


def _write_checkpoint(f: Fields) -> Fields:
    kind, share = f.get("layout.recompute", "none"), f.get("layout.recompute_share", 1)
    name = "activation_checkpoint.mode"
    if kind == "none":
        return {name: "none"}
    if kind in ("attention", "half", "modules"):
        return {name: "selective", "activation_checkpoint.selective_ac_option": "op"}
    if share < 1:
        every = str(max(1, round(1 / share)))
        return {name: "selective", "activation_checkpoint.selective_ac_option": every}
    return {name: "full"}


def _read_checkpoint(o: Options, f: Fields) -> Fields:
    name, option = "activation_checkpoint.mode", "activation_checkpoint.selective_ac_option"
    mode, every = o.text(name, "selective"), o.text(option, "2")
    if mode not in ("none", "full", "selective", "memory_budget"):
        o.refuse(name, mode, "none, selective, full, memory_budget")
    if mode == "memory_budget":
        o.leave(name, mode, "not modelled; selective by operation in its place")
    if mode == "selective" and every.isdigit() and int(every):
        return {"layout.recompute": "block", "layout.recompute_share": 1 / int(every)}
    kinds = {"none": "none", "full": "block"}
    return {"layout.recompute": kinds.get(mode, "half"), "layout.recompute_share": 1}


def _write_precision(f: Fields) -> Fields:
    kind = f["precision"]
    found: Fields = {"training.mixed_precision_param": "bfloat16"}
    found["training.mixed_precision_reduce"] = "float32"
    if kind == "fp8":
        found |= {"model.converters": [FLOAT8], f"{FLOAT8}.filter_fqns": ["output"]}
        found[f"{FLOAT8}.enable_fsdp_float8_all_gather"] = f.get("layout.weight_bytes") == 1
    if kind == "mxfp8":
        found |= {"model.converters": [MX], f"{MX}.recipe_name": "mxfp8_cublas"}
    return found


def _read_precision(o: Options, f: Fields) -> Fields:
    converters = o.take("model.converters", [])
    for name in ("training.mixed_precision_param", "training.mixed_precision_reduce"):
        o.take(name)
    names = converters if isinstance(converters, list) else str(converters).split(",")
    known = {FLOAT8: "fp8", "float8": "fp8", MX: "mxfp8", "mx": "mxfp8"}
    found = next((known[name] for name in names if name in known), "bf16")
    for name in (f"{FLOAT8}.filter_fqns", f"{MX}.filter_fqns", f"{MX}.recipe_name"):
        o.take(name)
    old, new = (f"{k}.enable_fsdp_float8_all_gather" for k in ("float8", FLOAT8))
    narrow = o.flag(new) or o.flag(old)
    kept = "fsdp-dtensor" if f["layout.tp"] > 1 else "fsdp"
    return {
        "precision": found,
        "recipe": kept if found == "bf16" else f"{kept}-fp8",
        "layout.weight_bytes": 1 if narrow and found == "fp8" else 2,
    }


def _write_compile(f: Fields) -> Fields:
    fused = bool(f.get("layout.fused", 1))
    return {"compile.enable": fused} | ({"compile.components": ["model", "loss"]} if fused else {})


def _read_compile(o: Options, f: Fields) -> Fields:
    o.take("compile.components")
    fused = o.flag("compile.enable") or o.flag("training.compile")
    return {"layout.fused": int(fused)}


def _read_overlap(o: Options, f: Fields) -> Fields:
    hidden = o.flag(f"{P}enable_async_tensor_parallel")
    return {
        "layout.tp_overlap": "fine" if hidden else "none",
        "layout.sequence_parallel": 1,
        "layout.attention": "flash-2",  # of PyTorch
    }


ROWS = (
    Row(_write_model, _read_model),
    same("layout.sequence", "training.seq_len", 2048),
    same("layout.tp", f"{P}tensor_parallel_degree", 1),
    same("layout.cp", f"{P}context_parallel_degree", 1),
    same("layout.pp", f"{P}pipeline_parallel_degree", 1),
    same("layout.ep", f"{P}expert_parallel_degree", 1),
    same("layout.etp", f"{P}expert_tensor_parallel_degree", 1),
    Row(_write_data, _read_data),
    Row(_write_batch, _read_batch),
    Row(_write_pipeline, _read_pipeline),
    Row(
        lambda f: {f"{P}enable_async_tensor_parallel": f.get("layout.tp_overlap") == "fine"},
        _read_overlap,
    ),
    named(
        "layout.cp_kind",
        f"{P}context_parallel_rotate_method",
        {"all-gather": "allgather", "ring": "alltoall"},
        "all-gather",
    ),
    Row(
        lambda f: (
            {f"{P}expert_parallel_comm_backend": "deepep"}
            if f.get("layout.deduplicated") and f.get("layout.ep", 1) > 1
            else {}
        ),
        lambda o, f: {
            "layout.deduplicated": int(o.text(f"{P}expert_parallel_comm_backend") == "deepep")
        },
    ),
    Row(_write_checkpoint, _read_checkpoint),
    Row(_write_precision, _read_precision),
    Row(_write_compile, _read_compile),
)


def write(fields: Fields, notes: Sequence[str] = ()) -> str:
    """The TOML text."""
    tree = nested(written(ROWS, fields))
    gpus = int(fields["layout.gpus"])
    head = [f"# for {gpus} GPUs; dataset, tokenizer, optimizer and steps are left to you"]
    lines = [*head, *(f"# {note}" for note in notes)]
    for section, options in tree.items():
        lines += _section(section, options)
    return "\n".join([*lines, ""])


def _section(name: str, options: Fields) -> list[str]:
    plain = {key: value for key, value in options.items() if not isinstance(value, dict)}
    lines = ["", f"[{name}]"] if plain else []
    lines += [f"{key} = {_shown(value)}" for key, value in plain.items()]
    for key, value in options.items():
        lines += _section(f"{name}.{key}", value) if isinstance(value, dict) else []
    return lines


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(_shown(one) for one in value)}]"
    return f'"{value}"' if isinstance(value, str) else str(value)


def read_text(text: str, gpus: int | None = None) -> tuple[Fields, Options]:
    """Fields of a TOML file, or of a command with overrides, and the options that are left.

    Raises:
        ValueError: text that is no TOML, or a value that cannot be.
    """
    if COMMAND.search(text):
        given = parsed(words(text))
        start = launched({name: given.pop(name) for name in LAUNCHED if name in given}, gpus)
        options = Options({name[2:].replace("-", "_"): value for name, value in given.items()})
        return read(ROWS, options, start), options
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"not TOML: {error}") from None
    options = Options(dict(dotted(tree)))
    return read(ROWS, options, {"layout.gpus": gpus} if gpus else {}), options
