"""Reports on results of machines with known faults: each fault is named, and nothing else is."""

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import hardware_profiles as hp
from tests import measured
from tests.measured import header, lines, truth, written
from validation import page
from validation.__main__ import app
from validation.case import Case
from validation.causes import RULES
from validation.page import sections
from validation.report import Report, report
from validation.results import FILE, METHOD, End, Failed, Writer, read
from validation.stragglers import groups

H100 = hp.calibration("h100")
RINGS = ("all-gather", "reduce-scatter", "all-reduce")


def names(found: Report) -> list[str]:
    return [cause.name for cause in found.causes]


def test_a_machine_as_predicted_has_no_errors_and_no_suspects(tmp_path: Path) -> None:
    """Every time is the prediction itself: errors of 0, nothing slow, no straggler."""
    found = report(written(tmp_path, lines(H100, suite="quick")), overlay=H100)
    assert found.summary["median_error"] == pytest.approx(0, abs=1e-9)
    assert max(row.median for row in found.errors) == pytest.approx(0, abs=1e-9)
    assert not found.summary["slow"]
    assert (found.stragglers, found.starts, found.failed, found.problems) == ((), (), (), ())
    assert {"a slow rank", "a slow link or network card"}.isdisjoint(names(found))


def test_errors_are_medians_by_kernel_part_and_size(tmp_path: Path) -> None:
    """Times of twice the prediction are errors of -50 %; sizes split at 64 KB, 1 MB and 64 MB."""

    def twice(case: Case, seconds: np.ndarray) -> np.ndarray:
        return seconds * (2 if case["bytes"] >= 2**20 else 1)

    found = report(written(tmp_path, lines(H100, names=["all-gather"], change=twice)), overlay=H100)
    rows = {row.bytes: row for row in found.errors}
    assert set(rows) == {"all", "< 64 KB", "64 KB–1 MB", "1–64 MB", "≥ 64 MB"}
    assert rows["≥ 64 MB"].bias == pytest.approx(-0.5)
    assert rows["≥ 64 MB"].median == pytest.approx(0.5)
    assert rows["64 KB–1 MB"].median == pytest.approx(0, abs=1e-9)
    assert rows["all"].cases == sum(row.cases for size, row in rows.items() if size != "all")


def test_a_slow_tier_is_named_with_its_rate(tmp_path: Path) -> None:
    """61 % of NVLink's 450 GB/s once messages are large, InfiniBand as it should be."""
    node = truth(collectives__all_gather={"fraction": 0.61, "root": 0.0})
    good = truth(network={"outer": 0.95})
    inside = [m for m in lines(node, names=["all-gather"]) if m.size * m.stride <= 8]
    across = [m for m in lines(good, names=["all-gather"]) if m.stride == 8]
    found = report(written(tmp_path, inside + across))
    slow = [rate for rate in found.rates if rate.slow]
    assert {(rate.tier, rate.kernel) for rate in slow} == {("node", "all-gather")}
    whole = next(rate for rate in slow if (rate.size, rate.stride) == (8, 1))
    assert whole.fraction == pytest.approx(0.61, rel=0.02)
    said = r"NVLink 4 all-gather \(8 ranks, 1 apart\) reaches 6[01]% of 450 GB/s from \d+ MB on"
    assert re.fullmatch(said, whole.sentence)


def test_a_slow_tier_is_one_below_the_calibration_too(tmp_path: Path) -> None:
    """With a calibration, slow is less than it expects: 0.5 where 0.77 is usual."""
    poor = truth(collectives__all_gather={"fraction": 0.5})
    found = report(written(tmp_path, lines(poor, names=RINGS)), overlay=H100)
    slow = {(rate.kernel, rate.tier) for rate in found.rates if rate.slow}
    assert slow == {("all-gather", "node")}
    assert "predicted" in next(rate.sentence for rate in found.rates if rate.slow)


