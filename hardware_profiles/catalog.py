"""Names to profiles: the shipped catalogue, a user's own folder, or a file by its path.

A user's files stand in the folder that ROOFLINE_PROFILES names (or several, separated as in PATH)
and win over shipped ones of the same name; a file there is called as its profile is. A cluster file
names its accelerator (one beside it, with or without its suffix, or one of the catalogue), or holds
one in place. The cluster ``local`` is the machine that this runs on.
"""

from __future__ import annotations

import math
import os
import re
import reprlib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import ValidationError

from hardware_profiles import reading, writing
from hardware_profiles.errors import ProfileError, explain, nearest
from hardware_profiles.schema import Accelerator, Cluster

SHIPPED = Path(__file__).parent / "catalog"
ENVIRONMENT = "ROOFLINE_PROFILES"
KINDS: dict[str, type[Accelerator] | type[Cluster]] = {
    "accelerator": Accelerator,
    "cluster": Cluster,
}
LOCAL = "local"
SUFFIXES = (".yaml", ".yml", ".json")

Kind = Literal["accelerator", "cluster", "calibration"]


def accelerators() -> list[str]:
    """Names of every accelerator that can be loaded, sorted."""
    return sorted(index("accelerator"))


def clusters() -> list[str]:
    """Names of every cluster that can be loaded, sorted; ``local`` among them."""
    return sorted({*index("cluster"), LOCAL})


def networked(like: Cluster, count: int = 3) -> list[str]:
    """Shipped clusters with a network: those of the same accelerator, then of the nearest peak."""

    def apart(other: Cluster) -> tuple[bool, float, str]:
        theirs, ours = other.accelerator, like.accelerator
        peaks = [max(one.peak_flops.values()) for one in (theirs, ours)]
        return theirs.name != ours.name, abs(math.log(peaks[0] / peaks[1])), other.name

    known = [cluster(name) for name in clusters() if name != LOCAL]
    return [one.name for one in sorted((one for one in known if one.networked), key=apart)][:count]


def accelerator(name: str) -> Accelerator:
    """The accelerator called ``name``, or the one in the file ``name``.

    Raises:
        ProfileError: unknown (with the nearest names), unreadable, or wrong (naming the field).
    """
    path = find(name, "accelerator", accelerators())
    profile = _read_file(path, "accelerator", _state(path))
    assert isinstance(profile, Accelerator)
    check_name(profile.name, path, "accelerator")
    return profile


def cluster(name: str) -> Cluster:
    """The cluster called ``name``, or the one in the file ``name``.

    Raises:
        ProfileError: unknown (with the nearest names), unreadable, or wrong (naming the field).
    """
    if name == LOCAL and LOCAL not in index("cluster"):
        # Here, because local.py looks the machine's accelerator up in this very catalogue.
        from hardware_profiles.local import local_cluster

        return local_cluster()
    path = find(name, "cluster", clusters())
    profile = _read_file(path, "cluster", _state(path))
    assert isinstance(profile, Cluster)
    check_name(profile.name, path, "cluster")
    return profile


def read(text: str, where: str = "profile") -> Accelerator | Cluster:
    """The profile that a YAML or JSON text holds; ``where`` names it in messages.

    Raises:
        ProfileError: naming the file, the field, the value and what is allowed.
    """
    data = reading.mapping(text, where)
    return _build(data, _kind(data, where), where, None)


def to_yaml(profile: Accelerator | Cluster) -> str:
    """The profile as a file that ``read`` takes back, its numbers with their units."""
    kind = "cluster" if isinstance(profile, Cluster) else "accelerator"
    data = {"kind": kind} | writing.fields(profile)
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=100)


def find(name: str, kind: Kind, choices: list[str]) -> Path:
    """The file of the profile called ``name``, which may be a path itself.

    Raises:
        ProfileError: when nothing is called so, with the nearest of ``choices``.
    """
    name = os.fspath(name) if isinstance(name, os.PathLike) else name
    if not isinstance(name, str):
        shown = f"such as {choices[0]!r}, or the path of a file" if choices else "or a file's path"
        raise ProfileError(f"{reprlib.repr(name)} names no {kind}; give its name as text, {shown}")
    path = index(kind).get(name)
    if path is None and (os.sep in name or name.endswith(SUFFIXES)):
        path = Path(os.path.expanduser(name))
    if path is None:
        raise ProfileError(f"no {kind} is called {name[:80]!r}; {nearest(name, choices)}")
    return path


def index(kind: Kind) -> dict[str, Path]:
    """Name to file of every profile of ``kind``; a user's file replaces a shipped one.

    Raises:
        ProfileError: when ROOFLINE_PROFILES names something that is no folder.
    """
    return shipped(kind) | own(kind)


