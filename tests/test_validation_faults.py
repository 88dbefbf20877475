"""Faults of ranks, hosts, disks and files: each run ends in its own time, and says what it was.

What is asked of every one: which rank and which case, what was measured before, no exit code 0.
"""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from typer.testing import CliRunner

from tests import faulty
from validation import context, joining, launch, ranks
from validation.__main__ import app
from validation.case import Kernel
from validation.context import Options
from validation.joining import RanksLost
from validation.ranks import RanksFailed
from validation.results import FILE, SCHEMA, read

pytestmark = pytest.mark.distributed

ROOT = Path(__file__).parents[1]
PYTHON = shlex.quote(sys.executable)
SECONDS = 3.0  # of every wait; a loaded machine needs some
OPTIONS = Options(device="cpu", timeout=SECONDS, budget=0.2)
FLAGS = f"--device cpu --timeout {SECONDS:g} --budget 0.2"
ENDS = 60.0  # a run that has lost a rank takes half of it, on a machine with nothing else to do [s]


def shell(command: str, seconds: float, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run in bash, in a group of its own that is ended when ``seconds`` have passed."""
    told = {"PYTHONPATH": str(ROOT)} | variables
    process = subprocess.Popen(
        ["bash", "-c", command],
        cwd=ROOT,
        env=os.environ | told,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=seconds)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def permitted(command: str) -> bool:
    """True where the kernel lets us do that."""
    return shutil.which("unshare") is not None and shell(command, 10).returncode == 0


def told_of(folder: Path, rank: int) -> None:
    """Assert what every run leaves that has lost ``rank`` in the second of its three cases."""
    found = read(folder)
    assert not found.problems
    assert [m.parameters["how"] for m in found.measured] == ["before"]
    assert [(f.rank, f.parameters["how"]) for f in found.failed] == [(rank, "fails")]
    assert [end.outcome for end in found.ends] == ["aborted"]


VETH = """
ip link set lo up; unshare -n sleep 100 & peer=$!
until [ "$(readlink /proc/$peer/ns/net)" != "$(readlink /proc/$$/ns/net)" ]; do sleep 0.05; done
ip link add here type veth peer name there netns $peer
ip address add 10.9.8.1/24 dev here; ip link set here up
inside="nsenter -t $peer -n"
$inside ip link set lo up; $inside ip address add 10.9.8.2/24 dev there
$inside ip link set there up
"""


@pytest.fixture(scope="module")
def cut_off(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Path, Future[subprocess.CompletedProcess[str]]]]:
    """Two hosts with a cable between them, which is pulled; they run beside another slow test."""
    if not permitted(f"unshare -rn bash -ec '{VETH} kill $peer'"):
        pytest.skip("no network namespace may be made here, or ip and nsenter are missing")
    folder = tmp_path_factory.mktemp("cut")
    flag, rank = folder / "flag", f"{PYTHON} tests/faulty.py {FLAGS} --out {folder}"
    script = f"""
        {VETH}
        export MASTER_ADDR=10.9.8.1 MASTER_PORT=29500 WORLD_SIZE=2 LOCAL_WORLD_SIZE=1 LOCAL_RANK=0
        RANK=0 GLOO_SOCKET_IFNAME=here {rank}/0 & zero=$!
        RANK=1 GLOO_SOCKET_IFNAME=there $inside {rank}/1 & one=$!
        until [ -e {flag} ]; do sleep 0.05; done
        ip link set here down; rm {flag}
        wait $zero; echo $?; wait $one; echo $?; kill $peer
    """
    command = f"unshare -rn bash -c {shlex.quote(script)}"
    with ThreadPoolExecutor(1) as pool:
        yield folder, pool.submit(shell, command, 80, FAULT="cut_off", FAULT_FLAG=str(flag))


def test_kill_9_of_rank_0_under_torchrun(tmp_path: Path) -> None:
    """The rank that writes: another notes the loss in its file, in spite of torchrun's SIGTERM."""
    torchrun = f"{PYTHON} -m torch.distributed.run --standalone --nproc-per-node 2"
    command = f"{torchrun} tests/faulty.py --out {tmp_path} {FLAGS}"
    done = shell(command, 60, FAULT="kill", FAULT_RANK="0")
    assert done.returncode != 0
    assert "rank 1: no answer from rank 0 in faulty how=fails" in done.stderr
    told_of(tmp_path, 0)


def test_a_stopped_rank(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """SIGSTOP: nothing is closed, so only time tells."""
    with suppress(pytest.skip.Exception):
        request.getfixturevalue("cut_off")  # begins now, so that both wait at the same time
    start = time.monotonic()
    with pytest.raises(RanksFailed) as failed:
        launch.local(OPTIONS, tmp_path, 2, [faulty.kernel("stop")])
    assert time.monotonic() - start < ENDS
    assert "no answer from rank 1 in faulty how=fails" in failed.value.brief()
    assert "rank 1: not done" in failed.value.brief()
    told_of(tmp_path, 1)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("no_memory", "allocate"),
        ("no_gpu_memory", "OutOfMemoryError: CUDA out of memory"),
        ("nccl_error", "DistBackendError: NCCL error"),
    ],
)
def test_an_error_in_a_collective_fails_its_case(tmp_path: Path, fault: str, said: str) -> None:
    """Memory that is not there, a network that NCCL gives up: the cases after are measured."""
    tally = launch.local(OPTIONS, tmp_path, 2, [faulty.kernel(fault)])
    assert (tally.measured, tally.failed, tally.passed) == (2, 1, False)
    (failed,) = read(tmp_path).failed
    assert (failed.rank, failed.parameters["how"]) == (1, "fails")
    assert said in failed.reason
    if fault == "no_memory":
        mended = launch.local(
            replace(OPTIONS, resume=True), tmp_path, 2, [faulty.kernel("nothing")]
        )
        assert (mended.measured, mended.skipped, mended.passed) == (1, 2, True)


