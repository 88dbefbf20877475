"""Joining: ranks that torchrun, srun or a shell has started find each other, or hear who is missing.

rank 0's store, or that of torchrun's agent: every rank writes down what it is
a rank that cannot take part writes why; all read it and leave at once
a rank that does not come is named after the timeout
"""

from __future__ import annotations

import json
import os
import re
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any, Literal

from roofline.names import choose

DEVICES: dict[str, str] = {"auto": "", "cpu": "gloo", "cuda": "nccl"}
NAMED = 8  # of the ranks that are missing
LINGER = 5.0  # that rank 0 waits for others to read what is wrong [s]


class RanksLost(RuntimeError):
    """Ranks can no longer agree: those of ``ranks`` are gone, or do not answer."""

    def __init__(self, ranks: list[int], reason: str, case: str = "") -> None:
        """Say which ranks, in which case, and how the others noticed."""
        self.ranks, self.reason, self.case = ranks, reason, case
        super().__init__(f"no answer from {named(ranks)}{f' in {case}' * bool(case)}: {reason}")


def named(ranks: list[int]) -> str:
    """Which ranks, the first few of many.

    >>> named([3]), named([1, 2]), named([])
    ('rank 3', 'ranks 1, 2', 'some rank')
    """
    if not ranks:
        return "some rank"
    more = f" and {len(ranks) - NAMED} more" if len(ranks) > NAMED else ""
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks[:NAMED]))}{more}"


def plain(error: BaseException) -> str:
    """The first sentence of an error, without the line of C++ that it comes from.

    >>> plain(RuntimeError("[/src/pair.cc:553] Connection closed by peer [::1]:4. This is typical"))
    'Connection closed by peer [::1]:4'
    """
    first = (str(error).strip().splitlines() or [""])[0]
    return re.sub(r"^\[[^]]*\.(cc|cpp|h):\d+\] ", "", first).partition(". This is typical")[0][:400]


def need_distributed() -> None:
    """Go on where torch can talk.

    Raises:
        RuntimeError: when this torch was built without distributed.
        ImportError: without torch.
    """
    import torch.distributed as dist

    if not dist.is_available():
        raise RuntimeError("this torch was built without torch.distributed; install another build")


def device_type(asked: str) -> Literal["cpu", "cuda"]:
    """``cpu`` or ``cuda``.

    Raises:
        ValueError: when CUDA is asked for and not there, or the word is neither.
    """
    import torch

    choose("--device", asked, DEVICES)
    there = torch.cuda.is_available()
    if asked == "cuda" and not there:
        raise ValueError(
            "--device: cuda (by nccl) is asked for, but torch sees no GPU; allowed: cpu (by gloo)"
        )
    return "cuda" if there and asked != "cpu" else "cpu"


def backends(device: str) -> str:
    """What ``init_process_group`` is told, so that tensors of either kind can be sent."""
    return "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"


def keeps_store() -> bool:
    """True where rank 0 itself holds the store that ranks meet in, not torchrun's agent."""
    agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return "MASTER_ADDR" in os.environ and not agent


def join(timeout: float, asked: str) -> None:
    """Join the ranks of the environment (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT).

    Nothing when this process has joined already. ``asked`` is the device, as the user gave it.

    Raises:
        RanksLost: when ranks do not come, or rank 0 cannot be reached, within ``timeout`` seconds.
        ValueError: on all ranks, when one cannot take part, or they were told different things.
        RuntimeError: when this torch was built without distributed.
    """
    need_distributed()
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as c10d

    if dist.is_initialized():
        return
    rank, world = _number("RANK"), _number("WORLD_SIZE")
    if not 0 <= rank < world:
        raise ValueError(f"RANK={rank} is not below WORLD_SIZE={world}: one of them is wrong")
    store = _store(rank, world, timeout)
    told: dict[str, Any] = {"world": world}
    try:
        told["device"] = device_type(asked)
    except ValueError as wrong:
        told["error"] = str(wrong)
    _call_the_roll(store, rank, told, timeout)
    dist.init_process_group(
        backends(told["device"]),
        store=c10d.PrefixStore("world", store),
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=timeout),
    )


def _number(name: str) -> int:
    text = os.environ.get(name, "")
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{name}={text!r} is no whole number: start me with torchrun") from None


def _store(rank: int, world: int, timeout: float) -> Any:
    """The store that ranks meet in. Rank 0 does not wait for the others here."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]
    from torch.distributed import distributed_c10d as c10d

    host, port = os.environ.get("MASTER_ADDR", ""), _number("MASTER_PORT")
    if not host:
        raise ValueError("MASTER_ADDR is not set: start me with torchrun")
    try:
        store: Any = TCPStore(
            host,
            port,
            world,
            is_master=rank == 0 and keeps_store(),
            timeout=timedelta(seconds=timeout),
            wait_for_workers=False,
            multi_tenant=True,
        )
    except RuntimeError as error:
        raise RanksLost(
            [0],
            f"nothing at MASTER_ADDR={host}, MASTER_PORT={port} in {timeout:g} s ({plain(error)})",
        ) from None
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return c10d.PrefixStore(f"validation/join/{attempt}", store)


def _call_the_roll(store: Any, rank: int, told: dict[str, Any], timeout: float) -> None:
    """Until every rank has said what it is; what does not fit is raised on all."""
    if store.add(f"claimed/{rank}", 1) > 1:
        raise ValueError(f"RANK={rank} was given to more than one process")
    store.set(f"rank/{rank}", json.dumps(told))
    ranks = list(range(told["world"]))
    here = ranks
    try:
        try:
            store.wait([f"rank/{other}" for other in ranks], timedelta(seconds=timeout))
        except RuntimeError:
            here = [other for other in ranks if _has(store, f"rank/{other}")]
        _compare(store, here, told)
        if len(here) < len(ranks):
            # Without any, the store is gone, and rank 0 with it.
            away = [other for other in ranks if other not in here] if here else [0]
            reason = f"{len(here)} of WORLD_SIZE={len(ranks)} joined in {timeout:g} s"
            raise RanksLost(away, reason)
    except (ValueError, RanksLost):
        _leave_last(store, rank, len(here))
        raise


def _leave_last(store: Any, rank: int, others: int) -> None:
    """Let all read what is wrong before the store goes with rank 0."""
    deadline = time.monotonic() + LINGER
    with suppress(RuntimeError):
        read = store.add("read", 1)
        while rank == 0 and keeps_store() and read < others and time.monotonic() < deadline:
            time.sleep(0.05)
            read = store.add("read", 0)


def _compare(store: Any, ranks: list[int], mine: dict[str, Any]) -> None:
    """Raise what some rank cannot do, or was told otherwise than this one."""
    said = {rank: json.loads(store.get(f"rank/{rank}")) for rank in ranks}
    for rank, its in said.items():
        if "error" in its:
            raise ValueError(f"rank {rank}: {its['error']}")
    for rank, its in said.items():
        if its["world"] != mine["world"]:
            raise ValueError(
                f"rank {rank} was told WORLD_SIZE={its['world']}, this one {mine['world']}"
            )
        if its["device"] != mine["device"]:
            raise ValueError(
                f"rank {rank} is on {its['device']}, this one on {mine['device']}; "
                "give --device cpu, or GPUs to all"
            )


def _has(store: Any, key: str) -> bool:
    try:
        return bool(store.check([key]))
    except RuntimeError:  # the store is gone, and rank 0 with it
        return False
