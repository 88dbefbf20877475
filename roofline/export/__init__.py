"""Launch files: a job written for the framework that runs it, and read back from what was pasted.

    export(job, "megatron")        text; ``notes`` lists what the format cannot say
    load(text)                     model, layout and precision; ``ignored`` lists the rest

A format is a row of ``FORMATS``: rows that pair our fields with its options, a writer and a reader.
What a file cannot say is found by reading it back: every field that has an effect and comes back
with another value is a note.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from hardware_profiles import Calibration, Cluster
from roofline.constraints import misfits
from roofline.dims import Dims
from roofline.export import bridge, deepspeed, megatron, nanotron, plain, torchtitan, trace
from roofline.export.fields import Fields, differences, flat, lacking, settled, without_moot
from roofline.export.fields import layout as layout_of
from roofline.export.fields import model as model_of
from roofline.export.guess import guess
from roofline.export.rows import Ignored, Options, leftovers
from roofline.layout import Layout
from roofline.model import Transformer
from roofline.names import choose
from roofline.recipes import Recipe
from roofline.training import ACHIEVABLE, Training, training

__all__ = [
    "ALIASES",
    "FORMATS",
    "Description",
    "Export",
    "Format",
    "Ignored",
    "export",
    "load",
    "named",
]


@dataclass(frozen=True, slots=True)
class Format:
    """One framework's file."""

    title: str
    suffix: str  # of a file
    language: str  # for highlighting
    write: Callable[[Fields, Sequence[str]], str] | None
    read: Callable[[str, int | None], tuple[Fields, Options]] | None
    elsewhere: Mapping[str, str] = field(default_factory=dict)  # of the layout, where it stands


FORMATS = {
    "megatron": Format("Megatron-LM arguments", ".sh", "bash", megatron.write, megatron.read_text),
    "torchtitan": Format(
        "torchtitan TOML", ".toml", "toml", torchtitan.write, torchtitan.read_text
    ),
    "deepspeed": Format(
        "DeepSpeed JSON", ".json", "json", deepspeed.write, deepspeed.read_text, deepspeed.ELSEWHERE
    ),
    "bridge": Format("Megatron-Bridge overrides", ".sh", "bash", bridge.write, bridge.read_text),
    "nanotron": Format("nanotron YAML", ".yaml", "yaml", nanotron.write, nanotron.read_text),
    "plain": Format("Plain JSON", ".json", "json", plain.write, plain.read_text),
    "trace": Format("Chrome trace of the predicted step", ".json", "json", None, None),
}


ALIASES = {"json": "plain", "nemo": "bridge"}


def named(format: str, field: str = "format") -> str:
    """The name in ``FORMATS`` of a format, or of another word for it.

    Raises:
        ValueError: an unknown format, naming ``field`` and the nearest.

    >>> named("json"), named("megatron")
    ('plain', 'megatron')
    """
    name = ALIASES.get(format, format)
    choose(field, name, FORMATS)
    return name


class Export(str):
    """The text of an export, with what it could not say."""

    notes: tuple[str, ...]
    row: Format

    def __new__(cls, text: str, notes: Sequence[str], row: Format) -> Export:
        """``text`` with its notes and the row of ``FORMATS`` that wrote it."""
        made = super().__new__(cls, text)
        made.notes, made.row = tuple(notes), row
        return made


@dataclass(frozen=True, slots=True)
class Description:
    """A job as a file describes it."""

    format: str
    model: Transformer | None  # None where the file does not state its sizes
    layout: Layout
    precision: str
    recipe: str | Recipe
    ignored: tuple[Ignored, ...] = ()  # options that change nothing here
    assumed: tuple[str, ...] = ()  # what the file leaves open
    lacking: tuple[str, ...] = ()  # sizes of the model that it leaves out, where it states others

    @property
    def problems(self) -> list[str]:
        """Constraints that the layout breaks."""
        if self.model is None:
            return []
        broken = misfits(Dims.of(self.model), self.layout)
        return [name for name, fails in broken.items() if bool(fails)]

    def training(
        self,
        cluster: Cluster,
        model: Transformer | None = None,
        rates: str | Calibration = ACHIEVABLE,
    ) -> Training:
        """The job on a cluster.

        Raises:
            ValueError: where neither the file nor the caller gives a model.
        """
        sizes = model or self.model
        if sizes is None:
            title = FORMATS[self.format].title
            raise ValueError(f"model: the {title} do not state its sizes; allowed: a Transformer")
        kept = self.recipe
        return training(sizes, self.layout, cluster, self.precision, recipe=kept, rates=rates)


def export(job: Training, format: str) -> Export:
    """A job as the text of a file; what the format cannot say is in ``notes``.

    Notes stand in the text as well where the format has comments.

    Raises:
        ValueError: an unknown format, naming the nearest; a column of layouts; for a trace, a
            schedule that does not work for the pipeline.
    """
    row = FORMATS[named(format)]
    fields = flat(job)
    if row.write is None or row.read is None:
        return Export(trace.write(job), (), row)
    said, _ = row.read(row.write(fields, ()), None)
    notes = _notes(fields, without_moot(said), row)
    return Export(row.write(fields, notes), notes, row)


def _notes(meant: Fields, said: Fields, row: Format) -> list[str]:
    about = []
    if "model.layers" not in said:
        about = ["model: its sizes have no options in this file"]
        sizes = {name: value for name, value in settled(meant).items() if name.startswith("model.")}
        said = said | sizes | {name: meant[name] for name in meant if name.startswith("model.")}
    for path, (value, other) in differences(meant, said).items():
        name = path.removeprefix("layout.")
        stated = row.elsewhere.get(name)
        where = f"; state it in {stated}" if stated else f", which means {_short(other)}"
        about.append(f"{name} = {_short(value)} is not in this file{where}")
    return about


def _short(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, float):
        return f"{value:.4g}"
    return "a recipe of its own" if isinstance(value, Recipe) else str(value)


def load(text: str, format: str | None = None, gpus: int | None = None) -> Description:
    """The job that a file or a pasted command describes.

    Args:
        format: a name of ``FORMATS``; guessed from the text where None.
        gpus: how many there are, for a text that leaves it open.

    Raises:
        ValueError: an unknown format, text that is not of it, an option whose value cannot be, or
            options that contradict each other; the message names option, value and what is allowed.
    """
    name = named(format or guess(text))
    row = FORMATS[name]
    if row.read is None:
        raise ValueError(f"format: {name!r} cannot be read; allowed: {', '.join(_readable())}")
    fields, options = row.read(text, gpus)
    if "layout.sequence" not in fields:
        options.assumed.append(f"sequence = {Layout(1).sequence} tokens: not stated")
    if row.read is not plain.read_text:
        fields = without_moot(fields)  # as Layout has them: they change nothing
    layout = layout_of(fields)
    if gpus is not None and layout.gpus != gpus:
        own = f"the file's own numbers come to {layout.gpus:,} GPUs"
        options.ignored.append(Ignored("gpus", gpus, own))
    return Description(
        format=name,
        model=model_of(fields),
        layout=layout,
        precision=str(fields["precision"]),
        recipe=fields["recipe"],
        ignored=leftovers(options),
        assumed=tuple(options.assumed),
        lacking=lacking(fields),
    )


def _readable() -> list[str]:
    return [name for name, row in FORMATS.items() if row.read]
