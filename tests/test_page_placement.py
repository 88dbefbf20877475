"""The placement page: it shows what the mesh says, offers ways out, and bears a bad address."""

from __future__ import annotations

import sys
from math import prod
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st
from streamlit.testing.v1 import AppTest

import hardware_profiles
from dashboard import placement_advice as advise
from dashboard import placement_figures as figures
from roofline.placement import example_32, mesh
from tests.pages import drawn, opened, said

ROOT = Path(__file__).parent.parent
INK = "#000000"


def click(app: AppTest, label: str) -> AppTest:
    (button,) = [button for button in app.button if button.label == label]
    return button.click().run()


def test_first_paint_says_what_stays_inside_and_what_crosses() -> None:
    app = opened("placement")
    assert not app.exception
    assert not app.error
    assert not app.warning
    tiers = hardware_profiles.cluster("dgx-h100-superpod").tiers
    layout = mesh(1024, {"TP": 8, "DP": None, "PP": 4})
    assert figures.headline(figures.axes(layout, tiers), tiers) in said(app)
    assert "**TP 8** stays in a node" in said(app)
    cells = np.array(drawn(app)[0]["data"][1]["z"], dtype=float)
    assert np.count_nonzero(np.isfinite(cells)) == 1024


def test_the_example_of_32_workers() -> None:
    """DeepSpeed's picture: 8 nodes of 4; a TP group is a node, DP two nodes, PP four of them."""
    app = click(opened("placement", place_rank="825", place_TP="16"), "32-worker example")
    assert not app.exception
    assert not app.error
    text = said(app)
    assert "rank\u00a0=\u00a0PP·8\u00a0+\u00a0DP·4\u00a0+\u00a0TP" in text
    assert app.number_input(key="gpus").value == 32
    for groups in ("0, 1, 2, 3", "0, 4", "0, 8, 16, 24"):
        assert f">{groups}<" in text
    for row in (("4", "1", "8"), ("2", "4", "16"), ("4", "8", "8")):
        assert "".join(f">{cell}</td>" for cell in row[:1]) in text
    book = example_32()
    ours = mesh(32, {"TP": 4, "DP": 2, "PP": 4})
    assert book.degrees == ours.degrees
    for theirs, axis in (("model", "TP"), ("data", "DP"), ("pipe", "PP")):
        np.testing.assert_array_equal(book.groups(theirs), ours.groups(axis))
    labels = [text for row in drawn(app)[0]["data"][1]["text"] for text in row if text]
    assert labels[5] == "<b>5</b><br>T1 D1 P0"
    back = click(app, "Back to my layout")
    assert back.number_input(key="gpus").value == 1024
    assert back.number_input(key="place_TP").value == 16
    assert back.number_input(key="place_rank").value == 825


def test_a_rank_marks_its_groups() -> None:
    app = opened("placement", gpus="64", place_rank="13", place_PP="2")
    layout = mesh(64, {"TP": 8, "DP": 4, "PP": 2})
    marks = {trace["name"]: trace for trace in drawn(app)[0]["data"] if "name" in trace}
    for axis in layout.axes:
        (group,) = [group for group in layout.groups(axis) if 13 in group]
        shown = [rank for _, rank in marks[f"{axis} group of 13"]["customdata"]]
        assert sorted([*shown, 13]) == sorted(group.tolist())


def test_tensor_parallel_across_nodes_is_warned_of_with_a_way_out() -> None:
    app = opened("placement", place_TP="16")
    assert "TP 16 leaves the node" in app.warning[0].value
    app = click(app, "TP 8, DP 32")
    assert not app.warning
    assert app.number_input(key="place_TP").value == 8


def test_an_outer_tensor_axis_can_be_moved_inside() -> None:
    app = opened("placement", place_axes=["DP", "TP"])
    assert "leaves the node" in app.warning[0].value
    app = click(app, "Make TP the innermost axis")
    assert not app.warning
    assert app.multiselect(key="place_axes").value == ["TP", "DP"]


def test_a_misaligned_axis_is_named_with_the_nearest_aligned_degree() -> None:
    app = opened("placement", cluster="gb200-nvl72-superpod", place_TP="16")
    assert "TP 16 and DP 9 are misaligned" in app.warning[0].value
    assert "✗ straddles" in said(app)
    app = click(app, "TP 18, DP 8")
    assert not app.warning
    assert "✗ straddles" not in said(app)


def test_degrees_that_do_not_fill_the_gpus_have_ways_out() -> None:
    app = opened("placement", place_TP="6", place_open="none", place_DP="10", place_PP="16")
    assert "6 x DP 10 x PP 16 = 960 does not fill 1024" in app.error[0].value
    assert not app.get("bidi_component")
    fixed = click(app, "TP 8, DP 8")
    assert not fixed.error
    assert not fixed.exception
    other = click(
        opened("placement", place_TP="8", place_open="none", place_DP="24", place_PP="4"),
        "768 GPUs",
    )
    assert not other.error
    assert other.number_input(key="gpus").value == 768


