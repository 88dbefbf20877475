"""Collectives over a hierarchy: printed answers, byte counts and laws."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roofline.blocks import BLOCK
from roofline.collectives import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    BROADCAST,
    COLLECTIVES,
    GATHER,
    REDUCE_SCATTER,
    SCATTER,
    SEND,
    Collective,
    bandwidth,
    bus_bandwidth,
    collective,
    nccl_size,
    seconds,
    sharded_reduce_rough,
)
from roofline.groups import Group, aligned
from roofline.machine import Ideal, Tier
from tests import simulate

NODE = Tier(8, 450e9, "node", transit=False)
SUPERPOD = (NODE, Tier(32, 400e9, "leaf"), Tier(4, 12.8e12, "spine"))
NVL72 = (Tier(72, 900e9, "rack", transit=False), Tier(8, 3600e9, "leaf"))
DEGREES = (4, 3, 2)

every = pytest.mark.parametrize("op", COLLECTIVES.values(), ids=COLLECTIVES)
operations = st.sampled_from(list(COLLECTIVES.values()))
powers = st.integers(0, 5).map(lambda exponent: 2**exponent)
sizes = st.floats(1.0, 1e12)


def machine(*rates: float, degrees: tuple[int, ...] = DEGREES) -> tuple[Tier, ...]:
    rates = rates or (1.0,) * len(degrees)
    return tuple(
        Tier(degree, rate, str(i), transit=i > 0)
        for i, (degree, rate) in enumerate(zip(degrees, rates, strict=True))
    )


def groups(alone: bool = False) -> list[Group]:
    """Every aligned group on 24 GPUs."""
    pairs = [(n, s) for n in range(1, 25) for s in range(1, 25) if n * s <= 24]
    return [Group(n, s) for n, s in pairs if aligned(Group(n, s), machine())]


@pytest.mark.parametrize("group", groups(), ids=lambda group: f"{group.size}x{group.stride}")
def test_bytes_over_every_uplink_are_those_of_a_real_run(group: Group) -> None:
    """Brute force: shards handed from child to child, pairs sent one by one, siblings too."""
    place = int(group.size), int(group.stride), DEGREES
    gathered = collective(ALL_GATHER, 1.0, group, machine()).by_tier
    exchanged = collective(ALL_TO_ALL, 1.0, group, machine()).by_tier
    assert [float(t) for t in gathered] == pytest.approx(simulate.all_gather_loads(*place))
    loads = simulate.all_to_all_loads(*place, (False, True, True))
    assert [float(t) for t in exchanged] == pytest.approx(loads)


@pytest.mark.parametrize("size", [9, 10, 12, 14, 15])
def test_a_half_filled_node_has_the_most_to_receive(size: int) -> None:
    """Brute force: 9 ranks on nodes of 8 send 8/9 of the array to the ninth, not one half.

    And what the second node receives comes in by the cards of its ranks alone, one of eight each.
    """
    degrees = (8, 2)
    through = tuple(replace(tier, transit=True) for tier in machine(degrees=degrees))
    load = float(collective(ALL_GATHER, 1.0, Group(size), through).by_tier[1])
    assert load == pytest.approx(simulate.all_gather_loads(size, 1, degrees)[1])
    assert load == pytest.approx(8 / size)
    for op in (ALL_GATHER, ALL_TO_ALL):
        once = float(collective(op, 1.0, Group(size), through).by_tier[1])
        cards = float(collective(op, 1.0, Group(size), machine(degrees=degrees)).by_tier[1])
        assert cards == pytest.approx(once * 8 / (size - 8))


def test_whole_superpod_gathers_at_413_gigabytes_a_second() -> None:
    """Scaling book, "GPUs", cross-node collectives: 514e9, 413e9, 17.1e12, so 413e9 at the leaf."""
    group = Group(1024)
    rates = [1e9 / float(t) for t in collective(ALL_GATHER, 1e9, group, SUPERPOD).by_tier]
    assert rates == pytest.approx([514.3e9, 412.9e9, 17.07e12], rel=1e-3)
    assert bandwidth(ALL_GATHER, group, SUPERPOD) == pytest.approx(412.9e9, rel=1e-3)
    assert collective(ALL_GATHER, 1e9, group, SUPERPOD).binding == "leaf"


@pytest.mark.parametrize(
    ("nodes", "binding"), [(2, "node"), (4, "node"), (5, "leaf"), (32, "leaf")]
)
def test_nvlink_binds_up_to_four_nodes(nodes: int, binding: str) -> None:
    """(M-1)/(M 400e9) < 7/(8 450e9) while M < 4.5."""
    assert collective(ALL_GATHER, 1.0, Group(8 * nodes), SUPERPOD).binding == binding


def test_a_rack_of_72_always_binds_at_the_rack() -> None:
    """Scaling book, "GPUs", GB200: 912.7e9."""
    assert bandwidth(ALL_GATHER, Group(576), NVL72) == pytest.approx(912.676e9, rel=1e-6)


def test_all_to_all_on_one_and_two_nodes() -> None:
    """V(N-1)/(N²W) = 243 us on 8 GPUs, V/(4 W_node) = 625 us on two nodes, 1 GB: 2.57 times."""
    one = float(seconds(ALL_TO_ALL, 1e9, Group(8), SUPERPOD))
    two = float(seconds(ALL_TO_ALL, 1e9, Group(16), SUPERPOD))
    assert one * 1e6 == pytest.approx(243.0556, rel=1e-6)
    assert two * 1e6 == pytest.approx(625.0)
    assert two / one == pytest.approx(2.571, rel=1e-3)


@pytest.mark.parametrize(
    ("inner", "milliseconds"), [(1, 2.421875), (8, 2.421875), (256, 0.05859375), (1024, 0.0)]
)
def test_reduction_of_an_array_sharded_over_an_inner_axis(inner: int, milliseconds: float) -> None:
    """V max_i (d̂-1)/d̂ S_i/(max(Y, S_i) W_i), all 1024 GPUs of a SuperPod, 1 GB in all."""
    group = Group(1024 // inner, stride=inner)
    time = seconds(REDUCE_SCATTER, 1e9 / inner, group, SUPERPOD)
    assert float(time) * 1e3 == pytest.approx(milliseconds)


@pytest.mark.parametrize(
    ("tiers", "inner", "milliseconds"),
    [
        (SUPERPOD, [1, 4, 8, 16, 256], [2.5, 2.5, 2.5, 1.25, 0.27777777]),
        (NVL72, [1, 4], [1.11111111, 0.27777777]),
    ],
)
def test_the_rule_for_paper(
    tiers: tuple[Tier, ...], inner: list[int], milliseconds: list[float]
) -> None:
    """max(V/(W_gpu min(Y, D)), V D/(W_node max(D, Y))): on NVL72 a shard axis of 4 does help."""
    time = sharded_reduce_rough(1e9, np.array(inner), tiers)
    np.testing.assert_allclose(np.asarray(time) * 1e3, milliseconds, rtol=1e-6)
    with pytest.raises(ValueError, match="two tiers"):
        sharded_reduce_rough(1e9, 8, tiers[:1])


def test_switches_that_add() -> None:
    """V/W in theory; 1.3 times the ring as measured, but never better than theory."""
    tier = (Tier(8, 450e9, in_network_reduction=True),)
    ring, theory, measured = (
        np.array(
            [float(seconds(ALL_REDUCE, 1e9, Group(n), tier, in_network=how)) for n in (1, 2, 8)]
        )
        for how in ("off", "theory", "measured")
    )
    np.testing.assert_allclose(theory * 450, [0, 1, 1])
    np.testing.assert_allclose(ring / theory.clip(1e-9), [0, 1, 1.75])
    np.testing.assert_allclose(measured[1:], [theory[1], ring[2] / 1.3])
    plain = (Tier(8, 450e9),)
    assert seconds(ALL_REDUCE, 1e9, Group(8), plain, in_network="theory") == ring[2]


def test_bus_bandwidth_compares_with_the_link() -> None:
    """nccl-tests, "Performance": factors 2(n-1)/n, (n-1)/n and 1; an all-to-all's S is V/n."""
    for op, factor in (
        (ALL_REDUCE, 1.75),
        (ALL_GATHER, 0.875),
        (ALL_TO_ALL, 0.875),
        (BROADCAST, 1),
    ):
        assert bus_bandwidth(op, 1e9, 8, 1.0) == pytest.approx(1e9 * factor)
        size = nccl_size(op, 1e9, 8)
        time = seconds(op, 1e9, Group(8), [Tier(8, 450e9)])
        assert bus_bandwidth(op, size, 8, time) == pytest.approx(450e9)


