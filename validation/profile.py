"""The machine that predictions are made for: a cluster of the catalogue, or this one as it is.

Everything here calls ``roofline``; no formula is written anew. With a calibration that fits the
accelerator (its overlay), rates are the achieved ones; without, peaks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import hardware_profiles as hp
from hardware_profiles.behaviour import StepFit
from hardware_profiles.calibration import Calibration, calibrate, calibration, for_accelerator
from hardware_profiles.errors import ProfileError
from hardware_profiles.local import GPUS, catalogue_name
from hardware_profiles.schema import Accelerator, Cluster, NetworkTier
from roofline import calibrated, collectives
from roofline.collectives import ALL_REDUCE, ALL_TO_ALL, COLLECTIVES, SEND, SWAP, Collective
from roofline.communication import Network
from roofline.groups import Group
from roofline.kernels import Attention, Matmuls, Streams
from roofline.machine import Tier, TierLike

# Between ranks on one CPU, that talk by the loopback device.
LOOPBACK = 4e9  # [B/s]
LOOPBACK_LATENCY = 50e-6  # [s]

CPU = "local-cpu"  # how the profile of this machine calls its accelerator without GPUs
CPU_KEYS = 512  # in a block of attention on a CPU, as torch's flash_attention for it splits them

# Whose measured link an operation takes where a calibration has none for it.
STANDS_FOR = {
    "broadcast": "all-gather",
    "reduce": "reduce-scatter",
    "scatter": "point-to-point",
    "gather": "point-to-point",
}


@dataclass(frozen=True)
class Profile:
    """A cluster of exactly the ranks that run, and what is known of how it behaves."""

    cluster: Cluster
    overlay: Calibration | None = None

    @property
    def name(self) -> str:
        """Of the cluster."""
        return self.cluster.name

    @property
    def chip(self) -> Accelerator:
        """One rank's device, at its achieved rates where the overlay has nothing finer."""
        return self._machine.accelerator

    @property
    def tiers(self) -> tuple[NetworkTier, ...]:
        """From the inside out, at their achieved rates where the overlay has nothing finer."""
        return self._machine.tiers

    @property
    def machine(self) -> Cluster:
        """What ``roofline.strategies`` take: every rate scaled to what is achieved."""
        return self._scaled

    @property
    def contention(self) -> float:
        """Seconds that a second of hidden communication costs; 0 where nobody has measured it."""
        return 0.0 if self._fit is None else self._fit.habits.contention

    def dtypes(self) -> tuple[str, ...]:
        """Data types with a rate."""
        return tuple(self.chip.peak_flops)

    def matmuls(self, dtype: str) -> Matmuls:
        """``roofline.kernels.Matmuls`` of one rank."""
        return calibrated.kernels(self.chip, self._fit, dtype).matmuls

    def attention(self) -> Attention:
        """``roofline.kernels.Attention`` of one rank, in bf16."""
        return calibrated.kernels(self.chip, self._fit, "bf16").attention

    def causal(self, keys: float) -> float:
        """Share of the scores of ``keys`` queries and keys that a causal kernel computes.

        On a GPU what the diagonal's tiles waste is in the efficiency. PyTorch's CPU kernel leaves
        out whole blocks of keys alone: up to 512 keys it computes all of them.
        """
        return 0.5 if self.chip.sms else min(1.0, 0.5 + CPU_KEYS / (2 * keys))

    def streams(self) -> Streams:
        """``roofline.kernels.Streams`` of one rank."""
        return calibrated.kernels(self.chip, self._fit, "bf16").streams

    def network(self) -> Network:
        """``roofline.communication.Network``, as the step model has it."""
        tiers = tuple(_bare(tier) for tier in self.tiers)
        return calibrated.network(tiers, self._fit)

    def collective(self, op: Collective | str, nbytes: float, group: Group) -> float:
        """Time of ``op`` on a whole array of ``nbytes``; see ``collectives.collective``. [s]"""
        found = collectives.find(op)
        if self._fit is None:
            return _alone(found, nbytes, group, self.tiers)
        network = self.network()
        if found.name in STANDS_FOR:
            measured = found.name if found.name in network.links else STANDS_FOR[found.name]
            return _alone(found, nbytes, group, _as(network, measured))
        route = network.route(group)
        calls = {ALL_REDUCE: route.reduce, SEND: route.send, ALL_TO_ALL: route.exchange}
        calls |= {SWAP: route.swap, COLLECTIVES["all-gather"]: route.gather}
        calls |= {COLLECTIVES["reduce-scatter"]: route.scatter}
        size = nbytes / group.size if found is ALL_TO_ALL else nbytes
        return float(calls[found](size))

    def launches(self, op: str, ranks: int, per_thread: int) -> float:
        """What a call takes a thread that launches ``op`` on so many GPUs; 0 where unknown. [s]"""
        if self.overlay is None or self.overlay.isolated is None:
            return 0.0
        tiers = tuple(_bare(tier) for tier in self.tiers)
        return float(calibrated.idle(tiers, self.overlay.isolated).launches(op, ranks, per_thread))

    @cached_property
    def _scaled(self) -> Cluster:
        overlay = self.overlay
        return self.cluster if overlay is None else calibrate(self.cluster, overlay)

    @property
    def _machine(self) -> Cluster:
        """Peaks where a fit of the step model goes on top of them."""
        return self.cluster if self._fit is not None else self._scaled

    @property
    def _fit(self) -> StepFit | None:
        return None if self.overlay is None else self.overlay.step


