"""``roofline explain``: one job taken apart, term by term, operation by operation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any

import numpy as np
import typer

from roofline import footprint
from roofline.anatomy import Anatomy, anatomy
from roofline.calibrated import runs_on
from roofline.cli import inputs, output
from roofline.cli import one_layout as one
from roofline.cli.asked import BatchOption, ImbalanceOption, ModelOption, SequenceOption
from roofline.cli.asked import model as model_of
from roofline.limits import FRAMEWORKS
from roofline.outcome import Outcome, outcome
from roofline.suspects import Suspicion, suspects
from roofline.training import PEAK, Training, training
from roofline.units import DAY, show

HabitsOption = Annotated[
    str,
    typer.Option(metavar="NAME", help=f"Whose habits and limits count: {', '.join(FRAMEWORKS)}."),
]
BudgetOption = Annotated[str | None, typer.Option(help="Tokens to train on: 15T, 300e9.")]
PriceOption = Annotated[float | None, typer.Option(help="Of a GPU for an hour.")]
MeasuredOption = Annotated[float | None, typer.Option(help="Seconds of a measured step.")]


def explain(
    ctx: typer.Context,
    cluster: inputs.ClusterOption = inputs.DEFAULT_CLUSTER,
    gpus: inputs.GpusOption = None,
    rates: inputs.RatesOption = "achievable",
    precision: Annotated[str, typer.Option(help="bf16, fp8, …")] = "bf16",
    model: ModelOption = inputs.DEFAULT_MODEL,
    tokens: BatchOption = "4Mi",
    sequence: SequenceOption = 4096,
    framework: HabitsOption = "any",
    tp: one.Degree = None,
    cp: one.Degree = None,
    pp: one.Degree = None,
    ep: one.Degree = None,
    etp: one.Degree = None,
    chunks: one.Degree = None,
    micro_batch: one.Degree = None,
    zero: one.ZeroOption = None,
    zero_kind: one.ZeroKindOption = None,
    shard: one.ShardOption = None,
    order: one.OrderOption = None,
    sequence_parallel: one.SplitOption = None,
    schedule: one.ScheduleOption = None,
    recompute: one.RecomputeOption = None,
    recompute_share: one.ShareOption = None,
    offload_share: one.OffloadOption = None,
    tp_overlap: one.OverlapOption = None,
    cp_kind: one.RingOption = None,
    recipe: one.RecipeOption = None,
    lora_rank: one.RankOption = None,
    imbalance: ImbalanceOption = 1.0,
    budget: BudgetOption = None,
    price: PriceOption = None,
    measured: MeasuredOption = None,
    json: inputs.JsonOption = False,
) -> None:
    """One training step taken apart: terms, operations, collectives, memory, days and money.

    Examples:

        roofline explain --model llama-3-70b --gpus 512 --tp 4 --pp 2 --recompute full
        roofline explain --model deepseek-v3 --gpus 2048 --budget 15T --price 2.5
        roofline explain --model llama-3-70b --gpus 8 --tokens 64Ki --recipe qlora --lora-rank 16
        roofline explain --gpus 512 --tp 8 --measured 9.1
    """
    chosen = inputs.machine_of_steps(ctx.params)
    job = _job(ctx.params, chosen)
    total = None if budget is None else inputs.count("--budget", budget)
    brought = outcome(job, budget=total, price=price)
    found = anatomy(job)
    said = None if measured is None else suspects(job, measured)
    if json:
        about = chosen.about() | {"framework": framework, "habits": one.habits(job, framework)}
        output.as_json(_document(about, job, found, brought, said))
        return
    output.say(chosen.line(), one.words(job), one.habits(job, framework))
    _tell(job, found, brought, said)


def _job(params: Mapping[str, Any], chosen: inputs.Chosen) -> Training:
    """The training that the options ask for.

    Raises:
        ValueError: an unknown model or choice, a batch that is no whole number of sequences, a
            layout that cannot be.
    """
    sizes = model_of(params["model"])
    machine = chosen.profile.resized(chosen.cluster.gpus)
    batch = inputs.count("--tokens", params["tokens"]) / params["sequence"]
    if not batch.is_integer():
        near = max(1, round(batch)) * params["sequence"]
        raise ValueError(
            f"--tokens: {params['tokens']!r} is refused; allowed: whole sequences of "
            f"{params['sequence']} tokens; the nearest: {near}"
        )
    runs_on(machine.accelerator, params["precision"])
    layout = one.layout(params, sizes, machine, int(batch), chosen.overlay)
    rates = chosen.overlay or PEAK
    return training(
        sizes, layout, machine, params["precision"], recipe=one.recipe(params), rates=rates
    )


def _tell(job: Training, found: Anatomy, brought: Outcome, said: Suspicion | None) -> None:
    seconds = float(brought.seconds)
    band = brought.wide
    within = (
        " ({} to {})".format(*(show(float(np.asarray(each)), "s") for each in band)) if band else ""
    )
    output.say(
        f"{show(seconds, 's')} a step{within}, MFU {float(brought.mfu):.1%}, "
        f"{show(float(np.asarray(brought.tokens_per_second_per_gpu)))} tokens/s a GPU",
        style="bold",
    )
    output.say(brought.sentence(), *[brought.counting()] * brought.adapted)
    _tell_budget(brought)
    output.table(
        ("term", ">seconds", ">share"),
        [(name, f"{s:.4g}", f"{s / seconds:.1%}") for name, s in _terms(job).items() if s],
    )
    _tell_rows(found)
    _tell_memory(job)
    if said is not None:
        _tell_suspects(said)


def _tell_rows(found: Anatomy) -> None:
    """Operations and collectives, a line each."""
    output.table(
        (
            "operation",
            "in",
            ">FLOP/B",
            ">runs at",
            ">of ceiling",
            "ceiling",
            ">times",
            ">in a step",
        ),
        [
            (
                row.name,
                row.where,
                show(row.intensity) if row.flops else "–",
                show(row.achieved, "FLOP/s") if row.flops else show(row.bandwidth, "B/s"),
                f"{row.reached:.0%}",
                row.ceiling,
                f"{row.times:,.0f}",
                show(row.seconds, "s"),
            )
            for row in found.operations
            if row.seconds
        ],
    )
    if found.collectives:
        output.table(
            ("axis", "what", "collective", ">bytes", ">ranks", ">stride", "slowest tier", ">each",
             ">times", ">exposed"),
            [
                (
                    row.axis, row.what, row.call.op, show(row.nbytes, "B"), f"{row.call.ranks:,.0f}",
                    f"{row.call.stride:,.0f}", row.call.slowest, show(row.call.seconds, "s"),
                    f"{row.times:,.0f}", show(row.exposed, "s"),
                )
                for row in found.collectives
            ],
        )  # fmt: skip


def _tell_budget(brought: Outcome) -> None:
    if brought.budget is None:
        return
    said = [f"{show(float(np.asarray(brought.budget)))} tokens: {show(float(brought.training_seconds), 's')}",
            f"{show(float(brought.gpu_hours))} GPU hours"]  # fmt: skip
    if brought.power is not None:
        said.append(f"at most {show(1e3 * float(brought.kilowatt_hours))}Wh in the GPUs")
    if brought.price is not None:
        said.append(f"{float(brought.money):,.0f} at {brought.price:g} a GPU hour")
    output.say(", ".join(said))


def _tell_memory(job: Training) -> None:
    hbm, total = float(job.cluster.hbm_bytes), float(np.asarray(job.memory.total))
    verdict = "fits" if total <= hbm else "does not fit"
    rows = [
        (name, show(float(np.asarray(each)), "B"))
        for name, each in job.memory.parts.items()
        if np.any(each)
    ]
    title = f"Memory of the fullest stage: {show(total, 'B')} of {show(hbm, 'B')}: {verdict}"
    output.say(title, style="bold")
    output.table(("part", ">bytes"), rows)


def _tell_suspects(said: Suspicion) -> None:
    output.say(said.sentence(), style="bold")
    output.table(
        ("suspect", ">a step", ">explains", "what to look at"),
        [
            (
                each.name,
                show(each.seconds, "s"),
                f"{each.explained:.0%}",
                each.story or f"this term {each.factor:.3g} times as long",
            )
            for each in said.suspects[:10]
        ],
    )


def _terms(job: Training) -> dict[str, float]:
    return {name: float(np.asarray(each)) for name, each in job.time.terms.items()}


def _document(
    about: dict[str, Any], job: Training, found: Anatomy, brought: Outcome, said: Suspicion | None
) -> dict[str, Any]:
    stages = np.arange(float(job.layout.pp))
    by_stage = footprint.footprint(job.dims, job.layout, job.recipe, stages)
    known, rent = brought.budget is not None, brought.price is not None
    band = brought.wide
    return about | {
        "model": job.model.name,
        "precision": job.precision,
        "recipe": job.recipe.about,
        "layout": one.document(job.layout),
        "seconds": brought.seconds,
        "band": None if band is None else {"low": band.low, "high": band.high},
        "error": brought.sentence(),
        "convention": brought.convention,
        "counts": brought.counting(),
        "mfu": brought.mfu,
        "hfu": brought.hfu,
        "tokens_per_s_per_gpu": brought.tokens_per_second_per_gpu,
        "budget": brought.budget,
        "days": brought.training_seconds / DAY if known else None,
        "gpu_hours": brought.gpu_hours if known else None,
        "joules": brought.energy if known and brought.power is not None else None,
        "money": brought.money if known and rent else None,
        "terms": [{"name": name, "seconds": each} for name, each in _terms(job).items()],
        **_rows(found),
        "rest": [asdict(row) for row in found.rest],
        "memory": {
            "total": job.memory.total, "capacity": job.cluster.hbm_bytes,
            "stages": [
                {"part": part, "bytes": np.broadcast_to(each, stages.shape)}
                for part, each in by_stage.parts.items()
            ],
        },
        "measured": None if said is None else _suspicion(said),
    }  # fmt: skip


def _rows(found: Anatomy) -> dict[str, Any]:
    return {
        "operations": [
            {
                "name": row.name, "where": row.where, "kind": row.kind, "term": row.term,
                "flops_forward": row.forward_flops, "flops_backward": row.backward_flops,
                "bytes": row.nbytes, "intensity": row.intensity, "achieved_flops": row.achieved,
                "ceiling": row.ceiling, "of_ceiling": row.reached, "forward": row.forward,
                "backward": row.backward, "times": row.times, "seconds": row.seconds,
            }
            for row in found.operations
        ],
        "collectives": [
            {
                "axis": row.axis, "what": row.what, "op": row.call.op, "bytes": row.nbytes,
                "ranks": row.call.ranks, "stride": row.call.stride, "tiers": row.call.tiers,
                "binding_tier": row.call.slowest, "each": row.call.seconds, "times": row.times,
                "seconds": row.seconds, "exposed": row.exposed, "term": row.term,
            }
            for row in found.collectives
        ],
    }  # fmt: skip


def _suspicion(said: Suspicion) -> dict[str, Any]:
    names = ("name", "kind", "seconds", "explained", "factor", "story")
    return {
        "seconds": said.measured,
        "within": said.within,
        "sentence": said.sentence(),
        "suspects": [{name: getattr(each, name) for name in names} for each in said.suspects],
    }