def test_latency_is_paid_per_message() -> None:
    """7 + 31 hops of rings per tier; 255 of one ring; a tree 3 + 5; direct 1 + 1."""
    tiers = (Tier(8, 450e9, latency=1.0, transit=False), Tier(32, 400e9, latency=100.0))
    group = Group(256)

    def alpha(op: Collective, **options: object) -> float:
        return float(collective(op, 0.0, group, tiers, latency=True, **options).latency)  # type: ignore[arg-type]

    assert alpha(ALL_GATHER) == 7 + 31 * 100
    assert alpha(ALL_REDUCE) == 2 * (7 + 31 * 100)
    assert alpha(ALL_GATHER, algorithm="ring") == 224 + 31 * 100
    assert alpha(ALL_GATHER, algorithm="tree") == 3 + 5 * 100
    assert alpha(BROADCAST) == 3 + 5 * 100
    assert alpha(ALL_TO_ALL) == alpha(SEND) == 101
    assert float(collective(ALL_GATHER, 0.0, group, tiers).latency) == 0


def test_switches_that_add_take_two_steps() -> None:
    """Up to the switch and down again, however many ranks."""
    tier = (Tier(8, 450e9, latency=1.0, in_network_reduction=True),)
    time = collective(ALL_REDUCE, 0.0, Group(8), tier, in_network="theory", latency=True)
    assert time.latency == 2


