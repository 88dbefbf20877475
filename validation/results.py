"""Results: one JSON line for each thing measured, written as it comes, read whatever happened.

A file holds records of four kinds, each with the version of this format:

    header     one a run: what ran where, and on which profile the predictions are
    measured   one part (math, comms, both) of one case
    failed     a case that a rank could not finish, which rank, and why
    end        how the run ended, and how much of its time was measuring

Lines are appended and flushed one by one, so a crash loses nothing. Every record names the run it
belongs to: files can be resumed, joined and sorted. ``read`` never raises for what a file holds; it
lists what it could not use.
"""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from validation.profile import foreign

SCHEMA = 1  # of the lines; raise it when a field changes its meaning
METHOD = 1  # of measuring; raise it when times before and after cannot be compared
FILE = "results.jsonl"

Part = Literal["math", "comms", "both"]
Correct = Literal["yes", "no", "unchecked", "elsewhere"]
Value = int | float | str | bool
PARTS: tuple[Part, ...] = ("math", "comms", "both")
MOST = 10**6  # ranks: more than any machine has
Ranks = Annotated[int, Field(ge=1, le=MOST)]


class Record(BaseModel):
    """What every line has."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    schema_version: int = SCHEMA
    run: str = Field(description="which header this belongs to")


class Header(Record):
    """One run: where it ran, with what, and which profile its predictions come from."""

    record: Literal["header"] = "header"
    started: str = Field(description="ISO 8601, UTC")
    method: int = METHOD
    suite: str
    world: Ranks
    device: str = Field(description="cpu or cuda")
    backend: str
    hosts: dict[str, Ranks] = Field(description="host name → ranks on it")
    devices: dict[str, int] = Field(description="name of GPU or CPU → ranks on it")
    versions: dict[str, str] = Field(description="python, torch, cuda, nccl, driver")
    clocks: str = Field("", description="of the GPUs of rank 0's host, as nvidia-smi has them")
    variables: dict[str, str] = Field(description="what NCCL, gloo and OpenMP were told")
    profile: str = Field(description="name of the cluster")
    overlay: str = Field("", description="name of the calibration; empty: peaks")
    cluster: dict[str, Any] = Field(description="the cluster itself, to predict anew from")
    left_out: dict[str, str] = Field(
        default_factory=dict, description="kernels and data types without a case here, and why"
    )

    @property
    def foreign(self) -> str:
        """``measured on AMD EPYC, not on h100-sxm``, where the devices are not the profile's."""
        chip = self.cluster.get("accelerator") or {}
        name, gpu = str(chip.get("name", "")), chip.get("sms") is not None
        return foreign(self.device, self.devices, name, gpu=gpu)

    @property
    def conditions(self) -> tuple[object, ...]:
        """What must be equal for two runs to be continued as one."""
        told = (self.hosts, self.devices, self.versions, self.variables, self.cluster)
        text = json.dumps(told, sort_keys=True)
        return (self.method, self.world, self.device, self.backend, self.overlay, text)


class Measured(Record):
    """One part of one case: what it took, what it should have taken, and whether it was right."""

    record: Literal["measured"] = "measured"
    case: str = Field(description="stable key: the kernel and its parameters")
    kernel: str
    part: Part
    parts: int = Field(1, description="lines of this case; it is done when all are there")
    parameters: dict[str, Value]
    size: Ranks = Field(1, description="ranks in the group")
    stride: Ranks = Field(1, description="ranks between neighbours in the group")
    world: Ranks
    seconds: float = Field(description="median over repeats of the slowest rank")
    minimum: float | None = Field(None, description="of the repeats; steadier on a noisy host")
    p10: float
    p90: float
    repeats: int = Field(ge=1)
    inner: int = Field(1, description="calls in each repeat; times are of one call")
    per_rank: tuple[float, ...] = Field(description="each rank's own median")
    per_rank_p90: tuple[float, ...] = Field((), description="each rank's own slow repeats")
    predicted: float | None = Field(None, description="seconds, from the header's profile")
    flops: float = Field(0.0, description="of one rank")
    nbytes: float = Field(0.0, description="math: over one rank's memory; comms: the whole array")
    correct: Correct = Field(
        "unchecked",
        description="elsewhere: another program's, which checks itself or has nothing to",
    )
    max_error: float | None = None
    tolerance: float | None = None

    @property
    def trusted(self) -> bool:
        """True when its run found it right, or another program measured it, and numbers agree.

        A time that is no time (zero, below, NaN, endless) is never trusted.
        """
        times = (self.seconds, self.p10, self.p90, *self.per_rank, *self.per_rank_p90)
        least = self.seconds if self.minimum is None else self.minimum
        if not all(0 < t < inf for t in (*times, least)):
            return False
        off, allowed = self.max_error, self.tolerance
        if off is not None and allowed is not None and off > allowed:
            return False
        return self.correct in ("yes", "elsewhere") and self.p10 <= self.p90

    @property
    def error(self) -> float | None:
        """predicted / seconds - 1, where there is a prediction."""
        return None if self.predicted is None else self.predicted / self.seconds - 1

    @property
    def spread(self) -> float:
        """(p90 - p10) / median."""
        return (self.p90 - self.p10) / self.seconds if self.seconds else 0.0


class Failed(Record):
    """A case that ended with an error; ``rank`` is the one that had it first."""

    record: Literal["failed"] = "failed"
    case: str
    kernel: str
    parameters: dict[str, Value]
    rank: int
    reason: str


