"""``python -m validation import`` and ``compare-collectives``."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer
import yaml
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table

from hardware_profiles import writing
from validation import compare as published
from validation import sweeps
from validation.importing import nccl, nvbandwidth, records, topo, trace
from validation.importing.records import Found
from validation.results import FILE, Writer

app = typer.Typer(help="Other programs' measurements as results.", rich_markup_mode=None)

Files = Annotated[list[Path], typer.Argument(help="files to read")]
Out = Annotated[Path, typer.Option(help="folder of the results")]
ClusterOption = Annotated[str, typer.Option(help="profile it ran on; auto: by the GPU's name")]
OverlayOption = Annotated[str, typer.Option(help="calibration: a name, a file, auto or none")]
SHOWN = 10  # of the lines left out


@app.command("nccl-tests")
def nccl_tests(
    files: Files,
    out: Out = Path("results"),
    cluster: ClusterOption = "auto",
    overlay: OverlayOption = "auto",
) -> None:
    """Logs of nccl-tests: any of its programs, one after the other in a file or alone."""
    _import(files, nccl.read, out, cluster, overlay)


@app.command("nvbandwidth")
def nvbandwidth_(
    files: Files,
    out: Out = Path("results"),
    cluster: ClusterOption = "auto",
    overlay: OverlayOption = "auto",
    buffer: Annotated[int, typer.Option(min=1, help="MiB that it copied (-b)")] = 512,
) -> None:
    """Output of nvbandwidth: copies between GPUs and inside one."""
    _import(files, lambda text: nvbandwidth.read(text, buffer * 2**20), out, cluster, overlay)


@app.command("trace")
def trace_(
    files: Files,
    out: Out = Path("results"),
    cluster: ClusterOption = "auto",
    overlay: OverlayOption = "auto",
) -> None:
    """Chrome traces of the PyTorch profiler, .json or .json.gz: collectives and matmuls."""
    _import(files, trace.read, out, cluster, overlay)


@app.command("topo")
def topo_(
    file: Annotated[Path, typer.Argument(help="what nvidia-smi topo -m printed")],
    gpu: Annotated[str, typer.Option(help="the GPU in the catalogue, such as h100-sxm")],
    out: Annotated[Path, typer.Option(help="profile to write")] = Path("cluster.yaml"),
    nic_gbps: Annotated[float, typer.Option(min=0, help="Gb/s of one network card")] = 0,
    nodes: Annotated[int, typer.Option(min=1, help="such nodes in a network")] = 1,
) -> None:
    """A node's links as tiers of a cluster profile, for --cluster."""
    try:
        made = topo.cluster(_text(file), gpu, out.stem, nic_gbps * 1e9 / 8, nodes)
        data = {"kind": "cluster"} | writing.fields(made) | {"accelerator": made.accelerator.name}
        out.write_text(yaml.safe_dump(data, sort_keys=False, allow_unicode=True), "utf-8")
    except (ValueError, OSError) as error:
        _refuse(f"{file}: {_told(error)}")
    for tier in made.tiers:
        rate = writing.written(tier.bandwidth, "B/s")
        typer.echo(f"{tier.name}: {tier.degree} x {rate}{', no switch' if tier.direct else ''}")
    typer.echo(f"{out}: use it with --cluster {out}")


def compare(
    file: Annotated[
        Path | None, typer.Argument(help="JSONL of sweeps; left out: the published ones")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="rows and summary as JSON")] = False,
) -> None:
    """Measured sweeps of collectives against the shipped overlays."""
    try:
        text = sweeps.shipped() if file is None else file.read_text("utf-8")
    except (OSError, ValueError) as error:
        _refuse(f"{file}: {error}")
    found = published.document(published.compare(text))
    if as_json:
        typer.echo(json.dumps(found, indent=1))
    else:
        _show(found)
    raise typer.Exit(0 if found["rows"] else 1)


