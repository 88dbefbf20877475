"""Cases and predictions of every kernel, without ranks and without torch."""

import subprocess
import sys

import numpy as np
import pytest

import hardware_profiles as hp
from hardware_profiles.calibration import for_accelerator
from roofline import collectives, semantics
from roofline.groups import Group
from tests.measured import truth
from validation.case import Case, Setting
from validation.groups import members, subgroups
from validation.kernels import chosen, kernels
from validation.kernels import collectives as measured
from validation.profile import Profile, load, on_cpu, rebuilt

CPU = Setting("quick", 4, "cpu", 1e9, subgroups(4, (1, 2, 4)), ("fp32", "bf16"))
GPU = Setting("full", 16, "cuda", 40e9, subgroups(16, (1, 8, 16)), ("bf16", "fp32"))
HERE = Profile(on_cpu(4))
THERE = load("dgx-h100-superpod", "auto", 16, "cuda")


@pytest.mark.parametrize("setting", [CPU, GPU], ids=["cpu", "gpu"])
@pytest.mark.parametrize("name", kernels())
def test_every_case_has_a_key_of_its_own_and_a_prediction(name: str, setting: Setting) -> None:
    """The same cases whoever asks, each in groups that share out the world."""
    kernel = kernels()[name]
    cases = list(kernel.cases(setting))
    assert cases
    assert [case.id for case in kernel.cases(setting)] == [case.id for case in cases]
    assert len({case.id for case in cases}) == len(cases)
    for case in cases:
        assert setting.world % (case.size * case.stride) == 0
        for expected in kernel.predict(case, HERE if setting is CPU else THERE):
            assert 0 < expected.seconds < 1000
            assert expected.flops or expected.nbytes


@pytest.mark.parametrize("name", kernels())
def test_less_memory_is_fewer_cases(name: str) -> None:
    """Sizes end where they no longer fit."""
    kernel = kernels()[name]
    small = Setting("full", 4, "cpu", 1e7, CPU.groups, CPU.dtypes)
    large = Setting("full", 4, "cpu", 1e10, CPU.groups, CPU.dtypes)
    assert len(list(kernel.cases(small))) < len(list(kernel.cases(large)))


@pytest.mark.parametrize(
    ("world", "units", "pairs"),
    [
        (1, (1, 1), []),
        (2, (1, 2), [(2, 1)]),
        (4, (1, 4), [(4, 1), (2, 1), (2, 2)]),
        (16, (1, 8, 16), [(16, 1), (8, 1), (2, 8), (4, 1), (4, 2)]),
        (6, (1, 3, 6), [(6, 1), (3, 1), (2, 3), (3, 2)]),
    ],
)
def test_groups_of_a_profile(
    world: int, units: tuple[int, ...], pairs: list[tuple[int, int]]
) -> None:
    """All ranks, those of a node, one of each node, and halves of the node both ways."""
    found = [(group.size, group.stride) for group in subgroups(world, units)]
    assert sorted(found) == sorted(pairs)
    assert found[:1] == pairs[:1]


@pytest.mark.parametrize("group", [(2, 1), (2, 4), (4, 2), (8, 1)])
def test_groups_share_out_the_world(group: tuple[int, int]) -> None:
    shared = {tuple(members(rank, *group)) for rank in range(8)}
    assert sorted(rank for ranks in shared for rank in ranks) == list(range(8))
    assert all(rank in members(rank, *group) for rank in range(8))


def test_without_an_overlay_a_collective_is_the_formula_at_peak() -> None:
    """α and β of the profile's own tiers."""
    got = HERE.collective("all-reduce", 1e6, Group(4))
    tiers = HERE.cluster.tiers
    assert got == collectives.seconds("all-reduce", 1e6, Group(4), tiers, latency=True)


def test_an_overlay_slows_down() -> None:
    """Achieved is never faster than the datasheet, for any operation and size."""
    peak = Profile(THERE.cluster)
    assert THERE.overlay == for_accelerator("h100-sxm")
    for op in collectives.COLLECTIVES:
        size = 2 if op == "point-to-point" else 16
        for nbytes in (1e3, 1e9):
            slow = THERE.collective(op, nbytes, Group(size))
            assert slow > peak.collective(op, nbytes, Group(size))
    shape = (4096, 4096, 4096)
    assert THERE.matmuls("bf16").seconds(*shape) > peak.matmuls("bf16").seconds(*shape)


