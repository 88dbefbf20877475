"""Algorithms of a collective in one flat domain: n ranks, each behind a link of W bytes/s each way.

    T = steps · α + share · V / W

``share`` counts the bytes that have to follow one another, per byte of V, the whole array;
``steps`` the messages of which each waits for the one before. An algorithm is a row: the central
server that is simple and grows with n, the chain, everyone to everyone, the butterfly that trades
bytes for steps, the ring and halving-doubling that reach 2(n-1)/n, the least without help, and
switches that add, which need only 1. ``collectives`` says what a hierarchy does to these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from roofline import checks
from roofline.blocks import pointwise
from roofline.collectives import MEASURED_SHARP_GAIN
from roofline.names import choose
from roofline.sources import COUNTED, GPUS, RABENSEIFNER, TWO_TREES, Source
from roofline.units import Bytes, BytesPerSecond, Count, Num, Seconds

Operation = Literal["all-reduce", "all-gather", "reduce-scatter"]


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One way to run an operation among n ranks; V is the whole logical array."""

    name: str
    operation: Operation
    share: Callable[[Num], Num]  # bytes one after the other, per byte of V
    steps: Callable[[Num], Num]  # messages one after the other
    messages: Callable[[Num], Num]  # messages of all ranks together
    memory: str  # beyond the array itself, on the rank that needs most
    source: Source
    powers_of_two: bool = False
    note: str = ""
    busiest: Callable[[Num], Num] | None = None  # bytes out of one link per V, where not ``share``


def _some(n: Num) -> Num:
    """1 where there is anyone to talk to, else 0."""
    return np.greater(n, 1).astype(float)


def _ring(n: Num) -> Num:
    return (n - 1) / n


def _measured(n: Num) -> Num:
    gained: Num = np.maximum(2 * _ring(n) / MEASURED_SHARP_GAIN, _some(n))
    return gained


_NODE = GPUS("Collectives inside a node")
_COUNTED = COUNTED("counts of bytes and messages")
_MPICH = RABENSEIFNER("recursive doubling and halving; Rabenseifner's algorithm")

ALGORITHMS = (
    Algorithm(
        "central server",
        "all-reduce",
        share=lambda n: 2 * n * _some(n),
        steps=lambda n: 2 * _some(n),
        messages=lambda n: 2 * n * _some(n),
        memory="n V on the server, or V if it adds as they come",
        source=_COUNTED,
        note="a machine of its own takes nV in and gives nV out, one after the other",
        busiest=lambda n: n * _some(n),
    ),
    Algorithm(
        "central rank",
        "all-reduce",
        share=lambda n: 2 * (n - 1),
        steps=lambda n: 2 * _some(n),
        messages=lambda n: 2 * (n - 1),
        memory="(n-1) V on the rank that serves, or V if it adds as they come",
        source=_COUNTED,
        note="one of the ranks is the server and need not send to itself",
        busiest=lambda n: n - 1,
    ),
    Algorithm(
        "chain",
        "all-reduce",
        share=lambda n: 2 * (n - 1),
        steps=lambda n: 2 * (n - 1),
        messages=lambda n: 2 * (n - 1),
        memory="V",
        source=_COUNTED,
        note="reduce from rank to rank, then broadcast back, whole arrays: one link busy at a time",
        busiest=lambda n: np.minimum(n - 1, 2),
    ),
    Algorithm(
        "everyone to everyone",
        "all-reduce",
        share=lambda n: n - 1,
        steps=_some,
        messages=lambda n: n * (n - 1),
        memory="(n-1) V, or V if it adds as they come",
        source=_COUNTED,
        note="every rank does the whole sum: n-fold redundant",
    ),
    Algorithm(
        "butterfly",
        "all-reduce",
        share=np.log2,
        steps=np.log2,
        messages=lambda n: n * np.log2(n),
        memory="V",
        source=_MPICH,
        powers_of_two=True,
        note="recursive doubling: whole arrays with a partner at distance 1, 2, 4; best when small",
    ),
    Algorithm(
        "halving-doubling",
        "all-reduce",
        share=lambda n: 2 * _ring(n),
        steps=lambda n: 2 * np.log2(n),
        messages=lambda n: 2 * n * np.log2(n),
        memory="V/2",
        source=_MPICH,
        powers_of_two=True,
        note="Rabenseifner: the tree of which 'the same bytes as a ring' is true",
    ),
    Algorithm(
        "ring",
        "all-reduce",
        share=lambda n: 2 * _ring(n),
        steps=lambda n: 2 * (n - 1),
        messages=lambda n: 2 * n * (n - 1),
        memory="V/n",
        source=_NODE,
        note="reduce-scatter, then all-gather: the fewest bytes without in-network reduction",
    ),
    Algorithm(
        "double binary tree",
        "all-reduce",
        share=lambda n: 2 * _some(n),
        steps=lambda n: 2 * np.ceil(np.log2(n)),
        messages=lambda n: 4 * (n - 1),
        memory="V/2 for each child",
        source=TWO_TREES("section 3"),
        note="half of V through each of two trees; inner in one, leaf in the other; pipelined. "
        "The share is the bound that a rank with two children and a parent reaches",
    ),
    Algorithm(
        "in-network",
        "all-reduce",
        share=_some,
        steps=lambda n: 2 * _some(n),
        messages=lambda n: 2 * n * _some(n),
        memory="none on the ranks",
        source=_NODE,
        note="SHARP: the switch adds; V up and V down at once",
    ),
    Algorithm(
        "in-network as measured",
        "all-reduce",
        share=_measured,
        steps=lambda n: 2 * _some(n),
        messages=lambda n: 2 * n * _some(n),
        memory="none on the ranks",
        source=_NODE,
        note="1.3 times the ring's bandwidth, as seen on 8 H100; theory says 1.75 times",
        busiest=_some,
    ),
    *(
        row
        for operation in ("all-gather", "reduce-scatter")
        for row in (
            Algorithm(
                f"ring {operation}",
                operation,
                share=_ring,
                steps=lambda n: n - 1,
                messages=lambda n: n * (n - 1),
                memory="V/n",
                source=_NODE,
                note="T = (n-1)(α + V/(nW))",
            ),
            Algorithm(
                f"{'doubling' if operation == 'all-gather' else 'halving'} {operation}",
                operation,
                share=_ring,
                steps=np.log2,
                messages=lambda n: n * np.log2(n),
                memory="V/2",
                source=_MPICH,
                powers_of_two=True,
                note="recursive: T = α log2 n + V(n-1)/(nW)",
            ),
        )
    ),
)
BY_NAME = {row.name: row for row in ALGORITHMS}


