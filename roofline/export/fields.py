"""A job as named fields, flat: what the rows of every format write from and read into.

    model.layers, model.latent.kv_rank, model.experts.count      sizes; a part left out has no field
    layout.tp, layout.schedule = "1f1b"                          degrees; named choices by their name
    precision, recipe, node                                      node: GPUs of one

Two jobs differ where a field does that has an effect: the schedule of a pipeline with one stage
has none (``MOOT``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import partial
from math import inf, isclose
from typing import Any

import numpy as np

from roofline.layout import (
    CHEAP,
    FLASH,
    MODULES,
    ORDER,
    OVERLAP,
    RECOMPUTE,
    RING,
    SCHEDULE,
    ZERO_KIND,
    Layout,
    modules_in,
)
from roofline.machine import node_size
from roofline.model import Experts, Latent, Transformer, Window
from roofline.names import choose
from roofline.recipes import RECIPES, Recipe
from roofline.training import RECIPE_OF, Training

Fields = dict[str, Any]
NAMED = {
    "schedule": SCHEDULE,
    "recompute": RECOMPUTE,
    "tp_overlap": OVERLAP,
    "cp_kind": RING,
    "attention": FLASH,
    "order": ORDER,
    "zero_kind": ZERO_KIND,
}
READ: dict[str, Callable[[str], int]] = {
    **{name: partial(choose, name, rows=choices) for name, choices in NAMED.items()},
    "recompute_modules": lambda names: sum(
        choose("recompute_modules", name, MODULES) for name in names.split("+")
    ),
}
PARTS = {"latent": Latent, "window": Window, "experts": Experts}
LAYOUT = [f.name for f in fields(Layout)]
DEGREES = ("gpus", "tp", "cp", "pp", "ep", "etp", "chunks", "micro_batch", "batch", "sequence")
PLACE = ("node", "model.name")  # say where or what, not how


def flat(training: Training) -> Fields:
    """The fields of one job.

    Raises:
        ValueError: where the layout is a column of layouts.
    """
    found = flat_model(training.model)
    found |= {f"layout.{name}": _shown(name, getattr(training.layout, name)) for name in LAYOUT}
    found["precision"] = training.precision
    found["recipe"] = recipe_name(training.recipe)
    found["node"] = node_size(training.cluster.tiers)
    return found


def flat_model(model: Transformer) -> Fields:
    """The sizes of a model, as fields."""
    return {f"model.{name}": value for name, value in _walk(model)}


def _walk(part: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for field in fields(part):
        value = getattr(part, field.name)
        if is_dataclass(value):
            yield from _walk(value, f"{prefix}{field.name}.")
        elif not (field.name in PARTS and value is None):
            yield prefix + field.name, value


def _shown(name: str, value: Any) -> Any:
    """A number as Python's own, whole where it is; a choice by its name."""
    if np.ndim(value):
        raise ValueError(
            f"layout.{name}: {np.shape(value)} values are refused; allowed: one layout, not a column"
        )
    number = float(value)
    if name == "recompute_modules":
        return "+".join(modules_in(value))
    if name in NAMED:
        return list(NAMED[name])[int(number)]
    return int(number) if number.is_integer() else number


def recipe_name(recipe: Recipe) -> Any:
    """The name of a recipe, or the recipe itself where it is none of ``RECIPES``."""
    return next((name for name, row in RECIPES.items() if row == recipe), recipe)


# Megatron's one buffer of gradients: reduced in 16 bits, they are kept in 16 bits.
SHORT = {"mixed": "bf16-gradients", "fp8": "fp8-bf16-gradients"}


def default_recipe(precision: str, short: bool = False) -> str:
    """What ``training`` keeps of each parameter where nothing is said, or gradients are short."""
    name = RECIPE_OF.get(precision, "fp8")
    return SHORT[name] if short else name


def layout(found: Mapping[str, Any]) -> Layout:
    """The layout of some fields; what they lack is as ``Layout`` has it.

    Raises:
        ValueError: an unknown field or choice, naming the nearest.
    """
    given = _under(found, "layout.")
    for name, value in given.items():
        choose("layout", name, dict.fromkeys(LAYOUT, 0))
        if name not in READ:
            _check(name, value)
    return Layout(**{n: READ[n](str(v)) if n in READ else v for n, v in given.items()})