@pytest.mark.parametrize("field", ["form", "algorithm", "in_network"])
def test_unknown_options_are_refused(field: str) -> None:
    """A misspelt option is not silently the default."""
    with pytest.raises(ValueError, match=f"{field}: 'exact' is not one; allowed: "):
        seconds(ALL_GATHER, 1.0, Group(8), SUPERPOD, **{field: "exact"})


@every
def test_one_rank_is_free(op: Collective) -> None:
    """Also on a machine without any tier; nothing binds."""
    for tiers in (SUPERPOD, ()):
        time = collective(op, 1e9, Group(1), tiers, latency=True)
        assert float(time.seconds) == 0
        assert time.binding == ""
        assert bandwidth(op, Group(1), tiers) == np.inf


@every
@given(nbytes=sizes, factor=st.floats(1.0, 100.0), size=powers, stride=powers)
def test_time_is_proportional_to_bytes_and_bandwidth(
    op: Collective, nbytes: float, factor: float, size: int, stride: int
) -> None:
    """Twice the bytes, twice the time; twice the bandwidth, half of it."""
    group = Group(size, stride)
    once = float(seconds(op, nbytes, group, SUPERPOD))
    fast = tuple(Tier(t.degree, t.bandwidth * factor, t.name, transit=t.transit) for t in SUPERPOD)
    assert float(seconds(op, nbytes * factor, group, SUPERPOD)) == pytest.approx(once * factor)
    assert float(seconds(op, nbytes, group, fast)) == pytest.approx(once / factor)


@given(op=operations, which=st.integers(0, 2), size=powers, stride=powers)
def test_a_faster_tier_never_slows_anything(
    op: Collective, which: int, size: int, stride: int
) -> None:
    """Monotone in every bandwidth."""
    rates = [3.0, 2.0, 5.0]
    faster = [rate * (2 if i == which else 1) for i, rate in enumerate(rates)]
    group, degrees = Group(size, stride), (8, 32, 4)
    assert seconds(op, 1.0, group, machine(*faster, degrees=degrees)) <= seconds(
        op, 1.0, group, machine(*rates, degrees=degrees)
    )


@given(
    nbytes=sizes,
    size=powers,
    stride=powers,
    form=st.sampled_from(["precise", "rough"]),
    algorithm=st.sampled_from(["hierarchical", "ring", "tree"]),
    latency=st.booleans(),
)
def test_all_reduce_is_a_reduce_scatter_and_an_all_gather(
    nbytes: float, size: int, stride: int, form: str, algorithm: str, latency: bool
) -> None:
    """Time for time, whatever the form and the algorithm."""
    tiers = tuple(Tier(t.degree, t.bandwidth, t.name, latency=1e-6) for t in SUPERPOD)
    reduce, scatter, gather = (
        seconds(
            op, nbytes, Group(size, stride), tiers, form=form, algorithm=algorithm, latency=latency
        )
        for op in (ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER)
    )
    assert reduce == pytest.approx(float(scatter + gather))


@given(op=operations, size=powers, stride=powers)
def test_overlapped_tiers_take_no_longer_than_one_after_the_other(
    op: Collective, size: int, stride: int
) -> None:
    """max <= sum <= 3 max for three tiers."""
    time = collective(op, 1e9, Group(size, stride), SUPERPOD)
    assert time.seconds <= time.sequential <= 3 * time.seconds * (1 + 1e-12)


