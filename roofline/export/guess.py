"""Which format a text is in."""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any

import yaml

from roofline.export.torchtitan import COMMAND

KEYS = {
    "trace": {"traceEvents"},
    "plain": {"roofline", "layout"},
    "deepspeed": {
        "zero_optimization",
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "gradient_accumulation_steps",
    },
}
OVERRIDE = re.compile(
    r"(?:^|[\s.+'\"])(?:model|train|ddp|comm_overlap|optimizer)\.\w+\s*=", re.MULTILINE
)
ARGUMENT = re.compile(r"(?:^|\s)--[a-z][\w-]*[-_]\w", re.MULTILINE)


def guess(text: str) -> str:
    """The format of a text.

    Raises:
        ValueError: where it looks like none.

    >>> guess("--num-layers 32 --tensor-model-parallel-size 8")
    'megatron'
    """
    if text.lstrip().startswith("{"):
        return _of_json(text)
    if "parallelism" in _toml(text) or "training" in _toml(text):
        return "torchtitan"
    plain = re.sub(r"^\s*#.*$", "", text, flags=re.MULTILINE)
    if COMMAND.search(plain):
        return "torchtitan"
    if OVERRIDE.search(plain):
        return "bridge"
    if ARGUMENT.search(plain):
        return "megatron"
    if {"parallelism", "tokens"} & _yaml(text).keys():
        return "nanotron"
    shown = " ".join(text.split())[:40]
    raise ValueError(
        f"text: {shown!r} is in no format that is known; allowed: Megatron-LM arguments, torchtitan "
        "TOML, DeepSpeed JSON, Megatron-Bridge overrides, nanotron YAML, plain JSON"
    )


def _of_json(text: str) -> str:
    try:
        tree = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None
    for name, keys in KEYS.items():
        if keys & tree.keys():
            return name
    raise ValueError(f"JSON: {list(tree)[:4]} are the keys of no format; allowed: plain, deepspeed")


def _toml(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return {}


def _yaml(text: str) -> dict[str, Any]:
    try:
        tree = yaml.safe_load(text)
    except yaml.YAMLError:
        return {}
    return tree if isinstance(tree, dict) else {}
