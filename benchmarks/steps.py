"""Step time, memory and misfits of a million layouts, on one core.

    python benchmarks/steps.py [--json]

Three tables: random layouts of Llama 3 70B in which eleven fields vary; all layouts of GPT-3 175B on
512 H100 that a small search would look at; and these repeated to a million rows. Times are the best
of five in processor seconds, beside them their ratio to `np.sqrt` on a million points, which cancels
the machine. Memory is the most that the process held above what it held after its imports.
"""

from __future__ import annotations

import argparse
import json
import resource
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import numpy as np
from sweeps import POINTS, best

import hardware_profiles
from roofline import presets
from roofline.evaluate import evaluate
from roofline.layout import OVERLAP, RECOMPUTE, SCHEDULE, Layout
from roofline.training import Training, training

GPUS, BATCH, LAYERS = 512, 512, 96


def random_layouts(rows: int) -> Layout:
    """Powers of two in random order, and random choices of the framework."""
    draw = np.random.default_rng(0)

    def any_of(*values: float) -> Any:
        return draw.choice(np.array(values, float), rows)

    tp, pp, dp, micro = any_of(1, 2, 4, 8), any_of(1, 2, 4, 8), any_of(1, 2, 4, 8, 16), any_of(1, 2)
    return Layout(
        tp * pp * dp,
        tp=tp,
        pp=pp,
        chunks=np.where(pp > 1, any_of(1, 2), 1.0),
        micro_batch=micro,
        batch=dp * micro * pp * any_of(1, 2, 4),
        sequence=any_of(4096, 8192),
        sequence_parallel=any_of(0, 1),
        zero=any_of(0, 1, 3),
        schedule=any_of(*SCHEDULE.values()),
        recompute=any_of(*RECOMPUTE.values()),
        tp_overlap=any_of(*OVERLAP.values()),
    )


def enumerated() -> Layout:
    """TP, PP, virtual stages, micro-batch, recompute, sequence parallel and ZeRO-1, all valid."""
    columns = np.array(list(_rows()), float).T
    names = ("tp", "pp", "chunks", "micro_batch", "recompute", "sequence_parallel", "zero")
    return Layout(GPUS, batch=BATCH, sequence=2048, **dict(zip(names, columns, strict=True)))


def _rows() -> Iterator[tuple[float, ...]]:
    for tp in (1, 2, 4, 8):
        for pp in _divisors(LAYERS):
            dp, left = divmod(GPUS, tp * pp)
            if left:
                continue
            for chunks in _divisors(LAYERS // pp) if pp > 1 else [1]:
                for micro in _divisors(BATCH // dp):
                    for again in ("none", "attention", "full"):
                        for split in range(1 + (tp > 1)):
                            for zero in range(1 + (dp > 1)):
                                yield tp, pp, chunks, micro, RECOMPUTE[again], split, zero


def _divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]


def repeated(table: Layout, rows: int) -> Layout:
    """The same layouts over and over."""
    values = {field.name: getattr(table, field.name) for field in fields(Layout)}
    return Layout(**{n: np.resize(v, rows) if np.ndim(v) else v for n, v in values.items()})


def cases() -> dict[str, Training]:
    """Name to the table that is evaluated."""
    cluster = hardware_profiles.cluster("dgx-h100-superpod")
    llama, gpt = (presets.preset(name).model for name in ("llama-3-70b", "gpt-3-175b"))
    space = enumerated()
    return {
        "random": training(llama, random_layouts(POINTS), cluster),
        "enumerated": training(gpt, space, cluster),
        "enumerated, repeated": training(gpt, repeated(space, POINTS), cluster),
    }


def held() -> float:
    """The most memory that the process held so far. [MB]"""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def measured(job: Training, root: float) -> dict[str, float]:
    """Rows, seconds, and what follows from them."""
    rows = len(evaluate(job).seconds)
    seconds = best(lambda: evaluate(job))
    each = seconds / rows * POINTS
    return {"layouts": rows, "seconds": seconds, "per_million_s": each, "sqrts": each / root}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args().json
    before = held()
    values = np.linspace(1, 2, POINTS)
    root = best(lambda: np.sqrt(values))
    found = {name: measured(job, root) for name, job in cases().items()}
    peak = held() - before
    if as_json:
        print(json.dumps({"sqrt_s": root, "peak_mb": peak, "cases": found}))
        return
    for name, case in found.items():
        rate = case["layouts"] / case["seconds"]
        print(
            f"{name:22} {case['layouts']:9,.0f} layouts {case['seconds'] * 1e3:7.1f} ms "
            f"{case['per_million_s']:6.2f} s per million {case['sqrts']:6.1f} × sqrt "
            f"{rate:12,.0f} layouts/s"
        )
    print(f"{peak:.0f} MB at most")


if __name__ == "__main__":
    main()
