"""Output of nvbandwidth: copies between GPUs and within one, a matrix of GB/s for each test.

    Running device_to_device_memcpy_read_ce.
    memcpy CE GPU(row) <- GPU(column) bandwidth (GB/s)
               0         1
     0       N/A    276.07
     1    276.36       N/A

A pair of GPUs is a message from point to point; a copy inside a GPU a copy in its memory. Copies to
and from the host, latencies and sums of both directions are listed as left out: no kernel of the
suite is about them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from validation.importing.records import Found, Sample
from validation.results import Value

BUFFER = 512 * 2**20  # what nvbandwidth copies unless told otherwise [B]
_RUNNING = re.compile(r"\bRunning\s+(\w+)")
_DEVICE = re.compile(r"^\s*Device\s+(\d+):\s*(.+?)(?:\s*\([0-9a-fA-F:.]+\))?\s*$")
_VERSIONS = {
    "nvbandwidth": re.compile(r"nvbandwidth Version:\s*(\S+)"),
    "driver": re.compile(r"^\s*Driver Version:\s*(\S+)"),
    "cuda": re.compile(r"CUDA Runtime Version:\s*(\S+)"),
}


@dataclass(slots=True)
class _Test:
    name: str
    line: int
    unit: str = ""
    columns: list[int] = field(default_factory=list)
    cells: dict[tuple[int, int], float] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)


def read(text: str, buffer: int = BUFFER) -> list[Found]:
    """One run: all tests of an output; ``buffer`` is what it was told to copy [B]."""
    found = Found("nvbandwidth", 1)
    names: dict[int, str] = {}
    tests: list[_Test] = []
    for number, line in enumerate(text.splitlines(), 1):
        for what, pattern in _VERSIONS.items():
            if told := pattern.search(line):
                found.versions[what] = told[1]
        if device := _DEVICE.match(line):
            names[int(device[1])] = device[2]
        elif running := _RUNNING.search(line):
            tests.append(_Test(running[1], number))
        elif tests:
            _line(tests[-1], line, number)
    for name in names.values():
        found.devices[name] = found.devices.get(name, 0) + 1
    seen = [i for test in tests for pair in test.cells for i in pair]
    found.world = max([len(names), *(i + 1 for i in seen), 1])
    for test in tests:
        samples = list(_samples(test, buffer))
        found.samples += samples
        found.left_out += test.broken
        if not samples:
            found.left_out.append(f"line {test.line}: {test.name}: {_why(test)}")
    return [found]


def _line(test: _Test, line: str, number: int) -> None:
    """The unit, the columns, or a row of the matrix."""
    words = line.split()
    if unit := re.search(r"\(([GM]?B/s|GiB/s|ns|us)\)", line):
        test.unit, test.columns = unit[1], []
    elif not words or words[0] == "SUM" or not words[0].isdigit() or not test.unit:
        return
    elif not test.columns:
        if all(word.isdigit() for word in words):
            test.columns = [int(word) for word in words]
    elif len(words) != len(test.columns) + 1:
        told = f"{len(words) - 1} numbers in {len(test.columns)} columns"
        test.broken.append(f"line {number}: {test.name}: {told}: {line.strip()[:60]!r}")
    else:
        values = [_number(word) for word in words[1:]]
        for word, value in zip(words[1:], values, strict=True):
            if value is None:
                test.broken.append(f"line {number}: {test.name}: {word[:40]!r} is not a number")
        if None not in values:
            pairs = zip(test.columns, values, strict=True)
            test.cells |= {(int(words[0]), column): value for column, value in pairs if value}


def _number(word: str) -> float | None:
    """Zero for a cell that is none, None for one that should be a number."""
    if word == "N/A":
        return 0.0
    try:
        value = float(word)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def _samples(test: _Test, buffer: int) -> Iterator[Sample]:
    scale = {"GB/s": 1e9, "GiB/s": 2.0**30, "MB/s": 1e6}.get(test.unit)
    if scale is None or "bidirectional" in test.name:
        return
    if test.name.startswith("device_to_device"):
        for (row, column), rate in test.cells.items():
            if row != column:
                told: dict[str, Value] = {"bytes": buffer, "dtype": "fp32", "test": test.name}
                pair = told | {"row": row, "column": column}
                seconds = [buffer / (rate * scale)]
                yield Sample("point-to-point", "comms", pair, seconds, 2, abs(row - column))
    elif test.name.startswith("device_local_copy"):
        rates = [rate * scale for rate in test.cells.values()]
        if rates:
            what: dict[str, Value] = {"op": "copy", "where": "memory", "bytes": buffer}
            copied = what | {"dtype": "fp32"}
            yield Sample("memory", "math", copied, [buffer / rate for rate in rates])


def _why(test: _Test) -> str:
    if not test.cells:
        return "no numbers: waived, or cut off"
    if "bidirectional" in test.name:
        return "both directions at once"
    return "no kernel of the suite is about it"
