"""Strategies on two and four gloo ranks, right against one process; and that checks can fail."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from roofline.machine import Tier
from tests.measured import truth
from validation import launch
from validation.case import Case, Expected, Setting, Work
from validation.context import Context, Options, subgroups
from validation.kernels import (
    algorithms,
    expert_layer,
    expert_parallel,
    kernels,
    mesh,
    ring,
    stage,
)
from validation.profile import LOOPBACK, Profile, on_cpu
from validation.results import Value, read
from validation.stages import ideal, placed

OPTIONS = Options(device="cpu", timeout=20, budget=0.2, memory=1e8)
Row = tuple[str, dict[str, Value], int, int]


def _experts(n: int, stride: int = 1, **told: Value) -> Row:
    common = {"tokens": 24, "d_model": 16, "d_ff": 32, "experts": 2 * n, "k": 2, "dtype": "fp32"}
    return "expert parallel", common | {"phase": "step"} | told, n, stride


def _ring(n: int, stride: int = 1, **told: Value) -> Row:
    common = {"heads": 2, "tokens": 16 * n, "head_dim": 16, "dtype": "fp32", "backward": True}
    return "context parallel", common | told, n, stride


def _mesh(world: int, *degrees: int, **told: Value) -> Row:
    common = dict(zip(mesh.AXES, degrees, strict=True)) | {"tokens": 8, "d_model": 16, "d_ff": 32}
    common |= {"layers": 2, "microbatches": 3 if degrees[1] > 1 else 2, "dtype": "fp32"}
    return "mesh", common | told, world, 1


def _stack(policy: str, **told: Value) -> Row:
    common = {"tokens": 24, "d_model": 16, "d_ff": 32, "layers": 3, "dtype": "fp32"}
    return "recompute", common | {"policy": policy} | told, 1, 1


def _messages(n: int, *sizes: int) -> list[Row]:
    return [
        ("all-reduce by messages", {"algorithm": name, "bytes": size, "dtype": "fp32"}, n, 1)
        for name in algorithms.ALGORITHMS
        for size in sizes
    ]


TWO = [
    *_messages(2, 4000),
    *(_experts(2), _experts(2, phase="forward"), _experts(2, experts=2, k=1), _experts(1)),
    *(_experts(2, k=4), _experts(2, tokens=2, experts=8, k=1)),  # all experts; some without a token
    *(_ring(2), _ring(2, backward=False), _ring(1)),
    *(_mesh(2, 2, 1, 1), _mesh(2, 1, 2, 1), _mesh(2, 1, 1, 2), _mesh(1, 1, 1, 1)),
    *(_stack("keep"), _stack("recompute"), _stack("offload")),
    *(_experts(2, dtype="bf16"), _ring(2, dtype="bf16"), _mesh(2, 2, 1, 1, dtype="bf16")),
    _stack("offload", dtype="bf16"),
]
FOUR = [
    *_messages(4, 4, 4000),
    *(_experts(4), _experts(4, node=2), _experts(4, node=2, k=1), _experts(4, node=2, k=8)),
    *(_experts(2, 2), _experts(2, 1), _experts(4, node=2, phase="forward")),
    *(_ring(4), _ring(4, backward=False), _ring(2, 2)),
    *(_mesh(4, 2, 1, 2), _mesh(4, 2, 2, 1), _mesh(4, 1, 2, 2)),
    *(_mesh(4, 4, 1, 1), _mesh(4, 1, 4, 1), _mesh(4, 1, 4, 1, microbatches=1)),
]


def _only(rows: list[Row], name: str, setting: Setting) -> Iterator[Case]:
    for kernel, told, size, stride in rows:
        if kernel == name:
            yield Case(kernel, told, size, stride)


def _measured(folder: Path, rows: list[Row], ranks: int) -> None:
    names = dict.fromkeys(row[0] for row in rows)
    chosen = [replace(kernels()[name], cases=partial(_only, rows, name)) for name in names]
    launch.local(OPTIONS, folder, ranks, chosen)
    found = read(folder)
    assert not [(failed.case, failed.reason) for failed in found.failed]
    wrong = [(m.case, m.max_error) for m in found.measured if m.correct != "yes"]
    assert not wrong
    assert len({m.case for m in found.measured}) == len(rows)
    for line in found.measured:
        assert (line.predicted or 0) > 0, line.case


@pytest.mark.distributed
@pytest.mark.parametrize(("ranks", "rows"), [(2, TWO), (4, FOUR)], ids=["two", "four"])
def test_results_and_gradients_are_those_of_one_process(
    tmp_path: Path, ranks: int, rows: list[Row]
) -> None:
    """Each case small enough to be compared whole; every part that is measured is predicted."""
    _measured(tmp_path, rows, ranks)


def _nothing(*arguments: object) -> None:
    """An algorithm that leaves each rank with its own array."""


def _mean(out: torch.Tensor, logs: torch.Tensor, more: torch.Tensor, other: torch.Tensor) -> None:
    out.lerp_(more, 0.5)


def _first(x: torch.Tensor, peers: object) -> torch.Tensor:
    return x.chunk(2)[0].clone()


def _same(x: torch.Tensor, send: list[int], receive: list[int], group: object) -> torch.Tensor:
    got = _all_to_all(x, send, receive, group)
    return got.flip(0) if got.is_floating_point() else got


_all_to_all = expert_layer.all_to_all
SABOTAGE: dict[str, tuple[object, str, object]] = {
    "all-reduce by messages": (
        algorithms.ALGORITHMS,
        "ring",
        replace(algorithms.ALGORITHMS["ring"], run=_nothing),
    ),
    "context parallel": (ring, "add", _mean),
    "mesh": (stage, "_scattered", _first),
    "expert parallel": (expert_layer, "all_to_all", _same),
}


def _sabotaged(prepare: Callable[[Case, Context], Work], case: Case, context: Context) -> Work:
    place, name, wrong = SABOTAGE[case.kernel]
    if isinstance(place, dict):
        place[name] = wrong
    else:
        setattr(place, name, wrong)
    return prepare(case, context)


@pytest.mark.distributed
def test_a_wrong_kernel_is_found_out(tmp_path: Path) -> None:
    """Sums not made, weights of blocks ignored, half a reduction, rows in another order."""
    rows = [_messages(2, 4000)[-1], _ring(2), _mesh(2, 2, 1, 1), _experts(2)]
    broken = [
        replace(
            kernels()[row[0]],
            cases=partial(_only, [row], row[0]),
            prepare=partial(_sabotaged, kernels()[row[0]].prepare),
        )
        for row in rows
    ]
    tally = launch.local(OPTIONS, tmp_path, 2, broken)
    assert {m.kernel for m in read(tmp_path).measured if m.correct == "no"} == set(SABOTAGE)
    assert (tally.wrong, tally.failed) == (4, 0)


# Four ranks on one link of 1 GB/s and 50 us, as ``profile.on_cpu`` has it; 1 GFLOP/s would do.
HERE = Profile(on_cpu(4))


def _expected(row: Row) -> dict[str, Expected]:
    name, told, size, stride = row
    case = Case(name, told, size, stride)
    return {e.part: e for e in kernels()[name].predict(case, HERE)}


@pytest.mark.parametrize(
    ("name", "steps", "share", "added"),
    [
        ("central rank", 2, 6, 3),
        ("chain", 6, 6, 3),
        ("butterfly", 2, 2, 2),
        ("halving-doubling", 4, 1.5, 0.75),
        ("ring", 6, 1.5, 0.75),
    ],
)
def test_messages_of_four_ranks(name: str, steps: int, share: float, added: float) -> None:
    """Counted by hand: messages that wait for one another, arrays that they carry and that are added.

    A sum reads two arrays and writes one.
    """
    told: dict[str, Value] = {"algorithm": name, "bytes": 10**8, "dtype": "fp32"}
    got = _expected(("all-reduce by messages", told, 4, 1))["comms"]
    adding = 3 * added * 1e8 / HERE.chip.hbm_bandwidth
    assert got.seconds == pytest.approx(steps * 50e-6 + share * 1e8 / LOOPBACK + adding, rel=1e-6)


@pytest.mark.parametrize(
    ("row", "slower"),
    [
        (("all-reduce by messages", {"algorithm": "chain"}, 4, 1), False),
        (("all-reduce by messages", {"algorithm": "central rank"}, 4, 1), False),
        (("all-reduce by messages", {"algorithm": "butterfly"}, 4, 1), True),
        (("all-reduce by messages", {"algorithm": "halving-doubling"}, 4, 1), True),
        (("all-reduce by messages", {"algorithm": "ring"}, 4, 1), True),
        (_ring(4, tokens=4000), True),
    ],
)
def test_who_sends_and_receives_at_once(row: Row, slower: bool) -> None:
    """A host whose links carry one direction at a time slows down those alone that use both."""
    name, told, size, stride = row
    told = {"bytes": 2**20, "dtype": "fp32"} | told
    step = ideal(HERE.chip)
    half = placed(step, ("collectives", "send-receive"), {"fraction": 0.5, "start": 0.0})
    found = []
    for fit in (step, half):
        overlay = truth().model_copy(update={"step": fit})
        case = Case(name, told, size, stride)
        parts = kernels()[name].predict(case, Profile(HERE.cluster, overlay))
        found.append(next(e.seconds for e in parts if e.part == "comms"))
    whole, halved = found
    assert (halved > 1.3 * whole) if slower else (halved == whole)


def test_a_token_goes_once_to_each_gpu_that_needs_it() -> None:
    """Top 2 of 8 experts on 4 ranks: 1 - (6·5)/(8·7) = 13/28 of 4 ranks, 3 of them not one's own.

    Forward and backward are 4 all-to-alls.
    """
    got = _expected(_experts(4, tokens=1000, d_model=1000))["comms"]
    assert got.seconds == pytest.approx(4 * (13 / 28 * 3 * 4e6 / LOOPBACK + 50e-6))
    assert got.nbytes == 16e6


def test_deduplicated_tokens_cross_once_and_are_handed_on() -> None:
    """Nodes of 2: 1 - (4·3)/(8·7) = 11/14 of tokens to the other node; then inside.

    A rank needs 13/28 of the 4 ranks' tokens; half of these came to it, half to its neighbour.
    """
    got = _expected(_experts(4, tokens=1000, d_model=1000, node=2))["comms"]
    across, inside = 11 / 14 * 4e6 / LOOPBACK, 13 / 28 * 4 / 2 * 4e6 / LOOPBACK
    assert got.seconds == pytest.approx(4 * (across + inside + 100e-6))


def test_hops_of_a_ring() -> None:
    """3 hops of k and v forward; 3 more and 4 of gradients backward; each 8 · 16 · 32 bytes a token."""
    got = _expected(_ring(4, tokens=4000))
    assert got["comms"].nbytes == 10 * 2 * 4 * 32 * 1000
    assert got["comms"].seconds == pytest.approx(10 * (256e3 / LOOPBACK + 50e-6))
    forward = _expected(_ring(4, tokens=4000, backward=False))
    assert forward["comms"].nbytes == 3 * 256e3
    # a quarter of half the square, two matmuls of 32 columns
    assert forward["math"].flops == pytest.approx(4000**2 / 2 / 4 * 4 * 32, rel=1e-3)


def test_bytes_of_a_mesh() -> None:
    """TP 2 x DP 2, 2 layers, 2 micro-batches of 8: 4 gathers a layer, and half of the gradients."""
    got = _expected(_mesh(4, 2, 1, 2))
    activations = 2 * 4 * (2 * 8) * 16 * 4
    gradients = 2 * 2 * 16 * 32 / 2 * 4
    assert got["comms"].nbytes == activations + gradients
    seconds = 16 * (activations / 16 / 2 / LOOPBACK + 50e-6) + gradients / LOOPBACK + 100e-6
    assert got["comms"].seconds == pytest.approx(seconds)


def test_a_pipeline_waits() -> None:
    """GPipe, 4 stages, 3 micro-batches: 3/3 of the work once more; 2 · 5 hops of 8 x 16 numbers."""
    got = _expected(_mesh(4, 1, 4, 1))
    hops = 10 * (8 * 16 * 4 / LOOPBACK + 50e-6)
    assert got["comms"].seconds == pytest.approx(hops)
    assert got["both"].seconds == pytest.approx(2 * got["math"].seconds + hops)


def test_what_activations_cost() -> None:
    """Recomputing is one more pass of three; the host gets D + F numbers a token and gives them back."""
    keep, again, away = (
        _expected(_stack(p, tokens=4096)) for p in ("keep", "recompute", "offload")
    )
    assert again["math"].flops == pytest.approx(keep["math"].flops * 4 / 3)
    assert again["math"].seconds > keep["math"].seconds
    assert away["math"].seconds == keep["math"].seconds
    assert away["comms"].nbytes == 2 * 3 * 4096 * (16 + 32) * 4
    assert away["both"].seconds == pytest.approx(away["math"].seconds + away["comms"].seconds)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_outputs_of_blocks_add_up(n: int) -> None:
    """Softmax over all keys is that over some put to that over the others (FlashAttention, 3.1)."""
    generator = torch.Generator().manual_seed(n)
    scores = torch.randn((1, 2, 4, 3 * n), generator=generator, dtype=torch.float64)
    values = torch.randn((1, 2, 3 * n, 5), generator=generator, dtype=torch.float64)
    parts = list(zip(scores.split(n, -1), values.split(n, -2), strict=True))
    out, logs = parts[0][0].softmax(-1) @ parts[0][1], parts[0][0].logsumexp(-1)
    for some, rows in parts[1:]:
        ring.add(out, logs, some.softmax(-1) @ rows, some.logsumexp(-1))
    assert torch.allclose(out, scores.softmax(-1) @ values)
    assert torch.allclose(logs, scores.logsumexp(-1))


@pytest.mark.parametrize("world", [1, 2, 4, 6, 8, 16])
def test_every_world_has_meshes(world: int) -> None:
    """Their degrees make up the world; several axes from four ranks on, three from eight."""
    units = (1, 8, 16) if world == 16 else (1, world)
    groups = subgroups(world, units) if world > 1 else ()
    setting = Setting("quick", world, "cuda", 4e10, groups, ("bf16",))
    found = [[case[axis] for axis in mesh.AXES] for case in mesh.cases(setting)]
    assert found
    assert {int(np.prod(degrees)) for degrees in found} == {world}
    axes = max(sum(degree > 1 for degree in degrees) for degrees in found)
    assert axes == {1: 0, 2: 1, 4: 2, 6: 2, 8: 3, 16: 3}[world]


def test_one_gpu_measures_the_math_of_strategies() -> None:
    setting = Setting("quick", 1, "cuda", 4e10, (), ("bf16",))
    for name in ("expert parallel", "context parallel", "mesh", "recompute"):
        assert list(kernels()[name].cases(setting)), name


def test_tiers_are_split_into_what_is_taken_for_nodes() -> None:
    """A node of 8 as two of 4: a child's uplink is all that its ranks have."""
    whole = Tier(8, 450e9, "node"), Tier(4, 400e9, "network")
    inner, outer, network = expert_parallel._split(whole, 4)
    assert (inner.degree, inner.bandwidth, inner.transit) == (4, 450e9, False)
    assert (outer.degree, outer.bandwidth) == (2, 1800e9)
    assert network == whole[1]
    assert [tier.degree for tier in expert_parallel._split(whole, 8)] == [8, 4]
