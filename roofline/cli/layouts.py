"""``roofline placement``, ``guide`` and ``bubbles``: where axes lie, what to try, what a pipeline idles."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Annotated, Any

import typer

from roofline import bubbles as schedules
from roofline import guide as advice
from roofline import placement as places
from roofline.cli import inputs, output
from roofline.counting import parameters
from roofline.memory import CONVENTIONS, convention
from roofline.names import choose

# What can be split, and the abbreviations that frameworks have for it.
AXES = (
    *("tensor", "sequence", "context", "expert", "pipeline", "data", "fsdp", "model", "pipe"),
    *("tp", "sp", "cp", "ep", "pp", "dp", "replica"),
)

AxesArgument = Annotated[
    list[str],
    typer.Argument(metavar="AXIS=DEGREE...", help="Innermost first; a degree of ? takes the rest."),
]
StagesOption = Annotated[int, typer.Option(min=1, help="p, GPUs along the pipeline.")]
CountOption = Annotated[int, typer.Option(min=1, help="m, micro-batches per step.")]
ChunksOption = Annotated[int | None, typer.Option(min=1, help="v, runs of layers per stage.")]
ScheduleOption = Annotated[
    str | None, typer.Option(metavar="NAME", help=f"{', '.join(schedules.SCHEDULES)}; or all.")
]
ConventionOption = Annotated[
    str, typer.Option(help=f"Bytes kept per parameter: {', '.join(CONVENTIONS)}.")
]


def placement(
    ctx: typer.Context,
    axes: AxesArgument,
    cluster: inputs.ClusterOption = inputs.DEFAULT_CLUSTER,
    gpus: inputs.GpusOption = None,
    rates: inputs.RatesOption = "peak",
    json: inputs.JsonOption = False,
) -> None:
    """Which tiers the groups of each axis cross, and how many share an uplink.

    Example:

        roofline placement tensor=8 pipeline=4 data=?
    """
    chosen = inputs.machine(ctx.params)
    mesh = places.mesh(chosen.cluster.gpus, _axes(axes))
    found = places.placed(mesh, chosen.cluster.tiers)
    if json:
        output.as_json(chosen.about() | {"axes": [_placed(axis) for axis in found]})
        return
    output.say(chosen.line())
    output.table(
        ["axis", ">degree", ">stride", ">groups", "crosses", "siblings on an uplink", "aligned"],
        [
            [
                axis.axis,
                f"{axis.degree:,}",
                f"{axis.stride:,}",
                f"{axis.groups:,}",
                ", ".join(axis.crossed) or "nothing",
                ", ".join(f"{c.siblings} ({c.tier})" for c in axis.crossings if c.children > 1),
                "yes" if axis.aligned else "no",
            ]
            for axis in found
        ],
    )


def _placed(axis: places.AxisPlacement) -> dict[str, Any]:
    crossings = [crossing._asdict() for crossing in axis.crossings]
    return asdict(axis) | {"crossings": crossings, "crossed": axis.crossed}


def _axes(texts: list[str]) -> dict[str, int | None]:
    """Axes and degrees, each axis once and by a name that says what is split."""
    found: dict[str, int | None] = {}
    for name, degree in map(_axis, texts):
        choose("AXIS", name, dict.fromkeys(AXES))
        if name in found:
            raise ValueError(f"AXIS: {name!r} is given twice; allowed: each axis once")
        found[name] = degree
    return found


def _axis(text: str) -> tuple[str, int | None]:
    name, _, degree = text.partition("=")
    if not name or not (degree == "?" or (degree.isdecimal() and int(degree) >= 1)):
        example = "allowed: AXIS=DEGREE, such as tensor=8 or data=?"
        raise ValueError(f"AXIS=DEGREE: {text!r} is refused; {example}")
    return name, None if degree == "?" else int(degree)


def guide(
    ctx: typer.Context,
    cluster: inputs.ClusterOption = inputs.DEFAULT_CLUSTER,
    gpus: inputs.GpusOption = None,
    rates: inputs.RatesOption = "peak",
    dtype: inputs.DtypeOption = "bf16",
    model: inputs.ModelOption = None,
    tokens: inputs.TokensOption = inputs.DEFAULT_TOKENS,
    bytes_per_parameter: ConventionOption = "zero",
    json: inputs.JsonOption = False,
) -> None:
    """What the decision guide says: which strategies to try, in which order, and why.

    Example:

        roofline guide --model llama-3-8b --gpus 64
    """
    chosen = inputs.machine(ctx.params)
    name, work = inputs.workload(ctx.params)
    assert name is not None, "guide takes no layer of one's own"
    shape = inputs.model(model or inputs.DEFAULT_MODEL).shape
    total, one_layer = parameters(shape), replace(shape, layers=1, dense_layers=0, vocab=0)
    with inputs.naming("--bytes-per-parameter"):
        kept = convention(bytes_per_parameter)
    situation = advice.assess(
        work,
        chosen.cluster,
        gpus=chosen.cluster.gpus,
        parameters=float(total.total),
        largest_layer=float(parameters(one_layer).total),
        bytes_per_parameter=kept,
    )
    found = advice.recommend(situation)
    if json:
        output.as_json(
            chosen.about(dtype)
            | {"workload": inputs.about_work(name, work), "situation": asdict(situation)}
            | {"choices": [asdict(choice) for choice in found.choices], "tied": found.tied}
            | {"note": found.note or None, "source": str(found.source)}
        )
        return
    size, batch = output.number(total.total), output.number(work.tokens)
    output.say(chosen.line(), f"{name}: {size} parameters, {batch} tokens")
    answers = {True: "yes", False: "no", None: "does not matter"}
    for question, answer in asdict(situation).items():
        output.say(f"  {question.replace('_', ' ')}: {answers.get(answer, answer)}", style="dim")
    for i, choice in enumerate(found.choices, 1):
        output.say(f"{i}. {choice.name}: {choice.reason}", style="bold")
    output.say(*filter(None, [found.note]))


def bubbles(
    stages: StagesOption = 8,
    microbatches: CountOption = 32,
    chunks: ChunksOption = None,
    schedule: ScheduleOption = None,
    json: inputs.JsonOption = False,
) -> None:
    """Idle time, activations in flight and traffic of the pipeline schedules.

    Backward passes take twice the forward ones, half of that for weight gradients.

    Example:

        roofline bubbles --stages 8 --microbatches 32
    """
    alone = schedule is not None and schedule != "all"
    rows = {schedule: schedules.schedule(str(schedule))} if alone else schedules.SCHEDULES
    found = [_bubble(row, stages, microbatches, chunks, alone) for row in rows.values()]
    if json:
        facts = {"stages": stages, "microbatches": microbatches, "chunks": chunks}
        output.as_json(facts | {"schedules": found})
        return
    fitting = [row for row in found if not row["refused"]]
    output.table(
        ["schedule", ">idle / work", ">share of the step", ">in flight", ">traffic", ">copies"],
        [
            [
                row["schedule"],
                f"{row['ratio']:.1%}",
                f"{row['share']:.1%}",
                output.number(row["in_flight"]),
                output.number(row["traffic"]),
                output.number(row["parameter_copies"]),
            ]
            for row in fitting
        ],
        f"{stages} stages, {microbatches} micro-batches",
    )
    output.say(*(f"{r['schedule']}: {r['refused']}" for r in found if r["refused"]), style="dim")


def _bubble(
    row: schedules.Schedule, stages: int, microbatches: int, chunks: int | None, alone: bool
) -> dict[str, Any]:
    facts = {
        "schedule": row.name,
        "title": row.title,
        "formula": row.formula,
        "parameter_copies": row.parameter_copies,
        "note": row.note or None,
        "source": str(row.source),
    }
    numbers = dict.fromkeys(("ratio", "share", "in_flight", "traffic"))
    try:
        given = chunks if row.chunks is None or alone else None
        found = schedules.bubble(row.name, stages, microbatches, chunks=given)
    except ValueError as error:
        if alone:
            raise
        return facts | numbers | {"refused": str(error)}
    return facts | {key: float(getattr(found, key)) for key in numbers} | {"refused": None}
