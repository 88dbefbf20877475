"""The Validate page: it shows what ``validation report`` says, refuses bad files, and leaves no process.

The sample is a real run (``tests/data/README.md``); what is expected comes from its lines.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from dashboard import validate_data as data
from dashboard import validate_figures as figures
from dashboard import validate_runs as runs
from hardware_profiles.errors import ProfileError
from tests.pages import said

APP = str(Path(__file__).parent.parent / "app.py")
SAMPLE = Path(__file__).parent / "data" / "validation-2-ranks.jsonl"


def lines() -> list[dict[str, Any]]:
    return [json.loads(line) for line in SAMPLE.read_text("utf-8").splitlines()]


def text(records: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in records).encode()


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AppTest:
    """The page where nothing has been measured."""
    monkeypatch.chdir(tmp_path)
    app = AppTest.from_file(APP, default_timeout=90)
    app.run()
    return app.switch_page("dashboard/pages/validate.py").run()


def test_before_anything_is_measured(app: AppTest) -> None:
    assert not app.exception
    assert "Nothing has been measured here yet" in said(app)
    code = "\n".join(block.value for block in app.code)
    for command in ("make validate", "torchrun --nproc-per-node=8", "#SBATCH", "import nccl-tests"):
        assert command in code


def test_a_folder_of_results_is_judged_and_calibrated(app: AppTest, tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    header, *rest = lines()
    header["left_out"] = {"matmul fp8": "no rate of it"}
    (tmp_path / "results" / runs.FILE).write_bytes(text([header, *rest]))
    app.run()
    assert not app.exception
    assert "Not measured here: matmul fp8: no rate of it" in said(app).replace("\\", "")
    measured = [line for line in lines() if line["record"] == "measured"]
    off = [abs(m["predicted"] / m["seconds"] - 1) for m in measured if m["predicted"]]
    shown = {metric.label: metric.value for metric in app.metric}
    assert shown["Median error"] == f"{median(off):.1%}"
    assert shown["Cases"] == str(len({m["case"] for m in measured}))
    assert "OMP\\_NUM\\_THREADS" in said(app) or "Suspected causes" in said(app)
    app.button(key="vl_fit").click().run()
    assert not app.exception
    assert "before" in said(app)
    assert "my-machine" in said(app)
    app.button(key="vl_use").click().run()
    assert not app.exception
    assert list(app.session_state["calibrations"]) == ["my-machine"]
    app.selectbox(key="cluster").set_value("local").run()
    assert "uses it at achievable rates" in said(app)
    assert app.session_state["scenario"].overlay.name == "my-machine"
    assert not app.switch_page("dashboard/pages/plan.py").run().exception


def test_failed_and_unchecked_are_marked_and_not_counted(tmp_path: Path) -> None:
    records = lines()
    changed = next(r for r in records if r["record"] == "measured")
    changed["correct"] = "unchecked"
    lost = {key: changed[key] for key in ("schema_version", "run", "kernel", "parameters")}
    lost |= {"record": "failed", "case": "lost", "rank": 1, "reason": "<b>killed</b>"}
    found = data.report(data.stored("r.jsonl", text([*records, lost]), tmp_path))
    assert found["summary"]["failed"] == 1
    first, second = data.cases(found)[:2]
    assert first["state"] == "failed on rank 1: <b>killed</b>"
    assert second["case"] == changed["case"]
    assert second["state"] == "not checked"
    points = {t.get("name"): len(t["x"]) for t in figures.scatter(found)["data"][1:]}
    assert points.pop(figures.UNTRUSTED.label) == 1
    predicted = [r for r in records if r["record"] == "measured" and r["predicted"]]
    assert sum(points.values()) == len(predicted) - 1


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("r.jsonl", b"\xff\xfe\x00", "no text"),
        ("r.jsonl", b"", "no header"),
        ("r.jsonl", b'[1]\n{"record": "measured"}\n', "no header"),
        ("r.jsonl", b'{"record": "header", "overlay": "/etc/passwd"}', "refers to a file"),
        ("r.jsonl", b'{"record": "header", "cluster": {"accelerator": "/x"}}', "refers to a file"),
        ("nccl.log", b"nothing of the kind", "the log"),
        ("nccl.log", b"x" * (data.MOST_LOG * 10**6 + 1), "allowed: 8 MB"),
    ],
)
def test_bad_uploads_are_refused(name: str, content: bytes, why: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=why):
        data.stored(name, content, tmp_path)


def test_a_bad_overlay_names_its_field() -> None:
    with pytest.raises(ProfileError, match="hbm"):
        data.overlay(b"name: a\naccelerators: [x]\nmatmul: {bf16: 0.5}\nhbm: 7\n", "mine.yaml")


def test_a_command_that_takes_too_long_is_ended() -> None:
    with pytest.raises(runs.Refused, match=r"not done after 0\.01 s"):
        runs.ask("report", "nowhere", limit=0.01)


def test_without_torch_the_page_says_how_to_install_it(
    app: AppTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "missing", lambda: ["torch"])
    app.run()
    assert not app.exception
    assert "make setup-dev" in said(app)
    assert all(button.key != "vl_start" for button in app.button)


def gone(group: int) -> bool:
    """True when no living process is left in a process group."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            return False
    return True


def until(done: Any, seconds: float = 20) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end and not done():
        time.sleep(0.1)
    return bool(done())


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="reads /proc")
def test_a_check_runs_and_is_killed_with_its_ranks(
    app: AppTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    app.button(key="vl_start").click().run()
    assert not app.exception
    mine = app.session_state["vl_check"]
    try:
        assert mine.running
        assert not gone(mine.process.pid)
        with pytest.raises(runs.Refused, match="going on already"):
            runs.start()
        assert until(lambda: mine.look().done >= 2, 60)
        app.run()
        app.button(key="vl_cancel").click().run()
        assert not app.exception
        assert until(lambda: gone(mine.process.pid))
        assert mine.failure == "cancelled"
        assert app.selectbox(key="vl_results").value == "the check on this machine"
        assert "did not end" in said(app)
    finally:
        mine.stop()


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="reads /proc")
def test_a_check_that_nobody_looks_at_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(runs, "UNSEEN", 0.5)
    mine = runs.start(["--budget", "3", "--ranks", "2"])
    assert until(lambda: not mine.running)
    assert until(lambda: gone(mine.process.pid))
    assert mine.failure == "the page was left"
