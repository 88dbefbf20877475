"""Logs of nccl-tests: measured times of a collective against message size.

A log is a table for each program that ran: size, count, type, redop, root, then time [µs], algbw,
busbw [GB/s] and wrong elements, out of place and in place. Around it stand comments and whatever
the launcher and NCCL print. What looks like a row and is none is skipped and reported, since a
line that debug output cuts in two still holds numbers. ``size`` is nccl-tests' S, see
``collectives.nccl_size``.

Source: nccl-tests, "Performance".
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from roofline.collectives import COLLECTIVES

Array = NDArray[np.float64]

PROGRAMS = {
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "all_reduce": "all-reduce",
    "alltoall": "all-to-all",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "scatter": "scatter",
    "gather": "gather",
    "sendrecv": "point-to-point",
}
COLUMNS = (
    *("size", "count", "type", "redop", "root"),
    *("time", "algbw", "busbw", "#wrong"),
    *("time", "algbw", "busbw", "#wrong"),
)
_TAG = re.compile(r"^\s*(?:\[[\w,.:-]+\](?:<\w+>:?)?|\d+:(?=\s))\s?")  # of mpirun, of srun -l
_PROGRAM = re.compile(rf"\b({'|'.join(PROGRAMS)})_perf")
_RANK = re.compile(r"#\s*Rank\s+(\d+)\s")
_PLACE = re.compile(r"\son\s+(\S+)\s+device\s+\d+\s+(?:\[[^\]]*\]\s*)?(.*)")
_CALLS = re.compile(r"\bnThread\s+\d+\s+nGpus\s+(\d+)")
_GRAPHS = re.compile(r"\bgraph:\s*[1-9]")
_VERSION = re.compile(r"\b(nccl-tests|NCCL|RCCL) version[ :]+([\w.+-]+)")
_LIBRARY = re.compile(r"\bnccl-library=(\d)(\d\d)(\d\d)\b")  # of nccl-tests since 2.17
_NUMBER = re.compile(r"^[+-]?[\d.]")
_ROUNDED = 0.06  # relative: a long time may be printed with two figures
_DECIMAL = 0.006e9  # and a bandwidth with two decimals


@dataclass(frozen=True, slots=True)
class Skipped:
    """A line that holds no row, and why."""

    line: int
    text: str
    why: str


@dataclass(frozen=True, slots=True)
class Run:
    """One table: a collective on some ranks, a row for each message size."""

    operation: str  # a name of ``collectives.COLLECTIVES``
    ranks: int | None  # None: the log does not say
    guessed: bool  # the operation follows from redop, root and bandwidths, not from a name
    size: Array  # [B]
    dtypes: tuple[str, ...]
    redops: tuple[str, ...]
    roots: tuple[int, ...]
    seconds: Array  # out of place, nan where the log has none that can be used [s]
    algbw: Array  # [B/s]
    busbw: Array  # [B/s]
    in_place_seconds: Array  # the same
    in_place_algbw: Array
    in_place_busbw: Array
    wrong: Array  # results that differ from the expected; nan where nobody looked
    in_place_wrong: Array
    hosts: dict[str, int]  # host → ranks on it; empty where the log has none
    devices: dict[str, int]  # name of GPU → ranks on it
    versions: dict[str, str]  # of nccl-tests and NCCL, as far as printed
    per_thread: int | None = (
        None  # GPUs that a thread calls for, 0 where graphs run; None: not said
    )

    @property
    def out_of_place(self) -> Run:
        """The rows that have a time out of place.

        Raises:
            ValueError: when there are none.
        """
        there = np.isfinite(self.seconds)
        if not there.any():
            raise ValueError("no row has a time out of place")
        rows = {f.name: getattr(self, f.name) for f in fields(self)}
        kept: dict[str, Any] = {
            name: v[there] for name, v in rows.items() if isinstance(v, np.ndarray)
        }
        for name in ("dtypes", "redops", "roots"):
            kept[name] = tuple(v for v, has in zip(rows[name], there, strict=True) if has)
        return replace(self, **kept)


@dataclass(frozen=True, slots=True)
class Log:
    """Everything that a text holds."""

    runs: tuple[Run, ...]
    skipped: tuple[Skipped, ...]


@dataclass(slots=True)
class _Table:
    program: str = ""
    ranks: int = 0
    columns: tuple[str, ...] = COLUMNS
    rows: list[tuple[float | str, ...]] = field(default_factory=list)
    places: dict[int, tuple[str, str]] = field(default_factory=dict)  # rank → host, device
    versions: dict[str, str] = field(default_factory=dict)
    inherited: bool = False  # ranks and places are those of the table before
    per_thread: int | None = None

    def counted(self, which: int) -> dict[str, int]:
        """Ranks on each host (0) or kind of device (1)."""
        return dict(Counter(place[which] for place in self.places.values() if place[which]))


def read(text: str) -> Log:
    """Every table of ``text``; lines that are none of it are listed, never an error.

    >>> log = read("# all_reduce_perf -g 8\\n 1048576 262144 float sum -1 50 20.97 36.70 0")
    >>> log.runs[0].operation, log.runs[0].ranks, log.runs[0].seconds
    ('all-reduce', 8, array([5.e-05]))
    """
    tables, skipped = [_Table()], []
    for number, raw in enumerate(text.splitlines(), 1):
        line = _TAG.sub("", raw).strip()
        told = _VERSION.search(line)
        if told:
            tables[-1].versions[told[1]] = told[2]
        if library := _LIBRARY.search(line):
            tables[-1].versions["NCCL"] = ".".join(str(int(part)) for part in library.groups())
        if line.startswith("#") or (_PROGRAM.search(line) and not _NUMBER.match(line)):
            _comment(line, tables)
        elif line and not told:
            try:
                row, in_place = _row(line.split(), tables[-1].columns)
                tables[-1].rows.append(row)
            except ValueError as error:
                in_place = str(error)
            if in_place:
                skipped.append(Skipped(number, raw.strip()[:200], in_place))
    return Log(tuple(_run(table) for table in tables if table.rows), tuple(skipped))


def median_error(predicted: ArrayLike, measured: ArrayLike) -> float:
    """Half of the predictions are off by less: median of |predicted / measured - 1|.

    >>> median_error([1.0, 2.0, 3.0], [1.0, 2.5, 4.0])
    0.2
    """
    return float(np.median(np.abs(np.divide(predicted, measured) - 1)))


def _comment(line: str, tables: list[_Table]) -> None:
    """What a comment says of the table that follows; a new table where one has ended."""
    words = tuple(line.lstrip("# ").lower().split())
    program, rank, calls = _PROGRAM.search(line), _RANK.search(line), _CALLS.search(line)
    begins = words[:2] == ("size", "count")
    if "concluded" in words or not (program or rank or begins or calls):
        return
    if tables[-1].rows:
        last = tables[-1]
        tables.append(_Table(versions=dict(last.versions), per_thread=last.per_thread))
        if not rank:
            tables[-1].ranks, tables[-1].places = last.ranks, last.places
            tables[-1].inherited = True
    table = tables[-1]
    if calls:
        table.per_thread = 0 if _GRAPHS.search(line) else int(calls[1]) or None
    elif program:
        table.program = PROGRAMS[program[1]]
    elif rank:
        if table.inherited:
            table.ranks, table.places, table.inherited = 0, {}, False
        table.ranks = max(table.ranks, int(rank[1]) + 1)
        if place := _PLACE.search(line):
            table.places[int(rank[1])] = (place[1], place[2].strip())
    else:
        table.columns = tuple("time" if word == "cputime" else word for word in words)


def _row(words: Sequence[str], columns: Sequence[str]) -> tuple[tuple[float | str, ...], str]:
    """Size, type, redop, root, and both triples of time, algbw and busbw, in SI units.

    Then, where only one of out of place and in place can be used, what is wrong with the other.
    """
    if not _NUMBER.match(words[0]):
        raise ValueError("not a row: it does not begin with a size")
    first = _place(columns, 0)
    if len(words) < first + 3:
        raise ValueError(f"{len(words)} columns; a row has at least {first + 3}")
    named = dict(zip(columns[:first], words, strict=False))
    size = _number("size", named["size"])
    _number("count", named.get("count", "0"))
    if size == 0:
        raise ValueError("size 0: nothing was moved")
    root = int(_number("root", named.get("root", "-1"), least=-1))
    second = _place(columns, 1)
    out, why = _half("out of place", words[first : first + 3], size)
    in_place, why_in_place = _half("in place", words[second : second + 3], size)
    if why and math.isnan(in_place[0]):
        raise ValueError(why.partition(": ")[2])
    why = why or why_in_place
    wrong = _wrong(words[first + 3 : first + 4]), _wrong(words[second + 3 : second + 4])
    return (size, named.get("type", ""), named.get("redop", ""), root, *out, *in_place, *wrong), why


def _half(name: str, words: Sequence[str], size: float) -> tuple[tuple[float, float, float], str]:
    """As ``_timing`` has it; numbers that are none leave the rest of the row as it is."""
    none = (math.nan,) * 3
    try:
        return (_timing(words, size) if len(words) == 3 else none), ""
    except ValueError as error:
        return none, f"{name}: {error}"


def _wrong(words: Sequence[str]) -> float:
    """Wrong results; nan for N/A. Old versions print the largest error, 0e+00 or 1e-07."""
    try:
        return float(words[0])
    except (IndexError, ValueError):
        return math.nan


def _place(columns: Sequence[str], nth: int) -> int:
    """Where the ``nth`` triple begins; beyond the row where there is none."""
    at = [place for place, column in enumerate(columns) if column == "time"]
    return at[nth] if nth < len(at) else len(columns) + len(COLUMNS)


def _timing(words: Sequence[str], size: float) -> tuple[float, float, float]:
    """Seconds and both bandwidths, when they agree with the size."""
    micros = _number("time", words[0])
    algbw, busbw = (
        _number(name, word) for name, word in zip(("algbw", "busbw"), words[1:], strict=True)
    )
    if micros == 0:
        raise ValueError("time 0: nothing was measured")
    told = size / micros / 1e3
    if abs(told - algbw) > _ROUNDED * max(told, algbw) + _DECIMAL / 1e9:
        raise ValueError(f"size over time is {told:.3g} GB/s, but the line says {algbw:.3g}")
    return micros / 1e6, algbw * 1e9, busbw * 1e9


def _number(name: str, word: str, least: float = 0.0) -> float:
    try:
        value = float(word)
    except ValueError:
        raise ValueError(f"{name}: {word[:40]!r} is not a number") from None
    if not (math.isfinite(value) and value >= least):
        raise ValueError(f"{name}: {word[:40]!r} is refused; allowed: {least:g} and more")
    return value


def _run(table: _Table) -> Run:
    size, dtypes, redops, roots, *times = zip(*table.rows, strict=True)
    columns = [np.asarray(column, float) for column in times]
    algbw, busbw = (np.where(np.isnan(columns[i]), columns[i + 3], columns[i]) for i in (1, 2))
    guess, ranks = _guess(str(redops[-1]), int(roots[-1]), algbw, busbw, table.program)
    return Run(
        table.program or guess,
        table.ranks or ranks,
        not table.program,
        np.asarray(size, float),
        tuple(map(str, dtypes)),
        tuple(map(str, redops)),
        tuple(int(root) for root in roots),
        *(columns[0], columns[1], columns[2], columns[3], columns[4], columns[5]),
        *(columns[6], columns[7]),
        table.counted(0),
        table.counted(1),
        dict(table.versions),
        table.per_thread,
    )


def _guess(
    redop: str, root: int, algbw: Array, busbw: Array, operation: str
) -> tuple[str, int | None]:
    """Operation and ranks from what a row says; the ratio of bandwidths depends on the ranks."""
    best = int(np.argmax(algbw))
    ratio = float(busbw[best] / algbw[best]) if algbw[best] > 0 else 0.0
    rounded = ratio * (_DECIMAL / algbw[best] + _DECIMAL / busbw[best]) if ratio else math.inf
    if not operation:
        operation = next(_likely(redop != "none", root >= 0, ratio))
    factor = COLLECTIVES[operation].busbw
    n = np.arange(2.0, 65.0)
    fits = np.abs(factor(n) - ratio) + rounded < np.abs(factor(n) - factor(n + 1)) / 2
    return operation, int(n[np.argmax(fits)]) if np.any(fits) else None


def _likely(reduces: bool, rooted: bool, ratio: float) -> Iterator[str]:
    if rooted:
        yield "reduce" if reduces else "broadcast"
    if reduces:
        yield "all-reduce" if ratio >= 0.995 else "reduce-scatter"
    yield "point-to-point" if abs(ratio - 1) < 1e-3 else "all-gather"
