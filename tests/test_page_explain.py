"""The Explain page: it says what the library says, mends what cannot be, and bears a bad address."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest
from typer.testing import CliRunner

import hardware_profiles
from dashboard import custom_model, explain_data, layout_bar
from dashboard import explain_figures as figures
from dashboard.explain_data import Explained, explained
from roofline import cli
from roofline.dims import Dims
from roofline.footprint import peak
from roofline.layout import RECOMPUTE, SCHEDULE, ZERO_KIND, Layout
from roofline.outcome import outcome
from roofline.playback import chrome_trace, played
from roofline.presets import preset, presets
from roofline.units import show
from roofline.workload import Workload
from tests.pages import opened, panels, said

ROOT = Path(__file__).parent.parent
CLUSTER = hardware_profiles.cluster("dgx-h100-superpod")
JOB = {"model": "llama-3-8b", "gpus": "64", "tp": "4", "pp": "2", "rates": "achievable"}
LAYOUT = Layout(
    gpus=64, tp=4, pp=2, batch=256.0, sequence=4096, sequence_parallel=1.0, dp_overlap=1.0,
    pp_overlap=1.0, fused_loss=0.0, graphs=0.0,
)  # fmt: skip


def click(app: AppTest, label: str) -> AppTest:
    return next(button for button in app.button if button.label == label).click().run()


def found(layout: Layout = LAYOUT, model: str = "llama-3-8b", **options: Any) -> Explained:
    cluster = CLUSTER.resized(int(layout.gpus))
    return explained(
        preset(model).model, layout, cluster, "bf16", options.get("rates", "achievable")
    )


class TestTheAnswer:
    def test_first_paint_has_a_layout_that_fits(self) -> None:
        app = opened("explain")
        assert not app.exception
        assert not app.error
        assert not app.warning
        assert app.number_input(key="tp").value == 8
        assert [panel["title"] for panel in panels(app)][:3] == [
            "Where the time of a step goes", "Operations under their ceilings",
            "Memory by stage and kind",
        ]  # fmt: skip

    def test_it_says_what_the_library_says(self) -> None:
        app = opened("explain", **JOB, price="2", budget="1T")
        expected = found()
        brought = outcome(expected.job, budget=1e12, price=2.0)
        cards = {card.label: card.value for card in app.metric}
        assert cards["Step time"] == show(float(brought.seconds), "s")
        assert cards["MFU"] == f"{100 * float(brought.mfu):.3g} %"
        assert cards["Tokens/s a GPU"] == show(float(brought.tokens_per_second_per_gpu))
        assert cards["Memory"] == show(expected.memory, "B")
        assert cards["1 T tokens in"] == show(float(brought.training_seconds), "s")
        costs = {card.label: card.delta for card in app.metric}
        assert costs["1 T tokens in"] == f"${show(float(brought.money))}"
        assert brought.sentence() in said(app)

    def test_without_a_price_there_are_hours_and_energy_and_no_money(self) -> None:
        app = opened("explain", **JOB)
        brought = outcome(found().job, budget=15e12)
        costs = {card.label: card.delta for card in app.metric}
        assert costs["15 T tokens in"] == f"{show(float(brought.gpu_hours))} GPU hours"
        assert f"at most {show(1e3 * float(brought.kilowatt_hours))}Wh" in said(app)
        assert "$" not in said(app)

    def test_peak_rates_are_called_a_bound(self) -> None:
        app = opened("explain", **JOB | {"rates": "peak"})
        assert "bound" in said(app)
        app = click(app, "Use achievable rates")
        assert app.segmented_control(key="rates").value == "achievable"
        assert not app.exception

    def test_where_nobody_has_calibrated_steps(self) -> None:
        """Once, at the top; the line of the machine does not call its peaks achievable."""
        app = opened("explain", cluster="l40s-box", model="llama-3-8b", rates="achievable")
        assert said(app).count("Nobody has calibrated whole steps of NVIDIA L40S") == 1
        assert "(peak)" in said(app)
        assert "achievable by" not in said(app)

    def test_adapters_alone(self) -> None:
        """LoRA in the address is LoRA in step, memory and MFU."""
        layout = replace(LAYOUT, lora_rank=16, zero_kind=ZERO_KIND["all-reduce"])
        job = found(layout).job
        app = opened("explain", **JOB, lora="16", zero_kind="all-reduce")
        cards = {card.label: card.value for card in app.metric}
        assert cards["Step time"] == show(float(job.time.seconds), "s")
        assert cards["Memory"] == show(float(job.memory.total), "B")
        assert cards["MFU"] == f"{100 * float(outcome(job).mfu):.3g} %"

    def test_tables_name_operations_and_collectives(self) -> None:
        text = said(opened("explain", **JOB))
        for word in ("MLP down", "attention output", "all-gather", "reduce-scatter", "bubble"):
            assert f">{word}<" in text

    def test_what_does_not_fit_is_told(self) -> None:
        app = opened("explain", model="llama-3-405b", gpus="64", tp="8", pp="1")
        assert "does not fit" in app.warning[0].value
        assert (
            "parallelism, a higher ZeRO stage, recomputation or more GPUs help"
            in app.warning[0].value
        )
        app = opened("explain", model="llama-3-405b", gpus="64", zero="3", recompute="full")
        assert "parallelism or more GPUs help" in app.warning[0].value


class TestFramework:
    @pytest.mark.parametrize("name", ["megatron", "torchtitan", "deepspeed", "nanotron"])
    def test_a_layout_of_a_plan_has_the_number_of_the_plan(self, name: str) -> None:
        """By the button of the Plan page: kernels and what is kept of parameters come along."""
        job = {"model": "llama-3-8b", "gpus": "64", "tokens": "1Mi", "rates": "achievable"}
        app = opened(**job, framework=name)
        planned = {card.label: card.value for card in app.metric}
        app = click(app, "Explain this layout")
        app.switch_page("dashboard/pages/explain.py").run()
        assert not app.exception
        assert not app.error
        assert app.selectbox(key="habits").value == name
        shown = {card.label: card.value for card in app.metric}
        for label in ("Step time", "MFU", "Memory"):
            assert shown[label] == planned[label]

    def test_choosing_one_puts_its_habits_into_the_controls(self) -> None:
        """What the command line predicts for the same layout."""
        app = opened("explain", **JOB | {"tp": "1", "pp": "1"})
        app.selectbox(key="habits").set_value("torchtitan").run()
        assert not app.error
        assert app.session_state["zero"] == "3"
        assert app.session_state["flash"] == "flash-2"
        cards = {card.label: card.value for card in app.metric}
        line = (
            "explain --model llama-3-8b --gpus 64 --tokens 1Mi --framework torchtitan --tp 1 --json"
        )
        document = json.loads(CliRunner().invoke(cli.app, line.split()).stdout)
        assert cards["Step time"] == show(document["seconds"], "s")
        assert cards["Memory"] == show(document["memory"]["total"], "B")

    @pytest.mark.parametrize("name", ["any", "torchtitan", "fsdp", "deepspeed"])
    def test_untouched_it_follows_the_framework_as_the_command_line_does(self, name: str) -> None:
        app = opened("explain", model="llama-3-8b", gpus="64", rates="achievable")
        app.selectbox(key="habits").set_value(name).run()
        assert not app.error
        line = f"explain --model llama-3-8b --gpus 64 --tokens 1Mi --framework {name} --json"
        document = json.loads(CliRunner().invoke(cli.app, line.split()).stdout)
        cards = {card.label: card.value for card in app.metric}
        assert cards["Step time"] == show(document["seconds"], "s")
        assert cards["Memory"] == show(document["memory"]["total"], "B")
        app.selectbox(key="habits").set_value("as set here").run()
        assert app.segmented_control(key="zero").value == "1"

    def test_what_it_cannot_do_is_refused(self) -> None:
        app = opened("explain", **JOB, habits="megatron", zero="3")
        assert "zero: 3 is refused, megatron cannot do it; allowed: 0, 1" in app.error[0].value
        mended = click(app, "ZeRO 1")
        assert not mended.error
        assert mended.segmented_control(key="zero").value == "1"
        assert mended.selectbox(key="habits").value == "megatron"

    def test_what_it_cannot_do_may_be_done_without_it(self) -> None:
        app = click(opened("explain", **JOB, habits="megatron", zero="3"), "Framework as set here")
        assert not app.error
        assert app.selectbox(key="habits").value == "as set here"
        assert app.segmented_control(key="zero").value == "3"

    def test_an_address_that_names_a_degree_alone_has_what_the_framework_alone_does(self) -> None:
        """torchtitan does ZeRO-3 and nothing else; the command line does not ask for it either."""
        app = opened("explain", **JOB | {"tp": "2", "pp": "1"}, habits="torchtitan")
        assert not app.error
        assert app.segmented_control(key="zero").value == "3"

    def test_a_framework_stays_while_model_cluster_and_precision_change(self) -> None:
        app = opened("explain", model="llama-3-8b", gpus="64", rates="achievable")
        app.selectbox(key="habits").set_value("fsdp").run()
        for key, value in (
            ("model", "mixtral-8x7b"),
            ("model", "llama-3-405b"),
            ("cluster", "dgx-a100-superpod"),
        ):
            app.selectbox(key=key).set_value(value).run()
            assert not app.exception
            assert app.selectbox(key="habits").value == "fsdp"
            assert app.error or app.metric

    def test_unbalanced_experts(self) -> None:
        """The busiest rank's load in the address is that of the prediction."""
        job = {"model": "mixtral-8x7b", "gpus": "64", "tp": "1", "ep": "8", "rates": "achievable"}
        cards = {
            card.label: card.value for card in opened("explain", **job, imbalance="1.5").metric
        }
        layout = replace(LAYOUT, tp=1, pp=1, ep=8, imbalance=1.5)
        assert cards["Step time"] == show(found(layout, "mixtral-8x7b").seconds, "s")


