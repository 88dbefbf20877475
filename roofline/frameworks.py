"""Frameworks: what each does where a published run does not say, release by release.

``framework_rows`` holds what a framework does, and finds it by a run's words. What a row cannot
hold, because releases differ, stands below in functions named for the choice: CUDA graphs, dispatch
of tokens, bytes of gathered weights and scattered gradients, overlap of tensor parallelism. Runs are
as ``run_fields.checked`` leaves them.

Sources: Megatron-LM, Megatron-Bridge and NeMo recipes of the releases that runs name; Composer's
``get_mixed_precision`` of 2023 and 2024; torchtitan's configurations; BLOOM's chronicles.
"""

from __future__ import annotations

import re
from typing import Any

from roofline.framework_rows import FRAMEWORKS, Framework, framework, named
from roofline.layout import EXCHANGE_HIDDEN, MODULES, SCHEDULE
from roofline.run_fields import Run, mapping
from roofline.run_schema import INTERLEAVED, MODULE_NAMES

__all__ = ["FRAMEWORKS", "Framework", "framework", "named"]

RELEASE = re.compile(r"(?<![\d.])(2[3-9])\.(0[1-9]|1[0-2])(?:\.(\d\d?))?(?![\d%])")


def recompute(run: Run, row: Framework, layers: float, stages: float) -> tuple[str, float]:
    """What is run again, as a row of ``RECOMPUTE``, and for which share of the layers."""
    kind, extra = run.get("recompute"), mapping(run, "extra")
    if kind == "full":
        some = extra.get("recompute_num_layers")
        return row.full_recompute, min(1.0, some * stages / layers) if some else 1.0
    if kind == "selective" and extra.get("recompute_modules"):
        return ("attention" if modules(run) == MODULES["attention"] else "modules"), 1.0
    if kind == "selective":
        return ("none" if "minimal_flash" in str(run.get("notes")) else row.checkpoint), 1.0
    return ("none" if kind == "none" else row.unstated), 1.0


def modules(run: Run) -> int:
    """The modules of ``layout.MODULES`` that a run names, summed; 0 where it names none."""
    said = mapping(run, "extra").get("recompute_modules") or ()
    known = {MODULE_NAMES[str(name)] for name in said if str(name) in MODULE_NAMES}
    return sum(MODULES[name] for name in known)


def attention(run: Run, row: Framework) -> str:
    """The row of ``FLASH``: what the run's words say, else the framework's."""
    stated = str(run.get("attention") or "").lower()
    words = f"{run.get('notes') or ''} {stated}".lower()
    without = re.search(r"(?:\b(\d+[mb]) )?\b(?:no|not|without) flash", words)
    name = str(mapping(run, "model").get("name")).lower()
    apart = any(word in stated for word in ("unfused", "eager"))
    if (without and (without[1] or "") in name) or apart:  # "126M without flash"
        return "unfused"
    return "flash-2" if stated and row.attention == "unfused" else row.attention


def fused_experts(run: Run, row: Framework) -> bool:
    """Experts without biases; GPT-OSS's, and its clamped activation, from 26.06 on (not 26.06.01)."""
    found = release(run)
    fast = row.name == "Megatron-Bridge" and found >= (26, 6) and found != (26, 6, 1)
    return fast or not clamped(run)


def clamped(run: Run) -> bool:
    """GPT-OSS: biases in the experts, and a clamped activation."""
    return "gpt-oss" in str(mapping(run, "model").get("name") or "").lower()


def release(run: Run) -> tuple[int, ...]:
    """The container that the run's words name, as numbers: (26, 6, 1); () where none."""
    for key in ("framework", "source", "notes"):
        found = RELEASE.search(str(run.get(key) or ""))
        if found:
            return tuple(int(part) for part in found.groups() if part)
    return ()


def dropless(run: Run) -> bool:
    """Whether every expert takes what comes."""
    if mapping(run, "extra").get("capacity_factor") is not None:
        return False
    words = str(run.get("notes") or "").lower()
    return not any(word in words for word in ("token-drop run", "token drop", "capacity factor"))


def early(run: Run, row: Framework) -> bool:
    """Blackwell under the containers of NeMo, before Megatron-Bridge."""
    gpu = str(run.get("gpu") or "").lower()
    return row.name in ("NeMo", "dgxc NeMo") and any(n in gpu for n in ("b200", "b300"))


def graphs(run: Run, row: Framework) -> float:
    """CUDA graphs: 0 none, 1 of parts of a layer, 2 of the whole iteration."""
    kind = _latest(run, row, "cuda_graph_impl", "full_iteration")
    scope = mapping(run, "extra").get("cuda_graph_scope")
    if kind == "local" and scope == ["full_iteration"]:
        kind = "full_iteration"
    if kind is None:
        return float(mapping(run, "extra").get("cuda_graphs") == 1)
    if scope and "attn" not in scope:
        return 0.0  # a router's few kernels spare the host nothing
    return {"none": 0.0, "full_iteration": 2.0}.get(str(kind), 1.0)


def exchange_overlap(run: Run, row: Framework) -> float:
    """Share of the experts' all-to-alls that another micro-batch's compute hides."""
    return EXCHANGE_HIDDEN if _latest(run, row, "moe_a2a_overlap", True) else 0.0


def _latest(run: Run, row: Framework, key: str, latest: Any) -> Any:
    """What the run says of an option, or what the newest release (26.08) does by default."""
    stated = mapping(run, "extra").get(key)
    newest = row.name == "Megatron-Bridge" and release(run) >= (26, 8)
    if stated is None and newest and not clamped(run):
        return latest
    return stated


def deduplicated(run: Run, row: Framework) -> bool:
    """Dispatchers of DeepEP's kind: where stated, and in Megatron-Bridge where no recipe is known."""
    extra = mapping(run, "extra")
    if extra.get("moe_dispatcher") is not None or extra.get("recipe_preset"):
        return extra.get("moe_dispatcher") in ("hybridep", "deepep")
    latent = bool(mapping(run, "model").get("mla"))  # DeepSeek's recipe of NeMo 25.07
    newer = row.name == "dgxc NeMo" and release(run) >= (25, 7)
    return row.name == "Megatron-Bridge" or (latent and newer)


def tp_overlap(run: Run, row: Framework) -> str:
    """The row of ``OVERLAP``."""
    extra = mapping(run, "extra")
    if "async_tp" in extra:
        return "fine" if extra["async_tp"] else "none"
    return row.tp_overlap


def schedule(run: Run) -> int:
    """The number of the pipeline schedule."""
    name = mapping(run, "extra").get("pp_schedule", "1f1b")
    return SCHEDULE["1f1b" if name == INTERLEAVED else name]


def shard(run: Run) -> float:
    """Ranks that states are sharded over, where fewer than all; else 0."""
    extra = mapping(run, "extra")
    for key in ("fsdp_shard", "zero1_group"):
        if (extra.get(key) or 0) > 0:
            return float(extra[key])
    stated = str(run.get("fsdp") or "").lower().partition("dp_shard")[2]
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
    return float(run.get("year", 2024))
