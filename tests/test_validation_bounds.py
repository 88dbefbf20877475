"""What no machine can be faster than: every kernel has a bound, and no formula beats one."""

import math
from collections.abc import Sequence

import pytest

import hardware_profiles as hp
from hardware_profiles.schema import Cluster
from tests.measured import NODES, lines
from validation.bounds import AT_LEAST, GUESSED, POSSIBLE, TALKING, UNBOUND, impossible, limits
from validation.evidence import trusted
from validation.kernels import kernels
from validation.profile import on_cpu
from validation.results import Measured, Results

CLUSTERS = {
    "gpus": NODES,
    "other gpus": hp.cluster("mi300x-pod").resized(16),
    "without a switch": hp.cluster("l40s-box"),
    "cpu": on_cpu(4),
}


def at_peaks(cluster: Cluster, names: Sequence[str] = ()) -> list[Measured]:
    """Every case of the quick suite as the formulas have it at the profile's peaks."""
    found = lines(
        None, names=list(names or kernels()), suite="quick", cluster=cluster, world=cluster.gpus
    )
    return [line for line in found if line.seconds > 0]


def without_bound(line: Measured, cluster: Cluster) -> bool:
    """What ``UNBOUND`` says in words."""
    chip = cluster.accelerator
    copied = line.kernel == "memory" and line.parameters["op"] == "copy"
    cached = copied and line.parameters["where"] == "cache" and chip.l2_bandwidth is None
    sent = line.kernel == "recompute" and line.part == "comms"
    return cached or (sent and cluster.host_link is None and chip.sms is not None)


@pytest.mark.parametrize("name", CLUSTERS)
def test_every_part_of_every_kernel_has_a_bound_or_a_reason(name: str) -> None:
    cluster = CLUSTERS[name]
    there = at_peaks(cluster)
    assert {line.kernel for line in there} == set(kernels())
    for line in there:
        if not list(limits(line, cluster)):
            assert without_bound(line, cluster), line.case
            assert line.kernel in UNBOUND
    talking = {line.kernel for line in there if line.part == "comms"}
    assert talking == {*TALKING, *AT_LEAST, "mesh", "recompute"}


@pytest.mark.parametrize("name", CLUSTERS)
def test_no_formula_is_faster_than_physics(name: str) -> None:
    """At peaks, with every start at nothing: what is refused is impossible for the formulas too."""
    cluster = CLUSTERS[name]
    refused = {(m.kernel, m.part) for m in at_peaks(cluster) if impossible(m, cluster)}
    assert not refused


@pytest.mark.parametrize("name", CLUSTERS)
def test_no_strategy_is_faster_than_its_link(name: str) -> None:
    """Not by a percent: what is allowed beyond a peak is for machines, not for formulas."""
    cluster = CLUSTERS[name]
    every = (p for line in at_peaks(cluster) for p in limits(line, cluster) if p.tier)
    assert not {p.line.case: p.fraction for p in every if p.fraction > 1 + 1e-9}


@pytest.mark.parametrize("name", CLUSTERS)
def test_what_is_faster_than_a_bound_is_refused(name: str) -> None:
    """By a tenth more than is allowed of the largest of its bounds; each part that has one."""
    cluster = CLUSTERS[name]
    for line in at_peaks(cluster):
        bounds = list(limits(line, cluster))
        if bounds:
            absurd = max(found.bound for found in bounds) / (1.1 * GUESSED)
            assert impossible(line.model_copy(update={"seconds": absurd}), cluster), line.case


def only(cluster: Cluster, kernel: str, part: str, **told: object) -> Measured:
    """The largest case of a kernel that has these parameters."""
    fits = [
        m
        for m in at_peaks(cluster, [kernel])
        if m.part == part and all(m.parameters.get(k) == v for k, v in told.items())
    ]
    return max(fits, key=lambda m: (m.size, m.nbytes + m.flops))


