"""Suspects for a measured step: the one that was planted comes back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hardware_profiles as hp
from roofline.layout import FLASH, OVERLAP, RECOMPUTE, Layout
from roofline.presets import preset
from roofline.suspects import CANDIDATES, candidates, seconds_under, suspects
from roofline.training import Training, training

H100 = hp.cluster("dgx-h100-superpod").resized(64)
LLAMA = preset("llama-3-8b").model
MIXTRAL = preset("mixtral-8x7b").model
LAYOUT = Layout(gpus=64, tp=4, pp=2, batch=64, sequence=4096, chunks=2)


def job(layout: Layout = LAYOUT, **options) -> Training:
    return training(LLAMA, layout, H100, **options)


@pytest.mark.parametrize(
    ("planted", "name"),
    [
        ({"recompute": RECOMPUTE["full"]}, "every layer is recomputed"),
        ({"tp_overlap": OVERLAP["none"]}, "tensor parallelism is not overlapped"),
        ({"dp_overlap": 0}, "data parallelism is not overlapped"),
        ({"sequence_parallel": 0}, "sequence parallelism is off"),
        ({"chunks": 1}, "stages are not interleaved"),
        ({"attention": FLASH["unfused"]}, "attention is not fused"),
        ({"fused": 0}, "norms, rope and activations are not fused"),
        ({"zero": 3}, "weights are gathered for every micro-batch"),
    ],
)
def test_what_was_planted_is_first(planted: dict[str, float], name: str) -> None:
    """A job that runs otherwise than its layout says: its own choice explains it to the digit."""
    measured = float(job(replace(LAYOUT, **planted)).time.seconds)
    found = suspects(job(), measured)
    exact = {each.name: each for each in found.suspects if each.explained == pytest.approx(1.0)}
    assert exact[name].seconds == pytest.approx(measured, rel=1e-12)
    assert dict(exact[name].choices).items() >= planted.items()
    if not found.within:
        assert name in [each.name for each in found.suspects[:3]]
        assert found.suspects[0].name in found.sentence()


def test_a_job_that_fell_back_to_16_bits_is_named() -> None:
    measured = float(job(precision="bf16").time.seconds)
    found = suspects(job(precision="fp8"), measured)
    assert found.suspects[0].name == "matmuls run in 16 bits"
    assert found.suspects[0].explained == pytest.approx(1.0, abs=0.02)  # casts stay in the layout


def test_unbalanced_experts_are_named() -> None:
    layout = Layout(gpus=64, ep=8, batch=64, sequence=4096)
    skewed = training(MIXTRAL, replace(layout, imbalance=1.5), H100)
    found = suspects(training(MIXTRAL, layout, H100), float(skewed.time.seconds))
    assert found.suspects[0].name == "experts are unbalanced"


@given(st.floats(0.3, 10.0))
def test_every_suspect_goes_the_right_way(ratio: float) -> None:
    one = job()
    predicted = float(one.time.seconds)
    found = suspects(one, predicted * ratio)
    assert found.gap == pytest.approx(predicted * (ratio - 1))
    for each in found.suspects:
        assert each.explained >= 0.1
        assert (each.seconds > predicted) == (ratio > 1)
    assert list(found.suspects) == sorted(found.suspects, key=lambda each: each.score)


def test_a_term_grows_by_the_whole_difference() -> None:
    one = job()
    measured = 2 * float(one.time.seconds)
    grown = [each for each in suspects(one, measured).suspects if each.kind == "term"]
    for each in grown:
        seconds = float(np.asarray(one.time.terms[each.name]))
        assert seconds * (each.factor - 1) == pytest.approx(measured / 2)


def test_a_small_difference_is_within_the_error() -> None:
    one = job()
    found = suspects(one, 1.01 * float(one.time.seconds))
    assert found.within
    assert "within the error" in found.sentence()


def test_faster_than_the_peak_of_the_datasheet_has_no_suspects() -> None:
    """6 FLOPs a parameter and token (arXiv:2001.08361, section 2.1), of the 8.03e9 parameters
    without the 0.525e9 of the embedding, over the 989.4e12 FLOP/s of the H100's datasheet."""
    least = 6 * (8.03e9 - 0.525e9) * 64 * 4096 / (64 * 989.4e12)
    found = suspects(job(), 0.99 * least)
    assert not found.possible
    assert not found.suspects
    assert "faster than the datasheet's peak allows" in found.sentence()
    assert "tokens, GPUs and precision" in found.sentence()
    assert found.least == pytest.approx(least, rel=0.08)  # attention is not among the 6
    slower = suspects(job(), 1.01 * found.least)
    assert slower.possible
    assert slower.suspects


def test_one_call_is_each_by_itself() -> None:
    """Predictions in a column are those of single layouts."""
    named = [each for each in candidates(job()) if each.choices]
    together = seconds_under(job(), named)
    alone = [float(job(replace(LAYOUT, **dict(each.choices))).time.seconds) for each in named]
    assert np.allclose(together, alone, rtol=1e-12)


def test_what_the_layout_cannot_have_is_left_out() -> None:
    alone = candidates(job(Layout(gpus=1, batch=4, sequence=4096)))
    assert all(np.isfinite(seconds_under(job(), alone)))
    assert len(candidates(job())) < len(CANDIDATES)
    assert "experts are unbalanced" not in {each.name for each in suspects(job(), 9.0).suspects}


def test_bad_times_are_refused() -> None:
    for bad in (0, -1.0, float("nan"), float("inf"), "7"):
        with pytest.raises(ValueError, match="measured"):
            suspects(job(), bad)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="column"):
        suspects(job(replace(LAYOUT, batch=np.array([64.0, 128.0]))), 1.0)