class TestLayout:
    def test_degrees_that_do_not_divide_have_a_way_out(self) -> None:
        app = opened("explain", **JOB | {"tp": "3"})
        assert "TP" in app.error[0].value
        assert "heads" in app.error[0].value
        assert not app.metric
        app = click(app, "TP 4")
        assert not app.error
        assert app.number_input(key="tp").value == 4

    def test_the_way_back_is_the_smallest_that_fits(self) -> None:
        app = click(opened("explain", **JOB | {"tp": "3"}), "Smallest that fits")
        assert not app.error
        assert not app.warning

    def test_untouched_it_follows_the_model(self) -> None:
        app = opened("explain")
        app.selectbox(key="model").set_value("llama-3-405b").run()
        assert app.number_input(key="pp").value > 1
        assert not app.warning
        app.number_input(key="pp").set_value(8).run()
        app.selectbox(key="model").set_value("llama-3-8b").run()
        assert app.number_input(key="pp").value == 8

    def test_a_batch_that_replicas_do_not_divide_has_a_way_out(self) -> None:
        app = opened("explain", **JOB | {"tokens": "16Ki"})
        assert "Batch: 4 is refused" in app.error[0].value
        app = click(app, "Batch 8")
        assert not app.exception
        assert not app.error
        assert app.select_slider(key="tokens").value == str(8 * 4096)

    def test_a_batch_of_no_whole_sequence(self) -> None:
        app = opened("explain", tokens="16Ki", sequence="32768")
        assert "no whole sequence" in app.error[0].value
        app = opened("explain", gpus="8", tokens="24Ki", sequence="16384")
        assert "Batch: 1.5 is refused" in app.error[0].value

    @pytest.mark.parametrize("name", ["llama-3-8b", "mixtral-8x7b", "deepseek-v3", "gpt-3-175b"])
    def test_models_of_every_kind(self, name: str) -> None:
        app = opened("explain", model=name, rates="achievable")
        assert not app.exception
        assert app.metric

    def test_a_model_of_ones_own(self) -> None:
        app = opened(
            "explain", model="custom", gpus="64", d_model="4096", d_ff="14336", layers="32"
        )
        assert not app.exception
        assert "Assumed" in said(app)
        assert app.metric

    def test_the_layout_survives_another_page(self) -> None:
        app = opened(
            "explain", model="llama-3-8b"
        )  # an address would come back with its own numbers
        app.number_input(key="pp").set_value(4).run()
        app.switch_page("dashboard/pages/collectives.py").run()
        app.switch_page("dashboard/pages/explain.py").run()
        assert app.number_input(key="pp").value == 4


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tp", "-4"), ("tp", "nan"), ("pp", "1e9; <script>"), ("zero", "7"),
        ("schedule", "evil"), ("recompute", "<b>"), ("convention", "none"), ("measured", "-3"),
    ],
)  # fmt: skip
def test_a_bad_address_is_told_and_something_shown(key: str, value: str) -> None:
    app = opened("explain", **{key: value})
    assert not app.exception
    assert any(f"{key}={value}" in warning.value for warning in app.warning)


