"""Cases and kernels: one object says what to run, what the formulas expect, and how to run it.

A ``Kernel`` is three functions of plain parameters:

    cases(setting)          which parameters to run here; needs no torch
    predict(case, profile)  what the formulas say of each part; needs no torch, so a report or a
                            calibration can predict anew from a results file
    prepare(case, context)  on every rank: allocate, and return the calls to time

The same cases come in the same order on every rank. All groups of a case's size and stride run at
the same time, as the formulas take for granted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from roofline.groups import Group
from validation.results import Part, Value

if TYPE_CHECKING:
    from validation.context import Context
    from validation.profile import Profile

Suite = Literal["quick", "full"]
Call = Callable[[int], object]  # of the repeat's number, by which buffers are rotated


@dataclass(frozen=True, slots=True)
class Setting:
    """What there is to run on, the same on every rank, and how much of it to run."""

    suite: Suite
    world: int
    device: Literal["cpu", "cuda"]
    memory: float  # that a case may take on each rank [B]
    groups: tuple[Group, ...]  # with more than one rank; the whole world first
    dtypes: tuple[str, ...]  # that the profile has a rate for and torch can multiply here
    lacking: Mapping[str, str] = field(default_factory=dict)  # other data types, and why not

    @property
    def quick(self) -> bool:
        """True for the suite that has to be done in two minutes."""
        return self.suite == "quick"


@dataclass(frozen=True, slots=True)
class Case:
    """One kernel with its parameters; ``size`` and ``stride`` say which ranks work together."""

    kernel: str
    parameters: Mapping[str, Value]
    size: int = 1
    stride: int = 1

    @property
    def id(self) -> str:
        """Stable key of the case: ``all-gather bytes=1024 dtype=fp32 ranks=4x1``."""
        told = [f"{name}={value}" for name, value in self.parameters.items()]
        return " ".join((self.kernel, *told, f"ranks={self.size}x{self.stride}"))

    @property
    def group(self) -> Group:
        """The group as the formulas take it."""
        return Group(self.size, self.stride)

    def __getitem__(self, name: str) -> Any:
        return self.parameters[name]


@dataclass(frozen=True, slots=True)
class Expected:
    """What a formula says of one part."""

    part: Part
    seconds: float
    flops: float = 0.0  # of one rank
    nbytes: float = 0.0  # math: over one rank's memory; comms: the whole array [B]


@dataclass(frozen=True, slots=True)
class Correctness:
    """How far this rank's result is from a single process's, and how far it may be."""

    max_error: float
    tolerance: float

    @property
    def passed(self) -> bool:
        """False for NaN too."""
        return self.max_error <= self.tolerance


def worst(checks: Iterable[Correctness]) -> Correctness:
    """The one with the largest error; NaN is larger than every number, which ``max`` does not know.

    Raises:
        ValueError: when nothing was compared.
    """
    return max(checks, key=lambda one: (math.isnan(one.max_error), one.max_error))


@dataclass(frozen=True, slots=True)
class Work:
    """A case on one rank, ready to run. Whatever is absent is not measured.

    ``math`` computes without talking, ``comms`` talks without computing, ``both`` does the whole
    thing. Every rank has the same ones. ``check`` runs the whole thing once, before the timing.
    """

    check: Callable[[], Correctness] | None = None
    math: Call | None = None
    comms: Call | None = None
    both: Call | None = None

    @property
    def parts(self) -> dict[Part, Call]:
        """The calls that there are."""
        calls: dict[Part, Call | None] = {
            "math": self.math,
            "comms": self.comms,
            "both": self.both,
        }
        return {part: call for part, call in calls.items() if call is not None}


@dataclass(frozen=True, slots=True)
class Kernel:
    """One model of ``roofline``, and the thing itself."""

    name: str
    about: str
    cases: Callable[[Setting], Iterable[Case]]
    predict: Callable[[Case, Profile], Iterable[Expected]]
    prepare: Callable[[Case, Context], Work]
