"""``roofline export``, ``import`` and ``compare``: launch files written and read, jobs side by side."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from roofline import compare as beside
from roofline.cli import inputs, output
from roofline.cli.asked import (
    Bar,
    BatchOption,
    FrameworkOption,
    GpusOption,
    HeadroomOption,
    ImbalanceOption,
    ModelOption,
    PrecisionOption,
    SequenceOption,
    asked,
    exactly,
    written,
)
from roofline.cli.asked import (
    model as model_of,
)
from roofline.describe import describe
from roofline.export import ALIASES, FORMATS, Description, load, named
from roofline.export.fields import NAMED
from roofline.layout import Layout
from roofline.model import Transformer
from roofline.outcome import outcome
from roofline.planner import HEADROOM, holding
from roofline.training import PEAK, Training
from roofline.units import show

MOST_BYTES = 1_000_000
OF_A_JOB = ("model", "cluster", "gpus", "precision", "framework", "tokens", "sequence")

FormatArgument = Annotated[
    str, typer.Argument(metavar="FORMAT", help=", ".join((*FORMATS, *ALIASES)))
]
LayoutArgument = Annotated[
    str, typer.Argument(metavar="[LAYOUT]", help="As tp=8,pp=4; left out: the best.")
]
LayoutsArgument = Annotated[
    list[str],
    typer.Argument(metavar="LAYOUT...", help="As tp=8,pp=4; also model=, cluster=, gpus= of each."),
]
FileArgument = Annotated[
    str, typer.Argument(metavar="FILE", help="A launch file; - for what is piped in.")
]
AsOption = Annotated[
    str | None, typer.Option("--format", metavar="FORMAT", help="Guessed when left out.")
]
OutputOption = Annotated[
    Path | None, typer.Option("--output", metavar="FILE", help="Instead of standard output.")
]


def export(
    ctx: typer.Context,
    format: FormatArgument,
    layout: LayoutArgument = "",
    model: ModelOption = inputs.DEFAULT_MODEL,
    cluster: inputs.ClusterOption = inputs.DEFAULT_CLUSTER,
    gpus: GpusOption = None,
    rates: inputs.RatesOption = "achievable",
    tokens: BatchOption = "4Mi",
    sequence: SequenceOption = 4096,
    precision: PrecisionOption = "bf16",
    framework: FrameworkOption = "any",
    headroom: HeadroomOption = HEADROOM,
    imbalance: ImbalanceOption = 1.0,
    output_file: OutputOption = None,
) -> None:
    """The launch file of a layout, and nothing else; what it cannot say stands on standard error.

    Example:

        roofline export megatron tp=4,pp=2 --gpus 512 --framework megatron --output train.sh
    """
    form = named(format, "FORMAT")
    output.writable(output_file)
    job = asked(ctx.params)
    bounds = exactly(written(layout)) if layout else {}
    with Bar() as bar:
        found = job.plan(bounds, bar)
    if not found.fitting:
        raise ValueError(str(found).splitlines()[0])
    text = found.export(form)
    told = output.console(stderr=True)
    told.print(describe(found.layout()), soft_wrap=True)
    for note in text.notes:
        told.print(f"note: {note}", soft_wrap=True)
    if output_file is None:
        sys.stdout.write(text)
    else:
        output.save(output_file, text)


def read(
    ctx: typer.Context,
    file: FileArgument,
    format: AsOption = None,
    model: Annotated[
        str | None, typer.Option(help="Where the file states no sizes: a name or a config.json.")
    ] = None,
    cluster: inputs.ClusterOption = inputs.DEFAULT_CLUSTER,
    gpus: Annotated[
        int | None, typer.Option(min=1, help="Where the file leaves their number open.")
    ] = None,
    rates: inputs.RatesOption = "achievable",
    json: inputs.JsonOption = False,
) -> None:
    """What a launch file asks for: its layout, how fast that runs, and what was ignored.

    Example:

        roofline import train.sh --cluster dgx-h100-superpod
    """
    found = load(_text(file), format, gpus)
    chosen = inputs.machine_of_steps({**ctx.params, "gpus": None})
    job, why = _predicted(found, chosen, None if model is None else model_of(model))
    if json:
        output.as_json(_document(found, chosen, job, why))
    else:
        _tell(found, chosen, job, why)
    if why:
        raise typer.Exit(1)


def _tell(found: Description, chosen: inputs.Chosen, job: Training | None, why: str) -> None:
    """What was read, and what it brings."""
    for one in found.ignored:
        if one.misspelt:
            said = f"{one.name} is ignored; the nearest option is {one.misspelt}"
            output.say(said, style="bold red")
    output.say(f"{FORMATS[found.format].title}: {describe(found.layout)}", style="bold")
    if job is None:
        output.say(f"No prediction: {why}")
    else:
        brought = outcome(job)
        fit = "" if _fits(job) else ": does not fit"
        grown = ", grown" if found.layout.gpus > chosen.profile.gpus else ""
        output.say(
            f"{job.model.name}, {job.precision}, {found.layout.gpus:,.0f} GPUs of "
            f"{chosen.profile.name}{grown}: "
            f"{show(float(brought.seconds), 's')} a step, MFU {float(brought.mfu):.1%}, "
            f"{show(float(brought.tokens_per_second_per_gpu))} tokens/s a GPU, "
            f"{show(float(job.memory.total), 'B')} of {show(job.cluster.hbm_bytes, 'B')}{fit}"
        )
        output.say(output.held(brought))
    output.say(*(f"assumed: {line}" for line in found.assumed), style="dim")
    if found.ignored:
        rows = [(one.name, str(one.value), one.why) for one in found.ignored]
        output.table(("ignored", "value", "why"), rows)


def _fits(job: Training) -> bool:
    return float(job.memory.total) <= job.cluster.hbm_bytes


def _predicted(
    found: Description, chosen: inputs.Chosen, sizes: Transformer | None
) -> tuple[Training | None, str]:
    """The job on the machine, grown to hold it; or why there is none."""
    if sizes is None and found.model is None:
        return None, f"the file states {_left_out(found)}; allowed: --model NAME"
    where = chosen.profile
    if found.layout.gpus > where.gpus:
        where = holding(where, int(found.layout.gpus))
    try:
        return found.training(where, sizes, chosen.overlay or PEAK), ""
    except ValueError as error:
        return None, f"its layout cannot be; {error}"


SIZES = {
    "layers": "number of layers",
    "d_model": "width",
    "d_ff": "feed-forward width",
    "heads": "number of attention heads",
    "kv_heads": "number of key and value heads",
    "head_dim": "width of a head",
    "vocab": "vocabulary",
}


def _left_out(found: Description) -> str:
    """Which sizes of the model are not there, after "the file states"."""
    if not found.lacking:
        return "no sizes of a model"
    return f"no {', no '.join(SIZES[name] for name in found.lacking)}, but other sizes of the model"


def _text(file: str) -> str:
    """The text of a file, or what is piped in.

    Raises:
        ValueError: a file that cannot be read, is too large, or is no text.
    """
    if file == "-":
        return sys.stdin.read(MOST_BYTES)
    try:
        data = Path(file).read_bytes()
        if len(data) > MOST_BYTES:
            raise ValueError(f"FILE: {file} has {len(data):,} bytes; allowed: {MOST_BYTES:,}")
        return data.decode("utf-8")
    except OSError as error:
        raise ValueError(f"FILE: {file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"FILE: {file} is not text in UTF-8") from None


def _document(
    found: Description, chosen: inputs.Chosen, job: Training | None, why: str
) -> dict[str, Any]:
    brought = None if job is None else outcome(job)
    return chosen.about() | {
        "format": found.format,
        "model": found.model.name if job is None and found.model else job and job.model.name,
        "gpus": found.layout.gpus,
        "precision": found.precision,
        "layout": layout_of(found.layout),
        "seconds": brought and brought.seconds,
        "mfu": brought and brought.mfu,
        "tokens_per_s_per_gpu": brought and brought.tokens_per_second_per_gpu,
        **(output.known(brought) if brought else {"basis": None, "band_s": None}),
        "memory_bytes": job and job.memory.total,
        "fits": job and _fits(job),
        "terms": [{"name": n, "seconds": s} for n, s in job.time.terms.items()] if job else [],
        "ignored": [one._asdict() for one in found.ignored],
        "assumed": found.assumed,
        "refused": why or None,
    }


def layout_of(layout: Layout) -> dict[str, Any]:
    """Every field, choices by their names."""
    found = {one.name: getattr(layout, one.name) for one in fields(Layout)}
    return found | {name: list(rows)[int(found[name])] for name, rows in NAMED.items()}


def compare(
    ctx: typer.Context,
    layouts: LayoutsArgument,
    model: ModelOption = inputs.DEFAULT_MODEL,
    cluster: inputs.ClusterOption = inputs.DEFAULT_CLUSTER,
    gpus: GpusOption = None,
    rates: inputs.RatesOption = "achievable",
    tokens: BatchOption = "4Mi",
    sequence: SequenceOption = 4096,
    precision: PrecisionOption = "bf16",
    framework: FrameworkOption = "any",
    headroom: HeadroomOption = HEADROOM,
    imbalance: ImbalanceOption = 1.0,
    json: inputs.JsonOption = False,
) -> None:
    """Two or more layouts, clusters or models side by side, term by term.

    Examples:

        roofline compare tp=8,pp=8 tp=4,pp=4,cp=2 --gpus 512 --sequence 8192
        roofline compare cluster=dgx-h100-superpod cluster=dgx-a100-superpod --gpus 64
    """
    with Bar() as bar:
        found = _compared(layouts, ctx.params, bar)
    if json:
        output.as_json(
            {
                "jobs": [
                    {"name": name, "layout": layout_of(job.layout), "text": describe(job.layout)}
                    | {"model": job.model.name, "cluster": job.cluster.name}
                    | output.known(brought)
                    for name, job, brought in zip(
                        found.names, found.jobs, found.outcomes, strict=True
                    )
                ],
                "seconds": found.seconds,
                "mfu": found.mfu,
                "tokens_per_s_per_gpu": found.tokens_per_second_per_gpu,
                "terms": [{"name": n, "seconds": row} for n, row in found.terms.items()],
                "memory_bytes": found.memory,
                "memory": [{"part": n, "bytes": row} for n, row in found.parts.items()],
                "sentences": found.sentences,
                "footing": found.footing or None,
            }
        )
        return
    output.table(("", *found.names), found.text_rows())
    output.say(*found.sentences, *([found.footing] if found.footing else []))
    for name, brought in zip(found.names, found.outcomes, strict=True):
        output.say(f"{name}: {output.held(brought)}", style="dim")


def _compared(layouts: list[str], params: Mapping[str, Any], bar: Bar) -> beside.Comparison:
    """The best of each text; all planned at peak rates where one of them has no other."""
    found = beside.compare([_one(text, params, bar) for text in layouts], layouts)
    if not found.footing:
        return found
    at_peak = {**params, "rates": PEAK}
    again = beside.compare([_one(text, at_peak, bar) for text in layouts], layouts)
    return replace(again, footing=found.footing)


def _one(text: str, params: Mapping[str, Any], bar: Bar) -> Training:
    """The best of one text; fields of the job in it stand for the options.

    Raises:
        ValueError: text that is no layout, or one that does not fit.
    """
    given = written(text, dict.fromkeys(OF_A_JOB))
    own: dict[str, Any] = {name: given.pop(name) for name in OF_A_JOB if name in given}
    for name in ("gpus", "sequence"):
        if name in own:
            own[name] = int(np.asarray(inputs.count(f"--{name}", own[name])))
    found = asked({**params, **own}).plan(exactly(given), bar)
    if found.best is None:
        raise ValueError(f"LAYOUT: {text!r} is refused: {str(found).splitlines()[0]}")
    return found.best
