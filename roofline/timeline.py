"""What a schedule does when: passes and messages, and what follows from them.

``idle`` is the time until the last device is done, ``stall`` what a device waits between its own
first and last pass. The first is what a barrier between steps costs, the second what is left when
a device goes on to the next step at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from roofline.bubbles import Schedule
from roofline.passes import Codes, Size

Floats = NDArray[np.float64]


class Memory(NamedTuple):
    """A staircase: what a device holds from each time on."""

    times: Floats
    held: Floats  # micro-batches, in units of all activations of one stage


class Messages(NamedTuple):
    """What goes from device to device: the row that makes it and the row that waits for it."""

    source: Codes
    target: Codes
    kind: NDArray[np.str_]  # F: activations, B: their gradients


@dataclass(frozen=True)
class Timeline:
    """Passes in the order of their devices and, on a device, of time; arrays of one row each."""

    schedule: Schedule
    size: Size
    send: float
    device: Codes
    start: Floats
    end: Floats
    kind: NDArray[np.str_]  # F, B (with W or without), W, or FB: a pair, overlapped
    microbatch: Codes  # of a pair, those of its forward pass
    chunk: Codes  # on its device; of DualPipe, 0 and 1 are the directions
    paired_microbatch: Codes  # of the backward pass of a pair; -1 elsewhere
    paired_chunk: Codes
    taken: Codes  # chunks whose activations a pass begins to hold
    freed: Codes  # and lets go of when it ends
    messages: Messages

    @cached_property
    def step(self) -> float:
        """When the last device is done. [s]"""
        return float(self.end.max())

    @cached_property
    def busy(self) -> Floats:
        """Time in passes, of each device. [s]"""
        return np.bincount(self.device, self.end - self.start).astype(float)

    @property
    def idle(self) -> Floats:
        """Time of the step without a pass, of each device. [s]"""
        return self.step - self.busy

    @property
    def stall(self) -> Floats:
        """Time without a pass between the first and the last one, of each device. [s]"""
        first, last = self._edges
        return self.end[last] - self.start[first] - self.busy

    @property
    def share(self) -> float:
        """Idle share of the step, of all devices together."""
        return float(self.idle.mean() / self.step) if self.step else 0.0

    @cached_property
    def held(self) -> Floats:
        """Activations on the device during each row, in units of a stage's."""
        after = np.cumsum(self.taken - self.freed)  # every device ends with none
        return np.asarray((after + self.freed) / self.size.chunks)

    @property
    def in_flight(self) -> Floats:
        """Most activations at once, of each device, in micro-batches of a whole stage.

        They are held from the start of F to the end of B, or of W where that comes by itself.
        """
        return np.asarray(np.maximum.reduceat(self.held, self._edges[0]))

    def memory(self, device: int) -> Memory:
        """What ``device`` holds over the step: up where an F starts, down where a B or W ends."""
        rows = slice(self._edges[0][device], self._edges[1][device] + 1)
        held = np.stack(
            [self.held[rows], self.held[rows] - self.freed[rows] / self.size.chunks], axis=1
        )
        return Memory(np.stack([self.start[rows], self.end[rows]], axis=1).ravel(), held.ravel())

    def to_events(self) -> list[dict[str, Any]]:
        """A dict for each row, in seconds, and where sends take time one for each of them.

        Keys: device, kind, microbatch, chunk, start, end, and the backward pass of a pair as
        paired_microbatch and paired_chunk. A send has the kind "send", what it carries as ``of``
        and its target as ``to``. A Chrome trace wants ``start`` as ts and ``end - start`` as dur.
        Passes W that take no time, those of frozen weights, are left out.

        >>> from roofline.schedule import timeline
        >>> timeline("1f1b", 2, 2, forward=1, backward=2).to_events()[0]
        {'device': 0, 'kind': 'F', 'microbatch': 0, 'chunk': 0, 'start': 0.0, 'end': 1.0}
        """
        names = ("device", "kind", "microbatch", "chunk", "start", "end")
        more = ("paired_microbatch", "paired_chunk")
        columns = [getattr(self, name).tolist() for name in (*names, *more)]
        events = []
        for row in zip(*columns, strict=True):
            event = dict(zip(names, row, strict=False))
            if event["kind"] == "FB":
                event |= zip(more, row[len(names) :], strict=True)
            events.append(event)
        sends = self._sends(events) if self.send else []
        return [row for row in events if row["kind"] != "W" or row["end"] > row["start"]] + sends

    @cached_property
    def _edges(self) -> tuple[Codes, Codes]:
        """First and last row of each device."""
        first = np.searchsorted(self.device, np.arange(self.size.stages))
        return first, np.append(first[1:], len(self.device)) - 1

    def _sends(self, events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        rows = zip(*(column.tolist() for column in self.messages), strict=True)
        return [
            {
                **_passed(events[source], of),
                "kind": "send",
                "of": of,
                "to": events[target]["device"],
                "start": events[source]["end"],
                "end": events[source]["end"] + self.send,
            }
            for source, target, of in rows
        ]


def _passed(event: dict[str, Any], of: str) -> dict[str, Any]:
    """Device, micro-batch and chunk of what a row sends on."""
    own = "paired_" if event["kind"] == "FB" and of == "B" else ""
    return {"device": event["device"]} | {
        name: event[own + name] for name in ("microbatch", "chunk")
    }
