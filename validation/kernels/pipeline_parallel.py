"""Pipeline parallelism: p stages, m micro-batches, in the order that ``roofline.schedule`` plays.

A rank does its passes in the order of its device. A message leaves when its pass is done; where it
goes it is waited for by the pass that needs it. All ranks take messages in one order, that in which
the simulation sends them, so whoever sends meets whoever receives, whatever the backend.

Its math alone is all passes of a rank without a message. What both together take beyond it is the
bubble, and messages that nothing hides.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from roofline import memory
from roofline.bubbles import bubble
from roofline.orders import ways
from roofline.schedule import timeline
from roofline.strategies import pipeline_parallel
from roofline.timeline import Timeline
from validation.case import Case, Correctness, Expected, Kernel, Setting, Work
from validation.kernels.data import BYTES
from validation.kernels.mlp import (
    AdamW,
    Block,
    Inputs,
    Reference,
    Saved,
    Times,
    drawn,
    settings,
    update_seconds,
    widths_of,
    workload,
)
from validation.kernels.predicted import together
from validation.profile import Profile
from validation.results import Value

if TYPE_CHECKING:
    import torch

    from validation.context import Context

# (tokens in a micro-batch, D, F): the first is the quick one.
SIZES = {
    "cpu": ((32, 128, 512), (128, 128, 512), (64, 256, 1024), (256, 64, 512)),
    "cuda": ((4096, 2048, 8192), (1024, 4096, 16384), (4096, 4096, 16384), (8192, 3072, 8192)),
}
SCHEDULES = {"gpipe": 1, "1f1b": 1, "interleaved": 2, "zb-h1": 1}  # chunks
MORE = {"zb-h2": 1, "zb-v": 2}
LAYERS = 2  # of a stage
PER_STAGE = 2  # micro-batches
MOST = 16  # stages: every rank has all layers once, for the reference

Place = tuple[int, int]  # micro-batch and virtual stage


def cases(setting: Setting) -> Iterator[Case]:
    """Schedules; alone where there is one rank."""
    for group, dtype, (tokens, d_model, d_ff) in settings(setting, SIZES, MOST):
        p = int(group.size)
        for name, chunks in (SCHEDULES if setting.quick else SCHEDULES | MORE).items():
            told: dict[str, Value] = {"schedule": name, "chunks": chunks}
            told |= {"microbatches": PER_STAGE * p, "layers": LAYERS * p, "tokens": tokens}
            told |= {"d_model": d_model, "d_ff": d_ff, "dtype": dtype}
            case = Case("pipeline parallel", told, p, int(group.stride))
            if need(case) <= setting.memory:
                yield case


def need(case: Case) -> float:
    """Bytes on a rank: model states, activations, and the reference beside them."""
    widths, size = widths_of(case), BYTES[case["dtype"]]
    params = case["layers"] * widths.numbers
    held = memory.model_states(
        params,
        pipeline_parallel=case.size,
        bytes_per_parameter=memory.CONVENTIONS["fp32" if size == 4 else "zero"],
    )
    row = bubble(case["schedule"], case.size, case["microbatches"], chunks=case["chunks"])
    each = widths.tokens * 2 * (widths.d_model + widths.d_ff)
    exact = 8 if size == 4 else 4
    kept = size * each * LAYERS * float(row.in_flight)
    again = exact * (5 * params + case["layers"] * each / 2)
    return float(held.total + kept + again)


def played(case: Case, forward: float, backward: float, weight: float, send: float) -> Timeline:
    """The case's schedule in time."""
    return timeline(
        case["schedule"],
        case.size,
        case["microbatches"],
        chunks=case["chunks"],
        forward=forward,
        backward=backward,
        weight=weight,
        send=send,
    )


