"""One layout as options: what is left out is the usual, or, of all, the smallest layout that fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

import typer

from hardware_profiles import Calibration, Cluster
from roofline import plan_inputs, recipes
from roofline.cli import output
from roofline.first_layout import first
from roofline.fitting import check
from roofline.layout import (
    FLASH,
    ORDER,
    OVERLAP,
    RECOMPUTE,
    RING,
    SCHEDULE,
    ZERO_KIND,
    Layout,
    code,
)
from roofline.limits import FRAMEWORKS, Framework, beyond
from roofline.model import Transformer
from roofline.names import choose
from roofline.planner import usual
from roofline.space import cut_evenly
from roofline.training import Training, kept_of

CHOICES = {
    "schedule": SCHEDULE,
    "recompute": RECOMPUTE,
    "tp_overlap": OVERLAP,
    "cp_kind": RING,
    "order": ORDER,
    "zero_kind": ZERO_KIND,
}
NUMBERS = (
    *("tp", "cp", "pp", "ep", "etp", "chunks", "micro_batch", "zero", "shard"),
    *("sequence_parallel", "recompute_share", "offload_share"),
)


def _layout(**about: Any) -> Any:
    return typer.Option(rich_help_panel="Layout; all left out: the smallest that fits", **about)


def _named(rows: Mapping[str, Any], about: str = "") -> Any:
    return _layout(metavar="NAME", help=about + ", ".join(rows))


def _trained(**about: Any) -> Any:
    return typer.Option(rich_help_panel="What is trained, and kept of it", **about)


Degree = Annotated[int | None, _layout(min=1)]
ZeroOption = Annotated[int | None, _layout(min=0, max=3, help="ZeRO stage; 3 as FSDP.")]
ZeroKindOption = Annotated[str | None, _named(ZERO_KIND, "How ZeRO-1 reduces: ")]
ShardOption = Annotated[int | None, _layout(min=0, help="Ranks that ZeRO-3 shards over; 0: all.")]
OrderOption = Annotated[str | None, _named(ORDER, "Of the ranks, innermost first: ")]
SplitOption = Annotated[
    bool | None, _layout(help="Token-wise work is split over tensor-parallel ranks too.")
]
ScheduleOption = Annotated[str | None, _named(SCHEDULE)]
RecomputeOption = Annotated[str | None, _named(RECOMPUTE)]
ShareOption = Annotated[float | None, _layout(help="Of the layers that are recomputed: 0 to 1.")]
OffloadOption = Annotated[float | None, _layout(help="Of the activations, on the host: 0 to 1.")]
OverlapOption = Annotated[str | None, _named(OVERLAP)]
RingOption = Annotated[str | None, _named(RING)]
RecipeOption = Annotated[
    str | None, _trained(metavar="NAME", help=f"By precision; or {', '.join(recipes.RECIPES)}.")
]
RankOption = Annotated[
    int | None,
    _trained(
        min=0, help=f"Of LoRA's adapters; {recipes.RANK} with --recipe lora or qlora; 0: none."
    ),
]


def recipe(params: Mapping[str, Any]) -> str | None:
    """What is kept, as the options or the framework's habits have it; None: by precision."""
    if params["recipe"] or params["lora_rank"]:
        stated: str | None = params["recipe"]
        return stated
    return _framework(params).recipe(params["precision"])


def _framework(params: Mapping[str, Any]) -> Framework:
    return choose("--framework", params["framework"], FRAMEWORKS)