@pytest.mark.parametrize("cluster", hardware_profiles.clusters())
def test_every_cluster_explains(cluster: str) -> None:
    app = opened("explain", cluster=cluster, model="llama-3-8b")
    assert not app.exception


class TestMeasured:
    def test_the_planted_suspect_is_named(self) -> None:
        slow = found(replace(LAYOUT, recompute=RECOMPUTE["full"]))
        text = said(opened("explain", **JOB, measured=f"{slow.seconds:.4f}"))
        assert "every layer is recomputed" in text
        assert re.search(r"every layer is recomputed</td>.*?>100%<", text)

    def test_nothing_is_said_before(self) -> None:
        assert "suspect<" not in said(opened("explain", **JOB))


class TestFigures:
    def test_the_bar_is_the_step(self) -> None:
        one = found()
        parts = [trace["x"][0] for trace in figures.step_bar(one)["data"]]
        assert sum(parts) == pytest.approx(one.seconds, rel=0.01)  # what is too thin is left out

    def test_memory_is_that_of_every_stage(self) -> None:
        one = found()
        bars = sum(np.asarray(trace["y"]) for trace in figures.memory(one)["data"])
        assert bars.max() * 1e9 == pytest.approx(one.memory)
        assert bars.shape == (2,)
        dims = Dims.of(preset("llama-3-8b").model)
        assert float(peak(dims, LAYOUT).total) == pytest.approx(one.memory)

    def test_no_point_lies_above_the_roof(self) -> None:
        line, *clouds = figures.roofline(found())["data"]
        for cloud in clouds:
            roof = np.exp(np.interp(np.log(cloud["x"]), np.log(line["x"]), np.log(line["y"])))
            assert np.all(cloud["y"] <= roof)

    def test_long_pipelines_are_cut_and_stay_light(self) -> None:
        layout = replace(LAYOUT, gpus=1024, tp=8, pp=16, batch=2048.0)
        one = found(layout, "llama-3-405b")
        assert one.timeline is not None
        assert not one.every
        assert one.idle == pytest.approx(played(one.job).share)
        assert len(one.timeline.start) <= 1.1 * explain_data.PASSES


