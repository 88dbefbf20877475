"""The back-test: accuracy on published runs as a guard, and what becomes of runs that are wrong."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import hardware_profiles as hp
from hardware_profiles.calibration import for_accelerator
from roofline import accuracy, evidence, frameworks, runs
from roofline import backtest as back
from roofline.cli import app
from roofline.layout import OVERLAP, RECOMPUTE
from roofline.run_fields import RunError

PUBLISHED = back.published()
BY_ID = {run["id"]: run for run in PUBLISHED}
A100 = {"gpu": "A100-80GB-SXM"}
RUN = {
    "id": "mine",
    "model": {
        "layers": 32,
        "hidden": 4096,
        "ffn_hidden": 11008,
        "heads": 32,
        "vocab": 32000,
        "gated_mlp": True,
        "seq_len": 4096,
    },
    "gpu": "H100-80GB-SXM",
    "n_gpus": 8,
    "global_batch_size": 32,
}


@pytest.fixture(scope="module")
def result() -> back.Backtest:
    return back.backtest((run["id"], run) for run in PUBLISHED)


def core(result: back.Backtest, family: str, *gpus: str) -> list[back.Row]:
    """Rows of the core set on these GPUs."""
    rows = back.rows_of(result, family=family)
    return [row for row in rows if evidence.in_core(row.run) and row.accelerator in gpus]


class TestAccuracy:
    """Guards at what the shipped calibrations reach on the runs that they were fitted to. What they
    reach on sources left out of the fit stands in the calibrations, and is checked below."""

    @pytest.mark.parametrize(
        ("family", "gpus", "median", "p90"),
        [
            ("dense", ("a100-sxm-80gb", "a100-sxm-40gb"), 0.04, 0.12),
            ("dense", ("h100-sxm",), 0.03, 0.11),
            ("dense", ("b200-sxm", "gb200", "gb300"), 0.05, 0.16),
            ("moe", ("b200-sxm", "gb200", "gb300", "b300-sxm"), 0.12, 0.40),
        ],
    )
    def test_of_the_core_set(
        self,
        result: back.Backtest,
        family: str,
        gpus: tuple[str, ...],
        median: float,
        p90: float,
    ) -> None:
        found = accuracy.errors(core(result, family, *gpus))
        assert found.median <= median, found
        assert found.p90 <= p90, found
        assert abs(found.bias) <= 0.03 or family == "moe"

    def test_better_than_one_utilisation(self, result: back.Backtest) -> None:
        for gpus in (("a100-sxm-80gb",), ("a100-sxm-40gb",), ("h100-sxm",)):
            found = accuracy.errors(core(result, "dense", *gpus))
            assert found.median < found.baseline_median / 2

    @pytest.mark.parametrize(
        ("name", "median", "p90"), [("a100", 0.05, 0.14), ("h100", 0.055, 0.14)]
    )
    def test_left_out_sources(self, name: str, median: float, p90: float) -> None:
        step = hp.calibration(name).step
        assert step is not None
        assert step.accuracy is not None
        assert step.accuracy.dense is not None
        assert step.accuracy.dense.median <= median
        assert step.accuracy.dense.p90 <= p90

    def test_ranks(self, result: back.Backtest) -> None:
        """Sweeps on a fixed number of GPUs: BLOOM's search, and four pipeline schedules."""
        found = {r.sweep: r for r in accuracy.rankings(back.rows_of(result))}
        bloom = found["bloom config_search_384xA100, 384 a100-sxm-80gb"]
        assert bloom.tau >= 0.6
        assert bloom.regret <= 0.03
        for sweep in (r for name, r in found.items() if name.startswith("zerobubble")):
            assert sweep.tau >= 0.7
            assert sweep.regret <= 0.01

    def test_every_published_run_is_predicted(self, result: back.Backtest) -> None:
        assert not result.refused
        assert len(result.rows) == len(PUBLISHED) == 805
        assert all(np.isfinite(row.predicted) and row.predicted > 0 for row in result.rows)
        assert all(row.predicted == pytest.approx(sum(row.terms.values())) for row in result.rows)

    def test_peak_is_a_bound(self, result: back.Backtest) -> None:
        """Nobody is faster than the datasheet, but for options that a row does not state."""
        best = back.backtest(((run["id"], run) for run in PUBLISHED), back.at_peak)
        faster = [r.id for r in back.rows_of(best) if r.measured and r.measured < r.predicted]
        assert len(faster) <= 2, faster


