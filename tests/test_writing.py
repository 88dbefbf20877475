"""Numbers written with units read back as the very same numbers."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hardware_profiles as hp
from hardware_profiles.quantity import parse
from hardware_profiles.writing import fields, told, unit_of, written

UNITS = ["B", "B/s", "FLOP/s", "Hz", "W", "s", "USD/h"]


@given(st.floats(1e-12, 1e22), st.sampled_from(UNITS))
def test_what_is_written_reads_back_exactly(value: float, unit: str) -> None:
    assert parse(written(value, unit), unit) == value


@given(st.integers(1, 9999), st.integers(-3, 15), st.sampled_from(UNITS))
def test_round_numbers_stay_short(digits: int, power: int, unit: str) -> None:
    text = written(float(f"{digits}e{power}"), unit)
    assert parse(text, unit) == float(f"{digits}e{power}")
    assert len(text) <= 30


def test_units_as_people_write_them() -> None:
    assert written(4e11, "B/s") == "400 GB/s"
    assert written(256 * 1024.0, "B") == "256 KiB"
    assert written(80e9, "B") == "80 GB"
    assert written(parse("1.9 us", "s"), "s") == "1.9 us"
    assert written(2.5, "USD/h") == "2.5 USD/h"
    assert written(0.0, "s") == "0 s"
    assert written(math.inf, "B/s") == "inf B/s"


@given(st.floats(), st.sampled_from(UNITS))
def test_any_number_can_be_told_in_a_few_letters(value: float, unit: str) -> None:
    assert len(told(value, unit)) <= 30
    assert told(value, unit).endswith(unit)


@given(st.floats(1e3, 999e18), st.sampled_from(["B/s", "FLOP/s"]))
def test_a_rate_is_told_with_its_prefix_to_five_digits(value: float, unit: str) -> None:
    text = told(value, unit)
    assert len(text) <= len("1.2345 P") + len(unit)
    assert parse(text, unit) == pytest.approx(value, rel=5e-5)


def test_a_profile_is_written_with_units() -> None:
    said = fields(hp.cluster("dgx-h100-superpod"))
    assert said["tiers"][1]["bandwidth"] == "400 GB/s"
    assert said["accelerator"]["peak_flops"]["bf16"] == "989.4 TFLOP/s"
    assert said["accelerator"]["sms"] == 132
    assert "price" not in said
    assert "bandwidth: 400 GB/s" in hp.to_yaml(hp.cluster("dgx-h100-superpod"))


def test_units_of_fields() -> None:
    assert unit_of(hp.Accelerator, "peak_flops") == "FLOP/s"
    assert unit_of(hp.Accelerator, "l2_bytes") == "B"
    assert unit_of(hp.Accelerator, "sms") == ""
