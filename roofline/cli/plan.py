"""``roofline plan``: which layout, how fast, why, and what would be better."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from roofline import plan_text
from roofline.cli import finds, inputs, output
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
    limits,
    written,
)
from roofline.describe import describe
from roofline.explain import too_much, versus
from roofline.export import ALIASES, FORMATS, Export
from roofline.outcome import Outcome, outcome
from roofline.planner import HEADROOM, Plan
from roofline.units import DAY, show


def _limit(help: str = "") -> Any:
    return typer.Option(
        rich_help_panel="Limits: 8, 2-8 or none,full; left out: whatever is best", help=help or None
    )


Some = Annotated[str | None, _limit()]
TopOption = Annotated[int, typer.Option(min=1, max=200, help="Layouts that are listed.")]
TwinsOption = Annotated[
    bool, typer.Option("--twins", help="List those that differ in a minor choice alone, too.")
]
BudgetOption = Annotated[str | None, typer.Option(help="Tokens to train on: 15T, 15e12.")]
DaysOption = Annotated[float | None, typer.Option(help="To train on --budget.")]
PriceOption = Annotated[float | None, typer.Option(help="Of a GPU for an hour.")]
CompareOption = Annotated[
    list[str] | None,
    typer.Option(metavar="LAYOUT", help="Yours, beside the best: tp=8,pp=8; repeatable."),
]
ExportOption = Annotated[
    str | None,
    typer.Option(metavar="FORMAT", help=f"The launch file too: {', '.join((*FORMATS, *ALIASES))}."),
]
FindOption = Annotated[
    str | None,
    typer.Option(
        metavar="WHAT",
        help="gpus: the fewest for --days and --budget; money: the cheapest for --budget and "
        "--price; batch: the largest that pays; sequence: the longest that fits; cluster: the "
        "best of --cluster a,b.",
    ),
]


def plan(
    ctx: typer.Context,
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
    tp: Some = None,
    cp: Some = None,
    pp: Some = None,
    ep: Some = None,
    etp: Some = None,
    order: Some = None,
    micro_batch: Some = None,
    chunks: Some = None,
    schedule: Some = None,
    zero: Some = None,
    shard: Some = None,
    sequence_parallel: Some = None,
    recompute: Some = None,
    recompute_share: Some = None,
    offload_share: Some = None,
    budget: BudgetOption = None,
    days: DaysOption = None,
    price: PriceOption = None,
    find: FindOption = None,
    compare: CompareOption = None,
    export: ExportOption = None,
    output_file: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Where the launch file goes.")
    ] = None,
    top: TopOption = 10,
    twins: TwinsOption = False,
    json: inputs.JsonOption = False,
) -> None:
    """The best layouts of a model on a cluster, why, and the file that launches the first.

    Examples:

        roofline plan --model llama-3-70b --gpus 512 --sequence 8192 --framework megatron
        roofline plan --gpus 512 --tp 1-8 --compare tp=8,pp=8 --export megatron
        roofline plan --budget 15e12 --days 60 --framework megatron
    """
    what = finds.sought(ctx.params)
    if what:
        finds.find(what, ctx.params)
    else:
        _plan(ctx.params)


def _plan(params: Mapping[str, Any]) -> None:
    """The plan that the options ask for; exit code 1 where nothing fits."""
    form = output.wanted(params)
    job, bounds = asked(params), limits(params)
    total = None if params["budget"] is None else inputs.count("--budget", params["budget"])
    with Bar() as bar:
        found = job.plan(bounds, bar)
        others = [
            (text, job.plan(exactly(written(text, field="compare")), bar))
            for text in params["compare"] or []
        ]
    brought = outcome(found.best, budget=total, price=params["price"]) if found.best else None
    launch = found.export(form) if form and found.best else None
    if params["json"]:
        output.as_json(_document(job, bounds, found, params["top"], brought, others, launch))
    else:
        _tell(job, found, params, brought, others)
    if launch is not None:
        output.hand_over(launch, params["output_file"], params["json"])
    if found.best is None:
        raise typer.Exit(1)


def _tell(
    job: Asked,
    found: Plan,
    params: Mapping[str, Any],
    brought: Outcome | None,
    others: list[tuple[str, Plan]],
) -> None:
    """The answer for people."""
    output.say(job.line())
    first, *rest = found.explain().sentences
    output.say(first, style="bold")
    output.say(*rest)
    if brought is not None:
        output.say(output.held(brought))
        output.say(*_budget(brought, params["days"]))
    for text, other in others:
        output.say(_beside(found, text, other), style="bold")
    if found.fitting:
        rows = plan_text.table(
            found, params["top"], found.ranked if params["twins"] else found.distinct
        )
        output.table(
            (">", "layout", ">step", ">slower", ">tokens/s a GPU", ">memory"),
            [
                (
                    str(row["place"]), row["layout"], show(row["step_s"], "s"), f"{row['slower']:.1%}",
                    show(found.question.tokens / row["step_s"] / found.question.gpus),
                    show(row["memory_bytes"], "B"),
                )
                for row in rows
            ],
        )  # fmt: skip
        if len(rows) > 1 and not params["twins"]:
            output.say("One layout of each kind; --twins lists minor choices too.", style="dim")


def _budget(brought: Outcome, days: float | None) -> Iterator[str]:
    """Days and money, where they were asked for."""
    if brought.budget is None:
        return
    total = float(brought.training_seconds)
    said = [f"{show(float(brought.budget))} tokens: {show(total, 's')}"]
    if days is not None:
        said.append(
            f"the deadline of {days:g} day{'' if days == 1 else 's'} is {'kept' if total <= days * DAY else 'missed'}"
        )
    if brought.price is not None:
        said.append(f"{float(brought.money):,.0f} at {brought.price:g} a GPU hour")
    yield ", ".join(said)


def _beside(found: Plan, text: str, other: Plan) -> str:
    """A layout of the user's beside the best."""
    room = other.question.room
    job = other.best or other.question.training(other.layout(0, other.smallest))
    name = f"{text} ({describe(job.layout)})"
    if found.best is not None:
        return versus(found.best, job, name, room)
    return f"{name} takes {show(float(job.time.seconds), 's')} a step and {too_much(job, room) or 'fits'}"


