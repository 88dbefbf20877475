"""The evidence: the README holds what the command prints, and the command bears any file."""

import importlib.util
import json
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import hardware_profiles as hp
from roofline import accuracy, evidence, evidence_tables
from roofline import backtest as back
from roofline.cli import app

ROOT = Path(__file__).parent.parent
PUBLISHED = back.published()
GOOD = PUBLISHED[30]


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("evidence_script", ROOT / "scripts/evidence.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def result() -> back.Backtest:
    return back.backtest((run["id"], run) for run in PUBLISHED)


def ran(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["backtest", *arguments])


class TestReadme:
    def test_holds_what_the_command_prints(self) -> None:
        """Else: make evidence."""
        text = (ROOT / "README.md").read_text("utf-8")
        assert script().held(text) == ran("--markdown").stdout

    def test_is_written_between_its_marks_alone(self) -> None:
        module = script()
        text = f"before\n{module.BEGIN}\nold\n{module.END}\nafter\n"
        new = module.renewed(text, "| a |\n")
        assert new == f"before\n{module.BEGIN}\n\n| a |\n\n{module.END}\nafter\n"
        assert module.renewed(new, "| a |\n") == new
        assert module.held(new) == "| a |\n"


class TestSummary:
    def test_leaves_nothing_out(self, result: back.Backtest) -> None:
        found = evidence.summary(result)
        assert found.total.count == len(PUBLISHED)
        inner = [each for each in found.groups if "," in each.group]
        assert sum(each.count for each in inner) == len(PUBLISHED)
        families = [each for each in found.groups if each.group in ("all dense", "all moe")]
        assert sum(each.count for each in families) == len(PUBLISHED)
        assert found.groups[-1] == found.total

    def test_numbers_by_hand(self) -> None:
        """Two runs, 10 % too slow and 30 % too fast: median 20 %, largest 30 %."""
        rows = [
            back.Row("a", "h100-sxm", "x", "dense", "bf16", 8, "", 1.1, 1.0, 2.0, 1.0, {}, (), "f", {}),
            back.Row("b", "h100-sxm", "x", "dense", "bf16", 8, "", 1.4, 2.0, 2.0, 1.0, {}, (), "f", {}),
        ]  # fmt: skip
        found = accuracy.errors(rows)
        assert found.median == pytest.approx(0.2)
        assert found.bias == pytest.approx(-0.1)
        assert found.largest == pytest.approx(0.3)
        assert found.baseline_median == pytest.approx(0.5)
        spread = evidence.spread_of(rows)
        assert spread is not None
        assert spread.bias == pytest.approx((math.log(1.1) + math.log(0.7)) / 2)

    def test_left_out_is_what_the_calibrations_carry(self, result: back.Backtest) -> None:
        found = evidence.left_out(back.rows_of(result))
        assert {(each.calibration, each.family) for each in found} >= {
            ("a100", "dense"),
            ("h100", "dense"),
            ("h100", "moe"),
        }
        for each in found:
            step = hp.calibration(each.calibration).step
            assert step is not None
            assert step.accuracy is not None
            assert each.left_out == getattr(step.accuracy, each.family)

    def test_the_core_set_is_that_of_the_data(self) -> None:
        """The conditions of data/published_runs.md, one at a time."""
        run = {"quality": "A", "micro_batch_size": 1, "recompute": "none", "flags": []}
        assert evidence.in_core(run)
        for change in (
            {"quality": "B"},
            {"micro_batch_size": None},
            {"recompute": None},
            {"flags": ["gpu_type_inferred"]},
            {"workload": "sft"},
        ):
            assert not evidence.in_core(run | change)
        assert evidence.in_core(run | {"flags": ["vocab_assumed"]})

    def test_every_flag_of_the_data_has_its_words(self) -> None:
        used = {flag for run in PUBLISHED for flag in run["flags"]}
        assert used <= evidence.DOUBTS.keys()

    def test_repeated_configurations(self, result: back.Backtest) -> None:
        rows = back.rows_of(result)
        for low, high in evidence.repeated(rows).values():
            assert high > evidence.APART * low > 0

    @pytest.mark.parametrize("by", list(accuracy.GROUPS))
    def test_groups_by_every_field(self, result: back.Backtest, by: str) -> None:
        found = accuracy.by(back.rows_of(result), [by])
        assert sum(each.count for each in found) == len(PUBLISHED)

    def test_columns_for_a_file(self, result: back.Backtest) -> None:
        rows = back.rows_of(result)
        columns = evidence.columns(rows)
        assert {len(column) for column in columns.values()} == {len(rows)}
        assert columns["id"][0] == rows[0].id


class TestMarkdown:
    @given(st.lists(st.text(max_size=20), min_size=2, max_size=2))
    def test_a_row_is_a_line(self, cells: list[str]) -> None:
        text = evidence_tables.as_markdown((("a", ">b"), [tuple(cells)]))
        assert len(text.split("\n")) == 3
        assert text.split("\n")[1] == "|---|--:|"

    def test_of_a_file_says_nothing_of_the_fit(self, tmp_path: Path) -> None:
        file = tmp_path / "runs.jsonl"
        file.write_text("\n".join(json.dumps(run) for run in PUBLISHED[:9]))
        said = ran(str(file), "--markdown").stdout
        assert said.startswith("**All 9 measured of 9 predicted runs")
        assert "fitted to these" not in said
        assert "Left out" not in said


def changed(**change: Any) -> str:
    return json.dumps(GOOD | change)


def resized(**change: Any) -> str:
    return json.dumps(PUBLISHED[0] | {"model": PUBLISHED[0]["model"] | change})


BAD = [
    (changed(tp="eight"), "tp: 'eight' is refused; allowed: 1 to 1e+09"),
    (changed(n_gpus=float("nan")), "n_gpus: nan is refused"),
    (changed(n_gpus=float("inf")), "n_gpus: inf is refused"),
    (changed(n_gpus=-8), "n_gpus: -8 is refused"),
    (changed(n_gpus=10**3000), "n_gpus: 1000"),
    (changed(global_batch_size=None), "global_batch_size: missing"),
    (changed(model=[1]), "model: [1] is refused; allowed: an object"),
    (changed()[:-60], "is no JSON"),
    ("[" * 100_000, "is no JSON"),
    ("[1, 2]", "is no object"),
    (changed(measured="fast", derived=None), "measured: 'fast' is refused"),
    (changed(derived={"step_time_s": "x"}), "step_time_s: 'x' is refused"),
    (changed(derived={"step_time_s": -1}), "step_time_s: -1 is refused"),
    (changed(tp=3), "tp: 3 is refused; allowed: divisors of the 128 heads; the nearest: 2 and 4"),
    (resized(heads=3.5), "heads: 3.5 is refused; allowed: whole numbers"),
    (resized(layers=0), "layers: 0 is refused"),
    (changed(ep=7), "ep: 7 is refused; allowed: 1"),
    (changed(ep=100_000), "ep: 100000 is refused; allowed: 1"),
    (changed(network={"internode_gbps_per_gpu": "x"}), "internode_gbps_per_gpu: 'x' is refused"),
    (changed(gpu="Z80"), "gpu: 'Z80' is not known"),
    (changed(global_batch_size=1537), "global_batch_size: 1537 is refused"),
]


class TestBadLines:
    @pytest.fixture(scope="class")
    @staticmethod
    def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
        """Good lines with each bad one between, and good ones that only look odd."""
        odd = [
            changed(id="twice"),
            changed(id="twice"),
            changed(notes="a\u2028b\x85c"),
            changed(flags=7),
        ]
        lines = [text for bad, _ in BAD for text in (bad, changed())]
        odd.append(json.dumps(GOOD | {"notes": "a\u2028b"}, ensure_ascii=False))
        file = tmp_path_factory.mktemp("lines") / "runs.jsonl"
        file.write_text("\n".join([*lines, "", *odd]), "utf-8")
        said = ran(str(file), "--json")
        assert said.exit_code == 0
        return {"file": file, "odd": len(odd)} | json.loads(said.stdout)

    def test_the_good_lines_go_on(self, document: dict[str, Any]) -> None:
        assert len(document["rows"]) == len(BAD) + document["odd"]
        assert document["summary"]["refused"] == len(BAD)

    @pytest.mark.parametrize("index", range(len(BAD)))
    def test_each_is_listed_by_its_line(self, document: dict[str, Any], index: int) -> None:
        refused = document["refused"][index]
        assert refused["name"].split()[:2] == ["line", str(2 * index + 1)]
        assert BAD[index][1] in refused["reason"]

    def test_people_are_told_how_many(self, document: dict[str, Any]) -> None:
        said = ran(str(document["file"])).stdout
        assert f"{len(BAD)} runs failed:" in said
        assert "ids on several lines" in said

    def test_a_gpu_that_no_cluster_has_stops_nobody(self) -> None:
        """No shipped cluster has it: the others are predicted, and it is listed."""
        runs = [("one", GOOD | {"gpu": "MI325X", "precision": "bf16"}), ("two", GOOD)]
        found = back.backtest(runs)
        assert len(found.rows) + len(found.refused) == 2
        assert [row.id for row in found.rows if row.accelerator != "mi325x"] == [GOOD["id"]]

    def test_a_run_without_a_measurement_is_told(self, tmp_path: Path) -> None:
        file = tmp_path / "runs.jsonl"
        file.write_text(changed(measured=None, derived=None) + "\n" + changed(id="other"))
        assert "1 run predicted without a measurement beside" in ran(str(file)).stdout
