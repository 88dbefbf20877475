"""Switches: the bytes that a collective takes through one switch, rather than through one link.

An all-gather of V over M nodes of N GPUs: a node's switches take V/M from their GPUs and V (M-1)/M
from above, give V/M upwards and to each GPU all that it lacks: V in, N V out. The switches on top
take V and give V (M-1). A switch that adds (SHARP) takes V from each GPU and gives V to each.

Source: How to Scale Your Model, "GPUs", quiz 4, questions 1 and 2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from roofline.units import Bytes, BytesPerSecond, Count, Num, Seconds


@dataclass(frozen=True, slots=True)
class SwitchBytes:
    """Bytes through all the switches of one unit: from and to what is under it and above it."""

    from_below: Bytes
    to_below: Bytes
    from_above: Bytes = 0.0
    to_above: Bytes = 0.0

    @property
    def ingress(self) -> Bytes:
        """All bytes that come in. [B]"""
        return self.from_below + self.from_above

    @property
    def egress(self) -> Bytes:
        """All bytes that go out. [B]"""
        return self.to_below + self.to_above

    def seconds(self, bandwidth: BytesPerSecond) -> Seconds:
        """Time to carry them at ``bandwidth`` in each direction. [s]"""
        busier: Num = np.maximum(self.ingress, self.egress)
        return busier / bandwidth


def all_gather_in_node(nbytes: Bytes, nodes: Count, gpus: Count) -> SwitchBytes:
    """Through the switches of one of ``nodes`` with ``gpus`` each, all-gathering ``nbytes`` in all.

    >>> through = all_gather_in_node(1e9, nodes=32, gpus=8)
    >>> through.ingress, through.egress
    (1000000000.0, 8000000000.0)
    """
    own = nbytes / nodes
    lacking = nbytes - own / gpus  # of one GPU
    return SwitchBytes(own, gpus * lacking, from_above=nbytes - own, to_above=own)


def all_gather_on_top(nbytes: Bytes, units: Count) -> SwitchBytes:
    """Through the outermost switches, which join ``units`` and have nothing above them.

    >>> all_gather_on_top(1e9, units=32).egress
    31000000000.0
    """
    return SwitchBytes(from_below=nbytes, to_below=nbytes * (units - 1))


@dataclass(frozen=True, slots=True)
class InNetworkSteps:
    """An all-reduce in a switch that adds, as one of ``gpus`` sees it; V each way in all."""

    gpus: Count
    partials_out: Bytes  # 1: its part of everybody else's sum
    sum_in: Bytes  # 2: its own shard, added up
    sum_out: Bytes  # 3: that shard again, to be multicast
    rest_in: Bytes  # 4: everybody else's shards

    @property
    def switch(self) -> SwitchBytes:
        """What all GPUs send through the switch together."""
        return SwitchBytes(
            from_below=self.gpus * (self.partials_out + self.sum_out),
            to_below=self.gpus * (self.sum_in + self.rest_in),
        )


def in_network_all_reduce(nbytes: Bytes, gpus: Count) -> InNetworkSteps:
    """The four steps of an all-reduce of ``nbytes`` over ``gpus`` in one domain whose switch adds.

    >>> print(in_network_all_reduce(1e9, 8).switch.ingress)
    8000000000.0
    """
    shard = nbytes / gpus * np.greater(gpus, 1)
    rest = nbytes * (gpus - 1) / gpus
    return InNetworkSteps(gpus, partials_out=rest, sum_in=shard, sum_out=shard, rest_in=rest)
