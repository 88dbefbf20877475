"""Measured sweeps of collectives, as published: what a line says, and on which tiers it ran.

A line of the file is one point, or a sweep where ``message_bytes`` and ``time_us`` are lists:

    gpu             name of the GPU: a row of ``GPUS``, or a profile
    collective      all_reduce, all_gather, reduce_scatter, alltoall, sendrecv; or all-reduce, ...
    n_nodes         hosts; trays in a rack
    n_ranks         GPUs
    message_bytes   as nccl-tests counts: the whole array of an all-gather or a reduce-scatter, what
                    each rank has of an all-reduce or an all-to-all, the message of a send
    time_us         of one call
    sweep_id        (optional) name of the sweep
    nic             (optional) network cards in words; a row of ``NICS`` when it says more than IB
    fabric, nic_GBps  (optional) the same told outright: kind of network, GB/s of a GPU's card
    algo, quality   (optional) what was forced upon NCCL, and what the measurement is worth
    per_thread      (optional) GPUs that one thread calls for, -g of nccl-tests; left out, 1
    calls           (optional) a row of ``CALLS``; left out, the first
    nccl_version    (optional) a text, or NCCL's own number; before 2.23, an all-to-all costs more
    url, source     (optional) where it was published

Points that no formula here is about are refused, each with its reason.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

import hardware_profiles as hw
from hardware_profiles.behaviour import FABRICS
from hardware_profiles.schema import NetworkTier
from roofline.backtest import reference_cluster
from roofline.collectives import array_bytes
from roofline.names import choose
from roofline.nccl_log import PROGRAMS

GPUS = {
    "A100-SXM-40GB": "a100-sxm-40gb",
    "A100-SXM-80GB": "a100-sxm-80gb",
    "B200-SXM": "b200-sxm",
    "B300-SXM": "b300-sxm",
    "GB200": "gb200",
    "GB300": "gb300",
    "GH200": "gh200",
    "H100-SXM-80GB": "h100-sxm",
    "H200-SXM": "h200-sxm",
    "H800-SXM": "h800-sxm",
    "L40S": "l40s",
    "MI300X": "mi300x",
    "MI325X": "mi325x",
    "MI355X": "mi355x",
}
# Words in ``nic``, the kind of network, and one GPU's share of its cards [B/s].
NICS: tuple[tuple[str, str, float], ...] = (
    ("Slingshot-11 1x200", "slingshot", 25e9),
    ("Slingshot-11 2x200", "slingshot", 12.5e9),
    ("p4de", "efa-v1", 6.25e9),
    ("EFAv2", "efa", 50e9),
    ("TCPXO", "tcpxo", 25e9),
    ("TCPX", "tcpx", 12.5e9),
    ("HDR200", "infiniband", 25e9),
    ("16x100Gb/s RoCE", "roce", 25e9),
    ("RoCE", "roce", 0.0),  # at the rate of a shipped cluster
    ("Pollara", "roce", 0.0),
)
RACK = 8  # GPUs; a tier of more is a rack of several hosts
OTHERS = {
    "inference-engine custom": "an inference engine's own kernels, no collective of NCCL",
    "NCCL_ALGO": "the algorithm was forced",
    "NCCL_PROTO": "the protocol was forced",
    "NCCL_NVLS_ENABLE": "the algorithm was forced",
    "symmetric-memory": "kernels for registered symmetric memory",
}
# How a benchmark calls: one call queued behind another, as nccl-tests does; graphs that it has recorded;
# or each call by a framework that waits for the one before.
CALLS = ("queued", "graph", "waited for")
NAMES = PROGRAMS | {name: name for name in PROGRAMS.values()}
QUEUES = (2, 22)  # the last NCCL for which an all-to-all costs more
UNSTATED = ("unspecified", "not stated")
UNTRUSTED = ("DEGRADED", "suspect")


@dataclass(frozen=True, slots=True)
class Point:
    """One measured collective."""

    id: str
    gpu: str  # as the line names it
    accelerator: str  # profile
    collective: str  # of ``roofline.collectives``
    nodes: int
    ranks: int
    size: float  # as nccl-tests counts [B]
    seconds: float
    unit: float  # GPUs in the innermost tier
    fabric: str  # of hardware_profiles.behaviour.FABRICS
    card: float  # a GPU's share of the network [B/s]
    source: str  # address, or title
    quality: str
    per_thread: float  # GPUs that a thread calls for; 0 where graphs run
    waits: bool  # for each call before the next
    queues: bool  # an NCCL for which an all-to-all costs more

    @property
    def nbytes(self) -> float:
        """The whole array. [B]"""
        return float(array_bytes(self.collective, self.size, self.ranks))

    @property
    def across(self) -> bool:
        """True where it leaves the innermost tier."""
        return self.ranks > self.unit


@dataclass(frozen=True, slots=True)
class Refused:
    """A point that cannot be predicted, and why."""

    id: str
    reason: str


def shipped() -> str:
    """The published sweeps that come with the package; ``data/collectives.md`` says from where."""
    return files("roofline").joinpath("data/collectives.jsonl").read_text("utf-8")


def parse(text: str) -> tuple[list[Point], list[Refused]]:
    """Points of a JSONL text, and what cannot be predicted of it; never an error."""
    points: list[Point] = []
    refused: list[Refused] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            rows = list(_rows(line))
        except (ValueError, RecursionError) as error:
            refused.append(Refused(f"line {number}", str(error)))
            continue
        for row in rows:
            name = f"{row.get('sweep_id') or f'line {number}'} {row.get('message_bytes')}"
            try:
                points.append(_point(name, row))
            except ValueError as error:
                refused.append(Refused(name, str(error)))
    return points, refused


def _rows(line: str) -> Iterator[dict[str, Any]]:
    try:
        row = json.loads(line)
    except ValueError:
        raise ValueError("cut off, or not JSON") from None
    if not isinstance(row, dict):
        raise ValueError("no object")
    sizes, times = row.get("message_bytes"), row.get("time_us")
    if not (isinstance(sizes, list) and isinstance(times, list)):
        yield row
        return
    if len(sizes) != len(times):
        raise ValueError(f"message_bytes has {len(sizes)} numbers, time_us {len(times)}")
    for size, time in zip(sizes, times, strict=True):
        yield row | {"message_bytes": size, "time_us": time}


def _point(name: str, row: Mapping[str, Any]) -> Point:
    gpu = str(row.get("gpu"))
    accelerator = _accelerator(gpu)
    operation = choose("collective", str(row.get("collective")), NAMES)
    quality = str(row.get("quality") or "")
    _is_ours(str(row.get("algo") or ""), quality)
    nodes, ranks = (_count(row, field) for field in ("n_nodes", "n_ranks"))
    if ranks % nodes or ranks < 2:
        raise ValueError(
            f"n_ranks: {ranks} on {nodes} nodes; allowed: two and more, as many on each"
        )
    inner = _tiers(accelerator)[0]
    if ranks / nodes > inner.degree:
        raise ValueError(
            f"n_ranks: {ranks} on {nodes} nodes; a node of {gpu} has {inner.degree} and less"
        )
    unit = float(inner.degree) if inner.degree > RACK else ranks / nodes
    fabric, card = _network(row, accelerator, across=ranks > unit)
    return Point(
        name,
        gpu,
        accelerator,
        operation,
        nodes,
        ranks,
        _number(row, "message_bytes"),
        _number(row, "time_us") * 1e-6,
        unit,
        fabric,
        card,
        _source(row),
        quality,
        *_calls(row, ranks // nodes),
    )


def _calls(row: Mapping[str, Any], node: int) -> tuple[float, bool, bool]:
    way = choose("calls", str(row.get("calls") or CALLS[0]), {name: name for name in CALLS})
    per_thread = 1 if row.get("per_thread") is None else _count(row, "per_thread")
    if node % per_thread:
        raise ValueError(
            f"per_thread: {per_thread} of {node} GPUs on a node; allowed: as many for each thread"
        )
    old = _version(row.get("nccl_version")) <= QUEUES
    return 0.0 if way == "graph" else float(per_thread), way == "waited for", old


def _version(told: object) -> tuple[float, float]:
    """First and second number of an NCCL; of one that is not told, the newest.

    >>> _version("2.21.5+cuda12.4"), _version(22105), _version(None)
    ((2, 21), (2, 21), (inf, inf))
    """
    if isinstance(told, float):  # 2.3 may be 2.30
        raise ValueError(f"nccl_version: {told} is a number; allowed: a text, as '2.30', or 23000")
    whole = re.fullmatch(r"(\d)(\d\d)\d\d", str(told))
    found = whole or re.match(r"v?(\d+)\.(\d+)", str(told))
    return (int(found[1]), int(found[2])) if found else (math.inf, math.inf)


def _accelerator(gpu: str) -> str:
    name = GPUS.get(gpu, gpu)
    if name not in hw.accelerators():
        raise ValueError(f"gpu: {gpu!r} has no profile; known: {', '.join(GPUS)}, or a profile")
    return name


def _is_ours(algorithm: str, quality: str) -> None:
    for words, why in OTHERS.items():
        if words in algorithm:
            raise ValueError(f"algo: {why}: {algorithm[:80]!r}")
    if quality.startswith(UNTRUSTED):
        raise ValueError(f"quality: {quality[:80]!r}")


def _number(row: Mapping[str, Any], field: str) -> float:
    value = row.get(field)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{field}: {value!r} is not a number")
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{field}: {value!r} is refused; allowed: above 0")
    return float(value)


def _count(row: Mapping[str, Any], field: str) -> int:
    value = _number(row, field)
    if not value.is_integer():
        raise ValueError(f"{field}: {row[field]!r} is refused; allowed: whole numbers above 0")
    return int(value)


@lru_cache(maxsize=64)
def _tiers(accelerator: str) -> tuple[NetworkTier, ...]:
    return hw.cluster(reference_cluster(accelerator)).tiers


def inside(accelerator: str) -> float:
    """Bandwidth of the innermost tier of a shipped cluster of this accelerator. [B/s]"""
    return _tiers(accelerator)[0].effective_bandwidth


def _network(row: Mapping[str, Any], accelerator: str, *, across: bool) -> tuple[str, float]:
    if not across:
        return FABRICS[0], 1.0
    words = str(row.get("nic") or "")
    if any(told in words for told in UNSTATED) and "nic_GBps" not in row:
        raise ValueError(f"nic: {words[:80]!r}: the rate of the network is not stated")
    known = [(kind, rate) for told, kind, rate in NICS if told in words]
    fabric, card = known[0] if known else (FABRICS[0], 0.0)
    card = card or _card(accelerator)
    if "fabric" in row:
        fabric = choose("fabric", str(row["fabric"]), {name: name for name in FABRICS})
    if "nic_GBps" in row:
        card = _number(row, "nic_GBps") * 1e9
    if not card:
        raise ValueError(f"nic: {words!r} has no rate, nor has a shipped cluster of {accelerator}")
    return fabric, card


def _card(accelerator: str) -> float:
    node, *beyond = _tiers(accelerator)
    return beyond[0].effective_bandwidth / node.degree if beyond else 0.0


def _source(row: Mapping[str, Any]) -> str:
    """The address; else the title, which stands in quotes."""
    told = str(row.get("source") or "")
    title = re.search(r'"([^"]+)"', told)
    return str(row.get("url") or (title[1] if title else told))
