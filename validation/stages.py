"""What a calibration fits, section by section: which numbers, from which results, in which order.

Later stages are fitted on top of the earlier ones: attention that is bound by memory needs the
memory's rate, groups across nodes need what starting a collective costs inside one. Where a
collective was measured across nodes only, its start is fitted there, in turn with the network.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hardware_profiles.behaviour import COLLECTIVES, OPTIONAL, StepFit
from hardware_profiles.schema import Accelerator
from validation.evidence import Evidence, is_kernel, predicted
from validation.results import Measured, Part

Section = tuple[str, ...]
Belongs = Callable[[Measured], bool]


@dataclass(frozen=True, slots=True)
class Number:
    """One number: its bounds, what it usually is, and how far off that may be (as a factor, ln)."""

    name: str
    low: float
    high: float
    usual: float
    doubt: float


@dataclass(frozen=True, slots=True)
class Stage:
    """Numbers of one section of ``StepFit``, and the results that they are fitted to."""

    title: str
    section: Section
    numbers: tuple[Number, ...]
    uses: Belongs
    fewest: int = 4  # trusted cases without which it is left alone: two to fit, two to judge by
    over: tuple[Part, ...] = ()  # parts of the same case whose errors are not this stage's


PLAIN = ("point-to-point", *OPTIONAL)  # a start and a rate is all that their formula has
# Kernels that hide collectives behind passes of their own; FSDP2's parts alone are not its own.
HIDING = ("data parallel", "tensor parallel", "pipeline parallel", "context parallel")
BEYOND = " beyond it"  # of stages that share results with the network's
MOST = 1.25  # of a rate over the profile's, as a calibration allows

STREAMS = (Number("hbm", 1e-3, MOST, 0.8, 1.0), Number("gap", 1e-8, 0.5, 4e-6, 2.5))
MATMUL = (
    Number("efficiency", 1e-4, MOST, 0.75, 1.0),
    Number("depth", 1.0, 1e4, 120.0, 0.7),
    Number("wave", 1e-3, 20.0, 0.1, 0.7),
    Number("start", 1e-8, 0.5, 4e-6, 2.5),
    Number("hbm", 1e-3, MOST, 0.75, 0.7),
)
# A core has no tiles to fill: an output is not charged for more than it is.
CORE = (
    MATMUL[0],
    Number("depth", 1.0, 1e3, 8.0, 0.7),
    Number("wave", 1e-6, 1e-2, 1e-5, 0.7),
    *MATMUL[3:],
)
ATTENTION = (
    Number("flash_2", 1e-4, MOST, 0.35, 1.0),
    Number("half", 1.0, 1e4, 500.0, 0.7),
    Number("backward", 0.05, MOST, 0.8, 0.5),
    Number("narrow", 0.2, MOST, 0.8, 0.2),
    Number("start", 1e-8, 0.5, 6e-6, 2.5),
)
# There the mask saves whole blocks alone, which ``Profile.causal`` knows: short keys lose little.
CORE_ATTENTION = (ATTENTION[0], Number("half", 0.1, 1e3, 8.0, 1.0), *ATTENTION[2:])
LINK = (
    Number("start", 1e-7, 0.9, 5e-6, 2.5),
    Number("per_rank", 1e-9, 0.9, 1e-6, 2.5),
    Number("fraction", 1e-4, MOST, 0.75, 1.0),
    Number("root", 1e-12, 1e-3, 6e-9, 2.5),
)
# Between processes on CPUs, where the operating system has a hand in every message.
LOOPBACK = (
    Number("start", 1e-7, 0.9, 5e-4, 2.0),
    Number("per_rank", 1e-9, 0.9, 3e-4, 2.0),
    Number("fraction", 1e-4, MOST, 0.3, 1.0),
    Number("root", 1e-12, 1e-3, 3e-8, 2.0),
)
CONTENTION = (Number("contention", 0.02, 4.0, 0.5, 1.0),)
NETWORK = (
    Number("outer", 1e-4, MOST, 0.75, 1.0),
    Number("hop", 1e-8, 0.5, 8e-6, 2.5),
    Number("exchange", 0.05, MOST, 0.75, 0.7),
)


def stages(evidence: Evidence) -> list[Stage]:
    """Every stage that these results have a case for, in order."""
    there = _dtypes(evidence)
    on_gpu = bool(evidence.profile.chip.sms)
    numbers, attention = (MATMUL, ATTENTION) if on_gpu else (CORE, CORE_ATTENTION)
    found = [Stage("memory", ("streams",), STREAMS, _in_memory)]
    found += [Stage(f"matmul {d}", ("matmuls", d), numbers, _matmul(d)) for d in there]
    found += [Stage("attention", ("attention",), attention, is_kernel("attention"))]
    link = LOOPBACK if evidence.header.backend == "gloo" else LINK
    for name in (*COLLECTIVES, *OPTIONAL):
        row = (link[0], link[2]) if name in PLAIN else link
        found.append(Stage(name, ("collectives", name), row, _inside(name, evidence.unit), 2))
    outside = _beyond(evidence.unit)
    found.append(Stage("network beyond the innermost tier", ("network",), NETWORK, outside))
    found = [stage for stage in found if any(map(stage.uses, evidence.measured))]
    inside = {stage.section for stage in found}
    for name in COLLECTIVES:
        only = _only(name, outside)
        if ("collectives", name) not in inside and any(map(only, evidence.measured)):
            few = (link[0], link[1], link[3])  # the rate inside does not show
            found.append(Stage(f"{name}{BEYOND}", ("collectives", name), few, only))
    if any(map(_hiding, evidence.measured)):
        found.append(Stage("contention", ("habits",), CONTENTION, _hiding, over=("math", "comms")))
    return found


def cases(stage: Stage, evidence: Evidence) -> list[Measured]:
    """Trusted results of a stage that the kernels can predict."""
    lines = [line for line in evidence.trusted if stage.uses(line)]
    return [line for line in lines if predicted(line, evidence.profile) is not None]


def _dtypes(evidence: Evidence) -> list[str]:
    told = {str(m.parameters.get("dtype")): None for m in evidence.measured if m.kernel == "matmul"}
    return [dtype for dtype in told if dtype in evidence.profile.dtypes()]


def _in_memory(line: Measured) -> bool:
    return line.kernel == "memory" and line.parameters.get("where", "memory") == "memory"


def _matmul(dtype: str) -> Belongs:
    return lambda line: line.kernel == "matmul" and line.parameters.get("dtype") == dtype


def _inside(name: str, unit: int) -> Belongs:
    return lambda line: line.kernel == name and line.size * line.stride <= unit


def _beyond(unit: int) -> Belongs:
    collective = is_kernel(*COLLECTIVES, *OPTIONAL)
    return lambda line: collective(line) and line.size * line.stride > unit


def _hiding(line: Measured) -> bool:
    hides = line.kernel in HIDING and line.part == "both"
    told = line.parameters
    return hides and bool(told.get("overlap", True)) and told.get("by", "hand") == "hand"


def _only(name: str, belongs: Belongs) -> Belongs:
    return lambda line: line.kernel == name and belongs(line)


def ideal(chip: Accelerator) -> StepFit:
    """Peaks, from which nothing is lost: where a machine starts that nobody has measured."""
    rates = {"efficiency": 1.0, "depth": 0.0, "wave": 0.0, "start": 0.0, "hbm": 1.0}
    kernel = {"efficiency": 1.0, "flash_2": 1.0, "flash_1": 1.0, "half": 0.0, "backward": 1.0}
    link = {"start": 0.0, "per_rank": 0.0, "fraction": 1.0, "root": 0.0}
    habits = {"contention": 0.0, "fine_overlap": 1.0, "experts": 1.0, "host": 0.0}
    return StepFit.model_validate(
        {
            "matmuls": {"bf16": rates},
            "attention": kernel | {"narrow": 1.0, "start": 0.0},
            "streams": {"hbm": 1.0, "gap": 0.0},
            "collectives": dict.fromkeys(COLLECTIVES, link),
            "network": {"outer": 1.0, "hop": 0.0, "exchange": 1.0},
            "habits": habits | {"fixed": 0.0, "power": 0.0},
            "source": f"peaks of {chip.name}",
        }
    )


def values(step: StepFit, section: Section) -> Any:
    """The model of a section; None where the calibration has none of that name."""
    found = getattr(step, section[0])
    return found.get(section[1]) if len(section) > 1 else found


def placed(step: StepFit, section: Section, new: dict[str, float]) -> StepFit:
    """``step`` with numbers of one section replaced; not validated, as a fit calls it often."""
    old = values(step, section)
    if len(section) == 1:
        return step.model_copy(update={section[0]: _joined(old, new)})
    rows = dict(getattr(step, section[0]))
    if old is None:
        old = next(iter(rows.values()))
        new = dict.fromkeys(type(old).model_fields, 0.0) | new
    return step.model_copy(update={section[0]: rows | {section[1]: old.model_copy(update=new)}})


def _joined(old: Any, new: dict[str, float]) -> Any:
    """Generations of attention that were not measured keep their place beside the one that was."""
    if "flash_2" in new:
        gained = new["flash_2"] / old.flash_2
        others = {
            name: min(MOST, getattr(old, name) * gained) for name in ("efficiency", "flash_1")
        }
        new = others | new
    return old.model_copy(update=new)
