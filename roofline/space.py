"""The space of layouts: every combination of choices that fits a job, as tables of bounded size.

A table starts with one row and opens one choice after the other: each row is repeated for every
value, and rows that break a constraint leave at once, so that impossible branches are never
followed. Degrees come first; then, for a few rows of degrees at a time, everything else.

    N = tp · cp · dp · pp      ep · etp | tp · cp · dp      replicas · micro-batch | batch

Ranges are what people try: tensor parallelism inside the innermost tier, two thousand tokens and
more on a context-parallel rank. A value that is asked for by name is tried wherever it fits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roofline import bubbles
from roofline.constraints import SEARCHED
from roofline.layout import RECOMPUTE, SCHEDULE, Layout
from roofline.model import Transformer

Column = NDArray[np.float64]
Table = dict[str, Column]
Mask = NDArray[np.bool_]
Which = NDArray[np.intp] | slice
Rule = Callable[[Table], Mask]  # rows that may stay

DEGREES = ("tp", "cp", "pp", "ep", "etp", "order")
DETAILS = (
    "micro_batch", "chunks", "schedule", "zero", "shard", "sequence_parallel",
    "recompute", "recompute_share", "offload_share",
)  # fmt: skip
CHOICES = DEGREES + DETAILS
FEWEST_TOKENS = 2048  # of a sequence on a context-parallel rank
MOST_MICRO = 16  # sequences of a micro-batch
MOST_CHUNKS = 12  # of a stage
MOST_CP = 64
BLOCK = 1 << 16  # rows of a table
PLAIN = Layout(1)


@dataclass(frozen=True)
class Job:
    """What is to be cut: sizes that decide which layouts there are."""

    model: Transformer
    gpus: int
    batch: int  # sequences
    sequence: int
    inner: int  # GPUs of the innermost tier
    base: Layout = PLAIN  # habits of the framework, which every layout shares
    ragged: bool = False  # interleaving takes any number of micro-batches
    rules: tuple[tuple[str, Rule], ...] = ()  # of the framework, for choices together


@dataclass
class Space:
    """Values of each choice for a job, and what ruled out those that are not there."""

    job: Job
    values: Mapping[str, Sequence[float]]
    refused: Counter[str] = field(default_factory=Counter)

    def blocks(self, rows: int = BLOCK) -> Iterator[tuple[float, Layout]]:
        """Layouts as columns, at most ``rows`` a block, with the share of the space behind it."""
        waiting: list[Table] = []
        before = 0.0
        for done, table in self._slices(rows):
            waiting.append(table)
            size = sum(len(each["tp"]) for each in waiting)
            ready = size if done == 1 else size - size % rows
            if not ready:
                continue
            whole = _joined(waiting)
            for first in range(0, ready, rows):
                share = min(first + rows, ready) / ready
                yield (
                    before + (done - before) * share,
                    self.layout(_cut(whole, slice(first, first + rows))),
                )
            waiting, before = [_cut(whole, slice(ready, None))], done

    def _slices(self, rows: int) -> Iterator[tuple[float, Table]]:
        """All rows of a few ways to cut the GPUs at a time, and the share that is then done."""
        degrees = self.degrees()
        count = len(degrees["tp"])
        widest = int(np.prod([len(self.values[name]) for name in DETAILS]))
        step = max(1, 4 * rows // widest)
        for start in range(0, count, step):
            yield (
                min(1.0, (start + step) / count),
                self.details(_cut(degrees, slice(start, start + step))),
            )

    def degrees(self) -> Table:
        """Every way to cut the GPUs."""
        job, table = self.job, _one()
        layers = job.model.layers
        experts = job.model.experts.count if job.model.experts else 1
        table = self._open(table, "tp", lambda t: _heads(job.model, t["tp"]))
        table = self._open(table, "cp", self._cp)
        table = self._open(
            table,
            "pp",
            lambda t: {
                "tp · cp · pp must divide the GPUs": job.gpus % (t["tp"] * t["cp"] * t["pp"]) == 0,
                "stages must not exceed the layers": t["pp"] <= layers,
            },
        )
        table["dp"] = job.gpus / (table["tp"] * table["cp"] * table["pp"])
        table = self._keep(table, {"replicas must divide the batch": job.batch % table["dp"] == 0})
        table = self._open(
            table, "ep", lambda t: {"ep must divide the experts": experts % t["ep"] == 0}
        )
        table = self._open(table, "etp", self._experts)
        return self._open(table, "order", self._order)

    def details(self, table: Table) -> Table:
        """The rows of ``table`` with everything else that may be chosen for them."""
        job = self.job
        table = self._open(
            table,
            "micro_batch",
            lambda t: {
                "micro-batch must divide the local batch": (job.batch / t["dp"]) % t["micro_batch"]
                == 0
            },
        )
        for name, rule in (
            ("chunks", self._chunks),
            ("schedule", self._schedule),
            ("zero", self._zero),
            ("shard", self._shard),
            ("sequence_parallel", self._split),
            ("recompute", None),
            ("recompute_share", self._share),
            ("offload_share", None),
        ):
            table = self._open(table, name, rule)
        return self._keep(table, {reason: rule(table) for reason, rule in job.rules})

    def layout(self, table: Table) -> Layout:
        """A table as a layout of columns; stages that do not come out even count the ends in."""
        job = self.job
        even = cut_evenly(job.model, table["pp"] * table["chunks"])
        columns = {name: table[name] for name in CHOICES}
        return replace(
            job.base,
            gpus=float(job.gpus),
            batch=float(job.batch),
            sequence=float(job.sequence),
            even=even,
            **columns,
        )

    def _open(self, table: Table, name: str, rule: Any) -> Table:
        """Each row once for every value of a choice, and only those that ``rule`` allows."""
        values = np.asarray(self.values[name], float)
        size = len(next(iter(table.values())))
        if len(values) == 1:
            found = {**table, name: np.full(size, values[0])}
            return found if rule is None else self._keep(found, rule(found))
        rows, column = np.repeat(np.arange(size), len(values)), np.tile(values, size)
        if rule is not None:
            kept = self._allowed(rule(_Opened(table, rows, {name: column})), len(rows))
            rows, column = rows[kept], column[kept]
        return {**_cut(table, rows), name: column}

    def _keep(self, table: Table, rules: Mapping[str, Mask]) -> Table:
        """Rows that keep every rule."""
        return _cut(table, self._allowed(rules, len(next(iter(table.values())))))

    def _allowed(self, rules: Mapping[str, Mask], size: int) -> Which:
        """Which rows keep every rule; the others are counted by the first that they break."""
        kept = np.ones(size, bool)
        for reason, holds in rules.items():
            broken = int(np.count_nonzero(kept & ~holds))
            if broken:
                self.refused[reason] += broken
                kept &= holds
        return slice(None) if np.all(kept) else np.flatnonzero(kept)

    def _cp(self, t: Table) -> dict[str, Mask]:
        s = self.job.sequence
        return {
            "2 cp must divide the sequence": (t["cp"] == 1) | (s % (2 * t["cp"]) == 0),
            "tp · cp must divide the sequence": s % (t["tp"] * t["cp"]) == 0,
        }

    def _experts(self, t: Table) -> dict[str, Mask]:
        ranks = t["tp"] * t["cp"] * t["dp"]
        return {
            "etp is 1 or tp": (t["etp"] == 1) | (t["etp"] == t["tp"]),
            "ep · etp must divide tp · cp · dp": ranks % (t["ep"] * t["etp"]) == 0,
        }

    def _order(self, t: Table) -> dict[str, Mask]:
        inside = t["order"] == 0
        apart = (t["pp"] > 1) & (t["dp"] > 1)
        alike = (t["etp"] * t["ep"] == t["tp"] * t["cp"]) | (self.job.model.experts is None)
        return {
            "order matters only with pp and dp": inside | apart,
            "dp outside pp needs etp · ep = tp · cp": inside | alike,
        }

    def _chunks(self, t: Table) -> dict[str, Mask]:
        layers, parts = self.job.model.layers, t["pp"] * t["chunks"]
        one = t["chunks"] == 1
        micro = self.job.batch / (t["dp"] * t["micro_batch"])
        slots = layers + 2.0 + self.job.model.mtp
        return {
            "chunks need a pipeline": one | (t["pp"] > 1),
            "stages · chunks must divide the layers": one
            | (layers % parts == 0)
            | ((slots % parts == 0) & (slots >= parts * (2.0 + self.job.model.mtp))),
            "interleaving needs micro-batches in multiples of the stages": one
            | self.job.ragged
            | (micro % t["pp"] == 0),
        }

    def _schedule(self, t: Table) -> dict[str, Mask]:
        plain = t["schedule"] == SCHEDULE["1f1b"]
        micro = self.job.batch / (t["dp"] * t["micro_batch"])
        works = np.ones(len(micro), bool)
        for name, number in SCHEDULE.items():
            here = np.flatnonzero(t["schedule"] == number)
            row, p, m = bubbles.SCHEDULES[SEARCHED.get(name, name)], t["pp"][here], micro[here]
            enough = (m >= row.least(p)) & (m % row.multiple(p) == 0)
            alike = (self.job.model.layers % (2 * p) == 0) | (row.chunks != 2)
            works[here] = enough & alike & ((p % 2 == 0) | (not row.even_stages))
        return {
            "a schedule needs a pipeline": plain | (t["pp"] > 1),
            "only 1F1B interleaves": plain | (t["chunks"] == 1),
            "a schedule needs enough micro-batches, and stages that it can cut": works,
        }

    def _zero(self, t: Table) -> dict[str, Mask]:
        several = (t["dp"] * t["cp"]) > 1
        least = min(self.values["zero"])
        return {"ZeRO needs replicas": several | (t["zero"] == least)}

    def _shard(self, t: Table) -> dict[str, Mask]:
        ranks, whole = t["dp"] * t["cp"], t["shard"] == 0
        fits = (t["shard"] < ranks) & (ranks % np.maximum(t["shard"], 1) == 0)
        return {"HSDP shards over a part of the replicas": whole | ((t["zero"] == 3) & fits)}

    def _split(self, t: Table) -> dict[str, Mask]:
        on = t["sequence_parallel"] > 0
        only = min(self.values["sequence_parallel"]) > 0  # nothing else is allowed
        return {"sequence parallelism needs tp": ~on | (t["tp"] > 1) | only}

    def _share(self, t: Table) -> dict[str, Mask]:
        none = t["recompute"] == RECOMPUTE["none"]
        most = max(self.values["recompute_share"])
        return {"nothing is recomputed": ~none | (t["recompute_share"] == most)}


def cut_evenly(model: Transformer, parts: Column | float) -> Column:
    """How stages are cut, as ``Layout.even`` has it: where they do not come out even, the ends count."""
    return np.where(model.layers % np.asarray(parts) > 0, 2.0 if model.mtp else 1.0, 0.0)


def _heads(model: Transformer, tp: Column) -> dict[str, Mask]:
    kv = model.heads if model.latent else model.kv_heads
    return {
        "tp must divide the heads": model.heads % tp == 0,
        "tp must divide the key-value heads, or be a multiple of them": np.maximum(kv, tp)
        % np.minimum(kv, tp)
        == 0,
    }


class _Opened(dict[str, Column]):
    """Some rows of a table with a new column; of the others those that somebody asks for."""

    def __init__(self, table: Table, rows: NDArray[np.intp], new: Table) -> None:
        super().__init__(new)
        self.table, self.rows = table, rows

    def __missing__(self, name: str) -> Column:
        self[name] = column = self.table[name][self.rows]
        return column


def _cut(table: Table, rows: Which) -> Table:
    return {name: column[rows] for name, column in table.items()}


def _joined(tables: Sequence[Table]) -> Table:
    return {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}


def _one() -> Table:
    return {"start": np.zeros(1)}


def sensible(job: Job) -> dict[str, tuple[float, ...]]:
    """Values worth trying for each choice of a job, whatever the framework."""
    experts = job.model.experts
    fits = _divisors(job.gpus)
    cp = [c for c in fits if c == 1 or (c <= MOST_CP and job.sequence / c >= FEWEST_TOKENS)]
    tp = [t for t in fits if t <= job.inner and job.model.heads % t == 0]
    ep = [e for e in _divisors(experts.count) if job.gpus % e == 0] if experts else [1]
    micro = [m for m in _divisors(job.batch) if m <= MOST_MICRO]
    return {
        "tp": tuple(tp),
        "cp": tuple(cp),
        "pp": tuple(p for p in fits if p <= job.model.layers),
        "ep": tuple(ep),
        "etp": tuple(dict.fromkeys([1, *(tp if experts else [])])),
        "order": (0, 1),
        "micro_batch": tuple(micro),
        "chunks": tuple(range(1, MOST_CHUNKS + 1)),
        "schedule": tuple(SCHEDULE[name] for name in ("1f1b", "zb-h1", "zb-v", "dualpipe")),
        "zero": (0, 1, 3),
        "shard": tuple(dict.fromkeys((0, job.inner if job.inner > 1 else 0))),
        "sequence_parallel": (1,),
        "recompute": tuple(RECOMPUTE[name] for name in _recomputed(job.model)),
        "recompute_share": (0.5, 1.0),
        "offload_share": (0.0,),
    }


def _recomputed(model: Transformer) -> tuple[str, ...]:
    """Modules alone pay where experts or latent attention keep much that is cheap to make again."""
    cheap = ("modules",) if model.experts or model.latent else ()
    return ("none", "attention", *cheap, "half", "full")


def _divisors(n: int) -> list[int]:
    small = [d for d in range(1, int(n**0.5) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)})
