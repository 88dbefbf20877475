"""What the whole-step model knows of a machine beyond its datasheet: every number fitted.

These are the sections of a calibration below ``step``. What single kernels and collectives take is
measured on their own; how much of it whole jobs get is fitted on published runs, and how well that
predicts runs of sources that were left out of the fit stands with it, in ``accuracy``.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator

from hardware_profiles.errors import all_known
from hardware_profiles.quantity import Latency
from hardware_profiles.schema import DTYPES, Strict, Text

Share = Annotated[float, Field(gt=0, le=1.25, json_schema_extra={"unit": "1"})]
Part = Annotated[float, Field(ge=0, le=1, json_schema_extra={"unit": "1"})]
Contention = Annotated[float, Field(ge=0, le=4, json_schema_extra={"unit": "1"})]
Amount = Annotated[float, Field(ge=0, le=1e6, json_schema_extra={"unit": "1"})]

COLLECTIVES = ("all-gather", "reduce-scatter", "all-reduce", "all-to-all", "point-to-point")
# May be left out: no step needs the rooted ones, and without a measurement of its own a message
# that meets another takes what a message alone does.
OPTIONAL = ("broadcast", "reduce", "scatter", "gather", "send-receive")
FABRICS = ("infiniband", "roce", "efa", "efa-v1", "slingshot", "tcpx", "tcpxo")


class MatmulFit(Strict):
    """Matmuls in one data type: see ``roofline.kernels``."""

    efficiency: Share = Field(description="of the peak, large shapes")
    depth: Amount = Field(description="units of K that filling and draining the main loop costs")
    wave: Amount = Field(description="share of a wave below which an output takes no less time")
    start: Latency
    hbm: Share = Field(description="of the memory bandwidth, where a matmul is bound by it")


class AttentionFit(Strict):
    """Fused attention: efficiencies over the bf16 peak, of long sequences and heads of 128."""

    efficiency: Share
    flash_2: Share
    flash_1: Share
    half: Amount = Field(description="keys at which half of the efficiency is reached")
    backward: Share = Field(description="efficiency backward over forward")
    narrow: Share = Field(description="of heads of 64, over heads of 128")
    start: Latency = 0.0


class StreamFit(Strict):
    """Kernels that only read and write memory."""

    hbm: Share
    gap: Latency


class LinkFit(Strict):
    """A collective inside the innermost tier: start + per_rank N + y/(fraction W) + root √y."""

    start: Latency
    per_rank: Latency
    fraction: Share
    root: Annotated[float, Field(ge=0, le=1e-3, json_schema_extra={"unit": "s/√B"})]


class NetworkFit(Strict):
    """Tiers beyond the innermost."""

    outer: Share = Field(description="of their bandwidth")
    hop: Latency = Field(description="of a ring, between nodes; a quarter of it inside")
    exchange: Share = Field(description="all-to-alls, over what rings reach")


class WireFit(Strict):
    """A collective with nothing beside it, in the innermost tier: see ``roofline.isolated``."""

    start: Latency
    per_rank: Latency
    fraction: Share = Field(description="of the tier's bandwidth, by rings")
    root: Annotated[float, Field(ge=0, le=1e-3, json_schema_extra={"unit": "s/√B"})]
    switched: Part = Field(0.0, description="of the tier's bandwidth, by switches that add")
    crowding: Annotated[float, Field(ge=0, le=4, json_schema_extra={"unit": "1"})] = 0.0


class FabricFit(Strict):
    """A kind of network between units, with nothing beside: see ``roofline.isolated``."""

    hop: Latency = Field(gt=0, description="of a tree, both ways; half of it a message or ring")
    handshake: Amount = Field(ge=1, description="hops of long messages, over those of short ones")
    unasked: Amount = Field(gt=0, le=1e9, description="bytes half way from short to long")
    message: Latency = Field(description="for each peer of an all-to-all outside the unit")
    root: Annotated[float, Field(ge=0, le=1e-3, json_schema_extra={"unit": "s/√B"})]
    growth: Amount = Field(description="the depth is log2(units) to this power")
    ring: Share
    exchange: Share
    send: Share = Field(description="a lone message, over what its channels copy")


class HostFit(Strict):
    """CPUs that call a collective with nothing beside it."""

    launch: Latency = Field(0.0, description="of a kernel on one GPU")
    waiting: Latency = Field(0.0, description="of a framework's call, on an idle GPU")


class IsolatedFit(Strict):
    """What collectives take that have the network to themselves, as benchmarks measure them."""

    wires: dict[str, WireFit]
    fabrics: dict[str, FabricFit]
    host: HostFit = HostFit()
    fitted_to: tuple[Text, ...] = Field((), description="sources that the fit has seen")
    error: str = Field("", description="on sources that it has not seen")
    source: Text

    @field_validator("wires")
    @classmethod
    def _has_known_collectives(cls, value: dict[str, WireFit]) -> dict[str, WireFit]:
        all_known("collective", value, COLLECTIVES)
        return value

    @field_validator("fabrics")
    @classmethod
    def _has_known_fabrics(cls, value: dict[str, FabricFit]) -> dict[str, FabricFit]:
        all_known("fabric", value, FABRICS)
        if FABRICS[0] not in value:
            raise ValueError(f"no numbers for {FABRICS[0]}, which stands for those without any")
        return value


class HabitsFit(Strict):
    """How jobs behave beyond kernels and collectives: see ``roofline.job``."""

    contention: Contention = Field(
        description="compute seconds lost per second of hidden communication; over 1 where hiding"
        " costs more than it saves, as it may where ranks share the cores of a CPU"
    )
    fine_overlap: Part
    experts: Annotated[float, Field(ge=1, le=4, json_schema_extra={"unit": "1"})]
    host: Latency
    launch: Latency = 1e-5  # an eager PyTorch module's, per kernel; no published run tells it
    fixed: Latency
    power: Part
    early: Part = Field(default=1.0, description="speed of matmuls in the GPU's first software")


class Spread(Strict):
    """Errors of predicted step times, |ln(predicted / measured)|, and their median with sign."""

    runs: Annotated[int, Field(ge=1)]
    bias: float
    median: Amount
    p90: Amount


class Accuracy(Strict):
    """Whole sources left out of the fit, then predicted."""

    dense: Spread | None = None
    moe: Spread | None = None
    how: Text

    def of(self, mixture: bool) -> Spread | None:
        """Errors of runs of mixtures, or of dense models."""
        return self.moe if mixture else self.dense


class StepFit(Strict):
    """Everything that ``roofline.calibrated`` makes a machine of."""

    matmuls: dict[str, MatmulFit]
    attention: AttentionFit
    streams: StreamFit
    collectives: dict[str, LinkFit]
    network: NetworkFit
    habits: HabitsFit
    accuracy: Accuracy | None = None
    source: Text

    @field_validator("matmuls")
    @classmethod
    def _has_known_dtypes(cls, value: dict[str, MatmulFit]) -> dict[str, MatmulFit]:
        all_known("dtype", value, DTYPES)
        if "bf16" not in value:
            raise ValueError("bf16 needs its numbers: heads and attention run in 16 bits")
        return value

    @field_validator("collectives")
    @classmethod
    def _has_every_collective(cls, value: dict[str, LinkFit]) -> dict[str, LinkFit]:
        all_known("collective", value, COLLECTIVES + OPTIONAL)
        if missing := [name for name in COLLECTIVES if name not in value]:
            raise ValueError(f"no numbers for {', '.join(missing)}")
        return value
