"""Sharding: notation, bytes per device, and the collectives between layouts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roofline.sharding import Sharding, matmul, parse, reshard

SIZES = {"I": 128, "J": 2048, "K": 64}
MESH = {"X": 8, "Y": 2}


def moves(before: str, after: str) -> list[str]:
    return [move.op.name if move.op else "slice" for move in reshard(parse(before), parse(after))]


@pytest.mark.parametrize(
    ("text", "again"),
    [
        ("A[I_X, J]{U_Y}", None),
        ("A[I_XY, J]", None),
        ("A[I, J]", None),
        ("Win[D_X,F_Y]", "Win[D_X, F_Y]"),
        ("A[ I_{X} , J ] { U_{YZ} }", "A[I_X, J]{U_YZ}"),
        ("A[I_{dp,tp}, J_pp]", "A[I_{dp,tp}, J_{pp}]"),
        ("[I_X]", None),
    ],
)
def test_notation_is_read_and_written(text: str, again: str | None) -> None:
    """How to Scale Your Model, "Sharded Matrices", notation."""
    assert str(parse(text)) == (again or text)
    assert parse(str(parse(text))) == parse(text)


@pytest.mark.parametrize("text", ["A", "A[I_X", "A[I_X_Y]", "A[I; J]", "A[I]{V_X}"])
def test_what_is_no_sharding_is_refused(text: str) -> None:
    """With the form expected."""
    with pytest.raises(ValueError, match="sharding: "):
        parse(text)


def test_an_axis_is_used_once() -> None:
    """A[I_X, J_X] is forbidden: X has been spent ("Sharded Matrices", notation)."""
    with pytest.raises(ValueError, match="mesh axis X is used twice"):
        parse("A[I_X, J_X]")
    with pytest.raises(ValueError, match="mesh axis X is used twice"):
        parse("A[I_X, J]{U_X}")
    with pytest.raises(ValueError, match="dims must differ"):
        parse("A[I, I]")


@pytest.mark.parametrize(
    ("text", "device", "mesh"),
    [
        ("A[I_X, J]", 128 * 2048 / 8, 128 * 2048 * 2),
        ("A[I_XY, J]", 128 * 2048 / 16, 128 * 2048),
        ("A[I, J]", 128 * 2048, 128 * 2048 * 16),
        ("A[I, J_X]{U_Y}", 128 * 2048 / 8, 128 * 2048 * 2),
    ],
)
def test_bytes_on_a_device_and_on_all(text: str, device: float, mesh: float) -> None:
    """int8[128, 2048] on a mesh X=8, Y=2: I_XY holds 16 KiB a device and has no replicas."""
    array = parse(text)
    assert array.bytes_per_device(SIZES, MESH, 1) == device
    assert array.bytes_on_mesh(SIZES, MESH, 1) == mesh


def test_sizes_that_do_not_divide_or_are_missing_are_refused() -> None:
    """Naming the dim or the axis."""
    with pytest.raises(ValueError, match="I = 12 does not divide into 8 shards"):
        parse("A[I_X]").bytes_per_device({"I": 12}, MESH)
    with pytest.raises(ValueError, match="mesh: nothing is given for Z"):
        parse("A[I_Z]").bytes_per_device(SIZES, MESH)
    with pytest.raises(ValueError, match="sizes: nothing is given for B"):
        parse("A[B]").bytes_per_device(SIZES, MESH)
    with pytest.raises(ValueError, match="has no dim 'Q'; it has I, J"):
        parse("A[I, J]").split("Q")


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("A[I, J]{U_X}", "A[I, J]", ["all-reduce"]),
        ("A[I, J]{U_X}", "A[I_X, J]", ["reduce-scatter"]),
        ("A[I_X, J]", "A[I, J]", ["all-gather"]),
        ("A[I_X, J]", "A[I, J_X]", ["all-to-all"]),
        ("A[I, J]", "A[I_X, J]", ["slice"]),
        ("A[I_X, J]", "A[I_X, J]", []),
        ("A[I_XY, J]", "A[I, J]", ["all-gather", "all-gather"]),
        ("A[I_XY, J]", "A[I_X, J_Y]", ["all-to-all"]),
        ("A[I, J]{U_XY}", "A[I_X, J]", ["reduce-scatter", "all-reduce"]),
        ("A[I_X, J]", "A[I_Y, J]", ["all-gather", "slice"]),
        ("A[I_X, J]{U_Y}", "A[I, J_Y]", ["reduce-scatter", "all-gather"]),
    ],
)
def test_each_change_of_layout_is_one_collective(
    before: str, after: str, expected: list[str]
) -> None:
    """How to Scale Your Model, "Sharded Matrices", the four collectives; the cheapest order."""
    assert moves(before, after) == expected
    if expected:
        assert reshard(parse(before), parse(after))[-1].after == parse(after)


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("A[I, J]", "A[I, J]{U_X}", "replicated cannot become unreduced"),
        ("A[I_X, J]", "A[I, J]{U_X}", "I cannot become unreduced"),
        ("A[I, J]", "A[J, I]", "dims differ"),
        ("A[I_XY, J]", "A[I_YX, J]", "reorder"),
        ("A[I_XY, J]", "A[I_Y, J]", "reorder"),
    ],
)
def test_changes_that_no_collective_makes_are_refused(before: str, after: str, words: str) -> None:
    """Partial sums cannot be made; only the innermost axis comes or goes."""
    with pytest.raises(ValueError, match=words):
        moves(before, after)


def test_bytes_of_a_move_are_those_of_the_whole_array_of_a_group() -> None:
    """V: what an all-gather ends with, what every rank of an all-reduce holds."""

    def volume(before: str, after: str) -> float:
        (move,) = reshard(parse(before), parse(after))
        return move.nbytes(SIZES, MESH, 1)

    whole = 128 * 2048
    assert volume("A[I_X, J]", "A[I, J]") == whole
    assert volume("A[I_X, J_Y]", "A[I, J_Y]") == whole / 2
    assert volume("A[I, J]{U_X}", "A[I, J]") == whole
    assert volume("A[I, J_Y]{U_X}", "A[I_X, J_Y]") == whole / 2
    assert volume("A[I_X, J]", "A[I, J_X]") == whole
    assert volume("A[I, J]", "A[I_X, J]") == 0


@pytest.mark.parametrize(
    ("left", "right", "case", "gathers", "result"),
    [
        ("A[I_X, J]", "B[J, K_Y]", 1, [], "C[I_X, K_Y]"),
        ("A[I, J]", "B[J, K]", 1, [], "C[I, K]"),
        ("A[I, J_X]", "B[J, K]", 2, ["A"], "C[I, K]"),
        ("A[I, J]", "B[J_X, K]", 2, ["B"], "C[I, K]"),
        ("A[I, J_X]", "B[J_Y, K]", 2, ["A", "B"], "C[I, K]"),
        ("A[I, J_X]", "B[J, K_X]", 2, ["A"], "C[I, K_X]"),
        ("A[I, J_X]", "B[J_X, K]", 3, [], "C[I, K]{U_X}"),
        ("A[I_Y, J_X]", "B[J_X, K]", 3, [], "C[I_Y, K]{U_X}"),
    ],
)
def test_the_cases_of_a_sharded_matmul(
    left: str, right: str, case: int, gathers: list[str], result: str
) -> None:
    """How to Scale Your Model, "Sharded Matrices", cases 1 to 3."""
    done = matmul(parse(left), parse(right))
    assert done.case == case
    assert [move.before.name for move in done.gathers] == gathers
    assert done.result == parse(result)


def test_one_axis_on_both_dims_of_the_result_is_refused() -> None:
    """Case 4: A[I_X, J] · B[J, K_X] has no C[I_X, K_X]; gather one of them first."""
    with pytest.raises(ValueError, match="all-gather one of them along X first"):
        matmul(parse("A[I_X, J]"), parse("B[J, K_X]"))
    assert str(matmul(parse("A[I, J]"), parse("B[J, K_X]")).result) == "C[I, K_X]"


def test_matmuls_that_mean_nothing_are_refused() -> None:
    """Partial sums are added before they are multiplied, and something is summed over."""
    with pytest.raises(ValueError, match="holds partial sums"):
        matmul(parse("A[I, J]{U_X}"), parse("B[J, K]"))
    with pytest.raises(ValueError, match="no dim in common"):
        matmul(parse("A[I]"), parse("B[K]"))


states = st.sampled_from(["I", "J", "replicated", "unreduced"])


@given(x=states, y=states, to_x=states, to_y=states)
def test_every_layout_of_two_axes_is_reached_or_refused(
    x: str, y: str, to_x: str, to_y: str
) -> None:
    """Moves chain up, and end where they should."""

    def layout(a: str, b: str) -> Sharding:
        return parse("A[I, J]").moved("X", a).moved("Y", b)

    before, after = layout(x, y), layout(to_x, to_y)
    try:
        steps = reshard(before, after)
    except ValueError:
        partial = any("unreduced" == b != a for a, b in ((x, to_x), (y, to_y)))
        swap = (x, y) == (to_y, to_x)  # a permutation of shards, none of the four collectives
        assert partial or swap or (x == y and x in "IJ") or (to_x == to_y and to_x in "IJ")
        return
    states_ = [before, *(step.after for step in steps)]
    assert [step.before for step in steps] == states_[:-1]
    assert states_[-1].dims == after.dims
    assert set(states_[-1].unreduced) == set(after.unreduced)
