"""Searches over GPUs, clusters, batch and sequence, held against plans of every value."""

from collections.abc import Callable
from typing import Any

import pytest

import hardware_profiles as hw
from roofline import searches, tries
from roofline.outcome import outcome
from roofline.planner import plan
from roofline.presets import preset
from roofline.searches import Search
from roofline.units import DAY, show

H100 = hw.cluster("dgx-h100-superpod")
A100 = hw.cluster("dgx-a100-superpod")
LLAMA = preset("llama-3-8b").model
FEW: dict[str, Any] = {"framework": "megatron", "cp": 1, "schedule": "1f1b", "chunks": 1}
ASKED: dict[str, Any] = {"tokens": 128 * 4096, "sequence": 4096, **FEW}


def days(gpus: int, budget: float) -> float:
    found = plan(LLAMA, H100, gpus, **ASKED)
    return float(outcome(found.best, budget=budget).days) if found.best else float("inf")


class TestSmallest:
    @pytest.mark.parametrize("deadline", [20.0, 60.0])
    def test_no_smaller_number_that_was_tried_would_do(self, deadline: float) -> None:
        answer = searches.smallest(LLAMA, H100, budget=1e11, days=deadline, **ASKED).answer
        assert answer.best is not None
        assert days(answer.best.value, 1e11) <= deadline
        ladder = searches.gpu_counts(H100, most=answer.best.value - 1)
        assert all(days(gpus, 1e11) > deadline for gpus in ladder)
        assert f"{answer.best.value:,} GPUs" in answer.sentence

    def test_a_deadline_that_no_number_meets(self) -> None:
        answer = searches.smallest(LLAMA, H100, budget=1e14, days=1, most=64, **ASKED).answer
        assert answer.best is None
        assert "on up to 64 GPUs" in answer.sentence or "not met" in answer.sentence

    def test_the_fastest_that_misses_is_named(self) -> None:
        answer = searches.smallest(LLAMA, H100, budget=3e12, days=5, **ASKED).answer
        assert answer.best is None
        fastest = min((one for one in answer.tries if one.fits), key=lambda one: one.seconds)
        assert f"not met by any number of GPUs up to {tries.MOST_GPUS:,}" in answer.sentence
        step = f"the fastest step, {show(fastest.seconds, 's')} on {fastest.value:,}, takes"
        assert step in answer.sentence
        assert min(one.days for one in answer.tries) > 5

    def test_a_deadline_below_any_step_does_not_blame_the_memory(self) -> None:
        """The deadline asks for a thousand times the GPUs that the batch can keep busy."""
        answer = searches.smallest(LLAMA, H100, budget=3e12, days=0.01, most=512, **ASKED).answer
        assert answer.best is None
        assert "no layout fits" not in answer.sentence
        counts = searches.gpu_counts(H100, 8, 512)
        alone = {gpus: days(gpus, 3e12) for gpus in counts}
        fastest = min(alone, key=lambda gpus: alone[gpus])
        assert f" on {fastest:,}, takes {show(alone[fastest] * DAY, 's')}" in answer.sentence

    def test_a_box_without_a_network_ends_with_its_gpus(self) -> None:
        box = hw.cluster("l40s-box")
        answer = searches.smallest(LLAMA, box, budget=1e13, days=10, **ASKED).answer
        assert answer.best is None
        assert max(one.value for one in answer.tries) == 8
        assert "l40s-box has 8 GPUs and no network beyond" in answer.sentence
        assert searches.gpu_counts(box) == [1, 2, 3, 4, 6, 8]


class TestCheapest:
    def test_the_least_money_of_the_ladder(self) -> None:
        answer = searches.cheapest(LLAMA, H100, budget=1e11, price=2.5, **ASKED).answer
        assert answer.best is not None
        hours = {gpus: days(gpus, 1e11) * 24 * gpus for gpus in searches.gpu_counts(H100, most=256)}
        assert answer.best.money == pytest.approx(2.5 * min(hours.values()), rel=1e-9)

    def test_a_deadline_costs_more_and_is_kept(self) -> None:
        free = searches.cheapest(LLAMA, H100, budget=1e11, price=2.5, **ASKED).answer.best
        bound = searches.cheapest(LLAMA, H100, budget=1e11, price=2.5, days=5, **ASKED).answer.best
        assert free is not None
        assert bound is not None
        assert bound.days <= 5 < free.days
        assert bound.money >= free.money

    def test_it_needs_a_price(self) -> None:
        with pytest.raises(ValueError, match=r"price: .* states none; allowed: a price"):
            searches.cheapest(LLAMA, H100, budget=1e11, **ASKED)


