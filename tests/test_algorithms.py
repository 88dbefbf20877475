"""All-reduce algorithms in one domain, against byte counts of the algorithms carried out."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roofline import algorithms
from roofline.collectives import ALL_REDUCE, collective
from roofline.groups import Group
from roofline.machine import Tier
from tests import simulate

ANY = [row.name for row in algorithms.ALGORITHMS if not row.powers_of_two]
POWERS = [row.name for row in algorithms.ALGORITHMS if row.powers_of_two]


@pytest.mark.parametrize("n", [1, 2, 4, 8])
@pytest.mark.parametrize("name", simulate.ALL_REDUCE)
def test_bytes_steps_and_messages_are_those_of_the_algorithm_carried_out(name: str, n: int) -> None:
    """Brute force on 48 bytes a rank; 1 GB over 450 GB/s differs only by the factor."""
    wires, right = simulate.all_reduce(simulate.ALL_REDUCE[name], n, 48)
    assert right
    assert algorithms.time(name, 48, n, 1.0) == pytest.approx(wires.serial)
    assert algorithms.traffic(name, 48, n) == pytest.approx(wires.busiest)
    assert algorithms.steps(name, n) == wires.rounds
    assert algorithms.messages(name, n) == wires.messages


@pytest.mark.parametrize("n", [3, 5, 6])
@pytest.mark.parametrize("name", ["central server", "central rank", "chain", "ring"])
def test_odd_ranks_too(name: str, n: int) -> None:
    """Brute force where no power of two is needed."""
    wires, right = simulate.all_reduce(simulate.ALL_REDUCE[name], n, 30)
    assert right
    assert algorithms.time(name, 30, n, 1.0) == pytest.approx(wires.serial)
    assert algorithms.messages(name, n) == wires.messages


@pytest.mark.parametrize("n", range(1, 20))
def test_two_trees_move_at_most_twice_the_array(n: int) -> None:
    """Sanders, Speck, Träff 2009: inner rank of one tree, leaf of the other; reached from 4 on."""
    wires, right = simulate.all_reduce(simulate.two_trees, n, 16)
    bound = algorithms.traffic("double binary tree", 16, n)
    assert right
    assert wires.busiest <= bound
    assert n < 4 or wires.busiest == bound
    assert algorithms.messages("double binary tree", n) == wires.messages


@pytest.mark.parametrize(
    ("name", "milliseconds"),
    [
        ("central server", 35.6),
        ("chain", 31.1),
        ("everyone to everyone", 15.6),
        ("butterfly", 6.67),
        ("halving-doubling", 3.89),
        ("ring", 3.89),
        ("in-network", 2.22),
    ],
)
def test_a_gigabyte_on_eight_gpus_of_450_gigabytes_a_second(name: str, milliseconds: float) -> None:
    """By hand: 2nV/W, 2(n-1)V/W, (n-1)V/W, log2(n)V/W, 2V(n-1)/(nW) twice, V/W."""
    assert algorithms.time(name, 1e9, 8, 450e9) * 1e3 == pytest.approx(milliseconds, abs=0.05)


def test_latency_of_a_ring_and_of_doubling() -> None:
    """(N-1)(t0 + V/(NW)) = 8.94 us, log2(N) t0 + V(N-1)/(NW) = 4.94 us for 1 MB, 8 GPUs, 1 us."""
    ring = algorithms.time("ring all-gather", 1e6, 8, 450e9, 1e-6)
    doubling = algorithms.time("doubling all-gather", 1e6, 8, 450e9, 1e-6)
    assert ring * 1e6 == pytest.approx(8.944444, rel=1e-6)
    assert doubling * 1e6 == pytest.approx(4.944444, rel=1e-6)


@pytest.mark.parametrize("name", POWERS)
def test_other_than_powers_of_two_are_refused_with_the_nearest(name: str) -> None:
    """A butterfly needs a partner for everyone."""
    with pytest.raises(ValueError, match=r"got 12; the nearest are 8 and 16"):
        algorithms.time(name, 1e9, np.array([4, 12, 6]), 450e9)


def test_unknown_names_and_empty_groups_are_refused() -> None:
    """The message names the nearest choice."""
    with pytest.raises(ValueError, match=r"algorithm: 'rign' is not one; the nearest is ring"):
        algorithms.time("rign", 1e9, 8, 450e9)
    with pytest.raises(ValueError, match="ranks: 0 is refused"):
        algorithms.time("ring", 1e9, [8, 0], 450e9)


@pytest.mark.parametrize("name", [row.name for row in algorithms.ALGORITHMS])
def test_one_rank_is_free(name: str) -> None:
    """Nobody to talk to."""
    assert algorithms.time(name, 1e9, 1, 450e9, 1e-6) == 0
    assert algorithms.messages(name, 1) == 0


@given(exponent=st.integers(1, 10), nbytes=st.floats(0, 1e12))
def test_none_but_switches_that_add_beat_the_ring_and_none_takes_fewer_steps_for_free(
    exponent: int, nbytes: float
) -> None:
    """2(n-1)/n is the least that a rank can send (Patarasuk and Yuan 2009)."""
    n = 2**exponent
    ring = algorithms.time("ring", nbytes, n, 1.0)
    for row in algorithms.ALGORITHMS:
        if row.operation == "all-reduce" and not row.name.startswith("in-network"):
            assert algorithms.time(row, nbytes, n, 1.0) >= ring * (1 - 1e-12)
    assert nbytes <= algorithms.time("in-network as measured", nbytes, n, 1.0) <= ring or n == 2


@given(n=st.integers(1, 256), nbytes=st.floats(0, 1e12), latency=st.floats(0, 1e-3))
def test_rings_here_are_rings_there(n: int, nbytes: float, latency: float) -> None:
    """A machine of one tier: the two modules agree."""
    there = collective(
        ALL_REDUCE, nbytes, Group(n), [Tier(256, 450e9, latency=latency)], latency=True
    )
    here = algorithms.time("ring", nbytes, n, 450e9, latency)
    assert here == pytest.approx(float(there.seconds), rel=1e-12, abs=1e-30)


@pytest.mark.parametrize("name", ANY + POWERS)
def test_arrays_are_the_scalars_side_by_side(name: str) -> None:
    """One code path for one point and for many."""
    ranks = np.array([1, 2, 4, 64, 1024])
    many = algorithms.time(name, 1e9, ranks, 450e9, 1e-6)
    single = [algorithms.time(name, 1e9, int(n), 450e9, 1e-6) for n in ranks]
    np.testing.assert_array_equal(many, single)
    assert all(math.isfinite(value) for value in many)


def test_every_algorithm_says_where_it_is_from() -> None:
    """Rows are data: names differ, memory and source are given."""
    assert len(algorithms.BY_NAME) == len(algorithms.ALGORITHMS)
    assert all(row.memory and row.source.where for row in algorithms.ALGORITHMS)


def test_a_million_points_complete() -> None:
    """A sweep is one call."""
    ranks = 2.0 ** (np.arange(1_000_000) % 12)
    assert np.isfinite(algorithms.time("halving-doubling", 1e9, ranks, 450e9, 1e-6)).all()
