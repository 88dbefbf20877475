"""Collectives with the network to themselves: laws, and numbers that others have measured."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hardware_profiles.calibration import calibration, calibrations
from roofline.calibrated import idle
from roofline.collectives import COLLECTIVES, bus_bandwidth
from roofline.groups import Group
from roofline.isolated import Calls, Fabric, Host, Idle, Wire
from roofline.machine import Tier

NODE, NETWORK = Tier(8, 450e9, "node", transit=False), Tier(128, 400e9, "network")
FREE = Fabric(1e-30, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0)
MEASURED = sorted(calibration("h100").isolated.wires)


def bare(fraction: float = 1.0, switched: float = 0.0) -> Idle:
    """No latency anywhere."""
    wires = {name: Wire(0.0, 0.0, fraction, 0.0, switched) for name in MEASURED}
    return Idle((NODE, NETWORK), wires, FREE)


def busbw(machine: Idle, op: str, ranks: int, nbytes: float = 8 * 2.0**30) -> float:
    """GB/s as nccl-tests prints them."""
    return float(bus_bandwidth(op, nbytes, ranks, machine.seconds(op, nbytes, Group(ranks)))) / 1e9


@pytest.mark.parametrize(("ranks", "printed"), [(4, 363), (5, 414), (6, 436), (7, 460), (8, 473)])
def test_switches_that_add_move_one_part_more_than_the_array(ranks: int, printed: float) -> None:
    """H200, 8 GiB, NVLS on: stas00/ml-engineering, network/README.md, "SHARP".

    One fraction, of the ring (363 of 450 GB/s) and of the switches, for all five numbers: with four
    GPUs NCCL takes the ring, from five on the switches. Within 3 %.
    """
    assert busbw(bare(363 / 450, 0.685), "all-reduce", ranks) == pytest.approx(printed, rel=0.03)


def test_nvls_of_two_ranks_is_slower_than_their_ring() -> None:
    """H100: 207 GB/s where the algorithm was forced (waynehacking8/nccl-collectives-bench)."""
    forced = 8 * 2.0**30 * 1.5 / (0.685 * 450e9)
    assert float(bus_bandwidth("all-reduce", 8 * 2.0**30, 2, forced)) / 1e9 == pytest.approx(
        207, rel=0.02
    )
    assert busbw(bare(347 / 450, 0.685), "all-reduce", 2) == pytest.approx(347, rel=1e-6)


def test_a_tree_of_two_nodes_sends_each_byte_once() -> None:
    """2 x 8 B200 over 8 x 50 GB/s: a ring could print 400; 715 were measured, 95 % of 15/8 x 400."""
    machine = bare(1.0, 1.0)
    assert busbw(machine, "all-reduce", 16) == pytest.approx(15 / 8 * 400)
    assert busbw(machine, "all-reduce", 32) == pytest.approx(400)
    assert busbw(machine, "all-gather", 16) == pytest.approx(400)


def test_without_adding_switches_a_tree_reaches_less_inside() -> None:
    """2 x 8 A100 over 8 x 25 GB/s print 184 to 190 of 200: NCCL stays with the ring."""
    node, network = Tier(8, 300e9, "node", transit=False), Tier(128, 200e9, "network")
    wires = {"all-reduce": Wire(0.0, 0.0, 235 / 300, 0.0)}
    got = busbw(Idle((node, network), wires, FREE), "all-reduce", 16)
    chain = 235 * 0.7 * 15 / 8 / (2 * 7 / 8)
    assert got == pytest.approx(max(200, chain))


ALLREDUCE = [8, 1024, 16384, 262144, 1048576, 16777216, 2.0**30]


@pytest.mark.parametrize(
    ("calls", "printed"),
    [
        (Calls(per_thread=4), [23.3, 23.28, 24.34, 27.19, 26.76, 101.86, 4532.51]),
        (Calls(per_thread=0), [16.08, 16.88, 16.19, 17.38, 24.0, 105.81]),
    ],
)
def test_one_thread_launches_on_one_gpu_after_the_other(calls: Calls, printed: list[float]) -> None:
    """4 H100, all_reduce_perf -g 4, alone and with -G: the first flat to 1 MB, the second is not.

    waynehacking8/nccl-collectives-bench, results/quiet/all_reduce.txt and symmetric/
    all_reduce_reg0_graph1.txt, a source that the overlay was not fitted to. Each GPU takes some 6 us
    of the thread; recorded graphs take none of it, and the time begins at what the kernel takes.
    """
    machine = idle((Tier(4, 450e9, "node", transit=False),), calibration("h100").isolated)
    sizes = np.array(ALLREDUCE[: len(printed)])
    found = machine.seconds("all-reduce", sizes, Group(4), calls) * 1e6
    if calls.per_thread:
        np.testing.assert_allclose(found, printed, rtol=0.15)
        assert found[0] == found[2]
    else:
        assert np.all(found < np.array(printed) * 1.1)
        np.testing.assert_allclose(found[-2:], printed[-2:], rtol=0.30)


def test_a_program_that_waits_pays_for_its_way_to_the_gpu() -> None:
    """Some 20 to 30 us a call of PyTorch's: stas00/ml-engineering, all_reduce_bench.py, notes."""
    machine = idle((Tier(8, 450e9, "node", transit=False),), calibration("h200").isolated)
    alone, waited = (
        float(machine.seconds("all-reduce", 1e5, Group(8), Calls(waits=waits)))
        for waits in (False, True)
    )
    assert 20e-6 <= waited - alone <= 30e-6


