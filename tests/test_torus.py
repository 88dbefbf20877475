"""Tori: the book's numbers, every message followed link by link, and what always holds."""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roofline.collectives import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    BROADCAST,
    REDUCE_SCATTER,
    Collective,
)
from roofline.strategies import data_parallel, tensor_parallel
from roofline.torus import Axis, Torus, dcn_egress, link_bytes, machine, send, time
from roofline.workload import Workload

V5E, V5P = 45e9, 90e9
KNOWN = [ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE, ALL_TO_ALL]

axes = st.builds(Axis, st.integers(1, 9), st.just(V5E), st.booleans())
tori = st.lists(axes, min_size=1, max_size=3).map(lambda found: Torus(tuple(found)))


def paths(axis: Axis, start: int, end: int) -> list[tuple[list[int], int, float]]:
    """Ways from start to end: positions left, direction, share of the message."""
    size = int(axis.size)
    if not axis.wraps:
        step = 1 if end > start else -1
        return [(list(range(start, end, step)), step, 1.0)] if end != start else []
    ahead, behind = (end - start) % size, (start - end) % size
    right = [(start + i) % size for i in range(ahead)]
    left = [(start - i) % size for i in range(behind)]
    if not axis.bidirectional or ahead < behind:
        return [(right, 1, 1.0)]
    if behind < ahead:
        return [(left, -1, 1.0)]
    return [(right, 1, 0.5), (left, -1, 0.5)] if ahead else []


def busiest_link_of_exchange(torus: Torus) -> float:
    """All-to-all of one byte a pair, axis after axis, every crossing counted; bytes, one link."""
    load: Counter[tuple[int, tuple[int, ...], int]] = Counter()
    ranges = [range(int(axis.size)) for axis in torus.axes]
    for source, target in itertools.product(itertools.product(*ranges), repeat=2):
        at = list(source)
        for dim, axis in enumerate(torus.axes):
            for places, direction, share in paths(axis, at[dim], target[dim]):
                for place in places:
                    load[dim, (*at[:dim], place, *at[dim + 1 :]), direction] += share
            at[dim] = target[dim]
    return max(load.values(), default=0.0)


def busiest_link_of_gather(axis: Axis) -> float:
    """All-gather of one byte a chip, passed on from neighbour to neighbour, one link's bytes."""
    size = int(axis.size)
    load: Counter[tuple[int, int]] = Counter()
    for chip in range(size):
        if not axis.wraps:
            reach = {1: size - 1 - chip, -1: chip}
        elif axis.bidirectional:
            reach = {1: (size - 1) / 2, -1: (size - 1) / 2}  # the last of an even ring in halves
        else:
            reach = {1: size - 1, -1: 0}
        for direction, hops in reach.items():
            for hop in range(int(np.ceil(hops))):
                load[(chip + direction * hop) % size, direction] += min(1.0, hops - hop)
    return max(load.values(), default=0.0)


kinds = st.sampled_from([(True, True), (True, False), (False, True)])


@given(size=st.integers(1, 12), kind=kinds)
def test_gathers_are_counted_link_by_link(size: int, kind: tuple[bool, bool]) -> None:
    axis = Axis(size, V5E, *kind)
    for op, passes in ((ALL_GATHER, 1), (REDUCE_SCATTER, 1), (ALL_REDUCE, 2)):
        assert link_bytes(op, size, axis) == pytest.approx(passes * busiest_link_of_gather(axis))


@given(size=st.integers(1, 12), kind=kinds)
def test_exchanges_are_counted_link_by_link(size: int, kind: tuple[bool, bool]) -> None:
    axis = Axis(size, V5E, *kind)
    counted = busiest_link_of_exchange(Torus((axis,)))
    assert link_bytes(ALL_TO_ALL, size**2, axis) == pytest.approx(counted)


