"""Caches, decode steps, prefill and serving."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hardware_profiles import accelerator
from roofline.arithmetic import attention
from roofline.chip import Level, critical_prompt
from roofline.counting import Shape, kv_cache_bytes, parameters
from roofline.inference import (
    Decode,
    critical_batch,
    decode,
    evicted_tokens,
    hbm_over_link,
    latency_bound_bytes,
    prefill,
    server_ratio,
    sharding_limit,
    weight_stationary,
)
from roofline.machine import Ideal, Tier
from roofline.memory import Convention, model_states
from roofline.units import Num

Inputs = Mapping[str, float]

V5E, H100 = (accelerator(f"scaling-book-{name}").flops("bf16") for name in ("tpu-v5e", "h100"))


def _chip(i: Inputs, rate: float = V5E) -> Ideal:
    return Ideal(i.get("C", rate), hbm_bandwidth=i["W"])


def _cache(i: Inputs, tokens: float = 1, element_bytes: float = 2.0) -> Num:
    """Keys and values of K heads of H, or of heads KH or NH wide in all."""
    width = i.get("KH", i.get("NH", i.get("H", 0)))
    shape = Shape(i["L"], 1, 1, 1, i.get("K", 1), width, 1)
    return kv_cache_bytes(shape, tokens, element_bytes)


def _intensity(queries: float, keys: float, group: float = 1) -> Num:
    return attention(queries, keys, heads=group).intensity


def _question(i: Inputs, batch: int) -> Decode:
    """30 B parameters in int8 on 16 TPU v5e, caches of 8192 tokens."""
    return decode(
        _chip(i),
        parameters=i["P"],
        batch=batch,
        cache_bytes=i["kv"] * 8192,
        gpus=16,
        weight_bytes=1,
    )


def _table(i: Inputs) -> Decode:
    """LLaMA 2-13B in bf16 on 8 TPU v5e: 26 GB of weights, 6.7 GB of cache each."""
    chip = Ideal(V5E, hbm_bandwidth=820e9)
    return decode(chip, parameters=13e9, batch=i["B"], cache_bytes=6.7e9, gpus=8)


def _shape(i: Inputs, tied: bool = False) -> Shape:
    return Shape(i["L"], i["D"], i["F"], i["N"], i["K"], i["H"], i["V"], tied=tied, norms=0)


def _lecture(i: Inputs) -> Decode:
    """LLaMA 2-13B on one H100, K as given."""
    shape = _shape(i)
    cache = kv_cache_bytes(shape, i["S"])
    chip = _chip(i, H100)
    return decode(chip, parameters=parameters(shape).total, batch=i["B"], cache_bytes=cache)


def _llama_3(i: Inputs) -> Decode:
    """LLaMA 3-70B, weights and cache in int8."""
    chip = Ideal(V5E, hbm_bandwidth=810e9)
    cache = _cache(i, i["S"], 1)
    return decode(chip, parameters=i["P"], batch=i["B"], cache_bytes=cache, weight_bytes=1)


def _read_all(i: Inputs) -> Num:
    """A decode step of which the bytes are known, on 8 chips, as weights of one byte."""
    return decode(
        _chip(i), parameters=i["M"], batch=1, cache_bytes=0, gpus=8, weight_bytes=1
    ).seconds


def _prefill(i: Inputs) -> Num:
    chip = Ideal(i["C"])
    return prefill(chip, parameters=i["P"], tokens=i["T"], gpus=16, mfu=i["mfu"]).seconds


def _experts(i: Inputs, chip: Ideal, weight_bytes: float) -> Num:
    return critical_batch(chip, weight_bytes=weight_bytes, experts=i["E"], experts_per_token=i["k"])


INT4 = Convention(0.5, 0, 0, "int4 weights alone")
_BATCHES = ("b1-k40", "b256-k40", "b256-k8")

_FOUND: dict[str, Callable[[Inputs], Num]] = {
    # Caches
    "tf-kv-8gib": lambda i: _cache(i, i["S"], 1),
    "tf-q1-kv-per-token": lambda i: _cache(i, 1, 1),
    "inf-kv-13b-8k": lambda i: _cache(i, i["T"]),
    "ai-kv-token": lambda i: _cache(i, 1, 1),
    "inf-q1-params": lambda i: parameters(_shape(i, tied=True)).total,
    "cs10-params": lambda i: parameters(_shape(i)).total,
    "ai-int4-params": lambda i: model_states(i["P"], bytes_per_parameter=INT4).total,
    # Intensities
    "tf-q4-prefill-intensity": lambda i: _intensity(i["T"], i["T"], i["G"]),
    "tf-q4-decode-intensity": lambda i: _intensity(1, i["S"], i["G"]),
    "tf-q4-crit-T-mha": lambda i: critical_prompt(i["I"], i["G"]),
    "inf-mha-prefill": lambda i: _intensity(i["T"], i["S"]),
    "inf-bcrit": lambda i: critical_batch(_chip(i)),
    "cs10-ridge": lambda i: Level("HBM", i["W"]).ridge(i["C"]),
    "tf-q8-moe-bcrit": lambda i: _experts(i, Ideal(i["I"], hbm_bandwidth=1.0), 1),
    "tf-q8-moe-bcrit-h100-bf16": lambda i: _experts(i, _chip(i), 2),
    # Decode
    "inf-pq-step4": lambda i: _question(i, 4).seconds,
    "inf-pq-step256": lambda i: _question(i, 256).seconds,
    **{f"inf-table-step-b{b}": lambda i: _table(i).seconds for b in (1, 8, 64)},
    **{f"inf-table-tput-b{b}": lambda i: _table(i).throughput for b in (1, 8, 64, 240)},
    **{f"cs10-mem-{case}": lambda i: _lecture(i).memory for case in (*_BATCHES, "b64-k40")},
    **{f"cs10-latency-{case}": lambda i: _lecture(i).seconds for case in (*_BATCHES, "b64-k8")},
    **{
        f"cs10-tput-{case}": lambda i: _lecture(i).throughput
        for case in (*_BATCHES, "b64-k40", "b64-k8")
    },
    "ai-total-b32": lambda i: _llama_3(i).memory,
    "ai-step": _read_all,
    # Serving
    "ai-prefill": _prefill,
    "ai-evict": lambda i: evicted_tokens(i["B"], i["P"], i["G"]),
    "ai-pd-ratio": lambda i: server_ratio(0.91, 0.019, batch=32, generated=512),
    # More chips
    "inf-tp-generation": lambda i: sharding_limit(i["F"], i["B"], i["beta"]),
    "inf-beta-h100": lambda i: hbm_over_link(
        Ideal(H100, (Tier(8, i["b"], "node"),), hbm_bandwidth=i["a"])
    ),
    "inf-q7-2d-crossover": lambda i: weight_stationary(1, i["D"], i["F"], 1, 1.0).crossover,
    "inf-appC-latency": lambda i: latency_bound_bytes(i["w"], i["t"], shards=8),
}


def _plain(solve: Callable[[Inputs], Num]) -> Callable[[Inputs], float]:
    return lambda i: float(solve(i))


SOLVERS = {id: _plain(solve) for id, solve in _FOUND.items()}

NOT_COVERED: dict[str, str] = {}
