"""Strategies run on gloo ranks: gradients and weights after AdamW equal those of one process."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from roofline import memory
from roofline.bubbles import bubble, nearest_microbatches
from validation import launch, ranks
from validation.case import Case, Kernel, Setting, Work
from validation.context import Context, Options, open_context
from validation.kernels import data_parallel, pipeline_parallel, plans, tensor_parallel
from validation.kernels.pipeline_parallel import Message, Pass, program
from validation.kernels.plans import Op
from validation.profile import Profile, on_cpu
from validation.results import Measured, read

OPTIONS = Options(device="cpu", timeout=10, budget=0.1, memory=3e8)
# 30 weights a layer, no multiple of 4: shards are padded.
DATA = {"tokens": 6, "d_model": 5, "d_ff": 3, "layers": 3, "microbatches": 2, "dtype": "fp32"}
TENSOR = {"tokens": 8, "d_model": 6, "d_ff": 12, "layers": 3, "dtype": "fp32"}
STAGE = {"tokens": 6, "d_model": 7, "d_ff": 9, "dtype": "fp32"}
GROUPS = {1: ((1, 1),), 2: ((2, 1),), 4: ((4, 1), (2, 2))}
SCHEDULES = pipeline_parallel.SCHEDULES | pipeline_parallel.MORE
SPLIT = {"zb-h1", "zb-h2", "zb-v"}


def _data(setting: Setting) -> Iterator[Case]:
    for size, stride in GROUPS[setting.world]:
        for by, zero in data_parallel.WAYS if stride == 1 else (("hand", 0), ("hand", 3)):
            for overlap in (True, False)[: 1 + (stride == 1)]:
                if by == "hand" or (overlap and size > 1):
                    told = {"by": by, "zero": zero, "overlap": overlap} | DATA
                    yield Case("data parallel", told, size, stride)


def _tensor(setting: Setting) -> Iterator[Case]:
    for size, stride in GROUPS[setting.world]:
        for sequence in (False, True)[: 1 + (size > 1)]:
            for overlap in (True, False)[: 1 + (stride == 1)]:
                told = {"sequence": sequence, "overlap": overlap} | TENSOR
                yield Case("tensor parallel", told, size, stride)


def _pipeline(setting: Setting) -> Iterator[Case]:
    for size, stride in GROUPS[setting.world]:
        names = SCHEDULES if stride == 1 else ("1f1b", "interleaved")
        for name in names:
            chunks = SCHEDULES[name]
            told = {"schedule": name, "chunks": chunks, "microbatches": 2 * size} | STAGE
            yield Case("pipeline parallel", told | {"layers": 2 * size}, size, stride)


KERNELS = [
    replace(kernel, cases=cases)
    for (kernel,), cases in (
        (data_parallel.KERNELS, _data),
        (tensor_parallel.KERNELS, _tensor),
        (pipeline_parallel.KERNELS, _pipeline),
    )
]


@pytest.mark.distributed
@pytest.mark.parametrize("world", [1, 2, 4])
def test_every_strategy_equals_one_process(tmp_path: Path, world: int) -> None:
    """Every ZeRO stage, both tensor-parallel ways, every schedule; each of its parts measured."""
    tally = launch.local(OPTIONS, tmp_path, world, KERNELS)
    found = read(tmp_path)
    assert not found.failed
    wrong = [(m.case, m.max_error) for m in found.measured if m.correct != "yes"]
    assert not wrong
    parts: dict[str, list[str]] = {}
    for line in found.measured:
        assert (line.predicted or 0) > 0
        parts.setdefault(line.case, []).append(line.part)
    every = ["math", "comms", "both"] if world > 1 else ["math"]
    assert set(map(tuple, parts.values())) == {tuple(every)}
    assert len(parts) == tally.measured == sum(len(_all(k, world)) for k in KERNELS)


def _all(kernel: Kernel, world: int) -> list[Case]:
    return list(kernel.cases(Setting("quick", world, "cpu", 1e9, (), ("fp32",))))


def _one_of(cases: Callable[[Setting], Iterator[Case]], wanted: dict[str, object]) -> Callable:
    return partial(_chosen, cases, wanted)


def _chosen(
    cases: Callable[[Setting], Iterator[Case]], wanted: dict[str, object], setting: Setting
) -> Iterator[Case]:
    for case in cases(setting):
        if all(case[name] == value for name, value in wanted.items()):
            yield case


def _lost_scatter(case: Case, context: Context) -> Work:
    """The last layer's gradients stay at home in one micro-batch."""
    rank = data_parallel.Replica(case, context)
    rank.ops = [op for op in rank.ops if (op.kind, op.layer, op.microbatch) != ("scatter", 0, 1)]
    return Work(check=rank.check, math=lambda i: None)


