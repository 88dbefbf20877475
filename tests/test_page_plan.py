"""The Plan page: it says what the planner says, has a way out of what cannot be, and bears a bad address."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

import hardware_profiles
from dashboard import layout_links, plan_data, plan_figures
from dashboard.explain_data import Predicted
from roofline.export import load
from roofline.layout import ORDER, Layout
from roofline.outcome import outcome
from roofline.planner import Plan, plan
from roofline.presets import preset
from roofline.units import show
from tests.pages import opened, said

ROOT = Path(__file__).parent.parent
JOB = {"model": "llama-3-70b", "gpus": "512", "tokens": "4Mi", "sequence": "8192"}
ASKED = plan_data.Asked(
    preset("llama-3-70b").model, hardware_profiles.cluster("dgx-h100-superpod"), 512, 4 * 2**20,
    8192, "bf16", "achievable", "megatron", 0.08,
)  # fmt: skip


def drawn(app: AppTest) -> dict[str, dict[str, Any]]:
    """Every panel on the page by its title."""
    charts = app.get("bidi_component")
    panels = [panel for chart in charts for panel in json.loads(chart.proto.json)]
    return {panel["title"]: panel for panel in panels}


def click(app: AppTest, label: str) -> AppTest:
    return next(button for button in app.button if button.label == label).click().run()


def found(**changes: Any) -> Plan:
    """The planner's own answer, asked without the dashboard."""
    asked = plan_data.others(ASKED, **changes)
    return plan(
        asked.model, asked.cluster, asked.gpus, tokens=asked.tokens, sequence=asked.sequence,
        precision=asked.precision, framework=asked.framework, headroom=asked.headroom,
        **dict(asked.limits),
    )  # fmt: skip


class TestTheAnswer:
    def test_it_is_the_landing_page_and_answers_at_once(self) -> None:
        app = opened()
        assert [title.value for title in app.title] == ["Which layout?"]
        assert not app.exception
        assert not app.error
        assert not app.warning
        assert app.segmented_control(key="rates").value == "achievable"
        assert app.metric

    def test_it_says_what_the_planner_says(self) -> None:
        app, expected = opened(**JOB, price="2", budget="1T"), found()
        best = expected.best
        assert best is not None
        brought = outcome(best, budget=1e12, price=2.0)
        cards = {card.label: card.value for card in app.metric}
        assert cards["Step time"] == show(float(brought.seconds), "s")
        assert cards["MFU"] == f"{100 * float(brought.mfu):.3g} %"
        assert cards["Memory"] == show(float(best.memory.total), "B")
        assert cards["1 T tokens in"] == show(float(brought.training_seconds), "s")
        costs = {card.label: card.delta for card in app.metric}
        assert costs["1 T tokens in"] == f"${show(float(brought.money))}"
        assert f"{expected.fitting:,} of which fit" in said(app)
        degrees = f"TP {best.layout.tp:g} · CP {best.layout.cp:g} · PP {best.layout.pp:g}"
        assert app.header[0].value.startswith(degrees)

    def test_a_limit_is_kept_and_costs_time(self) -> None:
        app = opened(**JOB, want_tp="8", want_pp="4-8")
        assert app.header[0].value.startswith("TP 8 · PP ")
        cards = {card.label: card.value for card in app.metric}
        limited = found(limits=(("tp", "8"), ("pp", "4-8")))
        assert cards["Step time"] == show(float(limited.ranked["seconds"][0]), "s")
        assert limited.ranked["seconds"][0] > found().ranked["seconds"][0]

    @pytest.mark.parametrize("framework", ["any", "torchtitan", "deepspeed", "fsdp", "nanotron"])
    def test_every_framework(self, framework: str) -> None:
        app = opened(**JOB, framework=framework)
        assert not app.exception
        assert app.metric or "Nothing fits" in app.error[0].value

    @pytest.mark.parametrize(
        ("cluster", "gpus", "model", "dtype"),
        [("h800-deepseek", "2048", "deepseek-v3", "fp8"), ("l40s-box", "8", "llama-3-8b", "bf16"),
         ("pcie-ethernet", "8", "llama-3-8b", "bf16"), ("local", "1", "llama-3-8b", "bf16")],
    )  # fmt: skip
    def test_other_questions(self, cluster: str, gpus: str, model: str, dtype: str) -> None:
        app = opened(cluster=cluster, gpus=gpus, model=model, dtype=dtype, tokens="64Mi")
        assert not app.exception