def predict(case: Case, profile: Profile) -> Iterator[Expected]:
    """``roofline.bubbles`` of the passes; with messages, ``roofline.schedule``."""
    widths, p, m = widths_of(case), case.size, case["microbatches"]
    here = case["layers"] // p
    times = Times.of(profile, widths, case["dtype"])
    passes = {"forward": here * times.forward, "weight": here * times.weight}
    passes["backward"] = here * (times.backward + times.weight)
    update = update_seconds(profile, here * widths.numbers, case["dtype"])
    work = workload(case, 1.0 * widths.tokens * m)
    flops = float(case["layers"] * (work.forward_flops + work.backward_flops)) / p
    busy = float(bubble(case["schedule"], p, m, chunks=case["chunks"], **passes).work)
    yield Expected("math", busy + update, flops)
    if p == 1:
        return
    bound = pipeline_parallel.bound(
        work,
        profile.machine,
        p,
        microbatches=m,
        chunks=case["chunks"],
        stride=case.stride,
        phase="step",
    )
    message = BYTES[case["dtype"]] * 1.0 * widths.tokens * widths.d_model
    nbytes = sum(float(term.nbytes or 0.0) for term in bound.comms)
    hop = profile.collective("point-to-point", message, case.group)
    comms = nbytes / message * hop
    yield Expected("comms", comms, nbytes=nbytes)
    # The schedule knows when messages come, but not that a link has one at a time.
    apart, waiting = (played(case, **passes, send=send).step + update for send in (0.0, hop))
    overlapped = max(waiting, comms)
    both = together(profile, apart, comms, apart + comms - overlapped)
    yield Expected("both", both, flops, nbytes)


class Message(NamedTuple):
    """Activations or their gradients, between two devices."""

    kind: str  # F or B
    source: int  # device
    target: int
    made: Place
    needed: Place


class Pass(NamedTuple):
    """A pass of one chunk."""

    kind: str  # F, B, or W where weight gradients come by themselves
    microbatch: int
    virtual: int


Step = tuple[str, Pass | Message]  # pass, receive, send


