"""One colour, dash and name per thing, the same on every page.

The hues keep apart under every common colour-vision deficiency (after Okabe and Ito) and read on white and on the
dark background alike. Colour never speaks alone: compute is a solid line, communication a dashed one.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Look:
    """How one thing is drawn and called."""

    label: str
    color: str
    dash: str = "solid"
    symbol: str = "circle"


MATH = Look("T_math", "#3b7dd8")
COMMS = {
    "data_parallel": Look("data parallel", "#e0701a", "dash", "square"),
    "fsdp": Look("FSDP", "#b8860b", "dash", "square"),
    "tensor_parallel": Look("tensor parallel", "#0f9d76", "dash", "diamond"),
    "mixed": Look("FSDP + TP", "#8a6fd1", "dash", "diamond"),
    "expert_parallel": Look("expert parallel", "#c4649f", "dash", "triangle-up"),
    "pipeline_parallel": Look("pipeline parallel", "#2a9db0", "dash", "cross"),
}
BUBBLE = Look("bubble", "#8a94a3", "dot", "x")
FORBIDDEN = "rgba(214, 69, 65, 0.10)"
CROSSOVER = "#d64541"
MEASURED = Look("measured", "#d64541", "solid", "x")

# A sequence for things that have no name of their own (collectives, profiles, axes of a mesh).
SEQUENCE = ("#3b7dd8", "#e0701a", "#0f9d76", "#c4649f", "#b8860b", "#2a9db0", "#8a6fd1", "#8a94a3")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "solid", "dash")


def look(index: int, label: str) -> Look:
    """The ``index``-th look of the sequence, for things without one of their own."""
    rounds = index // len(SEQUENCE)  # the second time, a colour comes with another dash
    return Look(label, SEQUENCE[index % len(SEQUENCE)], DASHES[(index + rounds) % len(DASHES)])