def shipped(kind: Kind) -> dict[str, Path]:
    """Name to file of every profile of ``kind`` that comes with the package."""
    return {path.stem: path for path in (SHIPPED / f"{kind}s").glob("*.yaml")}


def own(kind: Kind) -> dict[str, Path]:
    """Name to file of every profile of ``kind`` in a user's own folders.

    Raises:
        ProfileError: when ROOFLINE_PROFILES names something that is no folder.
    """
    return {path.stem: path for path in _users_files() if _kind_of(path) == kind}


def check_name(name: str, path: Path, kind: Kind) -> None:
    """Refuse a file of a folder that is called otherwise than its profile: nobody would find it.

    Raises:
        ProfileError: with both names.
    """
    if name != path.stem and index(kind).get(path.stem) == path:
        raise ProfileError(
            f"{path}: name: {name[:80]!r} is not the file's, {path.stem!r}; write "
            f"'name: {path.stem}', or rename the file to {name[:80]}{path.suffix}"
        )


@lru_cache(maxsize=512)
def _read_file(path: Path, kind: Kind, _state: object) -> Accelerator | Cluster:
    where = str(path)
    data = reading.mapping(reading.text_of(path), where)
    found = _kind(data, where)
    # Before it is built, so that a cluster which names itself as its accelerator ends here.
    if found != kind:
        raise ProfileError(f"{where}: kind: holds {_a(found)}, not {_a(kind)}")
    return _build(data, found, where, path.parent)


def _kind(data: dict[str, Any], where: str) -> str:
    kind = data.pop("kind", "cluster" if "tiers" in data else "accelerator")
    if kind not in KINDS:
        raise ProfileError(
            f"{where}: kind: {str(kind)[:80]!r} is not one; allowed: {', '.join(KINDS)}"
        )
    return str(kind)


def _build(
    data: dict[str, Any], kind: str, where: str, folder: Path | None
) -> Accelerator | Cluster:
    name = data.get("accelerator")
    if kind == "cluster" and isinstance(name, str):
        data = data | {"accelerator": _referred(name, where, folder)}
    try:
        return KINDS[kind].model_validate(data)
    except ValidationError as error:
        raise explain(error, where, KINDS[kind]) from None


def _referred(name: str, where: str, folder: Path | None) -> Accelerator:
    try:
        return accelerator((folder and _beside(name, folder)) or name)
    except ProfileError as error:
        raise ProfileError(f"{where}: accelerator: {error}") from None


def _beside(name: str, folder: Path) -> str:
    """The accelerator's file of that name in a cluster's folder, or with a suffix; empty if none."""
    named = [folder / f"{name}{suffix}" for suffix in SUFFIXES]
    try:
        found = [file for file in named if file.is_file() and _kind_of(file) == "accelerator"]
        return next((str(file) for file in (folder / name, *found) if file.is_file()), "")
    except OSError:  # a name too long for any file
        return ""


def _users_files() -> Iterator[Path]:
    for name in filter(None, os.environ.get(ENVIRONMENT, "").split(os.pathsep)):
        folder = Path(os.path.expanduser(name))
        if not folder.is_dir():
            raise ProfileError(
                f"{ENVIRONMENT}: {name[:200]!r} is not a folder; give that of your profiles"
            )
        yield from _files(folder)


def _files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.suffix in SUFFIXES and p.is_file())


def _state(path: Path) -> tuple[object, ...]:
    """What a cached profile was made from: its own file, and those it may name."""
    try:
        beside = [] if path.is_relative_to(SHIPPED) else _files(path.parent)
    except (OSError, ValueError):
        beside = []
    return tuple((str(file), stamp(file)) for file in (path, *beside, *_users_files()))


def stamp(path: Path) -> tuple[int, int]:
    """What changes when the file does; zeros when there is none."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        return (0, 0)
    return (status.st_mtime_ns, status.st_size)


def _kind_of(path: Path) -> str:
    """Told by the text, unparsed: a broken file is listed too, and says why when loaded."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            text = file.read(reading.MAX_BYTES)
    except OSError:
        return "accelerator"
    said = re.search(r"^[\s{]*\"?kind\"?\s*:\s*[\"']?(\w+)", text, re.MULTILINE)
    if said and said[1] in (*KINDS, "calibration"):
        return said[1]
    if re.search(r"^[\s{]*\"?matmul\"?\s*:", text, re.MULTILINE):
        return "calibration"
    return "cluster" if re.search(r"^[\s{]*\"?tiers\"?\s*:", text, re.MULTILINE) else "accelerator"


def _a(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"
