"""What every rank holds after a collective: examples on four ranks, and laws."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roofline import semantics

ROWS = [
    json.loads(line)
    for line in (Path(__file__).parent / "data" / "semantics.jsonl").read_text().splitlines()
]
CALLS = {
    "all_reduce": lambda row, ranks: semantics.all_reduce(ranks, row["reduce"]),
    "reduce_scatter": lambda row, ranks: semantics.reduce_scatter(ranks, row["reduce"]),
    "all_gather": lambda row, ranks: semantics.all_gather(ranks),
    "rs+ag": lambda row, ranks: semantics.all_gather(semantics.reduce_scatter(ranks)),
    "broadcast": lambda row, ranks: semantics.broadcast(ranks, row["root"]),
    "reduce": lambda row, ranks: semantics.reduce(ranks, row["root"], row["reduce"]),
    "scatter": lambda row, ranks: semantics.scatter(ranks[row["root"]], len(ranks)),
    "gather": lambda row, ranks: semantics.gather(ranks, row["root"]),
    "all_to_all": lambda row, ranks: semantics.all_to_all(ranks),
    "all_to_all_v": lambda row, ranks: semantics.all_to_all(ranks, row["input_splits"]),
    "sendrecv": lambda row, ranks: semantics.send_recv_ring(ranks),
}
numbers = st.integers(-50, 50).map(float)


@st.composite
def held(draw: st.DrawFn) -> list[np.ndarray]:
    """Arrays of one length on one to five ranks, a whole number of parts each."""
    n = draw(st.integers(1, 5))
    length = n * draw(st.integers(1, 3))
    return [np.array(draw(st.lists(numbers, min_size=length, max_size=length))) for _ in range(n)]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_examples_on_four_ranks(row: dict[str, object]) -> None:
    """Worked by hand and confirmed with torch.distributed on gloo; see data/README.md."""
    ranks = [None if x is None else np.array(x) for x in row["inputs"]]  # type: ignore[attr-defined]
    results = CALLS[row["op"]](row, ranks)  # type: ignore[index, no-untyped-call]
    shown = [None if x is None else x.tolist() for x in results]
    assert shown == row["outputs"]


@given(held())
def test_all_reduce_is_reduce_scatter_and_all_gather(ranks: list[np.ndarray]) -> None:
    """The identity behind the ring; and reduce, then broadcast, is the same."""
    expected = semantics.all_reduce(ranks)
    both = semantics.all_gather(semantics.reduce_scatter(ranks))
    np.testing.assert_array_equal(both, expected)
    root = semantics.reduce(ranks, 0)[0]
    assert root is not None
    np.testing.assert_array_equal(semantics.broadcast([root] * len(ranks), 0), expected)


@given(held())
def test_all_to_all_twice_gives_everything_back(ranks: list[np.ndarray]) -> None:
    """A transpose of parts is its own inverse; scatter undoes gather."""
    again = semantics.all_to_all(semantics.all_to_all(ranks))
    np.testing.assert_array_equal(again, ranks)
    whole = semantics.gather(ranks, 0)[0]
    assert whole is not None
    np.testing.assert_array_equal(semantics.scatter(whole, len(ranks)), ranks)


def test_results_share_no_memory_with_inputs() -> None:
    """A rank that writes into its result changes nobody else's."""
    ranks = [np.arange(4.0), np.arange(4.0)]
    for results in (
        semantics.all_reduce(ranks),
        semantics.all_gather(ranks),
        semantics.broadcast(ranks, 0),
        semantics.send_recv_ring(ranks),
    ):
        results[0][:] = 99
        assert results[1][0] != 99
        assert ranks[0][0] == ranks[1][0] == 0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda two: semantics.all_reduce(two, "mean"), "op: 'mean' is not one; allowed: sum"),
        (lambda two: semantics.all_reduce([two[0], two[1][:2]]), "lengths"),
        (lambda two: semantics.scatter(two[0], 2), "3 elements do not divide into 2 parts"),
        (lambda two: semantics.gather(two, 2), "root: 2 is no rank; allowed: 0 to 1"),
        (lambda two: semantics.all_to_all(two, [[1, 1], [1, 2]]), "rank 0 has 3 elements"),
        (lambda two: semantics.all_to_all(two, [[1, 2]]), "2 ranks need a row each, got 1"),
    ],
)
def test_wrong_calls_are_refused(call: object, words: str) -> None:
    """The message names the field and what is allowed."""
    with pytest.raises(ValueError, match=words):
        call([np.arange(3.0), np.arange(3.0)])  # type: ignore[operator]
