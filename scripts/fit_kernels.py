"""Fit matmul and collective constants to measured curves, and print them as ``kernels.yaml`` has them.

    python scripts/fit_kernels.py h100-sxm --gemm GEMM.jsonl --like H100-SXM-80GB --dtype bf16
    python scripts/fit_kernels.py h100-sxm --collectives COLLECTIVES.jsonl --like H100-SXM-80GB

A line of GEMM.jsonl has ``gpu``, ``dtype``, ``M``, ``N``, ``K`` and ``time_us``; one of
COLLECTIVES.jsonl ``gpu``, ``collective``, ``n_nodes``, ``n_ranks``, ``message_bytes`` (of the whole
array) and ``time_us``. Peaks come from the accelerator's profile. Half of the shapes are fitted,
the other half say how well. Needs scipy.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from scipy.optimize import least_squares

import hardware_profiles as hw
from roofline.calibrated import OPERAND_BYTES, SMS
from roofline.kernels import Matmuls

START = {"efficiency": 0.75, "depth": 120.0, "wave": 0.1, "start": 4e-6, "hbm_fraction": 0.7}
OPS = {"all-gather": 1, "reduce-scatter": 1, "all-reduce": 2, "all-to-all": 1}


def lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSONL file."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]


def gemm(rows: list[dict[str, Any]], chip: hw.Accelerator, dtype: str) -> dict[str, float]:
    """Five numbers of the soft-wave model, and the errors on held-out shapes."""
    rows = [r for r in rows if min(r.get("M") or 0, r.get("N") or 0) >= 256 and r["K"] >= 64]
    m, n, k = (np.array([float(r[name]) for r in rows]) for name in "MNK")
    taken = np.array([r["time_us"] * 1e-6 for r in rows])
    fixed = {
        "peak": chip.flops(dtype),
        "sms": float(chip.sms or SMS),
        "hbm": chip.hbm_bandwidth,
        "operand_bytes": OPERAND_BYTES[dtype],
    }
    names = list(START)

    def off(x: np.ndarray) -> np.ndarray:
        fitted = Matmuls(**fixed, **dict(zip(names, np.exp(x), strict=True)))
        return np.asarray(np.log(fitted.seconds(m, n, k) / taken))

    half = np.arange(len(taken)) % 2 == 0
    first = np.log([START[name] for name in names])
    found = least_squares(lambda x: off(x)[half], first, loss="soft_l1", f_scale=0.05)
    rest = np.abs(off(found.x)[~half])
    p90 = np.quantile(rest, 0.9)
    print(f"# {len(taken)} shapes; held out: median {np.median(rest):.1%}, p90 {p90:.1%}")
    return {name: float(f"{v:.4g}") for name, v in zip(names, np.exp(found.x), strict=True)}


def collectives(table: list[dict[str, Any]], bandwidth: float) -> dict[str, dict[str, float]]:
    """start + per_rank N + y/(fraction W) + root √y of each operation, y bytes on the wire."""
    out = {}
    for op, passes in OPS.items():
        rows = [r for r in table if r["collective"] == op.replace("-", "_") and r["n_nodes"] == 1]
        if len(rows) < 8:
            continue
        n = np.array([float(r["n_ranks"]) for r in rows])
        wire = passes * np.array([float(r["message_bytes"]) for r in rows]) * (n - 1) / n
        taken = np.array([r["time_us"] * 1e-6 for r in rows])

        def off(x: np.ndarray, n: Any = n, wire: Any = wire, taken: Any = taken) -> np.ndarray:
            start, rank, fraction, root = np.exp(x)
            model = start + rank * n + wire / (fraction * bandwidth) + root * np.sqrt(wire)
            return np.asarray(np.log(model / taken))

        first = np.log([5e-6, 1e-6, 0.75, 6e-9])
        found = least_squares(off, first, loss="soft_l1", f_scale=0.05)
        rest = np.abs(off(found.x))
        print(f"# {op}: {len(rows)} points, median {np.median(rest):.1%}")
        names = ("start", "per_rank", "fraction", "root")
        out[op] = {k: float(f"{v:.4g}") for k, v in zip(names, np.exp(found.x), strict=True)}
    return out


def main() -> None:
    """Fit what is given."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("accelerator", help="name of a profile")
    options.add_argument("--gemm", type=Path)
    options.add_argument("--collectives", type=Path)
    options.add_argument("--like", help="the GPU's name in the files")
    options.add_argument("--dtype", default="bf16")
    asked = options.parse_args()
    chip = hw.accelerator(asked.accelerator)
    if asked.gemm:
        rows = [r for r in lines(asked.gemm) if r["gpu"] == asked.like and r.get("time_us")]
        rows = [r for r in rows if r.get("dtype") == asked.dtype and r.get("K")]
        print(yaml.safe_dump(gemm(rows, chip, asked.dtype), sort_keys=False))
    if asked.collectives:
        rows = [r for r in lines(asked.collectives) if r["gpu"] == asked.like]
        print(yaml.safe_dump(collectives(rows, chip.links[0].total), sort_keys=False))


if __name__ == "__main__":
    main()
