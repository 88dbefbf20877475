"""Plain JSON: model, layout, precision and recipe as this calculator has them, without loss."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from roofline.export.deepspeed import as_mapping
from roofline.export.fields import LAYOUT, PARTS, Fields, complete, default_recipe
from roofline.export.rows import Options, dotted
from roofline.memory import Convention
from roofline.recipes import Recipe

VERSION = 1
MARK = "roofline"
PARTS_OF = ("model", "layout", "precision", "recipe", "node")


def write(fields: Fields, notes: Sequence[str] = ()) -> str:
    """The JSON text; an unlimited number is null."""
    tree: Fields = {MARK: VERSION, "model": {}, "layout": {}}
    for name, value in fields.items():
        *above, last = name.split(".")
        place = tree
        for key in above:
            place = place.setdefault(key, {})
        place[last] = _shown(value)
    return json.dumps(tree, indent=2, allow_nan=False) + "\n"


def _shown(value: Any) -> Any:
    if isinstance(value, Recipe):
        return asdict(value) | {"states": value.states._asdict()}
    return None if isinstance(value, float) and math.isinf(value) else value


def read_text(text: str, gpus: int | None = None) -> tuple[Fields, Options]:
    """The fields of a file that ``write`` made.

    Raises:
        ValueError: text that is no JSON object, another version, a layout without GPUs.
    """
    tree = as_mapping(text)
    version = tree.pop(MARK, VERSION)
    if version != VERSION:
        raise ValueError(f"{MARK}: version {str(version)[:20]!r} is refused; allowed: {VERSION}")
    given = {key: tree.pop(key) for key in list(tree) if key in PARTS_OF}
    recipe = given.pop("recipe", None)
    found = {name: _read(name, value) for name, value in dotted(given)}
    if recipe is None:
        recipe = default_recipe(str(found.get("precision", "bf16")))
    found["recipe"] = _recipe(recipe) if isinstance(recipe, Mapping) else recipe
    if "layout.gpus" not in found:
        raise ValueError("layout.gpus: missing; allowed: the number of GPUs")
    return complete(found) if "model.layers" in found else found, Options(dict(dotted(tree)))


def _read(name: str, value: Any) -> Any:
    if name.startswith("layout.") and name.removeprefix("layout.") in LAYOUT:
        if value is None:
            return math.inf
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError(
                f"{name}: {str(value)[:60]!r} is refused; allowed: a number, or a name"
            )
    if value == {} and name.rpartition(".")[2] in PARTS:
        return None
    return value


def _recipe(given: Mapping[str, Any]) -> Recipe:
    try:
        return Recipe(**dict(given) | {"states": Convention(**given["states"])})
    except (TypeError, KeyError) as error:
        raise ValueError(f"recipe: {error}; allowed: a name, or the fields of Recipe") from None
