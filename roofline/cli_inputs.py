"""What people type: options shared by the commands, and the objects that they stand for.

Every refusal is a ``ValueError`` of one line that names the option, the value, what is allowed and
the nearest right choice; ``cli.Commands`` prints it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import typer

import hardware_profiles as hw
from hardware_profiles.calibration import for_accelerator
from roofline import presets
from roofline.units import parse
from roofline.workload import Workload

DEFAULT_CLUSTER = "dgx-h100-superpod"
DEFAULT_MODEL = "llama-3-70b"
MOST_GPUS = 10_000_000
MOST_DEGREES = 4096

_MACHINE, _LAYER = "Machine", "Layer and batch"

ClusterOption = Annotated[
    str, typer.Option(help="Name in the catalogue, or a YAML file.", rich_help_panel=_MACHINE)
]
GpusOption = Annotated[
    int | None,
    typer.Option(help="Grow or cut the outermost tier to N GPUs.", rich_help_panel=_MACHINE),
]
RatesOption = Annotated[
    str,
    typer.Option(
        metavar="peak|achievable|NAME",
        help="Datasheet, or as calibrated: by the overlay for this GPU, or one by name or file.",
        rich_help_panel=_MACHINE,
    ),
]
DtypeOption = Annotated[str, typer.Option(help="Of the matmuls.", rich_help_panel=_MACHINE)]
ModelOption = Annotated[
    str | None, typer.Option(help="A published model's sizes.", rich_help_panel=_LAYER)
]
TokensOption = Annotated[
    str,
    typer.Option(help="Tokens in the whole batch: 4e6, 4M or 4Mi.", rich_help_panel=_LAYER),
]


def _layer(kind: Any, help: str) -> Any:
    return Annotated[kind, typer.Option(help=help, rich_help_panel=_LAYER)]


DModelOption = _layer(str | None, "D, width of the model.")
DFfOption = _layer(str | None, "F, width of the feed-forward layer, of one expert.")
MatricesOption = _layer(int | None, "2, or 3 for a gated layer.")
ExpertsOption = _layer(int | None, "E; 1 is dense.")
TopKOption = _layer(int | None, "k, experts per token.")
LayersOption = _layer(int | None, "L.")
BytesOption = _layer(float | None, "Per element; 2 for bf16.")
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document, in SI units.")]
FormOption = Annotated[
    Literal["precise", "rough"] | None,
    typer.Option(help="With the (d-1)/d of every tier, or as on paper."),
]
InNetworkOption = Annotated[
    Literal["off", "theory", "measured"] | None,
    typer.Option(help="Switches that add (SHARP), where a tier has them."),
]


@contextmanager
def naming(option: str) -> Iterator[None]:
    """Put ``option`` before a refusal that does not begin with the name of a field."""
    try:
        yield
    except ValueError as error:
        first, *more = str(error).splitlines() or [""]
        if re.match(r"-?-?[a-z_]+: ", first):
            raise
        rest = f" (and {len(more)} more: python -m roofline hardware check FILE)" if more else ""
        raise ValueError(f"{option}: {first}{rest}") from None


def count(option: str, text: str, least: float = 1.0) -> float:
    """A number of something that a person wrote: 4e6, 4M or 4Mi.

    Raises:
        ValueError: no number, or less than ``least``.

    >>> count("--tokens", "4Mi")
    4194304.0
    """
    try:
        value = parse(f"{text}B", "B")
    except ValueError:
        example = "allowed: a number such as 4e6, 4M or 4Mi"
        raise ValueError(f"{option}: {text!r} is refused; {example}") from None
    return _at_least(option, text, value, least)


def nbytes(option: str, text: str) -> float:
    """Bytes that a person wrote: 1GB, 64MiB or 1e9. [B]

    Raises:
        ValueError: no number of bytes, or a negative one.
    """
    with naming(option):
        value = parse(text, "B")
    return _at_least(option, text, value, 0.0)


def _at_least(option: str, text: str, value: float, least: float) -> float:
    if not math.isfinite(value) or value < least:
        raise ValueError(f"{option}: {text!r} is refused; allowed: {least:g} and more")
    return value


def degrees(texts: Sequence[str]) -> list[int]:
    """Degrees as written: 8, 1:1024 (doubling) or 8:64:8 (first, last and step).

    Raises:
        ValueError: not whole, below 1, or too many.

    >>> degrees(["1:16", "24:40:8"])
    [1, 2, 4, 8, 16, 24, 32, 40]
    """
    found: list[int] = []
    for text in texts:
        parts = [_whole("--degree", part) for part in text.split(":")]
        first, last, step = (*parts, parts[0])[:2] + (parts[2:] or [0])[:1]  # type: ignore[misc]
        if len(parts) > 3 or last < first:
            allowed = "allowed: 8, 1:1024 (doubling) or 8:64:8 (first, last, step)"
            raise ValueError(f"--degree: {text!r} is refused; {allowed}")
        found += _stepped(first, last, step)
        if len(found) > MOST_DEGREES:
            raise ValueError(f"--degree: {text!r} is refused; allowed: {MOST_DEGREES} at once")
    return found
