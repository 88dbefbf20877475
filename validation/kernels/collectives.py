"""Every collective of ``roofline.collectives`` over sizes and groups, checked by ``semantics``.

``bytes`` is the whole array V of one group, as the formulas have it: what an all-gather ends with,
what each rank of an all-reduce holds, all send buffers of an all-to-all together. A message from
point to point goes from the first of a pair to the second; in a send-receive every rank sends one to
the next of its group and gets one from the rank before, at once.

To check arrays of any size, a small problem is solved by ``roofline.semantics`` in units of a few
numbers; the large one has each unit many times over, so each place has a known value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from roofline import semantics
from roofline.groups import Group
from validation.case import Case, Correctness, Expected, Kernel, Setting, Work
from validation.kernels.data import BYTES, copies, sizes, torch_dtype
from validation.kernels.links import Peers
from validation.profile import Profile
from validation.results import Value

if TYPE_CHECKING:
    import torch

    from validation.context import Context

UNIT = 64  # numbers that are repeated
LARGEST = 4  # of the whole numbers that are sent: sums of 64 ranks are exact in bf16
LARGE = {"cpu": 2**28, "cuda": 2**33}  # largest array of the full suite [B]
# Of the quick suite's first group: neighbours, so that each half has a start and a rate.
QUICK = {"cpu": (2**10, 2**14, 2**20, 2**22), "cuda": (2**10, 2**16, 2**22, 2**28)}
HOT = 2  # what rank 0 of an uneven all-to-all gets, over what each other gets

Array = NDArray[np.float64]
Splits = list[list[int]]


@dataclass(frozen=True, slots=True)
class Plan:
    """A case in units: what each rank puts in and must hold, and how often a unit is repeated."""

    inputs: list[Array]  # of each rank of the group
    expected: list[Array | None]
    unit: int  # numbers
    repeat: int
    splits: Splits | None = None  # units from rank i to rank j

    def spread(self, units: Array, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """The large array: every unit as often as it is repeated."""
        import torch

        rows = torch.from_numpy(units.reshape(-1, 1, self.unit)).to(device=device, dtype=dtype)
        return rows.expand(-1, self.repeat, -1).reshape(-1)

    def error(self, rank: int, got: torch.Tensor) -> float:
        """Largest difference from what ``rank`` must hold; infinite where the size is wrong."""
        import torch

        must = self.expected[rank]
        if must is None:
            return 0.0
        if got.numel() != must.size * self.repeat:
            return float("inf")
        if not must.size:
            return 0.0
        units = torch.from_numpy(must.reshape(-1, 1, self.unit)).to(got)
        return float((got.view(-1, self.repeat, self.unit) - units).abs().max())


@dataclass(frozen=True, slots=True)
class Operation:
    """One collective: how much of V a rank puts in, what it means, and how torch is told."""

    name: str
    blocks: Callable[[int], int]  # of V/n that a rank puts in
    meaning: Callable[[list[Array], Plan | None], list[Array | None]]
    call: Callable[..., torch.Tensor]  # (tensor, result, ranks, rank, group, splits)
    results: Callable[[int], int]  # of V/n that a rank ends with


def cases(operation: str, setting: Setting) -> Iterator[Case]:
    """Sizes by groups; pairs where a message goes from point to point."""
    dtype = "bf16" if setting.device == "cuda" else "fp32"
    for group in _groups(setting, operation):
        for nbytes in _sizes(setting, first=group == setting.groups[0]):
            sent: dict[str, Value] = {"bytes": nbytes, "dtype": dtype}
            size, stride = int(group.size), int(group.stride)
            yield Case(operation, sent, size, stride)
            if operation == "all-to-all" and size > 2:
                yield Case(operation, sent | {"uneven": True}, size, stride)


def _groups(setting: Setting, operation: str) -> Sequence[Group]:
    if operation != "point-to-point":
        return setting.groups
    strides = {int(group.stride): None for group in setting.groups} | {setting.world // 2: None}
    return [Group(2, stride) for stride in strides if setting.world % (2 * max(stride, 1)) == 0]


def _sizes(setting: Setting, *, first: bool) -> list[int]:
    if not setting.quick:
        return sizes(setting, 1024, LARGE[setting.device], 4)
    quick = QUICK[setting.device]
    if not first:
        return sizes(setting, 2**20, quick[-1], 256)
    return [nbytes for nbytes in quick if nbytes <= setting.memory / 6]


def predict(case: Case, profile: Profile) -> Iterator[Expected]:
    """``roofline.collectives``; of an uneven all-to-all, as if all had as much as the busiest.

    No less than the launches take, of a benchmark one thread of which calls for several GPUs.
    """
    nbytes = float(_numbers(case)[0] * BYTES[case["dtype"]])
    busiest = _imbalance(case.size) if case.parameters.get("uneven") else 1.0
    seconds = profile.collective(case.kernel, nbytes * busiest, case.group)
    if threaded := case.parameters.get("per_thread"):
        seconds = max(seconds, profile.launches(case.kernel, case.size, int(threaded)))
    yield Expected("comms", seconds, nbytes=nbytes)


def prepare(case: Case, context: Context) -> Work:
    """Rotated buffers, and the call."""
    operation = OPERATIONS[case.kernel]
    ranks = context.members(case.size, case.stride)
    me, group = ranks.index(context.rank), context.group(case.size, case.stride)
    plan = _plan(case, operation)
    dtype, device = torch_dtype(case["dtype"]), context.device
    mine = plan.spread(plan.inputs[me], dtype, device)
    splits = _scaled(plan, me)
    amount = _ends_with(plan, operation, me, case.size)
    held = [
        (mine.clone(), mine.new_empty(amount))
        for _ in range(copies(context, (mine.numel() + amount) * mine.element_size()))
    ]

    def call(i: int) -> torch.Tensor:
        tensor, result = held[i % len(held)]
        return operation.call(tensor, result, ranks, me, group, splits)

    def check() -> Correctness:
        got = operation.call(mine.clone(), held[0][1], ranks, me, group, splits)
        context.synchronize()
        exact = LARGEST * case.size <= 2**8
        return Correctness(plan.error(me, got), 0.0 if exact else LARGEST * case.size / 2**8)

    return Work(check=check, comms=call)


def _numbers(case: Case) -> tuple[int, int, int]:
    """Numbers of the whole array, of a unit, and how often a unit is repeated."""
    blocks = case.size
    if case.parameters.get("uneven"):
        blocks *= case.size - 1 + HOT
    elif case.kernel == "all-to-all":
        blocks *= case.size
    each = max(1, int(case["bytes"]) // BYTES[case["dtype"]] // blocks)
    unit = min(each, UNIT)
    return blocks * (each // unit) * unit, unit, each // unit


def _plan(case: Case, operation: Operation) -> Plan:
    _, unit, repeat = _numbers(case)
    n = case.size
    weights = [HOT if target == 0 else 1 for target in range(n)]
    splits = [weights for _ in range(n)] if case.parameters.get("uneven") else None
    units = sum(weights) if splits else operation.blocks(n)
    rng = np.random.default_rng(n)
    draw = rng.integers(-LARGEST, LARGEST, size=(n, units * unit), endpoint=True).astype(float)
    inputs = list(draw)
    bare = Plan(inputs, [], unit, repeat, splits)
    return Plan(inputs, operation.meaning(inputs, bare), unit, repeat, splits)


def _imbalance(n: int) -> float:
    """What rank 0 of an uneven all-to-all gets, over the mean."""
    return HOT * n / (n - 1 + HOT)


def _scaled(plan: Plan, me: int) -> tuple[list[int], list[int]] | None:
    """Numbers that this rank gets from each and gives to each."""
    if plan.splits is None:
        return None
    numbers = plan.unit * plan.repeat
    return (
        [row[me] * numbers for row in plan.splits],
        [units * numbers for units in plan.splits[me]],
    )


def _ends_with(plan: Plan, operation: Operation, me: int, n: int) -> int:
    """Numbers of this rank's result buffer."""
    units = sum(row[me] for row in plan.splits) if plan.splits else operation.results(n)
    return units * plan.unit * plan.repeat


