"""A published run, as its source states it, turned into a job: what is stated, and what is assumed.

A run is a mapping: ``model`` sizes, ``gpu``, ``n_gpus``, degrees, batch, ``precision``, ``recompute``,
``network``. What it leaves open gets the habit of the framework that ran it (a row of ``FRAMEWORKS``,
told by words in ``source`` and ``notes``), and each such default is listed with the job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from roofline.layout import FLASH, OVERLAP, RECOMPUTE, SCHEDULE, Layout
from roofline.model import Experts, Latent, Transformer, Window

Run = Mapping[str, Any]


class RunError(ValueError):
    """A run that cannot be predicted; the message names the field, its value and what is allowed."""


@dataclass(frozen=True, slots=True)
class Framework:
    """What a framework does where a run does not say."""

    name: str
    words: tuple[str, ...]  # one of them stands in the source or the notes
    attention: str = "flash"
    fused: bool = True
    fused_loss: bool = False
    tp_overlap: str = "backward"
    dp_overlap: bool = True
    pp_overlap: bool = True  # sends between interleaved chunks; plain 1F1B always waits
    dropout: bool = False
    gradient_bytes: float = 2.0
    optimizer_bytes: float = 46.0
    full_recompute: str = "full"  # what "full" repeats
    checkpoint: str = "attention"  # what "selective" repeats
    unstated: str = "none"  # where the run does not say


FRAMEWORKS = (
    Framework("Megatron-Bridge", ("Megatron-Bridge",), fused_loss=True, tp_overlap="fine"),
    Framework("dgxc NeMo", ("dgxc-benchmarking",), tp_overlap="fine", fused_loss=True),
    Framework("NeMo", ("NVIDIA/NeMo", "NeMo-Framework", "NeMo-Megatron"), tp_overlap="fine"),
    Framework(
        "Composer FSDP",
        ("llm-foundry", "Composer", "MosaicML"),
        attention="flash-1",
        fused=False,
        full_recompute="block",
    ),
    Framework(
        "torchtitan",
        ("torchtitan",),
        attention="flash-2",
        tp_overlap="none",
        full_recompute="block",
        checkpoint="half",
    ),
    Framework(
        "InternEvo",
        ("InternEvo", "InternLM"),
        attention="flash-2",
        fused=False,
        tp_overlap="none",
        full_recompute="block",
    ),
    Framework(
        "JAX",
        ("JAX", "MaxText", "Pax", "paxml"),
        tp_overlap="none",
        fused_loss=True,
        checkpoint="half",
        unstated="block",
    ),
    Framework("nanotron", ("nanotron", "picotron"), attention="flash-2", fused=False),
    Framework("MegaScale", ("MegaScale",), attention="flash-2", tp_overlap="backward"),
    Framework(
        "Megatron-DeepSpeed",
        ("bigscience", "Megatron-DeepSpeed"),
        attention="unfused",
        tp_overlap="none",
        dp_overlap=False,
        pp_overlap=False,
        gradient_bytes=4.0,
    ),
    Framework(
        "Megatron 2023",
        ("Zero Bubble",),
        attention="unfused",
        dropout=True,
        dp_overlap=False,
        pp_overlap=False,
    ),
    Framework(
        "Megatron 2022",
        ("Korthikanti", "Megatron", "vTrain", "Narayanan"),
        attention="unfused",
        tp_overlap="backward",
        dp_overlap=False,
        pp_overlap=False,
        dropout=True,
    ),
)
# Share of a layer's forward pass that recomputing a module repeats.
MODULES = {"layernorm": 0.02, "moe_act": 0.04, "mla_up_proj": 0.06, "mlp": 0.08, "moe": 0.5}
UNKNOWN = Framework("unknown framework", ())


@dataclass(frozen=True, slots=True)
class Job:
    """A run as the step model takes it."""

    id: str
    gpu: str
    precision: str
    model: Transformer
    layout: Layout
    framework: Framework
    domain: int  # GPUs under one NVLink domain
    nic: float | None  # B/s per GPU between nodes
    assumed: tuple[str, ...] = field(default=())


def framework(run: Run) -> Framework:
    """The row of ``FRAMEWORKS`` that the run's words name; 16-bit GPTs of old are Megatron's."""
    text = f"{run.get('source', '')} {run.get('notes', '')} {run.get('framework', '')}"
    found = next((row for row in FRAMEWORKS if any(word.lower() in text.lower() for word in row.words)), None)
    if found is not None:
        return found
    return FRAMEWORKS[-1] if run.get("precision") == "fp16" else UNKNOWN


def job(run: Run) -> Job:
    """The run with every gap filled.

    Raises:
        RunError: a field that is missing, of the wrong type, or impossible.
    """
    row = framework(run)
    assumed: list[str] = []
    shape = _need(run, "model", Mapping)
    model = _model(shape, _number(run, "tp", 1))
    network = run.get("network") or {}
    nic = network.get("internode_gbps_per_gpu")
    return Job(
        id=str(run.get("id", "run")),
        gpu=str(_need(run, "gpu", str)),
        precision=str(run.get("precision") or "bf16"),
        model=model,
        layout=_layout(run, shape, row, assumed),
        framework=row,
        domain=int(network.get("nvlink_domain_gpus") or run.get("gpus_per_node") or 8),
        nic=float(nic) / 8 * 1e9 if nic else None,
        assumed=tuple(assumed),
    )


def _layout(run: Run, shape: Mapping[str, Any], row: Framework, assumed: list[str]) -> Layout:
    gpus, tp = _number(run, "n_gpus"), _number(run, "tp", 1)
    pp, cp = _number(run, "pp", 1), _number(run, "cp", 1)
    batch = _number(run, "global_batch_size")
    replicas = gpus / (tp * pp * cp)
    if replicas != int(replicas):
        raise RunError(f"n_gpus: {gpus:g} is not a multiple of tp · pp · cp = {tp * pp * cp:g}")
    micro = run.get("micro_batch_size") or _assume(assumed, "micro_batch_size", 1)
    if batch % (replicas * micro):
        limit = f"a multiple of {replicas:g} replicas × micro-batch {micro:g}"
        raise RunError(f"global_batch_size: {batch:g} is not {limit}")
    split = run.get("sequence_parallel")
    if split is None:
        split = _assume(assumed, "sequence_parallel", tp > 1 and row.attention != "unfused")
    zero = run.get("zero_stage")
    zero = _assume(assumed, "zero_stage", 1) if zero is None else zero
    fsdp = str(run.get("fsdp") or "")
    reshard = "SHARD_GRAD_OP" not in fsdp
    notes = f"{run.get('notes', '')} {run.get('attention', '')}".lower()
    attention = row.attention
    if "no flash" in notes or "without flash" in notes:
        attention = "unfused"
    extra = run.get("extra") or {}
    kind, share = _recompute(run, row, extra, shape, pp)
    experts = int(shape.get("experts") or 0)
    return Layout(
        gpus=gpus,
        tp=tp,
        cp=cp,
        pp=pp,
        ep=_number(run, "ep", 1),
        etp=run.get("etp") or 1,
        chunks=run.get("vpp") or _assume(assumed, "vpp", 1),
        micro_batch=micro,
        batch=batch,
        sequence=_number(shape, "seq_len"),
        sequence_parallel=float(bool(split) and tp > 1),
        zero=3 if fsdp and not fsdp.startswith("none") else zero,
        shard=_shard(fsdp, extra),
        reshard=float(reshard),
        schedule=_schedule(extra),
        even=float(_counted(run)) * (2.0 if shape.get("mtp_layers") else 1.0),
        recompute=RECOMPUTE[kind],
        recompute_share=share,
        tp_overlap=OVERLAP[_tp_overlap(extra, row)],
        dp_overlap=float(row.dp_overlap),
        pp_overlap=float(row.pp_overlap and (run.get("vpp") or 1) > 1),
        blocking=float("CUDA_LAUNCH_BLOCKING=1" in str(run.get("notes", ""))),
        ep_overlap=0.7 if _latest(run, row, extra, "moe_a2a_overlap", True) else 0.0,
        deduplicated=float(_deduplicated(run, row, extra)),
        attention=FLASH[attention],
        fused=float(row.fused and "sliding window" not in str(shape.get("attn_window"))),
        fused_loss=float(row.fused_loss),
        graphs=_graphs(run, row, extra),
        dropout=float(row.dropout),
        weight_bytes=_weight_bytes(run, fsdp),
        gradient_bytes=_gradient_bytes(run, row),
        optimizer_bytes=row.optimizer_bytes,
        node_limit=4 if experts == 256 else float("inf"),
    )


def _latest(run: Run, row: Framework, extra: Mapping[str, Any], key: str, latest: Any) -> Any:
    """What the run says of an option, or what its newest releases (26.08 on) do by default."""
    stated = extra.get(key)
    if stated is None and row.name == "Megatron-Bridge" and "'26.08" in str(run.get("source", "")):
        return latest
    return stated


def _graphs(run: Run, row: Framework, extra: Mapping[str, Any]) -> float:
    kind = _latest(run, row, extra, "cuda_graph_impl", "full_iteration")
    if kind is None:
        return float(extra.get("cuda_graphs") == 1)
    return {"none": 0.0, "full_iteration": 2.0}.get(str(kind), 1.0)


def _deduplicated(run: Run, row: Framework, extra: Mapping[str, Any]) -> bool:
    """Dispatchers of DeepEP's kind: where stated, in Megatron-Bridge, and in recipes from 25.08 on."""
    stated = extra.get("moe_dispatcher")
    if stated is not None:
        return stated in ("hybridep", "deepep")
    tags = extra.get("release_tags") or ["v0"]
    return row.name == "Megatron-Bridge" or str(tags[0]) >= "v25.08"


