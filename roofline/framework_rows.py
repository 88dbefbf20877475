"""Frameworks in rows: what each does where a published run does not say, and how a run names one.

The field ``framework`` holds a name as people write it, ``Megatron-LM core r0.8``; else words of
``source`` and ``notes`` tell. What nobody knows is taken as a framework of 2024: flash attention,
fused kernels, gradients reduced behind the backward pass.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from hardware_profiles.errors import nearest
from roofline.run_fields import Run, shown


@dataclass(frozen=True, slots=True)
class Framework:
    """What a framework does where a run does not say."""

    name: str
    words: tuple[str, ...]  # one of them stands in the source or the notes
    names: tuple[str, ...] = ()  # what people call it, folded; the field ``framework`` holds one
    attention: str = "flash"
    fused: bool = True
    fused_loss: bool = False
    tp_overlap: str = "backward"
    dp_overlap: bool = True
    pp_overlap: bool = True  # sends between interleaved chunks; plain 1F1B always waits
    compiled: bool = False  # into one program, which launches its own kernels
    dropout: bool = False
    zero_kind: str = "scatter"  # a row of ``ZERO_KIND``
    gradient_bytes: float = 2.0
    optimizer_bytes: float = 46.0
    full_recompute: str = "full"  # what "full" repeats
    checkpoint: str = "attention"  # what "selective" repeats
    unstated: str = "none"  # where the run does not say


FRAMEWORKS = (
    Framework(
        "Megatron-Bridge",
        ("Megatron-Bridge",),
        ("megatronbridge",),
        fused_loss=True,
        tp_overlap="fine",
    ),
    Framework("dgxc NeMo", ("dgxc-benchmarking",), ("dgxc",), tp_overlap="fine", fused_loss=True),
    Framework(
        "NeMo 24.07",  # and before
        ("NeMo-Framework-Launcher", "container 24.0"),
        ("nemoframeworklauncher", "nemolauncher", "nemomegatron", "nemo1", "nemo23", "nemo240"),
        tp_overlap="fine",
        attention="flash-2024",
    ),
    Framework(
        "NeMo", ("NVIDIA/NeMo", "NeMo-Framework", "NeMo Framework"), ("nemo",), tp_overlap="fine"
    ),
    Framework(
        "Composer FSDP",
        ("llm-foundry", "Composer", "MosaicML"),
        ("llmfoundry", "foundry", "composer", "mosaicml"),
        attention="flash-1",
        fused=False,
        full_recompute="block",
    ),
    Framework(
        "torchtitan",
        ("torchtitan",),
        ("torchtitan",),
        attention="flash-2",
        tp_overlap="none",
        full_recompute="block",
        checkpoint="half",
    ),
    Framework(
        "InternEvo",
        ("InternEvo", "InternLM"),
        ("internevo", "internlm"),
        attention="flash-2",
        fused=False,
        zero_kind="broadcast",
        tp_overlap="none",
        full_recompute="block",
    ),
    Framework(
        "JAX",
        ("JAX", "MaxText", "Pax", "paxml"),
        ("jax", "maxtext", "pax"),
        compiled=True,
        tp_overlap="none",
        fused_loss=True,
        checkpoint="half",
        unstated="block",
    ),
    Framework(
        "nanotron",
        ("nanotron", "picotron"),
        ("nanotron", "picotron"),
        attention="flash-2",
        fused=False,
    ),
    Framework(
        "MegaScale", ("MegaScale",), ("megascale",), attention="flash-2", tp_overlap="backward"
    ),
    Framework(
        "Megatron-DeepSpeed",
        ("bigscience", "Megatron-DeepSpeed"),
        ("megatrondeepspeed", "bigscience"),
        attention="unfused",
        tp_overlap="none",
        dp_overlap=False,
        pp_overlap=False,
        zero_kind="all-reduce",
        gradient_bytes=4.0,
    ),
    Framework(
        "Megatron 2023",
        ("Zero Bubble",),
        ("zerobubble", "megatron2023"),
        attention="unfused",
        dropout=True,
        dp_overlap=False,
        pp_overlap=False,
    ),
    Framework(
        "Megatron 2021",  # before gradients of a layer's input were reduced behind its weights'
        ("Narayanan", "SC21"),
        ("sc21", "megatron2021"),
        attention="unfused",
        tp_overlap="none",
        dp_overlap=False,
        pp_overlap=False,
        dropout=True,
    ),
    Framework(
        "Megatron 2022",
        ("Korthikanti", "Megatron", "vTrain"),
        ("megatron", "mcore"),
        attention="unfused",
        tp_overlap="backward",
        dp_overlap=False,
        pp_overlap=False,
        dropout=True,
    ),
)
# Megatron since 2024, in bf16: fused attention, collectives behind compute.
RECENT = Framework("Megatron-LM", (), fused_loss=True)
UNKNOWN = Framework("unknown framework", ())
AS_UNKNOWN = "taken with flash attention, fused kernels and gradients reduced behind compute"
CORE = re.compile(r"core|r0\.\d|0\.\d+\.\d|20(2[4-9]|[3-9]\d)")  # Megatron-LM since Megatron-Core
LATER = ("h100", "h200", "h800", "h20", "b200", "b300", "mi3", "l40")  # GPUs since flash attention


def framework(run: Run) -> Framework:
    """The row of ``FRAMEWORKS`` that the run's words name.

    Megatron of 2022 is what ran in fp16, or before 2024, on the GPUs of that time.
    """
    return named(run)[0]


def named(run: Run) -> tuple[Framework, str]:
    """The row, and what was assumed to choose it: empty where the run says all.

    >>> row, told = named({"framework": "nemo 2.0"})
    >>> row.name, told
    ('NeMo', '')
    """
    stated = str(run.get("framework") or "")
    row = _called(stated) if stated else _told(run)
    if row is FRAMEWORKS[-1]:
        return _megatron(run, stated)
    if row:
        return row, ""
    if stated:
        known = (each.name for each in FRAMEWORKS)
        return (
            UNKNOWN,
            f"framework: {shown(stated)} is not known, {AS_UNKNOWN}; {nearest(stated, known)}",
        )
    if run.get("precision") == "fp16" and _of_old(run):
        return FRAMEWORKS[-1], "framework is not stated: fp16 on this GPU as Megatron of 2022"
    return UNKNOWN, f"framework is not stated: {AS_UNKNOWN}"


def _called(name: str) -> Framework | None:
    """The row whose name stands first in a text, the longest of those."""
    folded = re.sub(r"[^a-z0-9]", "", name.lower())
    places = [
        (folded.find(each), -len(each), row)
        for row in FRAMEWORKS
        for each in row.names
        if each in folded
    ]
    return min(places, key=lambda place: place[:2])[2] if places else None


def _told(run: Run) -> Framework | None:
    text = " ".join(str(run.get(key) or "") for key in ("source", "notes")).lower()
    return next((r for r in FRAMEWORKS if any(word.lower() in text for word in r.words)), None)


def _megatron(run: Run, stated: str) -> tuple[Framework, str]:
    """Megatron-LM of 2022 or of since 2024."""
    if CORE.search(stated.lower()) or not _of_old(run):
        return RECENT, ""
    sure = "year" in run or "2022" in stated
    return FRAMEWORKS[-1], "" if sure else "year before 2024: Megatron-LM as in 2022"


def _of_old(run: Run) -> bool:
    gpu, year = str(run.get("gpu")).lower(), run.get("year")
    later = any(name in gpu for name in LATER)
    return not later and (run.get("precision") == "fp16" or year is None or year < 2024)
