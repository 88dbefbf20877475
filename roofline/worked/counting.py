"""Parameters, FLOPs, memory, activations and reliability: what one counts before any strategy."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from hardware_profiles import cluster
from hardware_profiles.derived import memory_ladder
from roofline import activations, memory, reliability
from roofline.arithmetic import einsum_flops
from roofline.counting import (
    Flops,
    Run,
    Shape,
    attention_crossover,
    chips_needed,
    flops,
    model_flops,
    parameters,
    projection_crossover,
    run,
    tokens_per_gpu,
    utilization,
)
from roofline.machine import Ideal, Tier
from roofline.presets import preset
from roofline.strategies import data_parallel, mixed
from roofline.strategies.phases import Phase, passes
from roofline.units import Bytes, Num
from roofline.workload import Workload

Inputs = Mapping[str, float]

BOOK = memory.convention("book")
FP32 = memory.convention("fp32")


def _shape(i: Inputs, norms: float = 0) -> Shape:
    """A dense model of as many layers as given, one if none; plain attention where K is absent."""
    heads, head_dim = i.get("N", 1), i.get("H", i.get("NH", i.get("D", 1)))
    return Shape(
        i.get("L", 1),
        i["D"],
        i.get("F", 4 * i["D"]),
        heads,
        i.get("K", heads),
        head_dim,
        i.get("V", 0),
        norms=norms,
    )


def _run(i: Inputs) -> Run:
    tokens = i.get("T", i.get("B", 1))
    return run(i["P"], tokens, gpus=i.get("n", 1), rate=i["C"], mfu=i.get("mfu", 1))


def _flops(i: Inputs, phase: Phase = "step") -> Flops:
    return flops(_shape(i), tokens_per_gpu(i.get("B", 1), i["T"]), i["T"], phase=phase)


def _kept(policy: str, i: Inputs) -> Bytes:
    tokens = i.get("BT", i.get("B", 1))
    return activations.activation_bytes(
        activations.kept(policy), tokens, i["D"], layers=i["L"], d_ff=i.get("F")
    )


def _korthikanti(policy: str, i: Inputs, *, parallel: bool = False) -> Bytes:
    return activations.activation_bytes(
        activations.kept(policy),
        i["s"] * i["b"],
        i["h"],
        heads=i["a"],
        length=i["s"],
        tensor_parallel=i["t"] if parallel else 1,
        sequence_parallel=parallel,
    )


def _states(i: Inputs, stage: int) -> Bytes:
    """ZeRO over N or DP replicas, of a model that TP and PP may divide."""
    return memory.model_states(
        i["P"],
        stage,
        i.get("N", i.get("DP", 1)),
        tensor_parallel=i.get("TP", 1),
        pipeline_parallel=i.get("PP", 1),
        bytes_per_parameter=memory.convention("zero")._replace(optimizer=i.get("K", 12)),
    ).total


def _moved(i: Inputs, stage: int) -> Bytes:
    moved = memory.bytes_moved(i["P"], stage, weight_bytes=i["b"], gradient_bytes=i["b"])
    return moved.total


def _at_total(i: Inputs, policy: str = "checkpoints") -> Bytes:
    """Weights, moments and checkpoints of LLaMA 3-70B, over all chips."""
    return _book_states(i) + _kept(policy, i)


def _pooled(gpus: int, hbm: float) -> float:
    """Memory of a box of GPUs, over which a model is cut by layers."""
    box = cluster("rtx-4090-box").resized(gpus)
    cards = box.accelerator.model_copy(update={"hbm_bytes": hbm})
    pooled = memory_ladder(box.model_copy(update={"accelerator": cards}))[-1].capacity
    assert pooled is not None
    return pooled


def _book_states(i: Inputs) -> Bytes:
    return memory.model_states(i["P"], bytes_per_parameter=BOOK).total


def _matmul(b: float, d: float, f: float) -> Num:
    return einsum_flops("bd,df->bf", {"b": b, "d": d, "f": f})


def _two_layers(i: Inputs) -> Num:
    """x[B, D] through D × D and D × K matrices."""
    return _matmul(i["B"], i["D"], i["D"]) + _matmul(i["B"], i["D"], i["K"])


def _tiny(i: Inputs) -> float:
    """Parameters of n square layers and a vector to one output."""
    return i["D"] * i["D"] * i["n"] + i["D"]


def _tiny_memory(i: Inputs) -> Bytes:
    adagrad = memory.convention("adagrad")
    states = memory.model_states(_tiny(i), bytes_per_parameter=adagrad).total
    inputs = activations.kept("block")
    return states + activations.activation_bytes(
        inputs, i["B"], i["D"], layers=i["n"], element_bytes=4.0
    )


def _torus(over: float) -> Ideal:
    """A machine of which one thing is known, C / W; rings as long as need be."""
    return Ideal(over, (Tier(np.inf, 1.0),))


def _mlp(i: Inputs) -> Workload:
    """The MLP of LLaMA 2-13B."""
    return Workload(i.get("B", 3e6), preset("llama-2-13b").shape.d_model, i["F"])


def _fsdp_minimum(over: float, chips: int) -> float:
    work = Workload(3e6, 5120, 13824)
    bound = data_parallel.bound(work, _torus(over), chips, zero=3, form="rough")
    return float(bound.threshold.needed * chips)


def _idefics_comms(i: Inputs) -> Bytes:
    return memory.bytes_moved(80e9, zero=3).total / i["W"]


def _attention_term(i: Inputs) -> Bytes:
    """5 a s / h: scores over one byte per token and channel."""
    sizes = {**i, "b": 1, "t": 1}
    scores = _korthikanti("everything", sizes) - _korthikanti("selective", sizes)
    return scores / (i["s"] * i["h"])


def _largest(i: Inputs, convention: str = "book", **how: int) -> Num:
    chip = Ideal(1.0, hbm_bytes=i["hbm"])
    states = memory.convention(convention)
    return memory.largest_model(chip, **how, bytes_per_parameter=states, usable=1)


def _breakeven(i: Inputs) -> Num:
    return activations.breakeven_width(i["C"], i["W"])


def _attention_share(shape: Shape) -> Num:
    parts = parameters(shape)
    return parts.attention / (parts.attention + parts.mlp)


def _plain(solve: Callable[[Inputs], Num]) -> Callable[[Inputs], float]:
    return lambda i: float(solve(i))


ONE = {"D": 1, "L": 1}
LETTERS = {letter: size for size, letter in enumerate("ijklmno", 2)}
GPT_3 = preset("gpt-3-175b").shape
ONE_GPT_3_MATRIX = parameters(GPT_3).mlp / (GPT_3.layers * GPT_3.matrices)
NODE = cluster("dgx-h100-superpod").tiers[0].degree
WORKERS = (1.0, 1.1, 1.0, 1.6)

_FOUND: dict[str, Callable[[Inputs], Num]] = {
    "ex-dsv3-batch": lambda i: tokens_per_gpu(i["seqs"], i["T"]),
    "ex-dsv3-tokens-per-gpu": lambda i: tokens_per_gpu(i["seqs"], i["T"], i["n"]),
    "q5.2.3-tokens-per-gpu": lambda i: tokens_per_gpu(i["B"], gpus=i["n"]),
    "at-tokens-per-chip": lambda i: tokens_per_gpu(1024, 4096, 8960),
    **dict.fromkeys(
        ("q5.3-megatron-16b", "q5.3-megatron-70b", "q5.3-megatron-314b"),
        lambda i: tokens_per_gpu(i["gbs"], i["T"], i["n"]),
    ),
    # Parameters
    "tf-q1-params": lambda i: parameters(_shape(i, norms=i["L"])).total,
    "tf-q1-attn-fraction": lambda i: _attention_share(_shape(i)),
    **dict.fromkeys(("tr-p1-ffw", "at-ffw"), lambda i: parameters(_shape(i)).mlp),
    **dict.fromkeys(("tr-p1-attn", "at-attn"), lambda i: parameters(_shape(i)).attention),
    **dict.fromkeys(("tr-p1-vocab", "at-vocab"), lambda i: parameters(_shape(i)).vocabulary),
    **dict.fromkeys(
        ("tr-p1-total", "at-total", "at-q2a-405b-params"), lambda i: parameters(_shape(i)).total
    ),
    # FLOPs
    "tf-mlp-flops": lambda i: _flops(i).mlp,
    "tf-attn-proj-flops": lambda i: _flops(i).projections,
    "tf-unembed-flops": lambda i: _flops(i).vocabulary,
    "tf-attn-ratio": lambda i: _flops(i).attention / _flops(i).layers,
    "tf-attn-crossover-8k": lambda i: attention_crossover(_shape(i)),
    "tf-attn-crossover-gemma": lambda i: attention_crossover(_shape(i)),
    "tf-q5-crossover": lambda i: projection_crossover(_shape(i)),
    "tf-q6-remat": lambda i: _flops({**i, "D": i["NH"]}, "forward").attention,
    "tf-remat-flops-ratio": lambda i: model_flops(1, 1, recompute=1) / model_flops(1, 1),
    "tf-q2-per-device": lambda i: _matmul(i["B"] / i["X"], i["D"] / i["Y"], i["F"]),
    "tf-q2-total": lambda i: i["Z"] * _matmul(i["B"], i["D"], i["F"]),  # the same on each z
    "tf-q3-einsum": lambda i: einsum_flops("ijkl,ijmno->klmno", LETTERS),
    "cs2-matmul-flops": lambda i: _matmul(i["B"], i["D"], i["K"]),
    "cs2-fwd-flops": lambda i: _two_layers(i),
    "cs2-bwd-flops": lambda i: passes("backward") * _two_layers(i),
    "cs2-opt-flops": lambda i: model_flops(_tiny(i), i["B"]),
    "tf-q7-model": lambda i: model_flops(i["P"], i["T"]),
    "q5.2.2-total-flops": lambda i: model_flops(i["P"], i["T"]),
    "at-flops-token": lambda i: model_flops(i["P"], 1),
    "at-q2a-405b-flops": lambda i: model_flops(405.8e9, 15e12),
    # Time
    "tf-q7-mfu": lambda i: utilization(i["P"], i["T"], gpu_seconds=i["h"] * 3600, rate=i["C"]),
    "q5.2.2-cluster-flops": lambda i: _run({"P": 1, **i}).rate,
    **dict.fromkeys(
        ("q5.2.2-train-seconds", "at-pod-seconds", "at-token-time", "tr-p3-step"),
        lambda i: _run(i).seconds,
    ),
    **dict.fromkeys(("q5.2.2-train-days", "cs2-train-days"), lambda i: _run(i).days),
    "at-one-chip-years": lambda i: _run(i).years,
    "stas-idefics-compute-90": lambda i: (
        run(80e9, tokens_per_gpu(3584, 1024), gpus=512, rate=90e12, recompute=1).seconds
    ),
    # Model states
    "bytes-per-param-book": lambda i: BOOK.total,
    **dict.fromkeys(("q5.2.1-bytes", "tr-p2-state"), _book_states),
    "q5.2.1-gpus": lambda i: chips_needed(_book_states(i), i["hbm"]),
    "q5.2.1-nodes": lambda i: chips_needed(_book_states(i), NODE * i["hbm"]),
    "tr-max-params-v5p": lambda i: _largest(i),
    "tr-max-params-h100": lambda i: _largest(i),
    "cs2-max-params": lambda i: _largest(i, "fp32", zero=3, data_parallel=NODE),
    "cs2-gpt3-ff": lambda i: (
        memory.model_states(ONE_GPT_3_MATRIX, bytes_per_parameter=FP32).weights
    ),
    "cs2-opt-memory": _tiny_memory,
    "zero-dp": lambda i: _states(i, 0),
    **dict.fromkeys(("zero-1", "zero-1-70b-512", "zero-1-3d-405b"), lambda i: _states(i, 1)),
    "zero-2-70b-512": lambda i: _states(i, 2),
    **dict.fromkeys(("zero-3", "zero-n1", "zero-3-70b-512"), lambda i: _states(i, 3)),
    "zero-comm-ddp-10b": lambda i: _moved(i, 0),
    "zero-comm-zero1-10b": lambda i: _moved(i, 1),
    "zero-comm-zero2-10b": lambda i: _moved(i, 2),
    "zero-2-microbatch-comms": lambda i: (
        memory.bytes_moved(i["P"], 2, microbatches=i["m"]).gradients
    ),
    **dict.fromkeys(
        ("stas-idefics-comms", "stas-idefics-slow", "stas-idefics-fast"), _idefics_comms
    ),
    "naive-mp-4x6": lambda i: _pooled(4, 6e9),
    "tr-p3-hbm": lambda i: _pooled(4096, 96e9),
    "offload-optimizer-pcie": lambda i: activations.optimizer_offload(i["P"], i["W"]),
    "at-mem-params": lambda i: memory.model_states(i["P"], bytes_per_parameter=BOOK).weights,
    "at-mem-opt": lambda i: memory.model_states(i["P"], bytes_per_parameter=BOOK).optimizer,
    "at-mem-total": _at_total,
    "at-min-chips": lambda i: chips_needed(_at_total(i), i["hbm"]),
    "at-mem-per-chip": lambda i: _at_total(i) / i["n"],
    "at-mem-per-chip-12": lambda i: _at_total(i, "checkpoints-12") / i["n"],
    # Activations
    "tf-ckpt-full": lambda i: _kept("book-everything", i),
    "tf-ckpt-block": lambda i: _kept("block", i),
    "tf-ckpt-bigmatmul": lambda i: _kept("book-matmuls", i),
    "at-mem-ckpt": lambda i: _kept("checkpoints", i),
    **dict.fromkeys(("tr-p2-ckpt", "tr-p3-ckpt"), lambda i: _kept("mlp-outputs", i)),
    "activation-store-frac": lambda i: _kept("block", ONE) / _kept("book-everything", ONE),
    "act-none": lambda i: _korthikanti("everything", i),
    "act-tp-sp": lambda i: _korthikanti("everything", i, parallel=True),
    "act-selective": lambda i: _korthikanti("selective", i, parallel=True),
    "act-full": lambda i: _korthikanti("block", i),
    "act-gpt3-attn-term": _attention_term,
    "offload-breakeven-nvlink": _breakeven,
    "offload-breakeven-pcie": _breakeven,
    "offload-breakeven-ib": _breakeven,
    # LLaMA 2-13B on a slice of 4096 TPUs
    "tr-p3-minbatch": lambda i: _fsdp_minimum(850, 4096),
    "tr-p3-mixed-min": lambda i: mixed.critical_tokens(_mlp(i), _torus(2550), axes=(2, 1)),
    "tr-p3-xopt": lambda i: mixed.optimal_degree(_mlp(i), _torus(2550), i["N"], axes=(2, 1)),
    # Workers
    "sync-straggler": lambda i: reliability.synchronous_step(WORKERS, 0.1),
    "async-rate": lambda i: reliability.asynchronous_rate(WORKERS, 0.1),
}

SOLVERS = {id: _plain(solve) for id, solve in _FOUND.items()}

NOT_COVERED = {
    "stas-idefics-measured": "a measured time",
    "tr-p3-seqs": "3 Mi tokens over 32 Ki, a division that no formula is about",
    "at-min-chips-days": "two rounded results of the book, multiplied",
}
