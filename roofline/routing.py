"""Routing: how many shards a token's k experts lie on, and the all-to-alls that carry it there.

With experts spread evenly over n shards and uniform routing, a shard is needed by a token with

    bound       min(k/n, 1)                       every expert on a shard of its own
    draws       1 - ((n-1)/n)^k                   k draws that may repeat an expert
    distinct    1 - C(E - E/n, k) / C(E, k)       top-k of E experts: never the same one twice

A dispatch sends every token, V0 bytes in all, to the shards that need it; a combine is its mirror
image and takes as long. With one copy per node (NVLink does the fan-out) a node sends V0/M tokens
to a share of the M nodes, (M-1)/M of them remote:

    T = V0 / W_node · (M-1)/M · min(k/M, 1)

and each GPU still hands on (d-1)/d of what its node got. Without that, every GPU that needs the
token gets a copy of its own over the network.

Sources: How to Scale Your Model, "GPUs", sections "Collectives inside a node" and "Expert
parallelism"; DeepSeek-V3 Technical Report, section 3.2.2 (node-limited routing, NVLink fan-out).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from roofline import checks
from roofline.blocks import pointwise
from roofline.collectives import ALL_TO_ALL, CollectiveTime, collective, leaving
from roofline.groups import Group, Reach, spans
from roofline.machine import TierLike
from roofline.units import Bytes, Count, Num, Seconds

Form = Literal["bound", "draws", "distinct"]


@pointwise
def reached(
    k: Count,
    shards: Count,
    *,
    form: Form = "bound",
    experts: Count | None = None,
    at_most: Count | None = None,
) -> Count:
    """Share of the ``shards`` that hold at least one of a token's k experts. [1]

    Args:
        form: ``bound`` (paper), ``draws`` (with replacement), ``distinct`` (exact, uniform top-k).
        experts: E, all of them; ``distinct`` needs it, the others only check that k <= E.
        at_most: limited routing: the experts lie on at most this many of the shards.

    Raises:
        ValueError: k above E or below 1, experts that no whole number per shard makes up.

    >>> print(reached(8, 8, form="distinct", experts=256))
    0.661831500048
    """
    k, n = np.asarray(k, float), np.asarray(shards, float)
    _check(k, n, form, experts, at_most)
    used = n if at_most is None else np.minimum(n, at_most)
    share: Num
    if form == "bound":
        share = np.minimum(k / used, 1.0)
    elif form == "draws":
        share = 1 - ((used - 1) / used) ** k
    else:
        total = np.asarray(experts, float)
        each = total / n
        share = _distinct(k, used * each if at_most is not None else total, each)
    limited: Num = share if at_most is None else share * (used / n)
    return limited


def _distinct(k: Num, pool: Num, each: Num) -> Num:
    """Chance that top-k of ``pool`` experts touches a shard of ``each`` of them."""
    k, all_, others = (np.asarray(x).astype(int) for x in (k, pool, pool - each))
    if np.any(k > all_):
        raise ValueError(f"k: {np.max(k)} experts per token, but the limit leaves {np.min(all_)}")
    if k.ndim or all_.ndim or others.size <= np.max(others):
        return _missing(k, all_, others)
    every = _missing(k, all_, np.arange(np.max(others) + 1))  # few numbers, many points
    shares: Num = every[others]
    return shares


def _missing(k: Any, all_: Any, others: Any) -> NDArray[np.float64]:
    """1 - C(others, k) / C(all, k), by logarithms of factorials."""
    log = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1.0, np.max(all_) + 1)))))  # log n!
    missed = log[others] - log[np.maximum(others - k, 0)] - (log[all_] - log[all_ - k])
    share: NDArray[np.float64] = np.where(k > others, 1.0, -np.expm1(np.minimum(missed, 0.0)))
    return share


def imbalance(loads: ArrayLike, axis: int = -1) -> Count:
    """Busiest over mean load, the factor by which uneven routing costs more; 1 without load. [1]

    >>> print(imbalance([100, 300, 200, 200]))
    1.5
    """
    loads = np.asarray(loads, float)
    idle = loads.max(axis) == 0
    factor: Num = np.where(idle, 1.0, loads.max(axis)) / np.where(idle, 1.0, loads.mean(axis))
    return factor


@pointwise
def ragged_all_to_all(
    padded_bytes: Bytes,
    k: Count,
    group: Group,
    tiers: Sequence[TierLike],
    *,
    form: Form = "bound",
    experts: Count | None = None,
    node_limit: Count | None = None,
    latency: bool = False,
) -> CollectiveTime:
    """All-to-all of a [.., N] array of which a token fills only k of the N destinations.

        T = (N-1)/N · min(k/N, 1) · V / (N W)        in one domain

    ``padded_bytes`` is V, the array with room for every destination: N times the tokens. [B]
    The other arguments are those of ``dispatch``.

    >>> from roofline.machine import Tier
    >>> print(ragged_all_to_all(1e9, 4, Group(8), [Tier(8, 450e9)]).seconds)
    0.00012152777777777777
    """
    whole = collective(ALL_TO_ALL, padded_bytes, group, tiers, latency=latency)
    node = spans(group, tiers)[0].above if node_limit is not None else 1.0
    share = reached(k, group.size, form=form, experts=experts, at_most=_times(node_limit, node))
    return replace(whole, by_tier=tuple(share * seconds for seconds in whole.by_tier))


@pointwise
def dispatch(
    token_bytes: Bytes,
    k: Count,
    group: Group,
    tiers: Sequence[TierLike],
    *,
    deduplicated: bool = True,
    form: Form = "bound",
    experts: Count | None = None,
    node_limit: Count | None = None,
    padding: Count = 1.0,
    imbalance: Count = 1.0,
    latency: bool = False,
) -> CollectiveTime:
    """Time to bring every token of an expert-parallel group to its k experts; a combine is equal.

    Args:
        token_bytes: V0 = B D b, the tokens of ALL ranks of the group, each once. [B]
        group: the ranks that hold the experts; tokens start spread evenly over them.
        deduplicated: one copy per node, handed on by NVLink; else one copy per GPU that needs it.
            A node is a unit of the innermost tier.
        form, experts: see ``reached``.
        node_limit: a token's experts lie on at most this many nodes.
        padding: bytes moved per byte needed: the capacity factor.
        imbalance: load of the busiest destination over the mean.
        latency: add α for each tier crossed.

    Raises:
        ValueError: as ``reached``; or a group that does not fit the tiers.

    >>> from roofline.machine import Tier
    >>> h100 = Tier(8, 450e9, transit=False), Tier(32, 400e9)
    >>> print(dispatch(2 * 4096 * 7168, 8, Group(64), h100).seconds * 1e6)
    128.45056
    """
    checks.at_least("token_bytes", token_bytes, 0)
    checks.above("padding", padding)
    checks.at_least("imbalance", imbalance, 1)
    factor = np.multiply(padding, imbalance)
    if not deduplicated or not tiers:
        limits = {"form": form, "experts": experts, "node_limit": node_limit, "latency": latency}
        padded = token_bytes * factor * group.size
        return ragged_all_to_all(padded, k, group, tiers, **limits)  # type: ignore[arg-type]
    reaches, n = spans(group, tiers), np.asarray(group.size, float)
    node = reaches[0].above  # ranks in one node
    nodes = np.ceil(n / node)
    gpus = reached(k, n, form=form, experts=experts, at_most=_times(node_limit, node))
    copies = reached(k, nodes, form=form, experts=experts, at_most=node_limit)
    by_tier: list[Seconds] = []
    for tier, reach in enumerate(reaches):
        share = _copied(reach, n, node, copies) if tier else _fan_out(reach, n, gpus, copies)
        by_tier.append(factor * token_bytes / reach.bandwidth() * reach.lanes() * share)
    alpha = collective(ALL_TO_ALL, 0.0, group, tiers, latency=True).latency if latency else 0.0
    return CollectiveTime(tuple(tier.name for tier in tiers), tuple(by_tier), alpha)


def _copied(reach: Reach, n: Num, node: Num, copies: Num) -> Num:
    """Between nodes: a token once to every node that needs it, per byte of V0."""
    return reach.members / node * copies * leaving(reach, n)


def _fan_out(reach: Reach, n: Num, gpus: Num, copies: Num) -> Num:
    """Inside a node: what its GPUs need and did not get themselves, and what passes through."""
    inside = gpus * (reach.degree - 1) / reach.above
    return inside + (copies / reach.above * (n - reach.above) / n if reach.tier.transit else 0.0)


def _times(limit: Count | None, ranks: Num) -> Count | None:
    return None if limit is None else limit * ranks


def _check(k: Num, n: Num, form: Form, experts: Count | None, at_most: Count | None) -> None:
    if form not in get_args(Form):
        raise ValueError(f"form: {form!r} is not one; allowed: {', '.join(get_args(Form))}")
    for field, value in (("k", k), ("shards", n), ("at_most", at_most)):
        if value is not None and not np.all(np.greater_equal(value, 1)):
            raise ValueError(f"{field}: {np.min(value):g} is refused; allowed: 1 and more")
    if experts is None:
        if form == "distinct":
            raise ValueError("experts: distinct needs the number of experts")
        return
    if np.any(np.greater(k, experts)):
        raise ValueError(f"k: {np.max(k):g} experts per token, but there are {np.min(experts):g}")
    each = np.divide(experts, n)
    if form == "distinct" and np.any(each != np.floor(each)):
        raise ValueError(_indivisible(np.asarray(experts, float), n))


def _indivisible(experts: NDArray[np.float64], n: Num) -> str:
    """Which shards do not divide the experts, and those next to them that do."""
    points = np.broadcast_arrays(experts, n)
    first = int(np.argmax(np.mod(*points) != 0))
    total, shards = (int(point.flat[first]) for point in points)
    divisors = [d for d in range(1, total + 1) if total % d == 0]
    near = {
        max(d for d in divisors if d <= shards),
        min((d for d in divisors if d > shards), default=total),
    }
    return (
        f"experts: {total} do not spread evenly over {shards} shards; "
        f"the nearest that do are {' and '.join(map(str, sorted(near)))}"
    )