class TestRuns:
    def test_gaps_are_filled_and_told(self) -> None:
        job = runs.job(RUN)
        assert job.model.kv_heads == 32
        assert job.layout.tp == 1
        assert {text.partition(" ")[0] for text in job.assumed} >= {"micro_batch_size", "vpp"}

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"tp": "eight"}, "tp: 'eight' is refused"),
            ({"n_gpus": None}, "n_gpus: missing"),
            ({"n_gpus": True}, "n_gpus: True is refused"),
            ({"n_gpus": 1e30}, "n_gpus: 1e.30 is refused"),
            ({"n_gpus": float("nan")}, "n_gpus: nan is refused"),
            (
                {"tp": 3},
                "tp: 3 is refused; allowed: divisors of the 32 heads; the nearest: 2 and 4",
            ),
            ({"pp": 64}, "pp: 64 is refused; allowed: stages of at most the 34 layers and slots"),
            ({"cp": 3}, "cp: 3 is refused; allowed: sequence .4096. in multiples of 6, 2 · cp"),
            ({"ep": 2}, "ep: 2 is refused; allowed: 1, for the model has no experts"),
            ({"micro_batch_size": 5}, "micro_batch_size: 5 is refused; .* the nearest: 4"),
            (
                {"global_batch_size": 31},
                "global_batch_size: 31 is refused; allowed: multiples of 8 replicas",
            ),
            ({"gpu": "H1000"}, "gpu: 'H1000' is not known"),
            ({"gpu": 7}, "gpu: 7 is refused; allowed: a text"),
            ({"model": "llama"}, "model: 'llama' is refused; allowed: an object"),
            ({"extra": [1]}, r"extra: \[1\] is refused; allowed: an object"),
            ({"precision": "fp7"}, "precision: 'fp7' is not one"),
            ({"gpu": "A100", "precision": "fp8"}, "precision: a100-sxm-80gb has no fp8 rate"),
        ],
    )
    def test_what_is_wrong_is_named(self, change: dict[str, Any], message: str) -> None:
        found = back.backtest([("line 731", RUN | change), ("line 732", RUN)])
        assert len(found.rows) == 1
        with pytest.raises(AssertionError, match=message):
            raise AssertionError(found.refused[0].reason)
        assert found.refused[0].name == "line 731"

    @given(
        st.sampled_from(sorted(RUN | {"tp": 1, "pp": 1, "vpp": 1, "extra": {}, "network": {}})),
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just([])
        | st.just({}) | st.dictionaries(st.text(), st.integers(), max_size=2),
    )  # fmt: skip
    def test_no_value_breaks_it(self, field: str, value: Any) -> None:
        found = back.backtest([("it", RUN | {field: value}), ("good", RUN)])
        assert len(found.rows) + len(found.refused) == 2
        assert found.rows

    def test_lines_that_are_no_runs(self) -> None:
        found, refused = back.parse('{"id": "a"}\n\nnonsense\n[1]\n')
        assert [name for name, _ in found] == ["line 1 (a)"]
        assert [each.name for each in refused] == ["line 3", "line 4"]

    @pytest.mark.parametrize(
        ("gpu", "name"),
        [
            ("A100-40GB-SXM", "a100-sxm-40gb"),
            ("A100-80GB-SXM", "a100-sxm-80gb"),
            ("H100-96GB-HBM2e-500W", "h100-sxm-hbm2e"),
            ("GB200-NVL72", "gb200"),
            ("GH200", "gh200"),
            ("B300-288GB-SXM", "b300-sxm"),
            ("h200-sxm", "h200-sxm"),
        ],
    )
    def test_names_of_gpus(self, gpu: str, name: str) -> None:
        assert runs.accelerator(gpu) == name
        assert name in hp.accelerators()

    def test_measured_from_tokens(self) -> None:
        """32 · 4096 tokens at 8 · 1000 a second."""
        rate = {"measured": {"tokens_per_s_per_gpu": 1000}}
        assert runs.measured(RUN | rate) == pytest.approx(16.384)
        with pytest.raises(RunError, match="measured: neither"):
            runs.measured(RUN)

    def test_every_framework_is_found_by_its_words(self) -> None:
        for row in frameworks.FRAMEWORKS:
            assert frameworks.framework({"source": row.words[0]}).name == row.name

    @pytest.mark.parametrize(
        ("change", "kind"),
        [
            (A100 | {"source": "Megatron-LM", "precision": "fp16"}, "unfused"),
            ({"source": "Megatron-LM", "precision": "fp16"}, "flash"),
            (A100 | {"source": "Megatron-LM", "year": 2022}, "unfused"),
            ({"source": "Megatron-LM", "year": 2025}, "flash"),
            (
                A100 | {"source": "Megatron-LM", "year": 2022, "attention": "FlashAttention"},
                "flash-2",
            ),
            ({"notes": "trained without flash attention"}, "unfused"),
            ({"notes": "126M without flash attention"}, "flash"),
            ({"source": "NVIDIA/NeMo (container 24.07)"}, "flash-2024"),
            ({"source": "NVIDIA/NeMo (container 25.02)"}, "flash"),
        ],
    )
    def test_which_attention_a_run_has(self, change: dict[str, Any], kind: str) -> None:
        """By its words, its year and what is said of another model of the same table."""
        run = RUN | change
        assert frameworks.attention(run, frameworks.framework(run)) == kind

    def test_an_interleaved_schedule_has_two_chunks(self) -> None:
        """Torchtitan's default, where a run does not say."""
        change = {"pp": 2, "n_gpus": 16, "extra": {"pp_schedule": "Interleaved 1F1B"}}
        assert runs.job(RUN | change).layout.chunks == 2

    def test_scores_that_do_not_fit_are_made_again(self) -> None:
        """Korthikanti et al.: a 22B model on 8 A100 needs it at micro-batch 4, and a 1B one not."""
        small = {"layers": 24, "hidden": 2048, "heads": 16, "vocab": 51200, "seq_len": 2048}
        large = small | {"layers": 48, "hidden": 6144, "heads": 64}
        for shape, kind in ((small, "none"), (large, "full")):
            one = {"model": shape, "precision": "fp16", "source": "Megatron", "tp": 8}
            run = RUN | one | {"gpu": "A100-80GB", "micro_batch_size": 4}
            assert runs.job(run).layout.recompute == RECOMPUTE[kind]
            assert runs.job(run | {"recompute": "none"}).layout.recompute == RECOMPUTE["none"]


