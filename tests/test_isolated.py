"""Collectives with the network to themselves: laws, and numbers that others have measured."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardware_profiles.calibration import calibration, calibrations
from roofline.calibrated import idle
from roofline.collectives import COLLECTIVES, bus_bandwidth
from roofline.groups import Group
from roofline.isolated import Fabric, Idle, Wire
from roofline.machine import Tier

NODE, NETWORK = Tier(8, 450e9, "node", transit=False), Tier(128, 400e9, "network")
FREE = Fabric(0.0, 1e-30, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0)
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


@pytest.mark.parametrize("name", calibrations())
def test_every_overlay_with_the_part_has_all_five(name: str) -> None:
    part = calibration(name).isolated
    if part is not None:
        assert sorted(part.wires) == MEASURED
        assert part.fitted_to
        assert part.error


@pytest.mark.parametrize("op", MEASURED)
@given(small=st.floats(1, 1e9), more=st.floats(1, 100), ranks=st.sampled_from([2, 8, 16, 64, 1024]))
def test_more_bytes_never_take_less(op: str, small: float, more: float, ranks: int) -> None:
    machine = idle((NODE, NETWORK), calibration("h100").isolated)
    one, other = machine.seconds(op, np.array([small, small * more]), Group(ranks))
    assert 0 < one <= other


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