class TestPlayback:
    def test_it_takes_as_long_as_the_closed_form(self) -> None:
        """1F1B without sends: M slots of the slowest stage, and fill and drain."""
        one = found()
        after = ("data parallel", "contention", "optimizer", "fixed")
        pipeline = sum(each for name, each in one.terms.items() if name not in after)
        assert played(one.job).step == pytest.approx(pipeline, rel=0.03)

    def test_a_schedule_without_an_order_is_told(self) -> None:
        """ZB-2p is a limit of memory: Qi et al. let a solver find its order, job by job."""
        with pytest.raises(ValueError, match=r"schedule: zb-2p cannot be played; .* is zb-h2"):
            played(found(replace(LAYOUT, schedule=SCHEDULE["zb-2p"])).job)
        app = opened("explain", **JOB, schedule="zb-2p")
        assert not app.exception
        assert app.metric
        assert "No timeline of the pipeline: schedule: zb-2p cannot be played" in said(app)

    def test_the_trace_is_complete(self) -> None:
        trace = chrome_trace(played(found().job), "job")
        passes = [event for event in trace["traceEvents"] if event["ph"] == "X"]
        assert len(passes) == 2 * 2 * int(LAYOUT.microbatches)
        assert max(event["ts"] + event["dur"] for event in passes) == pytest.approx(
            1e6 * played(found().job).step
        )
        assert json.loads(json.dumps(trace)) == trace


def test_downloads_are_the_rows() -> None:
    one = found()
    columns = explain_data.operation_columns(one)
    assert sum(columns["in a step [s]"]) == pytest.approx(
        sum(row.seconds for row in one.anatomy.operations)
    )
    assert len(explain_data.collective_columns(one)["what"]) == len(one.anatomy.collectives)
    assert len(explain_data.memory_columns(one)["stage"]) == 2


def test_a_layout_comes_back_from_its_widgets() -> None:
    values = layout_bar.values(replace(LAYOUT, recompute=RECOMPUTE["half"], zero=3))
    assert (values["tp"], values["recompute"], values["zero"], values["sp"]) == (
        4,
        "half",
        "3",
        True,
    )


@pytest.mark.parametrize("name", presets())
def test_numbers_of_the_bar_are_a_decoder(name: str) -> None:
    """Any preset's numbers, typed by hand, are a model of about its size."""
    work: Workload = preset(name).model.workload(1.0)
    assert custom_model.from_numbers(work).layers == work.layers


@pytest.mark.browser
def test_the_address_names_what_the_page_shows(chromium: str) -> None:
    """Another cluster, then another framework: opened again, the address is the same job."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    import browser

    def pick(label: str, name: str) -> None:
        box = tab.get_by_role("combobox", name=label)
        box.click()
        box.fill(name)
        tab.keyboard.press("Enter")
        tab.wait_for_function(f"() => location.search.includes('={name}')")
        browser.settle(tab)

    with browser.dashboard() as url, browser.page() as tab:
        tab.goto(f"{url}/explain?model=llama-3-8b&gpus=64")
        browser.settle(tab)
        for label, name in (
            ("Framework", "fsdp"),
            ("Cluster", "l40s-box"),
            ("Framework", "megatron"),
        ):
            pick(label, name)
        pick("Cluster", "dgx-a100-superpod")
        tab.wait_for_function("() => location.search.includes('gpus=8')")
        shown = tab.locator(".stMetric").first.inner_text()
        tab.goto(tab.url)
        browser.settle(tab)
        assert tab.locator(".stMetric").first.inner_text() == shown
