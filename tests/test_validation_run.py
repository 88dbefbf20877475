"""Runs of the suite on two gloo ranks: what is measured, what is told when something fails."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from typer.testing import CliRunner

from validation import launch, runner
from validation.__main__ import _split, app
from validation.case import Case, Correctness, Expected, Kernel, Setting, Work
from validation.context import Context, Options
from validation.kernels import chosen, kernels, matmul
from validation.profile import Profile, foreign, load
from validation.ranks import RanksFailed
from validation.results import FILE, read
from validation.runner import HUNG, Tally

pytestmark = pytest.mark.distributed

OPTIONS = Options(device="cpu", timeout=10, budget=0.5, memory=3e7)


def _cases(setting: Setting) -> Iterator[Case]:
    for how in ("before", "fails", "after"):
        yield Case("brittle", {"how": how}, setting.world)


def _predict(case: Case, profile: Profile) -> Iterator[Expected]:
    yield Expected("comms", profile.collective("all-reduce", 4.0, case.group))


def _sums(
    case: Case,
    context: Context,
    trouble: Callable[[int], object],
    error: float = 0.0,
    everywhere: bool = False,
) -> Work:
    """An all-reduce; rank 1 has ``trouble`` in the case that fails."""
    group, one = context.group(case.size, case.stride), torch.ones(1)

    def comms(i: int) -> None:
        if case["how"] == "fails" and (context.rank == 1 or everywhere):
            trouble(i)
        dist.all_reduce(one, group=group)

    return Work(check=lambda: Correctness(error * context.rank, 0.5), comms=comms)


def _raise(i: int) -> None:
    if i == 7:
        raise LookupError("rank 1 does not feel like it")


def _die(i: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _late(case: Case, context: Context) -> Work:
    return _sums(case, context, _raise)


def _early(case: Case, context: Context) -> Work:
    if case["how"] == "fails" and context.rank == 1:
        raise MemoryError("no room")
    return _sums(case, context, _raise)


def _killed(case: Case, context: Context) -> Work:
    return _sums(case, context, _die)


def _asleep(case: Case, context: Context) -> Work:
    runner.GRACE = 3.0 - 3 * context.timeout
    return _sums(case, context, lambda i: time.sleep(600), everywhere=True)


def _wrong(case: Case, context: Context) -> Work:
    bad = {"before": 0.0, "fails": 1.0, "after": float("nan")}[case["how"]]
    return _sums(case, context, lambda i: None, bad)


def _brittle(prepare: Callable[[Case, Context], Work]) -> list[Kernel]:
    return [Kernel("brittle", "a test", _cases, _predict, prepare)]


def test_every_kernel_is_right_on_two_ranks(tmp_path: Path) -> None:
    """Arrays of some KB: every case correct, every part predicted, nearly all time measuring."""
    tally = launch.local(OPTIONS, tmp_path, 2)
    found = read(tmp_path)
    assert not found.problems
    assert not found.failed
    assert tally.passed
    (end,) = found.ends
    assert end.outcome == "complete"
    assert {m.kernel for m in found.measured} == set(kernels())
    assert {m.correct for m in found.measured} == {"yes"}
    for line in found.measured:
        assert 0 < line.p10 <= line.seconds <= line.p90
        assert len(line.per_rank) == 2
        assert max(line.per_rank) <= line.seconds * (1 + 1e-9) or line.repeats > 1
        cached = line.parameters.get("where") == "cache"
        assert cached or (line.predicted or 0) > 0


def test_four_ranks_in_two_nodes(tmp_path: Path) -> None:
    """Groups inside a node and across, from the profile; uneven splits too."""
    profile = tmp_path / "two.yaml"
    profile.write_text(TWO_NODES)
    options = replace(OPTIONS, cluster=str(profile), kernels=("all-to-all", "send-receive"))
    assert launch.local(options, tmp_path, 4).passed
    found = read(tmp_path)
    for kernel in ("all-to-all", "send-receive"):
        groups = {(m.size, m.stride) for m in found.measured if m.kernel == kernel}
        assert groups == {(4, 1), (2, 1), (2, 2)}
    assert any(m.parameters.get("uneven") for m in found.measured)
    (header,) = found.headers.values()
    assert (header.profile, header.world, header.backend) == ("two", 4, "gloo")
    assert header.foreign.endswith("not on h100-sxm")


TWO_NODES = """
name: two
title: Two nodes of two
accelerator: h100-sxm
tiers:
  - {name: node, degree: 2, bandwidth: 450 GB/s, source: a test}
  - {name: network, degree: 2, bandwidth: 50 GB/s, source: a test}
"""


def test_resume_skips_what_is_there(tmp_path: Path) -> None:
    """First by another kernel's name, then all: only the rest is measured."""
    some = replace(OPTIONS, kernels=("broadcast",))
    more = replace(OPTIONS, kernels=("broadcast", "reduce"), resume=True)
    first = launch.local(some, tmp_path, 2)
    again = launch.local(more, tmp_path, 2)
    assert (first.skipped, again.skipped) == (0, first.measured)
    assert again.measured > 0
    found = read(tmp_path)
    assert len(found.headers) == 2
    assert len({(m.case, m.part) for m in found.measured}) == len(found.measured)