def layout(
    params: Mapping[str, Any],
    model: Transformer,
    machine: Cluster,
    batch: int,
    overlay: Calibration | None,
) -> Layout:
    """The layout that the options ask for, with the framework's habits as a plan has them.

    Raises:
        ValueError: an unknown choice, or a layout that the framework, the model or the machine
            cannot have.
    """
    framework = _framework(params)
    base = usual(model, framework, params["precision"], recipe(params), overlay)
    given: dict[str, Any] = {
        name: params[name] for name in NUMBERS if params[name] is not None
    } | {
        name: code(name, rows, params[name])
        for name, rows in CHOICES.items()
        if params[name] is not None
    }  # fmt: skip
    size = {"gpus": machine.gpus, "batch": batch, "sequence": params["sequence"]}
    if given:
        split = float(given.get("tp", 1) > 1)
        found = replace(base, **{"sequence_parallel": split, **framework.only(), **given, **size})
    else:
        least = first(model, machine, **size, recipe=_kept(params)).layout
        found = framework.cut_as(least, base)
    for name in framework.can:
        beyond(framework, name, [float(getattr(found, name))])
    even = float(cut_evenly(model, float(found.pp * found.chunks)))
    uneven = plan_inputs.imbalance(params["imbalance"], model)
    found = replace(found, even=even, lora_rank=params["lora_rank"] or 0, imbalance=uneven)
    check(model, found, machine)
    return found


def _kept(params: Mapping[str, Any]) -> recipes.Recipe:
    """What memory the smallest layout has to hold; a rank by itself is LoRA's."""
    rank = params["lora_rank"]
    row = kept_of(recipe(params), params["precision"], bool(rank))
    return replace(row, rank=rank) if rank and row.adapted else row


def habits(job: Training, framework: str) -> str:
    """What counts and was not typed: the framework's habits, for people."""
    layout = job.layout
    fused = [
        name
        for name, on in (("norms and activations", layout.fused), ("loss", layout.fused_loss))
        if on
    ]
    said = [
        f"attention {list(FLASH)[int(layout.attention)]}",
        f"fused {' and '.join(fused) or 'nothing'}",
        f"tensor-parallel overlap {word(layout, 'tp_overlap')}",
        f"gradients reduced in {layout.gradient_bytes:g} B",
        f"kept: {job.recipe.about}",
    ]
    return f"Habits of {framework}: {', '.join(said)}"


def words(job: Training) -> str:
    """Model, precision and layout in a line; what is usual goes without saying, degrees apart."""
    layout = job.layout
    axes = ("tp", "cp", "ep", *["etp"] * bool(layout.etp > 1), "pp")
    degrees = (f"{axis.upper()} {getattr(layout, axis):g}" for axis in axes)
    named = {name: word(layout, name) for name in CHOICES}
    said = [
        f"{job.model.name}, {job.precision}: {', '.join(degrees)}, DP {layout.dp:g}, ZeRO-"
        f"{layout.zero:g}, {layout.microbatches:g} micro-batches of {layout.micro_batch:g} × "
        f"{layout.sequence:g} tokens, {named['schedule']} with "
        f"{output.counted(layout.chunks, 'chunk')}, recompute {named['recompute']}"
    ]
    if layout.recompute and layout.recompute_share < 1:
        said.append(f"in {layout.recompute_share:.0%} of the layers")
    if layout.offload_share:
        said.append(f"{layout.offload_share:.0%} of the activations on the host")
    if layout.busiest > 1:
        said.append(f"busiest expert rank {layout.busiest:g} times the mean")
    if layout.order:
        said.append(f"order {named['order']}")
    if layout.zero_kind:
        said.append(f"gradients by {named['zero_kind']}")
    if job.recipe.adapted:
        said.append(f"LoRA of rank {layout.lora_rank:g}, {job.recipe.about}")
    return ", ".join(said)


def word(layout: Layout, name: str) -> str:
    """The name of a choice."""
    return list(CHOICES[name])[int(getattr(layout, name))]


def document(layout: Layout) -> dict[str, Any]:
    """What the options set, and what follows, for JSON."""
    names = ("gpus", *NUMBERS, "lora_rank", "imbalance", "batch", "sequence", "dp", "microbatches")
    return {name: getattr(layout, name) for name in names} | {
        name: word(layout, name) for name in CHOICES
    }