def _lost_reduce(case: Case, context: Context) -> Work:
    """The input's gradient is not summed in the second block."""
    rank = tensor_parallel.Slice(case, context)
    talk = rank.talk
    rank.talk = lambda op: None if (op.layer, op.out) == (1, 1) else talk(op)  # type: ignore
    return Work(check=rank.check, math=lambda i: None)


def _mixed_up(case: Case, context: Context) -> Work:
    """The last stage takes micro-batch 1 for 0 and 0 for 1, forward."""
    rank = pipeline_parallel.Stage(case, context)
    forward, swap = rank._forward, {0: 1, 1: 0}

    def swapped(place: tuple[int, int]) -> None:
        microbatch, virtual = place
        if virtual == rank.last:
            for other in (0, 1):
                rank.pending.pop(("F", (other, virtual)), None)
            place = (swap.get(microbatch, microbatch), virtual)
        forward(place)

    rank._forward = swapped  # type: ignore[method-assign]
    return Work(check=rank.check, math=lambda i: None)


@pytest.mark.distributed
def test_what_is_lost_or_mixed_up_is_noticed(tmp_path: Path) -> None:
    """Each of these faults makes its case wrong, and only it."""
    faults = [
        Kernel("s", "", _one_of(_data, {"zero": 2, "overlap": True}), _nothing, _lost_scatter),
        Kernel("r", "", _one_of(_tensor, {"sequence": False}), _nothing, _lost_reduce),
        Kernel("m", "", _one_of(_pipeline, {"schedule": "gpipe"}), _nothing, _mixed_up),
    ]
    launch.local(OPTIONS, tmp_path, 2, faults)
    found = read(tmp_path)
    assert not found.failed
    verdicts = {(m.kernel, m.correct) for m in found.measured}
    assert verdicts == {
        (case, "no") for case in ("data parallel", "tensor parallel", "pipeline parallel")
    }


def _nothing(case: Case, profile: Profile) -> Iterator[None]:
    yield from ()


@pytest.mark.parametrize("microbatches", [1, 3])
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_a_plan_moves_what_the_paper_says(zero: int, microbatches: int) -> None:
    """ZeRO, section 7: 2, 2, 2 and 3 Ψ; an all-reduce is worth two of the others."""
    ops = data_parallel.plan(zero, 4, microbatches)
    worth = {"gather": 1, "scatter": 1, "reduce": 2}
    moved = sum(worth[op.kind] for op in ops if op.talks)
    said = memory.bytes_moved(
        4.0, zero, microbatches=microbatches, weight_bytes=1, gradient_bytes=1
    )
    assert moved == said.total


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_parts_are_predicted_together(kernel: Kernel) -> None:
    """Both takes no less than either, and no more than one after the other and the bubble."""
    profile = Profile(on_cpu(4))
    for case in _all(kernel, 4):
        found = {e.part: e for e in kernel.predict(case, profile)}
        math, comms, both = (found[part].seconds for part in ("math", "comms", "both"))
        assert both >= max(math, comms) * (1 - 1e-9)
        if case.kernel != "pipeline parallel":
            assert both <= (math + comms) * (1 + 1e-9)
            if not case["overlap"]:
                assert both == pytest.approx(math + comms)
        tokens = case["tokens"] * case.parameters.get("microbatches", 1)
        shared = case.size if case.kernel != "data parallel" else 1
        weights = 2 * case["d_model"] * case["d_ff"] * case["layers"]
        assert found["math"].flops == pytest.approx(6 * tokens * weights / shared)


def test_hidden_collectives_by_hand() -> None:
    """Two layers, F = 1, B = 2, a reduction 3, an update 1, in whole seconds.

    F F B B end at 6; the first reduction runs from 4 to 7, the second to 10, the update to 11.
    """
    times = {"forward": 1.0, "backward": 2.0, "reduce": 3.0, "update": 1.0}
    ops = data_parallel.plan(0, 2, 1)

    def time(op: Op) -> float:
        return times[op.kind]

    assert plans.seconds(ops, time) == 11
    assert plans.seconds(ops, time, overlap=False) == 13
    assert plans.alone(ops, time, talks=False) == 7


PIPELINES = [
    (name, p, m, chunks)
    for name, chunks in SCHEDULES.items()
    for p in (1, 2, 3, 4, 8)
    for m in {nearest_microbatches(name, p, 2 * p)[-1], nearest_microbatches(name, p, 7)[-1]}
]