def _exchanged(inputs: list[Array], plan: Plan | None) -> list[Array | None]:
    assert plan is not None
    splits = plan.splits and [[units * plan.unit for units in row] for row in plan.splits]
    return list(semantics.all_to_all(inputs, splits))


def tensor_call(name: str) -> Callable[..., Any]:
    """torch's all-gather or reduce-scatter of one tensor: (result, tensor, group, async_op).

    Renamed in torch 2.13, where the old names warn.
    """
    import torch.distributed as dist

    new, old = {
        "all-gather": ("all_gather_single", "all_gather_into_tensor"),
        "reduce-scatter": ("reduce_scatter_single", "reduce_scatter_tensor"),
    }[name]
    found: Callable[..., Any] = getattr(dist, new, None) or getattr(dist, old)
    return found


def _all_gather(tensor: Any, result: Any, *about: Any) -> Any:
    tensor_call("all-gather")(result, tensor, group=about[2])
    return result


def _reduce_scatter(tensor: Any, result: Any, *about: Any) -> Any:
    tensor_call("reduce-scatter")(result, tensor, group=about[2])
    return result


def _all_reduce(tensor: Any, result: Any, *about: Any) -> Any:
    import torch.distributed as dist

    dist.all_reduce(tensor, group=about[2])
    return tensor


