"""Routing of tokens to experts: shares against every possible choice, dispatch against counts."""

from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roofline.collectives import ALL_TO_ALL, seconds
from roofline.groups import Group
from roofline.machine import Tier
from roofline.routing import dispatch, imbalance, ragged_all_to_all, reached
from tests import simulate

H100 = (Tier(8, 450e9, "node", transit=False), Tier(32, 400e9, "leaf"), Tier(4, 12.8e12, "spine"))
forms = st.sampled_from(["bound", "draws", "distinct"])
powers = st.integers(0, 6).map(lambda exponent: 2**exponent)


@pytest.mark.parametrize("shards", [1, 2, 4, 8])
@pytest.mark.parametrize("k", [1, 2, 3, 5, 8])
def test_distinct_is_the_mean_over_every_choice(k: int, shards: int) -> None:
    """Brute force: all C(8, k) choices of experts."""
    share = reached(k, shards, form="distinct", experts=8)
    assert share == pytest.approx(simulate.touched(8, k, shards), rel=1e-12)


@pytest.mark.parametrize(
    ("experts", "k", "shards", "share"),
    [(256, 8, 8, 0.66183150), (256, 8, 64, 0.11993360), (128, 4, 16, 0.22998032)],
)
def test_distinct_of_published_models(experts: int, k: int, shards: int, share: float) -> None:
    """1 - C(E - E/n, k)/C(E, k), with exact integers."""
    assert reached(k, shards, form="distinct", experts=experts) == pytest.approx(share)
    exact = 1 - comb(experts - experts // shards, k) / comb(experts, k)
    assert reached(k, shards, form="distinct", experts=experts) == pytest.approx(exact, rel=1e-11)


def test_many_experts_are_numerically_stable() -> None:
    """C(65536, 4096) has thousands of digits."""
    experts, k, shards = 65536, 4096, 1024
    exact = 1 - comb(experts - experts // shards, k) / comb(experts, k)
    share = reached(k, shards, form="distinct", experts=experts)
    assert share == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize(
    ("k", "shards", "share"), [(8, 8, 0.65639), (4, 8, 0.41382), (8, 2, 0.99609)]
)
def test_draws_with_replacement(k: int, shards: int, share: float) -> None:
    """1 - ((n-1)/n)^k: the footnote of the scaling book, "GPUs", without its (n-1)/n."""
    assert reached(k, shards, form="draws") == pytest.approx(share, abs=1e-5)


@given(k=st.integers(1, 16), shards=powers, per_shard=st.integers(1, 8))
def test_bound_distinct_draws_in_this_order(k: int, shards: int, per_shard: int) -> None:
    """Not repeating an expert reaches more shards than draws, and never more than k."""
    experts = shards * per_shard
    k = min(k, experts)
    drawn, distinct, bound = (
        reached(k, shards, form=form, experts=experts) for form in ("draws", "distinct", "bound")
    )
    assert drawn <= distinct * (1 + 1e-9)
    assert distinct <= bound * (1 + 1e-9)
    assert bound <= 1


@given(form=forms, k=st.integers(1, 8), limit=st.integers(1, 8))
def test_limited_routing_reaches_no_more(form: str, k: int, limit: int) -> None:
    """And no limit at all when it is as large as the number of shards."""
    options = {"form": form, "experts": 64}
    limited = reached(k, 8, at_most=limit, **options)  # type: ignore[arg-type]
    free = reached(k, 8, **options)  # type: ignore[arg-type]
    assert limited <= free * (1 + 1e-12)
    assert limited <= limit / 8
    assert limit < 8 or limited == pytest.approx(free)


def test_limited_routing_is_routing_among_fewer_shards() -> None:
    """4 of 8 nodes: the mean over the choices among 4 nodes' experts, halved."""
    share = reached(3, 4, form="distinct", experts=8, at_most=2)
    assert share == pytest.approx(simulate.touched(4, 3, 2) / 2)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"k": 9, "shards": 8, "experts": 8}, "k: 9 experts per token, but there are 8"),
        ({"k": 0, "shards": 8}, "k: 0 is refused"),
        ({"k": 2, "shards": 0}, "shards: 0 is refused"),
        ({"k": 2, "shards": 8, "form": "exact"}, "form: 'exact' is not one"),
        ({"k": 2, "shards": 8, "form": "distinct"}, "needs the number of experts"),
        (
            {"k": 2, "shards": np.array([8, 12]), "form": "distinct", "experts": 128},
            "128 do not spread evenly over 12 shards; the nearest that do are 8 and 16",
        ),
        (
            {"k": 8, "shards": 8, "form": "distinct", "experts": 16, "at_most": 2},
            "k: 8 experts per token, but the limit leaves 4",
        ),
    ],
)
def test_impossible_routing_is_refused(arguments: dict[str, object], words: str) -> None:
    """The message names field, value and what would do."""
    with pytest.raises(ValueError, match=words):
        reached(**arguments)  # type: ignore[arg-type]