@pytest.mark.parametrize(
    ("mebibytes", "printed"),
    [(16, 78.91), (64, 84.61), (128, 168.16), (256, 331.5), (512, 624.97), (16384, 663.21)],
)
def test_a_lone_message_has_a_share_of_the_channels(mebibytes: float, printed: float) -> None:
    """8 B200, sendrecv_perf: 0.8 ms from 64 to 512 MiB, "B200 / Vultr POC - cluster test summary"."""
    wires = {"point-to-point": Wire(0.0, 0.0, 0.75, 0.0)}
    machine = Idle((Tier(8, 900e9, "node", transit=False),), wires, FREE)
    got = busbw(machine, "point-to-point", 8, mebibytes * 2.0**20)
    assert got == pytest.approx(printed, rel=0.08)


@pytest.mark.parametrize(("nodes", "channels"), [(2, 2), (8, 2), (9, 1), (10, 1)])
def test_a_message_between_nodes_has_two_channels_or_one(nodes: int, channels: int) -> None:
    """NVIDIA/nccl, src/graph/paths.cc: two, as long as twice the ranks are no more than 4 x 32.

    One reached 18.3 GB/s on GH200, where more reached 24.2 (NVIDIA/nccl issue 1272).
    """
    machine = Idle((NODE, Tier(128, 8 * 50e9, "network")), bare().wires, FREE)
    assert busbw(machine, "point-to-point", nodes * 8) == pytest.approx(channels * 21)
    slow = Idle((NODE, Tier(128, 8 * 25e9, "network")), bare().wires, FREE)
    assert busbw(slow, "point-to-point", 16) == pytest.approx(25)
    assert busbw(slow, "point-to-point", 32 * 8) == pytest.approx(18.3, rel=0.15)


@pytest.mark.parametrize(("ranks", "empty"), [(16, 50.4), (32, 74.7)])
def test_an_old_nccl_queues_every_peer(ranks: int, empty: float) -> None:
    """An all-to-all of no bytes took so many us with NCCL 2.22 and 2.21, 0.15 with later versions.

    argonne-lcf/alcf-nccl-tests, results_sophia/n2.g8 and results_polaris/nccl_2_21/n8.g4. Some 14 us
    are what a call takes at all, as on one node of such GPUs.
    """
    new, old = (
        float(bare().seconds("all-to-all", 0.0, Group(ranks), Calls(queues=queues)))
        for queues in (False, True)
    )
    assert old - new == pytest.approx((empty - 14) * 1e-6, rel=0.15)


