"""A single layout that cannot be is refused by name: what is allowed, and the nearest that would do.

The nearest value is searched among whole numbers with all constraints of ``roofline.constraints``
in force; where one ties several fields, the field that has to move least is named.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roofline.constraints import Rule, misfits, rules, sequence_unit
from roofline.dims import Dims
from roofline.footprint import peak
from roofline.layout import (
    FLASH,
    ORDER,
    OVERLAP,
    RECOMPUTE,
    RING,
    SCHEDULE,
    WORDS,
    ZERO_KIND,
    Layout,
)
from roofline.machine import Machine
from roofline.model import Transformer

__all__ = ["Misfit", "check", "misfits"]

# Whole numbers with their smallest value, and fields with all or the least and most they may be.
WHOLE = dict.fromkeys(
    ("gpus", "tp", "cp", "pp", "ep", "etp", "chunks", "micro_batch", "batch", "sequence"), 1
) | {"shard": 0, "lora_rank": 0}
CHOICES = {
    "zero": 4,
    "even": 3,
    "graphs": 3,
    "schedule": len(SCHEDULE),
    "order": len(ORDER),
    "recompute": len(RECOMPUTE),
    "tp_overlap": len(OVERLAP),
    "cp_kind": len(RING),
    "zero_kind": len(ZERO_KIND),
    "attention": len(FLASH),
} | dict.fromkeys(("reshard", "sequence_parallel", "fused", "dropout"), 2)
BETWEEN = {
    "recompute_share": (0.0, 1.0),
    "offload_share": (0.0, 1.0),
    "ep_overlap": (0.0, 1.0),
    "imbalance": (1.0, math.inf),
}
NEAR = 4096  # degrees, and multiples of a unit, that are tried


class Misfit(ValueError):
    """A layout that cannot be: ``field``, its ``value``, the ``nearest`` values that could be.

    ``reason`` is the constraint, one of ``misfits``; ``limit`` says it with this layout's numbers.
    """

    def __init__(
        self, field: str, value: Any, limit: str, nearest: tuple[float, ...], reason: str = ""
    ) -> None:
        near = " and ".join(_shown(each) for each in nearest)
        told = f"; the nearest: {near}" if near else ""
        super().__init__(f"{field}: {_shown(value)} is refused; allowed: {limit}{told}")
        self.field, self.value, self.limit, self.nearest = field, value, limit, nearest
        self.reason = reason or f"{field} by itself"


def check(
    model: Transformer | Dims,
    layout: Layout,
    cluster: Machine | None = None,
    *,
    names: Mapping[str, str] | None = None,
    believed: Collection[str] = (),
) -> None:
    """Pass when a single layout can be run.

    Args:
        cluster: whose GPUs have to be enough, and have memory; not asked where None.
        names: what the user calls a field, where that is not what ``Layout`` does.
        believed: constraints that are not asked for, since the layout is known to have run.

    Raises:
        Misfit: the first constraint that is broken; a ``ValueError``.
    """
    dims = Dims.of(model) if isinstance(model, Transformer) else model
    try:
        _ranges(layout)
        all_rules = tuple(rule for rule in rules(cluster) if rule.reason not in believed)
        for rule in all_rules:
            if np.any(rule.broken(dims, layout)):
                raise _misfit(rule, all_rules, dims, layout)
        if cluster is not None and not cluster.hbm_bytes > 0:
            least = math.ceil(float(peak(dims, layout).total) / 1e9) * 1e9
            raise Misfit("hbm_bytes", cluster.hbm_bytes, "above 0 bytes", (least,))
    except Misfit as error:
        name = (names or {}).get(error.field, error.field)
        raise Misfit(name, error.value, error.limit, error.nearest, error.reason) from None


def _ranges(layout: Layout) -> None:
    """Every field by itself."""
    for field, least in WHOLE.items():
        value = _number(field, getattr(layout, field), float(least))
        if value < least or value != math.floor(value):
            near = {float(max(least, each)) for each in (math.floor(value), math.ceil(value))}
            raise Misfit(field, value, f"whole numbers from {least}", tuple(sorted(near)))
    for field, count in CHOICES.items():
        value = _number(field, getattr(layout, field), 0.0)
        if value not in range(count):
            known = float(min(max(round(value), 0), count - 1))
            raise Misfit(field, value, ", ".join(map(str, range(count))), (known,))
    for field, (low, high) in BETWEEN.items():
        value = _number(field, getattr(layout, field), low)
        if not low <= value <= high:
            limit = f"{low:g} to {high:g}" if high < math.inf else f"{low:g} and more"
            raise Misfit(field, value, limit, (min(max(value, low), high),))


def _number(field: str, value: Any, least: float) -> float:
    if field in WORDS and isinstance(value, str):
        rows = WORDS[field]
        numbers = ", ".join(f"{name} {number}" for name, number in rows.items())
        near = (float(rows[value]),) if value in rows else ()
        raise Misfit(field, value, f"the number of a word, or Layout.named: {numbers}", near)
    if field in WHOLE and isinstance(value, bool | np.bool_):
        raise Misfit(field, value, "a whole number", (float(value) or least,))
    if isinstance(value, str | bytes) or np.ndim(value) or not np.isreal(value):
        raise Misfit(field, value, "a number", (least,))
    if not math.isfinite(value):
        raise Misfit(field, value, "a finite number", (least,))
    return float(value)


def _misfit(rule: Rule, every: tuple[Rule, ...], model: Dims, layout: Layout) -> Misfit:
    """The field of the rule that has to move least, and where to."""
    already = [other for other in every if np.any(other.broken(model, layout))]
    best: tuple[float, float, str, tuple[float, ...]] | None = None
    for field in rule.fields:
        tried = replace(layout, **{field: (values := _candidates(field, model, layout))})
        broken = {one.reason: _column(one.broken(model, tried), values.size) for one in every}
        mends = ~broken[rule.reason]
        left = np.zeros(values.size)
        for one in every:
            left += broken[one.reason] * (1.0 if one in already else 100.0)
        if not mends.any():
            continue
        cost = float(left[mends].min())
        near = _around(values[mends & (left == cost)], getattr(layout, field))
        far = min(_apart(each, getattr(layout, field)) for each in near)
        if best is None or (cost, far) < best[:2]:
            best = cost, far, field, near
    field, near = (rule.fields[0], ()) if best is None else best[2:]
    limit = rule.limit(field, model, layout)
    return Misfit(field, getattr(layout, field), limit, near, rule.reason)


def _apart(one: float, other: float) -> float:
    """How many times as large, so that fields of any size compare; ties go to the first field."""
    return round(abs(math.log(max(one, 0.5) / max(other, 0.5))), 3)


def _column(mask: Any, size: int) -> NDArray[np.bool_]:
    return np.broadcast_to(np.asarray(mask, bool), (size,))


def _around(values: NDArray[np.float64], value: float) -> tuple[float, ...]:
    """The nearest below and the nearest above."""
    below, above = values[values < value], values[values > value]
    near = [float(below.max())] if below.size else []
    return tuple(near + ([float(above.min())] if above.size else []))


def _candidates(field: str, model: Dims, layout: Layout) -> NDArray[np.float64]:
    """Whole numbers that may stand in a field: small ones, and multiples of what must divide it."""
    value = float(getattr(layout, field))
    if field in CHOICES:
        found = np.arange(float(CHOICES[field]))
    elif field in ("gpus", "batch", "sequence"):
        found = _multiples(value, _unit(field, layout), float(layout.pp))
    else:
        few = np.arange(1.0, NEAR)
        found = np.concatenate([few, np.floor(layout.batch / few), np.floor(layout.gpus / few)])
    least = WHOLE.get(field, 0)
    found = found[(found >= least) & (found != value)]
    return np.unique(np.append(found, 0.0) if field == "shard" and value else found)


def _unit(field: str, layout: Layout) -> float:
    if field == "gpus":
        return float(layout.tp * layout.cp * layout.pp)
    if field == "sequence":
        return float(np.asarray(sequence_unit(layout) * layout.split))
    return max(1.0, round(float(layout.dp))) * float(layout.micro_batch)


def _multiples(value: float, unit: float, stages: float) -> NDArray[np.float64]:
    """Multiples of ``unit`` from the first, around ``value``, and around it in steps of stages."""
    few = np.arange(1.0, NEAR)
    here = np.floor(value / unit) + np.arange(-4.0, 5.0)
    stage = stages * (np.floor(value / (unit * stages)) + np.arange(-2.0, 3.0))
    return unit * np.concatenate([few, here, stage, stages * few])


def _shown(value: Any) -> str:
    plain = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    return f"{value:.10g}" if plain else repr(value)[:60]
