"""The shape of a profile: an accelerator, the tiers that join many, and where numbers are from.

A cluster is its accelerator and a list of network tiers from the inside out: GPU → node → scalable
unit → SuperPod. A tier says how many children one unit of it joins (degree) and what ONE child can
send into it in ONE direction (bandwidth). Vendors quote NVLink with both directions added, peaks
with sparsity and NICs in bits: the files state what the formulas need, and the source line says how
it follows from what the vendor prints.
"""

from __future__ import annotations

import math
import operator
from functools import cached_property
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from hardware_profiles.errors import UnfilledUnits, all_known, nearest
from hardware_profiles.quantity import (
    Bandwidth,
    Bytes,
    FlopRate,
    Frequency,
    Latency,
    MemoryBytes,
    Power,
    Price,
)
from hardware_profiles.suspect import rising_bandwidth, sparse_peak

Count = Annotated[int, Field(ge=1, le=10_000_000, strict=True, json_schema_extra={"unit": "1"})]
Text = Annotated[str, Field(min_length=1)]

DTYPES = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8", "fp6", "fp4", "int4")


class Strict(BaseModel):
    """Frozen, and a misspelt key is an error instead of a silent default."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Link(Strict):
    """Identical cables or lanes out of one accelerator; bandwidth is one link's, one way."""

    name: Text
    count: Count = 1
    bandwidth: Bandwidth
    source: Text

    @property
    def total(self) -> float:
        """All links together, one direction. [B/s]"""
        return self.count * self.bandwidth


class Accelerator(Strict):
    """One GPU or TPU chip as its datasheet has it: dense peaks, memories, links."""

    name: Text
    title: Text
    vendor: Text
    architecture: Text
    peak_flops: dict[str, FlopRate] = Field(description="dense (no sparsity) matmul rate by dtype")
    hbm_bytes: MemoryBytes
    hbm_bandwidth: Bandwidth
    l2_bytes: Bytes | None = None
    l2_bandwidth: Bandwidth | None = None
    sms: Count | None = Field(
        None, description="streaming multiprocessors, compute units or tensor cores"
    )
    simd_per_sm: Count = Field(
        4, description="sub-partitions of an SM, each with one warp scheduler"
    )
    lanes_per_simd: Count = Field(32, description="lanes that execute one instruction together")
    boost_clock: Frequency | None = None
    base_clock: Frequency | None = None
    shared_memory_per_sm: Bytes | None = Field(None, description="L1 and shared memory together")
    registers_per_sm: Bytes | None = None
    tensor_memory_per_sm: Bytes | None = Field(
        None, description="what tensor cores read operands from and add up in (TMEM)"
    )
    power: Power | None = None
    links: tuple[Link, ...] = ()
    reason: str = Field("", description="why a peak is right that looks like one with sparsity")
    sources: dict[str, Text] = Field(description="field → where its number was read")
    notes: str = ""

    @field_validator("peak_flops")
    @classmethod
    def _known_dtypes(cls, value: dict[str, float]) -> dict[str, float]:
        if not value:
            raise ValueError(f"at least one dtype needs a rate; allowed: {', '.join(DTYPES)}")
        all_known("dtype", value, DTYPES)
        return value

    @model_validator(mode="after")
    def _every_number_has_a_source(self) -> Accelerator:
        for field in self.sources:
            if field.split(".")[0] not in type(self).model_fields:
                raise ValueError(
                    f"sources: no field is called {field!r}; "
                    f"{nearest(field, type(self).model_fields)}"
                )
        missing = [field for field in self.numbers() if not self.source_of(field)]
        if missing:
            raise ValueError(f"sources: no source is given for {', '.join(missing)}")
        return self

    @model_validator(mode="after")
    def _peaks_are_dense(self) -> Accelerator:
        if odd := sparse_peak(self):
            raise ValueError(odd)
        return self

    def numbers(self) -> dict[str, float]:
        """Every number that is no default, by dotted field name; links carry their own sources."""
        given = {
            field: value
            for field, about in type(self).model_fields.items()
            if isinstance(value := getattr(self, field), int | float) and value != about.default
        }
        return given | {f"peak_flops.{dtype}": rate for dtype, rate in self.peak_flops.items()}

    def source_of(self, field: str) -> str:
        """Where the number of ``field`` was read; empty when nobody said."""
        return self.sources.get(field) or self.sources.get(field.split(".")[0], "")

    def flops(self, dtype: str) -> float:
        """Dense peak of ``dtype``. [FLOP/s]

        Raises:
            ValueError: when this accelerator has no such rate, naming those it has.
        """
        if dtype not in self.peak_flops:
            raise ValueError(
                f"{self.name} has no {dtype} rate; it has {', '.join(self.peak_flops)}"
            )
        return self.peak_flops[dtype]