def _import(
    files: Sequence[Path], read: Callable[[str], list[Found]], out: Path, cluster: str, overlay: str
) -> None:
    """Append every file's measurements; exit 1 when there is none."""
    count, left_out = 0, []
    for file in files:
        try:
            runs = read(_text(file))
            for number, found in enumerate(runs):
                if found.samples:
                    machine = records.profile(found, cluster, overlay)
                    lines = list(records.lines(found, machine, file.read_bytes(), number))
                    Writer(out).add(*lines)
                    count += len(lines) - 1
                left_out += [f"{file}: {why}" for why in found.left_out]
        except (ValueError, OSError) as error:
            left_out.append(f"{file}: {_told(error)}")
    for why in left_out[:SHOWN]:
        typer.echo(f"left out: {why}", err=True)
    if len(left_out) > SHOWN:
        typer.echo(f"and {len(left_out) - SHOWN} more", err=True)
    typer.echo(f"{count} measurements imported: {out / FILE}" if count else "nothing imported")
    raise typer.Exit(0 if count else 1)


def _told(error: Exception) -> str:
    """One sentence; what a profile or a record refuses is told by its first field."""
    return records.first_of(error) if isinstance(error, ValidationError) else str(error)


def _text(file: Path) -> str:
    """A text, compressed or not; bytes that are none become question marks."""
    data = file.read_bytes()
    if data[:2] == b"\x1f\x8b":
        try:
            data = gzip.decompress(data)
        except EOFError:
            raise ValueError("compressed, and cut off") from None
        except (zlib.error, gzip.BadGzipFile):
            raise ValueError("compressed, and damaged on the way: copy it again") from None
    return data.decode("utf-8", "replace")


def _refuse(why: str) -> NoReturn:
    typer.echo(why, err=True)
    raise typer.Exit(2)


def _show(found: dict[str, object]) -> None:
    console, summary, rows = Console(), found["summary"], found["rows"]
    assert isinstance(summary, dict)
    assert isinstance(rows, list)
    twice = any(row["fitted"] for row in rows)  # of sources that no fit has seen once is enough
    for name in ("all", "held_out")[: (1 + twice) if rows else 0]:
        part = summary if name == "all" else summary[name]
        title = "every source" if name == "all" else "sources left out of the fit"
        table = Table("", "1 MB and more", "points", "less", "points", title=title)
        table.add_row("all", *_cells(part))
        for way in ("by_gpu", "by_collective", "by_nodes", "by_network"):
            table.add_section()
            for each, medians in part[way].items():
                label = f"{each} node{'s' * (each != '1')}" if way == "by_nodes" else each
                table.add_row(label, *_cells(medians))
        console.print(table)
    refused = found["refused"]
    assert isinstance(refused, list)
    for why in _reasons(refused):
        typer.echo(why, err=True)
    each = ": see --json for each" if refused else ""
    typer.echo(f"{summary['predicted']} points predicted, {summary['refused']} not{each}")


def _reasons(refused: Sequence[dict[str, str]]) -> Iterator[str]:
    """Why points are not predicted, those of a reason together, most first; a few of many."""
    found: dict[str, list[str]] = {}
    for each in refused:
        found.setdefault(each["reason"], []).append(each["id"])
    ordered = sorted(found.items(), key=lambda item: -len(item[1]))
    for reason, ids in ordered[:SHOWN]:
        more = f" and {len(ids) - 1} more" if len(ids) > 1 else ""
        yield f"not predicted: {ids[0]}{more}: {reason}"
    if len(ordered) > SHOWN:
        yield f"and {sum(len(ids) for _, ids in ordered[SHOWN:])} for other reasons"


def _cells(medians: dict[str, object]) -> list[str]:
    cells = []
    for size in ("large", "small"):
        error = medians[f"median_error_{size}"]
        cells += ["" if error is None else f"{error:.1%}", f"{medians[f'points_{size}']}"]
    return cells
