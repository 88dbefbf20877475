"""The terms of a step, each with its look: the colour says of what kind it is."""

from __future__ import annotations

from dataclasses import replace

from dashboard import theme
from dashboard.theme import Look

MEMORY = Look("memory-bound", "#6a9fd8")
WAITING = Look("waiting", "#8a94a3", "dot", "x")
_COMMS = theme.COMMS
TERMS = {
    "matmuls": theme.MATH,
    "attention": Look("attention", "#1f4e8c"),
    "memory-bound": MEMORY,
    "recompute": Look("recompute", "#9db8d9"),
    "head, embedding and uneven stages": Look("ends", "#5b7fa8"),
    "optimizer": Look("optimizer", "#7a8fa6"),
    "tensor parallel": _COMMS["tensor_parallel"],
    "context parallel": Look("context parallel", "#c79a00", "dash", "triangle-down"),
    "expert parallel": _COMMS["expert_parallel"],
    "pipeline sends": _COMMS["pipeline_parallel"],
    "bubble": theme.BUBBLE,
}


def of(term: str) -> Look:
    """How a term of ``roofline.step`` is drawn; gradients and weights as data parallelism."""
    if term in TERMS:
        return replace(TERMS[term], label=term)
    waits = term in ("fixed", "waiting for the host")
    return replace(WAITING if waits else _COMMS["data_parallel"], label=term)
