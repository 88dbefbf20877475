"""How many layouts a second the planner predicts, and how long whole plans take.

    python benchmarks/planner.py [--json]

The fixed space is GPT-3 175B on 512 H100, NVLink domains of 8, a batch of 512 sequences of 2048:
TP {1, 2, 4, 8}, PP the divisors of 96 and of 512/TP, chunks the divisors of 96/PP, micro-batches the
divisors of the local batch, recomputation none, attention or all, sequence parallelism and ZeRO-1
on and off: 6,474 layouts. Each counts as predicted with its step time, its memory and whether it
fits. Times are processor time of one thread, the best of five.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

import hardware_profiles as hw
from roofline.describe import describe
from roofline.evaluate import evaluate
from roofline.layout import RECOMPUTE, Layout
from roofline.planner import plan
from roofline.presets import preset
from roofline.space import Job, Space
from roofline.training import training

MODEL, GPUS, BATCH, SEQUENCE = "gpt-3-175b", 512, 512, 2048
FILLED = 1_000_000  # layouts of a full chunk, at least


def fixed_space() -> Layout:
    """The 6,474 layouts as columns."""
    job = Job(preset(MODEL).model, GPUS, BATCH, SEQUENCE, 8, ragged=True)
    divisors = [d for d in range(1, 513) if 96 % d == 0]
    values: dict[str, Any] = {
        "tp": (1, 2, 4, 8), "cp": (1,), "pp": divisors, "ep": (1,), "etp": (1,), "order": (0,),
        "micro_batch": [2**i for i in range(10)], "chunks": divisors, "schedule": (0,),
        "zero": (0, 1), "shard": (0,), "sequence_parallel": (0, 1),
        "recompute": [RECOMPUTE[name] for name in ("none", "attention", "full")],
        "recompute_share": (1.0,), "offload_share": (0.0,),
    }  # fmt: skip
    return next(layout for _, layout in Space(job, values).blocks(1 << 20))


def measured(call: Callable[[], Any], repeats: int = 5) -> tuple[float, Any]:
    """Processor seconds of the fastest call, and what it gave."""
    found, best = None, float("inf")
    for _ in range(repeats):
        start = time.process_time()
        found = call()
        best = min(best, time.process_time() - start)
    return best, found


def repeated(layout: Layout, times: int) -> Layout:
    """Every column ``times`` over."""
    columns = {
        name: np.tile(value, times) if isinstance(value, np.ndarray) else value
        for name, value in ((n, getattr(layout, n)) for n in layout.__dataclass_fields__)
    }
    return Layout(**columns)


def predicted(layout: Layout) -> Any:
    """Step, memory and fit of every row."""
    cluster = hw.cluster("dgx-h100-superpod").resized(GPUS)
    found = evaluate(training(preset(MODEL).model, layout, cluster))
    return found.seconds, found.memory, found.memory <= cluster.hbm_bytes


def peak_mb() -> float:
    """The most memory that this process has had. [MB]"""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def plans() -> dict[str, Any]:
    """Whole plans over their default spaces."""
    found = {}
    for name, cluster, gpus, tokens, sequence in (
        ("llama-3-70b", "dgx-h100-superpod", 512, 512 * 8192, 8192),
        ("llama-3-405b", "dgx-h100-superpod", 16384, 2048 * 8192, 8192),
    ):
        model, machine = preset(name).model, hw.cluster(cluster)
        wall = time.perf_counter()
        plan(model, machine, gpus, tokens=tokens, sequence=sequence)
        wall = time.perf_counter() - wall
        seconds, answer = measured(
            lambda m=model, c=machine, g=gpus, t=tokens, s=sequence: plan(
                m, c, g, tokens=t, sequence=s
            ),
            3,
        )
        found[f"{name} on {gpus}"] = {
            "layouts": answer.seen,
            "seconds": seconds,
            "first_wall_s": wall,
            "best": describe(answer.layout()),
            "best_step_s": float(answer.ranked["seconds"][0]),
            "peak_mb": peak_mb(),
        }
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--json", action="store_true")
    asked = options.parse_args()
    whole = plans()
    layout = fixed_space()
    count = len(np.asarray(layout.tp))
    seconds, (step, _, fits) = measured(lambda: predicted(fixed_space()))
    times = -(-FILLED // count)
    full = repeated(layout, times)
    chunk_seconds, _ = measured(lambda: predicted(full), 3)
    best = int(np.argmin(np.where(fits, step, np.inf)))
    row = Layout(
        *(np.broadcast_to(getattr(layout, n), count)[best] for n in layout.__dataclass_fields__)
    )
    document = {
        "layouts": count,
        "seconds": seconds,
        "layouts_per_s": count / seconds,
        "filled": {
            "layouts": count * times,
            "seconds": chunk_seconds,
            "layouts_per_s": count * times / chunk_seconds,
        },
        "peak_mb": peak_mb(),
        "best": describe(row),
        "best_step_s": float(step[best]),
        "plans": whole,
    }
    if asked.json:
        print(json.dumps(document, indent=2))
        return
    print(f"{count:,} layouts in {seconds * 1e3:.1f} ms: {count / seconds:,.0f} a second")
    print(
        f"{count * times:,} layouts in {chunk_seconds:.2f} s: {count * times / chunk_seconds:,.0f} a second"
    )
    print(f"best: {describe(row)}, {step[best]:.4g} s a step; peak memory {peak_mb():,.0f} MB")
    for name, one in whole.items():
        print(
            f"{name}: {one['layouts']:,} layouts in {one['seconds'] * 1e3:,.0f} ms "
            f"(the first time {one['first_wall_s'] * 1e3:,.0f} ms on the clock): {one['best']}, "
            f"{one['best_step_s']:.4g} s"
        )


if __name__ == "__main__":
    main()
