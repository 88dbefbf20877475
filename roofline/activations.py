"""Activations: how many bytes a layer keeps for its backward pass, and three ways to pay for them.

    keep         the bytes                    no time
    recompute    the inputs only              FLOPs / C, 2 B D F / C for the output of one matmul
    send away    none here                    bytes / W, 2 B F / W to fetch it back

Fetching a matmul's output [B, F] takes less time than making it again when its contracted width
D > C/W (bf16): 2200 from another GPU over the NVLink of an H100, 15.7k from the host over PCIe 5,
19.8k over one 50 GB/s network card. Making everything again costs a third more FLOPs, 8 Ψ T instead
of 6 Ψ T.

Sources: Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models",
equations 1 to 6; How to Scale Your Model, "Transformers", gradient checkpointing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from roofline.counting import Shape, flops
from roofline.machine import Machine
from roofline.names import choose
from roofline.units import Bytes, BytesPerSecond, Count, FlopPerSecond, Seconds


class Kept(NamedTuple):
    """Bytes kept of a layer for the backward pass, per token, in 16 bits.

    D (outside + inside) + F d_ff + 5 a s where ``scores`` is 5. Tensor parallelism divides all but
    ``outside``, what lies between its two blocks; sequence parallelism divides that too.
    """

    outside: float  # times D
    inside: float = 0.0  # times D
    d_ff: float = 0.0  # times F
    scores: float = 0.0  # times a s: heads x keys
    about: str = ""


# The scaling book's sums know no tensor parallelism: only sequence sharding divides them.
KEPT = {
    "everything": Kept(10, 24, scores=5, about="all, scores included (Korthikanti, equation 1)"),
    "selective": Kept(10, 24, about="scores made again, as flash attention does (equation 6)"),
    "block": Kept(2, about="the input of each layer; the rest made again (full recomputation)"),
    "book-everything": Kept(2 * 20, about="about 20 tensors of D (scaling book)"),
    "book-matmuls": Kept(2 * 7, about="the outputs of 7 large matmuls (scaling book)"),
    "mlp-outputs": Kept(2, 0, 2 * 2, about="the outputs of the 3 MLP matmuls (scaling book)"),
    "checkpoints": Kept(2 * 3, about="3 tensors of D (scaling book, LLaMA 3)"),
    "checkpoints-12": Kept(2 * 12, about="12 tensors of D, 4 times those (scaling book, LLaMA 3)"),
}


def kept(name: str) -> Kept:
    """The row of ``KEPT`` of this name.

    Raises:
        ValueError: when there is none, naming the nearest.
    """
    return choose("activations", name, KEPT)


def activation_bytes(
    policy: Kept,
    tokens: Count,
    d_model: Count,
    *,
    layers: Count = 1,
    d_ff: Count | None = None,
    heads: Count | None = None,
    length: Count | None = None,
    tensor_parallel: Count = 1,
    sequence_parallel: bool = False,
    element_bytes: Bytes = 2.0,
) -> Bytes:
    """Activations that one GPU keeps of ``tokens`` tokens. [B]

        everything        s b h (34 + 5 a s/h)              no parallelism
                          s b h (10 + 24/t + 5 a s/(h t))   tensor parallelism
                          s b h (34 + 5 a s/h) / t          sequence parallelism too
        selective         34 s b h / t
        block             2 s b h

    Args:
        policy: a row of ``KEPT``, or another; ``kept`` finds one by name.
        tokens: s b, of one micro-batch.
        layers: of this GPU, times the micro-batches in flight.
        d_ff: F, where the policy keeps tensors of it.
        heads, length: a and s, where the policy keeps scores.
        element_bytes: scales all, dropout masks and scores too.

    Source: Korthikanti et al., table 2; How to Scale Your Model, "Transformers", checkpointing.

    Raises:
        ValueError: when the policy keeps what no size is given for.

    >>> print(activation_bytes(kept("everything"), 4096, 8192, heads=64, length=4096) / 1e9)
    6.509559808
    """
    if policy.d_ff and d_ff is None:
        raise ValueError("d_ff: needed, this policy keeps tensors of that width")
    if policy.scores and (heads is None or length is None):
        raise ValueError("heads and length: needed, this policy keeps attention scores")
    between = tensor_parallel if sequence_parallel else 1.0
    per_token = 1.0 * d_model * (policy.outside / between + policy.inside / tensor_parallel)
    if policy.d_ff and d_ff is not None:
        per_token = per_token + policy.d_ff * d_ff / tensor_parallel
    if policy.scores and heads is not None and length is not None:
        per_token = per_token + policy.scores * heads * length / tensor_parallel
    return element_bytes / 2 * per_token * tokens * layers


class Saved(NamedTuple):
    """Something the backward pass needs."""

    nbytes: Bytes
    flops: Count  # to make it again
    inputs: Bytes = 0.0  # kept all the same, to make it from


def matmul_output(
    tokens: Count, contracted: Count, width: Count, element_bytes: Bytes = 2.0
) -> Saved:
    """The output [B, F] of x[B, D] w[D, F]: b B F bytes, 2 B D F FLOPs; x is at hand."""
    return Saved(element_bytes * (1.0 * tokens * width), 2.0 * (1.0 * tokens * contracted) * width)


def all_layers(shape: Shape, tokens: Count, length: Count, policy: str = "selective") -> Saved:
    """What ``policy`` keeps of all layers against making it again from each layer's input.

    Raises:
        ValueError: an unknown policy.
    """
    layer = flops(shape, tokens, length, phase="forward")
    whole = activation_bytes(
        kept(policy),
        tokens,
        shape.d_model,
        layers=shape.layers,
        d_ff=shape.d_ff,
        heads=shape.heads,
        length=length,
    )
    inputs = activation_bytes(kept("block"), tokens, shape.d_model, layers=shape.layers)
    return Saved(whole, layer.layers + layer.attention, inputs)


class Place(NamedTuple):
    """Memory elsewhere, and the bandwidth to it that one GPU has while all use theirs."""

    name: str
    bandwidth: BytesPerSecond


def places(machine: Machine, host: BytesPerSecond | None = None) -> tuple[Place, ...]:
    """Another GPU on each tier, and the host where its bandwidth is given.

    A network tier gives one GPU its share of the child's uplink: 50 of a node's 400 GB/s.
    """
    found = []
    inside: Count = 1.0
    for tier in machine.tiers:
        found.append(Place(f"GPU in the {tier.name}", tier.effective_bandwidth / inside))
        inside = inside * tier.degree
    return (*found, *([] if host is None else [Place("host", host)]))


@dataclass(frozen=True, slots=True)
class Fate:
    """One way to have an activation in the backward pass."""

    name: str  # keep, recompute, or the place it is sent to
    memory: Bytes  # on this GPU, in between
    elsewhere: Bytes  # in the place it is sent to
    seconds: Seconds  # added to the step
    formula: str


@dataclass(frozen=True, slots=True)
class Fates:
    """All ways side by side, and the memory there is for them."""

    ways: tuple[Fate, ...]
    free: Bytes

    @property
    def fits(self) -> NDArray[np.bool_]:
        """Where this GPU has the memory: one row for each way."""
        needs = [way.memory for way in self.ways]
        points = np.broadcast_shapes(*map(np.shape, [*needs, *self._seconds, self.free]))
        return np.stack([np.broadcast_to(np.less_equal(need, self.free), points) for need in needs])

    @property
    def best(self) -> NDArray[np.str_]:
        """Name of the fastest way that fits, keeping first; empty where none does."""
        fits = self.fits
        seconds = np.stack([np.broadcast_to(time, fits.shape[1:]) for time in self._seconds])
        fastest = np.where(fits, seconds, np.inf).argmin(axis=0)
        names = np.asarray([*(way.name for way in self.ways), ""])
        return np.asarray(names[np.where(fits.any(axis=0), fastest, len(self.ways))])

    @property
    def _seconds(self) -> list[Seconds]:
        return [way.seconds for way in self.ways]


def fates(
    saved: Saved,
    rate: FlopPerSecond,
    places: Sequence[Place],
    *,
    free: Bytes = np.inf,
    trips: int = 1,
    hidden: Seconds = 0.0,
) -> Fates:
    """Keep, recompute or send away: memory here and time added to the step, for each.

    Args:
        rate: C of this GPU, as far as a matmul gets it.
        places: see ``places``. A peer's memory is as full as one's own when all do the same.
        free: memory that this GPU has left.
        trips: 1 counts the way back, as on paper; 2 the way there as well.
        hidden: transfer time that passes behind other work; 0 compares as on paper.
    """
    ways = [
        Fate("keep", saved.nbytes, 0.0, 0.0, "0"),
        Fate("recompute", saved.inputs, 0.0, saved.flops / rate, r"\frac{2\,BDF}{C}"),
    ]
    for place in places:
        seconds = np.maximum(0.0, trips * saved.nbytes / place.bandwidth - hidden)
        ways.append(Fate(place.name, 0.0, saved.nbytes, seconds, r"\frac{b\,BF}{W}"))
    return Fates(tuple(ways), free)


def breakeven_width(
    rate: FlopPerSecond, bandwidth: BytesPerSecond, *, element_bytes: Bytes = 2.0, trips: int = 1
) -> Count:
    """Contracted width D above which fetching a matmul's output beats making it again: (b/2) C/W.

    >>> print(breakeven_width(990e12, 450e9))
    2200.0
    """
    return element_bytes / 2 * trips * rate / bandwidth


def optimizer_offload(
    params: Count,
    bandwidth: BytesPerSecond,
    *,
    gradient_bytes: Bytes = 2.0,
    weight_bytes: Bytes = 2.0,
    duplex: bool = True,
) -> Seconds:
    """Time per step on the host link when the optimizer lives there: gradients down, weights up.

    Args:
        params: of this GPU's shard.
        duplex: both ways at once, as PCIe can; else one after the other. [s]

    >>> print(round(optimizer_offload(7e9, 63e9), 3))
    0.222
    """
    down, up = (nbytes * (1.0 * params) / bandwidth for nbytes in (gradient_bytes, weight_bytes))
    return np.maximum(down, up) if duplex else down + up