def _counted(run: Run) -> bool:
    """Uneven splits, and those said to, give embedding and head the slot of a layer."""
    notes = str(run.get("notes", ""))
    stated = "count as one layer slot" in notes or "one layer fewer" in notes
    stages = (run.get("pp") or 1) * (run.get("vpp") or 1)
    return stated or bool(run["model"]["layers"] % stages)


def _recompute(
    run: Run, row: Framework, extra: Mapping[str, Any], shape: Mapping[str, Any], pp: float
) -> tuple[str, float]:
    kind = run.get("recompute")
    layers = extra.get("recompute_num_layers")
    if kind == "full":
        share = min(1.0, layers * pp / float(shape["layers"])) if layers else 1.0
        return row.full_recompute, share
    if kind == "selective" and extra.get("recompute_modules"):
        modules = list(extra["recompute_modules"])
        if modules == ["core_attn"]:
            return "attention", 1.0
        return "full", min(1.0, sum(MODULES.get(str(name), 0.0) for name in modules))
    if kind == "selective":
        return ("none" if "minimal_flash" in str(run.get("notes", "")) else row.checkpoint), 1.0
    return ("none" if kind == "none" else row.unstated), 1.0


def _tp_overlap(extra: Mapping[str, Any], row: Framework) -> str:
    if "async_tp" in extra:
        return "fine" if extra["async_tp"] else "none"
    return row.tp_overlap


