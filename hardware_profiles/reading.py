"""A profile's file as a mapping: plain YAML or JSON, of a sane size, no aliases, no key twice.

Files come from strangers too (an upload, a colleague's folder), so nothing here runs code or grows:
ten lines of YAML aliases unfold to gigabytes, and a deep nest overflows the stack.
"""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from hardware_profiles.errors import ProfileError

MAX_BYTES = 1_000_000
MAX_DEPTH = 20
_C_OR_PLAIN: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_C_OR_PLAIN):  # type: ignore[misc]
    """YAML's safe loader, which refuses a key that stands twice instead of forgetting the first."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if str(key.value) in seen:
                problem = f"{key.value!r} stands twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen.add(str(key.value))
        mapping: dict[Hashable, Any] = super().construct_mapping(node, deep)
        return mapping


def text_of(path: Path) -> str:
    """The text of a file.

    Raises:
        ProfileError: when there is none, or it is a folder, binary, or larger than any profile.
    """
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise ProfileError(
                f"{path}: {size} bytes is no profile; allowed: up to {MAX_BYTES} bytes"
            )
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ProfileError(
            f"{path}: is not text in UTF-8; a profile is a YAML or JSON file"
        ) from None
    except (OSError, ValueError) as error:
        if isinstance(error, ProfileError):
            raise
        reason = getattr(error, "strerror", None) or error
        raise ProfileError(f"{str(path)[:200]}: cannot be read: {reason}") from None


def mapping(text: str, where: str) -> dict[str, Any]:
    """The fields that a YAML or JSON text states; ``where`` names it in messages.

    Raises:
        ProfileError: for anything but one plain mapping.

    >>> mapping("name: x", "x.yaml")
    {'name': 'x'}
    """
    if len(text) > MAX_BYTES:
        raise ProfileError(
            f"{where}: {len(text)} characters is no profile; allowed: up to {MAX_BYTES}"
        )
    if text.lstrip().startswith("{"):
        text = text.expandtabs()  # JSON may be indented with tabs, which YAML forbids
    try:
        _refuse_tricks(text, where)
        data = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise ProfileError(f"{where}: not plain YAML: {' '.join(str(error).split())}") from None
    except ProfileError:
        raise
    except (ValueError, TypeError, RecursionError) as error:
        raise ProfileError(f"{where}: a value cannot be read: {str(error)[:200]}") from None
    if data is None:
        raise ProfileError(f"{where}: is empty; a profile is a mapping of fields to values")
    if not isinstance(data, dict):
        raise ProfileError(
            f"{where}: a profile is a mapping of fields to values, not a {type(data).__name__}"
        )
    return {str(key): value for key, value in data.items()}


def _refuse_tricks(text: str, where: str) -> None:
    depth = 0
    for event in yaml.parse(text, Loader=_C_OR_PLAIN):
        if isinstance(event, yaml.AliasEvent):
            line = event.start_mark.line + 1 if event.start_mark else "?"
            raise ProfileError(
                f"{where}: line {line}: aliases (*{event.anchor}) are not allowed; repeat the value"
            )
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(
            event, yaml.CollectionEndEvent
        )
        if depth > MAX_DEPTH:
            raise ProfileError(f"{where}: nested deeper than {MAX_DEPTH} levels; no profile is")
