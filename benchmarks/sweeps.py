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
from roofline import collectives as c
from roofline import presets
from roofline.groups import Group
from roofline.strategies import STRATEGIES

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
    for name, strategy in STRATEGIES.items():
        block = moe if "expert" in name else work
        most = float(min(block.experts, 1023) if "expert" in name else 1023)
        calls[name] = lambda s=strategy, w=block, d=np.minimum(sizes, most): (
            s.bound(w, cluster, d).t_upper
        )
    return calls


def best(call: Callable[[], Any], repeats: int = 5) -> float:
    """Seconds of the fastest of ``repeats``."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
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
