"""What goes wrong with profiles, said so that a person can mend it."""

from __future__ import annotations

import difflib
import re
import reprlib
from collections.abc import Iterable
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

_FIELD = re.compile(r"[a-z_]\w*(\.\w+)*: ")  # what a message about a field inside begins with


MOST_NAMED = 24  # choices in one sentence


class ProfileError(ValueError):
    """A profile that is unknown, unreadable or wrong; the message names file, field and value."""


class UnfilledUnits(ProfileError):
    """A number of GPUs that leaves a unit of a cluster partly empty; ``nearest`` holds two that do not."""

    def __init__(self, cluster: str, gpus: int, nearest: tuple[int, int]) -> None:
        """Say which numbers fill whole units of ``cluster``."""
        self.nearest = nearest
        below, above = nearest
        super().__init__(
            f"{gpus} GPUs do not fill whole units of {cluster}; "
            f"the nearest numbers are {below} and {above}"
        )


class NoNetwork(ValueError):
    """More GPUs than a cluster without a network has; ``most`` says how many."""

    def __init__(self, message: str, most: int) -> None:
        """Say it in words."""
        self.most = most
        super().__init__(message)


def nearest(name: str, choices: Iterable[str]) -> str:
    """The choices most like ``name``, or all of them when none is close, as the end of a sentence.

    Those that begin with it come first, then those with it as a word, within, or spelt alike.

    >>> nearest("h10-sxm", ["h100-sxm", "b200"])
    'the nearest is h100-sxm'
    >>> nearest("h100", ["gh1000", "oci-h100", "h100-pcie", "h100-sxm"])
    'the nearest are h100-pcie, h100-sxm, oci-h100'
    """
    known, name = list(choices), name[:80]
    folded, low = {choice.lower(): choice for choice in known}, name.lower()
    inside = [choice for choice in known if len(name) > 1 and low in choice.lower()]
    inside.sort(key=lambda choice: _place(low, choice.lower()))
    alike = [folded[hit] for hit in difflib.get_close_matches(low, folded, cutoff=0.5)]
    close = list(dict.fromkeys(inside + alike))[:3]
    if not close:
        rest = len(known) - MOST_NAMED
        more = f" and {rest} more" if rest > 0 else ""
        return f"allowed: {', '.join(known[:MOST_NAMED])}{more}"
    return f"the nearest {'is' if len(close) == 1 else 'are'} {', '.join(close)}"


def all_known(what: str, names: Iterable[str], choices: Iterable[str]) -> None:
    """Nothing where every name is a choice.

    Raises:
        ValueError: the first that is none, with the nearest of ``choices``.
    """
    known = list(choices)
    for name in names:
        if name not in known:
            raise ValueError(f"unknown {what} {name!r}; {nearest(name, known)}")


def _place(part: str, choice: str) -> tuple[bool, bool]:
    """Where ``part`` stands in ``choice``: sorted, at its beginning before at a word's."""
    return not choice.startswith(part), re.search(rf"\b{re.escape(part)}\b", choice) is None


def explain(error: ValidationError, where: str, model: type[BaseModel]) -> ProfileError:
    """A pydantic error of ``model`` as a line per problem: file, field, value, what is allowed."""
    found = error.errors()
    # A list whose every item is wrong is also said to be empty; its items say it better.
    deeper = {p["loc"][:n] for p in found for n in range(len(p["loc"]))}
    told = [p for p in found if p["type"] != "too_short" or p["loc"] not in deeper]
    return ProfileError("\n".join(f"{where}: {_line(problem, model)}" for problem in told))


def _fields(model: type[BaseModel], path: tuple[int | str, ...]) -> list[str]:
    """The fields that there are at a place in a file of ``model``."""
    for part in path:
        about = model.model_fields.get(str(part))
        model = (_model(about.annotation) if about else None) or model
    return [*model.model_fields, *(() if path else ("kind",))]


def _model(annotation: Any) -> type[BaseModel] | None:
    """The model inside a type such as ``tuple[Link, ...]``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model, get_args(annotation))), None)


def _line(problem: Any, model: type[BaseModel]) -> str:
    field = ".".join(str(part) for part in problem["loc"])
    message = str(problem["msg"]).removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        *place, name = problem["loc"]
        return f"{field}: no such field; {nearest(str(name), _fields(model, tuple(place)))}"
    if problem["type"] == "missing":
        return f"{field}: missing, and there is no default"
    if problem["type"] == "value_error":
        if not field:
            return message
        return f"{field}{'.' if _FIELD.match(message) else ': '}{message}"
    shown = reprlib.repr(problem["input"])
    return f"{field}: {shown} is refused; {message[:1].lower()}{message[1:]}"