@pytest.mark.parametrize("shape", [(2, 3), (4, 4), (4, 5, 2), (3, 1)])
@pytest.mark.parametrize("wraps", [True, False])
def test_exchanges_over_several_axes(shape: tuple[int, ...], wraps: bool) -> None:
    torus = Torus(tuple(Axis(size, 1.0, wraps) for size in shape))
    counted = busiest_link_of_exchange(torus)
    assert time(ALL_TO_ALL, torus.chips**2, torus).transfer == pytest.approx(counted)


@given(size=st.integers(1, 12), kind=kinds)
def test_hops_are_the_longest_way(size: int, kind: tuple[bool, bool]) -> None:
    """The farthest chip from any, walking link by link."""
    axis = Axis(size, V5E, *kind)
    walked = [
        min((len(way) for way, _, _ in paths(axis, start, end)), default=0)
        for start, end in itertools.product(range(size), repeat=2)
    ]
    asked = [axis.distance(*pair) for pair in itertools.product(range(size), repeat=2)]
    assert asked == walked
    assert axis.hops == max(walked)


def test_gather_of_the_book() -> None:
    """How to Scale Your Model, "Sharded Matrices", quiz 2: bf16 [2048, 8192] over 4 v5e chips."""
    nbytes = 2 * 2048 * 8192
    ring, line = (Torus((Axis(4, V5E, wraps),)) for wraps in (True, False))
    assert time(ALL_GATHER, nbytes, ring, form="rough").seconds == pytest.approx(372.8e-6, rel=1e-3)
    assert time(ALL_GATHER, nbytes, line).seconds == pytest.approx(559e-6, rel=1e-3)
    small = time(ALL_GATHER, 2 * 256 * 256, line, hop_latency=1e-6)
    assert small.seconds == pytest.approx(3e-6)
    assert small.latency_bound


def test_gathers_over_sharded_arrays_and_two_axes() -> None:
    """The same chapter, question 2: 23, 46 and, of one shard, 11.65 µs on a v4p."""
    nbytes, axis = 2 * 1024 * 4096, Axis(4, V5E)
    one, both = Torus((axis,)), Torus((axis, axis))
    for op, torus, sharded, seconds in (
        (ALL_GATHER, one, 4, 23.3e-6),
        (ALL_GATHER, both, 1, 46.6e-6),
        (ALL_REDUCE, one, 16, 11.65e-6),
    ):
        found = time(op, nbytes, torus, sharded=sharded, form="rough").seconds
        assert found == pytest.approx(seconds, rel=1e-3)


def test_an_exchange_costs_a_quarter_of_a_gather() -> None:
    """The same chapter, question 10: a half one way round, a quarter both ways."""
    for bidirectional, ratio in ((False, 1 / 2), (True, 1 / 4)):
        ring = Torus((Axis(1024, V5E, bidirectional=bidirectional),))
        exchange, gather = (time(op, 1e9, ring).seconds for op in (ALL_TO_ALL, ALL_GATHER))
        assert exchange / gather == pytest.approx(ratio, rel=2e-3)


def test_a_message_from_corner_to_corner() -> None:
    """How to Scale Your Model, "TPUs", question 5: 6 hops in a 4 x 4 slice, two ports, 192 µs."""
    slice_ = Torus((Axis(4, V5E, wraps=False),) * 2)
    moves = [axis.distance(0, 3) for axis in slice_.axes]
    found = send(2 * 8 * 128 * 8192, moves, slice_, hop_latency=1e-6)
    assert found == pytest.approx(192.4e-6, rel=1e-3)
    assert send(1e9, (0, 0), slice_) == 0


def test_pods_of_the_book() -> None:
    """How to Scale Your Model, "TPUs", question 2: 32 hosts in a v5e pod, 2240 in a v5p pod."""
    assert Torus((Axis(16, V5E),) * 2).hosts(8) == 32
    assert Torus((Axis(16, V5P), Axis(20, V5P), Axis(28, V5P))).hosts(4) == 2240


