"""``roofline collectives``: the time of a collective, tier by tier, or of several side by side."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from roofline.cli import inputs, output
from roofline.cli.ways import ALL, DISPATCH, FLAT, ON_TIERS, Answer, Asked, answers
from roofline.collectives import COLLECTIVES
from roofline.groups import Group, spans
from roofline.units import show

OpOption = Annotated[
    str,
    typer.Option(metavar="NAME", help=f"{', '.join(COLLECTIVES)}; {DISPATCH} of tokens; or all."),
]
SizeOption = Annotated[
    str, typer.Option("--bytes", metavar="SIZE", help="Whole array of one group: 1GB, 64MiB.")
]
NcclOption = Annotated[
    bool, typer.Option("--nccl-size", help="--bytes is the size that nccl-tests prints.")
]
RanksOption = Annotated[int | None, typer.Option(help="In the group; every GPU when left out.")]
StrideOption = Annotated[int, typer.Option(help="GPUs from one rank of the group to the next.")]
AloneOption = Annotated[bool, typer.Option("--alone", help="Sibling groups are silent.")]
AlgorithmOption = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help=f"{', '.join(ON_TIERS)}; inside one tier also {', '.join(FLAT)}; or all.",
    ),
]
LatencyOption = Annotated[bool, typer.Option("--latency", help="Add the tiers' latency.")]
KOption = Annotated[int | None, typer.Option(min=1, help="Experts per token: a ragged all-to-all.")]
EOption = Annotated[int | None, typer.Option(min=1, help="Experts that the ranks hold.")]
RoutingOption = Annotated[
    Literal["bound", "draws", "distinct"] | None,
    typer.Option("--routing", help="Ranks that k experts lie on; distinct where --experts is."),
]
LimitOption = Annotated[
    int | None, typer.Option(min=1, help="A token's experts lie on at most N nodes.")
]


def collectives(
    ctx: typer.Context,
    cluster: inputs.ClusterOption = inputs.DEFAULT_CLUSTER,
    gpus: inputs.GpusOption = None,
    rates: inputs.RatesOption = "peak",
    op: OpOption = ALL,
    size: SizeOption = "1GB",
    nccl: NcclOption = False,
    ranks: RanksOption = None,
    stride: StrideOption = 1,
    alone: AloneOption = False,
    algorithm: AlgorithmOption = "hierarchical",
    in_network: inputs.InNetworkOption = None,
    form: inputs.FormOption = None,
    latency: LatencyOption = False,
    top_k: KOption = None,
    experts: EOption = None,
    routed: RoutingOption = None,
    node_limit: LimitOption = None,
    json: inputs.JsonOption = False,
) -> None:
    """Time, bandwidths and the tier that binds, of one collective or of all of them.

    The tiers work at the same time and the slowest decides; what sibling groups send over the same
    links counts.

    Examples:

        roofline collectives --bytes 1GB --ranks 8
        roofline collectives --op all-reduce --bytes 64MiB --ranks 64 --stride 8 --latency
        roofline collectives --op all-reduce --ranks 8 --algorithm all
        roofline collectives --op all-to-all --ranks 64 --top-k 8 --experts 256
    """
    chosen = inputs.machine(ctx.params)
    apart = inputs.whole("--stride", stride)
    every = max(1, chosen.cluster.gpus // apart)
    group = Group(inputs.whole("--ranks", every if ranks is None else ranks), apart, alone)
    with inputs.naming("--ranks"):
        spans(group, chosen.cluster.tiers)
    asked = Asked(
        group,
        chosen.cluster.tiers,
        inputs.nbytes("--bytes", size),
        nccl,
        {"form": form or "precise", "in_network": in_network or "off", "latency": latency},
    )
    found = list(answers(asked, ctx.params))
    if json:
        facts = {"ranks": group.size, "stride": stride, "alone": alone, **asked.options}
        output.as_json(chosen.about() | facts | {"results": [each.document() for each in found]})
    else:
        placed = f", {apart} apart" if apart > 1 else ""
        output.say(
            chosen.line(), f"{output.counted(group.size, 'rank')}{placed}, {show(asked.size, 'B')}"
        )
        _tell(found)


def _tell(found: list[Answer]) -> None:
    """One answer tier by tier, or several in a table."""
    if len(found) > 1:
        output.table(
            ["operation", "algorithm", ">time", ">algbw", ">busbw", "binds"],
            [
                [
                    each.op,
                    each.algorithm,
                    output.number(each.seconds, "s"),
                    output.number(each.algbw, "B/s"),
                    output.number(each.busbw, "B/s"),
                    str(each.time.binding) or "–",
                ]
                for each in found
            ],
        )
        return
    (one,) = found
    output.say(
        f"{one.op}, {one.algorithm}: {output.number(one.seconds, 's')}"
        f", algbw {output.number(one.algbw, 'B/s')}, busbw {output.number(one.busbw, 'B/s')}"
        f", bound by {str(one.time.binding) or 'nothing'}",
        style="bold",
    )
    output.table(
        ["tier", ">children", ">siblings", ">bandwidth of a child", ">time"],
        [
            [
                row.reach.tier.name,
                output.number(row.reach.degree),
                output.number(row.reach.sharing),
                output.number(row.bandwidth, "B/s"),
                output.number(row.seconds, "s"),
            ]
            for row in one.rows()
        ],
    )
    if float(one.time.latency):
        output.say(f"of which latency {output.number(one.time.latency, 's')}")
    if one.about:
        output.say(f"{one.about['note']}; memory: {one.about['memory']}")
