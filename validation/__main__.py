"""Command line: ``python -m validation semantics --ranks 4``."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from validation.ranks import RanksFailed
from validation.semantics import Outcome, check

app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False)


@app.callback()
def main() -> None:
    """Check on real ranks what the formulas take for granted."""


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


def _table(outcomes: list[Outcome], ranks: int) -> Table:
    table = Table("operation", "agrees", "differs", title=f"torch.distributed on {ranks} ranks")
    for outcome in outcomes:
        differs = "; ".join(f"rank {rank} has {got}" for rank, got in outcome.wrong.items())
        table.add_row(outcome.case.name, "yes" if outcome.passed else "NO", differs)
    return table


if __name__ == "__main__":
    app(prog_name="python -m validation")
