"""``roofline scale``: more GPUs for a layout, axis by axis, and where each stops paying."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from roofline import scaling
from roofline.cli import inputs, output
from roofline.cli.asked import (
    Asked,
    Bar,
    BatchOption,
    FrameworkOption,
    GpusOption,
    HeadroomOption,
    ImbalanceOption,
    ModelOption,
    PrecisionOption,
    RecipeOption,
    SequenceOption,
    asked,
    exactly,
    written,
)
from roofline.describe import describe
from roofline.names import choose
from roofline.planner import HEADROOM, Plan, alone, largest
from roofline.scaling import AXES, MOST_GPUS, PAYS, Scaling
from roofline.units import show

BATCH = {"stays": False, "grows": True}  # whether scaling is weak

LayoutArgument = Annotated[
    str, typer.Argument(metavar="[LAYOUT]", help="As tp=8,pp=4; left out: the best.")
]
AxisOption = Annotated[
    str | None, typer.Option(metavar="NAME", help=f"Every doubling of one: {', '.join(AXES)}.")
]
BatchModeOption = Annotated[
    str | None,
    typer.Option(
        "--batch", metavar="stays|grows", help="Strong or weak scaling alone; left out: both."
    ),
]
MostOption = Annotated[str, typer.Option(help="GPUs up to which an axis is doubled.")]


def scale(
    ctx: typer.Context,
    layout: LayoutArgument = "",
    model: ModelOption = inputs.DEFAULT_MODEL,
    cluster: inputs.ClusterOption = inputs.DEFAULT_CLUSTER,
    gpus: GpusOption = None,
    rates: inputs.RatesOption = "achievable",
    tokens: BatchOption = "4Mi",
    sequence: SequenceOption = 4096,
    precision: PrecisionOption = "bf16",
    framework: FrameworkOption = "any",
    recipe: RecipeOption = None,
    headroom: HeadroomOption = HEADROOM,
    imbalance: ImbalanceOption = 1.0,
    axis: AxisOption = None,
    batch: BatchModeOption = None,
    most: MostOption = f"{MOST_GPUS}",
    json: inputs.JsonOption = False,
) -> None:
    """More GPUs for a layout: each axis doubled again and again, and where that stops paying.

    Examples:

        roofline scale --model llama-3-70b --gpus 512 --sequence 8192
        roofline scale tp=8,pp=8 --gpus 512 --batch grows --axis dp
    """
    modes = BATCH if batch is None else {batch: choose("--batch", batch, BATCH)}
    if axis is not None:
        choose("--axis", axis, dict.fromkeys(AXES))
    job = asked(ctx.params)
    top = _most(most, job.gpus)
    found = _planned(job, layout)
    curves = {mode: _curves(found, weak, top, axis) for mode, weak in modes.items()}
    if json:
        output.as_json(_document(job, found, curves))
    else:
        _tell(job, found, curves, axis, top)


def _most(text: str, gpus: int) -> int:
    value = int(inputs.count("--most", text))
    if value < gpus:
        raise ValueError(f"--most: {value:,} is refused; allowed: the {gpus:,} GPUs and more")
    return inputs.whole("--most", value)


def _planned(job: Asked, text: str) -> Plan:
    """The plan whose first place is the layout.

    Raises:
        ValueError: where no such layout fits.
    """
    with Bar() as bar:
        found = job.plan(exactly(written(text)) if text else {}, bar)
    if not found.fitting:
        raise ValueError(f"{'LAYOUT' if text else '--gpus'}: {str(found).splitlines()[0]}")
    return found


def _curves(found: Plan, weak: bool, most: int, axis: str | None) -> dict[str, Scaling]:
    curves = scaling.scaling(found.question, found.layout(), weak=weak, most=most)
    return {name: curve for name, curve in curves.items() if axis in (None, name)}


def _tell(
    job: Asked,
    found: Plan,
    curves: Mapping[str, Mapping[str, Scaling]],
    axis: str | None,
    most: int,
) -> None:
    """A table for each way to grow; all doublings of an axis that was asked for."""
    output.say(job.line())
    output.say(describe(found.layout()), style="bold")
    for mode, rows in curves.items():
        title = f"The batch {mode} ({'weak' if BATCH[mode] else 'strong'} scaling)"
        if not rows:
            which = "no axis can" if axis is None else f"{axis} cannot"
            output.say(f"{title}: {which} be doubled within {most:,} GPUs.")
        elif axis is None:
            output.table(_HEAD, [_summary(curve) for curve in rows.values()], title=title)
        else:
            output.table(_EACH, list(_doublings(rows[axis])), title=f"{title}: {axis}")
    profile = found.question.profile
    if largest(profile) <= job.gpus:
        output.say(f"{alone(profile)}.")
    output.say(
        f"A doubling pays while it fits and brings at least {PAYS:g} times the tokens per second. "
        "Efficiency: tokens per second and GPU, over those of the layout above.",
        style="dim",
    )


_HEAD = (
    "axis",
    ">pays up to",
    ">step",
    ">tokens/s a GPU",
    ">efficiency",
    ">doubled up to",
    ">efficiency there",
)
_EACH = (">GPUs", ">degree", ">step", ">tokens/s a GPU", ">efficiency", "fits", "pays")


def _summary(curve: Scaling) -> tuple[str, ...]:
    stop = int(curve.gpus.searchsorted(curve.stops))
    last = "" if curve.fits[-1] else ", does not fit"
    return (
        curve.axis,
        f"{curve.stops:,.0f} GPUs",
        show(float(curve.seconds[stop]), "s"),
        show(float(curve.tokens_per_second[stop] / curve.gpus[stop])),
        f"{curve.efficiency[stop]:.0%}",
        f"{curve.gpus[-1]:,.0f} GPUs",
        f"{curve.efficiency[-1]:.1%}{last}",
    )


def _doublings(curve: Scaling) -> Iterator[tuple[str, ...]]:
    for i, gpus in enumerate(curve.gpus):
        yield (
            f"{gpus:,.0f}",
            f"{curve.degree[i]:,.0f}",
            show(float(curve.seconds[i]), "s"),
            show(float(curve.tokens_per_second[i] / gpus)),
            f"{curve.efficiency[i]:.1%}",
            "yes" if curve.fits[i] else "no",
            "yes" if gpus <= curve.stops else "no",
        )


def _document(
    job: Asked, found: Plan, curves: Mapping[str, Mapping[str, Scaling]]
) -> dict[str, Any]:
    return job.about() | {
        "layout": describe(found.layout()),
        "pays": PAYS,
        "scaling": [
            {
                "batch": mode,
                "axis": curve.axis,
                "stops": curve.stops,
                "points": [
                    {
                        "gpus": curve.gpus[i],
                        "degree": curve.degree[i],
                        "step_s": curve.seconds[i],
                        "tokens_per_s": curve.tokens_per_second[i],
                        "efficiency": curve.efficiency[i],
                        "fits": bool(curve.fits[i]),
                    }
                    for i in range(len(curve.gpus))
                ],
            }
            for mode, rows in curves.items()
            for curve in rows.values()
        ],
    }
