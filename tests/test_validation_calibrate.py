"""Calibrations from results of machines that are known: their numbers come back, errors fall."""

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import hardware_profiles as hp
import roofline.cli
from hardware_profiles.calibration import for_accelerator
from tests.measured import KERNELS, NODES, header, lines, truth, written
from validation import launch
from validation.__main__ import app
from validation.calibrate import Calibrated, calibrate
from validation.case import Case
from validation.context import Options
from validation.evidence import gather, predicted
from validation.heldout import half_of
from validation.profile import Profile, on_cpu
from validation.report import report
from validation.results import FILE
from validation.saved import write
from validation.stages import ideal, placed, stages

RINGS = ("all-gather", "reduce-scatter", "all-reduce")

# A machine unlike the shipped calibration, from which every fit starts.
MACHINE = truth(
    matmuls__bf16={"efficiency": 0.55, "start": 9e-6},
    streams={"hbm": 0.62, "gap": 2e-5},
    attention={"flash_2": 0.2, "efficiency": 0.4, "flash_1": 0.127},
    collectives__all_gather={"fraction": 0.5, "start": 2e-5},
    collectives__all_reduce={"fraction": 0.6},
    network={"outer": 0.4, "hop": 3e-5, "exchange": 0.7},
)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Calibrated:
    """Fitted to half of the full suite, with noise of 3 %.

    Of memory and collectives, where many cases tell of each number, one case in twenty is three
    times as slow. Of matmuls a single shape tells what a short K costs: there none is.
    """
    alone = ("matmul", "attention")
    found = lines(MACHINE, names=alone, noise=0.03)
    many = [name for name in KERNELS if name not in alone]
    found += lines(MACHINE, names=many, noise=0.03, outliers=0.05)
    return calibrate(gather(written(tmp_path_factory.mktemp("full"), found)), "mine")


def test_the_machine_is_recovered(fitted: Calibrated) -> None:
    """What large cases and many small ones tell alone, within a few times their noise."""
    step, real = fitted.overlay.step, MACHINE.step
    assert step is not None
    assert real is not None
    assert step.matmuls["bf16"].efficiency == pytest.approx(0.55, rel=0.05)
    assert step.streams.hbm == pytest.approx(0.62, rel=0.03)
    assert step.streams.gap == pytest.approx(2e-5, rel=0.1)
    assert step.attention.flash_2 == pytest.approx(0.2, rel=0.1)
    assert step.attention.efficiency / step.attention.flash_2 == pytest.approx(2, rel=0.01)
    assert step.collectives["all-gather"].fraction == pytest.approx(0.5, rel=0.03)
    assert step.collectives["all-reduce"].fraction == pytest.approx(0.6, rel=0.03)
    assert step.network.outer == pytest.approx(0.4, rel=0.03)
    assert step.network.hop == pytest.approx(3e-5, rel=0.1)
    assert step.network.exchange == pytest.approx(0.7, rel=0.05)
    assert step.habits == real.habits


def test_errors_of_held_out_cases_fall(fitted: Calibrated) -> None:
    """To about the noise, whose median is 2 %, for every kernel; before, peaks are far off."""
    assert {row.kernel for row in fitted.rows} > {"matmul", "memory", "attention", *RINGS}
    for row in fitted.rows:
        assert row.before is not None
        assert row.after is not None
        assert row.after < 0.04 < 0.2 < row.before, row
        assert abs(row.fitted - row.held_out) <= 6, row
    assert fitted.whole.after == pytest.approx(0.0202, abs=0.01)  # 0.6745 of 3 %
    assert not fitted.lacking
    assert not fitted.at_limit


def test_the_plain_fractions_are_told_too(fitted: Calibrated) -> None:
    """Closed forms take them: matmul, memory, and tiers from the inside out."""
    overlay = fitted.overlay
    assert overlay.matmul["bf16"] == pytest.approx(0.55, rel=0.05)
    assert overlay.matmul["fp8"] == 0.71  # as shipped: nobody measured it
    assert overlay.hbm == pytest.approx(0.62, rel=0.03)
    assert [tier.bandwidth for tier in overlay.tiers] == pytest.approx([0.6, 0.4], rel=0.05)
    assert overlay.tiers[1].latency == pytest.approx(3e-5, rel=0.1)


