"""Jobs side by side: the rows sum to the wholes, and what is said is what the numbers say."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import hardware_profiles as hw
from roofline.compare import Comparison, compare, one_footing
from roofline.layout import Layout
from roofline.outcome import outcome
from roofline.planner import Plan, plan
from roofline.presets import preset
from roofline.training import Training, training

H100 = hw.cluster("dgx-h100-superpod")
A100 = hw.cluster("dgx-a100-superpod")
MI300X = hw.cluster("mi300x-pod")  # nobody has calibrated whole steps of it
LLAMA = preset("llama-3-8b").model


def job(cluster: hw.Cluster = H100, **more: Any) -> Training:
    return training(LLAMA, Layout(**{"gpus": 32, "batch": 128, "sequence": 4096, **more}), cluster)


def found(gpus: int = 16, **more: Any) -> Plan:
    few = {"framework": "megatron", "chunks": 1, "cp": 1}
    return plan(LLAMA, H100, gpus, tokens=64 * 4096, sequence=4096, **few, **more)


TWO = compare([job(tp=2), job(tp=8)])


def test_terms_sum_to_the_step_and_parts_to_the_memory() -> None:
    assert sum(TWO.terms.values()) == pytest.approx(TWO.seconds, rel=1e-12)
    assert sum(TWO.shares.values()) == pytest.approx(np.ones(2), rel=1e-12)
    assert sum(TWO.parts.values()) == pytest.approx(TWO.memory, rel=1e-9)


def test_numbers_are_those_of_each_alone() -> None:
    for place, one in enumerate((job(tp=2), job(tp=8))):
        alone = outcome(one)
        assert TWO.seconds[place] == float(one.time.seconds)
        assert TWO.mfu[place] == pytest.approx(float(alone.mfu))
        assert TWO.tokens_per_second_per_gpu[place] == pytest.approx(
            float(alone.tokens_per_second_per_gpu)
        )


def test_the_sentence_says_by_how_much_and_why() -> None:
    (said,) = TWO.sentences
    slower = TWO.seconds[1] / TWO.seconds[0] - 1
    assert slower > 0
    assert f"{slower:.1%} slower than" in said
    term = max(TWO.terms, key=lambda name: abs(np.diff(TWO.terms[name])[0]))
    assert f": {term} " in said


def test_plans_stand_for_their_best() -> None:
    plans = [found(), found(tp=4)]
    side = compare(plans, ["free", "tp 4"])
    assert side.names == ("free", "tp 4")
    assert [float(p.ranked["seconds"][0]) for p in plans] == pytest.approx(list(side.seconds))


def test_datasheet_rates_are_not_set_against_calibrated_ones() -> None:
    """Both at their peaks: the matmuls of one job differ by the ratio of the datasheets' 989.4 and
    1307.4 TFLOP/s in bf16."""
    both = compare([job(tp=2), job(MI300X, tp=2)])
    assert [one.fit for one in both.jobs] == [None, None]
    ratio = both.terms["matmuls"][0] / both.terms["matmuls"][1]
    assert ratio == pytest.approx(1307.4 / 989.4, rel=0.02)
    assert "nobody has calibrated whole steps of mi300x-pod" in both.footing
    assert both.footing in repr(both)
    assert both.footing in both._repr_html_()


def test_peak_rates_that_were_asked_for_are_kept_beside_calibrated_ones() -> None:
    ideal = training(LLAMA, job(tp=2).layout, H100, rates="peak")
    both = compare([job(tp=2), ideal], ["achievable", "peak"])
    assert both.footing == ""
    assert both.seconds[0] > both.seconds[1]


def test_all_uncalibrated_or_all_calibrated_need_no_footing() -> None:
    assert one_footing({"a": MI300X, "b": MI300X}) == ""
    assert one_footing({"a": H100, "b": A100}) == ""
    assert one_footing({"a": H100, "b": MI300X}).endswith("whole steps of b.")


def test_other_sizes_compare_by_gpu_seconds_for_a_million_tokens() -> None:
    side = compare([job(tp=2), job(tp=2, gpus=64, batch=128)])
    assert not side.alike
    want = side.seconds * np.array([32, 64]) / (128 * 4096) * 1e6
    assert side.costs == pytest.approx(want)
    assert "GPU seconds for a million tokens" in side.sentences[0]
    ratio = want[1] / want[0] - 1
    assert f"{abs(ratio):.1%} {'slower' if ratio > 0 else 'faster'} than" in side.sentences[0]


def test_what_does_not_fit_says_so() -> None:
    large = preset("llama-3-70b").model
    one = training(large, Layout(32, tp=8, pp=4, batch=32, sequence=4096), H100)
    two = training(large, Layout(32, tp=8, batch=32, sequence=4096), H100)
    assert "and it does not fit" in compare([one, two]).sentences[0]


@pytest.mark.parametrize(
    ("jobs", "names"),
    [
        ([job(), job(A100)], (H100.name, A100.name)),
        ([job(tp=2), job(tp=4)], ("TP 2 · DP 16", "TP 4 · DP 8")),
        ([job(), job()], ("1: DP 32", "2: DP 32")),
        ([job(), job(gpus=64)], ("32 GPUs", "64 GPUs")),
    ],
)
def test_names_are_what_differs(jobs: list[Training], names: tuple[str, ...]) -> None:
    assert compare(jobs).names == names


def test_text_html_and_frame_have_every_job() -> None:
    frame = TWO.to_frame()
    assert list(frame.columns) == list(TWO.names)
    assert frame.loc[("step", "seconds")].tolist() == TWO.seconds.tolist()
    for text in (repr(TWO), TWO._repr_html_()):
        assert all(name in text for name in TWO.names)
        assert "matmuls" in text
    odd = Comparison(("a<b", "c"), TWO.jobs)
    assert "a&lt;b" in odd._repr_html_()


@pytest.mark.parametrize(
    ("jobs", "names", "message"),
    [
        ([job()], None, "jobs: 1 is refused; allowed: two and more"),
        ([job(), job(tp=2)], ["one"], "names: one is refused; allowed: 2 that differ"),
        ([job(), job(tp=2)], ["one", "one"], "allowed: 2 that differ"),
        (
            [job(), replace(job(), layout=replace(job().layout, tp=np.array([1.0, 2.0])))],
            None,
            "number 2 is a column of 2 layouts",
        ),
    ],
)
def test_bad_input(jobs: list[Training], names: list[str] | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compare(jobs, names)


def test_a_plan_in_which_nothing_fits() -> None:
    none = plan(preset("llama-3-405b").model, H100, 8, tokens=8 * 4096, sequence=4096, tp=8)
    with pytest.raises(ValueError, match="number 2 is a plan in which no layout fits"):
        compare([job(), none])