def _schedule(extra: Mapping[str, Any]) -> int:
    name = str(extra.get("pp_schedule") or "").lower()
    kinds = {"zb-1p": "zb-h1", "zb-2p": "zb-h2", "zb-v": "zb-v", "dualpipe": "dualpipe", "gpipe": "gpipe"}
    return SCHEDULE[kinds.get(name, "1f1b")]


def _shard(fsdp: str, extra: Mapping[str, Any]) -> float:
    for key in ("fsdp_shard", "zero1_group"):
        if (extra.get(key) or 0) > 0:
            return float(extra[key])
    digits = "".join(c if c.isdigit() else " " for c in fsdp.partition("dp_shard")[2]).split()
    return float(digits[0]) if digits else 0.0


def _weight_bytes(run: Run, fsdp: str) -> float:
    detail = str(run.get("precision_detail") or "")
    if detail.startswith("amp") and (run.get("year") or 2024) < 2024:
        return 4.0  # Composer's mixed_precision=DEFAULT of 2023 gathers fp32 weights
    return 1.0 if "fp8 params" in detail or "float8 all-gather" in detail else 2.0


def _gradient_bytes(run: Run, row: Framework) -> float:
    if str(run.get("precision_detail") or "").startswith("amp") and (run.get("year") or 2024) >= 2024:
        return 4.0  # and of 2024 scatters fp32 gradients
    return row.gradient_bytes


