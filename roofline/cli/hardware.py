"""``roofline hardware``: what the catalogue has, what follows from it, and what is wrong in a file."""

from __future__ import annotations

import json as json_module
import os
from collections.abc import Callable
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer

import hardware_profiles as hw
from hardware_profiles import Accelerator, Cluster, catalog, derived, reading
from hardware_profiles.errors import ProfileError, nearest
from hardware_profiles.stated import stated
from roofline.cli import inputs, output

FAILED = 1
KINDS: dict[str, Callable[[str], Any]] = {
    "accelerator": hw.accelerator,
    "cluster": hw.cluster,
    "calibration": hw.calibration,
}

HIDDEN = ("tiers", "source", "file", "overrides")

app = typer.Typer(
    help="Accelerators and clusters: listed, shown with what follows, checked.",
    invoke_without_command=True,
)

NameArgument = Annotated[str, typer.Argument(help="A name of the list, or a YAML file.")]
FilesArgument = Annotated[list[str], typer.Argument(metavar="FILE...", help="YAML or JSON.")]
KindOption = Annotated[str | None, typer.Option(metavar="|".join(KINDS), help="Only these.")]


@app.callback()
def default(ctx: typer.Context) -> None:
    """Accelerators and clusters: listed, shown with what follows, checked."""
    if ctx.invoked_subcommand is None:
        list_()


@app.command("list")
def list_(kind: KindOption = None, json: inputs.JsonOption = False) -> None:
    """Every accelerator, cluster and calibration that can be named, one's own among them.

    Files in the folder that ROOFLINE_PROFILES names are listed too and win over shipped ones, which
    is marked with a star.
    """
    rows = {
        "accelerators": _load("accelerator", hw.accelerators(), _accelerator_row),
        "clusters": _load("cluster", hw.clusters(), _cluster_row),
        "calibrations": _load("calibration", hw.calibrations(), _calibration_row),
    }
    if kind is not None:
        if kind not in KINDS:
            raise ValueError(f"--kind: {kind!r} is not one; {nearest(kind, KINDS)}")
        rows = {f"{kind}s": rows[f"{kind}s"]}
    if json:
        output.as_json(rows)
        return
    for title, found in rows.items():
        whole = [row for row in found if "error" not in row]
        columns = [key for key in whole[0] if key not in HIDDEN] if whole else []
        head = [f">{key}" if isinstance(whole[0][key], float) else key for key in columns]
        starred = [row | {"name": f"{row['name']} *"} if row["overrides"] else row for row in whole]
        output.table(head, [[_cell(key, row[key]) for key in columns] for row in starred], title)
        output.say(*(_overriding(row["name"], row["file"]) for row in whole if row["overrides"]))
        output.say(*(f"{r['name']}: {r['error']}" for r in found if "error" in r), style="red")


@app.command()
def show(
    name: NameArgument,
    dtype: inputs.DtypeOption = "bf16",
    json: inputs.JsonOption = False,
) -> None:
    """One profile: its tiers, its ladder of memories and links, its numbers and their sources.

    Examples:

        roofline hardware show h100-sxm
        roofline hardware show dgx-h100-superpod --dtype fp8 --json
    """
    profile = _either(name)
    with inputs.naming("--dtype"):
        ladder = derived.memory_ladder(profile, dtype)
    if json:
        output.as_json(_document(profile, dtype) | {"overrides": _overrides(profile, name)})
        return
    output.say(f"{profile.name}: {profile.title}", style="bold")
    output.say(*_overrides(profile, name))
    output.say(*filter(None, [profile.notes]), style="dim")
    if isinstance(profile, Cluster):
        _tell_tiers(profile)
    _tell_ladder(ladder, dtype)
    _tell_sources(profile)


@app.command()
def check(files: FilesArgument, json: inputs.JsonOption = False) -> None:
    """Read profiles and say ok, or every problem line by line; exit code 1 if there is one.

    Example:

        roofline hardware check my-cluster.yaml
    """
    found = [_checked(file) for file in files]
    fine = all(row["ok"] for row in found)
    if json:
        output.as_json({"ok": fine, "files": found})
    else:
        for row in found:
            said = [f"{row['file']}: ok, {row['kind']} {row['name']}"] if row["ok"] else []
            output.say(*said, style="green")
            output.say(*row["problems"], style="red")
    if not fine:
        raise typer.Exit(FAILED)


@app.command()
def schema() -> None:
    """JSON Schema of the two kinds of profile, for editors and other programs."""
    output.as_json(hw.schema_json())


def _load(
    kind: catalog.Kind, names: list[str], row: Callable[[Any], dict[str, Any]]
) -> list[dict[str, Any]]:
    """A row for each profile; for one that cannot be read, why."""
    found, own, shipped = [], catalog.own(kind), _shipped(kind)
    for name in names:
        file = {"file": str(own[name]) if name in own else None}
        try:
            about = row(KINDS[kind](name)) | file | {"overrides": name in own and name in shipped}
            found.append({"name": name} | about)
        except ProfileError as error:
            found.append({"name": name, "error": " ".join(str(error).split())})
    return found


def _shipped(kind: catalog.Kind) -> set[str]:
    return {*catalog.shipped(kind), *([catalog.LOCAL] if kind == "cluster" else [])}


def _overriding(name: str, file: str) -> str:
    return f"* {name} is your {file}, in place of the shipped one"


def _overrides(profile: Accelerator | Cluster, asked: str) -> list[str]:
    """Files of the user's own that stand here in place of shipped profiles."""
    parts: list[tuple[catalog.Kind, str]] = [("accelerator", asked)]
    if isinstance(profile, Cluster):
        parts = [("cluster", asked), ("accelerator", profile.accelerator.name)]
    return [
        _overriding(name, str(catalog.own(kind)[name]))
        for kind, name in parts
        if name in catalog.own(kind) and name in _shipped(kind)
    ]