class TestTheField:
    def test_points_are_layouts_and_none_beats_the_front(self) -> None:
        drawn = plan_data.points(ASKED)
        rows, front = drawn.rows, drawn.front
        fits = rows["fits"] > 0
        assert 100 < len(drawn.words) < 1500
        for seconds, memory in zip(rows["seconds"][fits], rows["memory"][fits], strict=True):
            better = (front["seconds"] < seconds) & (front["memory"] < memory)
            level = (front["seconds"] <= seconds) & (front["memory"] <= memory)
            assert np.any(better | level)
        assert all(
            ("does not fit" in word) != fit for word, fit in zip(drawn.words, fits, strict=True)
        )

    def test_a_point_comes_back_from_its_word(self) -> None:
        expected, drawn = found(), plan_data.points(ASKED)
        for i in range(0, len(drawn.codes), 97):
            one = plan_data.from_code(expected, drawn.codes[i])
            assert float(one.job.time.seconds) == pytest.approx(drawn.rows["seconds"][i])
            assert float(one.job.memory.total) == pytest.approx(drawn.rows["memory"][i])

    def test_a_chosen_layout_stands_beside_the_best(self) -> None:
        expected = found()
        word = plan_data.code(expected.ranked, 50)
        app = opened(**JOB, pick=word)
        assert "The layout chosen" in said(app)
        assert "slower" in said(app)
        app = click(app, "Back to the best")
        assert "The layout chosen" not in said(app)

    @pytest.mark.parametrize("word", ["", "evil", "1_2", "_".join(["nan"] * 15), "3_" * 14 + "3"])
    def test_a_bad_word_is_told_and_the_best_shown(self, word: str) -> None:
        app = opened(**JOB, pick=word)
        assert not app.exception
        assert "The layout chosen" not in [heading.value for heading in app.subheader]
        assert bool(word) == any("not possible here" in info.value for info in app.info)


def test_unbalanced_experts_make_another_plan() -> None:
    """The page's step is that of the planner with the same load of the busiest rank."""
    job = {"model": "mixtral-8x7b", "gpus": "64", "tokens": "1Mi", "uneven": "1.5"}
    app = opened(**job, rates="achievable")
    planned = plan(
        preset("mixtral-8x7b").model, hardware_profiles.cluster("dgx-h100-superpod"), 64,
        tokens=2**20, framework="megatron", imbalance=1.5,
    )  # fmt: skip
    assert planned.best is not None
    cards = {card.label: card.value for card in app.metric}
    assert cards["Step time"] == show(float(planned.best.time.seconds), "s")
    dense = opened(**job | {"model": "llama-3-8b"})
    assert not dense.error
    assert "uneven" not in [box.key for box in dense.number_input]


class TestWaysOut:
    def test_a_limit_that_leaves_nothing_names_the_nearest(self) -> None:
        app = opened(**JOB, want_tp="3")
        assert "tp=3 leaves no layout" in app.error[0].value
        app = click(app, "TP 4")
        assert not app.error
        assert app.header[0].value.startswith("TP 4")

    def test_text_that_is_no_limit(self) -> None:
        app = opened(**JOB, want_pp="many")
        assert "pp: 'many' is refused" in app.error[0].value
        assert not click(app, "No limit on PP").error

    @pytest.mark.parametrize("way", ["Any framework", "No limit on ZeRO stage"])
    def test_a_limit_beyond_the_framework(self, way: str) -> None:
        app = opened(**JOB, want_zero="3")
        assert "zero: 3 is refused, megatron cannot do it" in app.error[0].value
        assert not click(app, way).error

    def test_nothing_fits_says_how_much_and_what_would_do(self) -> None:
        app = opened(model="llama-3-405b", gpus="64", tokens="4Mi")
        expected = found(model=preset("llama-3-405b").model, gpus=64, sequence=4096)
        assert expected.fitting == 0
        assert show(float(expected.smallest["memory"][0]), "B") in app.error[0].value
        more = next(button.label for button in app.button if button.label.endswith("GPUs"))
        app = click(app, more)
        assert not app.error
        assert app.metric

    def test_a_box_without_a_network_goes_back_to_its_gpus(self) -> None:
        app = opened(cluster="l40s-box", model="llama-3-8b", gpus="64", tokens="512Ki")
        assert "l40s-box has 8 GPUs and no network beyond" in app.error[0].value
        app = click(app, "Use 8")
        assert not app.error
        assert not app.exception
        assert app.metric

    def test_less_headroom_is_offered_where_that_is_enough(self) -> None:
        """8 B parameters on every GPU, in ZeRO-1 over 16: some 60 GB of 80."""
        asked = {"model": "llama-3-8b", "gpus": "16", "tokens": "512Ki", "sequence": "4096"}
        limits = {"tp": "1", "pp": "1", "cp": "1"}
        app = opened(**asked, headroom="30", **{f"want_{n}": v for n, v in limits.items()})
        expected = found(
            model=preset("llama-3-8b").model, gpus=16, tokens=2**19, sequence=4096, headroom=0.3,
            limits=tuple(limits.items()),
        )  # fmt: skip
        assert expected.fitting == 0
        label = next(b.label for b in app.button if re.match(r"Keep \d+ % free", b.label))
        app = click(app, label)
        assert not app.error
        assert app.metric

    def test_a_batch_of_no_whole_sequences(self) -> None:
        app = opened(gpus="8", tokens="24Ki", sequence="16384")
        assert "multiples of the sequence" in app.error[0].value
        app = next(b for b in app.button if b.label.endswith("tokens a batch")).click().run()
        assert not app.exception
        assert "multiples of the sequence" not in said(app)

    @pytest.mark.parametrize(
        ("key", "value"),
        [("framework", "evil"), ("headroom", "-3"), ("launch", "<b>"), ("compare", "nothing"),
         ("rates", "1e9; <script>")],
    )  # fmt: skip
    def test_a_bad_address_is_told(self, key: str, value: str) -> None:
        app = opened(**{key: value})
        assert not app.exception
        assert any(f"{key}={value}" in warning.value for warning in app.warning)


