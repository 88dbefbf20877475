"""A network that remembers which collectives were asked of it: for taking a job apart.

The step model asks a ``Network`` for times; in its place ``listening`` puts one that answers the
same and keeps every call, with group, bytes and the tier that decides. So what an anatomy tells of
a collective is what the step was computed from, and not a second account of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace

import numpy as np

from roofline.collectives import ALL_GATHER, ALL_TO_ALL, SEND, SWAP, Collective, collective
from roofline.communication import Network, Route
from roofline.groups import Group, spans
from roofline.job import Job
from roofline.units import Bytes, Count, Seconds


@dataclass(frozen=True, slots=True)
class Call:
    """One collective that was asked for."""

    op: str
    nbytes: float  # as ``roofline.communication`` takes them: see ``Route``
    ranks: float
    stride: float
    tiers: tuple[str, ...]  # that the group spans, from the inside out
    slowest: str  # tier that decides; empty in a group of one
    seconds: float
    transfer: float  # of these, moving bytes; the rest is starting and filling


@dataclass(frozen=True, slots=True)
class Listening(Network):
    """A network that keeps what is asked of it."""

    calls: list[Call] = field(default_factory=list)

    def route(self, group: Group) -> Route:
        """The group, heard."""
        return _Heard(self, group, spans(group, self.tiers), self.calls)


@dataclass(frozen=True, slots=True)
class _Heard(Route):
    calls: list[Call] = field(default_factory=list)

    def exchange(self, nbytes: Bytes) -> Seconds:
        """All-to-all of ``nbytes`` from every rank. [s]"""
        return self._kept(ALL_TO_ALL, nbytes, Route.exchange(self, nbytes), nbytes * self.ranks)

    def send(self, nbytes: Bytes) -> Seconds:
        """``nbytes`` to the next rank, on the slowest hop. [s]"""
        return self._kept(SEND, nbytes, Route.send(self, nbytes), nbytes)

    def swap(self, nbytes: Bytes) -> Seconds:
        """The same while as much comes from the rank before. [s]"""
        return self._kept(SWAP, nbytes, Route.swap(self, nbytes), nbytes, SEND.name)

    def relay(self, nbytes: Bytes, messages: Count) -> Seconds:
        """``nbytes`` in all, in broadcasts one after the other; on the wire as an all-gather. [s]"""
        seconds = Route.relay(self, nbytes, messages)
        return self._kept(ALL_GATHER, nbytes, seconds, nbytes, "broadcast")

    def _ring(self, op: Collective, nbytes: Bytes) -> Seconds:
        return self._kept(op, nbytes, Route._ring(self, op, nbytes), nbytes)

    def _kept(
        self, op: Collective, nbytes: Bytes, seconds: Seconds, array: Bytes, name: str = ""
    ) -> Seconds:
        alive = float(np.asarray(self.ranks)) > 1
        moved = collective(op, float(np.asarray(array)), self.group, self.network.achieved(op))
        self.calls.append(
            Call(
                name or op.name,
                float(np.asarray(nbytes)),
                float(np.asarray(self.ranks)),
                float(np.asarray(self.group.stride)),
                tuple(r.tier.name for r in self.reaches if float(np.asarray(r.degree)) > 1),
                str(moved.binding) if alive else "",
                float(np.asarray(seconds)),
                float(np.asarray(moved.seconds)) if alive else 0.0,
            )
        )
        return seconds


def listening(job: Job) -> tuple[Job, list[Call]]:
    """The job on a network that listens, and what it hears; of a single layout."""
    network = job.network
    heard = Listening(**{each.name: getattr(network, each.name) for each in fields(network)})
    return replace(job, network=heard), heard.calls
