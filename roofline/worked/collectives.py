"""Worked problems about collectives: in a node, between nodes, sharded, in switches, measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from roofline import algorithms
from roofline.collectives import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    BROADCAST,
    REDUCE,
    REDUCE_SCATTER,
    Collective,
    array_bytes,
    bandwidth,
    bus_bandwidth,
    collective,
    seconds,
    sharded_reduce_rough,
)
from roofline.groups import Group
from roofline.machine import Tier
from roofline.routing import ragged_all_to_all, reached
from roofline.sharding import parse
from roofline.switches import InNetworkSteps, SwitchBytes, all_gather_in_node, all_gather_on_top
from roofline.switches import in_network_all_reduce as sharp
from roofline.torus import Axis, Torus
from roofline.torus import time as torus_time
from roofline.units import GIB, MIB

Inputs = Mapping[str, float]
Solver = Callable[[Inputs], float]

NODE = 8  # GPUs


def _bytes(i: Inputs, dims: str, width: float = 2) -> float:
    """An unsharded array whose sizes are given: [D, F] in bf16."""
    sizes = {name: int(size) for name, size in i.items() if name in dims}
    return parse(f"[{dims}]").bytes_per_device(sizes, {}, width)


def _flat(op: Collective, nbytes: float, ranks: float, rate: float, **options: Any) -> float:
    """One domain in which every rank has a link of ``rate``."""
    tier = Tier(ranks, rate, in_network_reduction=True)
    return float(seconds(op, nbytes, Group(ranks), [tier], **options))


def _gpus_and_nodes(node: float, network: float, nodes: float, gpus: float = NODE) -> list[Tier]:
    return [Tier(gpus, node, transit=False), Tier(nodes, network)]


def _over(op: Collective, i: Inputs, nodes: float, **options: Any) -> float:
    """Whole nodes of eight, V bytes."""
    tiers = _gpus_and_nodes(i["W_gpu"], i["W_node"], nodes)
    nbytes = i.get("V", i.get("B", 0.0))
    return float(seconds(op, nbytes, Group(NODE * nodes), tiers, **options))


def _levels(i: Inputs) -> list[Tier]:
    return [Tier(i[f"D{level}"], i[f"W{level}"]) for level in range(3) if f"D{level}" in i]


def _whole_machine(i: Inputs, nbytes: float, inner: float = 1) -> float:
    """Gather over everything but an inner axis that also shards the array."""
    tiers = _levels(i)
    gpus = 1.0
    for tier in tiers:
        gpus *= float(tier.degree)
    group = Group(gpus / inner, stride=inner)
    return float(seconds(ALL_GATHER, nbytes / inner, group, tiers))


def _spine_alone(i: Inputs) -> float:
    tiers = [Tier(i["S1"], i["W2"]), Tier(i["D2"], i["W2"])]
    group = Group(i["S1"] * i["D2"] / i["Y"], stride=i["Y"])
    return float(collective(ALL_GATHER, i["V"] / i["Y"], group, tiers).by_tier[1])


def _rough_rule(i: Inputs) -> float:
    tiers = _gpus_and_nodes(i["W_gpu"], i["W_node"], 32, gpus=i["D"])
    return float(sharded_reduce_rough(i["V"], i["Y"], tiers))


def _in_scalable_unit(i: Inputs, inner: float, **options: Any) -> float:
    """All-gather over X of bf16[D_X, F_Y] on nodes of eight H100, 32 of them."""
    gpus = i.get("n", 256.0)
    tiers = _gpus_and_nodes(450e9, i.get("W", 400e9), gpus / NODE)
    group = Group(gpus / inner, stride=inner)
    return float(seconds(ALL_GATHER, _bytes(i, "D,F") / inner, group, tiers, **options))


def _exchange_slowdown(i: Inputs) -> float:
    """All-to-all of one array over M nodes of N GPUs against one node."""
    tiers = _gpus_and_nodes(i["W_gpu"], i["W_node"], i["M"], gpus=i["N"])
    one, many = (seconds(ALL_TO_ALL, 1.0, Group(i["N"] * nodes), tiers) for nodes in (1, i["M"]))
    return float(many) / float(one)


def _exchange(i: Inputs) -> float:
    tiers = _gpus_and_nodes(i["W_gpu"], i["W_node"], i["M"], gpus=i["D"])
    return float(seconds(ALL_TO_ALL, i["V"], Group(i["D"] * i["M"]), tiers))


def _exchange_rate(i: Inputs) -> float:
    """Bytes/s that a GPU sends in a large all-to-all: the buffers of all, per GPU and second."""
    nodes = 64
    tiers = _gpus_and_nodes(450e9, i["W"], nodes)
    group = Group(NODE * nodes)
    return 1 / float(seconds(ALL_TO_ALL, NODE * nodes, group, tiers, form="rough"))


def _ring_against_switch(i: Inputs) -> float:
    """All-to-all on a TPU's ring, W both ways together, against a GPU's switch, W one way."""
    ring = torus_time(ALL_TO_ALL, 1.0, Torus((Axis(i["N"], 0.5),))).seconds
    return float(ring) / _flat(ALL_TO_ALL, 1.0, i["N"], 1.0, form="rough")


def _drawn(i: Inputs) -> float:
    """Ragged all-to-all per byte of tokens, with draws that may repeat."""
    tier = Tier(i["Z"], 1.0)
    return float(ragged_all_to_all(i["Z"], i["K"], Group(i["Z"]), [tier], form="draws").seconds)


def _distinct(i: Inputs) -> float:
    return float(reached(i["k"], i["M"], form="distinct", experts=i["E"]))


def _ragged(i: Inputs) -> float:
    tier = Tier(i["N"], i["W"])
    return float(ragged_all_to_all(i["V"], i["k"], Group(i["N"]), [tier]).seconds)


def _ragged_rough(i: Inputs) -> float:
    share = float(reached(i["k"], NODE))
    return share * _flat(ALL_TO_ALL, i["V"], NODE, i["W"], form="rough")


def _sharp_gain(i: Inputs, how: str) -> float:
    ring, adding = (
        _flat(ALL_REDUCE, 1.0, i.get("N", NODE), 1.0, in_network=x) for x in ("off", how)
    )
    return ring / adding


def _sharp(i: Inputs) -> InNetworkSteps:
    return sharp(i.get("V", i.get("B", 0.0)), i["N"])


def _sharded_sharp(i: Inputs) -> float:
    """AR over X of bf16[D, F_Y] in one node, X Y = 8."""
    tier = Tier(NODE, i["W"], in_network_reduction=True)
    group = Group(NODE / i["Y"], stride=i["Y"])
    nbytes = _bytes(i, "D,F") / i["Y"]
    return float(seconds(ALL_REDUCE, nbytes, group, [tier], in_network="theory"))


def _node(i: Inputs) -> SwitchBytes:
    return all_gather_in_node(i["B"], i["M"], i["N"])


def _algorithm(name: str) -> Solver:
    return lambda i: float(algorithms.time(name, i["V"], i.get("n", i.get("N", 0)), i["W"]))


def _with_latency(name: str) -> Solver:
    return lambda i: float(algorithms.time(name, i["V"], i["N"], i["W"], i["lat"]))


def _server_over_ring(i: Inputs) -> float:
    return _algorithm("central server")(i) / _algorithm("ring")(i)


def _factor(op: Collective) -> Solver:
    return lambda i: float(bus_bandwidth(op, 1.0, i["n"], 1.0))


def _local(size: int, ways: int) -> Solver:
    """What one of ``ways`` devices holds of a dim."""
    return lambda i: parse("[I_X]").elements({"I": size}, {"X": ways})


SOLVERS: dict[str, Solver] = {
    # In a node
    "q2.3-array-bytes": lambda i: _bytes(i, "D,F"),
    "q2.3-allgather-time": lambda i: _flat(ALL_GATHER, _bytes(i, "D,F"), i["N"], i["W"]),
    "q2.3-allgather-approx": lambda i: _flat(
        ALL_GATHER, _bytes(i, "D,F"), NODE, i["W"], form="rough"
    ),
    "pq1-allgather-approx": lambda i: _flat(
        ALL_GATHER, _bytes(i, "B,F"), NODE, i["W"], form="rough"
    ),
    "pq1-allgather-exact": lambda i: _flat(ALL_GATHER, _bytes(i, "B,F"), i["N"], i["W"]),
    "ag-n1": lambda i: _flat(ALL_GATHER, i["V"], i["N"], i["W"]),
    "ag-n6": lambda i: _flat(ALL_GATHER, i["V"], i["N"], i["W"]),
    "ar-ring-8": lambda i: _flat(ALL_REDUCE, i["V"], i["N"], i["W"]),
    "ar-ring": _algorithm("ring"),
    "ar-tree-steps": lambda i: float(algorithms.steps("butterfly", i["N"])),
    "ar-recursive-doubling-8": _algorithm("butterfly"),
    "ar-naive-sequential": _algorithm("chain"),
    "ar-all-to-all-broadcast": _algorithm("everyone to everyone"),
    "ar-ring-vs-server": _server_over_ring,
    "ar-llama-mlp-bytes": lambda i: _bytes(i, "a,b"),
    "ring-latency-h100": _with_latency("ring all-gather"),
    "tree-latency-h100": _with_latency("doubling all-gather"),
    # All-to-all
    "pq2-alltoall-dense": lambda i: _flat(ALL_TO_ALL, i["V"], i["N"], i["W"]),
    "pq2-alltoall-dense-approx": lambda i: _flat(ALL_TO_ALL, i["V"], i["N"], i["W"], form="rough"),
    "pq2-alltoall-half": _ragged,
    "pq2-alltoall-half-ratio": lambda i: float(reached(i["k"], i["N"])),
    "a2a-gpu-vs-tpu": _ring_against_switch,
    "a2a-ragged-takeaway": _ragged_rough,
    "a2a-ragged-true-K4-Z8": _drawn,
    "a2a-ragged-true-K8-Z64": _drawn,
    "a2a-ragged-true-K2-Z64": _drawn,
    "a2a-ragged-true-K8-Z2": _drawn,
    "a2a-ragged-true-K1-Z16": _drawn,
    "a2a-distinct-hypergeom-E256-k8-M8": _distinct,
    "a2a-distinct-hypergeom-E256-k8-M64": _distinct,
    "a2a-distinct-hypergeom-E128-k4-M16": _distinct,
    # Switches that add
    "sharp-ar-time": lambda i: _flat(ALL_REDUCE, i["V"], i["N"], i["W"], in_network="theory"),
    "sharp-ar-n1": lambda i: _flat(ALL_REDUCE, i["V"], i["N"], i["W"], in_network="theory"),
    "sharp-speedup": lambda i: _sharp_gain(i, "theory") - 1,
    "sharp-measured-bw": lambda i: i["w"] * _sharp_gain(i, "measured"),
    "sharp-step2-bytes": lambda i: float(_sharp(i).sum_in),
    "sharp-step4-bytes": lambda i: float(_sharp(i).rest_in),
    "q4.2-step2": lambda i: float(_sharp(i).gpus * _sharp(i).sum_in),
    "q4.2-total": lambda i: float(_sharp(i).switch.ingress),
    "q4.3-sharp-ar-sharded": _sharded_sharp,
    # Between nodes
    "xnode-ag-1gb": lambda i: _over(ALL_GATHER, i, 32, form="rough"),
    "xnode-ag-time-exact-1gb": lambda i: _whole_machine(i, i["V"]),
    "xnode-ag-bw-gb200-576": lambda i: float(
        bandwidth(ALL_GATHER, Group(i["D0"] * i["D1"]), _levels(i))
    ),
    **{f"xnode-ag-M{m}": lambda i: _over(ALL_GATHER, i, i["M"]) for m in (2, 3, 4, 5, 32)},
    "xnode-a2a-m2-approx": lambda i: _flat(ALL_TO_ALL, i["V"], i["M"], i["W"], form="rough"),
    "xnode-a2a-m1": lambda i: _flat(ALL_TO_ALL, i["V"], i["M"], i["W"]),
    "xnode-a2a-m2-exact": lambda i: _flat(ALL_TO_ALL, i["V"], i["M"], i["W"]),
    "xnode-a2a-m4-exact": lambda i: _flat(ALL_TO_ALL, i["V"], i["M"], i["W"]),
    "xnode-a2a-degradation": _exchange_slowdown,
    "xnode-a2a-effective-bw": _exchange_rate,
    "xnode-a2a-max-16gpu": _exchange,
    "q4.5-bound": lambda i: _over(ALL_GATHER, i, 2),
    # Through one switch
    "q4.1-node-step3-ingress": lambda i: float(_node(i).from_above),
    "q4.1-node-step4-egress": lambda i: float(_node(i).to_below),
    "q4.1-node-ingress": lambda i: float(_node(i).ingress),
    "q4.1-node-egress": lambda i: float(_node(i).egress),
    "q4.1-node-time": lambda i: float(_node(i).seconds(i["N"] * i["W"])),
    "q4.1-spine-ingress": lambda i: float(all_gather_on_top(i["B"], i["M"]).ingress),
    "q4.1-spine-egress": lambda i: float(all_gather_on_top(i["B"], i["M"]).egress),
    # Sharded over another axis too
    **{f"sharded-rs-h100-Y{y}": _rough_rule for y in (1, 4, 8, 16, 256)},
    **{f"sharded-rs-gb200-Y{y}": _rough_rule for y in (1, 4)},
    **{
        f"sharded-exact-superpod-Y{y}": lambda i: _whole_machine(i, i["V"], i["Y"])
        for y in (1, 8, 256, 1024)
    },
    "sharded-precise-spine-Y1": _spine_alone,
    "pq3-Yle8": lambda i: _in_scalable_unit(i, 8),
    **{
        f"pq3-Y{y}": lambda i: _in_scalable_unit(i, i["Y"], form="rough")
        for y in (16, 32, 128, 256)
    },
    # Measured
    "cs8-ar-bytes": lambda i: _bytes({"I": 100 * MIB}, "I", 4),
    "cs8-ar-bandwidth": lambda i: float(bus_bandwidth(ALL_REDUCE, i["S"], i["n"], i["t"])) / GIB,
    "cs8-ar-busbw-si": lambda i: float(bus_bandwidth(ALL_REDUCE, i["S"], i["n"], i["t"])),
    "cs8-rs-busbw": lambda i: (
        float(bus_bandwidth(REDUCE_SCATTER, i["out"] * i["n"], i["n"], i["t"])) / GIB
    ),
    **{f"busbw-factor-allreduce-n{n}": _factor(ALL_REDUCE) for n in (2, 8, 16)},
    **{f"busbw-factor-reducescatter-n{n}": _factor(REDUCE_SCATTER) for n in (8, 16)},
    "busbw-factor-allgather-n8": _factor(ALL_GATHER),
    "busbw-factor-alltoall-n8": _factor(ALL_TO_ALL),
    "busbw-factor-broadcast-n8": _factor(BROADCAST),
    "busbw-factor-reduce-n8": _factor(REDUCE),
    "nccl-alltoall-time-map": lambda i: _flat(
        ALL_TO_ALL, float(array_bytes(ALL_TO_ALL, i["S"], i["n"])), i["n"], i["W"]
    ),
    # What one device holds
    "cs8-tp-local-dim": _local(1024, 4),
    "cs8-dp-local-batch": _local(128, 4),
    "int-divide-dp": _local(128, 4),
}

NOT_COVERED: dict[str, str] = {
    "q2.3-allgather-measured": "a measured time; the input is the answer",
    "ar-measured-peak-busbw": "a measured bandwidth; the input is the answer",
    "ar-measured-efficiency": "measured over quoted bandwidth, which a calibration holds",
    "cs8-pp-microbatch": "128 samples in 4 micro-batches: a division, no formula",
}