def test_a_slow_rank_is_named_with_its_host(tmp_path: Path) -> None:
    """Rank 11 computes at three quarters of its peers' speed, among noise of 3 %."""
    rng = np.random.default_rng(1)

    def change(case: Case, seconds: np.ndarray) -> np.ndarray:
        scattered = seconds * np.exp(0.03 * rng.standard_normal(16))
        return scattered * np.where((np.arange(16) == 11) & (case.size == 1), 4 / 3, 1)

    found = report(written(tmp_path, lines(H100, suite="quick", change=change)))
    (one,) = found.stragglers
    assert (one.ranks, one.hosts, one.part) == ((11,), ("right",), "math")
    assert one.ratio == pytest.approx(4 / 3, rel=0.05)
    assert "a slow rank" in names(found)
    cause = next(cause for cause in found.causes if cause.name == "a slow rank")
    assert "rank 11 (right)" in cause.evidence[0]


def test_a_slow_card_shows_as_a_slow_group(tmp_path: Path) -> None:
    """Rail 5 of eight, ranks 5 and 13, takes 1.5 times as long between nodes; nobody else."""

    def change(case: Case, seconds: np.ndarray) -> np.ndarray:
        slow = (case.stride == 8) & (np.arange(16) % 8 == 5)
        return seconds * np.where(slow, 1.5, 1.0)

    found = report(written(tmp_path, lines(H100, suite="quick", change=change)))
    assert {one.ranks for one in found.stragglers} == {(5, 13)}
    assert "a slow link or network card" in names(found)
    assert "a slow rank" not in names(found)


@given(st.integers(2, 16), st.integers(0, 15), st.floats(0.0, 0.02))
def test_equal_ranks_are_no_stragglers(world: int, seed: int, noise: float) -> None:
    """Whatever the number of ranks, noise alone names nobody."""
    from validation.stragglers import _ratios

    rng = np.random.default_rng(seed)
    typical = np.median(_ratios(np.exp(noise * rng.standard_normal((12, world)))), axis=0)
    assert typical.max() < 1.08


def test_groups_share_out_the_ranks() -> None:
    assert groups(8, 2, 2) == [(0, 2), (1, 3), (4, 6), (5, 7)]
    for size, stride in ((2, 1), (4, 2), (8, 1), (2, 4)):
        members = groups(8, size, stride)
        assert sorted(rank for ranks in members for rank in ranks) == list(range(8))


SUSPECTS = {
    "switches do not add (SHARP, NVLS)": (
        truth(),
        {"NCCL_NVLS_ENABLE": "0"},
        "NCCL_NVLS_ENABLE=0",
    ),
    "fallback to PCIe": (
        truth(
            collectives__all_gather={"fraction": 0.1},
            collectives__reduce_scatter={"fraction": 0.1},
        ),
        {"NCCL_P2P_DISABLE": "1"},
        "NCCL_P2P_DISABLE=1",
    ),
    "fallback to sockets": (
        truth(network={"outer": 0.05}),
        {"NCCL_IB_DISABLE": "1"},
        "NCCL_IB_DISABLE=1",
    ),
    "oversubscribed or shared uplinks": (
        truth(network={"outer": 0.45}),
        {},
        r"as if 2\.[23] shared each uplink",
    ),
}


@pytest.mark.parametrize("name", SUSPECTS)
def test_a_suspect_is_named_with_what_speaks_for_it(tmp_path: Path, name: str) -> None:
    machine, variables, said = SUSPECTS[name]
    if name.startswith("switches"):
        equal = {"fraction": 0.75, "root": 0.0}
        machine = truth(collectives__all_gather=equal, collectives__all_reduce=equal)
    place = written(tmp_path, lines(machine, names=RINGS), header(variables=variables))
    found = report(place)
    cause = next(cause for cause in found.causes if cause.name == name)
    assert re.search(said, " ".join(cause.evidence))
    others = set(SUSPECTS) - {name, "switches do not add (SHARP, NVLS)"}
    assert others.isdisjoint(names(found))


