"""The hardware page: it says what the library says, refuses what it must, and edits profiles."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("streamlit")

from streamlit.testing.v1 import AppTest

import hardware_profiles as hw
from dashboard import hardware_drawing as drawing
from dashboard import hardware_edit as edit
from dashboard import hardware_figures as figures
from dashboard import hardware_tables as tables
from hardware_profiles import ProfileError, derived
from roofline.units import show
from tests import pages
from tests.pages import drawn, said

ROOT = Path(__file__).parent.parent
POD = "dgx-h100-superpod"
VIEWS = [
    "Hierarchy",
    "Memory ladder",
    "Sources",
    "Compare",
    "Peak and achieved",
    "Fat tree",
    "Edit a copy",
]
ODD = ["local", "pcie-ethernet", "mi300x-pod", "llama3-roce-24k", "gb200-nvl72-superpod"]


def opened(view: str = "Hierarchy", **asked: str) -> AppTest:
    """A view of the page, which no error stopped."""
    app = pages.opened("hardware", **({"hw_view": view} | asked))
    assert not app.exception, app.exception[0].message
    return app


def metrics(app: AppTest) -> dict[str, str]:
    """The tiles, by their labels."""
    return {metric.label: metric.value for metric in app.metric}


def test_it_says_at_once_what_the_library_says() -> None:
    """NVIDIA's DGX SuperPOD architecture counts 512 + 32 + 16 switches for 1024 GPUs."""
    app, pod = opened(), hw.cluster(POD)
    tiles = metrics(app)
    assert tiles["GPUs"] == "1,024"
    assert tiles["Out of a node"] == show(derived.egress(pod, 0), "B/s") == "400 GB/s"
    assert tiles["Collective over all"] == show(derived.slowest_collective(pod).bandwidth, "B/s")
    assert tiles["Switches"] == "560"
    assert tiles["HBM ridge [FLOP/B]"] == "295"
    assert "450 GB/s for each GPU inside a node, 50 GB/s outside" in said(app)
    assert not app.warning


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_of_unusual_machines(view: str) -> None:
    app = opened(view)
    for name in ODD:
        app.selectbox(key="cluster").set_value(name).run()
        assert not app.exception, (view, name, app.exception[0].message)


@pytest.mark.parametrize("view", VIEWS)
def test_hostile_addresses_get_a_word_and_no_traceback(view: str) -> None:
    asked = {
        "hw_tree_gpus": "1e9; <script>",
        "hw_tree_ports": "nan",
        "hw_tree_rails": "-8",
        "hw_compare": "<script>alert(1)</script>",
        "hw_edit_as": "../../etc/passwd",
    }
    app = opened(view, **asked)
    text = said(app)
    expected = {
        "Fat tree": "hw_tree_ports=nan",
        "Compare": "hw_compare",
        "Edit a copy": "hw_edit_as",
    }
    assert expected.get(view, "") in text
    app = opened("nonsense", cluster="no-such", hw_scope="%00")
    assert metrics(app)["GPUs"] == "1,024"
    assert "hw_view=nonsense" in said(app)


def test_the_job_may_be_smaller_than_the_profile() -> None:
    app = opened(gpus="512")
    assert metrics(app)["GPUs"] == "1,024"
    app.segmented_control(key="hw_scope").set_value("this job").run()
    assert metrics(app)["GPUs"] == "512"
    assert not app.exception


def test_one_gpu() -> None:
    app = opened(gpus="1", hw_scope="this job")
    assert metrics(app)["Collective over all"] == "–"
    assert "nothing to send" in said(app)


def test_achievable_rates_reach_the_numbers() -> None:
    app = opened(rates="achievable")
    assert metrics(app)["Out of a node"] == show(0.81 * 400e9, "B/s")
    assert "as achieved" in said(app)


def test_the_drawing_names_every_tier_and_escapes_what_a_profile_says() -> None:
    page = drawing.hierarchy(hw.cluster("llama3-roce-24k"))
    for name in ("cluster", "pod", "rack", "node", "oversubscribed 7:1", "152 more", "24,576"):
        assert name in page
    pod = hw.cluster(POD)
    evil = pod.tiers[0].model_copy(
        update={"name": "<script>x</script>", "technology": "<img src=x>"}
    )
    page = drawing.hierarchy(pod.model_copy(update={"tiers": (evil, *pod.tiers[1:])}))
    assert "<script>" not in page
    assert "<img" not in page