def _check(name: str, value: Any) -> None:
    least = 1 if name in DEGREES else 0
    kind = isinstance(value, int | float) and not isinstance(value, bool)
    if not kind or not value >= least or (value == inf and name != "node_limit"):
        limit = f"a number from {least}"
        raise ValueError(f"layout.{name}: {str(value)[:60]!r} is refused; allowed: {limit}")


def model(found: Mapping[str, Any]) -> Transformer | None:
    """The model of some fields; None where they lack a size that has no default.

    Raises:
        ValueError: an unknown field, or a size that no such model has.
    """
    sizes = _under(found, "model.")
    parts = {name: _part(kind, _under(sizes, f"{name}.")) for name, kind in PARTS.items()}
    plain = {n: v for n, v in sizes.items() if "." not in n and not (n in PARTS and v is None)}
    for name in PARTS.keys() & plain.keys():
        raise ValueError(f"model.{name}: {str(plain[name])[:60]!r} is refused; allowed: a mapping")
    known = {f.name: f.default for f in fields(Transformer)}
    for name in plain:
        choose("model", name, known)
    plain.setdefault("name", "imported")
    if any(rule is MISSING and name not in plain for name, rule in known.items()):
        return None
    return Transformer(**plain, **{name: part for name, part in parts.items() if part})


def lacking(found: Mapping[str, Any]) -> tuple[str, ...]:
    """Sizes without a default that some fields lack, where they state others."""
    needed = [f.name for f in fields(Transformer)[1:] if f.default is MISSING]
    missing = tuple(name for name in needed if f"model.{name}" not in found)
    return missing if len(missing) < len(needed) else ()


def _part(kind: Any, given: Mapping[str, Any]) -> Any:
    for name in given:
        choose(kind.__name__, name, {f.name: 0 for f in fields(kind)})
    needed = [f.name for f in fields(kind) if f.default is MISSING]
    return kind(**given) if given and all(name in given for name in needed) else None


def _under(found: Mapping[str, Any], prefix: str) -> Fields:
    return {key.removeprefix(prefix): v for key, v in found.items() if key.startswith(prefix)}


def complete(found: Mapping[str, Any]) -> Fields:
    """The fields with every default of ``Layout`` and ``Transformer`` filled in."""
    whole = {f"layout.{f.name}": _shown(f.name, f.default) for f in fields(Layout)[1:]}
    if "model.layers" in found:
        rows: list[tuple[str, Any]] = [("model.", Transformer)]
        rows += [(f"model.{n}.", k) for n, k in PARTS.items() if _under(found, f"model.{n}.")]
        for prefix, kind in rows:
            whole |= {
                prefix + f.name: f.default
                for f in fields(kind)
                if f.default is not MISSING and f.name not in PARTS
            }
    return whole | {"precision": "bf16"} | dict(found)


def data_ranks(found: Mapping[str, Any]) -> float:
    """Ranks that states are sharded over, and gradients reduced: replicas times cp."""
    return float(found["layout.gpus"] / (found["layout.tp"] * found["layout.pp"]))


def _no_experts(f: Fields) -> bool:
    return "model.layers" in f and "model.experts.count" not in f


def _expert_ranks(f: Fields) -> float:
    """Ranks that reduce an expert's gradient, if there may be experts; else 1."""
    if _no_experts(f):
        return 1.0
    return float(f["layout.gpus"] / (f["layout.pp"] * f["layout.ep"] * f["layout.etp"]))