@pytest.mark.parametrize(("count", "tokens"), [(1, 2550), (2, 1275), (3, 850)])
def test_tokens_per_chip_of_a_v5p(count: int, tokens: float) -> None:
    """How to Scale Your Model, "Training": 2550 tokens a chip over one axis, 850 over three."""
    torus = Torus((Axis(16, V5P),) * count)
    found = data_parallel.bound(
        Workload(1, 8192, 28672), machine(torus, 459e12), torus.chips, form="rough"
    )
    assert found.threshold.needed == pytest.approx(tokens)


def test_tensor_parallelism_over_one_axis() -> None:
    """How to Scale Your Model, "Training": F = 50k allows about 19-way on a v5p."""
    work = Workload(1024, 8192, 50e3)
    (limit,) = tensor_parallel.degree_limits(work, machine(Torus((Axis(16, V5P),)), 459e12))
    assert limit.rough == pytest.approx(19.6, abs=0.01)


def test_slices_meet_over_the_data_centre_network() -> None:
    """How to Scale Your Model, "Training", across pods: 6.25 GB/s a chip, 73,440 tokens a pod."""
    torus = Torus((Axis(16, V5P),) * 3)
    pods = machine(torus, 459e12, slices=4, egress=dcn_egress(25e9, 4))
    work = Workload(1, 8192, 28672)
    found = data_parallel.bound(work, pods, 4, model_parallel=torus.chips, form="rough")
    assert found.threshold.needed * torus.chips == pytest.approx(73440)


@given(torus=tori, nbytes=st.floats(1, 1e12), op=st.sampled_from(KNOWN))
def test_wraparound_and_faster_links_never_hurt(
    torus: Torus, nbytes: float, op: Collective
) -> None:
    before = time(op, nbytes, torus, hop_latency=1e-6).seconds
    closed = Torus(tuple(Axis(axis.size, axis.link) for axis in torus.axes))
    faster = Torus(tuple(Axis(axis.size, 2 * axis.link, axis.wraps) for axis in torus.axes))
    for better in (closed, faster):
        assert time(op, nbytes, better, hop_latency=1e-6).seconds <= before * (1 + 1e-12)
    assert (before == 0) == (torus.chips == 1)


@given(torus=tori, nbytes=st.floats(1, 1e12))
def test_gathers_take_as_long_as_the_bytes_that_must_come_in(torus: Torus, nbytes: float) -> None:
    """Each chip lacks (N-1)/N of the array; the corner of a grid has one link an axis."""
    chips = int(torus.chips)
    links = sum(2 if axis.wraps else 1 for axis in torus.axes if axis.size > 1)
    found = time(ALL_GATHER, nbytes, torus)
    assert found.transfer * max(links, 1) * V5E == pytest.approx(nbytes * (chips - 1) / chips)
    assert found.seconds <= time(ALL_GATHER, nbytes, torus, form="rough").seconds


@given(op=st.sampled_from(KNOWN), wraps=st.booleans(), other=axes)
def test_an_array_is_its_points(op: Collective, wraps: bool, other: Axis) -> None:
    sizes, nbytes = np.arange(1.0, 9), np.geomspace(1, 1e9, 8)
    torus = Torus((Axis(sizes, V5E, wraps), other))
    at_once = time(op, nbytes, torus, hop_latency=1e-6).seconds
    one_by_one = [
        time(op, v, Torus((Axis(x, V5E, wraps), other)), hop_latency=1e-6).seconds
        for x, v in zip(sizes, nbytes, strict=True)
    ]
    np.testing.assert_allclose(at_once, one_by_one)


def test_what_a_torus_cannot_do() -> None:
    with pytest.raises(ValueError, match="broadcast"):
        time(BROADCAST, 1, Torus((Axis(4, V5E),)))
    with pytest.raises(ValueError, match="at least one chip"):
        Axis(0, V5E)
    with pytest.raises(ValueError, match="bidirectional"):
        Axis(4, V5E, wraps=False, bidirectional=False)
    with pytest.raises(ValueError, match="moves: 1"):
        send(1, (1,), Torus((Axis(4, V5E),) * 2))
