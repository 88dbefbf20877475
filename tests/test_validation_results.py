"""Results files: written line by line, read whatever happened to them."""

import errno
import json
import os
from pathlib import Path

import pytest

from validation import results
from validation.results import FILE, SCHEMA, End, Failed, Header, Measured, Writer, read

HEADER = Header(
    run="a",
    started="2026-01-02T03:04:05+00:00",
    suite="quick",
    world=2,
    device="cpu",
    backend="gloo",
    hosts={"here": 2},
    devices={"CPU": 2},
    versions={"torch": "2"},
    variables={},
    profile="local",
    cluster={"name": "local"},
)
LINE = Measured(
    run="a",
    case="copy bytes=4",
    kernel="copy",
    part="math",
    parameters={"bytes": 4, "where": "cache", "fraction": 0.5, "uneven": True},
    world=2,
    seconds=2.0,
    p10=1.5,
    p90=2.5,
    repeats=10,
    per_rank=(1.9, 2.0),
    predicted=1.0,
    correct="yes",
)
FAILED = Failed(run="a", case="x", kernel="x", parameters={}, rank=1, reason="no")
END = End(
    run="a",
    outcome="complete",
    wall=10,
    measuring=9.5,
    startup=1,
    measured=1,
    skipped=0,
    failed=1,
    wrong=0,
)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "new" / "folder")
    for line in (HEADER, LINE, FAILED, END):
        writer.add(line)
    found = read(tmp_path / "new" / "folder")
    assert found.headers == {"a": HEADER}
    assert (found.measured, found.failed, found.ends) == ([LINE], [FAILED], [END])
    assert not found.problems
    assert END.share == 9.5 / 11


def test_parameters_keep_their_types(tmp_path: Path) -> None:
    """1 is not True, nor 1.0: the case's key would be another."""
    Writer(tmp_path).add(LINE)
    told = read(tmp_path).measured[0].parameters
    assert [type(value) for value in told.values()] == [int, str, float, bool]


@pytest.mark.parametrize("cut", [1, 20, 100])
def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path, cut: int) -> None:
    """What is before it stays; what a resumed run appends begins on a line of its own."""
    Writer(tmp_path).add(HEADER, LINE, END)
    file = tmp_path / FILE
    file.write_bytes(file.read_bytes()[:-cut])
    found = read(file)
    assert found.measured == [LINE]
    assert not found.ends or cut == 1  # only the end of the line is missing then
    Writer(tmp_path).add(FAILED)
    again = read(tmp_path)
    assert again.failed == [FAILED]
    assert len(again.problems) == (0 if cut == 1 else 1)


def test_an_older_version_is_told_of(tmp_path: Path) -> None:
    Writer(tmp_path).add(LINE)
    old = json.loads(LINE.model_dump_json()) | {"schema_version": SCHEMA - 1, "other": 1}
    file = tmp_path / FILE
    file.write_text(file.read_text() + json.dumps(old) + "\n[1]\n{}\nnoise \x00\n")
    found = read(file)
    assert found.measured == [LINE]
    assert "older" in str(found.problems[0])
    assert [problem.line for problem in found.problems] == [2, 3, 4, 5]


def test_a_wrong_field_is_named(tmp_path: Path) -> None:
    wrong = json.loads(LINE.model_dump_json()) | {"seconds": "soon"}
    (tmp_path / FILE).write_text(json.dumps(wrong))
    assert "seconds" in read(tmp_path).problems[0].why


def test_a_folder_without_results_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read(tmp_path)


def test_what_is_done_depends_on_conditions(tmp_path: Path) -> None:
    """Another torch, another world: measured again; wrong results too."""
    wrong = LINE.model_copy(update={"case": "wrong", "correct": "no"})
    Writer(tmp_path).add(HEADER, LINE, wrong)
    found = read(tmp_path)
    later = HEADER.model_copy(update={"run": "b", "started": "later", "clocks": "other"})
    assert found.done(later) == {LINE.case}
    assert not found.done(HEADER.model_copy(update={"versions": {"torch": "3"}}))
    assert not found.done(HEADER.model_copy(update={"world": 4}))


