"""Data parallelism: a step of n replicas with other tokens each, by every ZeRO stage.

    0   gradients all-reduced, a layer at a time, behind the backward pass
    1   reduce-scattered in the last micro-batch; AdamW on shards; weights gathered before they are
        used, behind the forward pass of the layers before
    2   reduce-scattered in every micro-batch
    3   weights gathered in every pass as well, one layer ahead, into two buffers

``fsdp2`` is stage 3 by torch's ``fully_shard``. Its math alone is the same layers by autograd, its
communication alone the collectives of stage 3 by hand.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from roofline import memory
from roofline.strategies import data_parallel
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
    drawn,
    settings,
    streamed,
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

# (tokens in a micro-batch, D, F, layers): the first is the quick one.
SIZES = {
    "cpu": ((64, 128, 512, 3), (32, 128, 512, 4), (128, 128, 512, 4), (64, 256, 1024, 4)),
    "cuda": (
        *((4096, 4096, 16384, 4), (1024, 4096, 16384, 4), (16384, 4096, 16384, 4)),
        *((2048, 8192, 28672, 2), (8192, 8192, 28672, 2), (4096, 2048, 8192, 8)),
    ),
}
WAYS = (("hand", 0), ("hand", 1), ("hand", 2), ("hand", 3), ("fsdp2", 3))
MICROBATCHES = 2
AHEAD = 2  # buffers of weights, and of gradients, that are made anew for every layer


def cases(setting: Setting) -> Iterator[Case]:
    """ZeRO stages, hidden and not; alone where there is one rank."""
    for group, dtype, (tokens, d_model, d_ff, layers) in settings(setting, SIZES):
        for by, zero in WAYS:
            told: dict[str, Value] = {"by": by, "zero": zero, "overlap": True}
            told |= {"tokens": tokens, "d_model": d_model, "d_ff": d_ff}
            told |= {"layers": layers, "microbatches": MICROBATCHES, "dtype": dtype}
            case = Case("data parallel", told, int(group.size), int(group.stride))
            if need(case) > setting.memory or (by == "fsdp2" and group.size == 1):
                continue
            yield case
            if by == "hand" and group.size > 1 and (zero == 0 or not setting.quick):
                apart = told | {"overlap": False}
                yield Case("data parallel", apart, case.size, case.stride)


def need(case: Case) -> float:
    """Bytes on a rank: model states, activations, and the reference beside them."""
    widths, size = widths_of(case), BYTES[case["dtype"]]
    params = case["layers"] * widths.numbers
    held = memory.model_states(
        params,
        case["zero"],
        case.size,
        bytes_per_parameter=memory.CONVENTIONS["fp32" if size == 4 else "zero"],
    )
    kept = case["layers"] * widths.tokens * 2 * (widths.d_model + widths.d_ff)
    exact = 8 if size == 4 else 4
    twice = 2 if case["by"] == "fsdp2" else 1
    return float(twice * held.total + size * kept + exact * (5 * params + kept / 2))


def plan(zero: int, layers: int, microbatches: int) -> list[Op]:
    """One step on every rank."""
    made, there = Plan(), list(range(layers))
    order = [
        (kind, layer, i)
        for i in range(microbatches)
        for kind, way in (("forward", there), ("backward", there[::-1]))
        for layer in way
    ]
    wanted = {0: [], 1: order[:layers], 2: order[:layers], 3: order}[zero]
    gathers: list[int] = []
    done: list[int] = []
    for k, (kind, layer, i) in enumerate(order):
        ahead = k + AHEAD if zero == 3 else len(wanted)
        for slot, (_, at, when) in list(enumerate(wanted))[len(gathers) : ahead]:
            gathers.append(made.add("gather", at, when, talks=True, slot=slot % AHEAD))
        needs = [gathers[k]] if k < len(wanted) else []
        out = len(done) % AHEAD
        sends = kind == "backward" and (zero >= 2 or i == microbatches - 1)
        if sends and zero >= 2 and len(done) >= AHEAD:
            needs.append(done[-AHEAD])  # its buffer is to be free
        made.add(kind, layer, i, needs=tuple(needs), slot=k % AHEAD, out=out)
        if sends:
            done.append(made.add("scatter" if zero else "reduce", layer, i, talks=True, out=out))
    made.add("update", needs=tuple(done))
    return made.ops


def planned(case: Case) -> list[Op]:
    """The case's plan."""
    return plan(case["zero"], case["layers"], case["microbatches"])


def predict(case: Case, profile: Profile) -> Iterator[Expected]:
    """Bytes by ``roofline.strategies.data_parallel``; together by the plan's critical path."""
    widths, ops = widths_of(case), planned(case)
    work = workload(case, 1.0 * widths.tokens * case["microbatches"] * case.size)
    bound = data_parallel.bound(
        work,
        profile.machine,
        case.size,
        zero=case["zero"],
        stride=case.stride,
        microbatches=case["microbatches"],
        phase="step",
    )
    calls = Counter(op.kind for op in ops if op.layer == 0)
    sent = dict.fromkeys(plans.COLLECTIVE, 0.0)  # in one collective [B]
    for term in bound.comms:
        kind = next(kind for kind, name in plans.COLLECTIVE.items() if term.name.endswith(name))
        sent[kind] += float(term.nbytes or 0.0) / calls[kind]
    times = Times.of(profile, widths, case["dtype"])
    owned = case["layers"] * widths.numbers / (case.size if case["zero"] else 1)
    taken = {"forward": times.forward, "backward": times.backward + times.weight}
    taken["update"] = update_seconds(profile, owned, case["dtype"])
    if case["zero"] >= 2 and case["by"] == "hand":  # shards of the micro-batches are added up
        more = case["microbatches"] - 1
        taken["update"] += more * streamed(profile, owned, 2, 1, BYTES[case["dtype"]])
    for kind, name in plans.COLLECTIVE.items():
        taken[kind] = profile.collective(name, sent[kind], case.group) if sent[kind] else 0.0
    flops = float(case["layers"] * (work.forward_flops + work.backward_flops)) / case.size
    yield from of_a_plan(case, profile, ops, taken, sent, flops)


