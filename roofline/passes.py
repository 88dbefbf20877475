"""Passes as numbers, and ways to write down the order of many.

A pass is a kind, a micro-batch i and a virtual stage j of J; micro-batch i visits the virtual
stages in turn, forward and then backward. Where a backward pass is split, INPUT makes the gradients
of the activations, that the stage before waits for, and WEIGHT those of the weights, which may wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Codes = NDArray[np.int64]

# A pair of a forward and a backward pass that run together is GATE, PAIR, TAIL: GATE waits for what
# the backward pass needs, PAIR is the forward pass and lasts, TAIL is the backward pass's end.
FORWARD, BACKWARD, INPUT, WEIGHT, GATE, PAIR, TAIL = range(7)


class Size(NamedTuple):
    """A pipeline: devices, micro-batches, and chunks of layers per device."""

    stages: int
    microbatches: int
    chunks: int

    @property
    def virtual(self) -> int:
        """Chunks of layers of the whole model, J."""
        return self.stages * self.chunks

    def code(self, kind: int, microbatch: Codes, virtual: Codes | int) -> Codes:
        """The number of a pass."""
        return (kind * self.microbatches + microbatch) * self.virtual + virtual

    def read(self, code: Codes) -> tuple[Codes, tuple[Codes, Codes]]:
        """Kind, and micro-batch and virtual stage, of passes."""
        rest, virtual = np.divmod(code, self.virtual)
        kind, microbatch = np.divmod(rest, self.microbatches)
        return kind, (microbatch, virtual)


def merge(*runs: tuple[Codes, Codes]) -> Codes:
    """Passes in the order of their keys."""
    keys = np.concatenate([key for _, key in runs])
    return np.concatenate([codes for codes, _ in runs])[np.argsort(keys, kind="stable")]


class Script:
    """Passes one after another: each is of the next micro-batch of its phase."""

    def __init__(self, size: Size, virtual: tuple[int, int], first: tuple[int, int]) -> None:
        self.stages, self.virtual = size.virtual, virtual
        self.places = size.microbatches * size.virtual
        self.next = {FORWARD: list(first), BACKWARD: list(first)}
        self.codes: list[int] = []
        self.late: deque[int] = deque()

    def forward(self, phase: int, kind: int = FORWARD) -> None:
        """A forward pass."""
        self._write(kind, self._take(FORWARD, phase))

    def backward(self, phase: int, *, split: bool = False) -> None:
        """A backward pass; of a split one the weight gradients are left for later."""
        place = self._take(BACKWARD, phase)
        self._write(INPUT if split else BACKWARD, place)
        if split:
            self.late.append(place)

    def pair(self, forward: int, backward: int) -> None:
        """A forward pass of one phase and a backward pass of the other, overlapped."""
        place = self._take(BACKWARD, backward)
        self._write(GATE, place)
        self.forward(forward, PAIR)
        self._write(TAIL, place)

    def weight(self) -> None:
        """The oldest weight gradients that were left."""
        self._write(WEIGHT, self.late.popleft())

    def _take(self, way: int, phase: int) -> int:
        microbatch = self.next[way][phase]
        self.next[way][phase] += 1
        return microbatch * self.stages + self.virtual[phase]

    def _write(self, kind: int, place: int) -> None:
        self.codes.append(kind * self.places + place)


def fill(size: Size, lists: list[Codes], limit: int) -> list[Codes]:
    """Weight gradients put in, where passes take a unit of time each: wherever a device would wait,
    and wherever it else would hold more than ``limit`` chunks.

    Args:
        lists: FORWARD and INPUT passes of each device, in their order.
    """
    end = [-1] * ((INPUT + 1) * size.microbatches * size.virtual)
    filled: list[list[int]] = [[] for _ in lists]
    devices = [
        _filling(size, codes.tolist(), limit, end, out)
        for codes, out in zip(lists, filled, strict=True)
    ]
    waiting: dict[int, Iterator[int]] = {}
    ready = devices[::-1]
    while ready:
        device = ready.pop()
        for code in device:  # until it waits for a pass that has no time yet
            if end[code] < 0:
                waiting[code] = device
                break
            if code in waiting:
                ready.append(waiting.pop(code))
    return [np.array(out) for out in filled]


def _filling(
    size: Size, codes: list[int], limit: int, end: list[int], out: list[int]
) -> Iterator[int]:
    """Run a device: yields what it has to wait for, and what it has done."""
    places = size.microbatches * size.virtual
    clock = held = 0
    late: deque[int] = deque()
    for code in codes:
        forward = code < places
        stage = code % size.virtual
        source = code - 1 if forward else code + 1
        if stage == (0 if forward else size.virtual - 1):
            arrival = 0
        else:
            if end[source] < 0:
                yield source
            arrival = end[source]
        while late and (clock < arrival or (forward and held >= limit)):
            out.append(late.popleft())
            clock += 1
            held -= 1
        clock = end[code] = max(clock, arrival) + 1
        out.append(code)
        if forward:
            held += 1
        else:
            late.append(code + (WEIGHT - INPUT) * places)
        yield code
    out.extend(late)