MOUNT = "mount -t tmpfs -o size=16k none"


def test_a_full_disk(tmp_path: Path) -> None:
    """A disk of 16 KB (or a limit on files, where none can be mounted): whole lines stay."""
    disk, kept = tmp_path / "disk", tmp_path / "kept"
    disk.mkdir()
    kept.mkdir()
    run = f"{PYTHON} -m validation run --out {disk} --ranks 2 {FLAGS}"
    keep = f"code=$?; cp {disk}/* {kept}; exit $code"
    if permitted(f"unshare -rm {MOUNT} {disk}"):
        command = f"unshare -rm bash -c '{MOUNT} {disk}; {run}; {keep}'"
    else:
        command = f"(ulimit -f 16; {run}); {keep}"
    done = shell(command, 80)
    assert done.returncode not in (0, None)
    assert "rank 0 cannot write results of " in done.stderr
    assert "No space left" in done.stderr or "too large" in done.stderr
    found = read(kept)
    assert found.measured
    assert not found.problems


def test_a_peer_that_is_cut_off(
    cut_off: tuple[Path, Future[subprocess.CompletedProcess[str]]],
) -> None:
    """Nothing is closed, nothing refused: both ends find out by themselves."""
    folder, run = cut_off
    done = run.result()
    assert done.stdout.split() == [str(launch.LOST)] * 2, done.stderr
    assert "rank 0: no answer from rank 1 in faulty how=fails" in done.stderr
    assert "rank 1: no answer from rank 0 in faulty how=fails" in done.stderr
    told_of(folder / "0", 1)


def test_ranks_that_do_not_come_are_named(tmp_path: Path) -> None:
    """WORLD_SIZE says three, one is started: it waits its timeout, not for ever."""
    port = 20000 + os.getpid() % 10000
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": "0", "WORLD_SIZE": "3"}
    done = shell(f"{PYTHON} -m validation --out {tmp_path} {FLAGS}", 40, **where)
    assert done.returncode == launch.LOST
    assert "rank 0: no answer from ranks 1, 2: 1 of WORLD_SIZE=3 joined in 3 s" in done.stderr


Told = dict[str, Any]
CPU: Told = {"world": 2, "device": "cpu"}


def roll(*told: Told) -> list[Exception | None]:
    """Ranks 0, 1, ... that say ``told`` of themselves: what each of them hears."""
    store, heard = dist.HashStore(), [None] * len(told)

    def one(rank: int) -> None:
        try:
            joining._call_the_roll(store, rank, told[rank], 1.0)
        except (ValueError, RanksLost) as error:
            heard[rank] = error  # type: ignore[call-overload]

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(len(told))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return list(heard)


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ([CPU, CPU | {"error": "--device: no GPU"}], "rank 1: --device: no GPU"),
        ([CPU, CPU | {"device": "cuda"}], "is on c"),
        ([CPU, CPU | {"world": 3}], "was told WORLD_SIZE="),
        ([CPU | {"world": 3}] * 2, "no answer from rank 2: 2 of WORLD_SIZE=3 joined in 1 s"),
    ],
    ids=["one has no GPU", "different devices", "different worlds", "one is missing"],
)
def test_what_a_roll_call_finds_all_ranks_hear(told: list[Told], said: str) -> None:
    assert roll(CPU, CPU) == [None, None]
    assert all(said in str(error) for error in roll(*told))


def test_a_rank_that_there_is_twice() -> None:
    store = dist.HashStore()
    with pytest.raises(RanksLost):
        joining._call_the_roll(store, 1, CPU, 0.1)
    with pytest.raises(ValueError, match="RANK=1 was given to more than one process"):
        joining._call_the_roll(store, 1, CPU, 0.1)


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"RANK": "5", "WORLD_SIZE": "2"}, "RANK=5 is not below WORLD_SIZE=2"),
        ({"RANK": "0", "WORLD_SIZE": "two"}, "WORLD_SIZE='two' is no whole number"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "1"}, "MASTER_ADDR is not set"),
    ],
)
def test_an_environment_that_makes_no_sense(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], said: str
) -> None:
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=said):
        joining.join(1.0, "cpu")


