"""Topology of one node, as ``nvidia-smi topo -m`` prints it: links of each pair, cards of each GPU.

    NV#   # NVLinks, to the other GPU or to a switch that leads there
    PIX   at most one PCIe bridge          PXB   several, none of them the host's
    PHB   over the host's PCIe bridge      NODE  between bridges of one NUMA node
    SYS   over the link between sockets    X     itself

Text in, small frozen objects out. Columns that newer drivers add are skipped; colours, empty lines
and the legend are too. The program cannot say whether NVLinks lead to a switch: all of a GPU's go to
every other GPU if they do, and to each only some if they do not.

Source: NVIDIA, manual of nvidia-smi, "topo".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

MEANS = {
    "X": "itself",
    "PIX": "at most one PCIe bridge",
    "PXB": "several PCIe bridges, none of them the host's",
    "PHB": "the host's PCIe bridge",
    "NODE": "PCIe bridges of one NUMA node",
    "SYS": "the link between NUMA nodes",
}
_DISTANCE = {code: i for i, code in enumerate(MEANS)}
_NVLINK = re.compile(r"NV(\d+)\Z")
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_GPU = re.compile(r"GPU\d+\Z")
_LEGEND = re.compile(r"\s*(NIC\d+)\s*:\s*(\S+)\s*\Z")


@dataclass(frozen=True, slots=True)
class Link:
    """How two devices reach each other."""

    code: str

    @property
    def nvlinks(self) -> int:
        """NVLinks; 0 where the way is PCIe."""
        found = _NVLINK.match(self.code)
        return int(found[1]) if found else 0

    @property
    def distance(self) -> int:
        """Less is nearer: NVLink and the device itself 0, then PIX, PXB, PHB, NODE, SYS."""
        return _DISTANCE.get(self.code, 0)

    @property
    def means(self) -> str:
        """In words."""
        return f"{self.nvlinks} NVLinks" if self.nvlinks else MEANS[self.code]


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU or a network card and its links to all devices, in the order of the table."""

    name: str
    links: tuple[Link, ...]
    cpus: str = ""  # cores near it, as printed: 0-47,96-143
    numa: str = ""
    called: str = ""  # by the system: mlx5_0


@dataclass(frozen=True, slots=True)
class Topology:
    """GPUs and network cards of one node."""

    gpus: tuple[Device, ...]
    nics: tuple[Device, ...]
    columns: tuple[str, ...]

    def link(self, one: str, other: str) -> Link:
        """The link between two devices.

        Raises:
            ValueError: a name that is not in the table.
        """
        return self._device(one).links[self._column(other)]

    def nearest_nics(self, gpu: str) -> tuple[str, ...]:
        """The cards that ``gpu`` reaches by the shortest way: those that it should use.

        Raises:
            ValueError: a name that is not in the table.
        """
        away = {nic.name: self.link(gpu, nic.name).distance for nic in self.nics}
        least = min(away.values(), default=0)
        return tuple(name for name, distance in away.items() if distance == least)

    @property
    def nvlinks(self) -> tuple[tuple[int, ...], ...]:
        """NVLinks of every pair of GPUs, a row for each."""
        columns = [self._column(gpu.name) for gpu in self.gpus]
        return tuple(tuple(gpu.links[i].nvlinks for i in columns) for gpu in self.gpus)

    @property
    def fully_connected(self) -> bool:
        """True where every pair of GPUs has NVLinks, directly or through a switch."""
        rows = enumerate(self.nvlinks)
        return all(count for i, row in rows for j, count in enumerate(row) if i != j)

    def _device(self, name: str) -> Device:
        for device in (*self.gpus, *self.nics):
            if device.name == name:
                return device
        known = ", ".join(device.name for device in (*self.gpus, *self.nics))
        raise ValueError(f"device: {name!r} is not in the table; allowed: {known}")

    def _column(self, name: str) -> int:
        if name not in self.columns:
            known = ", ".join(self.columns)
            raise ValueError(f"device: {name!r} is not in the table; allowed: {known}")
        return self.columns.index(name)


def read(text: str) -> Topology:
    """The topology that ``nvidia-smi topo -m`` printed.

    Raises:
        ValueError: no table, or a line that does not fit it, with its number.

    >>> pair = read('''
    ...         GPU0    GPU1    CPU Affinity    NUMA Affinity
    ... GPU0     X      NV4     0-31            0
    ... GPU1    NV4      X      32-63           1
    ... ''')
    >>> pair.link("GPU0", "GPU1").nvlinks
    4
    """
    lines = list(enumerate(_COLOUR.sub("", text).splitlines(), 1))
    columns, start = _header(lines)
    called = {m[1]: m[2] for _, line in lines if (m := _LEGEND.match(line))}
    found = [
        _device(number, line, columns, called) for number, line in _rows(lines, start, columns)
    ]
    missing = [name for name in columns if name not in {device.name for device in found}]
    if missing:
        raise ValueError(f"line {start}: no row for {', '.join(missing)}, which the header names")
    if len(found) > len(columns):
        raise ValueError(f"line {start}: {len(found)} rows for {len(columns)} devices")
    return Topology(
        tuple(device for device in found if _GPU.match(device.name)),
        tuple(device for device in found if not _GPU.match(device.name)),
        columns,
    )


def _header(lines: list[tuple[int, str]]) -> tuple[tuple[str, ...], int]:
    """The devices that have columns, and the header's line."""
    for number, line in lines:
        words = line.split()
        if len(words) >= 1 and _GPU.match(words[0]) and "X" not in words:
            end = next((i for i, w in enumerate(words) if w in ("CPU", "NUMA")), len(words))
            return tuple(words[:end]), number
    raise ValueError("topology: no header with GPU0 in it; allowed: what nvidia-smi topo -m prints")


def _rows(
    lines: list[tuple[int, str]], start: int, columns: tuple[str, ...]
) -> Iterator[tuple[int, list[str]]]:
    for number, line in lines[start:]:
        words = line.split()
        if words and words[0].startswith("Legend"):
            return
        if words and words[0] in columns:
            yield number, words
        elif words and _GPU.match(words[0]):
            raise ValueError(f"line {number}: {words[0]} is not in the header")


def _device(
    number: int, words: list[str], columns: tuple[str, ...], called: dict[str, str]
) -> Device:
    name, *rest = words
    codes = rest[: len(columns)]
    if len(codes) < len(columns):
        raise ValueError(f"line {number}: {name} has {len(codes)} links for {len(columns)} devices")
    for code in codes:
        if code not in MEANS and not _NVLINK.match(code):
            allowed = f"allowed: NV#, {', '.join(MEANS)}"
            raise ValueError(f"line {number}: {code!r} is no link; {allowed}")
    cpus, numa, *_ = [*rest[len(columns) :], "", ""]
    return Device(name, tuple(map(Link, codes)), cpus, numa, called.get(name, name))
