"""A fitted calibration as a file, and beside it the profile of a machine that no catalogue has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

import hardware_profiles as hp
from hardware_profiles import catalog
from hardware_profiles.calibration import Calibration
from hardware_profiles.schema import Cluster


def write(overlay: Calibration, path: Path) -> None:
    """The file, as ``hardware_profiles.calibration`` reads it, and read once to be sure.

    Raises:
        OSError: when it cannot be written.
    """
    data = {"kind": "calibration"} | rounded(overlay.model_dump(mode="json", exclude_none=True))
    text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=100)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    hp.calibration(str(path.resolve()))


def write_machine(cluster: Cluster, path: Path) -> Path | None:
    """The profile that a run made up of this machine, beside the calibration ``path``; None of another.

    The rates of a calibration are shares of a profile's: those of a catalogue's are there already.

    Raises:
        OSError: when it cannot be written.
    """
    if cluster.name != catalog.LOCAL:
        return None
    there = path.with_name(f"{path.stem}-machine.yaml")
    there.write_text(catalog.to_yaml(cluster.model_copy(update={"name": there.stem})), "utf-8")
    return there


def rounded(value: Any) -> Any:
    """Every number in it to four digits, so that a file says what was fitted."""
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(inner) for inner in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value
