"""What importers have in common: measurements of any origin, and the lines they become.

An importer reads a text and gives ``Found``: what was measured where, and what it could not use. A
kernel of the suite must be about it, so that report and calibration treat it as their own.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import numpy as np
from pydantic import ValidationError

import hardware_profiles as hp
from hardware_profiles.calibration import calibration, for_accelerator
from hardware_profiles.local import catalogue_name
from hardware_profiles.schema import Cluster
from roofline.backtest import reference_cluster
from validation.case import Case
from validation.kernels import kernels
from validation.profile import Profile
from validation.results import Correct, Header, Line, Measured, Part, Value

# Data types as programs name them, and ours of the same width.
DTYPES = {
    **dict.fromkeys(("double", "int64", "uint64", "long"), "fp64"),
    **dict.fromkeys(("float", "int32", "uint32", "int"), "fp32"),
    **dict.fromkeys(("half", "float16"), "fp16"),
    **dict.fromkeys(("bfloat16",), "bf16"),
    # Of collectives, whose predictions are of bytes, whatever they mean.
    **dict.fromkeys(("int8", "uint8", "char", "byte", "f8e4m3", "f8e5m2"), "bf16"),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2"), "bf16"),
}


@dataclass(frozen=True, slots=True)
class Sample:
    """One part of one case, with every time that the file has of it."""

    kernel: str
    part: Part
    parameters: Mapping[str, Value]
    seconds: Sequence[float]
    size: int = 1
    stride: int = 1
    correct: Correct = "elsewhere"

    @property
    def case(self) -> Case:
        """As the suite has it."""
        return Case(self.kernel, self.parameters, self.size, self.stride)


@dataclass(slots=True)
class Found:
    """One run of a file: where it ran, what it measured, what could not be used."""

    suite: str  # what wrote the file
    world: int
    hosts: dict[str, int] = field(default_factory=dict)
    devices: dict[str, int] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    @property
    def per_host(self) -> int:
        """Ranks on each host; all of them where the file does not say.

        Raises:
            ValueError: when hosts have different numbers of ranks.
        """
        counts = set(self.hosts.values()) or {self.world}
        if len(counts) > 1:
            told = ", ".join(f"{host} {ranks}" for host, ranks in self.hosts.items())
            raise ValueError(f"hosts have different numbers of ranks: {told}")
        return counts.pop()


def typed(name: str) -> dict[str, Value]:
    """Parameters of a data type: ours of its width, and its own name where that is another.

    Raises:
        ValueError: a type that is in none of our widths.
    """
    short = name.lower().removeprefix("c10::").removeprefix("torch.")
    if short not in DTYPES:
        raise ValueError(f"type {name!r} has no width of ours; known: {', '.join(DTYPES)}")
    ours = DTYPES[short]
    usual = ("float", "half", "bfloat16", "double", "float16")
    return {"dtype": ours} if short in usual else {"dtype": ours, "type": short}


def profile(found: Found, cluster: str, overlay: str) -> Profile:
    """The machine that the file is of: as many hosts, with as many ranks on each.

    Args:
        cluster: a name or a file; ``auto`` goes by the name of the GPU.
        overlay: a name or a file; ``auto`` takes the shipped one of the accelerator, ``none`` none.

    Raises:
        ValueError: no profile is known for this GPU, or ranks do not fit it.
    """
    whole = hp.cluster(_named(found) if cluster == "auto" else cluster)
    shaped = _shaped(whole, found.per_host, found.world)
    if overlay == "none":
        return Profile(shaped)
    if overlay == "auto":
        return Profile(shaped, for_accelerator(shaped.accelerator.name))
    return Profile(shaped, calibration(overlay))


def lines(found: Found, machine: Profile, content: bytes, number: int) -> Iterator[Line]:
    """The header of a run and its measurements; the same file gives the same name of the run."""
    run = f"{hashlib.sha256(content).hexdigest()[:12]}-{number}"
    yield Header(
        run=run,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        suite=found.suite,
        world=found.world,
        device="cuda",
        backend="nccl",
        hosts=found.hosts,
        devices=found.devices,
        versions=found.versions,
        variables={},
        profile=machine.name,
        overlay=machine.overlay.name if machine.overlay else "",
        cluster=machine.cluster.model_dump(mode="json"),
    )
    for sample in found.samples:
        try:
            yield _measured(sample, run, machine, found)
        except ValidationError as error:
            found.left_out.append(f"{sample.case.id[:120]}: {first_of(error)}")


def first_of(error: ValidationError) -> str:
    """What a record or a profile refuses first: field and reason, in one line."""
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


def _measured(sample: Sample, run: str, machine: Profile, found: Found) -> Measured:
    case = sample.case
    try:
        parts = {each.part: each for each in kernels()[sample.kernel].predict(case, machine)}
        expected = parts.get(sample.part)
    except (ValueError, KeyError, ArithmeticError) as error:
        found.left_out.append(f"{case.id}: no prediction: {error}")
        expected = None
    middle, low, high = (float(np.quantile(sample.seconds, q)) for q in (0.5, 0.1, 0.9))
    return Measured(
        run=run,
        case=case.id,
        kernel=sample.kernel,
        part=sample.part,
        parameters=dict(sample.parameters),
        size=sample.size,
        stride=sample.stride,
        world=found.world,
        seconds=middle,
        p10=low,
        p90=high,
        repeats=len(sample.seconds),
        per_rank=(middle,),
        predicted=expected.seconds if expected else None,
        flops=expected.flops if expected else 0.0,
        nbytes=expected.nbytes if expected else 0.0,
        correct=sample.correct,
    )


def _named(found: Found) -> str:
    names = Counter({name: catalogue_name(name) for name in found.devices}.values())
    known = [name for name in names if name]
    if len(names) != 1 or not known:
        told = ", ".join(found.devices) or "no GPU"
        raise ValueError(f"the file names {told}; say which machine it is of: --cluster NAME")
    return reference_cluster(known[0])


def _shaped(cluster: Cluster, per_host: int, world: int) -> Cluster:
    """As it is where hosts are full, or more than one makes a unit; else with less on each."""
    node = cluster.tiers[0]
    if per_host in (world, node.degree) or per_host * 2 <= node.degree >= 16:
        return cluster.resized(world)
    if per_host > node.degree or not cluster.tiers[1:]:
        raise ValueError(f"{per_host} ranks on a host; {cluster.name} has {node.degree} in a unit")
    beyond = cluster.tiers[1]
    tiers = [
        node.model_dump() | {"degree": per_host},
        beyond.model_dump()
        | {
            "degree": world // per_host,
            "bandwidth": beyond.bandwidth * per_host / node.degree,
            "switches": None,
        },
    ]
    fields = cluster.model_dump() | {"tiers": tiers, "accelerator": cluster.accelerator}
    return Cluster.model_validate(fields)
