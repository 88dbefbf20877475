"""Placement: groups of ranks by brute force over coordinates, and the pictures of the notes."""

from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roofline.machine import Tier
from roofline.placement import (
    Crossing,
    Mesh,
    example_4,
    example_32,
    mesh,
    placed,
    unit_of,
)
from roofline.strategies.combined import axis_strides

EIGHT_OF_FOUR = (Tier(4, 300e9, "node"), Tier(8, 100e9, "network"))

layouts = st.lists(st.integers(1, 5), min_size=1, max_size=5).map(
    lambda degrees: Mesh(tuple("abcde"[: len(degrees)]), tuple(degrees))
)


@given(layouts)
def test_a_group_differs_in_one_coordinate(layout: Mesh) -> None:
    """Brute force: write every rank's coordinates down, and sort ranks by those of other axes."""
    places = [place[::-1] for place in product(*map(range, layout.degrees[::-1]))]
    for rank, place in enumerate(places):
        assert layout.rank(**dict(zip(layout.axes, place, strict=True))) == rank
    coordinates = layout.coordinates(np.arange(layout.size))
    for i, axis in enumerate(layout.axes):
        assert coordinates[axis].tolist() == [place[i] for place in places]
        wanted: dict[tuple[int, ...], list[int]] = {}
        for rank, place in enumerate(places):
            wanted.setdefault(place[:i] + place[i + 1 :], []).append(rank)
        assert sorted(layout.groups(axis).tolist()) == sorted(wanted.values())


@given(layouts)
def test_strides_are_those_of_combined_strategies(layout: Mesh) -> None:
    """The two places that know what a stride is agree."""
    degrees = dict(zip(layout.axes, layout.degrees, strict=True))
    strides = axis_strides(degrees, layout.axes)  # type: ignore[arg-type]
    assert {axis: layout.stride(axis) for axis in layout.axes} == strides


@given(layouts, st.sampled_from([1, 2, 3, 4, 8]))
def test_crossings_by_brute_force(layout: Mesh, node: int) -> None:
    """Where groups are aligned, a tier's children are what the members' units count up to."""
    nodes = -(-layout.size // node)
    tiers = (Tier(node, 1.0, "node"), Tier(nodes, 1.0, "network"))
    for axis in placed(layout, tiers):
        touched = unit_of(layout.groups(axis.axis), tiers)
        assert axis.units[0] == max(len(set(row)) for row in touched.tolist())
        if axis.aligned:
            inside, between = axis.crossings
            assert between.children == axis.units[0]
            assert inside.children * between.children == axis.degree
            assert axis.crossed == tuple(
                name
                for name, count in (("node", inside.children), ("network", between.children))
                if count > 1
            )


class TestThirtyTwoWorkers:
    """DeepSpeed's picture of 3D parallelism: 32 workers on 8 nodes of 4 GPUs."""

    def test_ranks(self) -> None:
        """rank = pipe * 8 + data * 4 + model."""
        layout = example_32()
        for pipe, data, model in product(range(4), range(2), range(4)):
            assert layout.rank(pipe=pipe, data=data, model=model) == pipe * 8 + data * 4 + model

    def test_groups(self) -> None:
        layout = example_32()
        assert layout.groups("model").tolist() == np.arange(32).reshape(8, 4).tolist()
        assert len(layout.groups("data")) == 16
        assert np.all(np.diff(layout.groups("data")) == 4)
        assert len(layout.groups("pipe")) == 8
        assert layout.groups("pipe")[0].tolist() == [0, 8, 16, 24]

    def test_tensor_groups_are_nodes_and_the_others_leave_them_four_abreast(self) -> None:
        model, data, pipe = placed(example_32(), EIGHT_OF_FOUR)
        assert model.crossings == (Crossing("node", 4, 1), Crossing("network", 1, 1))
        assert data.crossings == (Crossing("node", 1, 1), Crossing("network", 2, 4))
        assert pipe.crossings == (Crossing("node", 1, 1), Crossing("network", 4, 4))
        assert [axis.units[0] for axis in (model, data, pipe)] == [1, 2, 4]
        assert all(axis.aligned for axis in (model, data, pipe))
        assert (model.crossed, data.crossed) == (("node",), ("network",))


def test_two_pipelines_on_four_gpus() -> None:
    """Hugging Face: data parallelism sees GPUs 0 and 1; 0 enlists 2 and 1 enlists 3."""
    layout = example_4()
    assert layout.groups("data").tolist() == [[0, 1], [2, 3]]
    assert layout.groups("pipe").tolist() == [[0, 2], [1, 3]]


def test_a_group_across_the_edge_of_a_node_is_flagged() -> None:
    """Tensor parallelism of 3 on nodes of 4: every fourth group has members in two nodes."""
    tensor, _ = placed(mesh(12, {"tensor": 3, "data": 4}), (Tier(4, 1.0), Tier(3, 1.0)))
    assert not tensor.aligned
    assert tensor.units[0] == 2


def test_one_degree_may_be_left_open() -> None:
    assert mesh(4096, {"tensor": 8, "data": None}).degrees == (8, 512)
    assert mesh(1, {"data": None}).size == 1


@pytest.mark.parametrize(
    ("gpus", "degrees", "message"),
    [
        (48, {"tensor": 8, "data": 4}, "nearest: 32 and 64, or on 48: tensor 12 or data 6"),
        (20, {"tensor": 8, "data": None}, "tensor 8 = 8 does not fill 20 GPUs; the nearest: 16"),
        (4, {"tensor": 8}, "does not fill 4 GPUs; the nearest: 8"),
        (8, {"tensor": 0}, "tensor: 0 is refused"),
        (8, {"tensor": None, "data": None}, "tensor and data: only one"),
    ],
)
def test_degrees_that_do_not_fill(gpus: int, degrees: dict[str, int | None], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mesh(gpus, degrees)


def test_mistakes_are_named() -> None:
    layout = example_32()
    with pytest.raises(ValueError, match="axis: 'expert' is not one; allowed: model, data, pipe"):
        layout.groups("expert")
    with pytest.raises(ValueError, match="rank: 32 is outside the mesh; allowed: 0 to 31"):
        layout.coordinates(32)
    with pytest.raises(ValueError, match="pipe: 4 is outside the axis; allowed: 0 to 3"):
        layout.rank(pipe=4)
    with pytest.raises(ValueError, match="the machine has 4"):
        placed(layout, EIGHT_OF_FOUR[:1])


def test_large_meshes_are_quick() -> None:
    layout = mesh(131072, {"tensor": 8, "pipeline": 16, "data": None})
    axes = placed(layout, (Tier(8, 1.0), Tier(32, 1.0), Tier(512, 1.0)))
    assert prod(axis.degree for axis in axes) == 131072
