"""Numbers with units: what is understood, what is questioned, what is refused."""

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from hardware_profiles import quantity
from hardware_profiles.quantity import PREFIXES, SPELLINGS, parse

Read = Callable[[object], float]


def reader(kind: Any) -> Read:
    return TypeAdapter(kind).validate_python


def complaint(value: object, unit: str) -> str:
    """What is wrong with ``value``; nothing if it is a number."""
    try:
        parse(value, unit)
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("text", "unit", "expected"),
    [
        ("400 Gb/s", "B/s", 50e9),
        ("400Gbps", "B/s", 50e9),
        ("400 Gbit/s", "B/s", 50e9),
        ("3.35 TB/s", "B/s", 3.35e12),
        ("800 GiB/s", "B/s", 800 * 2**30),
        ("450e9", "B/s", 450e9),
        (" 80 GB ", "B", 80e9),
        ("256 KiB", "B", 262144),
        ("1,978.9 TFLOP/s", "FLOP/s", 1978.9e12),
        ("312 TFLOPS", "FLOP/s", 312e12),
        ("624 TOPS", "FLOP/s", 624e12),
        ("1_830 MHz", "Hz", 1.83e9),
        ("5 us", "s", 5e-6),
        ("5 µs", "s", 5e-6),
        ("5 μs", "s", 5e-6),
        ("2.50 USD/h", "USD/h", 2.5),
        (".5 s", "s", 0.5),
        (7, "s", 7.0),
    ],
)
def test_understood(text: object, unit: str, expected: float) -> None:
    assert parse(text, unit) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("value", "unit", "said"),
    [
        ("80 GB", "B/s", ["'80 GB'", "'GB' is not a form of B/s", "b/s"]),
        ("7 apples", "B/s", ["'7 apples'", "'apples' is not a form of B/s"]),
        ("400 GB/s", "B", ["'GB/s' is not a form of B", "bytes"]),
        ("400 gb/s", "B/s", ["'gb/s' is not a form of B/s"]),
        ("3,35 TB/s", "B/s", ["'3,35 TB/s' is not a number", "'450 GB/s'"]),
        ("fast", "FLOP/s", ["'fast' is not a number", "'989.4 TFLOP/s'"]),
        ("", "B", ["'' is not a number", "'80 GB'"]),
        ("nan", "B", ["'nan' is not a number"]),
        ("1 2 GB", "B", ["'1 2 GB' is not a number"]),
        (True, "B", ["True is not a number"]),
        (None, "B", ["None is not a number"]),
        ([1], "B", ["[1] is not a number"]),
        ({"a": 1}, "B", ["is not a number"]),
    ],
)
def test_refused(value: object, unit: str, said: list[str]) -> None:
    message = complaint(value, unit)
    for part in said:
        assert part in message


def test_a_long_text_is_refused_at_once_and_not_repeated_whole() -> None:
    with pytest.raises(ValueError, match="is not a number") as caught:
        parse("1" * 1_000_000 + "x", "B")
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        (
            quantity.Bandwidth,
            400,
            "400 B/s is too small to be real, did you mean 400 GB/s or 400 Gb/s?",
        ),
        (quantity.Bandwidth, -1, "-1 B/s must be above zero; allowed: 1 MB/s to 1 EB/s"),
        (quantity.Bandwidth, "-450 GB/s", "must be above zero"),
        (quantity.Bandwidth, 0, "0 B/s must be above zero"),
        (quantity.Bandwidth, math.nan, "nan is not a finite number"),
        (quantity.Bandwidth, math.inf, "inf is not a finite number"),
        (quantity.Bandwidth, "1e999", "inf is not a finite number"),
        (quantity.Bandwidth, 10**400, "inf is not a finite number"),
        (quantity.Bandwidth, 1e30, "is too large to be real; allowed"),
        (quantity.MemoryBytes, 80, "did you mean 80 GB?"),
        (quantity.FlopRate, 989.4, "did you mean 989.4 TFLOP/s?"),
        (quantity.Frequency, 1830, "did you mean 1830 MHz?"),
        (quantity.Frequency, 1.83, "did you mean 1.83 GHz?"),
        (quantity.Latency, 5, "5 s is too large to be real, did you mean 5 us?"),
        (quantity.Latency, -1, "must not be below zero"),
    ],
)
def test_questioned(kind: object, value: object, said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        reader(kind)(value)
    assert said in str(caught.value)


def test_latency_and_price_may_be_zero() -> None:
    assert reader(quantity.Latency)(0) == reader(quantity.Price)("0 USD/h") == 0


UNITS = [(unit, text, worth) for unit, texts in SPELLINGS.items() for text, worth in texts.items()]


@given(
    st.floats(1e-6, 1e12),
    st.sampled_from(sorted(PREFIXES)),
    st.sampled_from(UNITS),
    st.sampled_from(["", " ", "  "]),
)
def test_every_prefix_with_every_spelling_comes_back(
    number: float, prefix: str, unit: tuple[str, str, float], gap: str
) -> None:
    base, spelling, worth = unit
    parsed = parse(f"{number!r}{gap}{prefix}{spelling}", base)
    assert parsed == pytest.approx(number * PREFIXES[prefix] * worth, rel=1e-12)


@given(st.one_of(st.text(max_size=100), st.binary(), st.integers(), st.floats(), st.none()))
def test_anything_at_all_is_a_number_or_a_value_error(value: object) -> None:
    for unit in SPELLINGS:
        message = complaint(value, unit)
        assert not message or "allowed" in message or "give one with its unit" in message
