"""A section whose fit predicts no better stays as it was, and what is held out has no say in that."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import hardware_profiles as hp
from tests.measured import NODES, header, lines, truth, written
from validation.__main__ import app
from validation.calibrate import calibrate
from validation.evidence import gather
from validation.heldout import half_of, key
from validation.results import Measured
from validation.sections import Tried, as_before, tried
from validation.stages import cases, ideal, placed, stages

SLOW = truth(matmuls__bf16={"efficiency": 0.4})  # all but matmuls as shipped
SHIPPED = hp.calibration("h100")


def slower(line: Measured, by: float) -> Measured:
    return line.model_copy(update={n: getattr(line, n) * by for n in ("seconds", "p10", "p90")})


def test_a_machine_as_shipped_keeps_its_numbers(tmp_path: Path) -> None:
    """Nothing can predict better than numbers without an error: every section stays."""
    names = ["memory", "matmul", "all-gather"]
    evidence = gather(written(tmp_path, lines(truth(), names=names)))
    found = calibrate(evidence, "x")
    assert found.fitted == ()
    titles = ["memory", "matmul bf16", "all-gather", "network beyond the innermost tier"]
    assert [said.partition(":")[0] for said in found.kept] == titles
    assert found.overlay.step is not None
    assert SHIPPED.step is not None
    for part in ("streams", "matmuls", "collectives", "network", "habits"):
        assert getattr(found.overlay.step, part) == getattr(SHIPPED.step, part)
    assert found.overlay.matmul == SHIPPED.matmul
    assert (found.overlay.hbm, found.overlay.tiers) == (SHIPPED.hbm, SHIPPED.tiers)
    assert "fitted to 0 of 0 results: nothing" in found.overlay.source
    assert found.whole.after == pytest.approx(0, abs=1e-9)


def test_one_part_stays_and_another_is_fitted(tmp_path: Path) -> None:
    """Memory is as shipped, matmuls are not; the file, the screen and the JSON say which stayed."""
    place = written(tmp_path / "in", lines(SLOW, names=["memory", "matmul"]))
    found = calibrate(gather(place), "x")
    assert found.fitted == ("matmul bf16",)
    (said,) = found.kept
    assert said.startswith("memory: left as it was: ")
    assert found.overlay.step is not None
    assert SHIPPED.step is not None
    assert found.overlay.step.streams == SHIPPED.step.streams
    assert found.overlay.hbm == SHIPPED.hbm
    assert found.overlay.step.matmuls["bf16"].efficiency == pytest.approx(0.4, rel=0.05)
    assert said in found.overlay.source
    out = tmp_path / "mine.yaml"
    told = CliRunner().invoke(app, ["calibrate", str(place), "--out", str(out)])
    assert told.exit_code == 0, told.output
    assert told.output.count("left as it was: ") == 1
    plain = CliRunner().invoke(app, ["calibrate", str(place), "--out", str(out), "--json"])
    assert json.loads(plain.output)["kept"] == [said]


@pytest.mark.parametrize("by", [0.9, 5.0])
@pytest.mark.parametrize("seed", [0, 3])
def test_what_is_held_out_has_no_say(by: float, seed: int, tmp_path: Path) -> None:
    """Other times there change the errors that are told, no number and no choice.

    No time is faster than the profile allows: such a case would be left out, and halves drawn anew.
    """
    rng = np.random.default_rng(1)
    names = ["memory", "matmul", "all-gather"]
    noisy = [
        slower(m, float(np.exp(abs(rng.normal(0, 0.3))))) if m.kernel == "memory" else m
        for m in lines(SLOW, names=names, noise=0.02)
    ]
    evidence = gather(written(tmp_path / "one", noisy))
    half = half_of(evidence, stages(evidence), seed)
    others = [m if key(m) in half else slower(m, by) for m in noisy]
    one = calibrate(evidence, "x", seed)
    other = gather(written(tmp_path / "two", others))
    assert not evidence.problems + other.problems
    two = calibrate(other, "x", seed)
    assert (one.fitted, one.kept) == (two.fitted, two.kept)
    assert one.overlay.step is not None
    assert two.overlay.step is not None
    assert one.overlay.step.model_dump() == two.overlay.step.model_dump()
    assert one.whole.after != two.whole.after


@pytest.mark.parametrize("seed", range(5))
def test_wild_times_do_not_move_good_numbers_far(seed: int, tmp_path: Path) -> None:
    """Each case off by e^±1 around the shipped numbers: what is held out is not much worse off.

    Either the numbers stay, or the fit was better on cases that it had not seen.
    """
    rng = np.random.default_rng(seed)
    wild = [slower(m, float(np.exp(rng.normal(0, 1)))) for m in lines(truth(), names=["memory"])]
    evidence = gather(written(tmp_path, wild))
    found = calibrate(evidence, "x", seed)
    (stage,) = stages(evidence)
    half = half_of(evidence, [stage], seed)
    seen = [m for m in cases(stage, evidence) if key(m) in half]
    assert SHIPPED.step is not None
    attempt = tried(stage, seen, SHIPPED.step, SHIPPED, evidence, seed)
    assert attempt is not None
    assert (found.fitted == ("memory",)) is attempt.better
    assert bool(found.kept) is not attempt.better
    stays = found.overlay.step is not None and found.overlay.step.streams == SHIPPED.step.streams
    assert stays is not attempt.better


def test_a_tie_stays(tmp_path: Path) -> None:
    assert not Tried("x", 4, before=0.1, after=0.1).better
    assert Tried("x", 4, before=0.1, after=0.09).better
    assert not Tried("x", 4, before=0.1, after=float("nan")).better


def test_one_case_to_fit_to_cannot_be_tried(tmp_path: Path) -> None:
    """There is nothing to hold it against."""
    evidence = gather(written(tmp_path, lines(SLOW, names=["matmul"])))
    (stage,) = stages(evidence)
    one, *_ = cases(stage, evidence)
    assert SHIPPED.step is not None
    assert tried(stage, [one], SHIPPED.step, SHIPPED, evidence, 0) is None


def test_from_peaks_everything_is_fitted(tmp_path: Path) -> None:
    """Nothing was known that could stay, even of fp8, which is at its peak here; bf16 is not."""
    cluster = NODES.model_dump(mode="json")
    cluster["accelerator"]["name"] = "new-gpu"
    peaks = ideal(NODES.accelerator)
    row = peaks.matmuls["bf16"].model_dump()
    step = placed(peaks, ("matmuls", "fp8"), row)
    step = placed(step, ("matmuls", "bf16"), row | {"efficiency": 0.3})
    machine = truth().model_copy(update={"step": step})
    found = lines(machine, names=["matmul"], dtypes=("bf16", "fp8"))
    result = calibrate(gather(written(tmp_path, found, header(cluster=cluster))), "new")
    assert result.fitted == ("matmul bf16", "matmul fp8")
    assert result.kept == ()
    assert result.overlay.matmul == {
        "bf16": pytest.approx(0.3, rel=0.05),
        "fp8": pytest.approx(1.0, rel=0.05),
    }


@pytest.mark.parametrize(
    ("section", "stands"),
    [
        (("matmuls", "tf32"), ("matmuls", "bf16")),
        (("collectives", "send-receive"), ("collectives", "point-to-point")),
        (("collectives", "broadcast"), ("collectives", "all-gather")),
    ],
)
def test_a_section_that_was_not_there_is_as_what_stood_for_it(
    section: tuple[str, str], stands: tuple[str, str]
) -> None:
    """As ``Profile`` predicts it without one."""
    assert SHIPPED.step is not None
    assert section[1] not in getattr(SHIPPED.step, section[0])
    found = as_before(SHIPPED.step, section, SHIPPED)
    rows = getattr(found, section[0])
    assert rows[section[1]].model_dump() == rows[stands[1]].model_dump()