def _accelerator_row(chip: Accelerator) -> dict[str, Any]:
    return {
        "title": chip.title,
        "bf16": chip.peak_flops.get("bf16"),
        "hbm_bytes": chip.hbm_bytes,
        "hbm_bandwidth": chip.hbm_bandwidth,
    }


def _cluster_row(cluster: Cluster) -> dict[str, Any]:
    return {
        "title": cluster.title,
        "accelerator": cluster.accelerator.name,
        "gpus": cluster.gpus,
        "tiers": [tier.name for tier in cluster.tiers],
        "degrees": [tier.degree for tier in cluster.tiers],
    }


def _calibration_row(overlay: hw.Calibration) -> dict[str, Any]:
    return {
        "accelerators": list(overlay.accelerators),
        "matmul": overlay.matmul_fraction("bf16"),
        "hbm": overlay.hbm,
        "source": overlay.source,
    }


_UNITS = {"bf16": "FLOP/s", "hbm_bytes": "B", "hbm_bandwidth": "B/s"}


def _cell(key: str, value: Any) -> str:
    if isinstance(value, list):
        return (" × " if key == "degrees" else ", ").join(map(str, value))
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else output.number(value, _UNITS.get(key, ""))


def _either(name: str) -> Accelerator | Cluster:
    """The cluster or the accelerator of that name or in that file."""
    if name in hw.clusters():
        return hw.cluster(name)
    if name in hw.accelerators():
        return hw.accelerator(name)
    if Path(name).suffix in (".yaml", ".yml", ".json"):
        found = _kind(name) if Path(name).exists() else "cluster"
        profile: Accelerator | Cluster = KINDS[found](name)
        if found != "calibration":
            return profile
    known = [*hw.clusters(), *hw.accelerators()]
    raise ValueError(f"no profile is called {name!r}; {nearest(name, known)}")


def _kind(file: str) -> str:
    data = reading.mapping(reading.text_of(Path(file)), file)
    guess = "cluster" if "tiers" in data else "calibration" if "matmul" in data else "accelerator"
    kind = str(data.get("kind", guess))
    if kind not in KINDS:
        raise ProfileError(f"{file}: kind: {kind!r} is not one; {nearest(kind, KINDS)}")
    return kind


def _checked(file: str) -> dict[str, Any]:
    """What a file holds, and what is wrong with it."""
    if not Path(file).is_file():
        raise ValueError(f"FILE: {file!r} is not there; give the path of a profile")
    row = {"file": file, "ok": False, "kind": None, "name": None, "problems": []}
    try:
        row["kind"] = kind = _kind(file)
        path = file if os.sep in file else os.path.join(os.curdir, file)
        return row | {"ok": True, "name": KINDS[kind](path).name}
    except ProfileError as error:
        return row | {"problems": str(error).splitlines()}


def _document(profile: Accelerator | Cluster, dtype: str) -> dict[str, Any]:
    chip = profile.accelerator if isinstance(profile, Cluster) else profile
    whole = isinstance(profile, Cluster)
    slowest = derived.slowest_collective(profile) if isinstance(profile, Cluster) else None
    return {
        "kind": "cluster" if whole else "accelerator",
        "profile": json_module.loads(profile.model_dump_json()),
        "dtype": dtype,
        "gpus": profile.gpus if isinstance(profile, Cluster) else None,
        "tiers": list(derived.capacities(profile)) if isinstance(profile, Cluster) else None,
        "slowest_collective": asdict(slowest) if slowest else None,
        "ladder": list(derived.memory_ladder(profile, dtype)),
        "cuda_cores": derived.cuda_cores(chip),
        "vector_flops": derived.vector_flops(chip),
        "tensor_core_flops_per_cycle": derived.tensor_core_flops_per_cycle(chip, dtype),
        "numbers": stated(profile),
    }


def _tell_tiers(cluster: Cluster) -> None:
    rows = [
        [
            row.tier,
            f"{row.gpus:,}",
            f"{row.units:,}",
            output.number(row.child, "B/s"),
            output.number(row.per_gpu, "B/s"),
            output.number(row.egress or None, "B/s"),
            output.number(row.collective, "B/s"),
            output.number(row.bisection, "B/s"),
            output.number(row.switches),
            output.number(row.cables),
        ]
        for row in derived.capacities(cluster)
    ]
    columns = ">GPUs,>units,>a child,>a GPU,>egress,>collective,>bisection,>switches,>links"
    output.table(["tier", *columns.split(",")], rows, f"{cluster.gpus:,} GPUs, one way")


def _tell_ladder(ladder: tuple[derived.Rung, ...], dtype: str) -> None:
    output.table(
        ["data in", ">within reach", ">bandwidth a GPU", ">C/W", ">C/W of a GPU's part"],
        [
            [
                rung.level,
                output.number(rung.capacity, "B"),
                output.number(rung.bandwidth, "B/s"),
                output.number(rung.ridge),
                output.number(rung.ridge_per_gpu),
            ]
            for rung in ladder
        ],
        f"FLOPs per byte that outlast the transfer, {dtype}",
    )


def _tell_sources(profile: Accelerator | Cluster) -> None:
    """The numbers, those of one part and one source together."""
    output.say("Where it was read", style="bold")
    for part, numbers in groupby(stated(profile), key=lambda n: n.part):
        output.say(part)
        for source, same in groupby(numbers, key=lambda n: n.source):
            output.say("  " + ", ".join(f"{n.field} {n.text}" for n in same))
            output.say(f"    {' '.join(source.split())}", style="dim")
