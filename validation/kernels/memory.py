"""Vectors through memory, and through the cache: operations that do nothing but read and write.

    copy   b = a          1 read, 1 write
    add    c = a + b      2 reads, 1 write
    dot    sum a b        2 reads

In memory, buffers rotate, so that none is in a cache when it is used again; in the cache, the same
small ones are used over and over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from roofline import arithmetic
from validation.case import Case, Correctness, Expected, Kernel, Setting, Work
from validation.kernels.data import BYTES, TOLERANCE, compare, copies, random
from validation.profile import Profile
from validation.results import Value

if TYPE_CHECKING:
    import torch

    from validation.context import Context

# Bytes of one vector.
QUICK = {"cpu": (2**20, 2**24), "cuda": (2**24, 2**28)}
FULL = {
    "cpu": tuple(2**n for n in range(16, 28, 2)),
    "cuda": tuple(2**n for n in range(16, 32, 2)),
}
BLOCK = 2**16  # numbers
CACHED = {"cpu": 2**17, "cuda": 2**22}
OPERANDS = {"copy": (1, 1), "add": (2, 1), "dot": (2, 0)}  # reads, writes


def cases(setting: Setting) -> Iterator[Case]:
    """Operations by sizes of a vector."""
    lengths = QUICK if setting.quick else FULL
    for operation in OPERANDS:
        for nbytes in lengths[setting.device]:
            if 6 * nbytes < setting.memory:
                yield _case(operation, "memory", nbytes)
        yield _case(operation, "cache", CACHED[setting.device])


def _case(operation: str, where: str, nbytes: int) -> Case:
    told: dict[str, Value] = {"op": operation, "where": where, "bytes": nbytes, "dtype": "fp32"}
    return Case("memory", told)


def predict(case: Case, profile: Profile) -> Iterator[Expected]:
    """``roofline.kernels.Streams``; in the cache where the profile knows its bandwidth."""
    work, streams = _work(case), profile.streams()
    if case["where"] == "cache":
        if profile.chip.l2_bandwidth is None:
            return
        streams = replace(streams, hbm=profile.chip.l2_bandwidth)
    seconds = float(streams.seconds(work.nbytes))
    yield Expected("math", seconds, float(work.flops), float(work.nbytes))


def _work(case: Case) -> arithmetic.Kernel:
    """FLOPs and bytes."""
    size = BYTES[case["dtype"]]
    n = case["bytes"] // size
    if case["op"] == "dot":
        return arithmetic.dot(n, size)
    reads, writes = OPERANDS[case["op"]]
    flops = 0 if case["op"] == "copy" else 1
    return arithmetic.elementwise(n, reads=reads, writes=writes, flops=flops, element_bytes=size)


def prepare(case: Case, context: Context) -> Work:
    """Sets of vectors in turn, or one that stays in the cache."""
    import torch

    n = case["bytes"] // BYTES[case["dtype"]]
    a, b = (_vector(context, n, case, name) for name in "ab")
    count = 1 if case["where"] == "cache" else copies(context, 3 * case["bytes"])
    held = [(a, b, torch.empty_like(a))]
    held += [(a.clone(), b.clone(), torch.empty_like(a)) for _ in range(count - 1)]
    calls: dict[str, Callable[..., torch.Tensor]] = {
        "copy": lambda a, b, c: c.copy_(a),
        "add": lambda a, b, c: torch.add(a, b, out=c),
        "dot": lambda a, b, c: torch.dot(a, b),
    }
    call = calls[case["op"]]

    def math(i: int) -> torch.Tensor:
        return call(*held[i % count])

    def check() -> Correctness:
        """The end of a vector, which would be missing first; of a sum, over what is summed."""
        got = math(0)
        if case["op"] == "dot":
            x, y = a.double(), b.double()
            off = float((got.double() - x.dot(y)).abs() / x.abs().dot(y.abs()))
            return Correctness(off, TOLERANCE[case["dtype"]])
        wanted = call(*(vector[-BLOCK:].double() for vector in (a, b, a)))
        return compare(got[-BLOCK:], wanted, case["dtype"])

    return Work(check=check, math=math)


def _vector(context: Context, n: int, case: Case, name: str) -> torch.Tensor:
    """Random numbers, the same block over and over: to draw them all takes longer than timing."""
    block = random(context, (min(n, BLOCK),), case["dtype"], case.id, name)
    return block.repeat(-(-n // BLOCK))[:n].contiguous()


KERNELS = (Kernel("memory", "vectors through memory and cache", cases, predict, prepare),)
