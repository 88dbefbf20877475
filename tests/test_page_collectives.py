"""The collectives page: it says what the library says, and bears a bad address and a bad log."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import hardware_profiles
from dashboard import collectives_compare as compare
from dashboard import collectives_does as does
from dashboard import collectives_figures as figures
from roofline import algorithms
from roofline.collectives import ALL_REDUCE, ALL_TO_ALL, COLLECTIVES, collective
from roofline.groups import Group
from roofline.nccl_log import read
from roofline.units import show
from tests.pages import drawn, opened, said

APP = str(Path(__file__).parent.parent / "app.py")
POD = hardware_profiles.cluster("dgx-h100-superpod")
VIEWS = ("Size sweep", "Algorithms", "Top-k all-to-all", "Sharded array", "What each does")
LOG = """\
#  Rank  7 Group  0 Pid    320 on     node-0 device  7 [0xdb] NVIDIA H100 80GB HBM3
#       size         count      type   redop    root     time   algbw   busbw #wrong
    16777216       4194304     float     sum      -1   121.40  138.20  241.84      0
   268435456      67108864     float     sum      -1  1312.00  204.60  358.05      0
   268435456      67108864     float     sum      -1  NCCL WARN something else
"""


def test_first_paint_shows_times_bandwidths_and_the_tier_that_binds() -> None:
    app = opened("collectives")
    assert not app.exception
    assert not app.error
    size = 2.0**30
    for metric, (name, whole) in zip(
        app.metric,
        {"all-gather": size, "all-reduce": size, "all-to-all": size * 1024}.items(),
        strict=True,
    ):
        time = collective(COLLECTIVES[name], whole, Group(1024), POD.tiers, latency=True)
        assert metric.label == f"{name}, 1 GiB"
        assert metric.value == show(float(time.seconds), "s")
    assert "<b>scalable unit</b>" in said(app)
    for figure in drawn(app):
        assert [trace["name"] for trace in figure["data"]] == [
            "all-gather",
            "all-reduce",
            "all-to-all",
        ]


def test_bus_bandwidth_of_a_large_message_is_the_link_of_the_slowest_tier() -> None:
    """Without latency a ring's busbw inside a node is the 450 GB/s of a GPU: nccl-tests' point."""
    app = opened(
        "collectives", coll_group="node", coll_ops=["all-gather", "all-reduce"], coll_size="16 GiB"
    )
    app.toggle(key="coll_latency").set_value(False).run()
    assert [metric.delta for metric in app.metric] == ["450 GB/s bus bandwidth"] * 2


def test_the_slider_sets_the_point() -> None:
    app = opened("collectives", coll_group="node", coll_ops="all-reduce")
    (slider,) = [slider for slider in app.select_slider if slider.label == "Message size"]
    slider.set_value("1 MiB").run()
    time = collective(ALL_REDUCE, 2.0**20, Group(8), POD.tiers, latency=True)
    assert app.metric[0].value == show(float(time.seconds), "s")
    assert drawn(app)[0]["layout"]["shapes"][0]["x0"] == 2.0**20


def test_switches_that_add_halve_an_all_reduce() -> None:
    app = opened("collectives", coll_ops="all-reduce", coll_form="rough", coll_size="16 GiB")
    app.toggle(key="coll_latency").set_value(False).run()
    plain = app.metric[0].value
    assert plain == show(2 * 2.0**34 / 400e9, "s")
    app.segmented_control(key="coll_sharp").set_value("theory").run()
    assert app.metric[0].value == show(2.0**34 / 400e9, "s")


def test_a_strided_group_says_with_whom_it_shares_its_uplinks() -> None:
    app = opened("collectives", coll_group="one GPU per node", coll_ops="all-reduce")
    assert "**128 ranks**, **8 apart**" in said(app)
    assert "shared by 8 sibling groups that leave it together" in said(app)
    app.toggle(key="coll_alone").set_value(True).run()
    assert "the group's own network cards carry one in 8" in said(app)


def test_a_group_beyond_the_machine_has_ways_out() -> None:
    app = opened("collectives", coll_group="custom", coll_ranks="512", coll_stride="8")
    assert "takes 4,096 GPUs; the machine has 1,024" in app.error[0].value
    (button,) = [button for button in app.button if button.label == "ranks 128"]
    button.click().run()
    assert not app.error
    assert app.number_input(key="coll_ranks").value == 128


def test_a_group_that_straddles_is_warned_of() -> None:
    assert (
        "straddle" in opened("collectives", coll_group="custom", coll_ranks="12").warning[0].value
    )


def test_a_measured_log_is_drawn_over_the_prediction_with_its_error() -> None:
    app = opened("collectives", coll_ops="all-reduce", coll_group="node")
    app.text_area(key="coll_log").set_value(LOG).run()
    assert not app.exception
    run = read(LOG).runs[0]
    setting = figures.Setting(POD.tiers, Group(8), {"latency": True})
    measured = figures.compare(run, setting)
    assert f"median error of the prediction {measured.error:.1%}" in said(app)
    for figure, values in zip(drawn(app), (run.seconds, run.busbw), strict=True):
        assert figure["data"][-1]["name"] == "measured all-reduce"
        np.testing.assert_allclose(figure["data"][-1]["y"], values)
    assert "line 5: time: 'NCCL' is not a number" in app.code[0].value


def test_curves_follow_a_log_of_another_group() -> None:
    app = opened("collectives")
    app.text_area(key="coll_log").set_value(LOG).run()
    (button,) = [button for button in app.button if button.label == "Show curves for 8 ranks"]
    button.click().run()
    assert not app.exception
    assert "**8 ranks**" in said(app)


@pytest.mark.parametrize("text", ["hello", "1 2 3", "# only a comment", "\x00<script>"])
def test_a_text_that_is_no_log_is_told(text: str) -> None:
    app = opened("collectives")
    app.text_area(key="coll_log").set_value(text).run()
    assert not app.exception
    assert "No row of nccl-tests was found" in said(app)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("gpus", "1e9; <script>"),
        ("coll_view", "evil"),
        ("coll_ops", "evil"),
        ("coll_group", "<b>"),
        ("coll_size", "nan"),
        ("coll_form", "evil"),
        ("coll_algorithm", "-1"),
        ("coll_sharp", "x"),
    ],
)
def test_a_bad_address_is_told_and_the_default_shown(key: str, value: str) -> None:
    app = opened("collectives", **{key: value})
    assert not app.exception
    assert any(f"{key}={value}" in warning.value for warning in app.warning)


@pytest.mark.parametrize(("key", "value"), [("coll_ranks", "-3"), ("coll_stride", "nan")])
def test_bad_numbers_of_a_custom_group(key: str, value: str) -> None:
    app = opened("collectives", coll_group="custom", **{key: value})
    assert not app.exception
    assert any(f"{key}={value}" in warning.value for warning in app.warning)


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("gpus", ["1", "8", "96", "4096"])
def test_every_view_of_any_cluster_draws(view: str, gpus: str) -> None:
    app = opened("collectives", coll_view=view, cluster="aws-p5", gpus=gpus)
    assert not app.exception
    assert not app.error


@pytest.mark.parametrize("cluster", hardware_profiles.clusters())
def test_every_cluster_draws(cluster: str) -> None:
    app = opened("collectives", cluster=cluster)
    assert not app.exception
    assert not app.error


@pytest.mark.parametrize("cluster", ["local", "mi300x-pod", "llama3-roce-24k", "pcie-ethernet"])
@pytest.mark.parametrize("view", VIEWS[1:])
def test_every_view_draws_on_uncommon_machines(cluster: str, view: str) -> None:
    app = opened("collectives", cluster=cluster, coll_view=view)
    assert not app.exception
    assert not app.error


def test_every_collective_draws() -> None:
    app = opened("collectives", coll_ops=list(COLLECTIVES))
    assert not app.exception
    assert len(app.metric) == 9
    assert len(drawn(app)[0]["data"]) == 9


def test_every_algorithm_says_what_the_library_says() -> None:
    app = opened("collectives", coll_view="Algorithms", coll_size="1 GiB")
    text = said(app)
    for row in algorithms.ALGORITHMS:
        if row.operation == "all-reduce":
            seconds = algorithms.time(row, 2.0**30, 8, POD.tiers[0].bandwidth, POD.tiers[0].latency)
            assert f">{row.name}</td>" in text
            assert f">{show(float(seconds), 's')}</td>" in text
    app.number_input(key="coll_flat_ranks").set_value(6).run()
    assert "butterfly, halving-doubling: need a power of two; next to 6 are 4 and 8" in said(app)


def test_top_k_shows_bound_and_exact_share() -> None:
    """DeepSeek's 8 of 256 experts: 66.2 % of 8 shards where the bound says all of them."""
    app = opened("collectives", coll_view="Top-k all-to-all", coll_ep="8")
    assert "**66.2%** of 8 ranks" in said(app)
    assert "says 100.0%, **51% too many**" in said(app)
    whole = collective(ALL_TO_ALL, 2.0**30 * 8, Group(8), POD.tiers, latency=True)
    assert app.metric[0].value == show(float(whole.seconds), "s")