def test_roofs_have_their_ridges_where_the_book_has_them() -> None:
    """Scaling book, chapter 12: 295 FLOP/B of HBM; 989.4e12/450e9 = 2199 for NVLink."""
    figure = figures.roofs(hw.cluster(POD), "bf16")
    names = [trace.get("name", "") for trace in figure["data"]]
    assert "HBM: 295 FLOP/B" in names
    assert "node: 2,199 FLOP/B" in names
    assert "scalable unit, SuperPod: 19,788 FLOP/B" in names
    assert sum(len(trace["x"]) for trace in figure["data"]) < 1000
    table = tables.ladder_table(hw.cluster(POD), "bf16")
    assert dict(zip(table["Level"], table["C/W"], strict=True))["scalable unit"] == "2,474 FLOP/B"


@pytest.mark.parametrize("name", hw.clusters())
def test_every_number_has_a_source_and_every_figure_draws(name: str) -> None:
    machine = hw.cluster(name)
    dtype = next(iter(machine.accelerator.peak_flops))
    assert all(number.source for number in tables.numbers(machine))
    assert {len(column) for column in tables.sources(machine).values()}
    assert tables.verdict(machine, dtype)
    assert len(tables.tiles(machine, dtype)) == 8
    figures.roofs(machine, dtype)
    drawing.hierarchy(machine)
    read = hw.read(json.dumps({"kind": "cluster"} | json.loads(_json(machine))))
    assert read == machine


def _json(machine: hw.Cluster) -> str:
    from dashboard.hardware_editor import as_json

    return as_json(machine)


def test_sources_become_links_and_nothing_else() -> None:
    text = tables.linked(
        "see https://www.nvidia.com/en-us/h100/, ![x](http://evil/a.png) $x$ :red[y]"
    )
    assert "[nvidia.com/…/h100](https://www.nvidia.com/en-us/h100/)" in text
    assert "\\!\\[x\\]" in text
    assert "\\$x\\$" in text
    assert "\\:red\\[y\\]" in text
    assert tables.linked("https://github.com/a/b/blob/x.md") == (
        "[github.com/a/b/…/x.md](https://github.com/a/b/blob/x.md)"
    )


def test_a_b200_is_so_many_times_an_h100() -> None:
    """Peaks of NVIDIA's datasheets, dense: 2250 and 989.4 TFLOP/s in bf16."""
    chips = {"h100-sxm": hw.accelerator("h100-sxm"), POD: hw.cluster(POD)}
    table = figures.compare(chips | {"b200-sxm": hw.accelerator("b200-sxm")}, "bf16")
    bars = figures.comparison(table)["data"]
    ratio = dict(zip(bars[1]["y"], bars[1]["customdata"], strict=True))
    assert ratio["bf16 peak"] == pytest.approx(2250 / 989.4)
    assert "fp4 peak" not in ratio
    assert str(table["b200-sxm"]["fp4 peak"]) == "9 PFLOP/s"
    assert str(table["b200-sxm"]["GPUs"]) == "–"


def test_comparing_from_the_page() -> None:
    app = opened("Compare", hw_compare="h100-sxm")
    app.multiselect(key="hw_compare").set_value(["gb200-nvl72-superpod", "tpu-v5p"]).run()
    assert not app.exception
    assert [trace["name"] for trace in drawn(app)[0]["data"]] == ["gb200-nvl72-superpod", "tpu-v5p"]
    app.multiselect(key="hw_compare").set_value([]).run()
    assert "Choose up to 3" in said(app)


def test_peak_and_achieved() -> None:
    app = opened("Peak and achieved")
    overlay = hw.calibration("h100")
    assert overlay.matmul["bf16"] in drawn(app)[0]["data"][0]["x"]
    app.selectbox(key="cluster").set_value("rtx-4090-box").run()
    assert "Nobody has calibrated" in said(app)


