"""``python -m roofline``: the formulas on the command line.

Commands stand in the files beside this one; here is what they have in common. Bad input
ends with one red line on standard error and the exit code 2, never with a traceback.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NoReturn

import typer
from rich.text import Text
from typer.core import TyperGroup

from roofline.cli import hardware, output
from roofline.cli.backtest import backtest, predict
from roofline.cli.collectives import collectives
from roofline.cli.explain import explain
from roofline.cli.launch import compare, export, read
from roofline.cli.layouts import bubbles, guide, placement
from roofline.cli.plan import plan
from roofline.cli.scale import scale
from roofline.cli.strategies import strategies
from roofline.cli.worked import worked

BAD_INPUT = 2
INTERRUPTED = 130

# Fields that the library names otherwise than the command line.
OPTIONS = {
    "k": "top_k",
    "experts_per_token": "top_k",
    "at_most": "node_limit",
    "convention": "bytes_per_parameter",
    "output": "output_file",
    "batch": "tokens",
}


class Commands(TyperGroup):
    """The group of all commands; whatever they refuse leaves through one door."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, **extra: Any) -> NoReturn:
        """Run a command and exit: 0 done, 1 a check failed, 2 bad input, 130 interrupted."""
        given = list(sys.argv[1:] if args is None else args) or ["--help"]
        extra["standalone_mode"] = False
        try:
            code = super().main(given, *rest, **extra)
        except typer.Abort:
            code = INTERRUPTED
        except BrokenPipeError:
            code = 1
        except (ValueError, OSError) as error:
            code = self._refuse(str(error))
        except Exception as error:
            if not hasattr(error, "format_message"):
                raise
            code = self._refuse(_said(error, given))
        if code == INTERRUPTED:
            output.console(stderr=True).print("Interrupted: no answer, and no file was written.")
        sys.exit(code if isinstance(code, int) else 0)

    def _refuse(self, message: str) -> int:
        """Say it in red, on one line, a field of the library by the option that sets it."""
        line = " ".join(message.split())
        options = {param.name: param.opts[0] for each in _commands(self) for param in each.params}
        if said := re.match(r"([a-z_]+): ", line):
            option = options.get(OPTIONS.get(said[1], said[1]), said[1])
            line = f"{option}{line[said.end(1) :]}"
        output.console(stderr=True).print(Text(f"Error: {line}", style="red"), soft_wrap=True)
        return BAD_INPUT


def _said(error: Any, given: Sequence[str]) -> str:
    """What Typer finds wrong with the arguments ``given``, with the value that it leaves out."""
    option = next(iter(getattr(getattr(error, "param", None), "opts", ())), None)
    texts = dict(pairwise(given)) | dict(
        text.split("=", 1) for text in given if text.startswith("--") and "=" in text
    )
    if option not in texts:
        return str(error.format_message())
    reason = str(error.message).removeprefix("Value error, ").rstrip(".")
    return f"{option}: {texts[option]!r} is refused; {reason[:1].lower()}{reason[1:]}"


def _commands(group: TyperGroup) -> Iterable[Any]:
    for command in group.commands.values():
        yield from _commands(command) if isinstance(command, TyperGroup) else [command]


app = typer.Typer(
    cls=Commands,
    name="roofline",
    help="Which parallelism, how fast, and what stops it from being faster: the formulas, answered.",
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    plan,
    compare,
    export,
    scale,
    strategies,
    collectives,
    placement,
    guide,
    bubbles,
    worked,
    explain,
    predict,
    backtest,
):
    app.command()(command)
app.command("import")(read)
app.add_typer(hardware.app, name="hardware")


def main() -> None:
    """The console script ``roofline``."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal without µ shows a question mark
    app(prog_name="roofline")
