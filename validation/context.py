"""Where a rank is, whom it can talk to, and how ranks agree.

Two sets of connections: kernels talk over groups of their own (nccl between GPUs, gloo else); the
runner talks over a gloo group that no kernel touches, so that it still works when theirs do not.
Every wait has an end.
"""

from __future__ import annotations

import os
import socket
import time
import zlib
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from validation.case import Setting, Suite
from validation.environment import device_name
from validation.groups import all_members, members, subgroups
from validation.joining import device_type, named
from validation.kernels import fp8
from validation.profile import Profile, load

if TYPE_CHECKING:
    import torch

GROUPS = 1_000_000  # no run makes so many between two errors

Agreed = NDArray[np.float64]  # [world, values]


@dataclass(slots=True)
class Context:
    """One rank of a run."""

    rank: int
    world: int
    local_rank: int
    device: torch.device
    profile: Profile
    setting: Setting
    timeout: float  # of every wait [s]
    control: Any  # process group of the runner
    seed: int = 0
    hosts: tuple[str, ...] = ()  # of each rank
    left_out: dict[str, str] = field(default_factory=dict)  # that has no case here, and why
    _groups: dict[tuple[int, int] | None, Any] = field(default_factory=dict)
    _epoch: int = 0

    @property
    def backend(self) -> str:
        """What kernels talk by."""
        return "nccl" if self.device.type == "cuda" else "gloo"

    def members(self, size: int, stride: int) -> list[int]:
        """Ranks of this rank's group of that size and stride, in order."""
        return members(self.rank, size, stride)

    def group(self, size: int, stride: int) -> Any:
        """This rank's process group of that size and stride; made once, by all ranks together.

        Raises:
            ValueError: when such groups do not share out the world.
        """
        import torch.distributed as dist

        if self.world % (size * stride):
            raise ValueError(
                f"group: {size} ranks, {stride} apart, do not share out {self.world} ranks"
            )
        if (size, stride) not in self._groups:
            # Between GPUs ``wait`` ends first; NCCL's own timeout would end the process.
            slack = 3 if self.device.type == "cuda" else 1
            wait = timedelta(seconds=slack * self.timeout)
            for ranks in all_members(self.world, size, stride):
                group = dist.new_group(ranks, wait)
                if self.rank in ranks:
                    self._groups[size, stride] = group
        return self._groups[size, stride]

    def connect(self, size: int, stride: int) -> None:
        """Make what a case needs while no rank can have failed in it yet."""
        self._pace()
        if size > 1:
            self.group(size, stride)

    def leave_groups(self) -> None:
        """Leave every group: peers that wait in one get an error."""
        import torch.distributed as dist

        for group in self._groups.values():
            with suppress(RuntimeError, ValueError):
                if self.device.type == "cuda":
                    group.abort()  # or kernels that wait for a peer stay on the GPU
                dist.destroy_process_group(group)
        self._groups.clear()

    def renew_groups(self) -> None:
        """After an error groups may be broken: each is made anew when asked for. All ranks call it.

        Groups are known by their number, and ranks that failed may have made fewer.
        """
        from torch.distributed import distributed_c10d as c10d

        self.leave_groups()
        self._epoch += 1
        c10d._world.group_count = self._epoch * GROUPS

    def generator(self, *what: object, same: bool = False) -> torch.Generator:
        """Random numbers that belong to ``what``; other ones on each rank unless ``same``."""
        import torch

        who = "all" if same else self.rank
        generator = torch.Generator(self.device)
        return generator.manual_seed(zlib.crc32(repr((self.seed, who, *what)).encode()))

    def agree(self, *values: float) -> Agreed:
        """What every rank said, a row for each; all ranks call this with as many values.

        Raises:
            RuntimeError: when a rank is gone or does not answer in time.
        """
        import torch
        import torch.distributed as dist

        mine = torch.tensor(values, dtype=torch.float64)
        rows = [torch.empty_like(mine) for _ in range(self.world)]
        dist.all_gather(rows, mine, group=self.control)
        return torch.stack(rows).numpy()

    def gather(self, value: object) -> list[Any]:
        """Any small object of every rank, on every rank."""
        return _share(self.control, self.world, value)

    def barrier(self) -> None:
        """Until all ranks are here, and their devices idle."""
        import torch.distributed as dist

        self.synchronize()
        dist.barrier(group=self._pace())

    def _pace(self) -> Any:
        """A group for barriers: not ``control``, which a failed rank is waiting on already."""
        import torch.distributed as dist

        if None not in self._groups:
            wait = timedelta(seconds=self.timeout)
            self._groups[None] = dist.new_group(timeout=wait, backend="gloo")
        return self._groups[None]

    def synchronize(self) -> None:
        """Until the device is idle.

        Raises:
            TimeoutError: when it is not after ``timeout``: a peer does not come to a collective.
        """
        import torch

        if self.device.type == "cuda":
            new: Any = torch.cuda.Event
            event = new()
            event.record()
            self.wait(event)

    def wait(self, event: Any) -> None:
        """Until the device has come to ``event``; asked over and over, as waiting has no end.

        Raises:
            TimeoutError: when that takes longer than ``timeout``.
        """
        deadline = time.monotonic() + self.timeout
        while not event.query():
            if time.monotonic() > deadline:
                raise TimeoutError(f"the GPU is not done after {self.timeout:g} s")

    def store(self) -> Any:
        """Keys and values that all ranks see, for when groups no longer work."""
        from torch.distributed import distributed_c10d as c10d

        return c10d.PrefixStore("validation", c10d._get_default_store())


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asked for; the same on every rank."""

    suite: Suite = "quick"
    cluster: str = "local"
    overlay: str = "auto"
    device: str = "auto"  # auto, cpu, cuda
    timeout: float = 60.0  # of every wait [s]
    memory: float = 0.0  # that a case may take on each rank [B]; 0: a part of what is there
    budget: float = 0.0  # of the whole suite's measuring [s]; 0: the suite's own
    kernels: tuple[str, ...] = ()  # names; none: every one
    resume: bool = False


def open_context(options: Options) -> Context:
    """This rank's context; the ranks have joined. All ranks call it together.

    Raises:
        ValueError: on all ranks: more ranks than GPUs, different GPUs, a profile that does not fit.
    """
    import torch.distributed as dist

    rank, world = dist.get_rank(), dist.get_world_size()
    # A rank that failed waits here until the others leave what they wait for, each by its timeout.
    patience = timedelta(seconds=2 * options.timeout + min(10, 2 * options.timeout))
    control = dist.new_group(timeout=patience, backend="gloo")
    here, facts, error = None, None, ""
    try:
        here = _here(options, rank, world)
        facts = here.facts
    except (ValueError, OSError, RuntimeError) as wrong:
        error = str(wrong)
    everyone = _share(control, world, (error, facts))
    for other, (its_error, _) in enumerate(everyone):
        if its_error:
            raise ValueError(f"rank {other}: {its_error}")
    assert here is not None
    _refuse_mixed([f"{kind}, {name}" for _, (kind, name, _, _, _) in everyone])
    without = {dtype: why for _, facts in everyone for dtype, why in facts[4].items()}
    setting = Setting(
        suite=options.suite,
        world=world,
        device=here.kind,
        memory=min(memory for _, (_, _, memory, _, _) in everyone),
        groups=subgroups(world, here.profile.cluster.unit_sizes),
        dtypes=tuple(name for name in _dtypes(here.profile, here.kind) if name not in without),
        lacking=without,
    )
    context = Context(
        rank, world, here.local_rank, here.device, here.profile, setting, options.timeout, control
    )
    context.hosts = tuple(host for _, (_, _, _, host, _) in everyone)
    return context


@dataclass(frozen=True, slots=True)
class _Here:
    """What one rank knows of itself."""

    kind: Literal["cpu", "cuda"]
    device: torch.device
    local_rank: int
    profile: Profile
    memory: float  # for one case [B]

    @property
    def facts(self) -> tuple[str, str, float, str, dict[str, str]]:
        """What the others are told: device, memory, host, data types that it cannot multiply."""
        host = f"{socket.gethostname()}/{os.environ.get('GROUP_RANK', 0)}"
        return (self.kind, device_name(self.device), self.memory, host, self.lacking)

    @property
    def lacking(self) -> dict[str, str]:
        """fp8, and why, where the profile or the device does not have it."""
        if "fp8" not in self.profile.dtypes():
            return {"fp8": f"{self.profile.chip.name} has no rate of it"}
        why = fp8.lacking(self.device)
        return {"fp8": why} if why else {}


def _here(options: Options, rank: int, world: int) -> _Here:
    import torch

    kind = device_type(options.device)
    local = int(os.environ.get("LOCAL_RANK", rank))
    device = _device(kind, local)
    per_host = int(os.environ.get("LOCAL_WORLD_SIZE", world))
    if kind == "cpu":
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // per_host))
    profile = load(options.cluster, options.overlay, world, kind)
    return _Here(kind, device, local, profile, options.memory or _free_memory(device, per_host))


def _share(control: Any, world: int, value: object) -> list[Any]:
    import torch.distributed as dist

    held: list[Any] = [None] * world
    dist.all_gather_object(held, value, group=control)
    return held


def _device(kind: str, local_rank: int) -> torch.device:
    import torch

    if kind == "cpu":
        return torch.device("cpu")
    if local_rank >= torch.cuda.device_count():
        raise ValueError(
            f"local rank {local_rank} has no GPU: {torch.cuda.device_count()} are there; "
            "start as many ranks as GPUs, or give --device cpu"
        )
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def _refuse_mixed(devices: list[str]) -> None:
    ranks: dict[str, list[int]] = {}
    for rank, device in enumerate(devices):
        ranks.setdefault(device, []).append(rank)
    if len(ranks) > 1:
        told = "; ".join(f"{device} on {named(who)}" for device, who in ranks.items())
        raise ValueError(f"ranks have different devices: {told}; one run measures one kind")


def _free_memory(device: torch.device, per_host: int) -> float:
    """A part of what is free, for one case on one rank. [B]"""
    import torch

    if device.type == "cuda":
        return 0.65 * torch.cuda.mem_get_info(device)[0]
    pages = os.sysconf("SC_AVPHYS_PAGES") if "SC_AVPHYS_PAGES" in os.sysconf_names else 0
    free = float(pages * os.sysconf("SC_PAGE_SIZE")) if pages > 0 else 4e9
    return 0.3 * free / per_host


def _dtypes(profile: Profile, kind: str) -> tuple[str, ...]:
    """Those that the profile has a rate for and matmuls run in here."""
    can = ("bf16", "fp16", "fp32", "tf32") if kind == "cuda" else ("fp32", "bf16")
    can = (*can, "fp8")
    return tuple(dtype for dtype in can if dtype in profile.dtypes())