def test_a_group_over_two_tiers_is_charged_to_the_slow_one(tmp_path: Path) -> None:
    """By datasheets NVLink binds 16 ranks in two nodes; a slow network does as soon as it is slow."""
    machine = truth(network={"outer": 0.2}, collectives__all_gather={"fraction": 0.9})
    found = report(written(tmp_path, lines(machine, names=["all-gather"])))
    tiers = {(rate.size, rate.stride): rate.tier for rate in found.rates}
    assert tiers == {
        (16, 1): "scalable unit",
        (8, 1): "node",
        (2, 8): "scalable unit",
        (4, 1): "node",
        (4, 2): "node",
    }


def test_switches_that_add_are_no_suspect(tmp_path: Path) -> None:
    """An all-reduce at 1.3 times the all-gather's bus bandwidth, inside and across nodes."""
    machine = truth(
        collectives__all_gather={"fraction": 0.75},
        collectives__all_reduce={"fraction": 0.98},
    )
    inside = [m for m in lines(machine, names=RINGS) if m.size * m.stride <= 8]
    found = report(written(tmp_path, inside))
    assert "switches do not add (SHARP, NVLS)" not in names(found)


def test_a_sagging_matmul_and_a_noisy_host(tmp_path: Path) -> None:
    """The largest square matmul at 0.8 of the others' rate; times that scatter by 100 %."""

    def change(case: Case, seconds: np.ndarray) -> np.ndarray:
        return seconds * (1.25 if case["form"] == "square" and case["m"] == 16384 else 1.0)

    measured_lines = lines(H100, names=["matmul"], change=change, noise=0.0)
    loud = [m.model_copy(update={"p90": 2 * m.seconds}) for m in measured_lines]
    found = report(written(tmp_path, loud))
    assert "matmuls at the power limit" in names(found)
    assert "a shared or overloaded host" in names(found)
    quiet = report(written(tmp_path / "quiet", lines(H100, names=["matmul"])))
    assert names(quiet) == []


def test_a_cpu_has_no_power_limit_to_run_into() -> None:
    """Its large matmuls have left the caches."""
    rule = next(rule for rule in RULES if rule.name == "matmuls at the power limit")
    assert list(rule.speaks(SimpleNamespace(on_gpus=False))) == []  # type: ignore[arg-type]


def test_clocks_after_the_run_are_read() -> None:
    """As nvidia-smi prints them; idle hosts, other programs' text and no text say nothing."""
    told = "1980 MHz, 2619 MHz, 1980 MHz, 2619 MHz, 700.00 W, 61\n"
    hot = "1215 MHz, 2619 MHz, 1980 MHz, 2619 MHz, 700.00 W, 87\n"
    ends = [SimpleNamespace(clocks=told + hot), SimpleNamespace(clocks="no devices\n"), object()]
    facts = SimpleNamespace(evidence=SimpleNamespace(ends=ends))
    rule = next(rule for rule in RULES if rule.name == "throttled clocks")
    assert list(rule.speaks(facts)) == [  # type: ignore[arg-type]
        "GPU 1 ends at 1215 of 1980 MHz, 87 °C"
    ]


def test_slow_starts_are_told_when_a_calibration_says_what_is_usual(tmp_path: Path) -> None:
    def late(case: Case, seconds: np.ndarray) -> np.ndarray:
        return seconds + (1e-3 if case["bytes"] <= 2**16 else 0)

    place = written(tmp_path, lines(H100, names=["all-gather"], suite="quick", change=late))
    assert not report(place).starts
    found = report(place, overlay=H100)
    assert {start.nbytes for start in found.starts} == {2**10, 2**16}
    assert "slow starts of messages" in names(found)
    assert not found.summary["slow"]


def test_overlap_follows_from_the_three_times(tmp_path: Path) -> None:
    """3 s and 2 s that take 4 s together: half of the shorter one is hidden."""
    (line, *_) = lines(H100, names=["all-gather"], suite="quick")
    parts = {"math": 3.0, "comms": 2.0, "both": 4.0}
    three = [line.model_copy(update={"part": p, "seconds": s}) for p, s in parts.items()]
    (one,) = report(written(tmp_path, three)).overlaps
    assert one.hidden == pytest.approx(0.5)
    assert one.of_sum == pytest.approx(0.8)
    unchecked = three[2].model_copy(update={"correct": "unchecked"})
    assert not report(written(tmp_path, [*three[:2], unchecked])).overlaps