class TestCalibrations:
    @pytest.mark.parametrize(
        "name",
        ["a100-sxm-80gb", "a100-sxm-40gb", "h100-sxm", "h200-sxm", "b200-sxm", "b300-sxm", "gb200",
         "gb300", "h800-sxm", "gh200", "h100-sxm-hbm2e"],
    )  # fmt: skip
    def test_have_what_the_step_needs(self, name: str) -> None:
        overlay = for_accelerator(name)
        assert overlay is not None
        assert overlay.step is not None
        assert overlay.step.habits.power < 0.5
        assert "not yet" not in overlay.error


class TestRanks:
    def test_kendall(self) -> None:
        """One pair of six swapped: (5 - 1) / 6."""
        assert accuracy.tau([1, 2, 3, 4], [1, 2, 4, 3]) == pytest.approx(2 / 3)

    @given(st.lists(st.integers(0, 5), min_size=3, max_size=8))
    def test_of_an_order_with_itself(self, values: list[int]) -> None:
        expected = 1 if len(set(values)) > 1 else 0
        assert accuracy.tau(values, values) == pytest.approx(expected)


class TestCommands:
    def test_backtest_as_json(self, tmp_path: Path) -> None:
        file = tmp_path / "runs.jsonl"
        bad = json.dumps(RUN | {"tp": "x"})
        file.write_text("\n".join([json.dumps(run) for run in PUBLISHED[:20]] + [bad]))
        said = CliRunner().invoke(app, ["backtest", str(file), "--json"])
        document = json.loads(said.stdout)
        assert len(document["rows"]) == 20
        assert document["refused"][0]["name"] == "line 21 (mine)"
        assert {"id", "predicted_s", "measured_s", "error"} <= set(document["rows"][0])
        assert document["summary"]["all"]["count"] == 20

    def test_backtest_for_people(self) -> None:
        said = CliRunner().invoke(app, ["backtest", "--by", "gpu,source,family"])
        assert said.exit_code == 0
        assert "h100-sxm, foundry, dense" in said.stdout

    def test_predict(self, tmp_path: Path) -> None:
        file = tmp_path / "run.json"
        file.write_text(json.dumps(RUN))
        said = CliRunner().invoke(app, ["predict", str(file), "--json"])
        document = json.loads(said.stdout)
        assert document["predicted_s"] == pytest.approx(sum(document["terms_s"].values()))
        assert document["measured_s"] is None
        assert document["assumed"]
        assert "assumed: vpp = 1" in CliRunner().invoke(app, ["predict", str(file)]).stdout

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["predict", "nowhere.json"], "is no file"),
            (["backtest", "--by", "colour"], "allowed: gpu, source"),
        ],
    )
    def test_refusals(self, arguments: list[str], message: str) -> None:
        said = CliRunner().invoke(app, arguments)
        assert said.exit_code == 2
        assert message in said.stderr