def test_a_message_that_meets_another_is_as_fast_unless_measured() -> None:
    """Links are full duplex on paper; a calibration may have what both directions take at once."""
    for profile in (Profile(THERE.cluster), THERE):
        for group in (Group(2), Group(2, 8)):
            one = profile.collective("point-to-point", 1e6, group)
            assert profile.collective("send-receive", 1e6, group) == one
    slow = {"start": 1e-4, "per_rank": 0.0, "fraction": 0.25, "root": 0.0}
    measured_so = Profile(THERE.cluster, truth(collectives__send_receive=slow))
    both = measured_so.collective("send-receive", 1e9, Group(2))
    assert both == pytest.approx(1e-4 + 1e9 / (0.25 * 450e9))
    assert measured_so.collective("point-to-point", 1e9, Group(2)) == THERE.collective(
        "point-to-point", 1e9, Group(2)
    )


@pytest.mark.parametrize("keys", [64, 512, 1024, 2048, 5120])
def test_scores_that_a_causal_kernel_computes(keys: int) -> None:
    """Counted: rows of 64 queries go through blocks of 512 keys up to the diagonal's on a CPU."""
    rows = range(64, keys + 1, 64)
    seen = sum(64 * min(keys, -(-last // 512) * 512) for last in rows)
    assert HERE.causal(keys) == pytest.approx(seen / keys**2)
    assert THERE.causal(keys) == 0.5


def test_an_all_to_all_is_told_in_whole_arrays() -> None:
    """16 GB among 16 ranks of two nodes: each has 1 GB, half of which leaves the node."""
    seconds = Profile(THERE.cluster).collective("all-to-all", 16e9, Group(16))
    assert seconds == pytest.approx(1e9 * 8 / 16 / 50e9, rel=1e-3)


def test_a_cpu_is_shared_by_its_ranks() -> None:
    whole, quarter = on_cpu(1), on_cpu(4)
    assert quarter.flops("fp32") == pytest.approx(whole.flops("fp32") / 4)
    assert quarter.gpus == 4
    assert quarter.accelerator.name == whole.accelerator.name


def test_a_profile_is_rebuilt_from_a_header() -> None:
    assert rebuilt(HERE.cluster.model_dump(mode="json")).cluster == HERE.cluster


def test_a_profile_that_ranks_do_not_fill_is_refused() -> None:
    with pytest.raises(hp.ProfileError, match="12 GPUs do not fill"):
        load("dgx-h100-superpod", "auto", 12, "cuda")


def test_a_wrong_kernel_is_refused_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"kernels: 'all-redcue' is not one; .*all-reduce"):
        chosen(["all-redcue"])


@pytest.mark.parametrize("nbytes", [1, 1000, 2**20])
@pytest.mark.parametrize("name", measured.OPERATIONS)
def test_the_size_of_a_collective_is_what_was_asked(name: str, nbytes: int) -> None:
    """Cut to whole units: never more than asked, but for one number a block, and near it."""
    case = Case(name, {"bytes": nbytes, "dtype": "fp32"}, 2 if name == "point-to-point" else 6)
    numbers, unit, repeat = measured._numbers(case)
    assert numbers % (unit * repeat) == 0
    if nbytes >= 2**20:
        assert 0.95 * nbytes < 4 * numbers <= nbytes


def test_uneven_splits_are_a_definition_of_semantics() -> None:
    """What each rank holds is what ``semantics.all_to_all`` says of unequal parts."""
    case = Case("all-to-all", {"bytes": 4096, "dtype": "fp32", "uneven": True}, 3)
    plan = measured._plan(case, measured.OPERATIONS["all-to-all"])
    splits = [[2 * plan.unit, plan.unit, plan.unit]] * 3
    for must, held in zip(plan.expected, semantics.all_to_all(plan.inputs, splits), strict=True):
        assert must is not None
        assert np.array_equal(must, held)
    assert plan.expected[0] is not None
    assert len(plan.expected[0]) == pytest.approx(
        measured._imbalance(3) * np.mean([len(x) for x in plan.inputs])
    )


def test_predictions_need_no_torch() -> None:
    """A report reads results where torch is not installed."""
    program = (
        "import sys; sys.modules['torch'] = None;"
        "from validation.kernels import kernels; from validation.profile import Profile, on_cpu;"
        "from validation.case import Case; import validation.results;"
        "case = Case('all-gather', {'bytes': 1024, 'dtype': 'fp32'}, 2);"
        "print(list(kernels()['all-gather'].predict(case, Profile(on_cpu(2)))))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "Expected" in done.stdout, done.stderr