def test_runs_under_the_same_conditions_are_judged_as_one(tmp_path: Path) -> None:
    """Each case and part once, whatever run it is of."""
    found = lines(H100, names=["all-gather"], suite="quick")
    again = [m.model_copy(update={"run": "a2", "seconds": 3 * m.seconds}) for m in found]
    place = written(tmp_path, [*found, header(run="a2"), *again])
    once = report(place)
    assert len(once.rows) == len(found)
    assert once.environment["runs"] == ["a1", "a2"]
    assert [row.seconds for row in once.rows] == [m.seconds for m in found]


@pytest.mark.parametrize(
    ("both", "said"),
    [
        ((4, 3), "75% of the shorter one is hidden (median of 2 cases, 50% to 100%)"),
        (
            (3, 6),
            "25% of the shorter one is hidden (median of 2 cases, 1.2 times their sum to 100%)",
        ),
        (
            (7, 10),
            "computing and talking at once takes 1.7 times their sum "
            "(median of 2 cases, 2 times their sum to 1.4 times their sum)",
        ),
    ],
)
def test_overlaps_in_words(both: tuple[float, ...], said: str, tmp_path: Path) -> None:
    """Of 3 s and 2 s: what is hidden, or how much longer both take than one after the other."""
    (line, *_) = lines(H100, names=["all-gather"], suite="quick")
    three = [
        line.model_copy(update={"case": f"case {i}", "part": part, "seconds": seconds})
        for i, whole in enumerate(both)
        for part, seconds in (("math", 3.0), ("comms", 2.0), ("both", whole))
    ]
    (told,) = dict(sections(report(written(tmp_path, three))))["Overlap of math and comms"]
    assert told == f"all-gather: {said}"


def test_what_was_not_checked_is_marked_and_counts_for_nothing(tmp_path: Path) -> None:
    """Ten times too fast, but unchecked or wrong: no error, no rate, no straggler comes of it."""
    good = lines(H100, names=["all-gather"], suite="quick")
    bad = [
        line.model_copy(
            update={"case": f"{line.case} {how}", "correct": how, "seconds": line.seconds / 10}
        )
        for line in good
        for how in ("no", "unchecked")
    ]
    with_bad = report(written(tmp_path, good + bad))
    without = report(written(tmp_path / "good", good))
    assert with_bad.errors == without.errors
    assert with_bad.rates == without.rates
    assert set(with_bad.untrusted) == {line.case for line in bad}
    assert not any(row.trusted for row in with_bad.rows if row.correct != "yes")
    told = dict(page.sections(with_bad))["Not trusted: wrong, or not checked"]
    assert any("the result is wrong" in line for line in told)
    assert any("did not check" in line for line in told)


def test_failed_cases_are_listed_until_they_are_measured(tmp_path: Path) -> None:
    (line, *_) = lines(H100, names=["all-gather"], suite="quick")
    failed = [
        Failed(run="a1", case=case, kernel="x", parameters={}, rank=3, reason="out of memory")
        for case in ("other", line.case)
    ]
    found = report(written(tmp_path, [*failed, line]))
    assert [(f.case, f.rank, f.reason) for f in found.failed] == [("other", 3, "out of memory")]


def test_a_truncated_file_gives_what_it_has(tmp_path: Path) -> None:
    """The line that was cut is told of, and so is the run that has no end."""
    good = lines(H100, names=["all-gather"], suite="quick")
    file = written(tmp_path, good) / FILE
    whole = file.read_bytes()
    last = whole.rstrip(b"\n").rfind(b"\n")
    file.write_bytes(whole[: last - 50])
    found = report(tmp_path)
    assert len(found.rows) == len(good) - 1
    assert any("cut off" in line for line in found.problems)
    assert any("did not end" in line for line in found.problems)