class TestClusters:
    def test_each_is_its_own_plan_and_the_fastest_is_the_answer(self) -> None:
        answer = searches.over_clusters(LLAMA, [A100, H100], 16, **ASKED).answer
        assert [one.value for one in answer.tries] == [A100.name, H100.name]
        assert answer.best is not None
        assert answer.best.value == H100.name
        for one, where in zip(answer.tries, (A100, H100), strict=True):
            alone = plan(LLAMA, where, 16, **ASKED)
            assert one.seconds == float(alone.ranked["seconds"][0])
        assert f"{A100.name} " in answer.sentence

    def test_one_that_cannot_keeps_its_reason(self) -> None:
        answer = searches.over_clusters(LLAMA, [A100, H100], 16, precision="fp8", **ASKED).answer
        assert answer.best is not None
        assert answer.best.value == H100.name
        assert "fp8" in answer.tries[0].reason

    def test_an_uncalibrated_one_puts_all_on_the_rates_of_their_datasheets(self) -> None:
        pair = [H100, hw.cluster("mi300x-pod")]
        answer = searches.over_clusters(LLAMA, pair, 16, **ASKED).answer
        for one, where in zip(answer.tries, pair, strict=True):
            assert one.seconds == float(
                plan(LLAMA, where, 16, rates="peak", **ASKED).ranked["seconds"][0]
            )
        assert "nobody has calibrated whole steps of mi300x-pod" in answer.sentence
        at_peak = searches.over_clusters(LLAMA, pair, 16, rates="peak", **ASKED).answer
        assert "calibrated" not in at_peak.sentence

    def test_none_is_refused(self) -> None:
        with pytest.raises(ValueError, match="clusters: none is given"):
            searches.over_clusters(LLAMA, [], 16, **ASKED)


class TestBatch:
    def test_the_smallest_that_reaches_the_share(self) -> None:
        answer = searches.largest_batch(LLAMA, H100, 16, **FEW).answer
        most = max(one.tokens_per_second for one in answer.tries)
        assert answer.best is not None
        assert answer.best.tokens_per_second >= 0.95 * most
        smaller = [one for one in answer.tries if one.value < answer.best.value]
        assert smaller
        assert all(one.tokens_per_second < 0.95 * most for one in smaller)
        last = [one.tokens_per_second for one in answer.tries][-3:]
        assert last[2] < tries.GAIN * last[1] < tries.GAIN**2 * last[0]  # no more to be had

    @pytest.mark.parametrize("gpus", [7, 24])
    def test_odd_numbers_of_gpus(self, gpus: int) -> None:
        answer = searches.largest_batch(LLAMA, H100, gpus, most=2**22, **FEW).answer
        assert answer.best is not None
        assert answer.best.value <= 2**22

    def test_a_share_of_more_than_all_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"share: 2 is refused; .* the nearest: 1"):
            searches.largest_batch(LLAMA, H100, 16, share=2)


class TestSequence:
    def test_what_is_longer_does_not_fit(self) -> None:
        answer = searches.longest_sequence(LLAMA, H100, 8, tokens=2**17, **FEW).answer
        best = answer.best
        assert best is not None
        assert best.fits
        beyond = [one for one in answer.tries if one.value > best.value]
        assert beyond
        assert not any(one.fits for one in beyond)
        nearest = min(one.value for one in beyond)
        assert nearest <= best.value * 9 / 8  # an eighth of a doubling, at the coarsest
        assert "does not fit" in answer.sentence

    def test_a_model_that_fits_nowhere(self) -> None:
        large = preset("llama-3-405b").model
        answer = searches.longest_sequence(large, H100, 8, tokens=2**17, **FEW).answer
        assert answer.best is None
        assert "no sequence" in answer.sentence

    def test_a_limit_that_is_reached(self) -> None:
        answer = searches.longest_sequence(LLAMA, H100, 8, tokens=2**17, most=4096, **FEW).answer
        assert answer.best is not None
        assert answer.best.value == 4096
        assert "was tried" in answer.sentence


BAD: list[tuple[Callable[[], Search], str]] = [
    (lambda: searches.smallest(LLAMA, H100, budget=1e9, days=0, **ASKED), "days: 0 is refused"),
    (lambda: searches.smallest(LLAMA, H100, budget=-1, days=3, **ASKED), "budget: -1 is refused"),
    (
        lambda: searches.cheapest(LLAMA, H100, budget=1e9, price=0, **ASKED),
        "price: 0 is refused",
    ),
    (lambda: searches.longest_sequence(LLAMA, H100, 8, tokens=0), "tokens: 0 is refused"),
    (
        lambda: searches.longest_sequence(LLAMA, H100, 8, tokens=8, least=0),
        "least: 0 is refused",
    ),
]


@pytest.mark.parametrize(("make", "message"), BAD)
def test_what_cannot_be_is_refused_at_once(make: Callable[[], Search], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_a_search_streams_and_may_be_left() -> None:
    search = searches.smallest(LLAMA, H100, budget=1e11, days=5, **ASKED)
    first = next(iter(search))
    assert search.seen == [first]
    answer = search.answer  # goes on where it was left
    assert first in answer.tries
    assert len(answer.to_frame()) == len(answer.tries)


def test_rows_are_in_si_units() -> None:
    answer = searches.cheapest(LLAMA, H100, budget=1e11, price=2.0, most=32, **ASKED).answer
    row = next(row for row in answer.rows() if row["money"])
    assert row["tokens_per_s"] == pytest.approx(128 * 4096 / row["step_s"])
    assert row["train_s"] == pytest.approx(1e11 / row["tokens_per_s"])
    assert row["money"] == pytest.approx(2.0 * row["value"] * row["train_s"] / 3600)


def test_ladder_between() -> None:
    assert tries.between(H100, 32, 64) == [40, 48, 56]
    assert tries.between(H100, 1, 8) == [2, 3, 4, 5, 6, 7]
    assert tries.between(H100, 64, 65) == []
