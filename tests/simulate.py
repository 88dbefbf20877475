"""Brute force: collectives carried out on small arrays, message by message, every byte counted.

Independent of ``roofline``: nothing here knows a formula. An element is one byte.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import combinations, product

import numpy as np

Arrays = list[np.ndarray]
SERVER = -1


class Wires:
    """Everyone has one wire to a switch; messages of one round travel together."""

    def __init__(self) -> None:
        self.out: dict[int, int] = defaultdict(int)
        self.into: dict[int, int] = defaultdict(int)
        self.messages = 0
        self.rounds = 0
        self.serial = 0  # bytes through the busiest wire of each round, added up

    def round(self, sent: Iterable[tuple[int, int, np.ndarray]]) -> list[tuple[int, np.ndarray]]:
        """Carry (from, to, array); nothing is a copy of what it becomes later."""
        out: dict[int, int] = defaultdict(int)
        into: dict[int, int] = defaultdict(int)
        delivered = []
        for source, target, array in sent:
            out[source] += array.size
            into[target] += array.size
            self.messages += 1
            delivered.append((target, array.copy()))
        if delivered:
            self.rounds += 1
            self.serial += max(*out.values(), *into.values())
        for total, now in ((self.out, out), (self.into, into)):
            for who, size in now.items():
                total[who] += size
        return delivered

    @property
    def busiest(self) -> int:
        """Bytes through the busiest wire in its busier direction."""
        return max([0, *self.out.values(), *self.into.values()])


def central(held: Arrays, wires: Wires, server: int) -> None:
    others = [rank for rank in range(len(held)) if rank != server]
    if not others or len(held) == 1:
        return
    total = np.zeros_like(held[0]) if server == SERVER else held[server]
    for _, array in wires.round((rank, server, held[rank]) for rank in others):
        total = total + array
    for rank, array in wires.round((server, rank, total) for rank in others):
        held[rank] = array
    if server != SERVER:
        held[server] = total


def chain(held: Arrays, wires: Wires) -> None:
    last = len(held) - 1
    for rank in range(last):
        for to, array in wires.round([(rank, rank + 1, held[rank])]):
            held[to] = held[to] + array
    for rank in range(last, 0, -1):
        for to, array in wires.round([(rank, rank - 1, held[rank])]):
            held[to] = array


def everyone(held: Arrays, wires: Wires) -> None:
    pairs = [(a, b, held[a]) for a, b in product(range(len(held)), repeat=2) if a != b]
    for to, array in wires.round(pairs):
        held[to] = held[to] + array


def butterfly(held: Arrays, wires: Wires) -> None:
    distance = 1
    while distance < len(held):
        sent = [(rank, rank ^ distance, held[rank]) for rank in range(len(held))]
        for to, array in wires.round(sent):
            held[to] = held[to] + array
        distance *= 2


def ring_reduce_scatter(held: Arrays, wires: Wires) -> None:
    """Rank i ends with part i + 1 summed."""
    n = len(held)
    parts = [np.split(array, n) for array in held]
    for step in range(n - 1):
        sent = [(i, (i + 1) % n, parts[i][(i - step) % n]) for i in range(n)]
        for to, array in wires.round(sent):
            place = (to - 1 - step) % n
            parts[to][place] = parts[to][place] + array
    held[:] = [np.concatenate(mine) for mine in parts]


def ring_all_gather(held: Arrays, wires: Wires) -> None:
    """Rank i starts with part i + 1."""
    n = len(held)
    parts = [np.split(array, n) for array in held]
    for step in range(n - 1):
        sent = [(i, (i + 1) % n, parts[i][(i + 1 - step) % n]) for i in range(n)]
        for to, array in wires.round(sent):
            parts[to][(to - step) % n] = array
    held[:] = [np.concatenate(mine) for mine in parts]


def halving_reduce_scatter(held: Arrays, wires: Wires) -> None:
    """Rank i ends with part i summed; partners swap halves of what is left."""
    n, distance = len(held), len(held) // 2
    parts = [np.split(array, n) for array in held]
    while distance:
        sent = []
        for i in range(n):
            other = i ^ distance
            block = [parts[i][p] for p in range(n) if p // distance == other // distance]
            sent.append((i, other, np.concatenate(block)))
        for to, array in wires.round(sent):
            mine = [p for p in range(n) if p // distance == to // distance]
            for p, piece in zip(mine, np.split(array, len(mine)), strict=True):
                parts[to][p] = parts[to][p] + piece
        distance //= 2
    held[:] = [np.concatenate(mine) for mine in parts]


def doubling_all_gather(held: Arrays, wires: Wires) -> None:
    """Rank i starts with part i; partners swap all they have."""
    n, distance = len(held), 1
    parts = [np.split(array, n) for array in held]
    while distance < n:
        sent = [
            (i, i ^ distance, np.concatenate([parts[i][p] for p in _block(i, distance, n)]))
            for i in range(n)
        ]
        for to, array in wires.round(sent):
            theirs = _block(to ^ distance, distance, n)
            for p, piece in zip(theirs, np.split(array, len(theirs)), strict=True):
                parts[to][p] = piece
        distance *= 2
    held[:] = [np.concatenate(mine) for mine in parts]


def _block(rank: int, size: int, n: int) -> list[int]:
    return [p for p in range(n) if p // size == rank // size]


def two_trees(held: Arrays, wires: Wires) -> None:
    """Half of the array through a binary tree over ranks 0.., half through its mirror image."""
    n, half = len(held), held[0].size // 2
    if n == 1:
        return
    parents = _tree(n)
    mirrored = {n - 1 - a: n - 1 - b for a, b in parents.items()}
    shifted = {(a + 1) % n: (b + 1) % n for a, b in parents.items()}
    pieces = ((parents, slice(0, half)), (shifted if n % 2 else mirrored, slice(half, None)))
    for tree, piece in pieces:
        depth = {rank: _depth(tree, rank) for rank in range(n)}
        for level in range(max(depth.values()), 0, -1):
            up = [(r, tree[r], held[r][piece]) for r in range(n) if depth[r] == level]
            for to, array in wires.round(up):
                held[to] = held[to].copy()
                held[to][piece] += array
        for level in range(1, max(depth.values()) + 1):
            down = [(tree[r], r, held[tree[r]][piece]) for r in range(n) if depth[r] == level]
            for to, array in wires.round(down):
                held[to] = held[to].copy()
                held[to][piece] = array


def _tree(n: int) -> dict[int, int]:
    """In-order binary tree in which even ranks are leaves, as NCCL builds it; rank → parent."""

    def build(low: int, high: int) -> int:
        root = low - 1 + 2 ** ((high - low + 1).bit_length() - 1)
        for a, b in ((low, root - 1), (root + 1, high)):
            if a <= b:
                parents[build(a, b)] = root
        return root

    parents: dict[int, int] = {}
    build(0, n - 1)
    return parents


def _depth(tree: dict[int, int], rank: int) -> int:
    return 0 if rank not in tree else 1 + _depth(tree, tree[rank])


def all_reduce(run: Callable[[Arrays, Wires], None], n: int, size: int) -> tuple[Wires, bool]:
    """Run on ``n`` ranks with ``size`` bytes each: what went over the wires; is it right?"""
    held = [np.arange(size, dtype=float) * (rank + 1) for rank in range(n)]
    total = sum(held)
    wires = Wires()
    run(held, wires)
    return wires, all(np.array_equal(array, total) for array in held)


def ring(held: Arrays, wires: Wires) -> None:
    ring_reduce_scatter(held, wires)
    ring_all_gather(held, wires)


def halving_doubling(held: Arrays, wires: Wires) -> None:
    halving_reduce_scatter(held, wires)
    doubling_all_gather(held, wires)


ALL_REDUCE: dict[str, Callable[[Arrays, Wires], None]] = {
    "central server": lambda held, wires: central(held, wires, SERVER),
    "central rank": lambda held, wires: central(held, wires, 0),
    "chain": chain,
    "everyone to everyone": everyone,
    "butterfly": butterfly,
    "halving-doubling": halving_doubling,
    "ring": ring,
}


def child(gpu: int, tier: int, degrees: tuple[int, ...]) -> int:
    """The child of ``tier`` under which a GPU sits, numbered through the machine."""
    return gpu // int(np.prod(degrees[:tier], dtype=int))


def siblings(size: int, stride: int) -> list[list[int]]:
    """The groups that share the machine's first size × stride GPUs."""
    return [[first + stride * i for i in range(size)] for first in range(stride)]


