"""The worked problems of books, lectures and papers, solved through the public formulas."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest

from roofline import worked
from roofline.worked import Problem

ERRATA = Path(__file__).parent.parent / "docs" / "errata.md"
SOLVED = [problem for problem in worked.problems() if problem.id in worked.solvers()]
MOST_NOT_COVERED = 40

# Problems and inputs (by how they begin) that a solver does not read.
READ_ELSEWHERE = {
    "table-": "read from the profile of the book's chip",
    "pcie7-x16 gt": "the transfers per second of a lane follow from the generation",
    "bubble-naive-mp m": "a batch that nobody splits is one micro-batch",
    "node-size-": "read from the profile of the node",
    "gb200-egress-ratio": "read from the profiles of both machines",
    "pq3-Y256 n": "the scalable unit is the profile's",
    "zero-comm-": "how often the parameters travel follows from the stage",
}
# Where the source's expression holds for its own inputs, and ours for others too.
MORE_GENERAL = {
    "gpu-resident-warps-256regs ": "warps are whole",
    "sh-hop-latency-model X": "hops are whole: 8 to the farthest of 17 chips",
    "sh-a2a-bidir-chunks N": "an odd ring has no chip opposite",
    "dp-crit-node-h100-exact N": "more than 8 GPUs are more than a node",
    "ep-regime1-fmin-Z16-k8 k": "16 copies of a token do not cross to 2 nodes",
    "ep-regime1-fmin-Z16-k8 Z": "17 GPUs are 3 nodes, and all that the last receives has one card",
    "ep-cross-Z8 Z": "9 GPUs are 2 nodes, and all that the second receives has one card",
    "ep-tcomms-dsv3 Z": "65 GPUs are 9 nodes, the last nearly empty",
    "ep-tcomms-dsv3-nodelimit4 Z": "65 GPUs are 9 nodes, the last nearly empty",
    "ep-alltoall-one Z": "65 GPUs are 9 nodes, the last nearly empty",
    "q3.2-": "a unit that is not full needs all its leaves; beyond 2048 GPUs: a third level",
    "a2a-gpu-vs-tpu N": "an odd ring has no chip opposite",
    "xnode-a2a-m2-approx M": "one node sends nothing out",
    "xnode-a2a-degradation M": "one node sends nothing out",
    "xnode-a2a-max-16gpu M": "one node has 8 GPUs, not 16",
    "sharded-exact-superpod-Y8 D0": "8 shards do not fill a node of 9",
    "pq3-Y128 Y": "nothing is reduced over an axis of one",
    "q4.3-sharp-ar-sharded Y": "nothing is reduced over an axis of one",
    "inf-table-tput-b240 B": "from B = 240 on the math takes longer than the memory",
    "cs10-latency-b256-": "from B = 300 on the math takes longer than the memory",
    "cs10-tput-b256-": "from B = 300 on the math takes longer than the memory",
    "bubble-zb2p T": "idle time is never negative",
    "bubble-zb1p-time W": "idle time is never negative",
    "bubble-zb1p-time F ": "a W longer than F does not fit into the gaps",
    "bubble-dualpipe-time W": "idle time is never negative",
}


def named(problems: list[Problem]) -> dict[str, object]:
    return {"argnames": "problem", "argvalues": problems, "ids": [p.id for p in problems]}


@pytest.mark.parametrize(**named(SOLVED))
def test_solved(problem: Problem) -> None:
    """The source is in the problem: ``problem.source``."""
    result = worked.Result(problem, worked.solve(problem.id))
    assert result.passed, f"{result.ours} is not {problem.expected}, {problem.quantity}"


def test_every_problem_is_solved_or_says_why_not() -> None:
    ids = {problem.id for problem in worked.problems()}
    assert len(ids) == len(worked.problems())
    solved, left_out = set(worked.solvers()), set(worked.not_covered())
    assert solved | left_out == ids
    assert not solved & left_out
    assert len(left_out) <= MOST_NOT_COVERED
    assert all(worked.not_covered().values())


def test_every_problem_has_one_solver() -> None:
    counted = Counter(id for topic in worked._topics() for id in topic.SOLVERS)
    assert not [id for id, times in counted.items() if times > 1]


def listed(where: Mapping[str, str], problem: Problem, name: str) -> bool:
    return any(f"{problem.id} {name} ".startswith(known) for known in where)


def neighbours(problem: Problem, name: str) -> Iterator[dict[str, float]]:
    """The inputs with one of them a few per cent off; whole numbers stay whole."""
    value = problem.inputs[name]
    whole = float(value).is_integer() and 1 < value < 1e6
    others = (value + 1, value - 1, 2 * value) if whole else (1.03 * value, 0.97 * value)
    yield from ({**problem.inputs, name: other} for other in others if other > 0)


def as_printed(problem: Problem, inputs: Mapping[str, float]) -> float:
    """The source's own expression; nan where it has no value."""
    functions = {name: getattr(math, name) for name in dir(math) if not name.startswith("_")}
    names = {**functions, "min": min, "max": max, "abs": abs, **inputs}
    try:
        return float(eval(problem.formula, {"__builtins__": {}}, names))
    except (ArithmeticError, ValueError):
        return math.nan


def ours_at(problem: Problem, inputs: Mapping[str, float]) -> float:
    """Our value; nan where the inputs are refused, as a group that does not fit its machine is."""
    try:
        return worked.solve(problem.id, inputs)
    except ValueError:
        return math.nan


@pytest.mark.parametrize(**named([problem for problem in SOLVED if problem.inputs]))
def test_solvers_follow_their_inputs(problem: Problem) -> None:
    """Ours is the source's expression around its inputs too: no solver is a constant."""
    close = partial(math.isclose, rel_tol=max(problem.rel_tol, 1e-9), abs_tol=1e-300)
    for name in problem.inputs:
        if listed(READ_ELSEWHERE, problem, name):
            continue
        pairs = [(as_printed(problem, i), ours_at(problem, i)) for i in neighbours(problem, name)]
        known = [(printed, ours) for printed, ours in pairs if not math.isnan(printed + ours)]
        if listed(MORE_GENERAL, problem, name):
            assert any(not close(ours, problem.expected) for _, ours in known), name
        else:
            assert all(close(printed, ours) for printed, ours in known), name


@pytest.mark.parametrize(
    "problem", [p for p in SOLVED if p.erratum], ids=[p.id for p in SOLVED if p.erratum]
)
def test_errata_are_not_reproduced(problem: Problem) -> None:
    """Ours is the corrected value, and the document of errata says what the source prints."""
    assert problem.book_value is not None
    assert not math.isclose(worked.solve(problem.id), problem.book_value, rel_tol=1e-3)


def test_errata_are_documented() -> None:
    text = ERRATA.read_text("utf-8")
    assert not [p.id for p in worked.problems() if p.erratum and f"`{p.id}`" not in text]


def test_results_know_their_error() -> None:
    results = worked.check()
    assert len(results) == len(SOLVED)
    assert all(
        result.error <= result.problem.rel_tol or not result.problem.expected for result in results
    )


def test_unknown_and_uncovered_problems_are_refused() -> None:
    with pytest.raises(ValueError, match=r"q1\.3-ridge-h100-fp16"):
        worked.solve("q1.3-ridge-h100-fp17")
    with pytest.raises(ValueError, match="a measurement"):
        worked.solve("q1.7-vecadd-64k-measured")
