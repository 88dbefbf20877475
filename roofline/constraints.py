"""Constraints on a layout, one table: where a column of layouts breaks each, and what would be right.

A constraint that ties several fields lists all that could mend it. ``roofline.fitting`` refuses
single layouts by this table, and searches the nearest that can be; a planner drops the rows of a
column that break any.

Sources: Megatron-LM, arguments.py and parallel_state.py; PyTorch, context_parallel;
https://arxiv.org/abs/2401.10241 and https://arxiv.org/abs/2412.19437 for what schedules need.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from roofline.bubbles import allowed as schedule_allows
from roofline.dims import Dims
from roofline.layout import ORDER, RING, SCHEDULE, Layout
from roofline.machine import Machine
from roofline.units import Count

# A schedule that a search finds in the memory of another needs what that one does.
SEARCHED = {"zb-2p": "zb-h2"}


class Rule(NamedTuple):
    """A constraint, the fields that could mend it, and where a column of layouts breaks it."""

    reason: str
    fields: tuple[str, ...]
    broken: Callable[[Dims, Layout], Any]
    limit: Callable[[str, Dims, Layout], str]


def _uneven(value: Count) -> Any:
    return np.abs(value - np.round(value)) > 1e-9


def _tp_of_kv(model: Dims, layout: Layout) -> Any:
    kv = np.where(np.greater(model.latent, 0), 1.0 * layout.tp, model.kv_heads)
    return _uneven(np.maximum(kv, layout.tp) / np.minimum(kv, layout.tp))


def _sequence(model: Dims, layout: Layout) -> Any:
    return _uneven(layout.sequence / sequence_unit(layout))


def sequence_unit(layout: Layout) -> Count:
    """What a sequence is cut in: a ring deals two pieces to a rank, so that causal work is even."""
    ring = np.greater(layout.cp, 1) & np.equal(layout.cp_kind, RING["ring"])
    return layout.cp * np.where(ring, 2.0, 1.0)


def _split_tokens(model: Dims, layout: Layout) -> Any:
    return _uneven(layout.sequence / (1.0 * layout.cp * layout.split))


def _ulysses(model: Dims, layout: Layout) -> Any:
    exchanged = np.greater(layout.cp, 1) & np.equal(layout.cp_kind, RING["ulysses"])
    return exchanged & _uneven(model.heads / (1.0 * layout.tp * layout.cp))


def _slots(model: Dims, layout: Layout) -> Count:
    even = np.greater(layout.even, 0)
    return model.layers + even * (2.0 + model.mtp)


def _named(model: Dims, layout: Layout) -> str:
    ends = " and slots of embedding and head" if layout.even > 0 else ""
    return f"{_slots(model, layout):g} layers{ends}"


def _etp(model: Dims, layout: Layout) -> Any:
    width = np.where(np.greater(model.moe_layers, 0), model.expert_ffn, 1.0)
    return _uneven(width / layout.etp)


def _expert_ranks(model: Dims, layout: Layout) -> Any:
    return _uneven(layout.gpus / (1.0 * layout.pp * layout.ep * layout.etp))


def _outside(model: Dims, layout: Layout) -> Any:
    outside = np.equal(layout.order, ORDER["tp-cp-pp-dp"]) & np.greater(layout.pp, 1)
    apart = np.not_equal(1.0 * layout.etp * layout.ep, 1.0 * layout.tp * layout.cp)
    return outside & np.greater(model.moe_layers, 0) & apart


def _schedule(model: Dims, layout: Layout) -> Any:
    """Enough micro-batches, in the multiples that the schedule needs; one stage needs nothing."""
    broken: Any = np.asarray(False)
    several, m = np.greater(layout.pp, 1), np.round(layout.microbatches)
    interleaved = np.greater(layout.chunks, 1)
    for name, code in SCHEDULE.items():
        chosen = np.equal(layout.schedule, code) & several
        if np.any(chosen):
            known = SEARCHED.get(name, name)
            broken = broken | (chosen & ~interleaved & ~schedule_allows(known, layout.pp, m))
    if np.any(interleaved & several):
        broken = broken | (interleaved & several & _uneven(layout.microbatches / layout.pp))
    return broken


def _schedule_limit(field: str, model: Dims, layout: Layout) -> str:
    name = list(SCHEDULE)[int(layout.schedule)]
    if layout.chunks > 1:
        return f"micro-batches ({layout.microbatches:g}) in multiples of the stages ({layout.pp:g})"
    even = " an even number of stages, and" if name == "dualpipe" else ""
    return (
        f"for {name}{even} enough micro-batches ({layout.microbatches:g}) for the stages "
        f"({layout.pp:g})"
    )


def _chunks(model: Dims, layout: Layout) -> Any:
    return np.greater(layout.chunks, 1) & np.not_equal(layout.schedule, SCHEDULE["1f1b"])


def _shard(model: Dims, layout: Layout) -> Any:
    some = np.greater(layout.shard, 0)
    parts = layout.data_ranks / np.where(some, layout.shard, 1.0)
    return some & (_uneven(parts) | np.less(parts, 1))


def _batch_limit(field: str, model: Dims, layout: Layout) -> str:
    if field == "batch":
        return f"multiples of {layout.dp:g} replicas · micro-batch {layout.micro_batch:g}"
    return f"divisors of the local batch ({layout.batch:g} over {layout.dp:g} replicas)"


RULES = (
    Rule(
        "tp must divide the heads",
        ("tp",),
        lambda model, layout: _uneven(model.heads / layout.tp),
        lambda field, model, layout: f"divisors of the {model.heads:g} heads",
    ),
    Rule(
        "tp must divide the key-value heads, or be a multiple of them",
        ("tp",),
        _tp_of_kv,
        lambda field, model, layout: (
            f"divisors or multiples of the {model.kv_heads:g} key-value heads"
        ),
    ),
    Rule(
        "cp must divide the sequence",
        ("cp", "sequence"),
        _sequence,
        lambda field, model, layout: (
            f"sequence ({layout.sequence:g}) in multiples of {sequence_unit(layout):g}, "
            f"{'2 · cp in a ring' if sequence_unit(layout) > layout.cp else 'cp'}"
        ),
    ),
    Rule(
        "tp · cp must divide the sequence where sequence parallelism splits it",
        ("tp", "cp", "sequence"),
        _split_tokens,
        lambda field, model, layout: (
            f"tp · cp ({layout.tp * layout.cp:g}) that divides the sequence ({layout.sequence:g})"
        ),
    ),
    Rule(
        "tp · cp must divide the heads under Ulysses",
        ("cp", "tp"),
        _ulysses,
        lambda field, model, layout: (
            f"tp · cp ({layout.tp * layout.cp:g}) that divides the {model.heads:g} heads"
        ),
    ),
    Rule(
        "ep must divide the experts",
        ("ep",),
        lambda model, layout: _uneven(model.experts / layout.ep),
        lambda field, model, layout: (
            f"divisors of the {model.experts:g} experts"
            if model.moe_layers
            else "1, for the model has no experts"
        ),
    ),
    Rule(
        "etp must divide the experts' width",
        ("etp",),
        _etp,
        lambda field, model, layout: (
            f"divisors of the experts' width {model.expert_ffn:g}"
            if model.moe_layers
            else "1, for the model has no experts"
        ),
    ),
    Rule(
        "stages must not exceed the layers",
        ("pp",),
        lambda model, layout: np.greater(layout.pp, _slots(model, layout)),
        lambda field, model, layout: f"stages of at most the {_named(model, layout)}",
    ),
    Rule(
        "stages · chunks must not exceed the layers",
        ("chunks", "pp"),
        lambda model, layout: np.greater(layout.pp * layout.chunks, _slots(model, layout)),
        lambda field, model, layout: (
            f"pp · chunks ({layout.pp * layout.chunks:g}) of at most the {_named(model, layout)}"
        ),
    ),
    Rule(
        "interleaving is a kind of 1F1B",
        ("chunks", "schedule"),
        _chunks,
        lambda field, model, layout: (
            f"1 chunk a stage with {list(SCHEDULE)[int(layout.schedule)]}; more with 1f1b"
        ),
    ),
    Rule(
        "tp · cp · pp must divide the GPUs",
        ("tp", "cp", "pp", "gpus"),
        lambda model, layout: _uneven(layout.dp) | np.less(layout.dp, 1),
        lambda field, model, layout: (
            f"multiples of tp · cp · pp = {layout.tp * layout.cp * layout.pp:g}"
            if field == "gpus"
            else f"tp · cp · pp ({layout.tp * layout.cp * layout.pp:g}) that divides the "
            f"{layout.gpus:g} GPUs"
        ),
    ),
    Rule(
        "ep · etp must divide tp · cp · dp",
        ("ep", "etp", "pp", "gpus"),
        _expert_ranks,
        lambda field, model, layout: (
            f"ep · etp ({layout.ep * layout.etp:g}) that divides the "
            f"{layout.gpus / layout.pp:g} GPUs of a stage"
        ),
    ),
    Rule(
        "dp outside pp needs etp · ep = tp · cp",
        ("order", "ep", "etp"),
        _outside,
        lambda field, model, layout: (
            f"with {list(ORDER)[1]} ep · etp ({layout.ep * layout.etp:g}) that is tp · cp "
            f"({layout.tp * layout.cp:g})"
        ),
    ),
    Rule(
        "replicas · micro-batch must divide the batch",
        ("micro_batch", "batch"),
        lambda model, layout: _uneven(layout.microbatches) | np.less(layout.microbatches, 1),
        _batch_limit,
    ),
    Rule(
        "the schedule needs enough micro-batches, in its multiples",
        ("micro_batch", "batch", "chunks", "pp", "schedule"),
        _schedule,
        _schedule_limit,
    ),
    Rule(
        "shard must divide the data-parallel ranks",
        ("shard",),
        _shard,
        lambda field, model, layout: (
            f"0 for all, or divisors of dp · cp = {layout.data_ranks:g} data-parallel ranks"
        ),
    ),
    Rule(
        "shard needs a ZeRO stage",
        ("zero", "shard"),
        lambda model, layout: np.greater(layout.shard, 0) & np.equal(layout.zero, 0),
        lambda field, model, layout: "1 to 3 where shard is set: stage 0 shards nothing",
    ),
    Rule(
        "reshard 0 is of ZeRO-3",
        ("reshard", "zero"),
        lambda model, layout: np.equal(layout.reshard, 0) & np.less(layout.zero, 3),
        lambda field, model, layout: "0 with zero 3 alone: other stages gather no layers",
    ),
)


def _within(gpus: float) -> Rule:
    return Rule(
        "the cluster must have the GPUs",
        ("gpus",),
        lambda model, layout: np.greater(layout.gpus, gpus),
        lambda field, model, layout: f"at most the cluster's {gpus:g}",
    )


def rules(cluster: Machine | None = None) -> tuple[Rule, ...]:
    """All constraints; with a cluster, that it has the GPUs."""
    return RULES if cluster is None else (*RULES, _within(_gpus(cluster)))


def _gpus(cluster: Machine) -> float:
    return float(math.prod(float(tier.degree) for tier in cluster.tiers))


def misfits(model: Dims, layout: Layout, cluster: Machine | None = None) -> dict[str, Any]:
    """Constraint → True where the layout breaks it, for every row of a column. Shape: the columns'.

    Degrees, batch and sequence have to be whole numbers of 1 or more, as a planner's are.
    """
    return {rule.reason: rule.broken(model, layout) for rule in rules(cluster)}