def test_a_case_is_done_when_all_its_parts_are_there(tmp_path: Path) -> None:
    """A crash between the lines of one case: it is measured again."""
    parts = [LINE.model_copy(update={"part": part, "parts": 2}) for part in ("math", "comms")]
    Writer(tmp_path).add(HEADER, parts[0], parts[0])
    assert not read(tmp_path).done(HEADER)
    Writer(tmp_path).add(parts[1])
    assert read(tmp_path).done(HEADER) == {LINE.case}


def test_a_full_disk_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some bytes of a line fit, the rest does not: the file is as it was before."""
    writer = Writer(tmp_path)
    writer.add(HEADER)
    before = writer.path.read_bytes()
    write, room = os.write, [100]

    def full(file: int, data: bytes) -> int:
        if not room:
            raise OSError(errno.ENOSPC, "no space left")
        return write(file, data[: room.pop()])

    monkeypatch.setattr(results.os, "write", full)
    with pytest.raises(OSError, match="no space left"):
        writer.add(LINE)
    assert writer.path.read_bytes() == before


def test_of_several_runs_the_fastest_counts(tmp_path: Path) -> None:
    """Of those found right; a last run that is wrong stands for itself."""
    runs = [HEADER.model_copy(update={"run": run}) for run in "abc"]
    times = {"a": 5.0, "b": 2.0, "c": 3.0}
    lines = [LINE.model_copy(update={"run": run, "seconds": s}) for run, s in times.items()]
    results.write(tmp_path / FILE, [*runs, *lines])
    found = read(tmp_path)
    assert found.best() == [lines[1]]
    assert found.latest() == [lines[2]]
    found.measured.insert(0, LINE.model_copy(update={"seconds": 1.0, "correct": "no"}))
    assert found.best() == [lines[1]]
    found.measured.append(lines[1].model_copy(update={"correct": "no"}))
    assert found.best() == [found.measured[-1]]


def test_the_latest_of_each_case_counts(tmp_path: Path) -> None:
    """Under the same conditions: four ranks share the CPU, and are slower than two."""
    again = LINE.model_copy(update={"seconds": 4.0})
    four = HEADER.model_copy(update={"run": "b", "world": 4})
    other = LINE.model_copy(update={"run": "b", "world": 4})
    results.write(tmp_path / FILE, [HEADER, LINE, again, four, other])
    assert read(tmp_path).latest() == [again, other]
    assert again.error == pytest.approx(-0.75)
    assert again.spread == pytest.approx(0.25)


def test_a_line_nested_too_deeply_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / FILE
    other = HEADER.model_copy(update={"run": "b"}).model_dump_json()
    file.write_text("\n".join((HEADER.model_dump_json(), "[" * 100_000, other)))
    found = read(tmp_path)
    assert set(found.headers) == {"a", "b"}
    (problem,) = found.problems
    assert problem.line == 2
    assert "nested" in str(problem)


@pytest.mark.parametrize("changed", [{"world": 10**11}, {"hosts": {"a": 10**11}}, {"world": 0}])
def test_a_header_of_more_ranks_than_there_are_is_none(
    changed: dict[str, object], tmp_path: Path
) -> None:
    text = json.dumps(json.loads(HEADER.model_dump_json()) | changed)
    (tmp_path / FILE).write_text(text + "\n")
    (problem,) = read(tmp_path).problems
    assert next(iter(changed)) in str(problem)


@pytest.mark.parametrize(
    ("changed", "trusted"),
    [
        ({"max_error": 1e-3, "tolerance": 1e-2}, True),
        ({"max_error": 99.0, "tolerance": 1e-2}, False),
        ({"p10": 2.0, "p90": 1.0}, False),
        ({"correct": "elsewhere"}, True),
        ({"correct": "unchecked"}, False),
    ],
)
def test_the_word_alone_is_not_trusted(changed: dict[str, object], trusted: bool) -> None:
    """Correct says yes, but the error is over the tolerance, or the percentiles are swapped."""
    assert LINE.model_copy(update=changed).trusted is trusted
