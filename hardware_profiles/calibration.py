"""What machines achieve of their datasheets: an overlay with a name and a source, never an edit.

Peak and achieved stay apart. ``calibrate(cluster, overlay)`` gives a copy of the cluster with every
rate scaled, so that each formula, page and command works on it unchanged; the copy's name says
which overlay made it.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError, field_validator

from hardware_profiles import catalog, reading
from hardware_profiles.behaviour import IsolatedFit, StepFit
from hardware_profiles.errors import ProfileError, all_known, explain
from hardware_profiles.quantity import Latency
from hardware_profiles.schema import DTYPES, Accelerator, Cluster, NetworkTier, Strict, Text

Fraction = Annotated[float, Field(gt=0, le=1.2, json_schema_extra={"unit": "1"})]


class TierFraction(Strict):
    """Achieved over stated bandwidth of a tier, and the latency of one message over it."""

    bandwidth: Fraction
    latency: Latency = 0.0


class Calibration(Strict):
    """Achieved over peak for one accelerator type; the last tier stands for all beyond it."""

    name: Text
    accelerators: tuple[Text, ...] = Field(min_length=1)
    matmul: dict[str, Fraction]
    hbm: Fraction
    tiers: tuple[TierFraction, ...] = Field(min_length=1)
    error: str = Field(
        "", description="how far predictions with this overlay were from cases it was not fitted to"
    )
    step: StepFit | None = Field(None, description="what the whole-step model was fitted to")
    isolated: IsolatedFit | None = Field(
        None, description="collectives with the network to themselves"
    )
    source: Text

    @field_validator("matmul")
    @classmethod
    def _has_known_dtypes(cls, value: dict[str, float]) -> dict[str, float]:
        all_known("dtype", value, DTYPES)
        if not value:
            raise ValueError("at least one dtype needs a fraction")
        return value

    def tier(self, index: int) -> TierFraction:
        """The fractions of the tier at ``index`` from the inside."""
        return self.tiers[min(index, len(self.tiers) - 1)]

    def matmul_fraction(self, dtype: str) -> float:
        """Achieved over peak for ``dtype``; the lowest fraction for a dtype nobody measured."""
        return self.matmul.get(dtype, min(self.matmul.values()))


def calibrations() -> list[str]:
    """Names of every overlay that can be loaded, sorted: shipped ones and a user's own."""
    return sorted(catalog.index("calibration"))


def calibration(name: str) -> Calibration:
    """The overlay called ``name``, or the one in the file ``name``.

    Raises:
        ProfileError: unknown, unreadable or wrong.
    """
    path = catalog.find(name, "calibration", calibrations())
    overlay = _read(path, catalog.stamp(path))
    catalog.check_name(overlay.name, path, "calibration")
    return overlay


@lru_cache(maxsize=64)
def _read(path: Path, _stamp: object) -> Calibration:
    data = reading.mapping(reading.text_of(path), str(path))
    kind = data.pop("kind", "calibration")
    if kind != "calibration":
        raise ProfileError(f"{path}: kind: {str(kind)[:80]!r} is not a calibration")
    try:
        return Calibration.model_validate(data)
    except ValidationError as error:
        raise explain(error, str(path), Calibration) from None


def for_accelerator(name: str) -> Calibration | None:
    """The overlay that covers the accelerator ``name``, if one does; a user's own comes first."""
    own = catalog.own("calibration")
    names = sorted(calibrations(), key=lambda overlay: overlay not in own)
    return next((c for c in map(calibration, names) if name in c.accelerators), None)


def calibrate(cluster: Cluster, overlay: Calibration) -> Cluster:
    """``cluster`` with every rate scaled to what ``overlay`` says is achieved, validated afresh.

    Raises:
        ProfileError: when the overlay was made for other accelerators, or leaves no real rate.
    """
    if cluster.accelerator.name not in overlay.accelerators:
        made_for = ", ".join(overlay.accelerators)
        raise ProfileError(
            f"calibration {overlay.name} is for {made_for}, not for {cluster.accelerator.name}"
        )
    tiers = [_tier(tier, overlay.tier(i), overlay) for i, tier in enumerate(cluster.tiers)]
    changed: dict[str, Any] = {
        "name": f"{cluster.name} ({overlay.name})",
        "accelerator": _scaled(cluster.accelerator, overlay),
        "tiers": tiers,
    }
    try:
        return Cluster.model_validate(cluster.model_dump() | changed)
    except ValidationError as error:
        raise explain(error, f"calibration {overlay.name}", Cluster) from None


def _tier(tier: NetworkTier, achieved: TierFraction, overlay: Calibration) -> dict[str, Any]:
    return tier.model_dump() | {
        "bandwidth": tier.bandwidth * achieved.bandwidth,
        "latency": achieved.latency or tier.latency,
        "reason": tier.reason or f"achieved, not stated: {overlay.source}",
        "source": f"{tier.source}; achieved: {overlay.source}",
    }


def _scaled(accelerator: Accelerator, overlay: Calibration) -> dict[str, Any]:
    rates = {d: rate * overlay.matmul_fraction(d) for d, rate in accelerator.peak_flops.items()}
    achieved = {
        f: f"{accelerator.source_of(f)}; achieved: {overlay.source}"
        for f in ("peak_flops", "hbm_bandwidth")
    }
    return accelerator.model_dump(exclude_unset=True) | {
        "peak_flops": rates,
        "hbm_bandwidth": accelerator.hbm_bandwidth * overlay.hbm,
        "reason": accelerator.reason or f"achieved, not stated: {overlay.source}",
        "sources": accelerator.sources | achieved,
    }