def test_axes_are_moved_by_arrows() -> None:
    app = opened("placement")
    app.button(key="move-TP-1").click().run()
    assert app.multiselect(key="place_axes").value == ["DP", "TP", "PP"]
    assert app.button(key="move-DP--1").disabled
    assert not app.exception


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("gpus", "1e9; <script>"),
        ("place_TP", "-4"),
        ("place_TP", "nan"),
        ("place_PP", "1e9; <script>"),
        ("place_axes", "evil"),
        ("place_open", "<b>"),
        ("place_by", "nobody"),
        ("place_paint", "evil"),
        ("place_rank", "99999999"),
    ],
)
def test_a_bad_address_is_told_and_the_default_shown(key: str, value: str) -> None:
    app = opened("placement", **{key: value})
    assert not app.exception
    assert any(f"{key}={value}" in warning.value for warning in app.warning)


@pytest.mark.parametrize("gpus", ["1", "8", "2048", "4096", "131072"])
def test_any_size_of_cluster_is_drawn_or_summed_up(gpus: str) -> None:
    app = opened("placement", gpus=gpus, place_rank=str(int(gpus) - 1))
    assert not app.exception
    assert not app.error
    cells = np.array(drawn(app)[0]["data"][1]["z"], dtype=float)
    assert np.count_nonzero(np.isfinite(cells)) <= 2048
    assert ("too many to draw" in said(app)) == (int(gpus) > 2048)


@pytest.mark.parametrize("cluster", hardware_profiles.clusters())
def test_every_cluster_draws(cluster: str) -> None:
    app = opened("placement", cluster=cluster)
    assert not app.exception
    assert not app.error


def test_no_axis_and_every_axis() -> None:
    app = opened("placement")
    app.multiselect(key="place_axes").set_value([]).run()
    assert "at least one axis" in app.info[0].value
    app.multiselect(key="place_axes").set_value([*figures.AXES]).run()
    assert not app.exception
    assert not app.error


def test_the_download_holds_every_rank() -> None:
    layout = mesh(32, {"TP": 4, "DP": 2, "PP": 4})
    tiers = hardware_profiles.cluster("alps-gh200").resized(32).tiers
    table = figures.rank_table(layout, tiers)
    np.testing.assert_array_equal(table["node"], np.arange(32) // 4)
    np.testing.assert_array_equal(table["rank"], table["PP"] * 8 + table["DP"] * 4 + table["TP"])
    assert len(set(table["DP group"])) == 16


@given(
    st.integers(1, 4096),
    st.dictionaries(st.sampled_from([*figures.AXES]), st.integers(1, 64), min_size=1),
)
def test_ways_out_fill_the_gpus(gpus: int, degrees: dict[str, int]) -> None:
    """Every offered set of degrees multiplies to the GPUs."""
    absorb = next(iter(degrees))
    assert prod(advise.rounded(gpus, degrees, absorb).values()) == gpus
    for axis, degree in advise.fitting(gpus, degrees).items():
        assert prod((degrees | {axis: degree}).values()) == gpus
    open_ = {**degrees, absorb: None}
    for axis, degree in advise.fitting(gpus, open_).items():
        known = prod(d for d in (open_ | {axis: degree}).values() if d)
        assert gpus % known == 0


@given(st.sampled_from(hardware_profiles.clusters()), st.integers(1, 64))
def test_every_cell_has_a_place_of_its_own(name: str, units: int) -> None:
    cluster = hardware_profiles.cluster(name)
    gpus = cluster.tiers[0].degree * units
    try:
        tiers = cluster.resized(gpus).tiers
    except ValueError:  # such a cluster has only whole units
        reject()
    cells = figures.grid(gpus, tiers)
    places = set(zip(cells.rows.tolist(), cells.columns.tolist(), strict=True))
    assert len(places) == len(cells.rows) == -(-gpus // cells.gpus)


@pytest.mark.browser
def test_a_click_on_the_map_picks_the_rank(chromium: str) -> None:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    import browser

    with browser.dashboard() as url, browser.page() as tab:
        tab.goto(f"{url}/placement?cluster=alps-gh200&gpus=32&place_TP=4&place_PP=4")
        browser.settle(tab)
        tab.wait_for_selector(".live-chart .heatmaplayer image")
        box = tab.locator(".live-chart .heatmaplayer").bounding_box()
        tab.mouse.click(box["x"] + box["width"] * 0.9, box["y"] + box["height"] * 0.08)
        tab.wait_for_function("() => location.search.includes('place_rank=3')")
