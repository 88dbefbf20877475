"""What a plan is asked on the command line: options that ``plan``, ``compare`` and ``export`` share.

A layout is written as ``tp=8,pp=4,recompute=none,full``: choices of a plan and what they may be. Of
the degrees that it does not name, none is used; everything else is the best that goes with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from time import monotonic
from types import TracebackType
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from roofline.calibrated import runs_on
from roofline.cli import inputs, output
from roofline.cli.inputs import model as model
from roofline.limits import FRAMEWORKS, Limit
from roofline.model import Transformer
from roofline.names import choose
from roofline.planner import Plan, holding, plan
from roofline.recipes import RECIPES
from roofline.space import CHOICES
from roofline.training import PEAK

QUIET = 1.0  # seconds without a progress bar
DEGREES = ("tp", "cp", "pp", "ep", "etp")


def _job(**about: Any) -> Any:
    return typer.Option(rich_help_panel="Job", **about)


ModelOption = Annotated[str, _job(help="A published model, or the path of a config.json.")]
GpusOption = Annotated[
    int | None,
    typer.Option(rich_help_panel="Machine", help="The cluster grows or is cut to hold them."),
]
BatchOption = Annotated[str, _job(help="Tokens in a step: 4e6, 4M, 4Mi.")]
SequenceOption = Annotated[int, _job(min=1, help="Tokens in a sequence.")]
PrecisionOption = Annotated[str, _job(help="bf16, fp16, fp8, mxfp8 or nvfp4.")]
FrameworkOption = Annotated[
    str, _job(metavar="NAME", help=f"Whose abilities count: {', '.join(FRAMEWORKS)}.")
]
RecipeOption = Annotated[
    str | None,
    _job(
        metavar="NAME",
        help=f"Kept of each parameter: the framework's habit, or {', '.join(RECIPES)}.",
    ),
]
HeadroomOption = Annotated[float, _job(help="Share of the memory that stays free: 0.05.")]

ImbalanceOption = Annotated[
    float, _job(help="Load of the busiest expert rank over the mean; 1: balanced.")
]


@dataclass(frozen=True)
class Asked:
    """Everything that a plan takes but for its limits."""

    model: Transformer
    machine: inputs.Chosen
    gpus: int
    options: Mapping[str, Any]  # keywords of ``plan``

    def plan(self, limits: Mapping[str, Limit], bar: Bar | None = None) -> Plan:
        """The plan within some limits.

        Raises:
            ValueError: as ``planner.plan``, and naming a precision that the GPU lacks.
        """
        self.check()
        more: dict[str, Any] = {**self.options, **limits, "progress": bar}
        return plan(self.model, self.machine.profile, self.gpus, **more)

    def check(self) -> None:
        """Pass where the GPU has a rate for the precision.

        Raises:
            ValueError: where it has none, naming those that it has.
        """
        runs_on(self.machine.profile.accelerator, self.options["precision"])

    def line(self) -> str:
        """The machine, for people; of its whole units some GPUs may stay idle."""
        idle = self.gpus != self.machine.cluster.gpus
        uneven = self.options["imbalance"]
        load = f", the busiest expert rank {uneven:g} times the mean" if uneven > 1 else ""
        return (f"{self.gpus:,} of " if idle else "") + self.machine.line() + load

    def about(self) -> dict[str, Any]:
        """The job and the machine, for JSON."""
        names = ("tokens", "sequence", "precision", "framework", "recipe", "headroom", "imbalance")
        said = {name: self.options[name] for name in names}
        return self.machine.about() | {"gpus": self.gpus, "model": self.model.name} | said


def asked(params: Mapping[str, Any]) -> Asked:
    """The job that the options ask for.

    Raises:
        ValueError: an unknown model, cluster or calibration, a file that cannot be read, a number
            of GPUs or tokens that cannot be.
    """
    chosen = inputs.machine_of_steps({**params, "gpus": None})
    gpus = params["gpus"]
    gpus = chosen.profile.gpus if gpus is None else inputs.whole("--gpus", gpus)
    chosen = replace(chosen, cluster=holding(chosen.cluster, gpus))
    options = {
        "tokens": inputs.count("--tokens", params["tokens"]),
        "sequence": params["sequence"],
        "precision": params["precision"],
        "framework": params["framework"],
        "recipe": params.get("recipe"),
        "headroom": params["headroom"],
        "imbalance": params["imbalance"],
        "rates": chosen.overlay or PEAK,
    }
    return Asked(model(params["model"]), chosen, gpus, options)


def limits(params: Mapping[str, Any]) -> dict[str, Limit]:
    """The limits among the options of a command."""
    return {name: params[name] for name in CHOICES if params.get(name) is not None}


def written(
    text: str, known: Mapping[str, Any] | None = None, field: str = "LAYOUT"
) -> dict[str, str]:
    """Names and values of ``tp=8,pp=2-4,recompute=none,full``.

    Args:
        known: names that may stand there beside choices.
        field: what a refusal begins with.

    Raises:
        ValueError: no value, a name that is no choice, or one given twice.

    >>> written("tp=8, recompute=none,full")
    {'tp': '8', 'recompute': 'none,full'}
    """
    found: dict[str, str] = {}
    last = ""
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals and last and name:
            found[last] += f",{name}"
            continue
        last = name.replace("-", "_").lower()
        if not (equals and value):
            raise ValueError(f"{field}: {text!r} is refused; allowed: NAME=VALUE,…, as tp=8,pp=4")
        choose(field, last, dict.fromkeys((*CHOICES, *(known or ()))))
        if last in found:
            raise ValueError(f"{field}: {last} is given twice in {text!r}; allowed: once")
        found[last] = value
    return found


def exactly(given: Mapping[str, Limit]) -> dict[str, Limit]:
    """Limits with 1 for each degree that is not named, where one is; else as they are."""
    named = any(name in given for name in DEGREES)
    return {**(dict.fromkeys(DEGREES, 1) if named else {}), **given}


class Bar:
    """A progress bar on standard error after a second; nothing where that is no terminal."""

    def __init__(self) -> None:
        """The clock starts."""
        self.start = monotonic()
        self.shown: Progress | None = None
        self.task = TaskID(0)

    def __call__(self, done: float, seen: int) -> None:
        """A share of the search is done."""
        if self.shown is None and monotonic() - self.start > QUIET:
            self.shown = self._made()
            self.shown.start()
            self.task = self.shown.add_task("", total=1.0)
        if self.shown is not None:
            self.shown.update(self.task, completed=done, description=f"{seen:,} layouts")

    def _made(self) -> Progress:
        there = output.console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn())
        return Progress(*columns, console=there, transient=True, disable=not there.is_terminal)

    def __enter__(self) -> Bar:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self.shown is not None:
            self.shown.stop()