def _mixed(rank: int, world: int) -> str:
    context.device_name = lambda device: "A100" if rank == 1 else "H100"
    try:
        context.open_context(OPTIONS)
    except ValueError as error:
        return str(error)
    return ""


def test_mixed_gpus_are_refused_by_rank() -> None:
    """On every rank the same."""
    told = "cpu, H100 on ranks 0, 2; cpu, A100 on rank 1"
    assert all(told in said for said in ranks.run(_mixed, 3, timeout=20))


def _short(rank: int, world: int) -> str:
    if rank == 1:
        context.device_name = _no_driver
    try:
        context.open_context(OPTIONS)
    except ValueError as error:
        return str(error)
    return ""


def _no_driver(device: object) -> str:
    raise RuntimeError("no driver")


def test_a_rank_without_its_device_is_told_to_all() -> None:
    assert set(ranks.run(_short, 2, timeout=20)) == {"rank 1: no driver"}


def test_nccl_without_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    done = CliRunner().invoke(app, ["run", "--device", "cuda", "--out", str(tmp_path / "no")])
    assert done.exit_code == 2
    assert "--device: cuda (by nccl) is asked for, but torch sees no GPU" in done.output
    assert not (tmp_path / "no").exists()


def test_torch_without_distributed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("torch.distributed.is_available", lambda: False)
    done = CliRunner().invoke(app, ["run", "--ranks", "2", "--out", str(tmp_path)])
    assert done.exit_code == 2
    assert "built without torch.distributed" in done.output
    with pytest.raises(RuntimeError, match=r"built without torch\.distributed"):
        joining.join(1.0, "cpu")


def test_a_file_cut_off_or_of_an_older_version_is_resumed(tmp_path: Path) -> None:
    """What is whole counts; the rest is told of, kept, and measured again."""
    first = launch.local(replace(OPTIONS, kernels=("broadcast",)), tmp_path, 2)
    lines = (tmp_path / FILE).read_text().splitlines()[:-1]
    lines[2] = json.dumps(json.loads(lines[2]) | {"schema_version": SCHEMA - 1})
    lines[-1] = lines[-1][: len(lines[-1]) // 2]
    (tmp_path / FILE).write_text("\n".join(lines))
    resume = f"--ranks 2 --kernels broadcast --resume {FLAGS}"
    again = shell(f"{PYTHON} -m validation run --out {tmp_path} {resume}", 40)
    assert f"2 cases measured, {first.measured - 2} there already" in again.stdout
    assert f"line 3: schema_version {SCHEMA - 1} is older than {SCHEMA}: measure" in again.stderr
    assert f"line {len(lines)}: cut off, or not JSON: left out" in again.stderr
    assert (tmp_path / FILE).read_text().startswith("\n".join(lines) + "\n")


def test_a_result_that_nothing_checked_is_not_trusted(tmp_path: Path) -> None:
    """Marked so, counted, no success; a run that goes on measures it again."""
    kernel = Kernel("faulty", "a test", faulty.cases, faulty.predict, faulty.prepare_unchecked)
    tally = launch.local(OPTIONS, tmp_path, 2, [kernel])
    assert (tally.measured, tally.unchecked, tally.passed) == (3, 3, False)
    found = read(tmp_path)
    assert {(m.correct, m.trusted) for m in found.measured} == {("unchecked", False)}
    assert found.ends[0].unchecked == 3
    (header,) = found.headers.values()
    assert found.done(header) == set()


@pytest.fixture
def alone() -> dict[str, str]:
    """The environment of a run of one rank."""
    port = 30000 + os.getpid() % 10000
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": "0", "WORLD_SIZE": "1"}
    return where | {"FAULT": "sleep", "FAULT_RANK": "0", "FAULT_PATIENCE": "1"}


def test_sigterm_in_a_call_that_does_not_come_back(tmp_path: Path, alone: dict[str, str]) -> None:
    """As Slurm and Kubernetes do when time is up: the case is noted, the process ends."""
    script = f"""
        {PYTHON} tests/faulty.py --out {tmp_path} {FLAGS} --timeout 60 & run=$!
        until grep -qs before {tmp_path}/{FILE}; do sleep 0.1; done
        sleep 1; kill -TERM $run; wait $run
    """
    start = time.monotonic()
    done = shell(script, 40, **alone)
    assert done.returncode == 128 + signal.SIGTERM
    assert time.monotonic() - start < 30
    told_of(tmp_path, 0)
    assert "SIGTERM" in read(tmp_path).failed[0].reason