@pytest.mark.parametrize(("name", "p", "m", "chunks"), PIPELINES)
def test_programs_meet(name: str, p: int, m: int, chunks: int) -> None:
    """Even where a send waits for its receive and a receive for its send, no rank waits forever.

    Each pass has what it needs by then, and runs once.
    """
    left = [list(program(name, p, m, chunks, device)) for device in range(p)]
    ran: list[set[Pass]] = [set() for _ in range(p)]
    had: list[set[tuple[str, tuple[int, int]]]] = [set() for _ in range(p)]
    moved = True
    while moved:
        moved = False
        for device, steps in enumerate(left):
            while steps and isinstance(one := steps[0][1], Pass):
                assert one not in ran[device]
                _ready(one, device, p, chunks, name, ran[device], had[device])
                ran[device].add(one)
                steps.pop(0)
                moved = True
            if steps and steps[0][0] == "send":
                message = steps[0][1]
                assert isinstance(message, Message)
                other = left[message.target]
                if other and other[0] == ("receive", message):
                    had[message.target].add((message.kind, message.needed))
                    steps.pop(0), other.pop(0)
                    moved = True
    assert not any(left)
    passes = 3 if name in SPLIT else 2
    assert [len(each) for each in ran] == [passes * m * chunks] * p


def _ready(
    one: Pass,
    device: int,
    p: int,
    chunks: int,
    name: str,
    ran: set[Pass],
    had: set[tuple[str, tuple[int, int]]],
) -> None:
    """What a pass waits for has come, or was made here."""
    kind, microbatch, virtual = one
    if kind == "W":
        assert Pass("B", microbatch, virtual) in ran
        return
    source = virtual - 1 if kind == "F" else virtual + 1
    if 0 <= source < p * chunks:
        here = Pass(kind, microbatch, source) in ran
        assert here or (kind, (microbatch, virtual)) in had
    if kind == "B":
        assert Pass("F", microbatch, virtual) in ran


@pytest.mark.parametrize("name", pipeline_parallel.SCHEDULES)
def test_without_messages_a_step_has_the_bubble_of_the_papers(name: str) -> None:
    """(p-1)(F+B) over v; less 2W of each with ZB-H1: the same as ``roofline.bubbles``."""
    case = next(c for c in _all(KERNELS[2], 4) if c["schedule"] == name and c.size == 4)
    line = pipeline_parallel.played(case, 2.0, 4.0, 2.0, 0.0)
    said = bubble(name, 4, 8, chunks=case["chunks"], forward=2.0, backward=4.0, weight=2.0)
    idle = {"gpipe": 18.0, "1f1b": 18.0, "interleaved": 9.0, "zb-h1": 6.0}[name]
    assert line.step == said.step == 8 * 6 + idle


def test_a_measured_line_is_predicted_anew() -> None:
    """From parameters alone, as a report does."""
    for kernel in KERNELS:
        for case in _all(kernel, 2):
            again = Case(case.kernel, dict(case.parameters), case.size, case.stride)
            profile = Profile(on_cpu(2))
            assert list(kernel.predict(again, profile)) == list(kernel.predict(case, profile))
    assert Measured.model_fields["predicted"].default is None


UNIT = 3 * 0.02  # of a pass of a whole stage [s]


def _sleeping(rank: int, world: int, names: list[str]) -> dict[str, float]:
    """Steps whose passes sleep: real messages, in real order, whatever the cores do."""
    context = open_context(OPTIONS)
    context.connect(world, 1)
    found = {}
    for name in names:
        told = {"schedule": name, "chunks": SCHEDULES[name], "microbatches": world} | STAGE
        case = Case("pipeline parallel", told | {"layers": 2 * world}, world, 1)
        stage = pipeline_parallel.Stage(case, context)
        for way in ("_forward", "_backward", "_weight"):
            setattr(stage, way, _slept(getattr(stage, way), UNIT / SCHEDULES[name]))
        taken = []
        for _ in range(8):
            context.barrier()
            start = time.perf_counter()
            stage.step()
            taken.append(time.perf_counter() - start)
        found[name] = min(taken)
    return found


def _slept(call: Callable[[tuple[int, int]], None], seconds: float) -> Callable:
    def both(place: tuple[int, int]) -> None:
        time.sleep(seconds)
        call(place)

    return both


@pytest.mark.distributed
def test_the_bubble_is_measured_as_predicted() -> None:
    """Four stages and micro-batches, F = B = W: the papers' idle time, and an eighth at most.

    The work is 12 passes. GPipe and 1F1B idle 9 more, two chunks half of that, ZB-H1 a third.
    """
    steps = ranks.run(_sleeping, 4, list(pipeline_parallel.SCHEDULES), timeout=120)
    for name, idle in {"gpipe": 9, "1f1b": 9, "interleaved": 4.5, "zb-h1": 3}.items():
        measured = max(step[name] for step in steps) / UNIT
        assert 12 + idle <= measured * 1.001
        assert measured <= (12 + idle) * 1.125, (name, measured)