class Replica:
    """One rank's weights, gradients, shards and buffers, and what it does with them."""

    def __init__(self, case: Case, context: Context) -> None:
        self.case, self.context, self.widths = case, context, widths_of(case)
        self.n, self.zero, self.ops = case.size, case["zero"], planned(case)
        self.me = context.members(case.size, case.stride).index(context.rank)
        self.group = context.group(case.size, case.stride) if self.n > 1 else None
        self.shard = -(-self.widths.numbers // self.n)  # numbers of a layer that a rank owns
        self.cut = slice(self.me * self.shard, (self.me + 1) * self.shard)
        count = self.n * case["microbatches"]
        mine = range(self.me, count, self.n)  # inputs of all ranks, numbered
        self.inputs = Inputs.of(context, case, count, mine)
        self.saved: dict[int, Saved] = {}
        self.flow = self.inputs.one_x
        self._allocate()

    def _allocate(self) -> None:
        """Whole weights up to stage 2, whole gradients up to stage 1; else a few buffers."""
        layers = self.case["layers"]
        self.room = self.drawn()  # what passes read
        self.own = [one[self.cut].clone() if self.zero else one for one in self.room]
        if self.zero == 3:
            self.room = [one.clone() for one in self.room[:AHEAD]]
        like = self.room[0]
        count = layers if self.zero < 2 else AHEAD
        # The padding behind the weights is never written: it stays zero.
        self.grads = [like.new_zeros(like.shape) for _ in range(count)]
        made = self.case["microbatches"] if self.zero >= 2 else 1
        self.scattered = [[like.new_zeros(self.shard) for _ in range(layers)] for _ in range(made)]
        self.adam = AdamW(self.own)

    def drawn(self) -> list[torch.Tensor]:
        """The weights that all begin with."""
        padded = self.shard * self.n
        layers = range(self.case["layers"])
        return [drawn(self.context, self.case, layer, padded) for layer in layers]

    def read(self, op: Op) -> torch.Tensor:
        """Where a pass finds its weights."""
        return self.room[op.slot if self.zero == 3 else op.layer]

    def made(self, op: Op) -> torch.Tensor:
        """Where a pass leaves its gradients."""
        return self.grads[op.out if self.zero >= 2 else op.layer]

    def summed(self, op: Op) -> torch.Tensor:
        """Where this rank's part of their sum goes."""
        return self.scattered[op.microbatch if self.zero >= 2 else 0][op.layer]

    def compute(self, op: Op) -> None:
        """A pass of one layer, or the update."""
        if op.kind == "update":
            self.adam.step(self.gradients())
            return
        block = Block.of(self.read(op), self.widths)
        if op.kind == "forward":
            x = self.inputs.x[op.microbatch] if op.layer == 0 else self.flow
            self.flow, self.saved[op.layer] = block.forward(x)
            return
        top = op.layer == self.case["layers"] - 1
        dy = self.inputs.dy[op.microbatch] if top else self.flow
        self.flow, saved = block.backward(dy, self.saved.pop(op.layer))
        first = self.zero >= 2 or op.microbatch == 0
        Block.of(self.made(op), self.widths).weight(saved, first=first)

    def gradients(self) -> list[torch.Tensor]:
        """Of what this rank updates."""
        if self.zero == 0:
            return self.grads
        first, *others = self.scattered
        return [sum(more, one) for one, *more in zip(first, *others, strict=True)]

    def talk(self, op: Op) -> Any:
        """Start a collective; in a group of one, copy."""
        import torch.distributed as dist

        if op.kind == "reduce":
            if self.n == 1:
                return None
            return dist.all_reduce(self.made(op), group=self.group, async_op=True)
        gathers = op.kind == "gather"
        into = self.read(op) if gathers else self.summed(op)
        given = self.own[op.layer] if gathers else self.made(op)
        if self.n == 1:
            into.copy_(given)
            return None
        return tensor_call(plans.COLLECTIVE[op.kind])(into, given, group=self.group, async_op=True)

    def step(self, *, math: bool = True, comms: bool = True) -> None:
        """All of it, or a part."""
        compute, talk = self.compute if math else None, self.talk if comms else None
        plans.run(self.ops, compute, talk, overlap=self.case["overlap"] and math)

    def reference(self) -> Reference:
        """All replicas' step by a single process."""
        return Reference.of(self.drawn(), self.inputs, self.case)

    def check(self) -> Correctness:
        """One step against the reference, which is made first: a step changes the weights."""
        reference = self.reference()
        self.step()
        self.adam.rate = 0.0
        cut = self.cut if self.zero else slice(None)
        layers = range(self.case["layers"])
        return reference.judge(layers, self.gradients(), self.adam.masters, lambda w: w[cut])


def prepare(case: Case, context: Context) -> Work:
    """A replica by hand, or torch's."""
    from validation.kernels import fsdp

    rank: Replica | fsdp.Sharded
    rank = Replica(case, context) if case["by"] == "hand" else fsdp.Sharded(case, context)
    alone = case.size == 1
    return Work(
        check=rank.check,
        math=lambda i: rank.step(comms=False),
        comms=None if alone else lambda i: rank.step(math=False),
        both=None if alone else lambda i: rank.step(),
    )


KERNELS = (Kernel("data parallel", "a step of replicas, by ZeRO stage", cases, predict, prepare),)
