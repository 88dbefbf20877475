"""All-reduces put together from messages, against ``roofline.algorithms``.

central rank       one rank takes all arrays, adds them and gives the sum out
chain              sums go from rank to rank, and the result comes back the same way
butterfly          whole arrays with a partner at distance 1, 2, 4
halving-doubling   half arrays, quarters, eighths; then back
ring               n-1 steps of a reduce-scatter, n-1 of an all-gather, V/n in each

In the last three every rank sends while it receives, so they take what such messages do. Adding
is part of an all-reduce, and so of the time: what was received is read, and added to what is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import log2
from typing import TYPE_CHECKING

from roofline import algorithms
from roofline.groups import Group
from validation.case import Case, Correctness, Expected, Kernel, Setting, Work
from validation.kernels.data import BYTES, compare, copies, random, sizes
from validation.kernels.links import Peers
from validation.profile import Profile
from validation.results import Value

if TYPE_CHECKING:
    import torch

    from validation.context import Context

MOST_RANKS = 64  # a chain of thousands shows nothing new
PROBE = 1e9  # two messages, of nothing and of so much, tell a link's rate [B]


def cases(setting: Setting) -> Iterator[Case]:
    """Algorithms by sizes, over the largest groups that they can serve."""
    dtype = "bf16" if setting.device == "cuda" else "fp32"
    for group in setting.groups[: 1 if setting.quick else 3]:
        n = int(group.size)
        for name in ALGORITHMS:
            if n > MOST_RANKS or (algorithms.find(name).powers_of_two and n & (n - 1)):
                continue
            for nbytes in _sizes(setting):
                told: dict[str, Value] = {"algorithm": name, "bytes": nbytes, "dtype": dtype}
                yield Case("all-reduce by messages", told, n, int(group.stride))


def _sizes(setting: Setting) -> list[int]:
    largest = {"cpu": (2**20, 2**24), "cuda": (2**28, 2**28)}[setting.device]
    return sizes(setting, 4096, largest[not setting.quick], 256 if setting.quick else 16)


def predict(case: Case, profile: Profile) -> Iterator[Expected]:
    """``roofline.algorithms`` on links as their messages find them, and the sums between."""
    link, n, row = Group(case.size, case.stride), case.size, ALGORITHMS[case["algorithm"]]
    message = "send-receive" if row.both_ways else "point-to-point"
    start = profile.collective(message, 0.0, link)
    rate = PROBE / (profile.collective(message, PROBE, link) - start)
    nbytes = float(_numbers(case) * BYTES[case["dtype"]])
    seconds = float(algorithms.time(case["algorithm"], nbytes, n, rate, start))
    sums, arrays = row.sums(n)
    adding = float(profile.streams().seconds(3 * nbytes * arrays, sums))
    yield Expected("comms", seconds + adding, nbytes=nbytes)


def _numbers(case: Case) -> int:
    """Of the array: as many for each rank."""
    each = max(1, int(case["bytes"]) // BYTES[case["dtype"]] // case.size)
    return each * case.size


def prepare(case: Case, context: Context) -> Work:
    """An array on each rank, which the sum takes the place of; buffers in turn."""
    import torch

    peers = Peers.of(case, context)
    mine = _array(context, case, peers.me)
    algorithm = ALGORITHMS[case["algorithm"]].run
    count = copies(context, 2.0 * mine.numel() * mine.element_size())
    held = [(mine.clone(), torch.empty_like(mine)) for _ in range(count)]

    def comms(i: int) -> torch.Tensor:
        array, room = held[i % len(held)]
        algorithm(array, room, peers)
        return array

    def check() -> Correctness:
        array = mine.clone()
        algorithm(array, torch.empty_like(array), peers)
        context.synchronize()
        wanted = torch.zeros_like(array, dtype=torch.float64)
        for position in range(case.size):
            wanted += _array(context, case, position)
        return compare(array, wanted, case["dtype"])

    return Work(check=check, comms=comms)


def _array(context: Context, case: Case, position: int) -> torch.Tensor:
    return random(context, (_numbers(case),), case["dtype"], case.id, position, same=True)


def central(array: torch.Tensor, room: torch.Tensor, peers: Peers) -> None:
    """Everyone to the first rank, one after the other, and back."""
    if peers.me:
        peers.send(array, 0)
        peers.receive(array, 0)
        return
    for other in range(1, peers.n):
        peers.receive(room, other)
        array += room
    for other in range(1, peers.n):
        peers.send(array, other)


def chain(array: torch.Tensor, room: torch.Tensor, peers: Peers) -> None:
    """Sums up the chain; the result down again."""
    me, last = peers.me, peers.n - 1
    if me > 0:
        peers.receive(room, me - 1)
        array += room
    if me < last:
        peers.send(array, me + 1)
        peers.receive(array, me + 1)
    if me > 0:
        peers.send(array, me - 1)


def butterfly(array: torch.Tensor, room: torch.Tensor, peers: Peers) -> None:
    """Whole arrays with a partner at twice the distance each time."""
    distance = 1
    while distance < peers.n:
        partner = peers.me ^ distance
        peers.swap(array, partner, room, partner)
        array += room
        distance *= 2


def halving_doubling(array: torch.Tensor, room: torch.Tensor, peers: Peers) -> None:
    """Reduce-scatter by halves with far partners first, all-gather the same way back."""
    kept, scratch, distance = array, room, peers.n // 2
    steps = []
    while distance:
        partner, half = peers.me ^ distance, kept.numel() // 2
        low, high = kept[:half], kept[half:]
        mine, theirs = (high, low) if peers.me & distance else (low, high)
        peers.swap(theirs, partner, scratch[:half], partner)
        mine += scratch[:half]
        steps.append((partner, mine, theirs))
        kept, distance = mine, distance // 2
    for partner, mine, theirs in reversed(steps):
        peers.swap(mine, partner, theirs, partner)


def ring(array: torch.Tensor, room: torch.Tensor, peers: Peers) -> None:
    """Parts go round once to be added, and once more to be known."""
    n, me = peers.n, peers.me
    parts, scratch = array.chunk(n), room.chunk(n)[0]
    after, before = (me + 1) % n, (me - 1) % n
    for step in range(n - 1):
        come = (me - step - 1) % n
        peers.swap(parts[(me - step) % n], after, scratch, before)
        parts[come].add_(scratch)
    for step in range(n - 1):
        peers.swap(parts[(me - step + 1) % n], after, parts[(me - step) % n], before)


@dataclass(frozen=True, slots=True)
class Algorithm:
    """How it runs, and what its formula leaves out."""

    run: Callable[[torch.Tensor, torch.Tensor, Peers], None]
    both_ways: bool  # every rank sends while it receives
    sums: Callable[[int], tuple[float, float]]  # one after the other, and arrays V in all of them


ALGORITHMS = {
    "central rank": Algorithm(central, False, lambda n: (n - 1, n - 1)),
    "chain": Algorithm(chain, False, lambda n: (n - 1, n - 1)),
    "butterfly": Algorithm(butterfly, True, lambda n: (log2(n), log2(n))),
    "halving-doubling": Algorithm(halving_doubling, True, lambda n: (log2(n), (n - 1) / n)),
    "ring": Algorithm(ring, True, lambda n: (n - 1, (n - 1) / n)),
}
KERNELS = (
    Kernel(
        "all-reduce by messages", "all-reduces built on send and receive", cases, predict, prepare
    ),
)
