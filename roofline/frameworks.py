"""Frameworks: what each does where a published run does not say, release by release.

A row of ``FRAMEWORKS`` is found by words in a run's ``source`` and ``notes``. What a row cannot
hold, because releases differ, stands below in functions named for the choice: CUDA graphs, dispatch
of tokens, bytes of gathered weights and scattered gradients, overlap of tensor parallelism.

Sources: Megatron-LM, Megatron-Bridge and NeMo recipes of the releases that runs name; Composer's
``get_mixed_precision`` of 2023 and 2024; torchtitan's configurations; BLOOM's chronicles.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from roofline.layout import SCHEDULE
from roofline.run_fields import Run, mapping


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


def framework(run: Run) -> Framework:
    """The row of ``FRAMEWORKS`` that the run's words name; 16-bit GPTs of old are Megatron's."""
    text = " ".join(str(run.get(key) or "") for key in ("framework", "source", "notes")).lower()
    for row in FRAMEWORKS:
        if any(word.lower() in text for word in row.words):
            return row
    return FRAMEWORKS[-1] if run.get("precision") == "fp16" else UNKNOWN


def recompute(run: Run, row: Framework, layers: float, stages: float) -> tuple[str, float]:
    """What is run again, as a row of ``RECOMPUTE``, and for which share of the layers."""
    kind, extra = run.get("recompute"), mapping(run, "extra")
    if kind == "full":
        some = extra.get("recompute_num_layers")
        return row.full_recompute, min(1.0, some * stages / layers) if some else 1.0
    if kind == "selective" and extra.get("recompute_modules"):
        modules = [str(name) for name in extra["recompute_modules"]]
        if modules == ["core_attn"]:
            return "attention", 1.0
        return "full", min(1.0, sum(MODULES.get(name, 0.0) for name in modules))
    if kind == "selective":
        return ("none" if "minimal_flash" in str(run.get("notes")) else row.checkpoint), 1.0
    return ("none" if kind == "none" else row.unstated), 1.0


def attention(run: Run, row: Framework) -> str:
    """The row of ``FLASH``: what the run's words say, else the framework's."""
    words = f"{run.get('notes') or ''} {run.get('attention') or ''}".lower()
    return "unfused" if "no flash" in words or "without flash" in words else row.attention


def graphs(run: Run, row: Framework) -> float:
    """CUDA graphs: 0 none, 1 of parts of a layer, 2 of the whole iteration."""
    kind = _latest(run, row, "cuda_graph_impl", "full_iteration")
    if kind is None:
        return float(mapping(run, "extra").get("cuda_graphs") == 1)
    return {"none": 0.0, "full_iteration": 2.0}.get(str(kind), 1.0)


def exchange_overlap(run: Run, row: Framework) -> float:
    """Share of the experts' all-to-alls that another micro-batch's compute hides."""
    return 0.7 if _latest(run, row, "moe_a2a_overlap", True) else 0.0


def _latest(run: Run, row: Framework, key: str, latest: Any) -> Any:
    """What the run says of an option, or what the newest release (26.08) does by default."""
    stated = mapping(run, "extra").get(key)
    if stated is None and row.name == "Megatron-Bridge" and "'26.08" in str(run.get("source")):
        return latest
    return stated


def deduplicated(run: Run, row: Framework) -> bool:
    """Dispatchers of DeepEP's kind: where stated, and in Megatron-Bridge."""
    stated = mapping(run, "extra").get("moe_dispatcher")
    if stated is not None:
        return stated in ("hybridep", "deepep")
    return row.name == "Megatron-Bridge"


def tp_overlap(run: Run, row: Framework) -> str:
    """The row of ``OVERLAP``."""
    extra = mapping(run, "extra")
    if "async_tp" in extra:
        return "fine" if extra["async_tp"] else "none"
    return row.tp_overlap


def schedule(run: Run) -> int:
    """The number of the pipeline schedule."""
    name = str(mapping(run, "extra").get("pp_schedule") or "").lower()
    known = {"zb-1p": "zb-h1", "zb-2p": "zb-h2", **{name: name for name in SCHEDULE}}
    return SCHEDULE[known.get(name, "1f1b")]


def shard(run: Run) -> float:
    """Ranks that states are sharded over, where fewer than all; else 0."""
    extra = mapping(run, "extra")
    for key in ("fsdp_shard", "zero1_group"):
        if (extra.get(key) or 0) > 0:
            return float(extra[key])
    stated = str(run.get("fsdp") or "").partition("dp_shard")[2]
    digits = "".join(c if c.isdigit() else " " for c in stated).split()
    return float(digits[0]) if digits else 0.0


def weight_bytes(run: Run) -> float:
    """Bytes of a gathered weight: fp32 by Composer's DEFAULT of 2023, 8 bits where stated."""
    detail = _detail(run)
    if detail.startswith("amp") and _year(run) < 2024:
        return 4.0
    return 1.0 if "fp8 params" in detail or "float8 all-gather" in detail else 2.0


def gradient_bytes(run: Run, row: Framework) -> float:
    """Bytes of a reduced gradient: fp32 by Composer's DEFAULT from 2024 on."""
    return 4.0 if _detail(run).startswith("amp") and _year(run) >= 2024 else row.gradient_bytes


def _detail(run: Run) -> str:
    return str(run.get("precision_detail") or "")


def _year(run: Run) -> float:
    year = run.get("year")
    return float(year) if isinstance(year, int | float) else 2024.0
