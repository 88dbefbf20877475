"""One million points of every closed form, in one call each.

    python benchmarks/sweeps.py [--json]

Times are the best of five; next to each stands its ratio to `np.sqrt` on as many points, which cancels the machine.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import hardware_profiles
from roofline import algorithms, bubbles, chip, counting, memory, presets, routing
from roofline import collectives as c
from roofline.arithmetic import matmul
from roofline.groups import Group
from roofline.strategies import STRATEGIES, expert_parallel, mixed
from roofline.strategies.combined import combined

POINTS = 1_000_000


def cases() -> dict[str, Callable[[], Any]]:
    """Name to the call that is timed; every sweep is over the group's size, the dearest axis."""
    cluster = hardware_profiles.cluster("dgx-h100-superpod")
    work = presets.workload("llama-3-70b", 4e6)
    moe = presets.workload("deepseek-v3", 4e6)
    sizes = np.random.default_rng(0).integers(1, 1024, POINTS).astype(float)
    nbytes = np.geomspace(1e3, 1e10, POINTS)
    calls: dict[str, Callable[[], Any]] = {
        f"{op.name} over group size": lambda op=op: c.seconds(op, 1e9, Group(sizes), cluster.tiers)
        for op in c.COLLECTIVES.values()
    }
    calls["all-reduce over bytes"] = lambda: c.seconds(
        c.ALL_REDUCE, nbytes, Group(64), cluster.tiers
    )
    most = {"expert_parallel": float(np.min(moe.experts)), "pipeline_parallel": float(work.layers)}
    for name, strategy in STRATEGIES.items():
        block = moe if "expert" in name else work
        degree = np.minimum(sizes, most.get(name, 1023.0)) if name != "mixed" else powers(10)
        calls[name] = lambda s=strategy, w=block, d=degree: s.bound(w, cluster, d).t_upper
    return calls | strategies_in_full() | other_forms()


def powers(most: int) -> Any:
    """Powers of two up to 2**most in random order."""
    return 2.0 ** np.random.default_rng(1).integers(0, most + 1, POINTS)


def strategies_in_full() -> dict[str, Callable[[], Any]]:
    """The dearest options: tiers or private axes, four axes at once, exact routing."""
    cluster = hardware_profiles.cluster("dgx-h100-superpod")
    work = presets.workload("llama-3-70b", 4e6)
    moe = presets.workload("deepseek-v3", 4e6)
    degree, few, some = powers(10), powers(2), powers(7)
    return {
        "mixed, threshold": lambda: mixed.bound(work, cluster, degree).threshold.headroom,
        "mixed, private axes": lambda: (
            mixed.bound(work, cluster, degree, hierarchical=False).t_upper
        ),
        "combined, four axes": lambda: [
            axis.bound.t_upper
            for axis in combined(moe, cluster, tensor=few, expert=few, pipeline=few, data=few)
        ],
        "expert_parallel, precise": lambda: (
            expert_parallel.bound(moe, cluster, some, form="precise").t_upper
        ),
        "dispatch": lambda: routing.dispatch(1e9, 8, Group(some), cluster.tiers).seconds,
        "dispatch, distinct": lambda: (
            routing.dispatch(
                1e9, 8, Group(some), cluster.tiers, form="distinct", experts=256
            ).seconds
        ),
    }


def other_forms() -> dict[str, Callable[[], Any]]:
    """Bubbles, one chip, counting, memory, flat algorithms."""
    cluster = hardware_profiles.cluster("dgx-h100-superpod")
    few, some = powers(2), powers(10)
    levels = chip.levels(cluster.accelerator)
    calls: dict[str, Callable[[], Any]] = {
        f"bubble {name}": lambda n=name: bubbles.bubble(n, 2 * few, 8 * few).share
        for name in bubbles.SCHEDULES
    }
    calls |= {
        f"{name} of one tier": lambda n=name: algorithms.time(n, 1e9, some, 450e9, 1e-6)
        for name in algorithms.BY_NAME
    }
    return calls | {
        "chip bound": lambda: chip.bound(matmul(some, 8192, 28672), 990e12, levels).t_upper,
        "flops": lambda: (
            counting.flops(counting.Shape(some, 8192, 28672, 64, 8, 128, 128256), 1e6, 4096).total
        ),
        "parameters": lambda: (
            counting.parameters(counting.Shape(some, 8192, 28672, 64, 8, 128, 128256)).total
        ),
        "model states": lambda: memory.model_states(7e9, 3, some).total,
        "bytes moved": lambda: memory.bytes_moved(7e9, 3, some).total,
    }


def best(call: Callable[[], Any], repeats: int = 5) -> float:
    """Processor seconds of the fastest of ``repeats``; others on the machine do not count."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return min(times)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args().json
    values = np.linspace(1, 2, POINTS)
    root = best(lambda: np.sqrt(values))
    result = {name: best(call) for name, call in cases().items()}
    if as_json:
        print(json.dumps({"points": POINTS, "sqrt_s": root, "seconds": result}))
        return
    for name, seconds in result.items():
        print(f"{name:34} {seconds * 1e3:7.1f} ms   {seconds / root:6.1f} × sqrt")


if __name__ == "__main__":
    main()