def test_a_sharded_array_is_the_collective_on_a_strided_group() -> None:
    app = opened(
        "collectives", coll_view="Sharded array", coll_x="16", coll_shards="8", coll_size="1 GiB"
    )
    time = collective(ALL_REDUCE, 2.0**30 / 8, Group(16, 8), POD.tiers, latency=True)
    assert f"**{show(float(time.seconds), 's')}**" in said(app)
    heat = drawn(app)[1]["data"][0]
    at = heat["y"].index("16"), heat["x"].index("8")
    assert heat["customdata"][at[0]][at[1]] == show(float(time.seconds), "s")


@pytest.mark.parametrize("op", list(COLLECTIVES))
@pytest.mark.parametrize("count", [2, 3, 4, 6])
def test_the_picture_of_a_collective_is_its_definition(op: str, count: int) -> None:
    held = does.after(op, count)
    assert len(held) == count
    after = does.figure(op, count)["data"][1]
    filled = [[text for text in row if text] for row in after["text"]]
    assert [len(row) for row in filled] == [0 if part is None else len(part) for part in held]
    assert does.sentence(op).endswith(".")


def test_an_all_reduce_shows_sums_and_a_transpose_is_one() -> None:
    text = does.figure("all-reduce", 3)["data"][1]["text"]
    assert text == [["Σ0", "Σ1", "Σ2"]] * 3
    before, after = (trace["text"] for trace in does.figure("all-to-all", 3)["data"])
    assert after == [list(column) for column in zip(*before, strict=True)]


def test_a_choice_of_nothing_is_told() -> None:
    app = opened("collectives")
    (pills,) = [group for group in app.get("button_group") if group.key == "coll_ops"]
    pills.set_value([]).run()
    assert "Choose a collective" in app.info[0].value


def test_variants_without_adding_switches_are_not_offered() -> None:
    with_sharp = figures.Setting(POD.tiers, Group(8))
    without = figures.Setting(hardware_profiles.cluster("aws-p4d").tiers, Group(8))
    assert len(compare.variants(with_sharp, ALL_REDUCE)) == 5
    assert len(compare.variants(without, ALL_REDUCE)) == 3