@pytest.mark.parametrize("prepare", [_early, _late], ids=["in prepare", "between collectives"])
def test_an_error_on_one_rank_fails_the_case_alone(
    tmp_path: Path, prepare: Callable[[Case, Context], Work]
) -> None:
    """All ranks hear of it; the cases before and after are measured."""
    tally = launch.local(OPTIONS, tmp_path, 2, _brittle(prepare))
    assert (tally.measured, tally.failed, tally.outcome) == (2, 1, "complete")
    assert not tally.passed
    found = read(tmp_path)
    assert [m.parameters["how"] for m in found.measured] == ["before", "after"]
    (failed,) = found.failed
    assert failed.rank == 1
    assert failed.parameters == {"how": "fails"}
    assert "no room" in failed.reason or "does not feel like it" in failed.reason


def test_a_rank_that_is_killed_ends_the_run(tmp_path: Path) -> None:
    """In its time, with the rank's number, and what was measured before."""
    started = time.monotonic()
    with pytest.raises(RanksFailed, match="rank 1: killed by signal 9"):
        launch.local(OPTIONS, tmp_path, 2, _brittle(_killed))
    assert time.monotonic() - started < 3 * OPTIONS.timeout
    found = read(tmp_path)
    assert [m.parameters["how"] for m in found.measured] == ["before"]
    assert [failed.rank for failed in found.failed] == [1]
    assert found.ends[0].outcome == "aborted"


def test_a_wrong_result_is_written_as_wrong(tmp_path: Path) -> None:
    """The largest error of any rank; no number is wrong too, and neither is left out."""
    tally = launch.local(OPTIONS, tmp_path, 2, _brittle(_wrong))
    assert (tally.wrong, tally.measured) == (2, 3)
    assert [(m.correct, m.max_error) for m in read(tmp_path).measured] == [
        ("yes", 0.0),
        ("no", 1.0),
        ("no", None),
    ]


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RanksFailed, match=r"rank 1:(?s:.*)cannot write results"):
        launch.local(OPTIONS, tmp_path / "file" / "out", 2, chosen(["broadcast"]))


def test_the_command_line(tmp_path: Path) -> None:
    """What it says, and that a wrong name starts nothing."""
    common = ["run", "--out", str(tmp_path), "--ranks", "2", "--budget", "0.1"]
    result = CliRunner().invoke(app, [*common, "--kernels", "broadcast", "--device", "cpu"])
    assert result.exit_code == 0, result.output
    assert "cases measured" in result.output
    assert all(json.loads(line) for line in (tmp_path / FILE).read_text().splitlines())
    wrong = CliRunner().invoke(app, [*common, "--kernels", "brodcast"])
    assert wrong.exit_code == 2
    assert "the nearest is broadcast" in wrong.output
    wrong = CliRunner().invoke(app, [*common, "--cluster", "dgx-h10-superpod"])
    assert wrong.exit_code == 2
    assert "the nearest is" in wrong.output or "the nearest are" in wrong.output
    file = tmp_path / FILE
    wrong = CliRunner().invoke(app, [*common[:2], str(file / "x"), *common[3:], "--device", "cpu"])
    assert wrong.exit_code == 2
    assert [line for line in wrong.output.splitlines() if "cannot write results" in line] == [
        line for line in wrong.output.splitlines() if line.startswith("rank")
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "--suite", "quik"], ["'--suite'", "the nearest is quick"]),
        (["run", "--device", "gpu"], ["'--device'", "allowed: auto, cpu, cuda"]),
        (["run", "--kernels", "mat-mul"], ["'--kernels'", "the nearest is matmul"]),
        (["run", "--kernels", "matmul, pipeline paralel"], ["the nearest are pipeline parallel"]),
        (["run", "--kernel", "matmul"], ["--kernel", "--kernels"]),
        (["run", "--timeout", "0"], ["'--timeout'", "greater than or equal to 1"]),
        (["run", "--ranks", "99"], ["'--ranks'", "less than or equal to 64"]),
        (["run", "--cluster", "dgx-h10"], ["--cluster: no cluster", "dgx-h100-superpod"]),
        (["run", "--overlay", "h2000"], ["--overlay: no calibration", "h200"]),
        (["semantic"], ["'semantic'", "the nearest is semantics"]),
        (["--out", "x", "--suit", "full"], ["--suit", "--suite"]),
    ],
)
def test_bad_arguments_name_the_option_and_the_nearest(
    tmp_path: Path, arguments: list[str], said: list[str]
) -> None:
    """Before any process starts, and with nothing written."""
    out = ["--ranks", "2", "--out", str(tmp_path / "x")] if arguments[0] == "run" else []
    told = CliRunner().invoke(app, [arguments[0], *out, *arguments[1:]])
    assert told.exit_code == 2
    assert all(part in told.output for part in said), told.output
    assert not (tmp_path / "x").exists()