@given(
    ranks=st.sampled_from([2, 8, 16, 64]),
    per_thread=st.integers(0, 8),
    nbytes=st.floats(1, 1e9),
)
def test_calls_never_make_it_faster(ranks: int, per_thread: int, nbytes: float) -> None:
    machine = idle((NODE, NETWORK), calibration("h100").isolated)
    for op in MEASURED:
        alone = machine.seconds(op, nbytes, Group(ranks), Calls(per_thread=0))
        called = machine.seconds(op, nbytes, Group(ranks), Calls(per_thread, waits=True))
        assert called >= alone + machine.host.waiting
        assert called >= machine.launches(op, ranks, per_thread)


def test_a_machine_without_cpus_told_is_never_waited_for() -> None:
    assert bare().host == Host()
    assert float(bare().seconds("all-reduce", 0.0, Group(8), Calls(8, waits=True))) == 0


@pytest.mark.parametrize("name", calibrations())
def test_every_overlay_with_the_part_has_all_five(name: str) -> None:
    part = calibration(name).isolated
    if part is not None:
        assert sorted(part.wires) == MEASURED
        assert part.fitted_to
        assert part.error


@pytest.mark.parametrize("op", MEASURED)
@given(small=st.floats(1, 1e9), more=st.floats(1, 100), ranks=st.sampled_from([2, 8, 16, 64, 1024]))
@example(small=60 * 2.0**20, more=1.2, ranks=8)
def test_more_bytes_never_take_less(op: str, small: float, more: float, ranks: int) -> None:
    """But for a message that gets more channels by it: of those, twice as many bytes and so on."""
    machine = idle((NODE, NETWORK), calibration("h100").isolated)
    more = 2.0 ** round(np.log2(more)) if op == "point-to-point" else more
    one, other = machine.seconds(op, np.array([small, small * more]), Group(ranks))
    assert 0 < one <= other


def test_a_message_that_gets_more_channels_takes_less() -> None:
    """NCCL doubles the channels of a part above 16 MiB: calcP2pChannelCount in src/enqueue.cc."""
    machine = idle((NODE, NETWORK), calibration("h100").isolated)
    of_four, of_eight = machine.seconds("point-to-point", np.array([64.0, 64.1]) * 2**20, Group(8))
    assert of_eight == pytest.approx(of_four / 2, rel=0.1)


def test_launches_are_known_without_an_all_to_all() -> None:
    """A calibration need not have every collective."""
    wires = {"all-reduce": Wire(0.0, 0.0, 1.0, 0.0)}
    machine = Idle((NODE,), wires, FREE, Host(launch=5e-6))
    assert float(machine.launches("all-to-all", 8, 4)) == pytest.approx(4 * 5e-6)


@pytest.mark.parametrize("op", MEASURED)
def test_alone_costs_nothing_and_columns_are_their_rows(op: str) -> None:
    machine = idle((NODE, NETWORK), calibration("h100").isolated)
    ranks = np.array([1.0, 2, 8, 16, 64])
    column = machine.seconds(op, 1e6, Group(ranks))
    assert column[0] == 0
    rows = [float(machine.seconds(op, 1e6, Group(n))) for n in ranks]
    np.testing.assert_allclose(column, rows)


def test_what_nobody_measured_is_refused() -> None:
    part = calibration("h100").isolated
    with pytest.raises(ValueError, match=r"'scatter' has not been measured; allowed: .*all-gather"):
        idle((NODE, NETWORK), part).seconds("scatter", 1e6, Group(8))
    with pytest.raises(ValueError, match=r"fabric: 'infinband' is not one; .*infiniband"):
        idle((NODE, NETWORK), part, "infinband")
    assert "scatter" in COLLECTIVES
