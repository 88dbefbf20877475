"""What ``import roofline`` offers: the names exist, the README's example runs as written."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import roofline

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")
LIGHT = 0.3  # [s]


@pytest.mark.parametrize("name", roofline.__all__)
def test_exported_name_exists(name: str) -> None:
    assert getattr(roofline, name) is not None


def test_exported_names_are_unique_and_documented() -> None:
    assert len(set(roofline.__all__)) == len(roofline.__all__)
    assert not [name for name in roofline.__all__ if not getattr(roofline, name).__doc__]


def test_star_import_brings_exactly_these() -> None:
    found: dict[str, object] = {}
    exec("from roofline import *", found)
    assert found.keys() - {"__builtins__"} == set(roofline.__all__)


def test_unknown_name_is_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'data_paralel'"):
        roofline.data_paralel  # noqa: B018


def test_import_takes_numpy_alone_and_little_time() -> None:
    """The best of three: other processes may be at work."""
    program = (
        "import sys, time; import numpy; start = time.process_time(); import roofline; "
        "print(time.process_time() - start, 'yaml' in sys.modules or 'pydantic' in sys.modules)"
    )
    best = 10.0
    for _ in range(3):
        command = [sys.executable, "-c", program]
        took, heavy = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.split()
        assert heavy == "False"
        best = min(best, float(took))
    assert best < LIGHT


def test_readme_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """1024 GPUs see 3,906 tokens each; beyond a node of H100 about 2,475 hide the gradients."""
    block, _, _ = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    names: dict[str, object] = {}
    exec(block, names)
    sentence, terms = capsys.readouterr().out.splitlines()
    assert sentence.startswith("Data parallelism is compute-bound: 3,906 tokens per GPU")
    assert "gradient all-reduce" in terms
    assert names["curve"].t_math.shape == (64,)  # type: ignore[attr-defined]


def test_readme_step_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """Terms sum to the step, parts to the memory, and the band is known."""
    _, block, _ = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    names: dict[str, Any] = {}
    exec(block, names)
    job = names["job"]
    assert len(capsys.readouterr().out.splitlines()) == 3
    assert sum(job.time.terms.values()) == job.time.seconds
    assert sum(job.memory.parts.values()) == pytest.approx(job.memory.total)
    assert job.error is not None
    plan_block = re.findall(r"```python\n(.*?)```", README, re.DOTALL)[2]
    exec(plan_block, names)
    best = names["found"].best
    assert job.time.seconds == best.time.seconds, "the layout that the plan finds"
    assert job.memory.total == best.memory.total


def test_readme_plan_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """The winner fits, is explained, and comes with its launch file."""
    _, _, block = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    names: dict[str, Any] = {}
    exec(block, names)
    found, printed = names["found"], capsys.readouterr().out
    assert found.ranked["memory"][0] <= 0.92 * 80e9
    assert "--tensor-model-parallel-size" in printed
    assert found.explain().sentences
