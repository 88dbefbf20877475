"""What the hardware page says in words and tables, without streamlit: verdict, ladder, sources."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from dashboard.hardware_drawing import child_name
from dashboard.words import linked, plain
from hardware_profiles import Accelerator, Cluster, NetworkTier
from hardware_profiles.derived import capacities, memory_ladder, slowest_collective
from hardware_profiles.writing import unit_of, written
from roofline.chip import Level, levels
from roofline.units import show

SPELT = {"sms": "SMs", "sm": "SM", "hbm": "HBM", "l2": "L2", "simd": "SIMD"}


def verdict(cluster: Cluster, dtype: str) -> str:
    """What this machine allows, in three short sentences of Markdown."""
    if cluster.gpus == 1:
        return f"**One {child_name(cluster, 0)}**: nothing to send. {_math(cluster, dtype)}"
    rows, gpu = capacities(cluster), child_name(cluster, 0)
    slowest = slowest_collective(cluster)
    inside = f"{show(rows[0].per_gpu, 'B/s')} for each {gpu} inside {one(rows[0].tier)}"
    if len(rows) > 1:
        inside += f", {show(rows[1].per_gpu, 'B/s')} outside"
    return (
        f"**{inside}.** A collective over all {cluster.gpus:,} runs at "
        f"**{show(slowest.bandwidth, 'B/s')}**, set by the {plain(slowest.tier)}. "
        f"{_math(cluster, dtype)}"
    )


def _math(cluster: Cluster, dtype: str) -> str:
    rungs = memory_ladder(cluster, dtype)
    hbm = next(rung for rung in rungs if rung.level == "HBM")
    beyond = f", {intensity(rungs[5].ridge)} between {many(rungs[4].level)}" if rungs[5:] else ""
    return f"In {dtype}, math takes longer than HBM from {intensity(hbm.ridge)} on{beyond}."


def one(tier: str) -> str:
    """One unit of a tier, in a sentence."""
    return f"{'an' if tier[0].lower() in 'aeio' else 'a'} {plain(tier)}"


def many(tier: str) -> str:
    """Units of a tier, in a sentence; of one with a longer name, such as "axis x", no plural."""
    return f"{plain(tier)}s" if tier.isalpha() else f"units of {plain(tier)}"


@dataclass(frozen=True, slots=True)
class Tile:
    """One number in a box."""

    label: str
    value: str
    note: str
    help: str


def tiles(cluster: Cluster, dtype: str) -> list[Tile]:
    """The machine in eight numbers."""
    rows, rungs = capacities(cluster), memory_ladder(cluster, dtype)
    unit, whole, gpu = rows[0].tier, rows[-1], child_name(cluster, 0)
    slowest = slowest_collective(cluster)
    hbm = next(rung for rung in rungs if rung.level == "HBM")
    out = rows[1] if len(rows) > 1 else None
    degrees = " × ".join(f"{tier.degree:,}" for tier in cluster.tiers)
    return [
        Tile(f"{gpu}s", f"{cluster.gpus:,}", degrees, "Degrees of the tiers from the inside out."),
        Tile(
            f"Out of {one(unit)}",
            show(rows[0].egress, "B/s") if out else "–",
            f"{show(out.per_gpu, 'B/s')} a {gpu}" if out else f"the {unit} is all there is",
            "One way, while its siblings send too: bandwidth of a child of the next tier over its "
            "oversubscription.",
        ),
        Tile(
            "Collective over all",
            show(slowest.bandwidth, "B/s") if cluster.gpus > 1 else "–",
            f"set by the {slowest.tier}" if math.isfinite(slowest.bandwidth) else "nothing to send",
            "Bytes gathered over time, ring all-gather or reduce-scatter: min over the tiers of "
            "W D/(D-1).",
        ),
        Tile(
            "Bisection",
            show(whole.bisection, "B/s"),
            f"one way, {whole.tier}",
            "What crosses the middle of the outermost tier: D W / 2.",
        ),
        _counted("Switches", [row.switches for row in rows]),
        _counted("Links", [row.cables for row in rows]),
        Tile(
            "HBM ridge [FLOP/B]",
            show(hbm.ridge or math.nan),
            f"{show(rungs[5].ridge or math.nan)} between {many(unit)}" if out else dtype,
            f"C/W in {dtype}: FLOPs that each byte must be worth before math takes longer.",
        ),
        Tile(
            "HBM in all",
            show(rungs[-1].capacity or math.nan, "B"),
            f"{show(cluster.hbm_bytes, 'B')} a {gpu}",
            "Memory within reach of the outermost tier.",
        ),
    ]


def _counted(label: str, counts: list[int | None]) -> Tile:
    known = [count for count in counts if count is not None]
    parts = " + ".join("?" if count is None else f"{count:,}" for count in counts)
    value = f"{sum(known):,}{'' if len(known) == len(counts) else ' + ?'}" if known else "–"
    note = parts if known and len(counts) > 1 else "not in the profile" if not known else "in all"
    return Tile(label, value, note, "In the whole cluster, tier by tier from the inside out.")


def intensity(value: float | None) -> str:
    """FLOPs per byte for a person."""
    return "–" if value is None else f"{show(value)} FLOP/B"


def ladder(cluster: Cluster) -> tuple[Level, ...]:
    """Every level that data can come over, as one accelerator sees it: its memories, its links."""
    links = memory_ladder(cluster, next(iter(cluster.accelerator.peak_flops)))[4:]
    return levels(cluster.accelerator) + tuple(
        Level(rung.level, rung.bandwidth or math.nan, rung.capacity or math.nan) for rung in links
    )


def ladder_table(cluster: Cluster, dtype: str) -> dict[str, list[str]]:
    """The ladder as columns of text; a dash where nobody says."""
    gpu = child_name(cluster, 0)
    columns: dict[str, list[str]] = {
        title: []
        for title in ("Level", "Within reach", f"Bandwidth a {gpu}", f"Ridge a {gpu}", "C/W")
    }
    for rung in memory_ladder(cluster, dtype):
        row = (
            rung.level,
            "–" if rung.capacity is None else size(rung.capacity),
            "–" if rung.bandwidth is None else show(rung.bandwidth, "B/s"),
            intensity(rung.ridge_per_gpu),
            intensity(rung.ridge),
        )
        for column, text in zip(columns.values(), row, strict=True):
            column.append(text)
    return columns


def ridges(cluster: Cluster) -> dict[str, list[str]]:
    """FLOPs per byte that math needs to outlast each level, by dtype."""
    rates = cluster.accelerator.peak_flops
    columns = {"": [f"{dtype}, {show(rate, 'FLOP/s')}" for dtype, rate in rates.items()]}
    for level in ladder(cluster):
        columns[level.name] = [show(float(level.ridge(rate))) for rate in rates.values()]
    return columns


def size(value: float) -> str:
    """Bytes for a person: caches as they are built (50 MiB), memories as they are sold (80 GB)."""
    return written(value, "B") if value < 2**30 and value % 2**10 == 0 else show(value, "B")


@dataclass(frozen=True, slots=True)
class Number:
    """A number of a profile: whose it is, what it is, where it was read."""

    part: str
    field: str
    value: float
    text: str
    unit: str
    source: str


def numbers(cluster: Cluster) -> list[Number]:
    """Every number that the profile of a cluster states, from the chip outwards."""
    chip = cluster.accelerator
    found = [
        Number(chip.name, field, value, *_text(Accelerator, field, value), chip.source_of(field))
        for field, value in chip.numbers().items()
    ]
    for link in (*chip.links, *filter(None, (cluster.host_link,))):
        part = f"{link.name} to the host" if link is cluster.host_link else link.name
        found.append(Number(part, "links", link.count, f"{link.count}", "1", link.source))
        text = written(link.bandwidth, "B/s")
        found.append(Number(part, "bandwidth", link.bandwidth, text, "B/s", link.source))
    for tier in cluster.tiers:
        found += _of_tier(tier)
    if cluster.price is not None:
        text = written(cluster.price, "USD/h")
        found.append(Number("rental", "price", cluster.price, text, "USD/h", cluster.price_source))
    return found


def _of_tier(tier: NetworkTier) -> Iterator[Number]:
    for field, about in NetworkTier.model_fields.items():
        value = getattr(tier, field)
        stated = isinstance(value, int | float) and not isinstance(value, bool)
        if stated and (value != about.default or field == "oversubscription"):
            text, unit = _text(NetworkTier, field, value)
            yield Number(tier.name, field, value, text, unit, tier.source)


def _text(model: Any, field: str, value: float) -> tuple[str, str]:
    unit = unit_of(model, field.split(".")[0])
    return (written(value, unit), unit) if unit else (f"{value:,g}", "1")


def sources(cluster: Cluster) -> dict[str, list[str]]:
    """The numbers as Markdown, those of one part and one source in a row, sources as links."""
    columns: dict[str, list[str]] = {"of": [], "number": [], "where it was read": []}
    for (part, source), group in groupby(numbers(cluster), key=lambda n: (n.part, n.source)):
        columns["of"].append(plain(part))
        columns["number"].append(", ".join(f"{name(n.field)} **{n.text}**" for n in group))
        columns["where it was read"].append(linked(source))
    return columns


def name(field: str) -> str:
    """A field of a profile as a person says it."""
    words = field.removeprefix("peak_flops.").split("_")
    return " ".join(SPELT.get(word, word) for word in words)
