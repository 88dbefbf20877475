"""Groups: which tiers a group spans and with whom it shares an uplink."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roofline.groups import Group, aligned, crossed, spans
from roofline.machine import Tier

SUPERPOD = (
    Tier(8, 450e9, "node", transit=False),
    Tier(32, 400e9, "leaf"),
    Tier(4, 12.8e12, "spine"),
)
powers = st.integers(0, 5).map(lambda exponent: 2**exponent)


def degrees(group: Group) -> list[float]:
    return [float(reach.degree) for reach in spans(group, SUPERPOD)]


def test_tensor_and_data_parallel_groups_of_a_superpod() -> None:
    """The 32-worker example of Hugging Face's 3D parallelism guide, on nodes of 8."""
    assert degrees(Group(8)) == [8, 1, 1]
    assert degrees(Group(16, stride=8)) == [1, 16, 1]
    assert degrees(Group(128, stride=8)) == [1, 32, 4]
    assert degrees(Group(2, stride=4)) == [2, 1, 1]
    assert degrees(Group(4, stride=256)) == [1, 1, 4]
    assert crossed(Group(128, stride=8), SUPERPOD) == ["leaf", "spine"]


def test_eight_groups_leave_a_node_together() -> None:
    """One per local rank: each has an eighth of the node's uplink."""
    sharing = [float(reach.sharing) for reach in spans(Group(16, stride=8), SUPERPOD)]
    assert sharing == [1, 8, 8]
    alone = spans(Group(16, stride=8, alone=True), SUPERPOD)
    assert [float(reach.sharing) for reach in alone] == [1, 1, 1]


@given(size=powers, stride=powers)
def test_degrees_multiply_to_the_size_of_an_aligned_group(size: int, stride: int) -> None:
    """Counting: children of children of children."""
    group = Group(size, stride)
    assert aligned(group, SUPERPOD)
    assert np.prod(degrees(group)) == size


@given(size=st.lists(st.integers(1, 100), min_size=1, max_size=5), stride=st.integers(1, 10))
def test_arrays_are_the_scalars_side_by_side(size: list[int], stride: int) -> None:
    """One code path for one point and for many."""
    many = spans(Group(np.array(size), stride), SUPERPOD)
    for i, one in enumerate(size):
        for reach, single in zip(many, spans(Group(one, stride), SUPERPOD), strict=True):
            assert np.broadcast_to(reach.degree, len(size))[i] == single.degree
            assert np.broadcast_to(reach.members, len(size))[i] == single.members
        assert aligned(Group(np.array(size), stride), SUPERPOD)[i] == aligned(
            Group(one, stride), SUPERPOD
        )


@pytest.mark.parametrize(
    ("group", "fits"),
    [
        (Group(8), True),
        (Group(4, 2), True),
        (Group(16), True),
        (Group(12), False),
        (Group(3, 3), False),
        (Group(2, 16), True),
        (Group(6), False),
    ],
)
def test_aligned_groups_fill_units_or_equal_parts_of_them(group: Group, fits: bool) -> None:
    """12 ranks on nodes of 8 fill one and a half; after 6 the next 6 straddle two nodes."""
    assert bool(aligned(group, SUPERPOD)) is fits


def test_one_rank_needs_no_machine() -> None:
    """A laptop has no tiers."""
    assert spans(Group(1), ()) == []


@pytest.mark.parametrize(
    ("group", "words"),
    [
        (Group(0), ["got 0 ranks"]),
        (Group(4, 0), ["0 apart"]),
        (Group(float("nan")), ["at least one rank"]),
        (Group(2048), ["2,048 ranks", "1,024"]),
        (Group(np.array([8, 256, 512]), np.array([1, 8, 8])), ["256 ranks", "2,048 GPUs"]),
    ],
)
def test_what_does_not_fit_is_named(group: Group, words: list[str]) -> None:
    """The first point of a sweep that is too large, not a mixture of several."""
    with pytest.raises(ValueError, match="group") as caught:
        spans(group, SUPERPOD)
    assert all(word in str(caught.value) for word in words)
