"""Tensor parallelism: each rank has some columns of W_in and the same rows of W_out.

    whole activations    y = Σ y_r: an all-reduce per block forward, one of dx backward
    sequence parallel    x gathered, y reduce-scattered; backward dy gathered, dx reduce-scattered

The gradient of the input leaves before the weight gradients are made, which hide it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from roofline import memory
from roofline.collectives import find
from roofline.strategies import tensor_parallel
from validation.case import Case, Correctness, Expected, Kernel, Setting, Work
from validation.kernels import plans
from validation.kernels.collectives import tensor_call
from validation.kernels.data import BYTES
from validation.kernels.mlp import (
    AdamW,
    Block,
    Inputs,
    Reference,
    Saved,
    Times,
    Widths,
    drawn,
    settings,
    update_seconds,
    widths_of,
    workload,
)
from validation.kernels.plans import Op, Plan
from validation.kernels.predicted import of_a_plan
from validation.profile import Profile
from validation.results import Value

if TYPE_CHECKING:
    import torch

    from validation.context import Context

# (tokens, D, F, layers): the first is the quick one.
SIZES = {
    "cpu": ((64, 128, 512, 2), (256, 128, 512, 4), (64, 256, 1024, 4), (256, 64, 1024, 4)),
    "cuda": (
        *((4096, 4096, 16384, 4), (4096, 8192, 28672, 2), (16384, 4096, 14336, 4)),
        *((2048, 8192, 8192, 4), (8192, 8192, 3584, 4), (4096, 12288, 49152, 1)),
    ),
}
MOST = 64  # ranks; beyond them slices are thinner than any that is used


def cases(setting: Setting) -> Iterator[Case]:
    """Both ways, hidden and not; alone where there is one rank."""
    for group, dtype, (tokens, d_model, d_ff, layers) in settings(setting, SIZES, MOST):
        n = int(group.size)
        shape: dict[str, Value] = {"tokens": -(-tokens // n) * n, "d_model": d_model}
        shape |= {"d_ff": -(-d_ff // n) * n, "layers": layers, "dtype": dtype}
        for sequence, overlap in ((False, True), (True, True), (False, False), (True, False)):
            told: dict[str, Value] = {"sequence": sequence, "overlap": overlap} | shape
            case = Case("tensor parallel", told, n, int(group.stride))
            apart = not overlap and (n == 1 or setting.quick)
            if not (apart or (sequence and n == 1)) and need(case) <= setting.memory:
                yield case


def need(case: Case) -> float:
    """Bytes on a rank: model states, activations, and the reference beside them."""
    widths, size = widths_of(case), BYTES[case["dtype"]]
    params = case["layers"] * widths.numbers
    held = memory.model_states(
        params,
        tensor_parallel=case.size,
        bytes_per_parameter=memory.CONVENTIONS["fp32" if size == 4 else "zero"],
    )
    kept = case["layers"] * widths.tokens * (4 * widths.d_model + 3 * widths.d_ff)
    exact = 8 if size == 4 else 4
    return float(held.total + size * kept + exact * (5 * params + kept / 2))


def plan(layers: int, *, sequence: bool) -> list[Op]:
    """One step on every rank."""
    made = Plan()
    last: tuple[int, ...] = ()  # the collective that the next pass waits for
    there = [("forward", layer) for layer in range(layers)]
    back = [("backward", layer) for layer in reversed(range(layers))]
    for kind, layer in there + back:
        out = int(kind == "backward")  # collectives forward, and backward
        if sequence:
            last = (made.add("gather", layer, needs=last, talks=True, out=out),)
        made.add(kind, layer, needs=last)
        name = "scatter" if sequence else "reduce"
        last = (made.add(name, layer, talks=True, out=out),)
        if kind == "backward":
            made.add("weight", layer)
    made.add("update", needs=last)
    return made.ops


def planned(case: Case) -> list[Op]:
    """The case's plan."""
    return plan(case["layers"], sequence=case["sequence"])