def _model(shape: Mapping[str, Any], tp: float) -> Transformer:
    """The sizes of a run; the vocabulary padded as Megatron does."""
    hidden, heads = int(_number(shape, "hidden")), int(_number(shape, "heads"))
    mla = shape.get("mla")
    latent = None
    if mla:
        latent = Latent(
            query_rank=int(mla.get("q_lora_rank") or 0),
            kv_rank=int(mla["kv_lora_rank"]),
            nope_dim=int(mla["qk_nope_head_dim"]),
            rope_dim=int(mla["qk_rope_head_dim"]),
            value_dim=int(mla["v_head_dim"]),
        )
    experts = None
    if shape.get("experts"):
        one = int(shape.get("moe_ffn_hidden") or shape["ffn_hidden"])
        dense = int(shape.get("dense_layers") or 0)
        layers, moe = int(shape["layers"]), int(shape.get("moe_layers") or shape["layers"] - dense)
        every = max(1, round((layers - dense) / moe)) if dense + moe < layers else 1
        if dense and dense * 2 == layers:
            dense, every = 0, 2
        experts = Experts(
            count=int(shape["experts"]),
            per_token=int(shape["top_k"]),
            d_ff=one,
            shared_d_ff=one * int(shape.get("shared_experts") or 0),
            first=dense,
            every=every,
        )
    window = None
    if "128-token" in str(shape.get("attn_window")):
        window = Window(128, full_every=2)
    gated = bool(shape.get("gated_mlp"))
    return Transformer(
        name=str(shape.get("name", "model")),
        layers=int(_number(shape, "layers")),
        d_model=hidden,
        d_ff=int(_number(shape, "ffn_hidden")),
        heads=heads,
        kv_heads=heads if latent else int(shape.get("kv_heads") or heads),
        head_dim=int(shape.get("head_dim") or hidden // heads),
        vocab=int(_number(shape, "vocab")),
        vocab_multiple=int(128 * tp),
        gated=gated,
        tied=bool(shape.get("tied_embeddings") or (shape.get("tied_embeddings") is None and not gated)),
        norm="rmsnorm" if gated else "layernorm",
        positions=0 if gated else 1,
        mlp_bias=not gated,
        latent=latent,
        window=window,
        experts=experts,
        mtp=int(shape.get("mtp_layers") or 0),
    )


def _number(run: Run, key: str, default: float | None = None) -> float:
    value = run.get(key)
    if value is None:
        if default is None:
            raise RunError(f"{key}: missing, and there is no default")
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise RunError(f"{key}: {value!r} is refused; allowed: a number above 0")
    return value


def _need(run: Run, key: str, kind: type) -> Any:
    value = run.get(key)
    if not isinstance(value, kind):
        raise RunError(f"{key}: {value!r} is refused; allowed: a {kind.__name__.lower()}")
    return value


def _assume(assumed: list[str], key: str, value: Any) -> Any:
    assumed.append(f"{key} = {value:g}" if not isinstance(value, str) else f"{key} = {value}")
    return value
