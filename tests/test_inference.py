"""Decode, prefill and serving against the scaling book's tables, and their laws."""

from collections import deque

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardware_profiles import accelerator
from roofline.counting import kv_cache_bytes, parameters
from roofline.inference import (
    SWITCH,
    TORUS,
    Decode,
    Lanes,
    critical_batch,
    decode,
    evicted_tokens,
    hbm_over_link,
    largest_batch,
    latency_bound_bytes,
    prefill,
    server_ratio,
    sharding_limit,
    weight_stationary,
)
from roofline.machine import Ideal, Tier
from roofline.presets import preset

V5E = Ideal(197e12, (Tier(16, 45e9),), hbm_bandwidth=820e9, hbm_bytes=16e9)
H100 = Ideal(989.5e12, (Tier(8, 450e9),), hbm_bandwidth=3.35e12, hbm_bytes=80e9)


def llama_2_13b(batch: float) -> Decode:
    cache = kv_cache_bytes(preset("llama-2-13b").shape, 8192)
    return decode(V5E, parameters=13e9, batch=batch, cache_bytes=cache, gpus=8)


BATCHES = np.array([1.0, 8, 16, 32, 64, 240])
PRINTED = {  # bytes of a cache → ms and tokens/s of each batch
    6.7e9: (
        [4.98, 12.13, 20.30, 36.65, 69.33, 249.09],
        [200.61, 659.30, 787.99, 873.21, 923.13, 963.53],
    ),
    1.34e9: (
        [4.17, 5.60, 7.23, 10.50, 17.04, 52.99],
        [239.94, 1429.19, 2212.48, 3047.62, 3756.62, 4529.34],
    ),
}


@pytest.mark.parametrize("cache", PRINTED)
def test_llama_2_13b_on_8_v5e(cache: float) -> None:
    """How to Scale Your Model, "Inference", modeling throughput and latency for LLaMA 2-13B: both
    tables, digit by digit.
    """
    step = decode(V5E, parameters=13e9, batch=BATCHES, cache_bytes=cache, gpus=8)
    milliseconds, tokens = PRINTED[cache]
    assert step.seconds * 1e3 == pytest.approx(milliseconds, abs=0.00501)
    assert step.throughput == pytest.approx(tokens, abs=0.00501)


def test_lecture_10() -> None:
    """CS336 lecture 10: LLaMA 2-13B, 1024 tokens, B = 64 on one H100: 2689 tokens/s."""
    shape = preset("llama-2-13b").shape
    step = decode(
        H100,
        parameters=parameters(shape).matmuls,
        batch=64,
        cache_bytes=kv_cache_bytes(shape, 1024),
    )
    assert step.throughput == pytest.approx(2689, abs=1)


@given(st.floats(1, 1e4))
def test_compute_bound_from_the_critical_batch_on(batch: float) -> None:
    """The two terms cross where ``critical_batch`` says."""
    limit = critical_batch(V5E)
    assert limit == pytest.approx(240, abs=1)
    if abs(batch / limit - 1) > 1e-9:
        assert bool(llama_2_13b(batch).compute_bound) == (batch > limit)


def test_experts_and_quantisation() -> None:
    """How to Scale Your Model, "Transformers", question 8: 3840 tokens for int8, E = 256, k = 8."""
    chip = Ideal(240.0, hbm_bandwidth=1.0)
    assert critical_batch(chip, weight_bytes=1, experts=256, experts_per_token=8) == 3840
    with pytest.raises(ValueError, match="experts_per_token"):
        critical_batch(chip, experts=2, experts_per_token=3)
    sparse = decode(V5E, parameters=671e9, active=37e9, batch=8, cache_bytes=0, gpus=100)
    dense = decode(V5E, parameters=37e9, batch=8, cache_bytes=0, gpus=100)
    assert sparse.math.seconds == dense.math.seconds
    assert sparse.weights.seconds > dense.weights.seconds


@given(st.floats(1, 1e3), st.floats(1.01, 10), st.integers(1, 64))
def test_a_larger_batch_is_slower_and_yields_more(batch: float, more: float, gpus: int) -> None:
    """Latency against throughput; n chips are n times as fast."""
    small, large = llama_2_13b(batch), llama_2_13b(batch * more)
    assert large.seconds >= small.seconds
    assert large.throughput >= small.throughput * (1 - 1e-12)
    alone = decode(V5E, parameters=13e9, batch=batch, cache_bytes=1e9)
    spread = decode(V5E, parameters=13e9, batch=batch, cache_bytes=1e9, gpus=gpus)
    assert alone.seconds == pytest.approx(spread.seconds * gpus)


