"""Shipped calibrations, written: ``step`` and ``error`` replaced, the rest as it was."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import yaml

from hardware_profiles.behaviour import StepFit
from hardware_profiles.catalog import SHIPPED


def write(name: str, step: StepFit, accuracy: Mapping[str, Any] | None, error: str) -> None:
    """Replace ``step`` and ``error`` of a shipped calibration, leaving the rest as it is."""
    path = SHIPPED / "calibrations" / f"{name}.yaml"
    text, _, isolated = path.read_text("utf-8").partition("\nisolated:\n")
    text = text.split("\nstep:\n")[0].rstrip("\n")
    lines = [_line(line, error) for line in text.splitlines()]
    data = json.loads(step.model_copy(update={"accuracy": None}).model_dump_json(exclude_none=True))
    if accuracy:
        data["accuracy"] = {k: v for k, v in accuracy.items() if v is not None}
    block = yaml.safe_dump({"step": _rounded(data)}, sort_keys=False, allow_unicode=True, width=100)
    rest = f"isolated:\n{isolated}" if isolated else ""
    path.write_text("\n".join(lines) + "\n" + block + rest, "utf-8")


def _line(line: str, error: str) -> str:
    return f"error: {json.dumps(error)}" if line.startswith("error:") else line


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _rounded(v) for k, v in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value