def _document(
    job: Asked,
    bounds: Mapping[str, Any],
    found: Plan,
    top: int,
    brought: Outcome | None,
    others: list[tuple[str, Plan]],
    launch: Export | None,
) -> dict[str, Any]:
    """The plan in SI units; its keys stay."""
    rows: Callable[[Any], Any] = lambda some: plan_text.table(found, top, some)  # noqa: E731
    said = found.explain()
    return job.about() | {
        "limits": dict(bounds),
        "seen": found.seen,
        "fitting": found.fitting,
        "refused": [{"constraint": name, "count": n} for name, n in found.refused.items()],
        "best": None if brought is None else _best(found, brought),
        "ranked": rows(found.ranked),
        "distinct": rows(found.distinct),
        "front": rows(found.front),
        "smallest": rows(found.smallest)[0],
        "explanation": list(said.sentences),
        "rates_worth": [asdict(row) for row in said.rates],
        "compare": [
            {
                "layout": text,
                "sentence": _beside(found, text, other),
                "best": plan_text.table(other, 1)[0] if other.best else None,
                "smallest": plan_text.table(other, 1, other.smallest)[0],
            }
            for text, other in others
        ],
        "export": launch and output.exported(launch),
    }


def _best(found: Plan, brought: Outcome) -> dict[str, Any]:
    """The first place, with its terms and what it brings."""
    best, known = found.best, brought.budget is not None
    assert best is not None, "there is an outcome"
    return plan_text.table(found, 1)[0] | {
        "seconds": brought.seconds,
        "error": brought.sentence(),
        "band_s": brought.wide,
        "mfu": brought.mfu,
        "tokens_per_s_per_gpu": brought.tokens_per_second_per_gpu,
        "terms": [{"name": name, "seconds": each} for name, each in best.time.terms.items()],
        "memory": [{"part": name, "bytes": each} for name, each in best.memory.parts.items()],
        "budget": brought.budget,
        "train_s": brought.training_seconds if known else None,
        "gpu_hours": brought.gpu_hours if known else None,
        "money": brought.money if known and brought.price is not None else None,
    }
