"""Worked problems about TPU pods: tori, arrays sharded over them, the network between slices."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from hardware_profiles import accelerator
from hardware_profiles.derived import cuda_cores
from roofline.arithmetic import Kernel, matmul
from roofline.chip import Level, bound, critical_batch, latency_floor
from roofline.collectives import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER, Collective
from roofline.machine import Ideal, Tier
from roofline.sharded_matmul import add_after
from roofline.sharding import parse
from roofline.torus import Axis, Torus, link_bytes, send, time

Inputs = Mapping[str, float]
Solver = Callable[[Inputs], float]

V5E_POD = Torus((Axis(16, 45e9),) * 2)
V5P_POD = Torus((Axis(16, 90e9), Axis(20, 90e9), Axis(28, 90e9)))
V5E_HOST, V5P_HOST = 8, 4  # chips


def _vpu(i: Inputs) -> float:
    one_core = accelerator("scaling-book-tpu-v5p").model_copy(update={"sms": 1})
    return float(cuda_cores(one_core) or math.nan)


def _load(i: Inputs) -> float:
    """Every chip reads its part of bf16 parameters from HBM."""
    part = Kernel("load", 0.0, 2 * i["P"] / i["n"])
    return float(bound(part, 1.0, (Level("HBM", i["W"]),)).t_comms)


def _int8_critical(i: Inputs) -> float:
    return float(critical_batch(i["C"], i["W"], i["D"], i["F"], x_bytes=1, w_bytes=1, o_bytes=1))


def _corner_to_corner(i: Inputs) -> float:
    """bf16[8, 128, 8192] through a 4 x 4 slice that does not wrap around, half the hops a side."""
    slice_ = Torus((Axis(4, i["w"], wraps=False),) * 2)
    hops = i.get("hops", 6) / 2
    nbytes = 2 * 8 * 128 * 8192
    return float(send(nbytes, (hops, hops), slice_, hop_latency=i.get("lat", 0.0)))


def _q6(rate: float, bandwidth: float) -> tuple[float, float]:
    """int8[8, 128 Ki] x int8[128 Ki, 128 Ki] on one chip: T_math, and T_comms of the weights."""
    kernel = matmul(8, 131072, 131072, x_bytes=0, w_bytes=1, o_bytes=0)
    times = bound(kernel, rate, (Level("HBM", bandwidth),))
    return float(times.t_math), float(times.t_comms)


def _both_ways(size: float, bandwidth: float) -> Torus:
    """A ring whose bandwidth is given with both directions added, as the book's W is."""
    return Torus((Axis(size, bandwidth / 2),))


def _gather(nbytes: float, torus: Torus, sharded: float = 1, op: Collective = ALL_GATHER) -> float:
    return float(time(op, nbytes, torus, sharded=sharded, form="rough").seconds)


def _line_gather(nbytes: float, link: float, latency: float) -> float:
    """All-gather over four chips in a row."""
    line = Torus((Axis(4, link, wraps=False),))
    return float(time(ALL_GATHER, nbytes, line, hop_latency=latency).seconds)


def _ring_latency(size: float, latency: float, nbytes: float, bandwidth: float) -> float:
    ring = _both_ways(size, bandwidth)
    return float(time(ALL_GATHER, nbytes, ring, form="rough", hop_latency=latency).seconds)


def _replication(i: Inputs) -> float:
    """Bytes of A[I_X, J] on a mesh X, Y, Z over the bytes of A."""
    array, sizes = parse("A[I_X, J]"), {"I": 4, "J": 1}
    mesh = {"X": 4, "Y": i["Y"], "Z": i["Z"]}
    return array.bytes_on_mesh(sizes, mesh, width=1) / 4  # type: ignore[arg-type]


def _pop_quiz(i: Inputs, everywhere: bool) -> float:
    """int8 A[I_XY, J] on a mesh X, Y, Z = 2, 8, 2."""
    sizes = {"I": i["I"], "J": i["J"]}
    mesh = {"X": i.get("X", 2), "Y": i.get("Y", 8), "Z": i.get("Z", 2)}
    array = parse("A[I_XY, J]")
    counted = array.bytes_on_mesh if everywhere else array.bytes_per_device
    return counted(sizes, mesh, width=1)  # type: ignore[arg-type]


def _gather_or_add(i: Inputs) -> float:
    """D from which adding partial sums beats multiplying gathered weights on every chip."""
    added = add_after(1, 1, 1, Ideal(i["C"], (Tier(16, i["W"]),)), 16, form="rough").t_comms
    return float(added / bound(matmul(1, 1, 1), i["C"], ()).t_math)