class TestReleases:
    @pytest.mark.parametrize(
        ("source", "release"),
        [
            ("docs @067f987df, '26.06.01 NeMo Container' > DGX-GB200", (26, 6, 1)),
            ("docs, '25.11 NeMo Container'", (25, 11)),
            ("NVIDIA/dgxc-benchmarking README.md @ v25.05: table", (25, 5)),
            ("llm-foundry, scripts/train/benchmarking/README.md", ()),
        ],
    )
    def test_release_in_a_source(self, source: str, release: tuple[int, ...]) -> None:
        """As the sources of ``published_runs.jsonl`` print it."""
        assert frameworks.release({"source": source}) == release

    def test_tokens_are_dropped_where_said(self) -> None:
        assert frameworks.dropless({"notes": "MoE token-dropless, router force-balanced."})
        assert not frameworks.dropless({"notes": "MoE token-drop run (capacity-limited)."})

    @pytest.mark.parametrize(
        ("changed", "overlap"),
        [
            ({"tp": 4, "gpus_per_node": 4}, "fine"),
            ({"tp": 8, "gpus_per_node": 4}, "backward"),
            ({"tp": 4, "gpus_per_node": 8, "precision": "nvfp4", "gpu": "B200"}, "backward"),
        ],
    )
    def test_fine_overlap_ends_at_the_host(self, changed: dict[str, Any], overlap: str) -> None:
        """Transformer Engine overlaps inside one host: NVIDIA/TransformerEngine issue 1071."""
        run = {**RUN, "framework": "Megatron-Bridge", "n_gpus": 8, "global_batch_size": 64}
        assert runs.job({**run, **changed}).layout.tp_overlap == OVERLAP[overlap]
