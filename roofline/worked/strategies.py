"""Worked problems on the parallel strategies: each solved by the call that a user would make."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from roofline.bound import Bound, busy
from roofline.bubbles import bubble
from roofline.chip import Level
from roofline.collectives import ALL_GATHER, SEND, bandwidth
from roofline.counting import run
from roofline.groups import Group
from roofline.machine import Ideal, Tier
from roofline.memory import model_states
from roofline.placement import Mesh, mesh
from roofline.strategies import (
    data_parallel,
    expert_parallel,
    mixed,
    pipeline_parallel,
    tensor_parallel,
)
from roofline.workload import Workload

Inputs = Mapping[str, float]
Solver = Callable[[Inputs], float]

NODE = 8  # GPUs of the book's nodes
V5P_FLOPS, V5P_LINK, V5P_AXES = 459e12, 180e9, 3  # per chip, per mesh axis both ways, mesh axes
MANY = 2.0**40  # units of a tier without end


def _one(rate: float, link: float) -> Ideal:
    """GPUs without end on one tier."""
    return Ideal(rate, (Tier(MANY, link, "network"),))


def _nodes(rate: float, network: float, node: float = 450e9) -> Ideal:
    """Nodes of eight GPUs with a network card each."""
    tiers = (Tier(NODE, node, "node", transit=False), Tier(MANY, network, "network"))
    return Ideal(rate, tiers)


def _work(i: Inputs) -> Workload:
    return Workload(
        i.get("B", 1e6),
        i.get("D", 8192),
        i.get("F", 28672),
        experts=i.get("E", MANY if "k" in i else 1),
        experts_per_token=i.get("k", 1),
        layers=int(i.get("N_layers", 1)),
    )


def _data(
    i: Inputs, degree: float = 64, *, machine: Ideal | None = None, **options: object
) -> Bound:
    """Data parallelism as the book has it on paper."""
    where = machine or _one(i["C"], i["W"])
    return data_parallel.bound(_work(i), where, degree, **{"form": "rough", **options})  # type: ignore[arg-type]


def _critical(i: Inputs, degree: float = 64, **options: object) -> float:
    return float(_data(i, degree, **options).threshold.needed)  # type: ignore[arg-type]


def _spanning(i: Inputs, gpus: float) -> float:
    """Critical tokens where model parallelism of ``gpus`` GPUs fills whole nodes."""
    return _critical(i, machine=_nodes(i["C"], i["W"]), model_parallel=gpus)


def _v5p_tokens(axes: int = V5P_AXES) -> float:
    """Critical tokens per chip of data parallelism on a TPU v5p."""
    return _critical({"C": V5P_FLOPS, "W": axes * V5P_LINK})


def _tensor(i: Inputs, degree: float = 8) -> Bound:
    return tensor_parallel.bound(_work(i), _one(i["C"], i["W"]), degree, form="rough")


def _tensor_limit(i: Inputs, matrices: int = 2, links: int = 1) -> float:
    work = Workload(1e6, 8192, i["F"], matrices=matrices)
    limit, *_ = tensor_parallel.degree_limits(work, _one(i["C"], links * i["W"]))
    return float(limit.rough)


def _two_nodes(i: Inputs) -> tuple[Workload, Ideal]:
    return _work(i), _nodes(i["C"], i.get("W_node", i.get("W", 0.0)), i.get("W_gpu", 450e9))


def _experts(i: Inputs, degree: float | None = None, **options: object) -> Bound:
    where = _nodes(i["C"], i["W"])
    return expert_parallel.bound(_work(i), where, degree or i["Z"], **options)  # type: ignore[arg-type]


def _between_nodes(i: Inputs) -> float:
    """Time of both all-to-alls on the network alone."""
    return float(busy(_experts({"C": 1.0, **i}).comms)["network"])


def _pipeline(i: Inputs, **options: object) -> Bound:
    where = _one(1.0, i["W"])
    return pipeline_parallel.bound(
        _work(i),
        where,
        i["N_stages"],
        microbatches=i["N_MB"],
        **options,  # type: ignore[arg-type]
    )


def _mixed_axes(i: Inputs) -> tuple[float, float]:
    return i.get("MX", 2), i.get("MY", 1)


def _torus(i: Inputs) -> Ideal:
    """A chip whose C / W is ``a``; a v5p unless said."""
    return _one(i["a"], 1.0) if "a" in i else _one(V5P_FLOPS, V5P_LINK)


def _mixed_tokens(i: Inputs) -> float:
    return float(mixed.critical_tokens(_work(i), _torus(i), axes=_mixed_axes(i)))


def _mixed_degree(i: Inputs) -> float:
    return float(mixed.optimal_degree(_work(i), _torus(i), i["N"], axes=_mixed_axes(i)))


def _mixed_time(i: Inputs, axis: str) -> float:
    where = _one(i["C"], i["W"])
    gpus, axes = i["X"] * i["Y"], _mixed_axes(i)
    both = mixed.bound(_work(i), where, i["X"], gpus=gpus, axes=axes, hierarchical=False)
    return float(busy(both.comms)[f"{axis} axis"])


def _bytes(bound: Bound) -> float:
    """What a GPU sends over links of one byte per second."""
    return float(bound.t_comms)


def _parts(i: Inputs, name: str) -> float:
    """Idle time for given F, B and W; the number of micro-batches does not matter."""
    row = bubble(
        name,
        i["p"],
        4 * i["p"],
        forward=i["F"],
        backward=i["Bf"],
        weight=i["W"],
        pair=i["FB"],
    )
    return float(row.idle)


def _mesh32(i: Inputs) -> Mesh:
    degrees = {"model": int(i["TP"]), "data": int(i["DP"]), "pipe": int(i["PP"])}
    return mesh(int(i["TP"] * i["DP"] * i["PP"]), degrees)


CRITICAL_TOKENS = (
    "dp-crit-node-h100",
    "dp-crit-su-h100",
    "dp-dsv3-crit",
    "dp-moe-crit-oss",
    "dp-moe-k-equals-E",
    "q5.1-tp-crit",
    "q5.1-dp-crit",
    "q5.3-fsdp-bound",
    "tr-dcn-ridge",
    "tr-dp-crit-v5p",
)

SOLVERS: dict[str, Solver] = dict.fromkeys(CRITICAL_TOKENS, _critical)
SOLVERS |= {
    # Data parallelism
    "dp-crit-node-h100-exact": lambda i: _critical(
        i, i["N"], machine=_nodes(i["C"], 400e9, i["W"]), form="precise"
    ),
    "dp-crit-node-h100-fp32grads": lambda i: float(
        data_parallel.bound(
            Workload(1e6, 8192, 28672, gradient_bytes=i["b"]),
            _one(i["C"], i["W"]),
            8,
            form="rough",
        ).threshold.needed
    ),
    "dp-crit-sharp": lambda i: _critical(
        i,
        8,
        machine=Ideal(i["C"], (Tier(NODE, i["W"], in_network_reduction=True),)),
        in_network="theory",
    ),
    "dp-crit-tpu-v5p-3axes": lambda i: _critical({**i, "W": 3 * i["W"]}),
    "dp-dsv3-batch": lambda i: i["n"] * _critical(i),
    "dp-2node-crit": lambda i: _critical(
        i, i["X"], machine=_nodes(i["C"], i["W"]), model_parallel=NODE, form="precise"
    ),
    "dp-2node-crit-bound": lambda i: _critical(
        i,
        NODE * i["X"],
        machine=_nodes(i["C"], i["W_node"], i["W_gpu"]),
        form="precise",
    ),
    "dp-tmath-at-threshold": lambda i: float(_data(i, i["X"]).t_math),
    "dp-tcomms-at-threshold": lambda i: float(_data(i, i["X"]).t_comms),
    "dp-full-step-flops": lambda i: float(
        data_parallel.bound(_work(i), _one(1.0, 1.0), 1, phase="step").t_math
    ),
    "dp-moe-tmath": lambda i: float(_data({**i, "E": 128, "W": 400e9}, i["X"]).t_math),
    "dp-moe-tcomms": lambda i: float(_data({**i, "C": 990e12}).t_comms),
    "dp-general-nodes-spanned": lambda i: _spanning(i, NODE * i["m"]),
    "ex-llama3-dp-crit": lambda i: _spanning(i, NODE * i["nodes"]),
    "q5.2.3-pp-crit": lambda i: _spanning(i, NODE * i["m"]),
    "q5.2.3-pp-bandwidth": lambda i: 990e12 / _spanning({**i, "C": 990e12}, NODE * i["m"]),
    "q5.3-70b-crit": lambda i: _spanning(i, 16),
    "q5.3-314b-crit": lambda i: _spanning(i, 64),
    "q5.1-flops-ratio": lambda i: float(
        _data({"C": i["b"], "W": 1.0}).t_math / _data({"C": i["a"], "W": 1.0}).t_math
    ),
    "q5.1-gb200-improvement": lambda i: (
        _critical({"C": i["C1"], "W": i["W1"]}) / _critical({"C": i["C2"], "W": i["W2"]})
    ),
    "ex-dsv3-dp2-gain": lambda i: float(
        bandwidth(ALL_GATHER, Group(i["X"]), [Tier(MANY, 1.0, "network")])
    ),
    "dp-step-bytes": lambda i: _bytes(
        data_parallel.bound(_work(i), _one(1.0, 1.0), 2, phase="step", form="rough")
    ),
    "fsdp-step-bytes": lambda i: _bytes(
        data_parallel.bound(_work(i), _one(1.0, 1.0), 2, zero=3, phase="step", form="rough")
    ),
    "tr-dp-batch-pod": lambda i: 8960 * _v5p_tokens(),
    "tr-fsdp-dsv2-chips": lambda i: i["B"] / _v5p_tokens(),
    "tr-fsdp-llama-chips": lambda i: i["B"] / _v5p_tokens(),
    "tr-dcn-fsdp-chips": lambda i: 2e6 / _v5p_tokens(),
    "tr-dcn-egress": lambda i: float(
        bandwidth(SEND, Group(2, stride=4), [Tier(4, V5P_LINK), Tier(MANY, 25e9)])
    ),
    "tr-fsdp-llama-days": lambda i: float(
        run(70e9, 15e12, gpus=i["B"] / _v5p_tokens(), rate=i["C"], mfu=0.5).days
    ),
    # Tensor parallelism
    "tp-max-node": _tensor_limit,
    "tp-max-beyond": _tensor_limit,
    "tp-max-2node": lambda i: float(tensor_parallel.degree_limits(*_two_nodes(i))[1].partial),
    "tp-max-2node-bound": lambda i: float(tensor_parallel.largest_degree(*_two_nodes(i))),
    "tp-max-gated": lambda i: _tensor_limit(i, matrices=3),
    "tp-tmath": lambda i: float(_tensor(i, i["Y"]).t_math),
    "tp-tcomms": lambda i: float(_tensor(i, i["Y"]).t_comms),
    "tp-step-bytes": lambda i: _bytes(
        tensor_parallel.bound(_work(i), _one(1.0, 1.0), 2, phase="step", form="rough")
    ),
    "q5.2.3-tp-limit": _tensor_limit,
    "tr-tp-gemma": lambda i: _tensor_limit({**i, "C": V5P_FLOPS, "W": V5P_LINK}),
    "tr-tp-llama-F8": lambda i: (
        8 * float(_tensor({"C": V5P_FLOPS, "W": V5P_LINK}, 8).threshold.needed)
    ),
    "tr-tp-int8-same": lambda i: float(Level("ICI", i["W"]).ridge(i["C8"])),
    "ai-tp-bound": lambda i: _tensor_limit(i, links=2),
    # FSDP + tensor parallelism
    "tr-mixed-xopt-64": _mixed_degree,
    "at-xopt": _mixed_degree,
    "tr-mixed-bn": _mixed_tokens,
    "at-mixed-bound": _mixed_tokens,
    "tr-dcn-bn": lambda i: _mixed_tokens({"F": 30000}),
    "tr-dcn-mixed-chips": lambda i: 2e6 / _mixed_tokens({"F": 30000}),
    "tr-mixed-gain": lambda i: _critical({"C": i["a"], "W": V5P_AXES}) / _mixed_tokens(i),
    "tr-mixed-plot-crossing": lambda i: i["n"] * _mixed_tokens(i),
    "tr-mixed-fsdp-comms": lambda i: _mixed_time(i, "X"),
    "tr-mixed-tp-comms": lambda i: _mixed_time(i, "Y"),
    # Expert parallelism
    "ep-alpha": lambda i: float(_experts({**i, "k": 8}, 16).threshold.needed),
    "ep-regime1-fmin-Z16-k8": lambda i: float(_experts(i).threshold.needed),
    "ep-regime2-fmin-limit": lambda i: float(_experts({**i, "k": 1}, MANY).threshold.needed),
    "ep-max-Z-dsv3": lambda i: float(expert_parallel.degree_limits(*_two_nodes(i))[1].few),
    "ep-tmath-dsv3": lambda i: float(_experts(i).t_math),
    "ep-tcomms-dsv3": lambda i: float(_experts(i).t_comms),
    "ep-tcomms-dsv3-nodelimit4": lambda i: float(_experts(i, node_limit=i["lim"]).t_comms),
    "ep-alltoall-one": lambda i: float(_experts(i).comms[0].seconds),
    "ep-cross-Z8": _between_nodes,
    # Pipelines
    "pp-hop": lambda i: float(_pipeline(i).t_comms) / _hops(i),
    "pp-hops": lambda i: _hops(i),
    "pp-total": lambda i: float(_pipeline(i).t_comms),
    "pp-per-layer-approx": lambda i: float(_pipeline(i, form="rough").t_comms) / i["N_layers"],
    "pp-figure-2stage-2mb-steps": lambda i: float(bubble("gpipe", i["p"], i["m"]).step),
    "pp-mem-gpipe": lambda i: float(bubble("gpipe", i["p"], i["m"]).in_flight),
    "pp-mem-zbh2": lambda i: float(bubble("zb-h2", i["p"], i["m"]).in_flight),
    "pp-mem-interleaved": lambda i: float(
        bubble("interleaved", i["p"], 4 * i["p"], chunks=i["v"]).in_flight
    ),
    "pp-mem-vhalf": lambda i: float(bubble("v-half", i["p"], 4 * i["p"]).in_flight),
    "pp-mem-vmin": lambda i: float(bubble("v-min", i["p"], 4 * i["p"]).in_flight),
    "bubble-1f1b-ratio": lambda i: float(bubble("1f1b", i["p"], i["m"]).ratio),
    "bubble-interleaved": lambda i: float(
        bubble("interleaved", i["p"], i["m"], chunks=i["v"]).ratio
    ),
    "bubble-naive-mp": lambda i: float(bubble("naive", i["p"], i["m"]).share),
    "bubble-zb1p": lambda i: float(bubble("zb-h1", i["p"], i["m"]).ratio),
    "bubble-zb2p": lambda i: float(
        bubble(
            "zb-h2",
            i["p"],
            i["m"],
            forward=i["TF"],
            backward=i["TB"] + i["TW"],
            weight=i["TW"],
        ).ratio
    ),
    "bubble-1f1b-time": lambda i: _parts(i, "1f1b"),
    "bubble-zb1p-time": lambda i: _parts(i, "zb-h1"),
    "bubble-dualpipe-time": lambda i: _parts(i, "dualpipe"),
    # Meshes
    "3d32-dp-groups": lambda i: len(_mesh32(i).groups("data")),
    "3d32-pp-groups": lambda i: len(_mesh32(i).groups("pipe")),
    "3d32-rank": lambda i: float(_mesh32(i).rank(pipe=i["p"], data=i["d"], model=i["t"])),
    "3d32-zero1-bytes": lambda i: float(
        model_states(i["P"], 1, i["DP"], tensor_parallel=i["TP"], pipeline_parallel=i["PP"]).total
    ),
    "ex-llama3-gpus": lambda i: _mesh32(i).size,
    "ex-dsv3-model-parallel": lambda i: (
        mesh(int(i["EP"] * i["PP"]), {"expert": int(i["EP"]), "pipe": int(i["PP"])}).size
    ),
    "q5.2.3-dp-degree": lambda i: mesh(int(i["n"]), {"tensor": NODE, "data": None}).degree("data"),
}


def _hops(i: Inputs) -> float:
    return float(pipeline_parallel.hops(i["N_stages"], i["N_MB"]))


NOT_COVERED: dict[str, str] = {}
