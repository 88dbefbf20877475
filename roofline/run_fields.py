"""Values of a run: read with their type, or refused with field, value and what is allowed.

``checked`` holds a run to ``roofline.run_schema``: after it every value is of its kind, in its range
and spelt as meant, and null is as absent. A name that looks like a slip for a field the run lacks is
refused; any other that is not in the schema is listed as not read. ``Reading`` hands the values out,
and is the one place where a default is taken: what is not stated and not forced is listed as assumed.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from hardware_profiles.errors import nearest
from roofline.names import choose
from roofline.run_schema import BESIDE, FREE, SECTIONS, Field

Run = Mapping[str, Any]
MEANT = {
    "true": "true",
    "yes": "true",
    "on": "true",
    "false": "false",
    "no": "false",
    "off": "false",
}
SLIP = 0.7  # likeness to a field that the run lacks above which a name is taken for a slip
WORD = 4  # letters from which a name may be the beginning of another
SAME = 0.6  # likeness to a choice above which a word is


class RunError(ValueError):
    """A run that cannot be predicted; the message names the field, its value and what is allowed."""


class NotMeasured(RunError):
    """A run that says of nothing how long a step took: it can be predicted, not compared."""


def refused(path: str, value: Any, allowed: str) -> RunError:
    """The error of a value that cannot be.

    >>> refused("tp", "x", "1 to 8")
    RunError("tp: 'x' is refused; allowed: 1 to 8")
    """
    return RunError(f"{path}: {shown(value)} is refused; allowed: {allowed}")


def shown(value: Any) -> str:
    """A value, cut short."""
    try:
        return repr(value)[:60]
    except (RecursionError, ValueError):  # nested too deeply, or too long a number
        return f"this {type(value).__name__}"


def mapping(run: Run, key: str) -> Mapping[str, Any]:
    """An object of the run; empty where there is none."""
    value = run.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise refused(key, value, "an object")
    return value


def checked(run: Run, unread: list[str] | None = None) -> Run:
    """The run with every value as ``run_schema`` has it, and without what is null.

    Args:
        unread: gets a line for each name and each choice of ``extra`` that means nothing here.

    Raises:
        RunError: a name that looks like a slip, a value of the wrong type or out of range.
    """
    return _section(run, "", [] if unread is None else unread)


def _section(values: Run, at: str, unread: list[str]) -> Run:
    table, found = SECTIONS[at], {}
    place = f"{at}." if at else ""
    for key, value in values.items():
        inner = f"{place}{key}"
        if key not in table:
            _unknown(at, key, values, unread)
            found[key] = value
        elif value is not None and inner in SECTIONS:
            found[key] = _section(mapping({inner: value}, inner), inner, unread)
        elif value is not None:
            known = _known(inner, value, table[key], unread) if at in FREE else value
            if known is not None:
                found[key] = READERS[table[key].kind](inner, known, table[key])
    for key, each in table.items():
        if each.needed and key not in found:
            raise RunError(f"{place}{key}: missing, and there is no default")
    return found


def _unknown(at: str, key: str, values: Run, unread: list[str]) -> None:
    """List a name that nobody reads; refuse one that looks like a slip."""
    table, place = SECTIONS[at], f"{at}." if at else ""
    elsewhere = [path for path in _paths() if path.rpartition(".")[2] == key.lower()]
    meant = difflib.get_close_matches(key.lower(), [*table, *BESIDE], 1, SLIP)
    if elsewhere and at not in FREE:
        told = f"the nearest is {elsewhere[0]}"
    elif meant and meant[0] not in BESIDE and values.get(meant[0]) is None:
        told = nearest(key, table)
    elif longer := [n for n in table if values.get(n) is None and _begins(n, key.lower())]:
        told = f"the nearest is {longer[0]}"
    else:
        if at not in FREE:
            unread.append(f"{place}{key[:60]} is not a field: not read")
        return
    raise RunError(
        f"{place}{key[:60]}: {shown(values[key])} is refused; there is no such field; {told}"
    )


def _begins(name: str, key: str) -> bool:
    """One is the other with more words: zero and zero_stage."""
    short, long = sorted((name, key), key=len)
    return len(short) >= WORD and long.startswith(f"{short}_")


def _known(path: str, value: Any, of: Field, unread: list[str]) -> Any:
    """The value without words that are like no choice: those are of a newer release, and listed."""
    if of.kind not in ("choice", "choices"):
        return value
    words = value if isinstance(value, list) else [value]
    strange = [
        word
        for word in words
        if isinstance(word, str)
        and not difflib.get_close_matches(word.lower(), of.choices, 1, SAME)
    ]
    unread += [f"{path}: {shown(word)} is not known, not read" for word in strange]
    if strange == words and words:
        return None
    return [word for word in words if word not in strange] if strange else value


def _paths() -> Iterator[str]:
    for at, table in SECTIONS.items():
        yield from (f"{at}.{key}" if at else key for key in table)


def _number(path: str, value: Any, of: Field) -> Any:
    fits = isinstance(value, int | float) and not isinstance(value, bool)
    if not fits or not of.least <= value <= of.most:  # neither NaN nor infinity lies between
        raise refused(path, value, _range(of))
    return value


def _range(of: Field) -> str:
    return f"{of.least:g}" if of.least == of.most else f"{of.least:g} to {of.most:g}"


def _whole(path: str, value: Any, of: Field) -> int:
    number = _number(path, value, of)
    if number != int(number):
        near = sorted({max(int(of.least), int(number)), int(number) + 1})
        raise refused(path, value, f"whole numbers; the nearest: {' and '.join(map(str, near))}")
    return int(number)


def _flag(path: str, value: Any, _: Field) -> bool:
    if not isinstance(value, bool | int | float) or value not in (0, 1):
        near = MEANT.get(shown(value).strip("'").lower(), "")
        raise refused(path, value, f"true, false{near and f'; the nearest is {near}'}")
    return bool(value)


def _switch(path: str, value: Any, _: Field) -> Any:
    if not isinstance(value, str | int) or value not in (0, 1, "0", "1"):
        raise refused(path, value, 'true, false, or as printed "0" and "1"')
    return value


def _choice(path: str, value: Any, of: Field) -> str:
    name = str(value).lower() if isinstance(value, str | bool | int) else None
    if name is None:
        raise refused(path, value, ", ".join(dict.fromkeys(of.choices.values())))
    try:
        return choose(path, name, of.choices)
    except ValueError as error:
        raise RunError(str(error)) from None


def _choices(path: str, value: Any, of: Field) -> list[str]:
    several = value if isinstance(value, list | tuple) else [value]
    return [_choice(path, each, of) for each in several]


def _text(path: str, value: Any, of: Field) -> str:
    if not isinstance(value, str) or (of.needed and not value):
        raise refused(path, value, "a text")
    return value


def _pattern(path: str, value: Any, of: Field) -> str:
    if isinstance(value, str) and re.fullmatch(of.pattern, value.strip(), re.I | re.S):
        return value
    if isinstance(value, int) and not isinstance(value, bool) and "number" in of.like:
        return f"{_whole(path, value, of)}-token sliding window"
    raise refused(path, value, f"as in {of.like}")


def _any(_: str, value: Any, __: Field) -> Any:
    return value


READERS: Mapping[str, Callable[[str, Any, Field], Any]] = {
    "number": lambda path, value, of: float(_number(path, value, of)),
    "whole": _whole,
    "flag": _flag,
    "switch": _switch,
    "choice": _choice,
    "choices": _choices,
    "text": _text,
    "pattern": _pattern,
    "any": _any,
}


@dataclass(frozen=True, slots=True)
class Reading:
    """A checked run, and what was assumed so far where it does not say."""

    run: Run
    assumed: list[str] = field(default_factory=list)

    def stated(self, path: str) -> Any:
        """The value at a path such as ``model.kv_heads``; None where there is none."""
        found: Any = self.run
        for key in path.split("."):
            found = found.get(key) if isinstance(found, Mapping) else None
        return found

    def whole(self, path: str, default: int = 1, *, forced: bool = False, why: str = "") -> int:
        """A whole number, or its default; ``forced`` where it could be no other."""
        return int(self._taken(path, default, forced, why))

    def flag(self, path: str, default: bool, *, forced: bool = False, why: str = "") -> bool:
        """Yes or no, or its default."""
        return bool(self._taken(path, default, forced, why))

    def text(self, path: str, default: str, *, forced: bool = False, why: str = "") -> str:
        """A text, or its default."""
        return str(self._taken(path, default, forced, why))

    def assume(self, line: str) -> None:
        """List what no single field says."""
        if line and line not in self.assumed:
            self.assumed.append(line)

    def _taken(self, path: str, default: Any, forced: bool, why: str) -> Any:
        value = self.stated(path)
        if value is not None:
            return value
        if not forced:
            told = str(default).lower() if isinstance(default, bool) else default
            self.assume(f"{path} = {told}{why and f', {why}'}")
        return default