def test_fat_trees_of_nvidias_table_and_beyond() -> None:
    """DGX SuperPOD B200 reference architecture: 4096 GPUs need 128 leaves, 128 spines, 64 cores."""
    app = opened("Fat tree", hw_tree_gpus="4096")
    assert "128 leaves, 128 spines, 64 cores" in said(app)
    app.number_input(key="hw_tree_gpus").set_value(100_000).run()
    assert "join 1 to 65536" in app.error[0].value
    app.button(key="hw_larger").click().run()
    assert app.selectbox(key="hw_tree_ports").value == 128
    assert not app.error
    app.number_input(key="hw_tree_gpus").set_value(10_000_000).run()
    assert not app.exception


def test_a_field_that_is_wrong_says_so_and_offers_what_is_right() -> None:
    app = opened("Edit a copy")
    app.text_input(key="hw_field_tiers.1.bandwidth").set_value("200").run()
    assert "did you mean 200 GB/s" in said(app)
    assert "1 problem" in app.error[0].value
    app.button(key="hw_field_tiers.1.bandwidth_200 GB/s").click().run()
    assert "tier inside it" in said(app)  # the SuperPod's tier has more than a unit can send now
    app.button(key="hw_field_tiers.2.bandwidth_6.4 TB/s").click().run()
    assert not app.error
    assert "is a valid profile" in said(app)


def test_a_copy_is_used_on_every_page_and_marked_in_its_sources() -> None:
    app = opened("Edit a copy")
    app.text_input(key="hw_field_tiers.2.oversubscription").set_value("4").run()
    app.button(key="hw_use").click().run()
    assert not app.exception
    assert app.session_state["cluster"] == f"my-{POD}"
    assert metrics(app)["Bisection"] == show(25.6e12 / 4, "B/s")
    used = app.session_state["profiles"][f"my-{POD}"]
    assert "set by hand on the hardware page: 4 (was 1)" in used.tiers[2].source
    assert used.tiers[1].source == hw.cluster(POD).tiers[1].source


def test_tiers_come_and_go_and_accelerators_are_swapped() -> None:
    app = opened("Edit a copy")
    app.button(key="hw_grow").click().run()
    app.button(key="hw_grow").click().run()
    app.button(key="hw_shrink").click().run()
    app.selectbox(key="hw_chip").set_value("b200-sxm").run()
    assert not app.error
    app.button(key="hw_use").click().run()
    assert metrics(app)["GPUs"] == "2,048"
    assert metrics(app)["HBM ridge [FLOP/B]"] == "281"


def test_text_that_is_no_yaml() -> None:
    app = opened("Edit a copy", hw_edit_as="YAML")
    app.text_area(key="hw_yaml").set_value("tiers: [").run()
    assert "not plain YAML" in said(app)
    app.segmented_control(key="hw_edit_as").set_value("fields").run()
    assert "cannot be read" in said(app)
    app.button(key="hw_restart").click().run()
    assert not app.error


def test_an_untouched_draft_follows_the_sidebar_and_a_changed_one_stays() -> None:
    app = opened("Edit a copy")
    app.selectbox(key="cluster").set_value("l40s-box").run()
    assert app.text_input(key="hw_field_name").value == "my-l40s-box"
    app.text_input(key="hw_field_title").set_value("mine").run()
    app.selectbox(key="cluster").set_value(POD).run()
    assert app.text_input(key="hw_field_title").value == "mine"


def test_a_broken_file_of_the_user_gets_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.yaml").write_text("kind: accelerator\nname: mine\n")
    monkeypatch.setenv("ROOFLINE_PROFILES", str(tmp_path))
    app = opened("Compare")
    app.multiselect(key="hw_compare").set_value(["mine"]).run()
    assert "title: missing" in app.error[0].value
    app = opened("Edit a copy")
    app.selectbox(key="hw_chip").set_value("mine").run()
    assert "title: missing" in said(app)
    assert not app.exception


