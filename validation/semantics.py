"""Semantics on real ranks: every collective of torch.distributed against its definition in numpy.

``cases`` builds inputs for any number of ranks with what ``roofline.semantics`` says they become;
``check`` runs them over gloo and reports where a rank holds something else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roofline import semantics
from validation.ranks import run

Held = Sequence[NDArray[np.float64] | None]


@dataclass(frozen=True, slots=True)
class Case:
    """One call: what every rank puts in, and what it must hold afterwards (None: anything)."""

    name: str
    operation: str
    inputs: Held
    expected: Held
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A case and the ranks that hold something else than they must, with what they hold."""

    case: Case
    wrong: dict[int, NDArray[np.float64]]

    @property
    def passed(self) -> bool:
        """True when every rank holds what it must."""
        return not self.wrong


def cases(ranks: int) -> list[Case]:
    """Every operation on inputs that differ on every rank and in every place."""
    whole = [np.arange(2.0 * ranks) + 1 + rank for rank in range(ranks)]
    parts = [np.array([10.0 * rank, 10.0 * rank + 1]) for rank in range(ranks)]
    last = ranks - 1
    splits = [[(source + target) % 3 for target in range(ranks)] for source in range(ranks)]
    ragged = [np.arange(float(sum(row))) + 100 * rank for rank, row in enumerate(splits)]
    at_root = [whole[last] if rank == last else None for rank in range(ranks)]
    summed = semantics.all_gather(semantics.reduce_scatter(whole))
    return [
        *(
            Case(
                f"all_reduce {op}", "all_reduce", whole, semantics.all_reduce(whole, op), {"op": op}
            )
            for op in semantics.REDUCTIONS
        ),
        *(
            Case(f"{name} {op}", name, whole, semantics.reduce_scatter(whole, op), {"op": op})
            for name in ("reduce_scatter", "reduce_scatter_single")
            for op in ("sum", "avg", "max")
        ),
        Case("all_gather", "all_gather", parts, semantics.all_gather(parts)),
        Case("all_gather_single", "all_gather_single", parts, semantics.all_gather(parts)),
        Case("reduce_scatter + all_gather", "both_halves", whole, summed),
        Case("broadcast", "broadcast", whole, semantics.broadcast(whole, last), {"root": last}),
        Case("reduce sum", "reduce", whole, semantics.reduce(whole, last), {"root": last}),
        Case("scatter", "scatter", at_root, semantics.scatter(whole[last], ranks), {"root": last}),
        Case("gather", "gather", parts, semantics.gather(parts, last), {"root": last}),
        Case("all_to_all", "all_to_all", whole, semantics.all_to_all(whole)),
        Case(
            "all_to_all, uneven",
            "all_to_all",
            ragged,
            semantics.all_to_all(ragged, splits),
            {"splits": splits},
        ),
        Case("send and receive, ring", "ring", parts, semantics.send_recv_ring(parts)),
    ]


def check(
    ranks: int = 4, timeout: float = 60, chosen: Sequence[Case] | None = None
) -> list[Outcome]:
    """Run every case (or the ``chosen`` ones) on gloo ranks and compare.

    Raises:
        validation.ranks.RanksFailed: when a rank raises, dies or takes longer than ``timeout``.
    """
    todo = cases(ranks) if chosen is None else chosen
    calls = [(case.operation, case.inputs, case.options) for case in todo]
    held = run(_perform, ranks, calls, timeout=timeout)
    return [
        Outcome(case, differences(case.expected, [results[i] for results in held]))
        for i, case in enumerate(todo)
    ]


def differences(expected: Held, held: Held) -> dict[int, NDArray[np.float64]]:
    """Ranks that do not hold what they must, with what they hold instead."""
    return {
        rank: np.asarray(got)
        for rank, (must, got) in enumerate(zip(expected, held, strict=True))
        if must is not None and (got is None or not np.array_equal(must, got))
    }


def _perform(rank: int, ranks: int, calls: Sequence[tuple[str, Held, dict[str, Any]]]) -> Held:
    """All calls one after the other on this rank."""
    import torch

    held: list[NDArray[np.float64] | None] = []
    for operation, inputs, options in calls:
        mine = inputs[rank]
        tensor = torch.empty(0) if mine is None else torch.tensor(mine)
        result = OPERATIONS[operation](tensor, rank, ranks, **options)
        held.append(None if result is None else result.numpy().copy())
    return held