def test_an_array_is_its_points() -> None:
    """One code path."""
    batches = np.array([1, 64, 240, 512])
    together = llama_2_13b(batches)
    for k, batch in enumerate(batches.tolist()):
        assert np.asarray(together.seconds)[k] == llama_2_13b(batch).seconds


def test_largest_batch() -> None:
    """How to Scale Your Model, "Inference", question 2, by hand: 256 GB less 18.4 GB of weights
    hold 110 caches of 2.15 GB; none where the weights do not fit.
    """
    cache = 2 * 64 * 8 * 256 * 8192
    fit = largest_batch(V5E, parameters=18.4e9, cache_bytes=cache, gpus=16, weight_bytes=1)
    assert fit == 110
    used = decode(V5E, parameters=18.4e9, batch=fit, cache_bytes=cache, weight_bytes=1).memory
    assert used <= 16 * 16e9 < used + cache
    assert largest_batch(V5E, parameters=13e9, cache_bytes=1e9) == 0


def test_prefill() -> None:
    """How to Scale Your Model, "Serving LLaMA 3-70B": 0.91 s for 8192 tokens on 16 v5e at 40 %."""
    term = prefill(V5E, parameters=70e9, tokens=8192, gpus=16, mfu=0.4)
    assert term.seconds == pytest.approx(0.91, abs=0.005)


def test_serving() -> None:
    """The same chapter: 96 tokens leave per step, three prefill servers for a generate server."""
    assert evicted_tokens(32, 8192, 4096) == 96
    assert server_ratio(0.91, 0.019, 32, 512) == pytest.approx(3, abs=0.01)


def test_evictions_counted_step_by_step() -> None:
    """Slots that end one after another, each replaced by a prompt of P."""
    slots, prompt, generated = 8, 30, 16
    ages = deque(range(0, generated, generated // slots))
    evicted = 0
    for _ in range(10 * generated):
        ages = deque(age + 1 for age in ages)
        ended = sum(age == generated for age in ages)
        evicted += ended * (prompt + generated)
        ages = deque(0 if age == generated else age for age in ages)
    assert evicted / (10 * generated) == evicted_tokens(slots, prompt, generated)


def test_sharding_limit() -> None:
    """How to Scale Your Model, "Inference": 64 ways at B = 32 and β = 8; an H100's β is 7.4."""
    assert sharding_limit(16384, 32, 8) == 64
    assert hbm_over_link(H100) == pytest.approx(7.44, abs=0.005)
    with pytest.raises(ValueError, match="tier"):
        hbm_over_link(H100, 1)


def test_latency_bound() -> None:
    """How to Scale Your Model, "Inference", appendix C: 360 kB over 8 v5e."""
    assert latency_bound_bytes(45e9, 1e-6, 8) == pytest.approx(360e3)


@given(st.sampled_from([TORUS, SWITCH]), st.integers(9, 10**5), st.floats(1, 8))
def test_two_dimensions_are_faster_beyond_the_crossover(
    lanes: Lanes, gpus: int, ratio: float
) -> None:
    """And at no other split is 2D faster than at its own."""
    d, f, w = 4096.0, 4096.0 * ratio, 45e9
    found = weight_stationary(64, d, f, gpus, w, lanes=lanes)
    x = np.linspace(1.001, gpus, 999)
    others = 4 * 64 / w * (d / (x * lanes.yz) + f * x / (gpus * lanes.x))
    assert found.two_dimensional <= others.min() * (1 + 1e-9)
    if gpus > found.crossover * 1.0001:
        assert found.two_dimensional < found.one_dimensional
    if found.x > 1.0001 and gpus < found.crossover * 0.9999:
        assert found.two_dimensional > found.one_dimensional


def test_weight_stationary() -> None:
    """How to Scale Your Model, "Inference", question 7: 128 (3/4)² = 72, printed as 81; X = √(N/8).
    One chip has nobody to talk to.
    """
    found = weight_stationary(64, 4096, 16384, 512, 45e9)
    assert found.crossover == 72
    assert found.x == pytest.approx(8)
    assert found.two_dimensional == pytest.approx(128**0.5 * 64 * 4096 / (512**0.5 * 45e9))
    alone = weight_stationary(64, 4096, 16384, 1, 45e9)
    assert alone.one_dimensional == alone.two_dimensional == 0


def test_a_profile_is_a_machine_too() -> None:
    """Rates of an accelerator as shipped."""
    chip = accelerator("scaling-book-tpu-v5e")
    v5e = Ideal(chip.flops("bf16"), hbm_bandwidth=chip.hbm_bandwidth)
    assert critical_batch(v5e) == pytest.approx(240, rel=0.02)