@given(op=operations, size=powers, stride=powers, alone=st.booleans())
def test_company_on_an_uplink_never_helps(
    op: Collective, size: int, stride: int, alone: bool
) -> None:
    """A group whose siblings are silent has the uplinks to itself."""
    quiet = seconds(op, 1e9, Group(size, stride, alone=True), SUPERPOD)
    assert quiet <= seconds(op, 1e9, Group(size, stride, alone), SUPERPOD)


@given(size=st.sampled_from([1, 2, 4, 8]), nbytes=sizes)
def test_a_node_of_eight_is_two_of_four_when_its_links_are(size: int, nbytes: float) -> None:
    """Splitting a tier in two whose inner links carry it all: an all-to-all does not notice."""
    whole = (Tier(8, 1.0),)
    split = (Tier(4, 1.0), Tier(2, 4.0))
    before, after = (seconds(ALL_TO_ALL, nbytes, Group(size), tiers) for tiers in (whole, split))
    assert after == pytest.approx(float(before))
    gathered = seconds(ALL_GATHER, nbytes, Group(size), split)
    assert gathered <= seconds(ALL_GATHER, nbytes, Group(size), whole)


@given(op=operations, size=st.sampled_from([2, 4, 8, 64, 1024]))
def test_rough_is_an_upper_bound_within_a_factor_of_two(op: Collective, size: int) -> None:
    """It drops (d-1)/d, which is a half or more."""
    rough = seconds(op, 1.0, Group(size), SUPERPOD, form="rough")
    precise = seconds(op, 1.0, Group(size), SUPERPOD)
    assert precise <= rough <= 2 * precise * (1 + 1e-12)


@given(size=st.lists(powers, min_size=1, max_size=4), stride=powers)
def test_arrays_are_the_scalars_side_by_side(size: list[int], stride: int) -> None:
    """One code path for one point and for many, for every operation."""
    for op in COLLECTIVES.values():
        many = collective(op, 1e9, Group(np.array(size), stride), SUPERPOD)
        single = [collective(op, 1e9, Group(one, stride), SUPERPOD) for one in size]
        np.testing.assert_array_equal(many.seconds, [one.seconds for one in single])
        np.testing.assert_array_equal(many.binding, [str(one.binding) for one in single])


def test_bandwidth_may_be_a_curve() -> None:
    """A sweep over NVLink's bandwidth and one over nodes, together a grid."""
    tiers = (Tier(8, np.linspace(1e11, 1e12, 5)[:, None]), Tier(32, 400e9))
    time = seconds(ALL_GATHER, 1e9, Group(np.array([8, 16, 256])), tiers)
    assert np.shape(time) == (5, 3)


def test_roots_send_to_and_hear_from_everyone_else() -> None:
    """Scatter and gather: V (N-1)/N on the root's link."""
    tier = (Tier(8, 450e9),)
    for op in (SCATTER, GATHER):
        assert seconds(op, 1e9, Group(8), tier) == pytest.approx(1e9 * 7 / 8 / 450e9)
    assert seconds(BROADCAST, 1e9, Group(8), tier) == 1e9 / 450e9


@pytest.mark.parametrize("op", [SCATTER, GATHER], ids=lambda op: op.name)
@given(size=st.integers(1, 255), nodes=st.booleans(), form=st.sampled_from(["precise", "rough"]))
def test_more_ranks_never_make_a_root_faster(
    op: Collective, size: int, nodes: bool, form: str
) -> None:
    """Law: the root pushes what the others get out of its own card, however many help inside."""
    tiers = (replace(NODE, degree=1), *SUPERPOD[1:]) if nodes else SUPERPOD
    size = min(size, 127)
    one, more = (seconds(op, 1.0, Group(n), tiers, form=form) for n in (size, size + 1))
    assert more >= one * (1 - 1e-12)


def test_a_root_leaves_its_node_by_one_card() -> None:
    """8/16 of V leave the root's node at 50e9, not at 400e9."""
    assert seconds(SCATTER, 1e9, Group(16), SUPERPOD) == pytest.approx(1e9 / 2 / 50e9)


