"""Options that some strategies take: the keywords of their bounds, read from the signatures."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any

from roofline.strategies import Strategy

# Options of the command that are keywords of some strategies' bounds.
NAMED = (
    "phase",
    "form",
    "zero",
    "model_parallel",
    "data_parallel",
    "tensor_parallel",
    "microbatches",
    "in_network",
)
INNER = ("model_parallel", "data_parallel", "tensor_parallel")  # axes besides the degree
OF_MACHINE = {"gpus"}  # keywords that --gpus stands for


def takes(entry: Strategy) -> dict[str, Any]:
    """Keywords that a strategy leaves open, with their defaults."""
    fixed = getattr(entry.bound, "keywords", {}).keys() | OF_MACHINE
    parameters = inspect.signature(entry.bound).parameters.values()
    return {
        p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in fixed
    }


def refuse_unused(asked: Mapping[str, Any], rows: Mapping[str, Strategy]) -> None:
    """Pass when each option is taken by one of ``rows`` at least.

    Raises:
        ValueError: naming the option and those that are taken.
    """
    for option in asked:
        if not any(option in takes(row) for row in rows.values()):
            known = sorted({key for row in rows.values() for key in takes(row)})
            taken = ", ".join(_spelt(key) for key in known)
            who = (
                "no strategy takes it" if len(rows) > 1 else f"{next(iter(rows))} does not take it"
            )
            raise ValueError(f"{_spelt(option)}: {who}; allowed: {taken}")


def _spelt(option: str) -> str:
    return f"--{option.replace('_', '-')}" if option in NAMED else f"--set {option}=…"


def read(texts: Sequence[str], rows: Mapping[str, Strategy]) -> dict[str, Any]:
    """NAME=VALUE of --set, read as the strategies' defaults are typed.

    Raises:
        ValueError: no such form, or a value of another type.
    """
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals:
            raise ValueError(f"--set: {text!r} is refused; allowed: NAME=VALUE, such as chunks=2")
        defaults = [takes(row)[name] for row in rows.values() if name in takes(row)]
        found[name] = _typed(text, value.strip(), defaults[0] if defaults else None)
    return found


def _typed(text: str, value: str, default: Any) -> Any:
    if isinstance(default, bool):
        if value.lower() not in ("true", "false"):
            raise ValueError(f"--set: {text!r} is refused; allowed: true, false")
        return value.lower() == "true"
    if isinstance(default, str):
        return value
    if isinstance(default, tuple):
        parts = value.split(",")
        if len(parts) != len(default):
            raise ValueError(f"--set: {text!r} is refused; allowed: {len(default)} numbers, as 2,1")
        return tuple(_typed(text, part, None) for part in parts)
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number > 0):
        raise ValueError(f"--set: {text!r} is refused; allowed: a number above 0")
    return int(number) if number.is_integer() else number
