"""A measured step and a predicted one: which single thing, if it were otherwise, would explain it.

    explained = (T_suspect - T) / (T_measured - T)

Every suspect is one choice of the layout or one rate of the machine changed, and the step predicted
anew: all of them in one call, a column each. Beside them stand the terms of the step with the factor
by which each alone would have to grow. Suspects rank by how near they come, common ones before
rare ones; those that go the wrong way, or that the layout cannot have, are left out. A difference
within the error of the calibration needs no suspect, and the sentence says so. A time that even
the datasheet's peak does not allow has none either:

    T_measured < model FLOPs / (GPUs · peak)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from roofline import calibrated
from roofline.calibrated import Behaviour
from roofline.constraints import misfits
from roofline.layout import FLASH, OVERLAP, RECOMPUTE, Layout
from roofline.machine import Tier
from roofline.outcome import outcome
from roofline.step import predict
from roofline.training import Training
from roofline.units import Seconds, show

COMMON, POSSIBLE, RARE = 0.0, 0.1, 0.25  # added to the distance when suspects are ranked
LEAST = 0.1  # of the difference that a suspect has to explain
LATE = 20e-6  # s between kernels where the host is behind
TERMS_RARITY = 0.5  # a term that grew by itself is a symptom rather than a cause


@dataclass(frozen=True, slots=True)
class Candidate:
    """One thing that may be otherwise than the layout or the profile says."""

    name: str
    story: str  # what to check
    rarity: float
    choices: tuple[tuple[str, float], ...] = ()  # fields of the layout
    rates: tuple[tuple[str, float], ...] = ()  # factors: see ``_slowed``
    dtype: str = ""  # what the matmuls would run in


CANDIDATES = (
    Candidate("tensor parallelism is not overlapped", "its communication overlap is "
              "off, or CUDA_DEVICE_MAX_CONNECTIONS is not 1", COMMON,
              (("tp_overlap", OVERLAP["none"]),)),
    Candidate("sequence parallelism is off", "all-reduces stand in the place of all-gather and "
              "reduce-scatter, and token-wise work is not split", COMMON,
              (("sequence_parallel", 0),)),
    Candidate("every layer is recomputed", "full activation recomputation is on", COMMON,
              (("recompute", RECOMPUTE["full"]), ("recompute_share", 1.0))),
    Candidate("attention is recomputed", "selective recomputation is on", COMMON,
              (("recompute", RECOMPUTE["attention"]), ("recompute_share", 1.0))),
    Candidate("nothing is recomputed", "recomputation is off", COMMON,
              (("recompute", RECOMPUTE["none"]),)),
    Candidate("data parallelism is not overlapped", "gradients are reduced after the backward "
              "pass, and weights gathered before the forward pass", COMMON, (("dp_overlap", 0),)),
    Candidate("pipeline sends are waited for", "sends between stages do not overlap", COMMON,
              (("pp_overlap", 0),)),
    Candidate("stages are not interleaved", "each stage has one run of layers", COMMON,
              (("chunks", 1),)),
    Candidate("attention is not fused", "flash attention is off: scores go through memory",
              COMMON, (("attention", FLASH["unfused"]),)),
    Candidate("attention runs in FlashAttention-2", "a kernel older than the GPU", COMMON,
              (("attention", FLASH["flash-2"]),)),
    Candidate("norms, rope and activations are not fused", "they run as chains of eager kernels",
              COMMON, (("fused", 0),)),
    Candidate("the loss is not fused", "logits go through memory in fp32", POSSIBLE,
              (("fused_loss", 0),)),
    Candidate("weights are gathered for every micro-batch", "ZeRO-3 or FSDP is on", POSSIBLE,
              (("zero", 3),)),
    Candidate("experts' all-to-alls are not overlapped", "dispatch and combine are waited for",
              COMMON, (("ep_overlap", 0.0),)),
    Candidate("experts are unbalanced", "the busiest rank has half as many tokens more", COMMON,
              (("imbalance", 1.5),)),
    Candidate("no CUDA graphs", "kernels are launched one by one", POSSIBLE, (("graphs", 0),)),
    Candidate("the host waits for every kernel", "CUDA_LAUNCH_BLOCKING is set", RARE,
              (("blocking", 1),)),
    Candidate("the network has half its bandwidth", "a rail is down, adaptive routing is off, or "
              "GPUDirect RDMA is not used", COMMON, rates=(("outer", 0.5),)),
    Candidate("the network has a quarter of its bandwidth", "traffic goes over the host's "
              "Ethernet, or through host memory", POSSIBLE, rates=(("outer", 0.25),)),
    Candidate("the links inside a node have half their bandwidth", "links are down, or traffic "
              "goes by PCIe", POSSIBLE, rates=(("inner", 0.5),)),
    Candidate("the host launches kernels late", f"{LATE * 1e6:.0f} µs between kernels: a slow or "
              "busy CPU, or Python between them", COMMON, rates=(("late", 1.0),)),
    Candidate("clocks are a fifth lower", "power cap or heat: look at SM clocks", COMMON,
              rates=(("clocks", 0.8),)),
    Candidate("memory has three quarters of its bandwidth", "throttled memory, or another GPU "
              "variant", RARE, rates=(("memory", 0.75),)),
    Candidate("the network is half as fast again", "more or faster cards than the profile has",
              POSSIBLE, rates=(("outer", 1.5),)),
    Candidate("matmuls run in 16 bits", "the 8-bit recipe is off", COMMON, dtype="bf16"),
    Candidate("tensor parallelism hides almost all", "fine-grained overlap is on", POSSIBLE,
              (("tp_overlap", OVERLAP["fine"]),)),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Suspect:
    """A candidate that goes the right way, or a term that would have to grow."""

    name: str
    story: str
    kind: str  # choice, rate, term
    seconds: float  # the step under it
    explained: float  # share of the difference
    factor: float  # of a term; of a rate or a choice, the step over the predicted one
    choices: tuple[tuple[str, float], ...] = ()
    score: float = 0.0

    def sentence(self, measured: float) -> str:
        """The suspect with its numbers."""
        off = self.seconds / measured - 1
        if self.kind == "term":
            return f"{self.name} would have to take {self.factor:.3g} times as long."
        near = "as measured" if abs(off) < 0.005 else f"{off:+.1%} from the measured one"
        return f"If {self.name}, a step takes {show(self.seconds, 's')}, {near}: {self.story}."


@dataclass(frozen=True, slots=True)
class Suspicion:
    """What a measured step time says."""

    measured: float
    predicted: float
    within: bool  # the error that the calibration is known to have
    suspects: tuple[Suspect, ...]  # the likeliest first
    least: float = 0.0  # what the model's FLOPs take at the peak of the datasheet [s]

    @property
    def gap(self) -> float:
        """Measured minus predicted. [s]"""
        return self.measured - self.predicted

    @property
    def possible(self) -> bool:
        """Whether the peak of the datasheet allows the measured time."""
        return self.measured >= self.least

    def sentence(self) -> str:
        """The difference, and the first suspect."""
        ratio = self.measured / self.predicted - 1
        size = f"{abs(ratio):.3g}" if abs(ratio) >= 10 else f"{abs(ratio):.1%}"
        said = f"Measured {show(self.measured, 's')}, predicted {show(self.predicted, 's')}: "
        said += f"{size} {'slower' if ratio > 0 else 'faster'} than predicted. "
        if not self.possible:
            return (
                f"{said}That is faster than the datasheet's peak allows: the model's FLOPs alone take "
                f"{show(self.least, 's')} there. Check tokens, GPUs and precision."
            )
        if self.within:
            return said + "That is within the error of the prediction: there is little to explain."
        if not self.suspects:
            return said + "No single choice explains it: check layout, batch and precision."
        return said + f"First suspect: {self.suspects[0].sentence(self.measured)}"


def suspects(job: Training, measured: float) -> Suspicion:
    """What could explain that a step of ``job`` takes ``measured`` seconds.

    Raises:
        ValueError: a time that is not above 0, or a job that is a column of layouts.
    """
    if not (isinstance(measured, int | float) and 0 < measured < np.inf):
        raise ValueError(f"measured: {measured!r} is refused; allowed: seconds above 0")
    if np.ndim(job.time.seconds):
        raise ValueError("layout: a column of layouts is refused; allowed: a single one")
    predicted = float(job.time.seconds)
    gap = measured - predicted
    error = job.error.median if job.error else 0.01
    within = abs(np.log(measured / predicted)) <= error
    brought = outcome(job)
    least = float(brought.seconds * brought.mfu)
    if measured < least:
        return Suspicion(float(measured), predicted, False, (), least)
    named = candidates(job)
    times = seconds_under(job, named) if named else ()
    found = [
        _suspect(each, float(under), predicted, measured)
        for each, under in zip(named, times, strict=True)
    ]
    found += [_grown(term, float(np.asarray(each)), predicted, gap)
              for term, each in job.time.terms.items() if np.all(each > 0)]  # fmt: skip
    good = [each for each in found if each.explained >= LEAST and each.factor > 0]
    ranked = tuple(sorted(good, key=lambda each: each.score))
    return Suspicion(float(measured), predicted, bool(within), ranked, least)


def _suspect(each: Candidate, under: float, predicted: float, measured: float) -> Suspect:
    gap = measured - predicted
    explained = (under - predicted) / gap if gap else 0.0
    far = abs(np.log(under / measured)) / max(abs(np.log(predicted / measured)), 1e-12)
    kind = "choice" if each.choices or each.dtype else "rate"
    return Suspect(
        each.name, each.story, kind, under, explained, under / predicted, each.choices,
        float(far + each.rarity),
    )  # fmt: skip


def _grown(term: str, seconds: float, predicted: float, gap: float) -> Suspect:
    """A term alone; the further from its prediction it would have to be, the less likely."""
    factor = (seconds + gap) / seconds
    far = abs(np.log(factor)) if factor > 0 else np.inf
    return Suspect(term, "", "term", predicted + gap, 1.0, factor,
                   score=float(TERMS_RARITY + far))  # fmt: skip


def candidates(job: Training) -> tuple[Candidate, ...]:
    """Those of ``CANDIDATES`` that change something, and that model and cluster can have."""
    layout = job.layout
    several = [each for each in CANDIDATES if _changes(each, job)]
    if not several:
        return ()
    broken = misfits(job.dims, _column(layout, several), job.cluster)
    bad = np.zeros(len(several), bool)
    for rows in broken.values():
        bad |= np.broadcast_to(np.asarray(rows, bool), bad.shape)
    return tuple(each for each, wrong in zip(several, bad, strict=True) if not wrong)


def _changes(each: Candidate, job: Training) -> bool:
    if each.dtype:
        dtype = calibrated.dtype_of(job.precision)
        return (
            dtype not in (each.dtype, "fp16") and each.dtype in job.cluster.accelerator.peak_flops
        )
    return not each.choices or any(
        float(np.asarray(getattr(job.layout, name))) != value for name, value in each.choices
    )


def seconds_under(job: Training, named: Sequence[Candidate]) -> Any:
    """The step under each candidate, in one call. Shape: theirs. [s]"""
    own = calibrated.dtype_of(job.precision)
    tiers = tuple(
        Tier(t.degree, t.effective_bandwidth, t.name, transit=t.transit, direct=t.direct)
        for t in job.cluster.tiers
    )
    dtypes = [each.dtype or own for each in named]
    machine = calibrated.on(job.cluster.accelerator, tiers, job.fit, dtypes)
    table = _slowed(machine, named).job(job.dims, _column(job.layout, named))
    found: Seconds = predict(table).seconds
    return np.broadcast_to(found, len(named))


def _column(layout: Layout, named: Sequence[Candidate]) -> Layout:
    """The layout, a row for each candidate."""
    columns = {each.name: np.full(len(named), float(np.asarray(getattr(layout, each.name))))
               for each in fields(Layout)}  # fmt: skip
    for row, each in enumerate(named):
        for name, value in each.choices:
            columns[name][row] = value
    return replace(layout, **columns)


def _slowed(machine: Behaviour, named: Sequence[Candidate]) -> Behaviour:
    """The machine with each candidate's rates: factors, and seconds between kernels."""

    def factor(rate: str, usual: float = 1.0) -> Any:
        return np.array([dict(each.rates).get(rate, usual) for each in named])

    kernels, network = machine.kernels, machine.network
    streams, clocks, memory = kernels.streams, factor("clocks"), factor("memory")
    late = LATE * factor("late", 0.0)
    links = {
        name: replace(link, fraction=link.fraction * factor("inner"))
        for name, link in network.links.items()
    }
    half = kernels.half_matmuls
    return replace(
        machine,
        kernels=replace(
            kernels,
            matmuls=replace(kernels.matmuls, peak=kernels.matmuls.peak * clocks,
                            hbm=kernels.matmuls.hbm * memory, start=kernels.matmuls.start + late),
            half_matmuls=replace(half, peak=half.peak * clocks, hbm=half.hbm * memory),
            attention=replace(kernels.attention, peak=kernels.attention.peak * clocks),
            streams=replace(streams, hbm=streams.hbm * memory, gap=streams.gap + late),
        ),
        network=replace(network, links=links, outer=network.outer * factor("outer")),
    )  # fmt: skip
