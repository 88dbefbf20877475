"""Fields of a configuration that somebody else wrote: there and of the right type, or refused."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Fields:
    """A mapping and where it came from; ``null`` counts as not stated."""

    values: Mapping[str, Any]
    where: str = ""  # of messages: "config.json: ", "config.json: text_config."

    def named(self, field: str) -> str:
        """The field as messages call it."""
        return f"{self.where}{field}"

    def has(self, field: str) -> bool:
        """Whether the field is stated."""
        return self.values.get(field) is not None

    def first(self, *names: str) -> str:
        """The first of several names that is stated, or the first of all."""
        return next(filter(self.has, names), names[0])

    def whole(self, field: str, default: int | None = None, *, least: int = 1) -> int:
        """A whole number.

        Raises:
            ValueError: when it is missing and has no default, is no whole number or below
                ``least``.

        >>> Fields({"layers": "two"}, "mine.json: ").whole("layers")
        Traceback (most recent call last):
        ValueError: mine.json: layers: 'two' is refused; allowed: a whole number from 1
        """
        value = self._value(field, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self.refused(field, value, f"a whole number from {least}")
        return value

    def flag(self, field: str, default: bool) -> bool:
        """True or false.

        Raises:
            ValueError: when it is neither.
        """
        value = self._value(field, default)
        if not isinstance(value, bool):
            raise self.refused(field, value, "true or false")
        return value

    def text(self, field: str, default: str | None = None) -> str:
        """A text.

        Raises:
            ValueError: when it is missing and has no default, or is no text.
        """
        value = self._value(field, default)
        if not isinstance(value, str):
            raise self.refused(field, value, "a text")
        return value

    def items(self, field: str) -> list[Any]:
        """A list; empty where none is stated.

        Raises:
            ValueError: when it is no list.
        """
        value = self._value(field, [])
        if not isinstance(value, list | tuple):
            raise self.refused(field, value, "a list")
        return list(value)

    def section(self, field: str) -> Fields:
        """A mapping inside this one.

        Raises:
            ValueError: when it is missing or no mapping.
        """
        value = self._value(field, None)
        if not isinstance(value, Mapping):
            raise self.refused(field, value, "a mapping of fields to values")
        return Fields(value, f"{self.named(field)}.")

    def refused(self, field: str, value: Any, allowed: str) -> ValueError:
        """The error that says what was wrong with a field."""
        return ValueError(
            f"{self.named(field)}: {reprlib.repr(value)} is refused; allowed: {allowed}"
        )

    def explain(self, make: Callable[[], Result]) -> Result:
        """What ``make`` returns; its errors say where the numbers came from."""
        try:
            return make()
        except ValueError as error:
            text = str(error)
            known = text if text.startswith(self.where) else f"{self.where}{text}"
            raise ValueError(known) from None

    def _value(self, field: str, default: Any) -> Any:
        value = self.values.get(field)
        if value is not None:
            return value
        if default is None:
            raise ValueError(
                f"{self.named(field)}: missing, and there is no default{self._near(field)}"
            )
        return default

    def _near(self, field: str) -> str:
        from hardware_profiles.errors import nearest

        known = [str(name) for name in self.values]
        near = nearest(field, known) if known else ""
        return f"; {near}" if near.startswith("the nearest") else ""
