"""The notebook runs from top to bottom, and its numbers are those of the worked problems."""

import sys
from pathlib import Path

import nbformat
import pytest
from jupyter_client.asynchronous import AsyncKernelClient
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbformat import NotebookNode

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
TIMEOUT = 120  # [s] a cell

STRICT = "import warnings; warnings.simplefilter('error')"
LENIENT = "warnings.resetwarnings()"  # for what the kernel does when it ends

# Run after the last cell, in the notebook's own names.
CHECKS = """
from roofline import worked

assert float(tokens) == worked.problem("dp-crit-su-h100").expected == 2475
assert abs(float(slices) - worked.problem("q5.2.3-tp-limit").expected) < 1e-9
assert worked.problem("q5.2.3-tp-limit").erratum
assert abs(float(gather) - worked.problem("q2.3-allgather-time").expected) < 1e-12
assert round(float(gather) * 1e3, 2) == 1.04
assert 256 < turn < 512
assert list(needed.threshold.needed) == [2475, 2200, 2200, 2200]
assert list(needed.comms[0].tier) == ["network", "node", "node", "node"]
"""


class ThisPython(AsyncKernelManager):
    """Starts kernels with the interpreter of the tests, whatever is installed for the user."""

    client_class = AsyncKernelClient

    @property
    def kernel_spec(self) -> KernelSpec:
        return KernelSpec(
            argv=[sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
            language="python",
        )


def executed(path: Path, checks: str) -> NotebookNode:
    notebook = nbformat.read(path, as_version=4)
    cell = nbformat.v4.new_code_cell
    notebook.cells = [cell(STRICT), *notebook.cells, cell(checks), cell(LENIENT)]
    client = NotebookClient(
        notebook,
        timeout=TIMEOUT,
        kernel_manager_class=ThisPython,
        resources={"metadata": {"path": str(ROOT)}},
    )
    return client.execute()


# The same for the planner: one answer, whichever way it is asked for.
PLANNED = """
assert found.best.time.seconds == side.seconds[0] < side.seconds[1]
assert f"--tensor-model-parallel-size {found.best.layout.tp:g} " in script
assert search.answer.best.days <= 60
assert "slower than best" in side.sentences[0]
"""


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR"):
        monkeypatch.setenv(variable, str(tmp_path / variable.lower()))


def test_planner_runs() -> None:
    notebook = executed(ROOT / "notebooks" / "planner.ipynb", PLANNED)
    shown = [out.get("data", {}) for cell in notebook.cells for out in cell.get("outputs", ())]
    pages = "".join(data.get("text/html", "") for data in shown)
    assert "<b>llama-3-70b on 512" in pages  # the plan and its reasons
    assert "<th>best</th>" in pages
    assert "dataframe" in pages


def test_notebook_runs() -> None:
    """How to Scale Your Model, "GPUs": 2475 tokens per GPU, a TP limit of 13.03, 1.04 ms."""
    notebook = executed(ROOT / "notebooks" / "rooflines.ipynb", CHECKS)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    figures = [each for each in outputs if "application/vnd.plotly.v1+json" in each.get("data", {})]
    assert len(figures) == 2
    printed = "".join(output.get("text", "") for output in outputs)
    assert "book 2475     ours 2475" in printed


@pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.name for path in NOTEBOOKS])
def test_notebook_is_stored_without_outputs(path: Path) -> None:
    cells = nbformat.read(path, as_version=4).cells
    assert not [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")]
