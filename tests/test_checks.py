"""Checks: bad numbers are named, and what is good goes through as the formulas take it."""

import numpy as np
import pytest

from roofline import algorithms, bubbles, checks, memory, routing
from roofline.blocks import BLOCK, pointwise
from roofline.groups import Group
from roofline.machine import Ideal, Tier
from roofline.strategies import expert_parallel
from roofline.workload import Workload

NODE = (Tier(8, 450e9, "node"),)
MOE = Workload(1e6, 4096, 2048, experts=8, experts_per_token=2)


def test_good_numbers_go_through() -> None:
    """Numbers stay numbers, lists become arrays of floats."""
    assert checks.at_least("x", 3, 1) == 3
    assert checks.numbers("x", [1, 2]).tolist() == [1.0, 2.0]  # type: ignore[union-attr]
    assert checks.whole("x", np.array([1, 2])).dtype == float  # type: ignore[union-attr]
    assert checks.whole("x", np.float64(4)) == 4
    assert checks.above("x", np.inf) == np.inf
    assert checks.at_least("x", np.array([]), 1).size == 0  # type: ignore[union-attr]
    assert checks.one_of("x", np.array([2, 3]), (2, 3)).tolist() == [2, 3]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: checks.between("x", np.nan, 0, 1), "x: nan is refused; allowed: 0 to 1"),
        (lambda: checks.one_of("x", np.array([2, 4]), (2, 3)), "x: 4 is refused; allowed: 2, 3"),
        (lambda: checks.numbers("x", "y" * 100), "x: 'yyy.*y\\.\\.\\. is refused"),
        (lambda: bubbles.bubble("1f1b", 2.5, 8), "stages: 2.5 is refused; .*: 2 and 3"),
        (lambda: bubbles.bubble("1f1b", float("nan"), 8), "stages: nan is refused"),
        (lambda: bubbles.bubble("1f1b", 4, [8, 8.5]), "microbatches: 8.5 is refused; .*: 8 and 9"),
        (lambda: bubbles.bubble("1f1b", 4, 0), "microbatches: 0 is refused"),
        (lambda: bubbles.bubble("interleaved", 4, 8, chunks=0), "chunks: 0 is refused"),
        (lambda: bubbles.bubble("1f1b", 4, 8, forward=-1), "forward: -1 is refused"),
        (lambda: algorithms.time("ring", -1, 8, 1.0), "nbytes: -1 is refused"),
        (lambda: algorithms.time("ring", 1, 8, 0.0), "bandwidth: 0 is refused; allowed: above 0"),
        (lambda: algorithms.time("ring", 1, 8, 1.0, -1), "latency: -1 is refused"),
        (lambda: algorithms.time("ring", 1, 7.5, 1.0), "ranks: 7.5 is refused; .*: 7 and 8"),
        (lambda: algorithms.time(3, 1, 8, 1.0), "algorithm: 3 is refused; allowed: "),  # type: ignore[arg-type]
        (lambda: memory.model_states(-1), "params: -1 is refused"),
        (lambda: memory.model_states(float("nan")), "params: nan is refused"),
        (lambda: memory.model_states(1, 0, 0), "data_parallel: 0 is refused"),
        (lambda: memory.model_states(1, expert_share=2), "expert_share: 2 is refused"),
        (lambda: memory.model_states(1, 5), "zero: 5 is not a ZeRO stage"),
        (lambda: memory.bytes_moved(-1), "params: -1 is refused"),
        (lambda: routing.dispatch(-1, 2, Group(8), NODE), "token_bytes: -1 is refused"),
        (lambda: routing.dispatch(1, 2, Group(8), NODE, padding=0), "padding: 0 is refused"),
        (
            lambda: expert_parallel.bound(MOE, Ideal(1e15, NODE), 8, capacity=-1),
            "capacity: -1 is refused; allowed: above 0",
        ),
        (
            lambda: expert_parallel.bound(MOE, Ideal(1e15, NODE), 8, imbalance=0.5),
            "imbalance: 0.5 is refused; allowed: 1 and more",
        ),
    ],
)
def test_bad_numbers_are_named(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()  # type: ignore[operator]


def test_lists_are_arrays_to_every_formula() -> None:
    assert bubbles.bubble("1f1b", [2, 4], [8, 8]).ratio.tolist() == [1 / 8, 3 / 8]
    assert algorithms.time("ring", 1.0, [1, 2], 1.0).tolist() == [0.0, 1.0]
    assert memory.model_states([1.0, 2.0]).total.tolist() == [16.0, 32.0]  # type: ignore[arg-type]


class TestPieces:
    """Long sweeps are cut and joined."""

    def test_shared_parts_stay_shared(self) -> None:
        """One array in two places is copied once, and a constant is not touched."""

        @pointwise
        def twice(x: np.ndarray) -> tuple[dict[str, object], str, float]:
            square = x * x
            return {"a": square, "b": square}, "text", 2.0

        x = np.arange(3.0 * BLOCK)
        parts, text, number = twice(x)
        np.testing.assert_array_equal(parts["a"], x * x)
        assert parts["a"] is parts["b"]
        assert (text, number) == ("text", 2.0)

    def test_grids_and_single_points_are_left_alone(self) -> None:
        calls: list[tuple[int, ...]] = []

        @pointwise
        def seen(x: np.ndarray, y: float = 1.0) -> np.ndarray:
            calls.append(np.shape(x))
            return x * y

        assert seen(np.ones((BLOCK + 1, 2))).shape == (BLOCK + 1, 2)
        assert seen(np.ones(1), np.ones((2, 1))).shape == (2, 1)
        assert seen(2.0) == 2.0
        assert calls == [(BLOCK + 1, 2), (1,), ()]

    def test_an_error_in_a_later_piece_is_raised(self) -> None:
        sizes = np.full(BLOCK + 2, 8.0)
        sizes[-1] = 7.5
        with pytest.raises(ValueError, match=r"ranks: 7\.5 is refused"):
            algorithms.time("ring", 1.0, sizes, 1.0)