# Where the first holds, the others have no effect.
MOOT: tuple[tuple[Callable[[Fields], bool], tuple[str, ...]], ...] = (
    (lambda f: f["layout.tp"] == 1, ("sequence_parallel", "tp_overlap")),
    (lambda f: f["layout.cp"] == 1, ("cp_kind",)),
    (lambda f: f["layout.pp"] == 1, ("schedule", "pp_overlap", "chunks", "even", "order")),
    (lambda f: f["layout.chunks"] == 1, ("pp_overlap",)),  # only behind other chunks
    (
        _no_experts,
        (
            *("etp", "ep_overlap", "deduplicated", "node_limit", "imbalance", "dispatch_bytes"),
            *("dropless", "fused_experts"),
        ),
    ),
    (
        lambda f: f["layout.ep"] == 1,
        ("ep_overlap", "deduplicated", "node_limit", "imbalance", "dispatch_bytes"),
    ),
    (lambda f: f["layout.recompute"] == "none", ("recompute_share",)),
    (lambda f: f["layout.recompute"] != "modules", ("recompute_modules",)),
    (
        lambda f: max(data_ranks(f), _expert_ranks(f)) == 1,
        (
            *("zero", "shard", "reshard", "dp_overlap", "gradient_bytes", "weight_bytes"),
            "order",
        ),
    ),
    (lambda f: f["layout.zero"] == 0, ("shard", "weight_bytes")),
    (lambda f: f["layout.zero"] in (0, 3), ("zero_kind",)),
    (lambda f: f["layout.zero"] < 3, ("reshard",)),
    (lambda f: not f["layout.lora_rank"], ("frozen_bytes",)),
    (lambda f: f["layout.ep"] * f["layout.etp"] <= f.get("node", 8), ("node_limit",)),
)


def without_moot(found: Mapping[str, Any]) -> Fields:
    """The fields, without those of the layout that have no effect."""
    whole = complete(found)
    names = {f"layout.{name}" for moot, names in MOOT if moot(whole) for name in names}
    return {name: value for name, value in found.items() if name not in names}


def pieces(fields: Mapping[str, Any], even: int) -> str:
    """Virtual stages from the bottom, as Megatron-Core reads them; empty where one has no layer.

    >>> pieces({"layout.pp": 4, "model.layers": 14, "model.mtp": 1}, 0)
    'Et*4|t*4|t*3|t*3mL'
    """
    count, mtp = fields["layout.pp"] * fields.get("layout.chunks", 1), fields.get("model.mtp", 0)
    slots = fields["model.layers"] + (2 + mtp if even else 0)
    if count > slots:
        return ""
    layers = [slots // count + (i < slots % count) for i in range(count)]
    if even:
        layers[0] -= 1
        layers[-1] -= 1 + mtp
    if min(layers) < 1:
        return ""
    cut = "|".join(f"t*{some}" for some in layers)
    return f"E{cut}{'m' * mtp}L"


# Modules that there are only in models with these sizes.
NEEDED = {"model.experts.count": ("experts",), "model.latent.kv_rank": ("mla-up",)}


def repeated(found: Mapping[str, Any]) -> str:
    """The modules to recompute that the model has."""
    chosen = str(found.get("layout.recompute_modules", _shown("recompute_modules", CHEAP)))
    without = {name for part, names in NEEDED.items() if part not in found for name in names}
    return "+".join(name for name in chosen.split("+") if name not in without)


def settled(found: Mapping[str, Any]) -> Fields:
    """Only the fields that have an effect; the vocabulary as padded, a whole shard as 0.

    How stages are cut is told by the stages: two rules may come to the same.
    """
    left = without_moot(complete(found))
    if "layout.even" in left and "model.layers" in left:
        left["layout.even"] = pieces(complete(found), left["layout.even"]) or left["layout.even"]
    if "layout.recompute_modules" in left and "model.layers" in left:
        left["layout.recompute_modules"] = repeated(left)
    if left.get("layout.shard", 0) >= data_ranks(complete(found)):
        left["layout.shard"] = 0
    if "model.vocab_multiple" in left:
        multiple = left.pop("model.vocab_multiple")
        left["model.vocab"] = -(-left["model.vocab"] // multiple) * multiple
    if left["layout.tp"] == 1 and "dtensor" in str(left.get("recipe")):
        left["recipe"] = str(left["recipe"]).replace("-dtensor", "")
    made = model(found)
    if made and not made.dense_layers:
        left.pop("model.d_ff", None)
    if made and made.latent:
        left.pop("model.head_dim", None)
    return left


def differences(meant: Mapping[str, Any], said: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Fields with an effect whose value is not what a file says: field → meant, said."""
    want, got = settled(meant), settled(said)
    whole = complete(said)
    found = {}
    for name, value in want.items():
        other = got.get(name, whole.get(name))
        if name not in PLACE and not _same(value, other):
            found[name] = (value, other)
    return found


def _same(one: Any, other: Any) -> bool:
    numbers = isinstance(one, int | float) and isinstance(other, int | float)
    return isclose(one, other, rel_tol=1e-9) if numbers else bool(one == other)