class TestSearch:
    def test_a_search_can_be_cancelled_and_leaves_nothing(self) -> None:
        class Stopped(Exception):
            pass

        def stop(share: float, seen: int) -> None:
            raise Stopped

        asked = plan_data.others(ASKED, tokens=8 * 2**20)
        with pytest.raises(Stopped):
            plan_data.planned(asked, stop)
        assert plan_data.planned(asked).fitting > 0  # nothing was kept of the first

    def test_the_same_question_is_not_searched_twice(self) -> None:
        seen: list[int] = []
        asked = plan_data.others(ASKED, tokens=2 * 2**20)
        plan_data.planned(asked, lambda share, count: seen.append(count))
        times = len(seen)
        assert times > 0
        plan_data.planned(replace(asked), lambda share, count: seen.append(count))
        assert len(seen) == times


class TestBelow:
    def test_what_would_help_is_the_library_s(self) -> None:
        panels = drawn(opened(**JOB))
        bars = panels["What hardware would help"]["figure"]["data"][0]
        assert bars["y"][0] == "matmul rate"  # most of this step is matmuls
        assert -50 <= bars["x"][0] < -20
        curves = panels["More GPUs, where the batch grows with the GPUs"]["figure"]["data"]
        assert {"data parallel", "tensor parallel"} <= {curve["name"] for curve in curves}

    def test_the_launch_file_is_the_layout(self) -> None:
        app, best = opened(**JOB), found().best
        assert best is not None
        back = load(app.code[0].value, gpus=512).layout
        for name in ("tp", "pp", "cp", "micro_batch", "chunks", "zero"):
            assert float(getattr(back, name)) == float(getattr(best.layout, name))
        app.selectbox(key="framework").set_value("torchtitan").run()
        assert app.segmented_control(key="launch").value == "torchtitan TOML"
        assert "[parallelism]" in app.code[0].value

    def test_what_a_format_cannot_say_is_told(self) -> None:
        app = opened(**JOB, launch="DeepSpeed JSON")
        assert any("cannot say everything" in warning.value for warning in app.warning)

    @pytest.mark.parametrize("what", ["layouts", "GPUs", "clusters", "models"])
    def test_candidates_side_by_side(self, what: str) -> None:
        app = opened(**JOB, compare=what)
        assert not app.exception
        bars = drawn(app)["Steps, term by term"]["figure"]["data"]
        assert len(bars[0]["x"]) == 2
        total = sum(np.array(bar["x"], float) for bar in bars)
        assert total[0] == pytest.approx(float(found().ranked["seconds"][0]), rel=0.01)

    def test_a_typed_layout(self) -> None:
        app = opened(**JOB)
        app.text_area(key="compare_typed").set_value("TP 8 PP 8").run()
        assert not app.exception
        bars = drawn(app)["Steps, term by term"]["figure"]["data"]
        limited = found(limits=(("tp", "8"), ("pp", "8")))
        total = sum(np.array(bar["x"], float) for bar in bars)
        assert total[2] == pytest.approx(float(limited.ranked["seconds"][0]), rel=0.01)
        app.text_area(key="compare_typed").set_value("what is this").run()
        assert not app.exception
        assert "Your layout" in app.error[0].value


class TestOtherPages:
    def test_explain_shows_the_same_step(self) -> None:
        app = opened(model="llama-3-8b", gpus="64")
        before = {card.label: card.value for card in app.metric}
        app = click(app, "Explain this layout")
        assert [title.value for title in app.title] == ["Where the time goes"]
        after = {card.label: card.value for card in app.metric}
        assert (after["Step time"], after["Memory"]) == (before["Step time"], before["Memory"])

    def test_placement_takes_the_degrees(self) -> None:
        app = click(opened(**JOB), "Place this layout")
        best = found().best
        assert best is not None
        assert not app.exception
        assert not app.error
        assert app.number_input(key="place_TP").value == best.layout.tp
        assert app.number_input(key="place_PP").value == best.layout.pp

    def test_experts_are_an_axis_where_they_lie_inside_the_replicas(self) -> None:
        layout = Layout(64, pp=2, ep=8, order=ORDER["tp-cp-pp-dp"])
        values = layout_links.placement(layout)
        assert values["place_axes"] == ["EP", "PP", "DP"]
        assert (values["place_EP"], values["place_PP"]) == (8, 2)
        assert layout_links.placement(Layout(64, tp=2, ep=8))["place_axes"] == ["TP", "DP"]


def test_bars_side_by_side_are_the_steps() -> None:
    one, other = found().training(0), found().training(30)
    bars = plan_figures.side_by_side({"a": Predicted(one), "b": Predicted(other)})["data"]
    total = sum(np.asarray(bar["x"]) for bar in bars)
    assert total == pytest.approx([float(one.time.seconds), float(other.time.seconds)], rel=0.01)
