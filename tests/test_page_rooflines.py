"""The rooflines page and the workload bar: they say what the library says, and bear a bad address."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import hardware_profiles
from dashboard import rooflines
from roofline import presets
from roofline.strategies import STRATEGIES, data_parallel
from roofline.units import show
from tests.pages import opened, panels, said

APP = str(Path(__file__).parent.parent / "app.py")


def test_first_paint_shows_four_curves_with_their_crossovers() -> None:
    app = opened("rooflines")
    assert not app.exception
    shown = panels(app)
    names = ("data_parallel", "tensor_parallel", "expert_parallel", "pipeline_parallel")
    assert [panel["title"] for panel in shown] == [STRATEGIES[name].title for name in names]
    assert "crossover" in [trace["name"] for trace in shown[0]["figure"]["data"]]
    cluster = hardware_profiles.cluster("dgx-h100-superpod")
    sweep = rooflines.sweep("data_parallel", presets.workload("llama-3-70b", 2.0**20), cluster, {})
    assert (shown[0]["strong"], shown[0]["rest"]) == rooflines.headline(sweep)


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_says_what_the_library_says(name: str) -> None:
    app = opened("rooflines", strategy=rooflines.short_title(name), model="mixtral-8x7b")
    assert not app.exception
    assert not app.error
    verdicts = [*app.success, *app.warning]
    assert len(verdicts) == 1
    assert "compute-bound" in verdicts[0].value or "communication-bound" in verdicts[0].value
    assert [m.label for m in app.metric][:2] == ["T_math", "T_comms"]


def test_a_degree_gives_the_numbers_of_the_formula() -> None:
    app = opened(
        "rooflines",
        strategy="Data parallel",
        data_parallel_degree="256",
        data_parallel_form="rough",
        tokens="4Mi",
    )
    cluster = hardware_profiles.cluster("dgx-h100-superpod")
    bound = data_parallel.bound(
        presets.workload("llama-3-70b", 4 * 2.0**20), cluster, 256, form="rough"
    )
    assert bound.sentence() in app.success[0].value
    assert [m.value for m in app.metric] == [
        show(bound.t_math, "s"),
        show(bound.t_comms, "s"),
        show(bound.threshold.actual, digits=4),
        show(bound.threshold.needed, digits=4),
    ]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("cluster", "dgx-h1000"),
        ("gpus", "1e9; <script>"),
        ("gpus", "-8"),
        ("model", "nope"),
        ("tokens", "nan"),
        ("tokens", "-1"),
        ("sequence", "evil"),
        ("dtype", "fp99"),
        ("rates", "<b>"),
        ("strategy", "Magic"),
    ],
)
def test_a_bad_address_is_told_and_the_default_shown(key: str, value: str) -> None:
    app = opened("rooflines", **{key: value})
    assert not app.exception
    assert any(f"{key}={value}" in warning.value for warning in app.warning)


def test_a_batch_of_any_size_can_be_asked_for() -> None:
    app = opened("rooflines", tokens="62914560")
    assert not app.warning
    assert "62.9 M tokens" in said(app)


def test_gpus_that_fill_no_whole_nodes_are_refused_with_the_nearest_as_buttons() -> None:
    app = opened("rooflines", gpus="100")
    assert not app.exception
    assert "the nearest numbers are 96 and 104" in app.error[0].value
    app.button[1].click().run()
    assert not app.error
    assert app.number_input(key="gpus").value == 104


def test_a_server_without_a_network_holds_no_more_gpus_than_it_has() -> None:
    """Asked for by an address it is refused with a button; turned to, it takes its own number."""
    app = opened("rooflines", cluster="l40s-box", gpus="64")
    assert "gpus: 64 is refused; l40s-box has 8 GPUs and no network beyond" in app.error[0].value
    app.button[0].click().run()
    assert not app.error
    assert app.number_input(key="gpus").value == 8
    app = opened("rooflines", gpus="64")
    app.selectbox(key="cluster").set_value("l40s-box").run()
    assert not app.error
    assert app.number_input(key="gpus").value == 8
    assert "l40s-box has 8 GPUs and no network beyond" in app.info[0].value
    app.number_input(key="gpus").set_value(16).run()
    assert "gpus: 16 is refused" in app.error[0].value


@pytest.mark.parametrize("gpus", ["0", "abc", "9" * 12])
def test_a_number_of_gpus_that_cannot_be_is_that_of_the_cluster(gpus: str) -> None:
    app = opened("rooflines", gpus=gpus)
    assert not app.exception
    assert app.number_input(key="gpus").value == 1024
    assert "`1024` is shown instead" in app.warning[0].value
    app.number_input(key="gpus").set_value(64).run()
    app.number_input(key="gpus").set_value(None).run()
    assert app.number_input(key="gpus").value == 1024


@pytest.mark.parametrize("gpus", ["1", "8", "16384"])
def test_any_size_of_cluster_draws(gpus: str) -> None:
    for strategy in ("Overview", "Tensor parallel", "FSDP + TP", "Pipeline parallel"):
        app = opened("rooflines", gpus=gpus, strategy=strategy)
        assert not app.exception
        assert not app.error


@pytest.mark.parametrize("cluster", hardware_profiles.clusters())
def test_every_cluster_draws_at_peak_and_achievable(cluster: str) -> None:
    for rates in ("peak", "achievable"):
        app = opened("rooflines", cluster=cluster, rates=rates)
        assert not app.exception
        assert not app.error


def test_a_model_of_ones_own() -> None:
    app = opened(
        "rooflines",
        model="custom",
        experts="8",
        top_k="2",
        d_model="1024",
        d_ff="4096",
        strategy="Expert parallel",
    )
    assert not app.exception
    assert not app.error
    app.number_input(key="top_k").set_value(9).run()
    assert "at most 8" in app.error[0].value


def test_achievable_rates_are_slower_and_named() -> None:
    assert "achievable by h100" in said(opened("rooflines", rates="achievable"))


LLAMA = json.dumps(
    {
        "model_type": "llama",
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 12,
        "num_attention_heads": 16,
        "vocab_size": 32000,
    }
)


def test_a_hugging_face_config_becomes_a_model_of_ones_own() -> None:
    app = opened("rooflines")
    app.text_area(key="config_text").set_value(LLAMA).run()
    next(button for button in app.button if button.label == "Use this model").click().run()
    assert not app.exception
    assert app.selectbox(key="model").value == "custom"
    assert app.number_input(key="d_ff").value == 4096


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("{", "not JSON"),
        ('{"model_type": "lama"}', "llama"),
        (LLAMA.replace("1024", '"wide"'), "hidden_size"),
    ],
)
def test_a_bad_config_is_told_and_changes_nothing(config: str, said: str) -> None:
    app = opened("rooflines")
    app.text_area(key="config_text").set_value(config).run()
    next(button for button in app.button if button.label == "Use this model").click().run()
    assert not app.exception
    assert any(said in error.value.replace("\\", "") for error in app.error)
    assert app.selectbox(key="model").value == "llama-3-70b"
