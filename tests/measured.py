"""Results as a known machine would have given them: the kernels' own predictions, and noise."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

import hardware_profiles as hp
from hardware_profiles.calibration import Calibration
from hardware_profiles.schema import Cluster
from roofline.groups import Group
from validation import results
from validation.case import Case, Setting
from validation.context import subgroups
from validation.kernels import kernels
from validation.profile import Profile
from validation.results import FILE, End, Header, Line, Measured

NODES = hp.cluster("dgx-h100-superpod").resized(16)  # two nodes of eight
KERNELS = ("matmul", "memory", "attention", "all-gather", "reduce-scatter", "all-reduce")
KERNELS += ("all-to-all", "point-to-point", "broadcast")

Change = Callable[[Case, np.ndarray], np.ndarray]  # of the seconds of each rank


def truth(**step: dict[str, float]) -> Calibration:
    """The shipped calibration of the H100 with some numbers of its step's sections replaced."""
    shipped = hp.calibration("h100")
    data = shipped.model_dump()
    for section, changed in step.items():
        place = data["step"]
        for name in section.split("__"):
            place = place.setdefault(name if name in place else name.replace("_", "-"), {})
        place.update(changed)
    return Calibration.model_validate(data)


def setting(
    suite: str = "full",
    world: int = 16,
    groups: Sequence[Group] = (),
    cluster: Cluster = NODES,
    dtypes: Sequence[str] = (),
) -> Setting:
    """GPUs, or the cores of a profile without any, with room for every size."""
    found = tuple(groups) or subgroups(world, cluster.unit_sizes)
    gpu = cluster.accelerator.sms is not None
    on, usual = ("cuda", ("bf16",)) if gpu else ("cpu", ("fp32",))
    return Setting(suite, world, on, 60e9, found, tuple(dtypes) or usual)  # type: ignore[arg-type]


def header(**changed: object) -> Header:
    """Of a run on two nodes."""
    told = {
        "run": "a1",
        "started": "2026-01-02T03:04:05+00:00",
        "suite": "full",
        "world": 16,
        "device": "cuda",
        "backend": "nccl",
        "hosts": {"left": 8, "right": 8},
        "devices": {"NVIDIA H100 80GB HBM3": 16},
        "versions": {"torch": "2.13", "nccl": "2.29"},
        "variables": {},
        "profile": NODES.name,
        "cluster": NODES.model_dump(mode="json"),
    }
    return Header.model_validate(told | changed)


def lines(
    machine: Calibration | None,
    *,
    noise: float = 0.0,
    seed: int = 0,
    change: Change | None = None,
    names: Sequence[str] = KERNELS,
    suite: str = "full",
    outliers: float = 0.0,
    world: int = 16,
    cluster: Cluster = NODES,
    dtypes: Sequence[str] = (),
) -> list[Measured]:
    """Every case of the suite as ``machine`` takes it; predictions are those of the peaks.

    Args:
        noise: standard deviation of each time, as a fraction.
        change: what it does to the seconds of each rank.
        cluster: whose ranks they are.
        outliers: share of the cases that take three times as long.
        dtypes: of matmuls; left out: the usual one.
    """
    rng = np.random.default_rng(seed)
    real, stated = Profile(cluster, machine), Profile(cluster)
    asked = setting(suite, cluster.gpus, cluster=cluster, dtypes=dtypes)
    found = []
    for name in names:
        kernel = kernels()[name]
        for case in kernel.cases(asked):
            told = {e.part: e for e in kernel.predict(case, stated)}
            for expected in kernel.predict(case, real):
                factor = np.exp(noise * rng.standard_normal()) * (
                    3 if rng.random() < outliers else 1
                )
                ranks = np.full(world, expected.seconds * factor)
                ranks = ranks if change is None else change(case, ranks)
                slowest = float(ranks.max())
                found.append(
                    Measured(
                        run="a1",
                        case=case.id,
                        kernel=name,
                        part=expected.part,
                        parameters=dict(case.parameters),
                        size=case.size,
                        stride=case.stride,
                        world=world,
                        seconds=slowest,
                        p10=slowest * (1 - noise),
                        p90=slowest * (1 + noise),
                        repeats=20,
                        per_rank=tuple(ranks.tolist()),
                        predicted=told[expected.part].seconds,
                        flops=expected.flops,
                        nbytes=expected.nbytes,
                        correct="yes",
                    )
                )
    return found


def end(run: str = "a1") -> End:
    """Of a run that went well."""
    return End(
        run=run,
        outcome="complete",
        wall=10,
        measuring=9.5,
        startup=1,
        measured=1,
        skipped=0,
        failed=0,
        wrong=0,
    )


def written(folder: Path, found: Sequence[Line], about: Header | None = None) -> Path:
    """A folder of results."""
    folder.mkdir(parents=True, exist_ok=True)
    results.write(folder / FILE, [about or header(), *found, end((about or header()).run)])
    return folder
