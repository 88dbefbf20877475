"""``roofline strategies``: T_math against T_comms of each way to spread a layer over GPUs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import typer
from numpy.typing import NDArray

from roofline.bound import Bound, busy, crossings
from roofline.cli import inputs, output, settings
from roofline.machine import Machine
from roofline.names import choose
from roofline.strategies import STRATEGIES, Strategy
from roofline.strategies.sweeps import degrees
from roofline.units import show
from roofline.workload import Workload

StrategyOption = Annotated[
    str | None, typer.Option(metavar="NAME", help=f"One of {', '.join(STRATEGIES)}; or all.")
]
DegreeOption = Annotated[
    list[str] | None,
    typer.Option(metavar="N|A:B|A:B:STEP", help="8; 1:1024 doubles; 8:64:8 steps. Repeatable."),
]
PhaseOption = Annotated[
    Literal["forward", "backward", "step"] | None,
    typer.Option(help="Which pass; the one that the book compares when left out."),
]
ZeroOption = Annotated[int | None, typer.Option(help="ZeRO stage of data parallelism.")]
AxisOption = Annotated[int | None, typer.Option(min=1, help="Degree of that axis besides.")]
MicrobatchesOption = Annotated[int | None, typer.Option(min=1, help="Per pipeline and step.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Any other option of a strategy: chunks=2."),
]


@dataclass(frozen=True, slots=True)
class Found:
    """A strategy at the degrees asked for, and over all that it can have."""

    name: str
    entry: Strategy
    options: Mapping[str, Any]
    points: Sequence[tuple[int, Bound]] = ()
    swept: NDArray[np.float64] | None = None
    curve: Bound | None = None
    refused: str = ""

    @property
    def crossings(self) -> list[float]:
        """Degrees at which the binding side changes."""
        if self.swept is None or self.curve is None or self.swept.size < 2:
            return []
        return [float(degree) for degree in crossings(self.swept, self.curve)]

    def verdict(self) -> str:
        """Where the strategy pays, in a few words."""
        if self.swept is None or self.curve is None:
            return "–"
        ends = np.broadcast_to(self.curve.compute_bound, self.swept.shape)
        crossed = self.crossings
        if not crossed:
            side = "compute-bound" if ends[-1] else "communication-bound"
            return f"{side} at every degree up to {self.swept[-1]:,.0f}"
        if ends[-1]:
            return f"compute-bound from {show(crossed[-1])} {self.entry.degree} on"
        return f"compute-bound up to {show(crossed[0])} {self.entry.degree}"


def strategies(
    ctx: typer.Context,
    cluster: inputs.ClusterOption = inputs.DEFAULT_CLUSTER,
    gpus: inputs.GpusOption = None,
    rates: inputs.RatesOption = "peak",
    dtype: inputs.DtypeOption = "bf16",
    model: inputs.ModelOption = None,
    tokens: inputs.TokensOption = inputs.DEFAULT_TOKENS,
    d_model: inputs.WidthOption = None,
    d_ff: inputs.ColumnsOption = None,
    matrices: inputs.MatricesOption = None,
    experts: inputs.ExpertsOption = None,
    top_k: inputs.TopKOption = None,
    layers: inputs.LayersOption = None,
    bytes_per_element: inputs.BytesOption = None,
    weight_bytes: inputs.ElementOption = None,
    gradient_bytes: inputs.ElementOption = None,
    activation_bytes: inputs.ElementOption = None,
    strategy: StrategyOption = None,
    degree: DegreeOption = None,
    phase: PhaseOption = None,
    form: inputs.FormOption = None,
    zero: ZeroOption = None,
    model_parallel: AxisOption = None,
    data_parallel: AxisOption = None,
    tensor_parallel: AxisOption = None,
    microbatches: MicrobatchesOption = None,
    in_network: inputs.InNetworkOption = None,
    more: SetOption = None,
    json: inputs.JsonOption = False,
) -> None:
    """T_math against T_comms, what binds, and the degree at which that changes.

    Without --degree: powers of two for one strategy, whole units of each tier for all of them.

    Examples:

        roofline strategies --model llama-3-70b --tokens 4M
        roofline strategies --strategy tensor_parallel --degree 1:64
        roofline strategies --strategy data_parallel --zero 3 --json
    """
    chosen = inputs.machine(ctx.params)
    name, work = inputs.workload(ctx.params)
    rows = _rows(strategy)
    asked = _asked(ctx.params, rows)
    wanted = inputs.degrees(degree or [])
    found = [
        _found(key, row, work, chosen.cluster, asked, wanted, len(rows) == 1)
        for key, row in rows.items()
    ]
    if all(each.refused for each in found):
        raise ValueError(found[0].refused)
    if json:
        layer = {"workload": inputs.about_work(name, work)}
        output.as_json(chosen.about(dtype) | layer | {"strategies": list(map(_document, found))})
    else:
        output.say(chosen.line(), _layer_line(name, work))
        _tell(found)


def _asked(params: Mapping[str, Any], rows: Mapping[str, Strategy]) -> dict[str, Any]:
    """Options of the strategies that were given.

    Raises:
        ValueError: one that none of ``rows`` takes, or a value that cannot be.
    """
    given = {key: params[key] for key in settings.NAMED if params[key] is not None}
    given |= settings.read(params["more"] or [], rows)
    settings.refuse_unused(given, rows)
    return given


def _rows(name: str | None) -> dict[str, Strategy]:
    return STRATEGIES if name in (None, "all") else {name: choose("--strategy", name, STRATEGIES)}


def _found(
    name: str,
    entry: Strategy,
    work: Workload,
    machine: Machine,
    asked: Mapping[str, Any],
    wanted: Sequence[int],
    alone: bool,
) -> Found:
    takes = settings.takes(entry)
    options = {key: value for key, value in asked.items() if key in takes}
    options |= {"phase": entry.phase} if "phase" in takes and "phase" not in asked else {}
    inner = math.prod(int(options.get(key, 1)) for key in settings.INNER)
    try:
        if name == "expert_parallel" and np.all(np.equal(work.experts, 1)):
            raise ValueError("--experts: one expert cannot be divided; give --experts and --top-k")
        swept = degrees(name, work, machine, inner=inner)
        if not swept.size:
            axes = " × ".join(
                f"--{key.replace('_', '-')}" for key in settings.INNER if key in options
            )
            raise ValueError(f"{axes}: {inner} is refused; allowed: 1 to the GPUs of the machine")
        stops = wanted or _stops(swept, machine, inner, alone)
        points = [(each, _at(entry, work, machine, each, options)) for each in stops]
        curve = entry.bound(work, machine, swept, **options)
    except ValueError as error:
        if alone or str(error).partition(":")[0] in asked:
            raise
        return Found(name, entry, options, refused=str(error))
    return Found(name, entry, options, points, swept, curve)


def _at(
    entry: Strategy, work: Workload, machine: Machine, degree: int, options: Mapping[str, Any]
) -> Bound:
    with inputs.naming(f"--degree {degree}"):
        return entry.bound(work, machine, degree, **options)


def _stops(
    swept: NDArray[np.float64], machine: Machine, inner: int, every_power: bool
) -> list[int]:
    """Powers of two of a sweep, or whole units of each tier; the last one always."""
    units = np.cumprod([float(tier.degree) for tier in machine.tiers]) / inner
    powers = 2.0 ** np.arange(int(np.log2(swept[-1])) + 1)
    stops = powers if every_power else units
    return [int(each) for each in swept[np.isin(swept, stops) | (swept == swept[-1])]]


def _document(found: Found) -> dict[str, Any]:
    swept = [] if found.swept is None else [found.swept[0], found.swept[-1]]
    return {
        "strategy": found.name,
        "title": found.entry.title,
        "degree_counts": found.entry.degree,
        "symbol": found.entry.symbol,
        "options": found.options,
        "swept": swept,
        "crossings": found.crossings,
        "refused": found.refused or None,
        "points": [_point(degree, bound) for degree, bound in found.points],
    }


def _point(degree: int, bound: Bound) -> dict[str, Any]:
    limit = bound.threshold
    return {
        "degree": degree,
        "t_math": float(bound.t_math),
        "t_comms": float(bound.t_comms),
        "t_lower": float(bound.t_lower),
        "t_upper": float(bound.t_upper),
        "compute_bound": bool(bound.compute_bound),
        "binding_tier": _binding(bound) or None,
        "math": output.term_of(bound.math),
        "comms": [output.term_of(term) for term in bound.comms],
        "threshold": {
            "quantity": limit.quantity,
            "actual": float(limit.actual),
            "needed": float(limit.needed),
            "headroom": float(limit.headroom),
            "inequality": limit.inequality,
            "because": limit.because,
        },
        "sentence": bound.sentence(),
    }


def _binding(bound: Bound) -> str:
    """The tier that sets T_comms; empty where nothing moves."""
    if bound.concurrent:
        seconds = {tier: float(time) for tier, time in busy(bound.comms).items()}
        return max(seconds, key=lambda tier: seconds[tier])
    return str(max(bound.comms, key=lambda term: float(term.seconds)).tier)


def _layer_line(name: str | None, work: Workload) -> str:
    experts = f", {work.experts:g} experts, {work.experts_per_token:g} per token"
    sizes = [output.number(size) for size in (work.tokens, work.d_model, work.d_ff, work.layers)]
    return (
        f"{name or 'a layer'}: {sizes[0]} tokens, D {sizes[1]}, F {sizes[2]}, {work.matrices} "
        f"matrices{experts if np.any(np.greater(work.experts, 1)) else ''}, {sizes[3]} layers, "
        f"{work.dtype} matmuls, {_sent(work)} an element sent; times of one layer, of all in a "
        "pipeline"
    )


def _sent(work: Workload) -> str:
    """Bytes of an element on the way, one number where weights, gradients and activations agree."""
    sizes = dict.fromkeys((work.weight_bytes, work.gradient_bytes, work.activation_bytes))
    return "/".join(f"{size:g}" for size in sizes) + " B"


def _tell(found: Sequence[Found]) -> None:
    """The tables; one point of one strategy also in a sentence and term by term."""
    if len(found) > 1:
        output.table(
            ["strategy", ">degree", *_COLUMNS, "in general"],
            [
                [each.name, f"{degree:,}", *_cells(bound), each.verdict() if first else ""]
                for each in found
                for degree, bound, first in _marked(each.points)
            ],
        )
        refused = [each for each in found if each.refused]
        output.say(*(f"{each.name}: {each.refused}" for each in refused), style="dim")
        _tell_never(found)
        return
    (each,) = found
    if len(each.points) == 1:
        _tell_point(*each.points[0])
    else:
        limit = each.points[0][1].threshold
        output.table(
            [f">{each.entry.degree} {each.entry.symbol}", *_COLUMNS],
            [[f"{degree:,}", *_cells(bound)] for degree, bound in each.points],
            title=f"{each.entry.title}: {limit.quantity} against those needed",
        )
    output.say(f"{each.entry.title} is {each.verdict()}.", style="bold")
    _tell_never(found)


def _tell_never(found: Sequence[Found]) -> None:
    """What ∞ in a table means."""
    limits = [bound.threshold for each in found for _, bound in each.points]
    said = dict.fromkeys(limit.never for limit in limits if np.isposinf(limit.needed))
    output.say(*(f"∞: {never.removeprefix('and ')}" for never in said), style="dim")


_COLUMNS = (">T_math", ">T_comms", "binds", ">has", ">needs", ">headroom", "verdict")


def _marked(points: Sequence[tuple[int, Bound]]) -> list[tuple[int, Bound, bool]]:
    return [(degree, bound, i == 0) for i, (degree, bound) in enumerate(points)]


def _cells(bound: Bound) -> list[str]:
    limit = bound.threshold
    return [
        output.number(bound.t_math, "s"),
        output.number(bound.t_comms, "s"),
        _binding(bound) or "–",
        output.number(limit.actual, digits=4),
        output.number(limit.needed, digits=4),
        output.number(limit.headroom),
        "compute" if bound.compute_bound else "comms",
    ]


def _tell_point(degree: int, bound: Bound) -> None:
    limit = bound.threshold
    output.say(f"{bound.sentence()}.", f"Why: {limit.because}.")
    output.table(
        ["term", ">time", "tier", "formula", "source"],
        [
            [
                term.name,
                output.number(term.seconds, "s"),
                str(term.tier) or "–",
                output.readable(term.formula),
                str(term.source),
            ]
            for term in (bound.math, *bound.comms)
        ],
        title=f"degree {degree:,}; T_math {output.number(bound.t_math, 's')} to "
        f"{output.number(bound.t_upper, 's')} with nothing hidden",
    )