class TestDirect:
    """Nodes without a switch: AMD Instinct MI300X, seven links of 64 GB/s, one to each other GPU."""

    TIER = Tier(8, 448e9, "node", direct=True)

    def test_a_pair_has_one_link(self) -> None:
        """2 ranks of 8 over 448 GB/s get 64 GB/s, and so does any message."""
        whole = {op: seconds(op, 64e9, Group(2), (self.TIER,)) for op in COLLECTIVES.values()}
        assert whole[ALL_GATHER] == pytest.approx(1 / 2)
        assert whole[ALL_REDUCE] == pytest.approx(1)
        assert whole[BROADCAST] == pytest.approx(1)
        for size in (2, 4, 8):
            assert seconds(SEND, 64e9, Group(size), (self.TIER,)) == pytest.approx(1)

    @given(op=operations, size=st.integers(2, 8), stride=st.integers(1, 4))
    def test_a_group_of_d_has_d_minus_one_links(
        self, op: Collective, size: int, stride: int
    ) -> None:
        """W (d-1)/(D-1); all eight have what a switch would give them."""
        group = Group(size if stride == 1 else 2, stride)
        behind_switch = seconds(op, 1e9, group, (replace(self.TIER, direct=False),))
        links = 1 if op is SEND else int(group.size) - 1
        direct = seconds(op, 1e9, group, (self.TIER,))
        assert direct == pytest.approx(float(behind_switch) * 7 / links)

    def test_one_child_alone_divides_by_nothing(self) -> None:
        for tier in (self.TIER, replace(self.TIER, degree=1)):
            assert seconds(ALL_REDUCE, 1e9, Group(1), (tier,)) == 0


class TestAtTheDoor:
    """Names, lists and mistakes."""

    def test_a_name_is_as_good_as_the_row(self) -> None:
        named = seconds("all-reduce", 1e9, Group(8), SUPERPOD)
        assert named == seconds(ALL_REDUCE, 1e9, Group(8), SUPERPOD)
        with pytest.raises(ValueError, match="op: 'allreduce' is not one; the nearest are all-re"):
            seconds("allreduce", 1e9, Group(8), SUPERPOD)
        with pytest.raises(ValueError, match=r"op: 3 is refused; allowed: all-gather, .*"):
            seconds(3, 1e9, Group(8), SUPERPOD)  # type: ignore[arg-type]

    def test_lists_are_arrays(self) -> None:
        listed = seconds(ALL_REDUCE, [1e9, 2e9], Group([4, 8]), SUPERPOD)  # type: ignore[arg-type]
        arrays = seconds(ALL_REDUCE, np.array([1e9, 2e9]), Group(np.array([4, 8])), SUPERPOD)
        np.testing.assert_array_equal(listed, arrays)

    @pytest.mark.parametrize(
        ("group", "nbytes", "message"),
        [
            (Group(7.5), 1.0, "size of the group: 7.5 is refused; .* the nearest: 7 and 8"),
            (Group(2, 1.5), 1.0, "stride of the group: 1.5 is refused; .* the nearest: 1 and 2"),
            (Group(np.array([2, 7.5])), 1.0, "size of the group: 7.5 is refused"),
            (Group("8"), 1.0, "size of the group: '8' is refused; allowed: a number"),
            (Group(8), -1.0, "nbytes: -1 is refused; allowed: 0 and more"),
            (Group(8), float("nan"), "nbytes: nan is refused"),
            (Group(8), np.array([1.0, -2.0]), "nbytes: -2 is refused"),
            (Group(np.array([2, 4])), np.ones(3), r"shapes \(2,\) and \(3,\) do not go together"),
        ],
    )
    def test_mistakes_are_named(self, group: Group, nbytes: float, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            seconds(ALL_REDUCE, nbytes, group, SUPERPOD)

    def test_a_machine_is_not_its_tiers(self) -> None:
        with pytest.raises(ValueError, match=r"tiers: a Ideal is refused; .*\.tiers"):
            seconds(ALL_REDUCE, 1.0, Group(8), Ideal(1.0, SUPERPOD))  # type: ignore[arg-type]


def test_long_sweeps_are_the_short_ones_end_to_end() -> None:
    """Pieces are joined where they were cut, every field of the result."""
    sizes = 2.0 ** (np.arange(2 * BLOCK + 3) % 11)
    whole = collective(ALL_REDUCE, 1e9, Group(sizes), SUPERPOD, latency=True)
    short = collective(ALL_REDUCE, 1e9, Group(sizes[:11]), SUPERPOD, latency=True)
    fields = (*whole.by_tier, whole.seconds), (*short.by_tier, short.seconds)
    for long, few in zip(*fields, strict=True):
        assert long.shape == sizes.shape
        np.testing.assert_array_equal(long, np.resize(few, sizes.shape))


def test_a_million_points_complete() -> None:
    """A sweep over groups is one call."""
    group = Group(2.0 ** (np.arange(1_000_000) % 7), stride=8)
    for op in (ALL_REDUCE, ALL_TO_ALL):
        assert np.isfinite(seconds(op, 1e9, group, SUPERPOD, latency=True)).all()
