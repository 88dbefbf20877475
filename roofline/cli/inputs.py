"""What people type: options shared by the commands, and the objects that they stand for.

Every refusal is a ``ValueError`` of one line that names the option, the value, what is allowed and
the nearest right choice; ``cli.Commands`` prints it. A command declares its options in its
signature and hands all of them on as ``ctx.params``, by the names of its parameters.
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
from roofline.model import Transformer
from roofline.models.config import from_config
from roofline.planner import resized
from roofline.presets import preset
from roofline.units import parse
from roofline.workload import Workload

DEFAULT_CLUSTER = "dgx-h100-superpod"
DEFAULT_MODEL = "llama-3-70b"
DEFAULT_TOKENS = "4M"
MOST_GPUS = 10_000_000
MOST_DEGREES = 4096

# Options of a layer, and the field of ``Workload`` that each sets.
LAYER = {
    "d_model": "d_model",
    "d_ff": "d_ff",
    "matrices": "matrices",
    "experts": "experts",
    "top_k": "experts_per_token",
    "layers": "layers",
    "weight_bytes": "weight_bytes",
    "gradient_bytes": "gradient_bytes",
    "activation_bytes": "activation_bytes",
}

SENT = ("weight_bytes", "gradient_bytes", "activation_bytes")


def _machine(**about: Any) -> Any:
    return typer.Option(rich_help_panel="Machine", **about)


def _layer(**about: Any) -> Any:
    return typer.Option(rich_help_panel="Layer and batch", **about)


ClusterOption = Annotated[str, _machine(help="A name (hardware list) or a YAML file.")]
GpusOption = Annotated[int | None, _machine(help="Grow or cut the outermost tier to N GPUs.")]
RatesOption = Annotated[
    str,
    _machine(
        metavar="peak|achievable|NAME",
        help="Datasheet; or calibrated, by the overlay for this GPU or one by name or file.",
    ),
]
DtypeOption = Annotated[str, _machine(help="Of the matmuls.")]
ModelOption = Annotated[
    str | None,
    _layer(
        help=f"A published model ({DEFAULT_MODEL}), or the path of a config.json; "
        "the options below change it."
    ),
]
TokensOption = Annotated[str, _layer(help="Tokens in the whole batch: 4e6, 4M, 4Mi.")]
WidthOption = Annotated[str | None, _layer(help="D, width of the model.")]
ColumnsOption = Annotated[str | None, _layer(help="F, feed-forward width of one expert.")]
MatricesOption = Annotated[int | None, _layer(help="2, or 3 for a gated layer; no other.")]
ExpertsOption = Annotated[int | None, _layer(help="E; 1 is dense.")]
TopKOption = Annotated[int | None, _layer(help="k, experts per token.")]
LayersOption = Annotated[int | None, _layer(help="L.")]
ElementOption = Annotated[
    float | None, _layer(help="Per element of these alone; --bytes-per-element when left out.")
]
BytesOption = Annotated[
    float | None,
    _layer(help="As weights, gradients and activations travel: 2 (bf16), whatever --dtype is."),
]
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
        rest = f" (and {len(more)} more: see hardware check)" if more else ""
        raise ValueError(f"{option}: {first}{rest}") from None


def count(option: str, text: str) -> float:
    """A number of something that a person wrote: 4e6, 4M or 4Mi.

    Raises:
        ValueError: no number, or less than 1.

    >>> count("--tokens", "4Mi")
    4194304.0
    """
    allowed = "allowed: 1 and more, such as 4e6, 4M or 4Mi"
    try:
        value = parse(f"{text}B", "B")
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 1):
        raise ValueError(f"{option}: {text!r} is refused; {allowed}")
    return value


def nbytes(option: str, text: str) -> float:
    """Bytes that a person wrote: 1GB, 64MiB or 1e9. [B]

    Raises:
        ValueError: no number of bytes, or a negative one.

    >>> nbytes("--bytes", "64MiB")
    67108864.0
    """
    with naming(option):
        value = parse(text, "B")
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{option}: {text!r} is refused; allowed: 0 B and more, such as 1GB")
    return value


def whole(option: str, value: int, least: int = 1, most: int = MOST_GPUS) -> int:
    """``value`` when it lies between ``least`` and ``most``.

    Raises:
        ValueError: when it does not.
    """
    if not least <= value <= most:
        raise ValueError(f"{option}: {value} is refused; allowed: {least} to {most:,}")
    return value


def degrees(texts: Sequence[str]) -> list[int]:
    """Degrees as written: 8, 1:1024 (doubling) or 8:64:8 (first, last and step).

    Raises:
        ValueError: not whole, below 1, or too many.

    >>> degrees(["1:16", "24:40:8"])
    [1, 2, 4, 8, 16, 24, 32, 40]
    """
    found = [degree for text in texts for degree in _range(text)]
    if len(found) > MOST_DEGREES:
        raise ValueError(f"--degree: {len(found)} are refused; allowed: {MOST_DEGREES} at once")
    return found


def _range(text: str) -> Sequence[int]:
    parts = text.split(":")
    if len(parts) > 3 or not all(re.fullmatch(r"[0-9]{1,9}", part) for part in parts):
        allowed = "allowed: 8, 1:1024 (doubling) or 8:64:8 (first, last, step)"
        raise ValueError(f"--degree: {text!r} is refused; {allowed}")
    first, *rest = (whole("--degree", int(part)) for part in parts)
    last = rest[0] if rest else first
    if last < first:
        raise ValueError(f"--degree: {text!r} runs backwards; the nearest is '{last}:{first}'")
    if len(rest) < 2:
        return [first << i for i in range((last // first).bit_length())]
    run = range(first, last + 1, rest[1])
    return run[: MOST_DEGREES + 1]


@dataclass(frozen=True, slots=True)
class Chosen:
    """A cluster as the options ask for it."""

    cluster: hw.Cluster  # of the GPUs and rates asked for
    profile: hw.Cluster  # as its file has it
    overlay: hw.Calibration | None

    def about(self, dtype: str | None = None) -> dict[str, Any]:
        """The machine, for JSON."""
        return {
            "cluster": self.profile.name,
            "accelerator": self.profile.accelerator.name,
            "gpus": self.cluster.gpus,
            "tiers": [tier.name for tier in self.cluster.tiers],
            "rates": "achievable" if self.overlay else "peak",
            "calibration": self.overlay.name if self.overlay else None,
        } | ({"dtype": dtype, "flops": self.cluster.flops(dtype)} if dtype else {})

    def line(self) -> str:
        """The machine, for people."""
        rates = f"achievable by {self.overlay.name}" if self.overlay else "peak"
        gpus, own, chip = self.cluster.gpus, self.profile.gpus, self.profile.accelerator.title
        changed = f"{self.profile.name}, {'grown' if gpus > own else 'cut'}"
        return (
            f"{gpus:,} × {chip} ({self.profile.title if gpus == own else changed}), {rates} rates"
        )


def machine(params: Mapping[str, Any]) -> Chosen:
    """The cluster that --cluster, --gpus, --rates and --dtype ask for.

    Raises:
        ValueError: unknown or broken profiles, GPUs that fill no whole units, no such overlay.
    """
    with naming("--cluster"):
        profile = hw.cluster(params["cluster"])
    cluster = profile
    if params["gpus"] is not None:
        with naming("--gpus"):
            cluster = resized(profile, whole("--gpus", params["gpus"]))
    overlay = _overlay(params["rates"], profile)
    if overlay:
        with naming("--rates"):
            cluster = hw.calibrate(cluster, overlay)
    if "dtype" in params:
        with naming("--dtype"):
            cluster.flops(params["dtype"])
    return Chosen(cluster, profile, overlay)


def machine_of_steps(params: Mapping[str, Any]) -> Chosen:
    """The same for whole steps, which have calibrations of their own: at peak where there is none.

    Raises:
        ValueError: as ``machine``.
    """
    if params["rates"] == "achievable":
        with naming("--cluster"):
            chip = hw.cluster(params["cluster"]).accelerator.name
        found = for_accelerator(chip)
        if found is None or found.step is None:
            return machine({**params, "rates": "peak"})
    return machine(params)


def _overlay(rates: str, profile: hw.Cluster) -> hw.Calibration | None:
    if rates == "peak":
        return None
    if rates != "achievable":
        with naming("--rates"):
            return hw.calibration(rates)
    found = for_accelerator(profile.accelerator.name)
    if found is None:
        chip = profile.accelerator.name
        raise ValueError(f"--rates: nobody has calibrated {chip}; allowed: peak, or an overlay")
    return found


def model(text: str) -> Transformer:
    """A published model by its name, or one of a configuration by its path.

    Raises:
        ValueError: no such model or file, or a configuration that describes none.
    """
    with naming("--model"):
        return from_config(text) if "/" in text or text.endswith(".json") else preset(text).model


def workload(params: Mapping[str, Any]) -> tuple[str | None, Workload]:
    """The model's name, unless it is a layer of one's own, and the layer and batch that the options ask for.

    Raises:
        ValueError: an unknown model, sizes below 1, or a layer of one's own with a size missing.
    """
    name, tokens = params["model"], count("--tokens", params["tokens"])
    travel = params.get("bytes_per_element")
    changed = {} if travel is None else dict.fromkeys(SENT, _size("--bytes-per-element", travel))
    changed |= {
        field: _size(f"--{option.replace('_', '-')}", params[option])
        for option, field in LAYER.items()
        if params.get(option) is not None
    }
    own = name is None and changed.keys() & {"d_model", "d_ff"}
    if own and not {"d_model", "d_ff"} <= changed.keys():
        given = "--d-model" if "d_model" in changed else "--d-ff"
        missing = "--d-ff" if "d_model" in changed else "--d-model"
        raise ValueError(f"{missing}: missing; a layer of your own needs it beside {given}")
    if own:
        work = Workload(tokens, changed["d_model"], changed["d_ff"])
    else:
        name = name or DEFAULT_MODEL
        found = model(name)
        name, work = found.name, found.workload(tokens)
    work = replace(work, **changed, dtype=params["dtype"])
    return (None if own else name), work


def _size(option: str, value: str | float) -> Any:
    if isinstance(value, str):
        return count(option, value)
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{option}: {value:g} is refused; allowed: above 0")
    return value


def about_work(name: str | None, work: Workload) -> dict[str, Any]:
    """The layer and batch, for JSON."""
    fields = ("tokens", "d_model", "d_ff", "matrices", "experts", "experts_per_token", "layers")
    return {"model": name} | {field: getattr(work, field) for field in (*fields, *SENT)}
