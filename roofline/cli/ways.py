"""The ways to run a collective, for ``roofline collectives``: on the tiers, in one of them, routed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from roofline import algorithms, routing
from roofline.collectives import (
    ALL_REDUCE,
    ALL_TO_ALL,
    COLLECTIVES,
    Algorithm,
    Collective,
    CollectiveTime,
    array_bytes,
    bus_bandwidth,
    collective,
    nccl_size,
)
from roofline.groups import Group, Reach, spans
from roofline.machine import TierLike
from roofline.names import choose

ALL = "all"
DISPATCH = "dispatch"
RAGGED = "ragged"
ON_TIERS = get_args(Algorithm)
FLAT = {row.name: row for row in algorithms.ALGORITHMS if row.name not in ON_TIERS}
ABOUT_FLAT = ("steps", "messages", "busiest_bytes", "memory", "note", "source")


@dataclass(frozen=True, slots=True)
class Asked:
    """What every answer has in common."""

    group: Group
    tiers: tuple[TierLike, ...]
    size: float  # [B]
    nccl: bool  # the size is that of nccl-tests
    options: Mapping[str, Any]

    def array(self, op: Collective) -> Any:
        """The whole array of ``op``. [B]"""
        return array_bytes(op, self.size, self.group.size) if self.nccl else self.size

    def crossed(self) -> list[Reach]:
        """The tiers that the group crosses."""
        return [reach for reach in spans(self.group, self.tiers) if float(reach.degree) > 1]


@dataclass(frozen=True, slots=True)
class Answer:
    """One collective in one way."""

    op: str
    algorithm: str
    array_bytes: float
    nccl_bytes: float | None
    time: CollectiveTime
    busbw: float | None  # [B/s]
    reaches: list[Reach]
    about: Mapping[str, Any]  # what only a flat algorithm says

    @property
    def seconds(self) -> float:
        """The time. [s]"""
        return float(self.time.seconds)

    @property
    def algbw(self) -> float | None:
        """Bytes over time, as nccl-tests has both; none where nothing moves. [B/s]"""
        size = self.array_bytes if self.nccl_bytes is None else self.nccl_bytes
        return size / self.seconds if self.seconds else None

    def document(self) -> dict[str, Any]:
        """The answer, for JSON."""
        return {
            "op": self.op,
            "algorithm": self.algorithm,
            "array_bytes": self.array_bytes,
            "nccl_bytes": self.nccl_bytes,
            "time": self.seconds,
            "time_one_tier_after_the_other": float(self.time.sequential),
            "latency": float(self.time.latency),
            "algbw": self.algbw,
            "busbw": self.busbw,
            "binding_tier": str(self.time.binding) or None,
            "tiers": [row.document() for row in self.rows()],
        } | {key: self.about.get(key) for key in ABOUT_FLAT}

    def rows(self) -> list[Row]:
        """The tiers, with the transfer time of each."""
        return [
            Row(reach, float(seconds))
            for reach, seconds in zip(self.reaches, self.time.by_tier, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class Row:
    """A group at one tier."""

    reach: Reach
    seconds: float

    @property
    def bandwidth(self) -> float:
        """What a child gets among the children of the group. [B/s]"""
        return float(self.reach.bandwidth())

    def document(self) -> dict[str, Any]:
        """The row, for JSON."""
        return {
            "tier": self.reach.tier.name,
            "children": float(self.reach.degree),
            "ranks_per_child": float(self.reach.members),
            "siblings": float(self.reach.sharing),
            "bandwidth": self.bandwidth,
            "time": self.seconds,
        }


def answers(asked: Asked, params: Mapping[str, Any]) -> Iterator[Answer]:
    """Every answer that the options ``params`` of the command ask for.

    Raises:
        ValueError: an unknown operation or algorithm, or one that does not go with the rest.
    """
    name, algorithm = params["op"], params["algorithm"]
    if name == DISPATCH or params["top_k"] is not None:
        yield _routed(asked, params)
        return
    for option in ("experts", "routed", "node_limit"):
        if params[option] is not None:
            raise ValueError(f"{option}: {params[option]!r} goes with --top-k; give that too")
    ops = COLLECTIVES if name == ALL else {name: choose("--op", name, COLLECTIVES)}
    if algorithm != ALL:
        choose("--algorithm", algorithm, dict.fromkeys([*ON_TIERS, *FLAT, ALL]))
    if params["in_network"] not in (None, "off") and ALL_REDUCE.name not in ops:
        raise ValueError(
            f"--in-network: {params['in_network']!r} is of {ALL_REDUCE.name}, not of {name}"
        )
    for op in ops.values():
        if algorithm in FLAT:
            yield _flat(asked, op, FLAT[algorithm])
            continue
        for way in ON_TIERS if algorithm == ALL else [algorithm]:
            yield _on_tiers(asked, op, way)
        if algorithm == ALL and len(asked.crossed()) == 1:
            yield from _every_flat(asked, op)


def _on_tiers(asked: Asked, op: Collective, algorithm: Any) -> Answer:
    time = collective(
        op, asked.array(op), asked.group, asked.tiers, algorithm=algorithm, **asked.options
    )
    return _answer(asked, op, algorithm, time, spans(asked.group, asked.tiers))


def _answer(
    asked: Asked,
    op: Collective,
    algorithm: str,
    time: CollectiveTime,
    reaches: list[Reach],
    about: Mapping[str, Any] | None = None,
) -> Answer:
    whole, ranks = float(asked.array(op)), asked.group.size
    size, seconds = float(nccl_size(op, whole, ranks)), float(time.seconds)
    busbw = float(bus_bandwidth(op, size, ranks, seconds)) if seconds else None
    return Answer(op.name, algorithm, whole, size, time, busbw, reaches, about or {})


def _every_flat(asked: Asked, op: Collective) -> Iterator[Answer]:
    ranks = int(asked.group.size)
    for row in FLAT.values():
        if row.operation == op.name and (not row.powers_of_two or ranks & (ranks - 1) == 0):
            yield _flat(asked, op, row)


def _flat(asked: Asked, op: Collective, row: algorithms.Algorithm) -> Answer:
    """An algorithm among ranks that are all one link away from each other."""
    if row.operation != op.name:
        raise ValueError(f"--algorithm: {row.name!r} is one of {row.operation}, not of {op.name}")
    crossed = asked.crossed()
    if len(crossed) > 1:
        tiers = ", ".join(reach.tier.name for reach in crossed)
        allowed = f"allowed: {', '.join(ON_TIERS)}, or ranks inside one tier"
        raise ValueError(f"--algorithm: {row.name!r} knows one tier, not {tiers}; {allowed}")
    reach = crossed[0] if crossed else spans(asked.group, asked.tiers)[0]
    size, ranks = asked.array(op), asked.group.size
    link = reach.bandwidth() / reach.lanes(1.0)
    alpha = algorithms.time(row, 0.0, ranks, link, reach.tier.latency)
    time = CollectiveTime(
        (reach.tier.name,),
        (algorithms.time(row, size, ranks, link),),
        alpha if asked.options["latency"] else 0.0,
    )
    about = {
        "steps": float(algorithms.steps(row, ranks)),
        "messages": float(algorithms.messages(row, ranks)),
        "busiest_bytes": float(algorithms.traffic(row, size, ranks)),
        "memory": row.memory,
        "note": row.note,
        "source": str(row.source),
    }
    return _answer(asked, op, row.name, time, [reach], about)


def _routed(asked: Asked, params: Mapping[str, Any]) -> Answer:
    """An all-to-all in which a token goes to its k experts only."""
    op, k = params["op"], params["top_k"]
    if op not in (DISPATCH, ALL_TO_ALL.name):
        choices = f"{ALL_TO_ALL.name}, {DISPATCH}"
        raise ValueError(f"--top-k: {op} sends to every rank; allowed with --op {choices}")
    if k is None:
        raise ValueError(f"--top-k: missing; --op {DISPATCH} needs the experts per token")
    options = {
        "form": params["routed"] or ("bound" if params["experts"] is None else "distinct"),
        "experts": params["experts"],
        "node_limit": params["node_limit"],
        "latency": asked.options["latency"],
    }
    size = asked.size if op == DISPATCH else asked.array(ALL_TO_ALL)
    run = routing.dispatch if op == DISPATCH else routing.ragged_all_to_all
    time = run(size, k, asked.group, asked.tiers, **options)
    reaches = spans(asked.group, asked.tiers)
    return Answer(op, options["form"], float(size), None, time, None, reaches, {})