def draft(**changed: Any) -> edit.Checked:
    """A copy of the SuperPod with fields changed, as checked."""
    text = edit.start(hw.cluster(POD), hw.clusters())
    for field, value in changed.items():
        text = edit.put(text, field.replace("__", "."), value)
    return edit.check(text, hw.clusters())


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("name", POD, "the catalogue's"),
        ("name", "x" * 61, "up to 60 characters"),
        ("title", "two\nlines", "one line"),
        ("tiers__2__degree", 10_000_000, "up to 10,000,000"),
        ("tiers__1__degree", "thirty", "valid integer"),
        ("tiers__1__degree", -3, "greater than or equal to 1"),
        ("tiers__1__bandwidth", "400 XB/s", "is not a form of B/s"),
        ("tiers__0__latency", float("nan"), "not a finite number"),
        ("tiers__0__oversubscription", 0.5, "greater than or equal to 1"),
        ("accelerator", "/etc/passwd", "not in the catalogue"),
        ("accelerator", "h100-sx", "the nearest"),
        ("accelerator__peak_flops", {"fp64": "67 TFLOP/s"}, "at least one of bf16"),
        ("surprise", 1, "no such field"),
    ],
)
def test_a_draft_is_refused_at_the_field(field: str, value: Any, said: str) -> None:
    checked = draft(**{field: value})
    assert checked.cluster is None
    assert any(said in problem.message for problem in checked.problems)
    named = {problem.field for problem in checked.problems}
    assert named & {field.replace("__", "."), field.split("__")[0], ""}


HOSTILE = {
    "aliases": b"a: &x [1]\nb: [*x, *x]\n",
    "code": b"x: !!python/object/apply:os.system ['ls']\n",
    "deep": b"[" * 5000,
    "binary": bytes(range(256)),
    "empty": b"",
    "list": b"- 1\n",
    "twice": b"name: a\nname: b\n",
    "large": b"#" * 1_500_000,
    "path": b"kind: accelerator\nname: /etc/passwd\n",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_uploads_get_a_clear_word(kind: str) -> None:
    with pytest.raises(ProfileError) as refused:
        edit.upload(HOSTILE[kind], hw.cluster(POD))
    assert 0 < len(str(refused.value)) < 2000


def test_an_uploaded_accelerator_takes_the_place_of_the_clusters_own() -> None:
    text = edit.upload(hw.to_yaml(hw.accelerator("b200-sxm")).encode(), hw.cluster(POD))
    cluster = edit.check(text, hw.clusters()).cluster
    assert cluster
    assert cluster.accelerator == hw.accelerator("b200-sxm")
    assert cluster.tiers == hw.cluster(POD).tiers


def test_uploading_from_the_page() -> None:
    app = opened("Edit a copy")
    app.file_uploader(key="hw_upload").set_value(("evil.yaml", HOSTILE["aliases"], "text/yaml"))
    app.run()
    assert "evil.yaml: line 2: aliases" in app.error[0].value
    good = hw.to_yaml(hw.accelerator("b200-sxm")).encode()
    app.file_uploader(key="hw_upload").set_value(("b200.yaml", good, "text/yaml")).run()
    assert "my-b200-sxm" in said(app)


def test_changes_are_listed_and_signed() -> None:
    checked = draft(tiers__1__bandwidth="200 GB/s", accelerator__peak_flops__bf16="1 PFLOP/s",
                    tiers__2__bandwidth="6.4 TB/s")  # fmt: skip
    base = hw.cluster(POD)
    assert checked.cluster
    found = {c.field: (c.before, c.after) for c in edit.changes(base, checked.cluster)}
    assert found == {
        "accelerator.peak_flops.bf16": ("989.4 TFLOP/s", "1 PFLOP/s"),
        "tiers.1.bandwidth": ("400 GB/s", "200 GB/s"),
        "tiers.2.bandwidth": ("12.8 TB/s", "6.4 TB/s"),
    }
    signed = edit.signed(base, checked.cluster)
    assert "was 989.4 TFLOP/s" in signed.accelerator.source_of("peak_flops.bf16")
    assert edit.BY_HAND not in signed.accelerator.source_of("peak_flops.fp8")
    assert hw.read(hw.to_yaml(signed)) == signed


def _browser() -> ModuleType:
    spec = importlib.util.spec_from_file_location("browser", ROOT / "benchmarks" / "browser.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["browser"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.browser
def test_drawn_in_a_browser_on_a_phone_and_a_desk() -> None:
    browser = _browser()
    with browser.dashboard() as url:
        for width in (1280, 390):
            with browser.page(width, 900, dark=width == 390) as tab:
                tab.goto(f"{url}/hardware")
                browser.settle(tab)
                assert tab.locator(".hw .pic").count() == 4
                wide = "document.documentElement.scrollWidth <= window.innerWidth"
                assert tab.evaluate(wide), f"scrolls sideways at {width}"