def test_tf32_is_on_while_it_is_timed_and_off_after(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the products see of the flag, for each data type."""
    seen: list[bool] = []
    flags = torch.backends.cuda.matmul

    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        seen.append(flags.allow_tf32)
        return a.double() @ b.double()

    monkeypatch.setattr(torch, "matmul", product)
    context = Context(
        0, 1, 0, torch.device("cpu"), load("local", "none", 1, "cpu"), SETTING, 1.0, None
    )
    for dtype in ("tf32", "fp32"):
        shape = {"form": "square", "m": 8, "n": 8, "k": 8, "batch": 1, "dtype": dtype}
        work = matmul.prepare(Case("matmul", shape), context)
        assert work.math is not None
        work.math(1)
        assert not flags.allow_tf32
    assert seen == [True, False]


def test_kernels_are_named_once_or_often() -> None:
    """Commas and repeated options say the same."""
    assert _split(["matmul", "all-reduce"]) == _split(["matmul, all-reduce", "matmul"])
    assert _split([]) == _split(["", ","]) == ()


def test_a_run_that_measures_nothing_fails(tmp_path: Path) -> None:
    """Collectives on one rank, and nothing where no case has room: said why, nothing written."""
    with pytest.raises(RanksFailed, match="all-reduce: at least 2 ranks are needed, 1 is here"):
        launch.local(OPTIONS, tmp_path / "x", 1, chosen(["all-reduce"]))
    assert not (tmp_path / "x").exists()
    tight = replace(SETTING, world=2, memory=10.0)
    assert "no case fits 2 ranks" in launch.left_out(chosen(["matmul"]), tight)["matmul"]
    assert not Tally().passed


def test_kernels_that_need_a_peer_are_named() -> None:
    """Collectives have no case on one rank; the math of strategies has."""
    found = launch.left_out(list(kernels().values()), SETTING)
    assert {"all-gather", "all-to-all", "point-to-point"} <= set(found)
    assert not {"matmul", "memory", "attention", "expert parallel"} & set(found)


@pytest.mark.parametrize("command", [["run", "--out", ""], ["--out", " "]])
def test_a_folder_without_a_name_is_refused(command: list[str]) -> None:
    told = CliRunner().invoke(app, command)
    assert told.exit_code == 2
    assert "no name is given" in told.output


@pytest.mark.parametrize(
    ("device", "model", "accelerator", "gpu", "said"),
    [
        ("cpu", "AMD EPYC", "h100-sxm", True, "measured on AMD EPYC, not on h100-sxm"),
        ("cpu", "AMD EPYC", "gb300", False, "measured on AMD EPYC, not on gb300"),
        ("cpu", "AMD EPYC", "local-cpu", False, ""),
        ("cpu", "AMD EPYC", "my-cpu", False, ""),
        ("cuda", "NVIDIA H100 80GB HBM3", "h100-sxm", True, ""),
        ("cuda", "NVIDIA H100 80GB HBM3", "my-h100", True, ""),
        ("cuda", "NVIDIA B200", "h100-sxm", True, "measured on NVIDIA B200, not on h100-sxm"),
        ("cuda", "NVIDIA X9", "h100-sxm", True, ""),
        ("cuda", "NVIDIA X9", "local-cpu", False, "measured on NVIDIA X9, not on local-cpu"),
    ],
)
def test_another_accelerator_than_the_profiles_is_told(
    device: str, model: str, accelerator: str, gpu: bool, said: str
) -> None:
    """A CPU is no GPU; a GPU is known by the driver's name for it, or not at all."""
    assert foreign(device, [model], accelerator, gpu=gpu) == said


def test_the_time_since_the_program_began_is_counted(tmp_path: Path) -> None:
    """The share of measuring is of the whole time; a process knows when it was started."""
    begun = time.time() - 100
    tally = launch.local(OPTIONS, tmp_path, 1, chosen(["memory"]), begun)
    (end,) = read(tmp_path).ends
    assert 100 < end.startup < 100 + 60
    assert end.share == pytest.approx(tally.measuring / (end.startup + tally.wall))
    script = "import time; from validation.launch import started; print(time.time() - started())"
    before = time.monotonic()
    age = float(subprocess.run([sys.executable, "-c", script], capture_output=True).stdout)
    assert 0 <= age <= time.monotonic() - before + 0.02


SETTING = Setting("quick", 1, "cpu", 1e8, (), ("fp32",))


def test_a_gpu_that_waits_for_a_peer_is_given_up() -> None:
    """An event that never comes: an error after the timeout, not a wait without end."""

    class Never:
        def query(self) -> bool:
            return False

    context = object.__new__(Context)
    context.timeout = 0.05
    with pytest.raises(TimeoutError, match=r"not done after 0.05 s"):
        context.wait(Never())


def test_the_watchdog_ends_what_never_comes_back(tmp_path: Path) -> None:
    """A call that sleeps on every rank: each process ends itself, the case is in the file."""
    with pytest.raises(RanksFailed, match=f"exit code {HUNG}"):
        launch.local(OPTIONS, tmp_path, 2, _brittle(_asleep))
    assert "watchdog" in read(tmp_path).failed[0].reason