def _reduction(op: str) -> Any:
    import torch.distributed as dist

    return getattr(dist.ReduceOp, op.upper())


def _all_reduce(tensor: Any, rank: int, ranks: int, op: str = "sum") -> Any:
    import torch.distributed as dist

    dist.all_reduce(tensor, _reduction(op))
    return tensor


def _reduce(tensor: Any, rank: int, ranks: int, root: int) -> Any:
    import torch.distributed as dist

    dist.reduce(tensor, root)
    return tensor if rank == root else None


def _reduce_scatter(tensor: Any, rank: int, ranks: int, op: str = "sum") -> Any:
    import torch.distributed as dist

    parts = list(tensor.chunk(ranks))
    mine = parts[rank].clone()
    dist.reduce_scatter(mine, parts, _reduction(op))
    return mine


def _reduce_scatter_single(tensor: Any, rank: int, ranks: int, op: str = "sum") -> Any:
    import torch.distributed as dist

    # Named reduce_scatter_tensor before torch 2.13, where that name warns.
    call = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    mine = tensor.new_empty(len(tensor) // ranks)
    call(mine, tensor, _reduction(op))
    return mine


def _all_gather(tensor: Any, rank: int, ranks: int) -> Any:
    import torch
    import torch.distributed as dist

    parts = [torch.empty_like(tensor) for _ in range(ranks)]
    dist.all_gather(parts, tensor)
    return torch.cat(parts)


def _all_gather_single(tensor: Any, rank: int, ranks: int) -> Any:
    import torch.distributed as dist

    # Named all_gather_into_tensor before torch 2.13, where that name warns.
    call = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    whole = tensor.new_empty(len(tensor) * ranks)
    call(whole, tensor)
    return whole


def _both_halves(tensor: Any, rank: int, ranks: int) -> Any:
    mine = _reduce_scatter_single(tensor, rank, ranks)
    return _all_gather_single(mine, rank, ranks)


def _broadcast(tensor: Any, rank: int, ranks: int, root: int) -> Any:
    import torch.distributed as dist

    dist.broadcast(tensor, root)
    return tensor


def _scatter(tensor: Any, rank: int, ranks: int, root: int) -> Any:
    import torch
    import torch.distributed as dist

    parts = list(tensor.chunk(ranks)) if rank == root else None
    mine = torch.empty(2, dtype=torch.float64)  # every part of ``cases`` has two elements
    dist.scatter(mine, parts, root)
    return mine


def _gather(tensor: Any, rank: int, ranks: int, root: int) -> Any:
    import torch
    import torch.distributed as dist

    parts = [torch.empty_like(tensor) for _ in range(ranks)] if rank == root else None
    dist.gather(tensor, parts, root)
    return None if parts is None else torch.cat(parts)


def _all_to_all(
    tensor: Any, rank: int, ranks: int, splits: Sequence[Sequence[int]] | None = None
) -> Any:
    import torch.distributed as dist

    given = list(splits[rank]) if splits else [len(tensor) // ranks] * ranks
    taken = [row[rank] for row in splits] if splits else given
    received = tensor.new_empty(sum(taken))
    dist.all_to_all_single(received, tensor, taken, given)
    return received


def _ring(tensor: Any, rank: int, ranks: int) -> Any:
    import torch
    import torch.distributed as dist

    if ranks == 1:
        return tensor  # a rank has no channel to itself
    received = torch.empty_like(tensor)
    sending = dist.isend(tensor, (rank + 1) % ranks)
    dist.recv(received, (rank - 1) % ranks)
    if sending is not None:  # None for a rank outside the group
        sending.wait()
    return received


OPERATIONS: dict[str, Callable[..., Any]] = {
    "all_reduce": _all_reduce,
    "reduce": _reduce,
    "reduce_scatter": _reduce_scatter,
    "reduce_scatter_single": _reduce_scatter_single,
    "all_gather": _all_gather,
    "all_gather_single": _all_gather_single,
    "both_halves": _both_halves,
    "broadcast": _broadcast,
    "scatter": _scatter,
    "gather": _gather,
    "all_to_all": _all_to_all,
    "ring": _ring,
}