def _two_chips(i: Inputs) -> float:
    pair = Ideal(i["C"], (Tier(2, i["W"]),))
    return float(add_after(1, 1, 1, pair, 2).threshold.needed)


def _inner_or_outer(i: Inputs) -> float:
    """Gathering A[N, M_X] over scattering the sums of C[N, K], an int8 row of each."""
    ring = _both_ways(16, 1.0)
    return _gather(i["M"], ring) / _gather(i["K"], ring, op=REDUCE_SCATTER)


def _one_way(op: Collective, i: Inputs) -> float:
    """N² scalars over a ring of D that sends one way round."""
    return float(link_bytes(op, i["N"] ** 2, Axis(i["D"], 1.0, bidirectional=False)))


def _both_ways_ratio(i: Inputs) -> float:
    ring = _both_ways(4096, i["w2"])
    return _gather(i["V"], ring, op=ALL_TO_ALL) / _gather(i["V"], ring)


SOLVERS: dict[str, Solver] = {
    "tpu-vpu-alus-per-core": _vpu,
    "tpu-q1-load": _load,
    "tpu-q2-v5e-hosts": lambda i: float(V5E_POD.hosts(V5E_HOST)),
    "tpu-q2-v5e-flops": lambda i: float(V5E_POD.chips * i["C"]),
    "tpu-q2-v5e-hbm": lambda i: float(
        V5E_POD.chips * accelerator("scaling-book-tpu-v5e").hbm_bytes
    ),
    "tpu-q2-v5p-hosts": lambda i: float(V5P_POD.hosts(V5P_HOST)),
    "tpu-q2-v5p-flops": lambda i: float(V5P_POD.chips * i["C"]),
    "tpu-q2-v5p-hbm": lambda i: float(
        V5P_POD.chips * accelerator("scaling-book-tpu-v5p").hbm_bytes
    ),
    "tpu-q4-bcrit-hbm": _int8_critical,
    "tpu-q4-bcrit-vmem": _int8_critical,
    "tpu-q5-transfer": _corner_to_corner,
    "tpu-q5-total": _corner_to_corner,
    "tpu-q6-hbm": lambda i: _q6(1.0, i["w"])[1],
    "tpu-q6-flops": lambda i: _q6(i["C"], 1.0)[0],
    "rf-2chip-critical-D": _two_chips,
    "rf-2chip-critical-D-h100": _two_chips,
    "sh-pq1-per-device": lambda i: _pop_quiz(i, everywhere=False),
    "sh-pq1-total": lambda i: _pop_quiz(i, everywhere=True),
    "sh-latency-threshold": lambda i: float(latency_floor(i["w"], i["t"])),
    "sh-pq2-ag": lambda i: _gather(2 * 2048 * 8192, _both_ways(4, i["w"])),
    "sh-pq2-ag-nowrap": lambda i: _line_gather(2 * 2048 * 8192, i["w"], 0.0),
    "sh-pq2-small": lambda i: _line_gather(2 * 256 * 256, i["w"], i["t"]),
    "sh-hop-latency-model": lambda i: _ring_latency(i["X"], i["T"], i["V"], i["W"]),
    "sh-q1-ratio": _replication,
    "sh-q2.1": lambda i: _gather(2 * i["B"] * i["D"], _both_ways(4, i["W"]), i["Y"]),
    "sh-q2.2": lambda i: _gather(2 * i["B"] * i["D"], Torus((Axis(4, i["W"] / 2),) * 2)),
    "sh-q2.3": lambda i: _gather(
        2 * i["B"] * i["D"], _both_ways(4, i["W"]), i["X"] * i["Y"], ALL_REDUCE
    ),
    "sh-q3": lambda i: _ring_latency(2 * i["hops"], i["t"], 1.0, math.inf),
    "sh-q4-crit": lambda i: float(Level("ICI", i["W"]).ridge(i["C"])),
    "sh-q4-D": _gather_or_add,
    "sh-q9-ratio": _inner_or_outer,
    "sh-q10-ag-uni": lambda i: _one_way(ALL_GATHER, i),
    "sh-q10-a2a-uni": lambda i: _one_way(ALL_TO_ALL, i),
    "sh-q10-ratio-uni": lambda i: _one_way(ALL_TO_ALL, i) / _one_way(ALL_GATHER, i),
    "sh-q10-ratio-bidir": _both_ways_ratio,
    "sh-a2a-bidir-chunks": lambda i: float(Axis(i["N"], 1.0).all_hops),
}

NOT_COVERED: dict[str, str] = {}
