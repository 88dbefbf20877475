"""The rules of the house: who imports whom, how long things get, what a file may say."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OURS = {"hardware_profiles", "roofline", "dashboard", "validation"}
BASE = {"numpy", "pydantic", "yaml"}
TERMINAL = {"rich", "typer"}
APP = {"streamlit", "plotly", "pandas"}

# What each room may import beside itself and the standard library.
MAY_IMPORT = {
    "hardware_profiles": BASE,
    "roofline": {"hardware_profiles"} | BASE,
    "dashboard": {"hardware_profiles", "roofline"} | BASE | APP,
    "validation": {"hardware_profiles", "roofline", "torch"} | BASE | TERMINAL,
    "benchmarks": OURS | BASE | {"browser", "playwright", "sweeps"},
    "app.py": OURS | APP,
}
PRODUCT = [*OURS, "app.py"]
DOCUMENTED = ["hardware_profiles", "roofline"]
MAX_LINES = 350
MAX_FUNCTION_LINES = 50

Function = ast.FunctionDef | ast.AsyncFunctionDef


def sources(*rooms: str) -> Iterator[tuple[str, ast.Module]]:
    """Every Python file of the rooms, parsed, with its path from the root."""
    for room in rooms:
        path = ROOT / room
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            if file.exists():
                yield file.relative_to(ROOT).as_posix(), ast.parse(file.read_text("utf-8"))


def is_command_line(file: str) -> bool:
    return "cli" in Path(file).parts or Path(file).name == "__main__.py"


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Top-level names that a file imports, wherever in the file it does."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.partition(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.lineno, node.module.partition(".")[0]


FRAMES = {"frame", "to_frame"}  # functions in which ``roofline`` may import pandas


def in_frames(tree: ast.AST) -> set[int]:
    """Lines at which pandas is imported inside a function that makes a frame."""
    return {
        line
        for node in ast.walk(tree)
        if isinstance(node, Function) and node.name in FRAMES
        for line, name in imported(node)
        if name == "pandas"
    }


def length(function: Function) -> int:
    """Lines of a function, its docstring left out."""
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    if ast.get_docstring(function) is not None:
        docstring = function.body[0]
        lines -= (docstring.end_lineno or docstring.lineno) - docstring.lineno + 1
    return lines


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_imports_follow_the_arrows(room: str) -> None:
    allowed = MAY_IMPORT[room] | {room} | sys.stdlib_module_names
    assert not [
        f"{file}:{line} imports {name}"
        for file, tree in sources(room)
        for line, name in imported(tree)
        if name not in (allowed | TERMINAL if is_command_line(file) else allowed)
        and not (room == "roofline" and line in in_frames(tree))
    ]


def test_pandas_is_imported_where_a_frame_is_made_and_nowhere_else() -> None:
    program = """
import pandas
def frame():
    from pandas import DataFrame
def other():
    import pandas
def to_frame():
    import numpy, pandas
"""
    tree = ast.parse(program)
    assert in_frames(tree) == {4, 8}
    assert [line for line, name in imported(tree) if name == "pandas"] == [2, 4, 6, 8]


@pytest.mark.parametrize("package", DOCUMENTED)
def test_import_is_light(package: str) -> None:
    program = f"import sys, {package}; print(*{{m.partition('.')[0] for m in sys.modules}})"
    loaded = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    assert package in loaded
    assert not set(loaded) & (APP | TERMINAL | {"torch"})


def test_files_are_short() -> None:
    counted = {file: len((ROOT / file).read_text().splitlines()) for file, _ in sources(*PRODUCT)}
    assert not {file: lines for file, lines in counted.items() if lines > MAX_LINES}


def test_functions_are_short() -> None:
    assert not [
        f"{file}:{node.lineno} {node.name} has {length(node)} lines"
        for file, tree in sources(*PRODUCT)
        for node in ast.walk(tree)
        if isinstance(node, Function) and length(node) > MAX_FUNCTION_LINES
    ]


def test_public_names_have_docstrings() -> None:
    assert not [
        f"{file}:{node.lineno} {node.name}"
        for file, tree in sources(*DOCUMENTED)
        for node in tree.body
        if isinstance(node, Function | ast.ClassDef)
        and not node.name.startswith("_")
        and not ast.get_docstring(node)
    ]


def test_formulas_neither_print_nor_log() -> None:
    quiet = [(file, tree) for file, tree in sources("roofline") if not is_command_line(file)]
    printing = [
        f"{file}:{node.lineno} prints"
        for file, tree in quiet
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "print"
    ]
    logging = [
        f"{file}:{line} logs"
        for file, tree in quiet
        for line, name in imported(tree)
        if name == "logging"
    ]
    assert not printing + logging


# Written so that no pattern matches its own line.
FOREIGN = re.compile(
    r"""(?<![\w./-])/(?:work|opt/wheels|opt/pypi)[/]   # paths of one machine
      | \bshared/(?:design|notes|reference|data)[/]?\b
      | https?://[\w.-]*(?:pypi|pythonhosted|download\.pytorch|npmjs|anaconda)[\w.-]*
      | --(?:extra-)?index-url\b | --find[-]links\b
    """,
    re.VERBOSE,
)


def repository_files() -> list[Path]:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout: no list of the repository's files")
    return [ROOT / name for name in listed.stdout.split("\0") if name]


def test_text_names_no_machine_and_no_index() -> None:
    found = []
    for file in repository_files():
        data = file.read_bytes() if file.is_file() else b""
        if b"\0" in data:
            continue
        for number, line in enumerate(data.decode("utf-8").splitlines(), 1):
            if match := FOREIGN.search(line):
                found.append(f"{file.relative_to(ROOT)}:{number} says {match[0]!r}")
    assert not found