def test_refusals_say_what_to_do(tmp_path: Path) -> None:
    """Nothing there, an empty file, no header, other versions, other ranks, an unknown run."""
    good = lines(H100, names=["all-gather"], suite="quick")
    with pytest.raises(ValueError, match="no results there; measure first"):
        report(tmp_path)
    (tmp_path / FILE).write_text("")
    with pytest.raises(ValueError, match="no run's header"):
        report(tmp_path)
    written(tmp_path, good)
    file = tmp_path / FILE
    file.write_text(file.read_text().partition("\n")[2])
    with pytest.raises(ValueError, match="no run's header"):
        report(tmp_path)
    one = written(tmp_path / "one", good)
    new = header(run="b2", versions={"torch": "2.14"}, variables={"NCCL_ALGO": "Ring"})
    other = written(tmp_path / "other", [m.model_copy(update={"run": "b2"}) for m in good], new)
    with pytest.raises(ValueError, match=r"versions: .*2\.13.* and .*2\.14.*variables.*--run a1"):
        report(one, other)
    assert report(one, other, run="b").environment["versions"] == {"torch": "2.14"}
    with pytest.raises(ValueError, match=r"'c3' is not in .*a1, b2"):
        report(one, other, run="c3")
    broken = written(tmp_path / "broken", good, header(cluster={"name": "x"}))
    with pytest.raises(ValueError, match="run a1: its cluster is none"):
        report(broken)


def test_an_aborted_run_is_told(tmp_path: Path) -> None:
    measured_lines = lines(H100, names=["all-gather"], suite="quick")
    place = written(tmp_path, measured_lines)
    file = place / FILE
    aborted = End.model_validate(measured.end().model_dump() | {"outcome": "aborted"})
    kept = file.read_text().splitlines()[:-1]
    file.write_text("\n".join([*kept, aborted.model_dump_json()]) + "\n")
    assert any("was aborted" in line for line in report(place).problems)


def test_a_kernel_that_is_not_ours_is_shown_without_prediction(tmp_path: Path) -> None:
    """From another program, or a later version."""
    (*_, line) = lines(H100, names=["all-gather"], suite="quick")
    foreign = line.model_copy(update={"kernel": "halo", "case": "halo", "predicted": None})
    found = report(written(tmp_path, [line, foreign]), overlay=H100)
    assert found.unpredicted == ("halo",)
    large = line.model_copy(update={"size": 999, "case": "large"})
    found = report(written(tmp_path / "large", [line, large]), overlay=H100)
    assert found.unpredicted == ("large",)
    assert {rate.size for rate in found.rates} == {line.size}


def test_what_no_machine_of_the_profile_can_do_is_left_out(tmp_path: Path) -> None:
    """Twice the link's bandwidth: told with case and rate, and nothing else changes."""
    good = lines(H100, names=["all-gather"], suite="quick")
    largest = max(good, key=lambda line: line.nbytes)
    absurd = largest.model_copy(update={"case": "absurd", "seconds": largest.seconds / 4})
    found = report(written(tmp_path, [*good, absurd]))
    without = report(written(tmp_path / "good", good))
    (problem,) = found.problems
    assert problem.startswith("absurd: ")
    assert "faster than this machine can be" in problem
    assert (found.rates, found.errors) == (without.rates, without.errors)
    assert "absurd" not in {row.case for row in found.rows}


def test_a_little_over_the_profile_is_called_faster(tmp_path: Path) -> None:
    """Between 105 and 120 % of a rate: a title of its own."""
    good = lines(None, names=["all-gather"], suite="full")
    fast = [
        m.model_copy(update={name: getattr(m, name) / 1.1 for name in ("seconds", "p10", "p90")})
        for m in good
    ]
    told = dict(sections(report(written(tmp_path, fast))))
    assert "Faster than the profile" in told
    assert not any("110%" in line for line in told.get("As the profile has it", []))


def test_small_messages_say_nothing_of_a_rate(tmp_path: Path) -> None:
    """16 KB take as long as their start, on any link."""
    small = [m for m in lines(H100, names=["all-reduce"]) if m.nbytes < 1e6]
    assert small
    assert not report(written(tmp_path, small)).rates