def local(case: Case) -> Widths:
    """Sizes of a rank's slice of a block."""
    widths = widths_of(case)
    return widths._replace(d_ff=widths.d_ff // case.size)


def predict(case: Case, profile: Profile) -> Iterator[Expected]:
    """Bytes by ``roofline.strategies.tensor_parallel``; together by the plan's critical path."""
    widths, ops = local(case), planned(case)
    work = workload(case, widths.tokens)
    bound = tensor_parallel.bound(
        work,
        profile.machine,
        case.size,
        stride=case.stride,
        sequence_sharded=case["sequence"],
        phase="step",
    )
    times = Times.of(profile, widths, case["dtype"])
    taken = {"forward": times.forward, "backward": times.backward, "weight": times.weight}
    taken["update"] = update_seconds(profile, case["layers"] * widths.numbers, case["dtype"])
    sent = {}
    for kind, name in plans.COLLECTIVE.items():
        terms = [term for term in bound.comms if term.name.endswith(name)]
        # An all-reduce is counted there as the all-gathers that it is worth.
        whole = find(name).passes * max(1, len(terms))
        sent[kind] = sum(float(term.nbytes or 0.0) for term in terms) / whole
        taken[kind] = profile.collective(name, sent[kind], case.group) if sent[kind] else 0.0
    flops = float(case["layers"] * (work.forward_flops + work.backward_flops)) / case.size
    yield from of_a_plan(case, profile, ops, taken, sent, flops)


class Slice:
    """One rank's columns, and its part of the activations."""

    def __init__(self, case: Case, context: Context) -> None:
        self.case, self.context, self.ops = case, context, planned(case)
        self.whole, self.widths, self.n = widths_of(case), local(case), case.size
        self.me = context.members(case.size, case.stride).index(context.rank)
        self.group = context.group(case.size, case.stride) if self.n > 1 else None
        layers = range(case["layers"])
        self.flat = [self.slice_of(drawn(context, case, layer)) for layer in layers]
        self.grads = [one.new_zeros(one.shape) for one in self.flat]
        self.adam = AdamW(self.flat)
        self.inputs = Inputs.of(context, case, 1, [0])
        whole = self.inputs.x[0]
        self.x, self.dy = (
            one.chunk(self.n)[self.me].contiguous() if case["sequence"] else one
            for one in (whole, self.inputs.dy[0])
        )
        # Of each layer, forward and backward: what is gathered, and what is left of a sum.
        self.gathered = [[whole.clone() for _ in layers] for _ in range(2)]
        self.reduced = [[self.x.clone() for _ in layers] for _ in range(2)]
        self.partial = whole.clone()  # of a sum over the ranks
        self.flow = self.x  # what the next pass, or what is gathered for it, starts from
        self.saved: dict[int, Saved] = {}

    def slice_of(self, flat: torch.Tensor) -> torch.Tensor:
        """This rank's part of a whole layer, in one piece."""
        import torch

        f = self.widths.d_ff
        mine = slice(self.me * f, (self.me + 1) * f)
        w_in, w_out = Block.of(flat, self.whole)
        return torch.cat([w_in[:, mine].reshape(-1), w_out[mine].reshape(-1)])

    def compute(self, op: Op) -> None:
        """A pass of one layer, or the update."""
        if op.kind == "update":
            self.adam.step(self.grads)
            return
        if op.kind == "weight":
            Block.of(self.grads[op.layer], self.widths).weight(self.saved.pop(op.layer))
            return
        block = Block.of(self.flat[op.layer], self.widths)
        given = self.given(op)
        if op.kind == "forward":
            self.partial, self.saved[op.layer] = block.forward(given)
        else:
            self.partial, self.saved[op.layer] = block.backward(given, self.saved[op.layer])
        self.flow = self.reduced[op.kind == "backward"][op.layer]
        if not self.case["sequence"]:
            self.flow = self.partial

    def given(self, op: Op) -> torch.Tensor:
        """What a pass starts from: whole activations, or whole gradients of them."""
        back = op.kind == "backward"
        if self.case["sequence"]:
            return self.gathered[back][op.layer]
        top = back and op.layer == self.case["layers"] - 1
        return self.dy if top else self.x if not (back or op.layer) else self.flow

    def talk(self, op: Op) -> Any:
        """Start a collective; in a group of one, copy."""
        import torch.distributed as dist

        if op.kind == "reduce":
            if self.n == 1:
                return None
            return dist.all_reduce(self.partial, group=self.group, async_op=True)
        if op.kind == "gather":
            into, given = self.gathered[op.out][op.layer], self.rests(op)
        else:
            into, given = self.reduced[op.out][op.layer], self.partial
        return tensor_call(plans.COLLECTIVE[op.kind])(into, given, group=self.group, async_op=True)

    def rests(self, op: Op) -> torch.Tensor:
        """This rank's part of the sequence, that the next pass needs all of."""
        if not op.out and op.layer == 0:
            return self.x
        top = op.out and op.layer == self.case["layers"] - 1
        return self.dy if top else self.flow

    def step(self, *, math: bool = True, comms: bool = True) -> None:
        """All of it, or a part."""
        compute, talk = self.compute if math else None, self.talk if comms else None
        plans.run(self.ops, compute, talk, overlap=self.case["overlap"] and math)

    def check(self) -> Correctness:
        """One step against the whole model in a single process."""
        layers = range(self.case["layers"])
        weights = [drawn(self.context, self.case, layer) for layer in layers]
        reference = Reference.of(weights, self.inputs, self.case)
        self.step()
        self.adam.rate = 0.0
        return reference.judge(layers, self.grads, self.adam.masters, self.slice_of)


def prepare(case: Case, context: Context) -> Work:
    """One rank's slice."""
    rank = Slice(case, context)
    alone = case.size == 1
    return Work(
        check=rank.check,
        math=lambda i: rank.step(comms=False),
        comms=None if alone else lambda i: rank.step(math=False),
        both=None if alone else lambda i: rank.step(),
    )


KERNELS = (Kernel("tensor parallel", "blocks cut by columns and rows", cases, predict, prepare),)