def find(name: str | Algorithm) -> Algorithm:
    """The algorithm of that name.

    Raises:
        ValueError: when there is none, naming the nearest.
    """
    if isinstance(name, Algorithm):
        return name
    if not isinstance(name, str):
        raise ValueError(f"algorithm: {name!r} is refused; allowed: {', '.join(BY_NAME)}")
    return choose("algorithm", name, BY_NAME)


@pointwise
def time(
    algorithm: str | Algorithm,
    nbytes: Bytes,
    ranks: Count,
    bandwidth: BytesPerSecond,
    latency: Seconds = 0.0,
) -> Seconds:
    """Time of ``algorithm`` on an array of ``nbytes`` among ``ranks``. [s]

    ``nbytes`` is V: what every rank of an all-reduce holds, what an all-gather ends with.

    Raises:
        ValueError: an unknown algorithm, ranks it cannot serve, negative bytes or latency, or a
            link without bandwidth.

    >>> print(time("ring", 1e9, 8, 450e9))
    0.0038888888888888888
    >>> print(time("butterfly", 1e9, 8, 450e9))
    0.006666666666666667
    """
    row = find(algorithm)
    n = _ranks(row, ranks)
    checks.at_least("nbytes", nbytes, 0)
    checks.above("bandwidth", bandwidth)
    checks.at_least("latency", latency, 0)
    return row.steps(n) * latency + row.share(n) * nbytes / bandwidth


def steps(algorithm: str | Algorithm, ranks: Count) -> Count:
    """Messages that have to wait for one another: how often latency is paid.

    >>> print(steps("butterfly", 8))
    3.0
    """
    row = find(algorithm)
    return row.steps(_ranks(row, ranks))


def messages(algorithm: str | Algorithm, ranks: Count) -> Count:
    """Messages of all ranks together, arrays not cut for pipelining.

    >>> print(messages("ring", 8))
    112.0
    """
    row = find(algorithm)
    return row.messages(_ranks(row, ranks))


def traffic(algorithm: str | Algorithm, nbytes: Bytes, ranks: Count) -> Bytes:
    """Bytes out of, or into, the busiest rank (or server), in the busier of the two directions. [B]

    >>> print(traffic("ring", 1e9, 8))
    1750000000.0
    """
    row = find(algorithm)
    return (row.busiest or row.share)(_ranks(row, ranks)) * nbytes


def _ranks(row: Algorithm, ranks: Count) -> NDArray[np.float64]:
    """The ranks as an array, when ``row`` can serve them all."""
    n = np.asarray(checks.whole("ranks", ranks), float)
    if row.powers_of_two:
        odd = np.frexp(n)[0] != 0.5  # a power of two has the mantissa one half
        if np.any(odd):
            first = float(n.flat[int(np.argmax(odd))])
            below = 2.0 ** np.floor(np.log2(first))
            raise ValueError(
                f"ranks: {row.name} needs a power of two, got {first:g}; "
                f"the nearest are {below:g} and {2 * below:g}"
            )
    return n