def _all_to_all(tensor: Any, result: Any, *about: Any) -> Any:
    import torch.distributed as dist

    received, given = about[3] or (None, None)
    dist.all_to_all_single(result, tensor, received, given, group=about[2])
    return result


def _broadcast(tensor: Any, result: Any, ranks: list[int], *about: Any) -> Any:
    import torch.distributed as dist

    dist.broadcast(tensor, ranks[0], group=about[1])
    return tensor


def _reduce(tensor: Any, result: Any, ranks: list[int], *about: Any) -> Any:
    import torch.distributed as dist

    dist.reduce(tensor, ranks[0], group=about[1])
    return tensor


def _scatter(tensor: Any, result: Any, ranks: list[int], me: int, group: Any, _: Any) -> Any:
    import torch.distributed as dist

    parts = list(tensor.chunk(len(ranks))) if me == 0 else None
    dist.scatter(result, parts, ranks[0], group=group)
    return result


def _gather(tensor: Any, result: Any, ranks: list[int], me: int, group: Any, _: Any) -> Any:
    import torch.distributed as dist

    parts = list(result.chunk(len(ranks))) if me == 0 else None
    dist.gather(tensor, parts, ranks[0], group=group)
    return result


def _send(tensor: Any, result: Any, ranks: list[int], me: int, group: Any, _: Any) -> Any:
    import torch.distributed as dist

    if me == 0:
        dist.send(tensor, ranks[1], group=group)
        return tensor
    dist.recv(result, ranks[0], group=group)
    return result


def _swap(tensor: Any, result: Any, ranks: list[int], me: int, group: Any, _: Any) -> Any:
    n = len(ranks)
    Peers(ranks, me, group).swap(tensor, (me + 1) % n, result, (me - 1) % n)
    return result


def _one(n: int) -> int:
    return 1


def _all(n: int) -> int:
    return n


OPERATIONS = {
    row.name: row
    for row in (
        Operation(
            "all-gather", _one, lambda x, _: list(semantics.all_gather(x)), _all_gather, _all
        ),
        Operation(
            "reduce-scatter",
            _all,
            lambda x, _: list(semantics.reduce_scatter(x)),
            _reduce_scatter,
            _one,
        ),
        Operation(
            "all-reduce", _all, lambda x, _: list(semantics.all_reduce(x)), _all_reduce, _one
        ),
        Operation("all-to-all", _all, _exchanged, _all_to_all, _all),
        Operation(
            "broadcast", _all, lambda x, _: list(semantics.broadcast(x, 0)), _broadcast, _one
        ),
        Operation("reduce", _all, lambda x, _: semantics.reduce(x, 0), _reduce, _one),
        Operation(
            "scatter", _all, lambda x, _: list(semantics.scatter(x[0], len(x))), _scatter, _one
        ),
        Operation("gather", _one, lambda x, _: semantics.gather(x, 0), _gather, _all),
        Operation("point-to-point", _all, lambda x, _: [None, x[0]], _send, _all),
        Operation(
            "send-receive", _all, lambda x, _: list(semantics.send_recv_ring(x)), _swap, _all
        ),
    )
}
KERNELS = tuple(
    Kernel(name, f"{name} over sizes and groups", partial(cases, name), predict, prepare)
    for name in OPERATIONS
)