class NetworkTier(Strict):
    """One level: ``degree`` children, each with ``bandwidth`` into it in one direction."""

    name: Text
    degree: Count
    bandwidth: Bandwidth = Field(description="of one child, one direction, before oversubscription")
    latency: Latency = 0.0
    oversubscription: Annotated[float, Field(ge=1, le=1000, json_schema_extra={"unit": "1"})] = 1.0
    in_network_reduction: bool = Field(
        False, description="switches sum on the way (NVLink SHARP, InfiniBand SHARP)"
    )
    transit: bool = Field(
        True,
        description="traffic outwards crosses these links too; false if GPUs have their own NICs",
    )
    direct: bool = Field(
        False, description="no switch: each pair of children has a link of its own, 1/(D-1) of it"
    )
    technology: str = ""
    link_bandwidth: Bandwidth | None = Field(None, description="one cable, one direction")
    switches: Annotated[int, Field(ge=0, strict=True)] | None = Field(
        None, description="switches in one unit of the tier"
    )
    switch_ports: Count | None = None
    reason: str = Field("", description="why a GPU has more bandwidth out here than further in")
    source: Text

    @property
    def effective_bandwidth(self) -> float:
        """What one child gets when all talk at once. [B/s]"""
        return self.bandwidth / self.oversubscription


class Cluster(Strict):
    """Accelerators joined by tiers from the inside out, and the link to their host."""

    name: Text
    title: Text
    accelerator: Accelerator
    tiers: tuple[NetworkTier, ...] = Field(min_length=1, max_length=12)
    host_link: Link | None = None
    price: Price | None = Field(None, description="rental of one accelerator for an hour")
    price_source: str = ""
    notes: str = ""

    @model_validator(mode="after")
    def _a_price_has_a_source(self) -> Cluster:
        if self.price is not None and not self.price_source:
            raise ValueError("price_source: a price needs one (whose list, on which day)")
        return self

    @model_validator(mode="after")
    def _tiers_have_different_names(self) -> Cluster:
        names = [tier.name for tier in self.tiers]
        if len(set(names)) < len(names):
            raise ValueError(f"tiers: names must differ, got {', '.join(names)}")
        return self

    @model_validator(mode="after")
    def _bandwidth_shrinks_outwards(self) -> Cluster:
        if odd := rising_bandwidth(self.accelerator, self.tiers, self.unit_sizes):
            raise ValueError(odd)
        return self

    @property
    def networked(self) -> bool:
        """True where something lies beyond the server or the rack: a cluster that can grow."""
        return len(self.tiers) > 1 and self.tiers[-1].name != "node"

    @cached_property
    def unit_sizes(self) -> tuple[int, ...]:
        """Accelerators under one child of each tier, and last of all: (1, 8, 256, 1024)."""
        return tuple(
            math.prod(tier.degree for tier in self.tiers[:i]) for i in range(len(self.tiers) + 1)
        )

    @property
    def gpus(self) -> int:
        """Accelerators in the whole cluster."""
        return self.unit_sizes[-1]

    @property
    def hbm_bytes(self) -> float:
        """Memory of one accelerator. [B]"""
        return self.accelerator.hbm_bytes

    @property
    def hbm_bandwidth(self) -> float:
        """Memory bandwidth of one accelerator. [B/s]"""
        return self.accelerator.hbm_bandwidth

    def flops(self, dtype: str) -> float:
        """Dense peak of one accelerator. [FLOP/s]"""
        return self.accelerator.flops(dtype)

    def resized(self, gpus: int) -> Cluster:
        """The same tiers with the outermost one grown or cut until the cluster holds ``gpus``.

        Whole units only: tiers that are no longer filled keep their bandwidth and get a smaller
        degree; without a switch, children lose the links to those that are gone. An outermost tier
        of another size no longer says how many switches it has.

        Raises:
            UnfilledUnits: when ``gpus`` does not fill whole units, with the nearest numbers that do.
            ValueError: when ``gpus`` is no whole number, or below 1.
        """
        gpus = _whole(gpus)
        if gpus < 1:
            raise ValueError(f"{self.name} cannot hold {gpus} GPUs; allowed: 1 and more")
        tiers: list[dict[str, Any]] = []
        inside = 1
        for i, tier in enumerate(self.tiers):
            left = -(-gpus // inside)
            last = i == len(self.tiers) - 1
            degree = left if last else min(tier.degree, left)
            changed: dict[str, Any] = {"switches": None} if last and degree != tier.degree else {}
            if tier.direct and degree < tier.degree:
                links = max(degree - 1, 1) / (tier.degree - 1)
                changed["bandwidth"] = tier.bandwidth * links
            tiers.append(tier.model_dump() | {"degree": degree} | changed)
            inside *= degree
            if inside >= gpus:
                break
        if inside != gpus:
            raise UnfilledUnits(self.name, gpus, (inside - inside // tiers[-1]["degree"], inside))
        fields = self.model_dump() | {"tiers": tiers, "accelerator": self.accelerator}
        return Cluster.model_validate(fields)


def _whole(gpus: Any) -> int:
    """``gpus`` as an int, 16.0 among them."""
    try:
        return operator.index(int(gpus) if gpus == int(gpus) else gpus)
    except (TypeError, ValueError, OverflowError):
        number = isinstance(gpus, float) and math.isfinite(gpus)
        near = f"; the nearest are {math.floor(gpus)} and {math.ceil(gpus)}" if number else ""
        raise ValueError(f"{gpus!r} GPUs: a whole number is asked for{near}") from None