def all_gather_loads(size: int, stride: int, degrees: tuple[int, ...]) -> list[float]:
    """Bytes into the busiest child of every tier, per byte of one group's array; siblings run too.

    Outermost tier first: the children of a unit send one another what their unit has and they have
    not, handing it to whichever of their ranks has least. Only what a tier's own children exchange
    is counted at that tier.
    """
    grains = 12
    loads: list[dict[int, float]] = [defaultdict(float) for _ in degrees]
    for group in siblings(size, stride):
        held = {gpu: {(gpu, grain) for grain in range(grains)} for gpu in group}
        for tier in reversed(range(len(degrees))):
            units = defaultdict(lambda: defaultdict(list))  # type: ignore[var-annotated]
            for gpu in group:
                units[child(gpu, tier + 1, degrees)][child(gpu, tier, degrees)].append(gpu)
            for children in units.values():
                everything = {
                    shard for gpus in children.values() for g in gpus for shard in held[g]
                }
                for name, gpus in children.items():
                    lacking = everything - {shard for gpu in gpus for shard in held[gpu]}
                    loads[tier][name] += len(lacking) / (grains * size)
                    for shard in sorted(lacking):
                        held[min(gpus, key=lambda gpu: len(held[gpu]))].add(shard)
        assert all(len(shards) == grains * size for shards in held.values())
    return [max(load.values()) for load in loads]


