"""Command line.

torchrun --nproc-per-node=8 -m validation --out results      on GPUs, on any number of nodes
python -m validation run --out results                        ranks on this machine
python -m validation report results                           predicted against measured
python -m validation calibrate results --out mine.yaml        rates fitted to half of the cases
python -m validation semantics --ranks 4                      the collectives' definitions
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.console import Console
from rich.table import Table
from typer.core import TyperGroup

from roofline.names import choose
from validation.case import Suite
from validation.context import Options
from validation.importing import cli as importing
from validation.joining import DEVICES, RanksLost
from validation.judging import calibrate_command, report_command
from validation.kernels import chosen
from validation.launch import LOST, as_rank, local, local_ranks, started, under_torchrun
from validation.ranks import RanksFailed, warm_up
from validation.results import FILE
from validation.runner import Tally
from validation.semantics import Outcome, check
from validation.signals import ENDED

ABOUT = """Measure on real ranks what the formulas predict.

\b
torchrun --nproc-per-node=8 -m validation --out results    on GPUs, any number of nodes
python -m validation run --out results                     ranks on this machine
"""


class Commands(TyperGroup):
    """Commands; a wrong one is refused with the nearest."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """As its parent's, but with ``choose``'s message."""
        if args and not args[0].startswith("-"):
            _allowed("command", dict.fromkeys(self.commands, ""))(args[0])
        return super().resolve_command(ctx, args)


def _allowed(what: str, rows: Mapping[str, str]) -> Callable[[str], str]:
    """A callback that refuses what is not in ``rows``, with the nearest."""

    def refuse(name: str) -> str:
        try:
            choose(what, name, rows)
        except ValueError as wrong:
            raise typer.BadParameter(str(wrong).partition(": ")[2]) from None
        return name

    return refuse


def _split(names: Sequence[str]) -> tuple[str, ...]:
    """Names between commas, of an option given any number of times; each once.

    >>> _split(["matmul, memory", "expert parallel", "matmul"])
    ('matmul', 'memory', 'expert parallel')
    """
    found = (name.strip() for several in names for name in several.split(","))
    return tuple(dict.fromkeys(name for name in found if name))


def _folder(name: str | Path) -> Path:
    """A folder with a name; an empty one would be the current folder, unasked."""
    if not str(name).strip():
        raise typer.BadParameter("no name is given; allowed: a folder, . for this one")
    return Path(name)


def _known(names: list[str]) -> list[str]:
    """A callback that refuses kernels that there are not."""
    try:
        chosen(_split(names))
    except ValueError as wrong:
        raise typer.BadParameter(str(wrong).partition(": ")[2]) from None
    return names


app = typer.Typer(cls=Commands, help=ABOUT, add_completion=False, rich_markup_mode=None)
app.command("report")(report_command)
app.command("calibrate")(calibrate_command)
app.add_typer(importing.app, name="import")
app.command("compare-collectives")(importing.compare)
SUITES = {"quick": "two minutes", "full": "every size"}


Out = Annotated[
    Path | None, typer.Option(help="folder of the results", parser=_folder, metavar="FOLDER")
]
SuiteOption = Annotated[
    str,
    typer.Option(help="quick: two minutes; full: every size", callback=_allowed("suite", SUITES)),
]
ClusterOption = Annotated[str, typer.Option(help="profile to predict from: a name or a file")]
OverlayOption = Annotated[str, typer.Option(help="calibration: a name, a file, auto or none")]
Device = Annotated[
    str, typer.Option(help="auto, cpu or cuda", callback=_allowed("device", DEVICES))
]
Timeout = Annotated[float, typer.Option(min=1, help="seconds that one wait may take")]
Budget = Annotated[
    float,
    typer.Option(
        min=0, help="seconds of measuring, more where single calls are long; 0: the suite's own"
    ),
]
Kernels = Annotated[
    list[str],
    typer.Option(help="names; several, or commas between; left out: all", callback=_known),
]
Resume = Annotated[bool, typer.Option("--resume", help="skip cases that the folder has")]
Ranks = Annotated[int, typer.Option(min=0, max=64, help="processes; 0: GPUs, or CPU cores")]


@app.callback(invoke_without_command=True)
def main(
    context: typer.Context,
    out: Out = None,
    suite: SuiteOption = "quick",
    cluster: ClusterOption = "local",
    overlay: OverlayOption = "auto",
    device: Device = "auto",
    timeout: Timeout = 60,
    budget: Budget = 0,
    kernels: Kernels = [],  # noqa: B006
    resume: Resume = False,
) -> None:
    # No docstring: the help is ABOUT.
    if context.invoked_subcommand is not None:
        return
    if out is None:
        typer.echo(context.get_help())
        raise typer.Exit(0)
    options = _options(suite, cluster, overlay, device, timeout, budget, kernels, resume)
    _measure(options, out, 0)


@app.command("run")
def run_here(
    out: Out = Path("results"),
    ranks: Ranks = 0,
    suite: SuiteOption = "quick",
    cluster: ClusterOption = "local",
    overlay: OverlayOption = "auto",
    device: Device = "auto",
    timeout: Timeout = 60,
    budget: Budget = 0,
    kernels: Kernels = [],  # noqa: B006
    resume: Resume = False,
) -> None:
    """The suite on ranks started on this machine."""
    options = _options(suite, cluster, overlay, device, timeout, budget, kernels, resume)
    _measure(options, out or Path("results"), ranks)


@app.command()
def semantics(
    ranks: Annotated[int, typer.Option(min=1, max=64, help="processes on this machine")] = 4,
    timeout: Annotated[float, typer.Option(min=1, help="seconds until it is given up")] = 60,
) -> None:
    """Every collective of torch.distributed on gloo ranks against its definition in numpy."""
    try:
        outcomes = check(ranks, timeout)
    except RanksFailed as error:
        typer.echo(error, err=True)
        raise typer.Exit(2) from None
    Console().print(_table(outcomes, ranks))
    failed = sum(not outcome.passed for outcome in outcomes)
    typer.echo(f"{len(outcomes) - failed} of {len(outcomes)} operations agree")
    raise typer.Exit(1 if failed else 0)


def _options(
    suite: str,
    cluster: str,
    overlay: str,
    device: str,
    timeout: float,
    budget: float,
    kernels: list[str],
    resume: bool,
) -> Options:
    names = _split(kernels)
    return Options(
        suite=cast(Suite, suite),
        cluster=cluster,
        overlay=overlay,
        device=device,
        timeout=timeout,
        budget=budget,
        kernels=names,
        resume=resume,
    )


def _measure(options: Options, out: Path, ranks: int) -> None:
    """Run, say what came of it, and exit: 0 all fine, 1 failed or wrong cases, else no run."""
    rank = under_torchrun()
    if not rank:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(ENDED))  # the ranks are ended too
    try:
        if not rank:
            warm_up()
            ranks = ranks or local_ranks(options.device)
        now = started()
        tally = as_rank(options, out, None, now) if rank else local(options, out, ranks, None, now)
    except RanksFailed as failed:
        typer.echo(failed.brief(), err=True)
        _leave(LOST if "RanksLost" in str(failed) else 2, rank)
    except RanksLost as lost:
        typer.echo(f"rank {os.environ['RANK']}: {lost}", err=True)
        _leave(LOST, rank)
    except (ValueError, OSError, RuntimeError, ImportError) as error:
        typer.echo(f"rank {os.environ['RANK']}: {error}" if rank else error, err=True)
        _leave(2, rank)
    if not rank or os.environ["RANK"] == "0":
        typer.echo(_told(tally, out))
    _leave(0 if tally.passed else 1, rank)


def _told(tally: Tally, out: Path) -> str:
    """The counts, and what of the whole time since the program's start was measuring."""
    whole = tally.startup + tally.wall
    share = tally.measuring / whole if whole else 0.0
    counts = f"{tally.measured} cases measured"
    counts += f", {tally.skipped} there already" if tally.skipped else ""
    counts += f", {tally.failed} failed" if tally.failed else ""
    counts += f", {tally.wrong} with a wrong result" if tally.wrong else ""
    counts += f", {tally.unchecked} not checked" if tally.unchecked else ""
    took = f"in {tally.wall:.0f} s after {tally.startup:.0f} s of starting"
    return f"{counts}, {took}; {share:.0%} of the {whole:.0f} s measuring: {out / FILE}"


def _leave(code: int, rank: bool) -> None:
    """Out; a rank without waiting for threads of groups that may be broken."""
    if rank:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    raise typer.Exit(code)


def _table(outcomes: list[Outcome], ranks: int) -> Table:
    table = Table("operation", "agrees", "differs", title=f"torch.distributed on {ranks} ranks")
    for outcome in outcomes:
        differs = "; ".join(f"rank {rank} has {got}" for rank, got in outcome.wrong.items())
        table.add_row(outcome.case.name, "yes" if outcome.passed else "NO", differs)
    return table


if __name__ == "__main__":
    app(prog_name="python -m validation")
