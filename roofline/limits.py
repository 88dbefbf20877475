"""What a plan may choose from: limits that people state, and what frameworks can do.

    tp=8    pp="2-8"    micro_batch=(1, 2)    recompute="none,full"    schedule="1f1b"

A framework is a row: the choices that it has, and habits of its layouts. A limit replaces what is
sensible, so that an unusual value is tried where it is asked for.

Sources: Megatron-LM, torchtitan, DeepSpeed and nanotron, their documentation of 2025 and 2026.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from roofline.layout import ORDER, OVERLAP, RECOMPUTE, SCHEDULE, Layout
from roofline.names import choose
from roofline.space import CHOICES, Job, sensible

NAMED: dict[str, dict[str, int]] = {
    "schedule": SCHEDULE,
    "recompute": RECOMPUTE,
    "order": ORDER,
    "sequence_parallel": {"off": 0, "on": 1},
}
SHARES = ("recompute_share", "offload_share")
MOST = 10_000_000

Limit = int | float | str | Sequence[int | float | str]
Values = dict[str, tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class Framework:
    """What one framework can run, where that is less than everything."""

    name: str
    about: str
    can: Mapping[str, tuple[str | int, ...]] = field(default_factory=dict)
    habits: Mapping[str, float] = field(default_factory=dict)

    @property
    def base(self) -> Layout:
        """A layout with its habits."""
        return replace(Layout(1), **self.habits)


WHOLE_LAYERS = ("none", "attention", "half", "full")  # nothing that names modules of a layer
FUSED = {"tp_overlap": OVERLAP["fine"], "fused_loss": 1}

FRAMEWORKS = {
    row.name: row
    for row in (
        Framework("any", "whatever any framework can do", habits=FUSED),
        Framework(
            "megatron",
            "Megatron-LM and Megatron-Bridge: 1F1B plain and interleaved, distributed optimizer",
            {
                "schedule": ("1f1b",),
                "zero": (0, 1),
                "shard": (0,),
                "recompute": ("none", "attention", "modules", "full"),
            },
            FUSED,
        ),
        Framework(
            "torchtitan",
            "torchtitan: FSDP2 and HSDP, tensor, context and pipeline parallelism",
            {
                **{"zero": (3,), "schedule": ("1f1b", "zb-v"), "order": ("tp-cp-dp-pp",)},
                **{"etp": (1,), "recompute": WHOLE_LAYERS},
            },
            {"fused": 1},
        ),
        Framework(
            "deepspeed",
            "DeepSpeed: ZeRO, plain 1F1B; no context parallelism",
            {
                **{"schedule": ("1f1b",), "chunks": (1,), "cp": (1,), "zero": (0, 1, 2, 3)},
                "recompute": WHOLE_LAYERS,
            },
        ),
        Framework(
            "fsdp",
            "PyTorch FSDP2 alone",
            {"tp": (1,), "cp": (1,), "pp": (1,), "ep": (1,), "zero": (3,)},
        ),
        Framework(
            "nanotron",
            "nanotron: 1F1B, tensor parallelism, ZeRO-1",
            {"schedule": ("1f1b",), "chunks": (1,), "zero": (0, 1), "recompute": ("none", "full")},
        ),
    )
}


def values(job: Job, framework: Framework, limits: Mapping[str, Limit]) -> Values:
    """Values of every choice: what is sensible, can be done, and is allowed.

    Raises:
        ValueError: a limit on something that is no choice, or a value that cannot be.
    """
    found: Values = dict(sensible(job))
    for name, can in framework.can.items():
        able = tuple(_value(name, one) for one in can)
        kept = tuple(v for v in found[name] if v in able)
        found[name] = kept or able
    for name, limit in limits.items():
        choose("limit", name, dict.fromkeys(CHOICES))
        found[name] = allowed(name, limit, found[name])
    return found


def allowed(name: str, limit: Limit, usual: Sequence[float]) -> tuple[float, ...]:
    """The values that a limit names; a range takes what is usual between its ends.

    Raises:
        ValueError: text that is no value of this choice, naming it.

    >>> allowed("pp", "2-8", (1, 2, 4, 8, 16))
    (2.0, 4.0, 8.0)
    """
    parts = limit.split(",") if isinstance(limit, str) else limit
    found: list[float] = []
    for part in parts if isinstance(parts, Sequence) else [parts]:
        text = part.strip() if isinstance(part, str) else part
        ends = text.split("-") if isinstance(text, str) and name not in NAMED else []
        if len(ends) == 2:
            low, high = (_value(name, end) for end in ends)
            if low > high:
                raise ValueError(f"{name}: {text!r} is refused; allowed: {high:g}-{low:g}")
            inside = [v for v in usual if low <= v <= high]
            found += inside or [low, high]
        else:
            found.append(_value(name, text))
    if not found:
        raise ValueError(f"{name}: nothing is allowed; give at least one value")
    return tuple(sorted(dict.fromkeys(map(float, found))))


def _value(name: str, value: int | float | str) -> float:
    """A value of a choice, by name or number."""
    if name in NAMED and isinstance(value, str):
        return float(choose(name, value.lower(), NAMED[name]))
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{name}: {value!r} is refused; allowed: {_said(name)}") from None
    if not _fits(name, number):
        raise ValueError(f"{name}: {value!r} is refused; allowed: {_said(name)}")
    return number


def _fits(name: str, number: float) -> bool:
    if name in NAMED:
        return number in NAMED[name].values()
    if name in SHARES:
        return 0 <= number <= 1
    least = 0 if name in ("zero", "shard") else 1
    return number == int(number) and least <= number <= (3 if name == "zero" else MOST)


def _said(name: str) -> str:
    if name in NAMED:
        return ", ".join(NAMED[name])
    if name in SHARES:
        return "0 to 1"
    least = 0 if name in ("zero", "shard") else 1
    return (
        f"whole numbers, {least} to 3" if name == "zero" else f"whole numbers of {least} and more"
    )