def test_ragged_all_to_all_in_one_node() -> None:
    """(N-1)/N min(k/N, 1) V/(NW): k = 4 of 8 halves it (scaling book, "GPUs", pop quiz 2)."""
    dense, half, full = (
        float(ragged_all_to_all(1e9, k, Group(8), H100).seconds) for k in (8, 4, 16)
    )
    assert dense == full == pytest.approx(1e9 * 7 / 8 / 8 / 450e9)
    assert half == pytest.approx(dense / 2)


@pytest.mark.parametrize(("ranks", "k"), [(16, 1), (16, 8), (64, 4), (64, 8), (256, 8), (512, 8)])
def test_dispatch_between_nodes_is_that_of_the_scaling_book(ranks: int, k: int) -> None:
    """2BD/W_node (Z-8)/Z min(8k/Z, 1) per direction ("GPUs", expert parallelism)."""
    tokens = 2 * 65536 * 7168
    time = dispatch(tokens, k, Group(ranks), H100)
    expected = tokens / 400e9 * (ranks - 8) / ranks * min(8 * k / ranks, 1)
    assert float(time.by_tier[1]) == pytest.approx(expected)
    assert time.seconds == pytest.approx(expected)
    assert time.binding == "leaf"


@pytest.mark.parametrize(("ranks", "k"), [(1, 4), (2, 1), (4, 8), (8, 2)])
def test_dispatch_inside_a_node(ranks: int, k: int) -> None:
    """2BD/W_gpu (Z-1)/Z min(k/Z, 1), where the formula between nodes would be zero or negative."""
    time = dispatch(1e9, k, Group(ranks), H100)
    expected = 1e9 / 450e9 * (ranks - 1) / ranks * min(k / ranks, 1)
    assert float(time.seconds) == pytest.approx(expected)


