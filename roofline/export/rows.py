"""Rows of a format: our field and its option, written and read by the same row.

A row writes options from fields and reads fields from options. Reading takes an option away; what
no row takes is handed back as ignored, with the nearest name that is known.

    same("layout.tp", "tp")                 the number as it is
    named("layout.cp_kind", "cp_comm_type", {"ring": "p2p", "ulysses": "a2a"})
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, NamedTuple

from roofline.export.fields import Fields

LARGEST = 10**9
TRUE = {"true": True, "1": True, "yes": True, "on": True}
FALSE = {"false": False, "0": False, "no": False, "off": False}
NOTHING = ("", "none", "null", "~")


ALIKE = "not known here; the nearest is "


class Ignored(NamedTuple):
    """An option of a file that changes nothing here, and why."""

    name: str
    value: Any
    why: str

    @property
    def misspelt(self) -> str:
        """The known option that was probably meant; empty where none is alike."""
        return self.why.removeprefix(ALIKE) if self.why.startswith(ALIKE) else ""


class Options:
    """Options of a file, taken one by one.

    Every reader answers ``default`` where the option is missing and raises ValueError, naming
    option, value and what is allowed, where it is of another kind.
    """

    def __init__(self, values: Mapping[str, Any], label: Callable[[str], str] = str) -> None:
        """``label``: how an option is called in the file."""
        self.left = dict(values)
        self.asked: list[str] = []
        self.ignored: list[Ignored] = []
        self.assumed: list[str] = []
        self.label = label

    def __contains__(self, name: str) -> bool:
        return name in self.left

    def take(self, name: str, default: Any = None) -> Any:
        """The value as the file has it."""
        self.asked.append(self.label(name))
        value = self.left.pop(name, default)
        return default if value is None else value

    def number(self, name: str, default: Any = None, least: float = 1) -> Any:
        """A number of ``least`` or more, whole where it is."""
        given = self.take(name, default)
        if given is default:
            return default
        value = as_number(given)
        if value is None or not least <= value <= LARGEST:
            self.refuse(name, given, f"numbers from {least:g} to {LARGEST:g}")
        return value

    def whole(self, name: str, default: Any = None, least: int = 1) -> Any:
        """A whole number of ``least`` or more."""
        given = self.left.get(name)
        value = self.number(name, default, least)
        if isinstance(value, float):
            self.refuse(name, given, f"whole numbers from {least}")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """Yes or no."""
        given = self.take(name, default)
        if isinstance(given, bool):
            return given
        word = str(given).lower()
        if word not in TRUE | FALSE:
            self.refuse(name, given, "true or false")
        return word in TRUE

    def text(self, name: str, default: str = "") -> str:
        """A word, in small letters."""
        return str(self.take(name, default)).lower()

    def leave(self, name: str, value: Any, why: str) -> None:
        """Hand an option back as ignored."""
        self.ignored.append(Ignored(self.label(name), value, why))

    def refuse(self, name: str, value: Any, allowed: str) -> None:
        """Say that a value cannot be."""
        shown = str(value)[:60]
        unset = "; the variable has no value in the text" if "$" in shown else ""
        raise ValueError(f"{self.label(name)}: {shown!r} is refused; allowed: {allowed}{unset}")

    def clash(self, *names: str) -> None:
        """Raise ValueError where more than one of ``names`` is there and not false."""
        given = [n for n in names if n in self and self.left[n] not in (False, None)]
        if len(given) > 1:
            both = " and ".join(f"{self.label(n)} = {self.left[n]}" for n in given)
            raise ValueError(f"{both} contradict each other; allowed: one of them")


def as_number(value: Any) -> int | float | None:
    """A number or its text as a number, whole where it is; None for anything else."""
    if isinstance(value, bool):
        return None
    try:
        found = float(str(value).replace("_", ""))
    except ValueError:
        return None
    return int(found) if found.is_integer() else found


@dataclass(frozen=True, slots=True)
class Row:
    """One correspondence: fields to options, and back."""

    write: Callable[[Fields], Fields]
    read: Callable[[Options, Fields], Fields]


def same(field: str, option: str, default: Any = None, *, least: int = 1, omit: Any = None) -> Row:
    """A whole number under another name.

    Args:
        default: what the format means where the option is missing; None: nothing.
        omit: a value that is not written.
    """

    def write(fields: Fields) -> Fields:
        value = fields.get(field)
        return {} if value is None or value == omit else {option: value}

    def read(options: Options, fields: Fields) -> Fields:
        value = options.whole(option, default, least)
        return {} if value is None else {field: value}

    return Row(write, read)


def switch(field: str, option: str, default: bool = False, *, on: Any = 1, off: Any = 0) -> Row:
    """Yes or no; ``on`` and ``off`` are the values of our field; the default is not written."""

    def write(fields: Fields) -> Fields:
        value = fields.get(field, off) == on
        return {} if value == default else {option: value}

    return Row(write, lambda o, f: {field: on if o.flag(option, default) else off})


def named(
    field: str,
    option: str,
    names: Mapping[str, str],
    default: str,
    also: Mapping[str, str] | None = None,
) -> Row:
    """A choice by its name there; what has no name there is not written.

    A name that stands for none of ours is handed back as ignored.

    Args:
        names: ours to theirs.
        also: further names of theirs to ours.
    """
    ours = {theirs.lower(): name for name, theirs in names.items()} | dict(also or {})

    def write(fields: Fields) -> Fields:
        theirs = names.get(fields.get(field, default))
        return {option: theirs} if theirs and theirs != names.get(default) else {}

    def read(options: Options, fields: Fields) -> Fields:
        given = options.take(option)
        found = default if given is None else ours.get(_word(given))
        if found is None:
            options.leave(option, given, f"not modelled; {field} = {default} in its place")
        return {field: found or default}

    return Row(write, read)


def _word(value: Any) -> str:
    only = value[0] if isinstance(value, list) and len(value) == 1 else value
    return str(only).lower()


def written(rows: Sequence[Row], fields: Fields) -> Fields:
    """Options of all rows, in their order."""
    found: Fields = {}
    for row in rows:
        found |= row.write(fields)
    return found


def read(rows: Sequence[Row], options: Options, fields: Fields | None = None) -> Fields:
    """Fields of all rows; a later row sees what the earlier ones have found."""
    found = dict(fields or {})
    for row in rows:
        found |= row.read(options, found)
    return found


def leftovers(options: Options) -> tuple[Ignored, ...]:
    """What no row took, and what a row handed back."""
    rest = [
        Ignored(options.label(name), value, _why(options.label(name), options.asked))
        for name, value in options.left.items()
    ]
    return (*options.ignored, *rest)


def _why(name: str, known: Sequence[str]) -> str:
    if name.startswith("$"):
        return "the variable has no value in the text"
    near = get_close_matches(name, known, 1, 0.85)
    return f"{ALIKE}{near[0]}" if near else "no part of the prediction"


def nested(options: Mapping[str, Any]) -> Fields:
    """Dotted names as mappings in mappings."""
    tree: Fields = {}
    for name, value in options.items():
        place = tree
        *above, last = name.split(".")
        for key in above:
            place = place.setdefault(key, {})
        place[last] = value
    return tree


def dotted(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Mappings in mappings as dotted names."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from dotted(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