def all_to_all_loads(
    size: int, stride: int, degrees: tuple[int, ...], transit: tuple[bool, ...]
) -> list[float]:
    """Bytes out of the busiest child of every tier, per byte of all send buffers of one group."""
    loads: list[dict[int, float]] = [defaultdict(float) for _ in degrees]
    for group in siblings(size, stride):
        for source, target in product(group, repeat=2):
            for tier in range(len(degrees)):
                leaves = child(source, tier, degrees) != child(target, tier, degrees)
                stays = child(source, tier + 1, degrees) == child(target, tier + 1, degrees)
                if leaves and (stays or transit[tier]):
                    loads[tier][child(source, tier, degrees)] += 1 / size**2
    return [max(load.values(), default=0.0) for load in loads]


def touched(experts: int, k: int, shards: int) -> float:
    """Share of the shards that hold one of a token's k experts, over every choice of them."""
    each = experts // shards
    choices = list(combinations(range(experts), k))
    return sum(len({e // each for e in choice}) for choice in choices) / len(choices) / shards


def dispatch_loads(
    gpus: int, node: int, experts: int, k: int, deduplicated: bool
) -> tuple[float, float]:
    """Bytes out of one GPU over NVLink and out of one node, per byte of all tokens.

    One token per GPU, averaged over every choice of experts. Deduplicated: a token goes once to
    each node that needs it, to the GPU in the same place as its own, which hands it on. NVLink and
    network cards are apart: what leaves the node does not use NVLink.
    """
    each = experts // gpus
    choices = list(combinations(range(experts), k))
    inside = outside = 0
    for source in range(gpus):
        for choice in choices:
            targets = {expert // each for expert in choice}
            nodes = {target // node for target in targets} - {source // node}
            remote = [target for target in targets if target // node != source // node]
            outside += len(nodes) if deduplicated else len(remote)
            for target in targets:
                place = target // node * node + source % node
                away = target != place if deduplicated else target not in (source, *remote)
                inside += away
    tokens = gpus * len(choices)
    return inside / tokens / gpus, outside / tokens / (gpus // node)
