"""Worked problems about one accelerator: its tables, ridge points, kernels and lanes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from hardware_profiles import Accelerator, accelerator
from hardware_profiles.derived import (
    cuda_cores,
    l1_total,
    pcie_bandwidth,
    tensor_core_flops_per_cycle,
    vector_flops,
)
from roofline.arithmetic import Kernel, dot, elementwise, matmul
from roofline.bound import Bound
from roofline.chip import Level, attainable, bound, critical_batch, latency_floor
from roofline.occupancy import divergence, resident_warps, sms_occupied

Inputs = Mapping[str, float]
Solver = Callable[[Inputs], float]


def _ridge(i: Inputs) -> float:
    return float(Level("memory", i["W"]).ridge(i["C"]))


def _chip(i: Inputs, name: str = "h100") -> Accelerator:
    """The book's chip with the numbers that a problem gives."""
    fields = {"n_SM": "sms", "n_TC": "simd_per_sm"}
    given = {fields[key]: value for key, value in i.items() if key in fields}
    peak = {"peak_flops": {"bf16": i["C"]}} if "C" in i else {}
    return accelerator(f"scaling-book-{name}").model_copy(update=given | peak)


def _found(value: float | None) -> float:
    assert value is not None
    return float(value)


def _tensor_core(i: Inputs) -> float:
    return _found(tensor_core_flops_per_cycle(_chip(i), "bf16", i["f"]))


def _vector(i: Inputs, fma: bool = False) -> float:
    return _found(vector_flops(_chip(i), i["f"], fma=fma))


def _smem(i: Inputs) -> float:
    """Shared memory of the whole chip, 256 KiB an SM as the hardware has it."""
    chip = accelerator("h100-sxm").model_copy(update={"sms": i["n_SM"]})
    return _found(l1_total(chip))


def _b200_clock(i: Inputs, sms: float = 148) -> float:
    """Clock at which the vector units reach a printed rate: that rate over FLOPs per cycle."""
    return i["P"] / _vector({"n_SM": sms, "f": 1.0}, fma=True)


def _b200_vector_ridge(i: Inputs) -> float:
    clock = _b200_clock({"P": i["P_fma"]})
    return float(Level("HBM", i["W"]).ridge(_vector({"n_SM": 148, "f": clock})))


def _seconds(flops: float, rate: float) -> float:
    return float(bound(Kernel("math", flops, 0.0), rate, ()).t_math)


def _on_hbm(kernel: Kernel, i: Inputs, rate: float) -> Bound:
    return bound(kernel, rate, (Level("HBM", i["W"]),))


def _matmul(i: Inputs, **widths: float) -> Kernel:
    return matmul(i["B"], i["D"], i["F"], **widths)  # type: ignore[arg-type]


def _vector_add(i: Inputs) -> float:
    return float(_on_hbm(elementwise(i["N"]), i, i["P"]).t_lower)


# A row of the book's tables → what to read from the profile of its chip.
_COLUMNS: dict[str, Callable[[Accelerator], float | None]] = {
    "sms": lambda chip: chip.sms,
    "smem": lambda chip: chip.shared_memory_per_sm,
    "l2": lambda chip: chip.l2_bytes,
    "hbm-cap": lambda chip: chip.hbm_bytes,
    "hbm-bw": lambda chip: chip.hbm_bandwidth,
    "bf16": lambda chip: chip.flops("bf16"),
    "fp8": lambda chip: chip.flops("fp8" if "fp8" in chip.peak_flops else "int8"),
    "int8": lambda chip: chip.flops("int8"),
    "clock-base": lambda chip: chip.base_clock,
    "clock-boost": lambda chip: chip.boost_clock,
    "ici": lambda chip: chip.links[0].bandwidth,
    "ici-bidi": lambda chip: 2 * chip.links[0].bandwidth,
}
_ROWS = {
    "v100": "sms smem l2 clock-base clock-boost",
    "a100": "sms smem l2 hbm-cap hbm-bw bf16 fp8 clock-base clock-boost",
    "h100": "sms smem l2 hbm-cap hbm-bw fp8 clock-base clock-boost",
    "h200": "smem l2 hbm-cap bf16 fp8 clock-base",
    "b200": "sms smem l2 hbm-bw bf16 fp8",
    "tpu-v3": "hbm-bw bf16 ici ici-bidi",
    "tpu-v4p": "hbm-bw bf16 int8 ici",
    "tpu-v5p": "hbm-cap bf16 int8 ici ici-bidi",
    "tpu-v5e": "hbm-bw bf16 int8 ici ici-bidi",
    "tpu-v6e": "hbm-cap hbm-bw int8 ici ici-bidi",
}


def _table(chip: str, column: str) -> Solver:
    return lambda i: _found(_COLUMNS[column](accelerator(f"scaling-book-{chip}")))


TABLES = {
    f"table-{chip}-{column}": _table(chip, column)
    for chip, columns in _ROWS.items()
    for column in columns.split()
}

_RIDGES = (
    "q1.3-ridge-h100-fp16",
    "q1.3-ridge-b200-fp16",
    *(f"ridge-bf16-table-{chip}" for chip in ("a100", "h100", "h200", "b200")),
    "rf-v5e-ridge",
    "rf-q1-int8-ridge",
    "rf-2chip-intensity",
)
_FP8_RIDGES = ("q1.3-ridge-h100-fp8", "q1.3-ridge-b200-fp8")
_BATCHES = ("rf-q5-h100-bcrit", "tpu-q3-pcie-bcrit", "pcie5-bcrit-h100")
_INT8_BATCHES = ("rf-q1-int8-bcrit", "rf-q2-int8w-bcrit")