@lru_cache(maxsize=32)
def program(
    name: str, stages: int, microbatches: int, chunks: int, device: int
) -> tuple[Step, ...]:
    """What a device does: its passes, receives as early as can be, sends as soon as they can."""
    line = timeline(name, stages, microbatches, chunks=chunks)
    where = ways(name, line.size)[0]

    def place(row: int) -> Place:
        held = np.flatnonzero(where == line.device[row])
        chunk = int(line.chunk[row])
        return int(line.microbatch[row]), int(next(j for j in held if j // stages == chunk))

    order = np.lexsort((line.messages.source, line.end[line.messages.source]))
    mine: list[tuple[int, Message]] = []  # the row that sends, if it is one of this device
    for at in order:
        source, target = int(line.messages.source[at]), int(line.messages.target[at])
        ends = int(line.device[source]), int(line.device[target])
        if device in ends:
            kind = str(line.messages.kind[at])
            mine.append((source, Message(kind, *ends, place(source), place(target))))
    steps: list[Step] = []
    for row in np.flatnonzero(line.device == device):
        while mine and mine[0][1].target == device and line.end[mine[0][0]] < line.end[row]:
            steps.append(("receive", mine.pop(0)[1]))
        steps.append(("pass", Pass(str(line.kind[row]), *place(int(row)))))
        while any(source == row for source, _ in mine):
            message = mine.pop(0)[1]
            steps.append(("send" if message.source == device else "receive", message))
    return tuple(steps)


class Stage:
    """One rank's layers, and what it does with them."""

    def __init__(self, case: Case, context: Context) -> None:
        self.case, self.context, self.widths = case, context, widths_of(case)
        self.p, self.m, self.chunks = case.size, case["microbatches"], case["chunks"]
        self.ranks = context.members(case.size, case.stride)
        self.me = self.ranks.index(context.rank)
        self.group = context.group(case.size, case.stride) if self.p > 1 else None
        self.steps = program(case["schedule"], self.p, self.m, self.chunks, self.me)
        self.split = any(isinstance(one, Pass) and one.kind == "W" for _, one in self.steps)
        virtual = sorted({one.virtual for _, one in self.steps if isinstance(one, Pass)})
        each = case["layers"] // (self.p * self.chunks)
        self.layers = {j: range(j * each, (j + 1) * each) for j in virtual}
        mine = [layer for j in virtual for layer in self.layers[j]]
        self.flat = {layer: drawn(context, case, layer) for layer in mine}
        self.grads = {layer: one.new_zeros(one.shape) for layer, one in self.flat.items()}
        self.adam = AdamW(list(self.flat.values()))
        self.inputs = Inputs.of(context, case, self.m, range(self.m))
        self.any = self.inputs.one_x  # what stands in for messages when there are none
        self.last = self.p * self.chunks - 1
        self._begin()

    def _begin(self) -> None:
        self.made: dict[tuple[str, Place], torch.Tensor] = {}  # by the virtual stage it goes to
        self.pending: dict[tuple[str, Place], Any] = {}
        self.sent: list[tuple[Any, torch.Tensor]] = []
        self.saved: dict[Place, list[Saved]] = defaultdict(list)
        self.fresh = set(self.flat)

    def step(self, *, math: bool = True, comms: bool = True) -> None:
        """All of it, or a part."""
        self._begin()
        for kind, one in self.steps:
            if isinstance(one, Message):
                if comms:
                    self._talk(kind, one)
                continue
            place = (one.microbatch, one.virtual)
            if one.kind != "W":
                work = self.pending.pop((one.kind, place), None)
                if work is not None:
                    work.wait()
            if math:
                {"F": self._forward, "B": self._backward, "W": self._weight}[one.kind](place)
        for work, _ in self.sent:
            work.wait()
        if math:
            self.adam.step(list(self.grads.values()))

    def _talk(self, kind: str, message: Message) -> None:
        """Start to send or to receive; what is sent is kept until it has gone."""
        import torch
        import torch.distributed as dist

        key = message.kind, message.needed
        if kind == "send":
            tensor = self.made.pop(key, self.any)
            to = self.ranks[message.target]
            self.sent.append((dist.isend(tensor, to, group=self.group), tensor))
        else:
            self.made[key] = torch.empty_like(self.any)
            source = self.ranks[message.source]
            self.pending[key] = dist.irecv(self.made[key], source, group=self.group)

    def _forward(self, place: Place) -> None:
        microbatch, virtual = place
        x = self.inputs.x[microbatch] if virtual == 0 else self.made.pop(("F", place), self.any)
        for layer in self.layers[virtual]:
            x, saved = Block.of(self.flat[layer], self.widths).forward(x)
            self.saved[place].append(saved)
        if virtual == self.last:
            self.made["B", place] = self.inputs.dy[microbatch]
        else:
            self.made["F", (microbatch, virtual + 1)] = x

    def _backward(self, place: Place) -> None:
        microbatch, virtual = place
        dy = self.made.pop(("B", place), self.any)
        saved = self.saved[place]
        for at, layer in reversed(list(enumerate(self.layers[virtual]))):
            dy, saved[at] = Block.of(self.flat[layer], self.widths).backward(dy, saved[at])
        if virtual > 0:
            self.made["B", (microbatch, virtual - 1)] = dy
        if not self.split:
            self._weight(place)

    def _weight(self, place: Place) -> None:
        for layer, saved in zip(self.layers[place[1]], self.saved.pop(place), strict=True):
            first = layer in self.fresh
            self.fresh.discard(layer)
            Block.of(self.grads[layer], self.widths).weight(saved, first=first)

    def check(self) -> Correctness:
        """One step against the whole model in a single process."""
        weights = [drawn(self.context, self.case, i) for i in range(self.case["layers"])]
        reference = Reference.of(weights, self.inputs, self.case)
        self.step()
        self.adam.rate = 0.0
        grads = list(self.grads.values())
        return reference.judge(list(self.flat), grads, self.adam.masters)


def prepare(case: Case, context: Context) -> Work:
    """One rank's stage."""
    rank = Stage(case, context)
    alone = case.size == 1
    calls: dict[str, Callable[[int], None]] = {
        "comms": lambda i: rank.step(math=False),
        "both": lambda i: rank.step(),
    }
    return Work(
        check=rank.check,
        math=lambda i: rank.step(comms=False),
        **({} if alone else calls),
    )


KERNELS = (Kernel("pipeline parallel", "stages, by schedule", cases, predict, prepare),)
