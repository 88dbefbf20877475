"""Names to profiles: the shipped catalogue, a user's own folder, or a file by its path.

A user's files stand in the folder that ROOFLINE_PROFILES names (or several, separated as in PATH)
and win over shipped ones of the same name. A cluster file names its accelerator (by catalogue name,
or by a path from its own folder), or holds one in place. The cluster ``local`` is the machine that
this runs on.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import ValidationError

from hardware_profiles import reading, writing
from hardware_profiles.errors import ProfileError, explain, nearest
from hardware_profiles.schema import Accelerator, Cluster, Link, NetworkTier

SHIPPED = Path(__file__).parent / "catalog"
ENVIRONMENT = "ROOFLINE_PROFILES"
KINDS: dict[str, type[Accelerator] | type[Cluster]] = {
    "accelerator": Accelerator,
    "cluster": Cluster,
}
LOCAL = "local"

Kind = Literal["accelerator", "cluster", "calibration"]
_FIELDS = sorted({f for m in (Accelerator, Cluster, NetworkTier, Link) for f in m.model_fields})


def accelerators() -> list[str]:
    """Names of every accelerator that can be loaded, sorted."""
    return sorted(index("accelerator"))


def clusters() -> list[str]:
    """Names of every cluster that can be loaded, sorted; ``local`` among them."""
    return sorted({*index("cluster"), LOCAL})


def accelerator(name: str) -> Accelerator:
    """The accelerator called ``name``, or the one in the file ``name``.

    Raises:
        ProfileError: unknown (with the nearest names), unreadable, or wrong (naming the field).
    """
    path = find(name, "accelerator", accelerators())
    profile = _read_file(path, "accelerator", _state(path))
    assert isinstance(profile, Accelerator)
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
    return profile


def read(text: str, where: str = "profile") -> Accelerator | Cluster:
    """The profile that a YAML or JSON text holds; ``where`` names it in messages.

    Raises:
        ProfileError: naming the file, the field, the value and what is allowed.
    """
    data = reading.mapping(text, where)
    return _build(data, _kind(data, where), where, Path())


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
    path = index(kind).get(name)
    if path is None and (os.sep in name or name.endswith((".yaml", ".yml", ".json"))):
        path = Path(os.path.expanduser(name))
    if path is None:
        raise ProfileError(f"no {kind} is called {name[:80]!r}; {nearest(name, choices)}")
    return path


def index(kind: Kind) -> dict[str, Path]:
    """Name to file of every profile of ``kind``; a user's file replaces a shipped one.

    Raises:
        ProfileError: when ROOFLINE_PROFILES names something that is no folder.
    """
    shipped = {path.stem: path for path in (SHIPPED / f"{kind}s").glob("*.yaml")}
    return shipped | {path.stem: path for path in _users_files() if _kind_of(path) == kind}


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


def _build(data: dict[str, Any], kind: str, where: str, folder: Path) -> Accelerator | Cluster:
    name = data.get("accelerator")
    if kind == "cluster" and isinstance(name, str):
        data = data | {"accelerator": _referred(name, where, folder)}
    try:
        return KINDS[kind].model_validate(data)
    except ValidationError as error:
        raise explain(error, where, _FIELDS) from None


def _referred(name: str, where: str, folder: Path) -> Accelerator:
    beside = folder / name
    try:
        return accelerator(str(beside) if beside.is_file() else name)
    except ProfileError as error:
        raise ProfileError(f"{where}: accelerator: {error}") from None


def _users_files() -> Iterator[Path]:
    for name in filter(None, os.environ.get(ENVIRONMENT, "").split(os.pathsep)):
        folder = Path(os.path.expanduser(name))
        if not folder.is_dir():
            raise ProfileError(
                f"{ENVIRONMENT}: {name[:200]!r} is not a folder; give that of your profiles"
            )
        files = (
            p for p in folder.iterdir() if p.suffix in (".yaml", ".yml", ".json") and p.is_file()
        )
        yield from sorted(files)


def _state(path: Path) -> tuple[object, ...]:
    """What a cached profile was made from: its own file, and those it may name."""
    return tuple((str(file), stamp(file)) for file in (path, *_users_files()))


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