SOLVERS: dict[str, Solver] = {
    **TABLES,
    **dict.fromkeys(_RIDGES, _ridge),
    **dict.fromkeys(_FP8_RIDGES, lambda i: _ridge({**i, "C": 2 * i["C"]})),
    **dict.fromkeys(_BATCHES, lambda i: float(critical_batch(i["C"], i["W"]))),
    **dict.fromkeys(_INT8_BATCHES, lambda i: float(critical_batch(i["C"], i["W"], w_bytes=1))),
    **{f"gpu-tc-flops-per-cycle-{chip}": _tensor_core for chip in ("a100", "h100", "b200")},
    "gpu-tc-888-matmul": lambda i: float(matmul(i["m"], i["k"], i["n"]).flops),
    "gpu-vector-spec-h100": lambda i: _vector(i, fma=True),
    "gpu-resident-warps-256regs": lambda i: float(
        resident_warps(
            i["regs_per_thread"],
            register_file=i["regfile"],
            register_bytes=i["bytes_per_reg"],
            lanes=i["lanes"],
        )
    ),
    "gpu-l2-over-hbm": lambda i: float(
        Level("HBM", i["W_HBM"]).ridge(1.0) / Level("L2", i["W_L2"]).ridge(1.0)
    ),
    "gpu-simd-units-h100": lambda i: _found(cuda_cores(_chip(i))) / _chip(i).lanes_per_simd,
    "gpu-smem-total-h100-table": _smem,
    "gpu-h200-vs-v5p-flops": lambda i: _seconds(1.0, i["b"]) / _seconds(1.0, i["a"]),
    "q1.1-cuda-cores-h100": lambda i: _found(cuda_cores(_chip(i))),
    "q1.1-alus-tpu-v5p": lambda i: _found(
        cuda_cores(
            accelerator("scaling-book-tpu-v5p").model_copy(
                update={
                    "sms": i["n_TC"],
                    "simd_per_sm": i["alus_per_lane"] * i["sublanes"],
                    "lanes_per_simd": i["lanes"],
                }
            )
        )
    ),
    "q1.2-vector-flops-h100": _vector,
    "q1.2-vector-flops-h100-boost": _vector,
    "q1.2-tc-over-vector": lambda i: _chip(i).flops("bf16") / _vector(i),
    "q1.4-matmul-bytes-b64": lambda i: float(_matmul(i).nbytes),
    "q1.4-matmul-time-b64-b200": lambda i: float(_on_hbm(_matmul(i), i, i["C"]).t_lower),
    "q1.4-matmul-tmath-b64-b200": lambda i: float(bound(_matmul(i), i["C"], ()).t_math),
    "q1.4-bcrit-exact-b200": lambda i: float(critical_batch(i["I"], 1.0, i["D"], i["F"])),
    "q1.5-smem-total-h100": lambda i: _smem(i) / 2**20,
    "q1.6-b200-flops-per-cycle": lambda i: _vector({**i, "f": 1.0}, fma=True),
    "q1.6-b200-clock": lambda i: _b200_clock(i, i["n_SM"]),
    "q1.7-hw-vector-intensity-h100": lambda i: _ridge({"C": i["P"], "W": i["W"]}),
    "q1.7-hw-vector-intensity-b200": _b200_vector_ridge,
    "q1.7-vecadd-rate": lambda i: float(
        attainable(elementwise(1).intensity, math.inf, [Level("HBM", i["W"])])[0].flops
    ),
    "q1.7-vecadd-64k": _vector_add,
    "q1.7-vecadd-1g": _vector_add,
    "q1.7-sms-for-1024": lambda i: float(sms_occupied(i["N"])),
    "rf-h100-1e12": lambda i: _seconds(i["n"], i["C"]),
    "rf-v6e-1e12": lambda i: _seconds(i["n"], i["C"]),
    "rf-dot-intensity": lambda i: float(dot(i["N"]).intensity),
    "rf-upper-lower": lambda i: _upper_over_lower(i["a"], i["b"]),
    "rf-matmul-intensity-exact": lambda i: float(_matmul(i).intensity),
    "rf-matmul-exact-flops": lambda i: float(matmul(i["B"], i["D"], i["F"], exact=True).flops),
    "rf-q1-int8-tcomms": lambda i: float(
        _on_hbm(_matmul(i, x_bytes=1, w_bytes=1, o_bytes=1), i, 1.0).t_comms
    ),
    "sh-latency-threshold-h100": lambda i: float(latency_floor(i["w"], i["t"])),
    "pcie7-x16": lambda i: pcie_bandwidth(7, int(i["lanes"])),
    "warp-divergence-util": lambda i: float(divergence([24, 8], [1.0, 1.0]).utilisation),
}


def _upper_over_lower(a: float, b: float) -> float:
    both = bound(Kernel("both", a, b), 1.0, (Level("memory", 1.0),))
    return float(both.t_upper / both.t_lower)


_MEASURED = "a measurement, to be compared with the roofline above it"
NOT_COVERED: dict[str, str] = {
    "gpu-regfile-bytes-sm": "the product of three numbers of a datasheet; profiles store the bytes",
    "q1.4-matmul-practice-b64": _MEASURED,
    "q1.4-matmul-practice-b512": _MEASURED,
    "q1.7-vecadd-64k-measured": _MEASURED,
    "q1.7-vecadd-1g-measured": _MEASURED,
}
