"""Plans: passes and collectives of one step in the order in which a rank starts them.

A rank computes one pass after the other and talks in one collective after the other, beside each
other. A pass waits for the collectives it needs, a collective for the passes before it in the plan.
So what a step takes when everything hides that can is the critical path of a graph; the same plan
runs the step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from roofline.dag import Graph, critical_path

COLLECTIVE = {"gather": "all-gather", "scatter": "reduce-scatter", "reduce": "all-reduce"}  # of ops


class Op(NamedTuple):
    """One pass or one collective."""

    kind: str
    layer: int = 0
    microbatch: int = 0
    needs: tuple[int, ...] = ()  # places of collectives to wait for
    talks: bool = False
    slot: int = 0  # which of the buffers of what comes in it has
    out: int = 0  # and of what goes out


class Plan:
    """A list that is written from the start."""

    def __init__(self) -> None:
        self.ops: list[Op] = []

    def add(self, kind: str, layer: int = 0, microbatch: int = 0, **fields: Any) -> int:
        """Its place."""
        self.ops.append(Op(kind, layer, microbatch, **fields))
        return len(self.ops) - 1


def run(
    plan: Sequence[Op],
    compute: Callable[[Op], object] | None,
    talk: Callable[[Op], Any] | None,
    *,
    overlap: bool = True,
) -> None:
    """Do a step, or its passes or its collectives alone.

    Args:
        talk: starts a collective and returns what to wait for, or None when nobody is there.
        overlap: without it each collective is waited for as it is started.
    """
    pending: dict[int, Any] = {}
    for place, op in enumerate(plan):
        for need in op.needs:
            _wait(pending.pop(need, None))
        if not op.talks:
            if compute is not None:
                compute(op)
        elif talk is not None:
            pending[place] = talk(op)
            if not overlap:
                _wait(pending.pop(place))
    for work in pending.values():
        _wait(work)


def _wait(work: Any) -> None:
    if work is not None:
        work.wait()


def seconds(plan: Sequence[Op], time: Callable[[Op], float], *, overlap: bool = True) -> float:
    """What a step takes where passes and collectives hide each other, or one by one. [s]"""
    times = [time(op) for op in plan]
    if not overlap:
        return sum(times)
    channels = {(str(need), str(place)): 0.0 for place, op in enumerate(plan) for need in op.needs}
    last: dict[bool, int] = {}
    for place, op in enumerate(plan):
        for talks in {False, op.talks} & last.keys():
            channels[str(last[talks]), str(place)] = 0.0
        last[op.talks] = place
    return critical_path(Graph({str(i): t for i, t in enumerate(times)}, channels)).seconds


def alone(plan: Sequence[Op], time: Callable[[Op], float], *, talks: bool) -> float:
    """All passes, or all collectives. [s]"""
    return sum((time(op) for op in plan if op.talks is talks), 0.0)