def test_bounds_by_hand() -> None:
    """An H100 has 989 TFLOP/s in bf16, 3.35 TB/s, 450 GB/s of NVLink; datasheets."""
    flops = only(NODES, "data parallel", "math")
    (point,) = limits(flops, NODES)
    assert point.bound == pytest.approx(flops.flops / 989.4e12, rel=1e-3)
    update = {"size": 8, "stride": 1, "nbytes": 8e9, "flops": 0.0}
    ring = only(NODES, "data parallel", "comms").model_copy(update=update)
    (point,) = limits(ring, NODES)
    assert point.bound == pytest.approx(7 / 8 * 8e9 / 450e9)
    stages = only(NODES, "pipeline parallel", "comms").model_copy(update=update)
    (point,) = limits(stages, NODES)
    assert point.bound == pytest.approx(8e9 / 2 / 450e9)
    messages = only(NODES, "all-reduce by messages", "comms").model_copy(update=update)
    (point,) = limits(messages, NODES)
    assert point.bound == pytest.approx(2 * 7 / 8 * 8e9 / 450e9)
    away = only(NODES, "recompute", "comms")
    (point,) = limits(away, NODES)
    assert NODES.host_link is not None
    assert point.bound == pytest.approx(away.nbytes / 2 / NODES.host_link.total)
    mixed = only(NODES, "mesh", "comms")
    (point,) = limits(mixed, NODES)
    assert point.bound == pytest.approx(mixed.nbytes / 2 / (450e9 + 50e9), rel=1e-3)


def test_both_at_once_has_the_bounds_of_its_parts() -> None:
    both = only(NODES, "tensor parallel", "both")
    math_, comms = limits(both, NODES)
    assert (math_.unit, comms.unit) == ("FLOP/s", "B/s")
    for point in (math_, comms):
        fast = both.model_copy(update={"seconds": point.bound / (1.01 * POSSIBLE)})
        assert impossible(fast, NODES)


def test_an_uneven_exchange_takes_as_long_as_an_even_one() -> None:
    """The busiest rank sends more than its share."""
    found = only(NODES, "all-to-all", "comms", uneven=True)
    (point,) = limits(found, NODES)
    even = {k: v for k, v in found.parameters.items() if k != "uneven"}
    (same,) = limits(found.model_copy(update={"parameters": even}), NODES)
    assert point.bound == same.bound
    assert impossible(found.model_copy(update={"seconds": point.bound / 2}), NODES)


def test_a_group_that_the_profile_has_no_room_for_has_no_link() -> None:
    """Results come from elsewhere too; their FLOPs are bound all the same."""
    there = at_peaks(NODES, ["tensor parallel"])
    found = next(m for m in there if m.part == "both")
    wide = found.model_copy(update={"size": 4 * NODES.gpus, "world": 4 * NODES.gpus})
    assert [point.unit for point in limits(wide, NODES)] == ["FLOP/s"]


NO_TIME = (0.0, -1.0, math.nan, math.inf)


@pytest.mark.parametrize("bad", NO_TIME)
@pytest.mark.parametrize("field", ["seconds", "minimum", "p10", "p90", "per_rank", "per_rank_p90"])
def test_a_time_that_is_none_is_never_trusted(field: str, bad: float) -> None:
    """Whatever the run said of its result, and wherever the time stands."""
    good = at_peaks(NODES, ["matmul"])[0]
    assert good.trusted
    assert trusted(good)
    value = (1.0, bad) if field.startswith("per_rank") else bad
    line = good.model_copy(update={field: value})
    assert not line.trusted
    assert not trusted(line)


def test_a_negative_time_does_not_hide_a_good_run() -> None:
    """Of several runs the fastest that can be trusted counts."""
    good = at_peaks(NODES, ["matmul"])[0]
    bad = good.model_copy(update={"seconds": -1.0, "p10": -1.0})
    assert Results(measured=[bad, good]).best() == [good]


def test_names_of_bounds_are_kernels() -> None:
    assert {*AT_LEAST, *UNBOUND} <= set(kernels())
    assert all(0 < share <= 1 for _, share in AT_LEAST.values())
