"""A kernel with a fault in its second case, for tests that need ranks of their own.

torchrun tests/faulty.py --out DIR     with FAULT=name, and FAULT_RANK=rank
"""

import os
import resource
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from validation.case import Case, Correctness, Expected, Kernel, Setting, Work
from validation.context import Context
from validation.profile import Profile

BIG = 4_000_000_000  # more than a rank with no memory left can have [B]


def cases(setting: Setting) -> Iterator[Case]:
    """One before the fault, the one with it, one after."""
    for how in ("before", "fails", "after"):
        yield Case("faulty", {"how": how}, setting.world)


def predict(case: Case, profile: Profile) -> Iterator[Expected]:
    """What the formula says of an all-reduce of four bytes."""
    yield Expected("comms", profile.collective("all-reduce", 4.0, case.group))


def prepare(fault: str, case: Case, context: Context) -> Work:
    """An all-reduce that every rank has begun when one of them has its fault."""
    group, numbers = context.group(case.size, case.stride), torch.ones(1 << 18)
    bad = case["how"] == "fails" and context.rank == int(os.environ.get("FAULT_RANK", "1"))

    def comms(i: int) -> None:
        sent = dist.all_reduce(numbers, group=group, async_op=True)
        if bad and i == 3:
            FAULTS[fault]()
        sent.wait()

    return Work(check=lambda: Correctness(0.0, 0.5), comms=comms)


def kill() -> None:
    """As the kernel does when a host has no memory left."""
    os.kill(os.getpid(), signal.SIGKILL)


def stop() -> None:
    """A rank that neither answers nor ends."""
    os.kill(os.getpid(), signal.SIGSTOP)
    signal.pause()  # also where the kernel wakes it, as it does when a shell has gone


def no_memory() -> None:
    """Ask for more than the process may have."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
    room = pages * resource.getpagesize() + 100_000_000
    resource.setrlimit(resource.RLIMIT_AS, (room, before[1]))
    try:
        torch.empty(BIG, dtype=torch.uint8)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def no_gpu_memory() -> None:
    """What the allocator of GPU memory raises."""
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 4.00 GiB")


def nccl_error() -> None:
    """What a group over NCCL raises."""
    raise dist.DistBackendError("NCCL error in: unhandled system error, remote process exited")


def cut_off() -> None:
    """Tell whoever holds the network to cut it, and go on when that is done."""
    flag = Path(os.environ["FAULT_FLAG"])
    flag.write_text("now", "ascii")
    while flag.exists():
        time.sleep(0.01)


def sleep() -> None:
    """A call that does not come back."""
    time.sleep(600)


def nothing() -> None:
    """No fault."""


FAULTS = {
    function.__name__: function
    for function in (kill, stop, no_memory, no_gpu_memory, nccl_error, cut_off, sleep, nothing)
}


def kernel(fault: str) -> Kernel:
    """The kernel with that fault."""
    return Kernel("faulty", "a test", cases, predict, partial(prepare, fault))


def prepare_unchecked(case: Case, context: Context) -> Work:
    """A kernel that does not look at its result."""
    return Work(math=lambda i: time.sleep(1e-4))


if __name__ == "__main__":
    from validation import kernels, signals
    from validation.__main__ import app

    signals.PATIENCE = float(os.environ.get("FAULT_PATIENCE", signals.PATIENCE))
    kernels.kernels = lambda: {"faulty": kernel(os.environ["FAULT"])}
    app(prog_name="faulty")