class End(Record):
    """How a run ended."""

    record: Literal["end"] = "end"
    outcome: Literal["complete", "aborted"]
    wall: float = Field(description="first case to last, start-up left out [s]")
    measuring: float = Field(description="of it, warm-up and timed calls [s]")
    startup: float = Field(description="from the program's start to the first case [s]")
    measured: int = Field(description="cases")
    skipped: int = Field(description="cases that an earlier run has")
    failed: int
    wrong: int = Field(description="cases whose result differs from the reference")
    unchecked: int = Field(0, description="cases without a check, not to be trusted")
    clocks: str = Field("", description="as in the header, right after the last case")

    @property
    def share(self) -> float:
        """Of the time since the program's start, what was spent on measuring."""
        whole = self.startup + self.wall
        return self.measuring / whole if whole else 1.0


Line = Header | Measured | Failed | End
RECORDS: Mapping[str, type[Line]] = {
    "header": Header,
    "measured": Measured,
    "failed": Failed,
    "end": End,
}


@dataclass(frozen=True, slots=True)
class Problem:
    """A line that could not be used, and why."""

    file: Path
    line: int
    why: str

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}: {self.why}"


@dataclass(slots=True)
class Results:
    """Everything that some files hold."""

    headers: dict[str, Header] = field(default_factory=dict)  # by run
    measured: list[Measured] = field(default_factory=list)
    failed: list[Failed] = field(default_factory=list)
    ends: list[End] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def done(self, header: Header) -> set[str]:
        """Cases measured, and found right, by runs under the conditions of ``header``."""
        same = {run for run, had in self.headers.items() if had.conditions == header.conditions}
        right = [m for m in self.measured if m.run in same and m.trusted]
        there = Counter(case for case, _ in {(m.case, m.part) for m in right})
        return {m.case for m in right if there[m.case] >= m.parts}

    def latest(self) -> list[Measured]:
        """One line for each case and part under each conditions: the last one."""
        return list({(self._conditions(m.run), m.case, m.part): m for m in self.measured}.values())

    def best(self) -> list[Measured]:
        """The same over all runs: the one with the least median of those found right, as what else
        a host does can only add. Where the last run was wrong, its line.
        """
        found: dict[object, list[Measured]] = defaultdict(list)
        for m in self.measured:
            found[self._conditions(m.run), m.case, m.part].append(m)
        return [_fastest(lines) for lines in found.values()]

    def _conditions(self, run: str) -> object:
        return self.headers[run].conditions if run in self.headers else run

    def _add(self, line: Line) -> None:
        if isinstance(line, Header):
            self.headers[line.run] = line
        elif isinstance(line, Measured):
            self.measured.append(line)
        elif isinstance(line, Failed):
            self.failed.append(line)
        else:
            self.ends.append(line)


def _fastest(lines: list[Measured]) -> Measured:
    right = [m for m in lines if m.trusted]
    return min(right, key=lambda m: m.seconds) if lines[-1].trusted else lines[-1]


class Writer:
    """Appends lines to ``folder/results.jsonl``, each flushed to the disk before the next."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / FILE
        self._mend()
        self.add()  # a folder that cannot be written to is told of before anything is measured

    def add(self, *lines: Line) -> None:
        """Append ``lines``.

        Raises:
            OSError: a full disk or the like; whole lines before it stay.
        """
        left = b"".join(line.model_dump_json().encode() + b"\n" for line in lines)
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        size = os.fstat(file).st_size
        try:
            while left:
                left = left[os.write(file, left) :]
            os.fsync(file)
        except OSError:
            os.ftruncate(file, size)
            raise
        finally:
            os.close(file)

    def _mend(self) -> None:
        """End a line that a crash cut off, so that the next one begins on its own."""
        if self.path.exists() and (data := self.path.read_bytes()) and not data.endswith(b"\n"):
            with self.path.open("ab") as file:
                file.write(b"\n")


def read(*places: Path) -> Results:
    """Results of files, or of ``results.jsonl`` in folders; lines that are none are listed.

    Raises:
        FileNotFoundError: when a place does not exist, or a folder has no results.
    """
    results = Results()
    for place in places:
        file = place / FILE if place.is_dir() else place
        for number, text in enumerate(file.read_bytes().splitlines(), 1):
            if not text.strip():
                continue
            try:
                results._add(_parse(text))
            except ValueError as error:
                results.problems.append(Problem(file, number, str(error)))
    return results


def write(path: Path, lines: Iterable[Line]) -> None:
    """A whole file at once, for results that come from elsewhere."""
    path.write_text("".join(line.model_dump_json() + "\n" for line in lines), "utf-8")


def _parse(text: bytes) -> Line:
    try:
        data = json.loads(text)
    except ValueError:
        raise ValueError("cut off, or not JSON: left out") from None
    except RecursionError:
        raise ValueError("nested too deeply to be a record: left out") from None
    if not isinstance(data, dict) or data.get("record") not in RECORDS:
        raise ValueError(f"no record of ours; allowed: {', '.join(RECORDS)}")
    if (version := data.get("schema_version")) != SCHEMA:
        age = "older" if isinstance(version, int) and version < SCHEMA else "newer"
        raise ValueError(f"schema_version {version!r} is {age} than {SCHEMA}: measure again")
    try:
        return RECORDS[data["record"]].model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"{place}: {first['msg']}") from None