def load(cluster: str, overlay: str, world: int, device: str) -> Profile:
    """The profile of ``world`` ranks.

    Args:
        cluster: a name or a file; ``local`` is this machine.
        overlay: a name or a file; ``auto`` takes the shipped one of the accelerator, ``none`` none.
        device: ``cpu`` makes ``local`` the share of the CPU that each rank has.

    Raises:
        ProfileError: unknown or wrong; or ``world`` ranks leave a unit of the cluster partly empty.
    """
    here = cluster == "local" and device == "cpu"
    with _option("--cluster"):
        found = on_cpu(world) if here else hp.cluster(cluster).resized(world)
    if overlay == "none":
        return Profile(found)
    if overlay == "auto":
        return Profile(found, for_accelerator(found.accelerator.name))
    with _option("--overlay", "; or auto, or none"):
        return Profile(found, calibration(overlay))


@contextmanager
def _option(name: str, more: str = "") -> Iterator[None]:
    """Say which option was wrong."""
    try:
        yield
    except ProfileError as wrong:
        raise ProfileError(f"{name}: {wrong}{more}") from None


def on_cpu(world: int) -> Cluster:
    """This machine's CPU in ``world`` equal parts, which talk by the loopback device."""
    from hardware_profiles.local import cpu_cluster

    whole = cpu_cluster()
    chip = whole.accelerator
    assumed = f"{chip.sources['peak_flops']}; fp8 converted to fp32 and back at no cost"
    sources = chip.sources | {"peak_flops.fp8": assumed}
    share = f"; 1/{world} of it for each of {world} ranks"
    peaks = chip.peak_flops | {"fp8": chip.peak_flops["fp32"]}
    rates = {
        "peak_flops": {dtype: rate / world for dtype, rate in peaks.items()},
        "hbm_bytes": chip.hbm_bytes / world,
        "hbm_bandwidth": chip.hbm_bandwidth / world,
        "reason": "a CPU widens narrow numbers to fp32 and multiplies none of them faster",
        "sources": {name: source + share for name, source in sources.items()},
    }
    node = NetworkTier(
        name="node",
        degree=world,
        bandwidth=LOOPBACK,
        latency=LOOPBACK_LATENCY,
        reason="a rank's part of the memory bandwidth may be less than this",
        source="assumption: 4 GB/s and 50 us between processes by the loopback device",
    )
    fields = whole.model_dump() | {
        "title": f"{whole.title}, {world} ranks",
        "accelerator": chip.model_dump(exclude_unset=True) | rates,
        "tiers": [node],
    }
    return Cluster.model_validate(fields)


def foreign(device: str, models: Iterable[str], accelerator: str, *, gpu: bool) -> str:
    """What was measured where that is not ``accelerator``; empty where it is, or who knows.

    Args:
        device: ``cpu`` or ``cuda``.
        models: what the devices call themselves.
        accelerator: its name in the profile.
        gpu: the profile's is one, by its streaming multiprocessors.

    >>> foreign("cpu", ["AMD EPYC"], "h100-sxm", gpu=True)
    'measured on AMD EPYC, not on h100-sxm'
    """
    known = {name for _, name in GPUS}

    def differs(model: str) -> bool:
        if device == "cpu":
            return gpu or accelerator in known or "tpu" in accelerator
        found = catalogue_name(model)
        return accelerator == CPU or (found not in (None, accelerator) and accelerator in known)

    others = [model for model in models if differs(model)]
    return f"measured on {', '.join(others)}, not on {accelerator}" if others else ""


def rebuilt(cluster: Mapping[str, Any], overlay: Calibration | None = None) -> Profile:
    """The profile of a results file's header, to predict anew from.

    Raises:
        pydantic.ValidationError: when the header's cluster is none.
    """
    return Profile(Cluster.model_validate(dict(cluster)), overlay)


def _bare(tier: NetworkTier) -> Tier:
    return Tier(
        tier.degree, tier.effective_bandwidth, tier.name, transit=tier.transit, direct=tier.direct
    )


def _as(network: Network, name: str) -> tuple[Tier, ...]:
    """The tiers as the operation ``name`` finds them, its start as the latency of each."""
    link = network.links[name]
    return tuple(
        replace(tier, latency=link.start) for tier in network.achieved(collectives.find(name))
    )


def _alone(op: Collective, nbytes: float, group: Group, tiers: tuple[TierLike, ...]) -> float:
    return float(collectives.collective(op, nbytes, group, tiers, latency=True).seconds)
