"""What goes wrong with profiles, said so that a person can mend it."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError


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


def nearest(name: str, choices: Iterable[str]) -> str:
    """The choices most like ``name``, or all of them when none is close, as the end of a sentence.

    >>> nearest("h10-sxm", ["h100-sxm", "b200"])
    'the nearest is h100-sxm'
    """
    known, name = list(choices), name[:80]
    folded = {choice.lower(): choice for choice in known}
    inside = [choice for choice in known if len(name) > 1 and name.lower() in choice.lower()]
    alike = [folded[hit] for hit in difflib.get_close_matches(name.lower(), folded, cutoff=0.5)]
    close = list(dict.fromkeys(inside + alike))[:3]
    if not close:
        return f"allowed: {', '.join(known)}"
    return f"the nearest {'is' if len(close) == 1 else 'are'} {', '.join(close)}"


def explain(error: ValidationError, where: str, fields: Iterable[str] = ()) -> ProfileError:
    """A pydantic error as a line per problem: file, field, value, what is allowed."""
    return ProfileError(
        "\n".join(f"{where}: {_line(problem, fields)}" for problem in error.errors())
    )


def _line(problem: Any, fields: Iterable[str]) -> str:
    field = ".".join(str(part) for part in problem["loc"])
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        return f"{field}: no such field; {nearest(str(problem['loc'][-1]), fields)}"
    if problem["type"] == "missing":
        return f"{field}: missing, and there is no default"
    if problem["type"] == "value_error":
        return f"{field}: {message}" if field else message
    shown = reprlib.repr(problem["input"])
    return f"{field}: {shown} is refused; {message[:1].lower()}{message[1:]}"