def test_the_file_says_where_it_is_from_and_how_good_it_is(
    fitted: Calibrated, tmp_path: Path
) -> None:
    file = tmp_path / "mine.yaml"
    write(fitted.overlay, file)
    read = hp.calibration(str(file))
    assert read == fitted.overlay
    for said in (
        "2026-01-02",
        "left (8 ranks)",
        "torch 2.13",
        "nccl 2.29",
        "seed 0",
        "matmul bf16",
    ):
        assert said in read.source
    assert "not fitted to" in read.error
    assert "all-gather" in read.error


def test_the_file_drops_into_commands_pages_and_reports(
    fitted: Calibrated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``--rates FILE``; a folder of ROOFLINE_PROFILES, where it comes before the shipped one."""
    file = tmp_path / "mine.yaml"
    write(fitted.overlay, file)
    asked = ["collectives", "--cluster", "dgx-h100-superpod", "--ranks", "16", "--rates"]
    result = CliRunner().invoke(roofline.cli.app, [*asked, str(file)])
    assert result.exit_code == 0, result.output
    assert "mine" in result.output
    shipped = for_accelerator("h100-sxm")
    assert shipped is not None
    assert shipped.name == "h100"
    monkeypatch.setenv("ROOFLINE_PROFILES", str(tmp_path))
    own = for_accelerator("h100-sxm")
    assert own is not None
    assert own.name == "mine"


def test_a_report_with_the_calibration_has_smaller_errors(
    fitted: Calibrated, tmp_path: Path
) -> None:
    place = written(tmp_path, lines(MACHINE, seed=9, noise=0.03, suite="quick"))
    before, after = report(place), report(place, overlay=fitted.overlay)
    assert before.summary["median_error"] > 0.3
    assert after.summary["median_error"] < 0.05
    assert not [rate for rate in after.rates if rate.slow]


def test_halves_are_random_and_reproducible(tmp_path: Path) -> None:
    """The same seed, the same numbers; another seed, other ones, and about as good."""
    evidence = gather(written(tmp_path, lines(MACHINE, noise=0.03, names=["memory"])))
    one, again, other = (calibrate(evidence, "x", seed) for seed in (1, 1, 2))
    assert one.overlay == again.overlay
    assert one.overlay != other.overlay
    for found in (one, other):
        assert found.whole.after is not None
        assert found.whole.after < 0.05


def test_other_sections_stay_as_they_were(tmp_path: Path) -> None:
    """Only memory was measured: the rest is the shipped calibration's, and the source says so."""
    found = calibrate(gather(written(tmp_path, lines(MACHINE, names=["memory"]))), "x")
    shipped = hp.calibration("h100")
    assert found.overlay.step is not None
    assert shipped.step is not None
    assert found.overlay.step.collectives == shipped.step.collectives
    assert found.overlay.step.matmuls == shipped.step.matmuls
    assert found.overlay.tiers == shipped.tiers
    assert "everything else as in the calibration h100" in found.overlay.source


def test_a_machine_that_nobody_knows_starts_at_peaks(tmp_path: Path) -> None:
    """No shipped calibration: fp32 stands for bf16, an all-gather for what was not measured."""
    cluster = NODES.model_dump(mode="json")
    cluster["accelerator"]["name"] = "new-gpu"
    real = truth(
        collectives__all_gather={"fraction": 0.3, "start": 1e-4},
        matmuls__bf16={"efficiency": 0.3},
    )
    found = lines(real, names=["matmul", "all-gather"], noise=0.02)
    single = [
        line.model_copy(update={"parameters": line.parameters | {"dtype": "tf32"}})
        for line in found
        if line.kernel == "all-gather"
    ]
    matmuls = [line for line in found if line.kernel == "matmul"]
    place = written(tmp_path, matmuls + single, header(cluster=cluster))
    result = calibrate(gather(place), "new")
    step = result.overlay.step
    assert step is not None
    assert result.overlay.accelerators == ("new-gpu",)
    assert step.matmuls["bf16"].efficiency == pytest.approx(0.3, rel=0.05)
    assert step.collectives["all-gather"].fraction == pytest.approx(0.3, rel=0.05)
    assert step.collectives["all-to-all"] == step.collectives["all-gather"]
    assert step.attention.efficiency == 1
    assert "everything else at peaks" in result.overlay.source
    for copied in ("all-to-all as all-gather", "all-reduce as all-gather"):
        assert copied in result.overlay.source
    assert set(result.overlay.matmul) == {"bf16"}


def test_too_little_is_refused_with_what_is_missing(tmp_path: Path) -> None:
    few = [m for m in lines(MACHINE, names=["memory"]) if m.parameters["where"] == "memory"][:3]
    with pytest.raises(ValueError, match=r"too little.* memory: 3 of 4 cases.*--suite full"):
        calibrate(gather(written(tmp_path, few)), "x")
    with pytest.raises(ValueError, match="no results of matmuls, memory or collectives"):
        calibrate(gather(written(tmp_path / "none", [])), "x")


def test_impossible_speeds_are_not_fitted_to_and_told(tmp_path: Path) -> None:
    """A link four times as fast as it is: the case is named, the numbers are those without it."""
    good = lines(MACHINE, names=["all-gather"], noise=0.02)
    largest = max(good, key=lambda m: m.nbytes)
    absurd = largest.model_copy(update={"case": "absurd", "seconds": largest.seconds / 20})
    alone = calibrate(gather(written(tmp_path / "good", good)), "x")
    both = calibrate(gather(written(tmp_path / "both", [*good, absurd])), "x")
    assert both.overlay.step == alone.overlay.step
    assert not alone.problems
    (problem,) = both.problems
    assert problem.startswith("absurd: ")
    assert not both.at_limit


@pytest.mark.parametrize("count", [4, 6])
def test_two_results_to_fit_to_are_refused(count: int, tmp_path: Path) -> None:
    """Four in the half to fit to and four in the other are the least."""
    there = [m for m in lines(MACHINE, names=["memory"]) if m.parameters["where"] == "memory"]
    with pytest.raises(ValueError, match=r"too little.*in the half to judge.*allowed: 4 and more"):
        calibrate(gather(written(tmp_path, there[:count])), "x")


def test_a_kernel_that_is_predicted_worse_is_told(tmp_path: Path) -> None:
    """The run's predictions were right, and every second size is a lie to fit to."""
    truthful = lines(MACHINE, names=["memory"], noise=0.02)
    known = [
        m.model_copy(update={"predicted": m.seconds * 1.001 if m.predicted else None})
        for m in truthful
    ]
    rng = np.random.default_rng(1)
    wild = [
        m.model_copy(update={n: getattr(m, n) * f for n in ("seconds", "p10", "p90", "predicted")})
        for m in known
        if m.predicted
        for f in (float(np.exp(rng.normal(0, 1))),)
    ]
    found = calibrate(gather(written(tmp_path, wild)), "x")
    (said,) = found.worse
    assert said.startswith("memory: 0.1% before, ")
    assert said.endswith("worse")
    assert ", worse" in found.overlay.error


def test_results_of_another_program_are_fitted_to_and_counted(tmp_path: Path) -> None:
    """A log of ``-c 0`` calibrates as a checked one does."""
    good = lines(MACHINE, names=["memory"], noise=0.02)
    other = [m.model_copy(update={"correct": "elsewhere"}) for m in good]
    one = calibrate(gather(written(tmp_path / "good", good)), "x")
    two = calibrate(gather(written(tmp_path / "other", other)), "x")
    assert one.overlay.step == two.overlay.step
    assert (one.elsewhere, two.elsewhere, two.untrusted) == (0, len(other), 0)


def test_what_was_not_checked_is_not_fitted_to(tmp_path: Path) -> None:
    """A hundred times too fast: alone it is refused, beside good results it changes nothing."""
    good = lines(MACHINE, names=["memory"], noise=0.02)
    bad = [
        line.model_copy(
            update={"case": f"{line.case} {how}", "correct": how, "seconds": line.seconds / 100}
        )
        for line in good
        for how in ("no", "unchecked")
    ]
    with pytest.raises(ValueError, match=r"memory: 0 of 4 cases, and \d+ that were not checked"):
        calibrate(gather(written(tmp_path / "bad", bad)), "x")
    both = calibrate(gather(written(tmp_path / "both", good + bad)), "x")
    alone = calibrate(gather(written(tmp_path / "good", good)), "x")
    assert both.overlay.step is not None
    assert alone.overlay.step is not None
    assert both.overlay.step.streams == alone.overlay.step.streams
    assert both.untrusted == len(bad)


def test_a_rate_beyond_the_profile_is_told_not_trusted(tmp_path: Path) -> None:
    """Memory twice as fast as the datasheet: the number stops at its limit, and says why."""

    def faster(case: Case, seconds: np.ndarray) -> np.ndarray:
        return seconds / 4

    found = calibrate(
        gather(written(tmp_path, lines(MACHINE, names=["memory"], change=faster))), "x"
    )
    assert found.overlay.step is not None
    assert found.overlay.step.streams.hbm == 1.25
    assert any("memory: hbm is at its limit of 1.25" in line for line in found.at_limit)


def test_predictions_of_foreign_lines_are_none(tmp_path: Path) -> None:
    (line, *_) = lines(MACHINE, names=["all-gather"], suite="quick")
    assert predicted(line, Profile(NODES)) == pytest.approx(line.predicted)
    for changed in ({"kernel": "halo"}, {"parameters": {"other": 1}}, {"size": 999}):
        assert predicted(line.model_copy(update=changed), Profile(NODES)) is None


def test_the_command_line_refuses_and_writes(tmp_path: Path) -> None:
    place = written(tmp_path / "runs", lines(MACHINE, names=["memory"], noise=0.02))
    out = tmp_path / "new" / "own.yaml"
    done = CliRunner().invoke(app, ["calibrate", str(place), "--out", str(out), "--seed", "3"])
    assert done.exit_code == 0, done.output
    assert "memory" in done.output
    assert hp.calibration(str(out)).name == "own"
    file = place / FILE
    file.write_bytes(file.read_bytes()[:-40])  # the end is cut off: nothing that was measured
    again = CliRunner().invoke(app, ["calibrate", str(place), "--out", str(out), "--json"])
    assert again.exit_code == 0, again.output
    empty = CliRunner().invoke(app, ["calibrate", str(tmp_path / "none"), "--out", str(out)])
    assert empty.exit_code == 2
    assert "no results there" in empty.output


STRATEGIES = ("data parallel", "tensor parallel", "pipeline parallel", "context parallel")


@pytest.mark.parametrize("real", [0.2, 1.0, 1.8])
def test_what_hiding_costs_is_recovered(real: float, tmp_path: Path) -> None:
    """From both at once over the parts alone: a machine that is slower all over is not contended."""
    machine = truth(habits={"contention": real})

    def slower(case: Case, seconds: np.ndarray) -> np.ndarray:
        return seconds * 1.5

    found = lines(machine, names=STRATEGIES, noise=0.02, change=slower, suite="quick")
    result = calibrate(gather(written(tmp_path, found)), "x")
    step = result.overlay.step
    assert step is not None
    assert result.fitted == ("contention",)
    assert step.habits.contention == pytest.approx(real, rel=0.1, abs=0.1)
    rows = {row.kernel: row for row in result.rows}
    for kernel in STRATEGIES:  # every one has cases that nothing was fitted to
        assert rows[kernel].fitted > 0
        assert rows[kernel].held_out > 0


def test_parts_of_a_case_are_not_held_out_when_the_whole_is_fitted(tmp_path: Path) -> None:
    """The contention is fitted to both at once over math and comms: all three have been seen."""
    evidence = gather(written(tmp_path, lines(MACHINE, names=STRATEGIES, suite="quick")))
    half = half_of(evidence, stages(evidence), 0)
    seen = {case for case, part in half if part == "both"}
    assert seen
    assert half == {(case, part) for case in seen for part in ("math", "comms", "both")}


def test_messages_both_ways_have_a_rate_of_their_own(tmp_path: Path) -> None:
    """Twice as slow as one way: found, and only where it was measured."""
    both = {"start": 3e-5, "per_rank": 0.0, "fraction": 0.3, "root": 0.0}
    one = {"start": 1e-5, "fraction": 0.6}
    machine = truth(collectives__send_receive=both, collectives__point_to_point=one)
    names = ["point-to-point", "send-receive"]
    found = calibrate(gather(written(tmp_path, lines(machine, names=names, noise=0.02))), "x")
    step = found.overlay.step
    assert step is not None
    assert step.collectives["send-receive"].fraction == pytest.approx(0.3, rel=0.05)
    assert step.collectives["send-receive"].start == pytest.approx(3e-5, rel=0.1)
    assert step.collectives["point-to-point"].fraction == pytest.approx(0.6, rel=0.05)
    alone = lines(machine, names=["point-to-point"], noise=0.02)
    without = calibrate(gather(written(tmp_path / "alone", alone)), "x").overlay.step
    assert without is not None
    assert "send-receive" not in without.collectives


@pytest.mark.parametrize("seed", range(4))
def test_short_attention_on_a_cpu_is_well_posed(seed: int, tmp_path: Path) -> None:
    """Whichever half of the quick suite's shapes is drawn: the others within twice the noise."""
    cluster = on_cpu(2)
    step = placed(
        ideal(cluster.accelerator),
        ("attention",),
        {"flash_2": 0.55, "half": 12.0, "backward": 0.9, "narrow": 0.82, "start": 8e-6},
    )
    machine = truth().model_copy(update={"step": step})
    found = lines(machine, names=["attention"], noise=0.05, suite="quick", cluster=cluster)
    about = header(cluster=cluster.model_dump(mode="json"), device="cpu", backend="gloo", world=2)
    result = calibrate(gather(written(tmp_path, found, about)), "x", seed)
    assert result.whole.after is not None
    assert result.whole.after < 0.1


@pytest.mark.distributed
@pytest.mark.slow
def test_run_report_calibrate_on_two_ranks(tmp_path: Path) -> None:
    """The whole way on this machine: measured, reported, calibrated, and predicted anew."""
    names = ("memory", "all-gather", "all-reduce", "broadcast")
    options = Options(device="cpu", timeout=20, budget=1.5, memory=3e8, kernels=names)
    assert launch.local(options, tmp_path, 2).passed
    before = report(tmp_path)
    assert before.summary["trusted"] == before.summary["results"] > 10
    found = calibrate(gather(tmp_path), "here")
    assert {"memory", "all-gather", "all-reduce"} <= set(found.fitted)
    write(found.overlay, tmp_path / "here.yaml")
    after = report(tmp_path, overlay=hp.calibration(str(tmp_path / "here.yaml")))
    assert after.environment["overlay"] == "here"
    assert after.summary["median_error"] < before.summary["median_error"]


def test_a_collective_measured_across_nodes_only(tmp_path: Path) -> None:
    """As in a log of two whole nodes: what is fitted to half of it predicts the other half."""
    real = truth(
        collectives__all_reduce={"start": 3e-5, "root": 3e-8}, network={"outer": 0.5, "hop": 2e-5}
    )
    across = [m for m in lines(real, names=["all-reduce"], noise=0.02) if m.size == 16]
    found = calibrate(gather(written(tmp_path, across)), "x")
    assert found.fitted == ("network beyond the innermost tier", "all-reduce beyond it")
    assert found.whole.fitted + found.whole.held_out == len(across)
    assert abs(found.whole.fitted - found.whole.held_out) <= 1
    assert found.whole.after is not None
    assert found.whole.after < 0.03
