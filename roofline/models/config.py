"""A model from the ``config.json`` of a Hugging Face repository: where files are read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from roofline.model import Transformer
from roofline.models.families import transformer
from roofline.models.fields import Fields

MAX_BYTES = 1_000_000


def from_config(source: Mapping[str, Any] | str | Path, name: str = "") -> Transformer:
    """The model that a configuration describes.

    Args:
        source: its fields, or the path of a ``config.json`` or of the folder that holds one.
        name: of the model; by default what the configuration calls itself.

    Raises:
        ValueError: a file that cannot be read or holds no JSON mapping; an unknown ``model_type``,
            naming the nearest; a field that is missing, of a wrong type, or does not fit.

    >>> sizes = {"n_layer": 12, "n_embd": 768, "n_head": 12, "n_positions": 1024}
    >>> from_config({"model_type": "gpt2", "vocab_size": 50257, **sizes}).heads
    12
    """
    if isinstance(source, Mapping):
        return transformer(Fields(source, "config: "), name)
    path = Path(source)
    if path.is_dir():
        path = path / "config.json"
    where = f"{str(path)[:200]}: "
    return transformer(Fields(_mapping(_text(path, where), where), where), name)


def _text(path: Path, where: str) -> str:
    try:
        data = path.read_bytes() if path.stat().st_size <= MAX_BYTES else None
    except (OSError, ValueError) as error:
        raise ValueError(f"{where}cannot be read: {getattr(error, 'strerror', error)}") from None
    if data is None:
        raise ValueError(f"{where}is too large for a config.json; allowed: up to {MAX_BYTES} bytes")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{where}is not text in UTF-8") from None


def _mapping(text: str, where: str) -> dict[str, Any]:
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise ValueError(f"{where}not JSON: {error.msg}, {place}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}a value cannot be read: {str(error)[:100]}") from None
    if not isinstance(values, dict):
        kind = type(values).__name__
        raise ValueError(f"{where}a configuration is a mapping of fields to values, not a {kind}")
    return values