@pytest.mark.parametrize("deduplicated", [True, False])
@pytest.mark.parametrize(
    ("ranks", "node", "experts", "k"),
    [(4, 2, 8, 2), (8, 2, 8, 3), (8, 4, 16, 3), (6, 3, 12, 2), (4, 4, 8, 2), (4, 1, 8, 3)],
)
def test_dispatch_moves_the_bytes_of_a_real_one(
    ranks: int, node: int, experts: int, k: int, deduplicated: bool
) -> None:
    """Brute force: one token per GPU, every choice of experts, copies counted on both networks."""
    tiers = (Tier(node, 1.0, transit=False), Tier(ranks // node, 1.0))
    time = dispatch(
        1.0,
        k,
        Group(ranks),
        tiers,
        deduplicated=deduplicated,
        form="distinct",
        experts=experts,
    )
    loads = simulate.dispatch_loads(ranks, node, experts, k, deduplicated)
    assert [float(t) for t in time.by_tier] == pytest.approx(loads)


@given(ranks=powers, k=st.integers(1, 16), form=forms)
def test_one_copy_per_node_never_costs_more(ranks: int, k: int, form: str) -> None:
    """On every network tier, and in all on a machine whose network is the slower one."""
    options = {"form": form, "experts": 256}
    once, each = (
        dispatch(1e9, k, Group(ranks), H100, deduplicated=how, **options)  # type: ignore[arg-type]
        for how in (True, False)
    )
    assert float(once.seconds) <= float(each.seconds) * (1 + 1e-9)
    for copied, sent in zip(once.by_tier[1:], each.by_tier[1:], strict=True):
        assert float(copied) <= float(sent) * (1 + 1e-9)


@given(ranks=powers, k=st.integers(1, 16), limit=st.integers(1, 8), form=forms)
def test_a_node_limit_never_costs(ranks: int, k: int, limit: int, form: str) -> None:
    """Fewer nodes to send to; deduplicated or not."""
    for deduplicated in (True, False):
        free, limited = (
            dispatch(
                1e9,
                k,
                Group(ranks),
                H100,
                deduplicated=deduplicated,
                form=form,  # type: ignore[arg-type]
                experts=256 * 8,
                node_limit=bound,
            ).seconds
            for bound in (None, limit)
        )
        assert float(limited) <= float(free) * (1 + 1e-9)


def test_four_of_eight_nodes_halve_the_bound_of_deepseek() -> None:
    """DeepSeek-V3: 8 experts, 64 GPUs, at most 4 nodes; 8 copies become 4."""
    free, limited = (
        float(dispatch(1e9, 8, Group(64), H100, node_limit=limit).by_tier[1]) for limit in (None, 4)
    )
    assert limited == pytest.approx(free / 2)


def test_padding_and_imbalance_multiply() -> None:
    """The capacity factor on volume, and the busiest destination's load over the mean."""
    plain = dispatch(1e9, 8, Group(64), H100).seconds
    both = dispatch(1e9, 8, Group(64), H100, padding=1.25, imbalance=1.2).seconds
    sent = dispatch(1e9, 8, Group(64), H100, deduplicated=False).seconds
    padded = dispatch(1e9, 8, Group(64), H100, deduplicated=False, padding=1.5).seconds
    assert both == pytest.approx(float(1.5 * plain))
    assert padded == pytest.approx(float(1.5 * sent))
    assert imbalance([100, 300, 200, 200]) == 1.5
    assert imbalance([0, 0]) == 1


def test_links_that_all_traffic_passes_carry_more() -> None:
    """Without own network cards, what leaves a node has passed the GPU's link first."""
    own, shared = (
        dispatch(1.0, 8, Group(64), (Tier(8, 1.0, transit=transit), Tier(8, 1.0))).by_tier[0]
        for transit in (False, True)
    )
    assert float(own) == pytest.approx(8 / 64 * 7 / 8)
    assert float(shared - own) == pytest.approx(7 / 8 / 8)


def test_without_copies_per_node_a_dispatch_is_a_ragged_all_to_all() -> None:
    """V = N V0, and a dense one when k covers every GPU."""
    time = dispatch(1e9, 4, Group(64), H100, deduplicated=False)
    ragged = ragged_all_to_all(64e9, 4, Group(64), H100)
    assert time.by_tier == ragged.by_tier
    dense = dispatch(1e9, 64, Group(64), H100, deduplicated=False).seconds
    assert dense == seconds(ALL_TO_ALL, 64e9, Group(64), H100)


def test_latency_is_one_message_per_tier() -> None:
    """Everyone sends at once."""
    tiers = (Tier(8, 450e9, latency=1.0, transit=False), Tier(32, 400e9, latency=10.0))
    for deduplicated in (True, False):
        time = dispatch(0.0, 8, Group(64), tiers, deduplicated=deduplicated, latency=True)
        assert time.seconds == 11


@given(form=forms, deduplicated=st.booleans())
def test_arrays_are_the_scalars_side_by_side(form: str, deduplicated: bool) -> None:
    """One code path for one point and for many, in ranks and in k."""
    ranks, k = np.array([1, 8, 16, 64, 512]), np.array([1, 2, 4, 8, 8])
    options = {"form": form, "deduplicated": deduplicated, "experts": 512}
    many = dispatch(1e9, k, Group(ranks), H100, **options).seconds  # type: ignore[arg-type]
    single = [
        float(dispatch(1e9, int(a), Group(int(n)), H100, **options).seconds)  # type: ignore[arg-type]
        for a, n in zip(k, ranks, strict=True)
    ]
    np.testing.assert_allclose(many, single, rtol=1e-12)


def test_a_million_points_complete() -> None:
    """A sweep over ranks and k is one call."""
    ranks = 2.0 ** (np.arange(1_000_000) % 8)
    k = 1 + np.arange(1_000_000) % 8
    for form in ("bound", "draws", "distinct"):
        time = dispatch(1e9, k, Group(ranks), H100, form=form, experts=256)  # type: ignore[arg-type]
        assert np.isfinite(time.seconds).all()
