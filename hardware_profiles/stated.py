"""Every number that a profile states: whose it is, how it was written, where it was read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hardware_profiles.schema import Accelerator, Cluster, Link, NetworkTier
from hardware_profiles.writing import unit_of, written


@dataclass(frozen=True, slots=True)
class Stated:
    """One number of a profile."""

    part: str  # the chip, a link, a tier or the rental
    field: str
    value: float
    unit: str  # the base unit; "1" for a count
    text: str  # with a prefix and the unit
    source: str


def stated(profile: Accelerator | Cluster) -> list[Stated]:
    """The numbers of ``profile`` from the chip outwards; what follows from them is in ``derived``.

    >>> from hardware_profiles import accelerator
    >>> [(n.field, n.text) for n in stated(accelerator("h100-sxm"))][:2]
    [('hbm_bytes', '80 GB'), ('hbm_bandwidth', '3.35 TB/s')]
    """
    chip = profile.accelerator if isinstance(profile, Cluster) else profile
    found = [
        Stated(chip.title, field, value, *_unit(Accelerator, field, value), chip.source_of(field))
        for field, value in chip.numbers().items()
    ]
    found += [number for link in chip.links for number in _of_link(link, link.name)]
    if not isinstance(profile, Cluster):
        return found
    if profile.host_link:
        found += _of_link(profile.host_link, f"{profile.host_link.name} to the host")
    found += [number for tier in profile.tiers for number in _of_tier(tier)]
    if profile.price is not None:
        price = _unit(Cluster, "price", profile.price)
        found.append(Stated("rental", "price", profile.price, *price, profile.price_source))
    return found


def _of_link(link: Link, part: str) -> Iterator[Stated]:
    yield Stated(part, "count", link.count, "1", f"{link.count}", link.source)
    width = _unit(Link, "bandwidth", link.bandwidth)
    yield Stated(part, "bandwidth", link.bandwidth, *width, link.source)


def _of_tier(tier: NetworkTier) -> Iterator[Stated]:
    for field, about in NetworkTier.model_fields.items():
        value = getattr(tier, field)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if number and value != about.default:
            unit = _unit(NetworkTier, field, value)
            yield Stated(tier.name, field, value, *unit, tier.source)


def _unit(model: Any, field: str, value: float) -> tuple[str, str]:
    unit = unit_of(model, field.split(".")[0])
    return (unit, written(value, unit)) if unit else ("1", f"{value:,g}")
