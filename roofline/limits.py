"""What a plan may choose from: limits that people state, and what frameworks can do.

    tp=8    pp="2-8"    micro_batch=(1, 2)    recompute="none,full"    schedule="1f1b"

A framework is a row: the choices that it has, those of them that do not go together, habits of its
layouts, and what it keeps of each parameter. A limit replaces what is sensible, so that an unusual
value is tried where it is asked for; one that the framework cannot do is refused.

Sources: Megatron-LM, torchtitan, DeepSpeed and nanotron, their documentation of 2025 and 2026.
torchtitan, models/*/infra/pipeline and torch/distributed/pipelining/schedules.py: zero-bubble
schedules refuse compiled blocks. DeepSpeed, runtime/pipe/engine.py (ZeRO-2 and 3), its AutoTP
training tutorial (ZeRO-3). nanotron, parallel/context.py: ranks as (pp, dp, cp, tp).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches

import numpy as np

from roofline import frameworks
from roofline.layout import CHEAP, FLASH, ORDER, OVERLAP, RECOMPUTE, SCHEDULE, Layout
from roofline.layout import MODULES as MODULE
from roofline.model import Transformer
from roofline.names import choose
from roofline.recipes import Recipe
from roofline.space import CHOICES, Job, Mask, Rule, Table, sensible

NAMED: dict[str, dict[str, int]] = {
    "schedule": SCHEDULE,
    "recompute": RECOMPUTE,
    "order": ORDER,
    "sequence_parallel": {"off": 0, "on": 1},
}
KEYWORDS = (
    *("gpus", "tokens", "sequence", "precision", "recipe", "rates", "framework", "headroom"),
    "imbalance",
)
CUT = ("gpus", "batch", "sequence", "tp", "cp", "pp", "ep", "recompute", "sequence_parallel")
SHARES = ("recompute_share", "offload_share")
MODULES = float(RECOMPUTE["modules"])
MOST = 10_000_000
WIDEST = 4.0  # bytes of a gradient on the wire, whatever else is kept of it

Limit = int | float | str | Sequence[int | float | str]
Values = dict[str, tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class Framework:
    """What one framework can run, where that is less than everything."""

    name: str
    about: str
    can: Mapping[str, tuple[str | int | float, ...]] = field(default_factory=dict)
    habits: Mapping[str, float] = field(default_factory=dict)
    recipes: Mapping[str, str] = field(default_factory=dict)  # by precision; "": of every other
    rules: tuple[tuple[str, Rule], ...] = ()  # of choices together
    sums: bool = False  # gradients are reduced as they are kept: Megatron's one buffer for both

    @property
    def base(self) -> Layout:
        """A layout with its habits."""
        return replace(Layout(1), **self.habits)

    def recipe(self, precision: str) -> str | None:
        """What it keeps of each parameter; None where it has no habit of its own."""
        return self.recipes.get(precision, self.recipes.get(""))

    def only(self) -> dict[str, float]:
        """Choices of which it can do one value."""
        return {name: _value(name, can[0]) for name, can in self.can.items() if len(can) == 1}

    def cut_as(self, least: Layout, base: Layout) -> Layout:
        """``base`` with the cuts and the recomputation of another layout, as far as it can do them."""
        taken = {name: getattr(least, name) for name in CUT} | self.only()
        if taken["recompute"] and "full" not in self.can.get("recompute", ("full",)):
            taken["recompute"] = RECOMPUTE["block"]
        return replace(base, **taken)

    def usual(self, model: Transformer, kept: Recipe, fitted: bool) -> Layout:
        """A layout with its habits, for a model of which ``kept`` is kept.

        Args:
            fitted: whether step rates were fitted to runs, which alone tell how much fine-grained
                overlap hides.
        """
        has = CHEAP if model.latent else CHEAP - MODULE["mla-up"]
        base = replace(self.base, recompute_modules=has)
        if self.sums:
            base = replace(base, gradient_bytes=min(WIDEST, float(kept.states.gradients)))
        fine = base.tp_overlap == OVERLAP["fine"]
        return replace(base, tp_overlap=OVERLAP["backward"]) if fine and not fitted else base


def _published(name: str, **more: float) -> dict[str, float]:
    """Habits as the published runs of a framework show them."""
    row = next(row for row in frameworks.FRAMEWORKS if row.name == name)
    return {
        "attention": FLASH[row.attention],
        "fused": int(row.fused),
        "tp_overlap": OVERLAP[row.tp_overlap],
        **more,
    }


def _every_layer(t: Table) -> Mask:
    return np.asarray((t["recompute"] != RECOMPUTE["half"]) | (t["recompute_share"] == 1))


def _parts_of_all(t: Table) -> Mask:
    part = (t["recompute"] == RECOMPUTE["attention"]) | (t["recompute"] == MODULES)
    return np.asarray(~part | (t["recompute_share"] == 1))


def _whole_contexts(t: Table) -> Mask:
    return np.asarray((t["shard"] == 0) | (t["shard"] % t["cp"] == 0))


def _no_gradients_cut(t: Table) -> Mask:
    return np.asarray((t["pp"] == 1) | (t["zero"] < 2))


def _no_weights_cut(t: Table) -> Mask:
    return np.asarray((t["tp"] == 1) | (t["zero"] < 3))


# Of a model that is the user's own code: FlashAttention-2, and each small operation a kernel.
KERNELS = {"attention": FLASH["flash-2"], "fused": 0, "fused_experts": 0}
# In bf16 Megatron-LM sums and reduces gradients in fp32 but under --grad-reduce-in-bf16.
FUSED = {"tp_overlap": OVERLAP["fine"], "fused_loss": 1, "gradient_bytes": 4}
SHARDED = {"": "fsdp-fp8", "bf16": "fsdp", "fp16": "fsdp"}
DTENSOR = {name: row.replace("fsdp", "fsdp-dtensor") for name, row in SHARDED.items()}
OUTSIDE = ("tp-cp-dp-pp",)  # the pipeline

FRAMEWORKS = {
    row.name: row
    for row in (
        Framework("any", "whatever any framework can do", habits=FUSED, sums=True),
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
            rules=(("Megatron repeats parts of all layers, or some layers whole", _parts_of_all),),
            sums=True,
        ),
        Framework(
            "torchtitan",
            "torchtitan, compiled: FSDP2 and HSDP, tensor, context and pipeline parallelism, "
            "1F1B plain and interleaved; no asynchronous tensor parallelism",
            {
                "zero": (3,),
                "schedule": ("1f1b",),
                "order": OUTSIDE,
                "etp": (1,),
                "recompute": ("none", "half", "block"),
            },
            _published("torchtitan", gradient_bytes=4),
            DTENSOR,
            (
                ("torchtitan repeats every second matmul in all layers or none", _every_layer),
                ("torchtitan shards over whole context-parallel groups", _whole_contexts),
            ),
        ),
        Framework(
            "deepspeed",
            "DeepSpeed: ZeRO, AutoTP, plain 1F1B; no context parallelism",
            {
                "schedule": ("1f1b",),
                "chunks": (1,),
                "cp": (1,),
                "zero": (0, 1, 2, 3),
                "order": OUTSIDE,
                "etp": (1,),
                "sequence_parallel": ("off",),
                "recompute": ("none", "full"),
            },
            KERNELS | {"tp_overlap": OVERLAP["none"]},
            {"": "bf16-gradients"},
            (
                ("DeepSpeed's pipeline goes with ZeRO-1 at most", _no_gradients_cut),
                ("DeepSpeed's AutoTP goes with ZeRO-2 at most", _no_weights_cut),
            ),
        ),
        Framework(
            "fsdp",
            "PyTorch FSDP2 alone",
            {
                "tp": (1,),
                "cp": (1,),
                "pp": (1,),
                "ep": (1,),
                "zero": (3,),
                "recompute": ("none", "half", "block"),
            },
            {"attention": FLASH["flash-2"], "gradient_bytes": 4},
            SHARDED,
        ),
        Framework(
            "nanotron",
            "nanotron: 1F1B, tensor parallelism, ZeRO-1",
            {
                "schedule": ("1f1b",),
                "chunks": (1,),
                "zero": (0, 1),
                "shard": (0,),
                "order": OUTSIDE,
                "recompute": ("none", "full"),
                "recompute_share": (1.0,),
            },
            _published("nanotron", gradient_bytes=4),
            {"": "mixed"},
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
        if name == "recompute" and MODULES not in found[name]:  # of no model that gains by them
            able = tuple(v for v in able if v != MODULES)
        kept = tuple(v for v in found[name] if v in able)
        found[name] = able if name in NAMED else kept or able
    for name, limit in limits.items():
        _known(name)
        found[name] = allowed(name, limit, found[name])
        beyond(framework, name, found[name])
    return found


def _known(name: str) -> None:
    """Pass for the name of a choice."""
    if name not in CHOICES:
        close = get_close_matches(name, (*CHOICES, *KEYWORDS), 1)
        near = f"; the nearest: {close[0]}" if close else ""
        raise ValueError(f"{name}: a plan takes no such limit{near}; allowed: {', '.join(CHOICES)}")


def beyond(framework: Framework, name: str, asked: Sequence[float]) -> None:
    """Pass where a framework can do all values of a choice that are asked for.

    Raises:
        ValueError: one that it cannot, naming those that it can.
    """
    can = {_value(name, one): one for one in framework.can.get(name, ())}
    wrong = [value for value in asked if can and value not in can]
    if wrong:
        number = wrong[0]
        words = {float(code): word for word, code in NAMED.get(name, {}).items()}
        raise ValueError(
            f"{name}: {words.get(number, f'{number:g}')} is refused, {framework.name} cannot do it; "
            f"allowed: {', '.join(map(str, can.values()))}, or framework any"
        )


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
    if isinstance(value, bool | np.bool_) and name != "sequence_parallel":
        raise ValueError(f"{name}: {value!r} is refused; allowed: {_said(name)}")
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