def test_what_any_run_left_out_is_told_unless_another_measured_it(tmp_path: Path) -> None:
    """Matmuls may be asked for in the second run alone, with a data type that the GPU lacks."""
    why = {"matmul fp8": "8.9 is needed", "matmul bf16": "no rate", "memory": "too little memory"}
    place = written(tmp_path, lines(H100, names=["memory"]))
    later = [m.model_copy(update={"run": "b2"}) for m in lines(H100, names=["matmul"])]
    Writer(place).add(header(run="b2", left_out=why), *later)
    found = report(place)
    assert found.environment["left_out"] == {"matmul fp8": "8.9 is needed"}
    assert ("Not measured here", ["matmul fp8: 8.9 is needed"]) in page.sections(found)


def test_runs_of_another_method_are_left_out(tmp_path: Path) -> None:
    """Their times mean something else; alone, they are refused."""
    good = lines(H100, names=["all-gather"], suite="quick")
    folder = written(tmp_path, good)
    (alone := tmp_path / "old").mkdir()
    text = header(method=METHOD + 1, run="old").model_dump_json() + "\n"
    (alone / FILE).write_text(text)
    found = report(folder, alone)
    assert found.environment["runs"] == ["a1"]
    assert any(f"method {METHOD + 1}" in line for line in found.problems)
    with pytest.raises(ValueError, match="measure again"):
        report(alone)


def test_the_command_line_in_three_forms(tmp_path: Path) -> None:
    """Words, JSON that is JSON, and one HTML file that asks nothing of the network."""
    poor = truth(collectives__all_gather={"fraction": 0.5})
    place = str(written(tmp_path, lines(poor, names=RINGS, suite="quick")))
    words = CliRunner().invoke(app, ["report", place, "--cases"])
    assert words.exit_code == 0, words.output
    assert "Slow against the profile" in words.output
    data = json.loads(CliRunner().invoke(app, ["report", place, "--json"]).output)
    assert data["summary"]["trusted"] == len(data["rows"]) > 0
    assert any("NVLink 4 all-gather" in rate["sentence"] for rate in data["rates"])
    page_text = CliRunner().invoke(app, ["report", place, "--html"]).output
    assert page_text.startswith("<!doctype html>")
    assert page_text.count("<circle") >= len(data["rows"])
    assert not re.search(r"https?:|src=|<script|@import|url\(", page_text)
    wrong = CliRunner().invoke(app, ["report", str(tmp_path / "none")])
    assert wrong.exit_code == 2
    assert "no results there" in wrong.output


def test_html_escapes_what_others_wrote(tmp_path: Path) -> None:
    failed = Failed(
        run="a1", case="<script>", kernel="x", parameters={}, rank=0, reason="<b>no & yes</b>"
    )
    (line, *_) = lines(H100, names=["all-gather"], suite="quick")
    text = page.html(report(written(tmp_path, [line, failed])))
    assert "<script>" not in text
    assert "&lt;b&gt;no &amp; yes&lt;/b&gt;" in text


def test_a_report_needs_no_torch(tmp_path: Path) -> None:
    """The dashboard calls it in a process of its own, where torch may be missing."""
    place = written(tmp_path, lines(H100, names=["all-gather"], suite="quick"))
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "from validation.__main__ import app\n"
        f"app(['report', {str(place)!r}, '--json'])"
    )
    root = Path(__file__).parent.parent
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["summary"]["cases"] == len(read(place).measured)


def test_every_case_is_printed_whole_through_a_pipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """80 columns have no room for long names and numbers: lines are as long as they need be."""
    monkeypatch.setenv("COLUMNS", "80")
    good = lines(H100, names=["matmul"], suite="quick")
    told = CliRunner().invoke(app, ["report", str(written(tmp_path, good)), "--cases"])
    assert told.exit_code == 0, told.output
    for line in good:
        (row,) = (text for text in told.output.splitlines() if f" {line.case} " in text)
        cells = [cell.strip() for cell in row.strip("│").split("│")]
        assert all(cells), row
        assert cells[-1] == "yes"
