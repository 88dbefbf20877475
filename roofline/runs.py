"""A published run, as its source states it, turned into a job: what is stated, and what is assumed.

A run is a mapping: ``model`` sizes, ``gpu``, ``n_gpus``, degrees, batch, ``precision``,
``recompute``, ``network``. What it leaves open gets the habit of the framework that ran it
(``roofline.frameworks``), and each such default is listed with the job. What was measured may be a
step time, tokens per second, or FLOP/s by one of the conventions of ``model_flops``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

import hardware_profiles as hw
from roofline import frameworks
from roofline.calibrated import PRECISIONS
from roofline.dims import Dims
from roofline.footprint import peak
from roofline.frameworks import Framework, framework
from roofline.layout import CHEAP, FLASH, OVERLAP, RECOMPUTE, ZERO_KIND, Layout
from roofline.model import Transformer
from roofline.names import choose
from roofline.run_fields import (
    NotMeasured,
    Run,
    RunError,
    flag,
    mapping,
    model,
    number,
    text,
    whole,
)
from roofline.run_limits import check

__all__ = ["Job", "Run", "RunError", "accelerator", "job", "measured"]

# Words of a GPU's name, the most telling first, and the accelerator profile that they mean.
ACCELERATORS = {
    "a100-40gb": "a100-sxm-40gb",
    "a100": "a100-sxm-80gb",
    "h100-96gb": "h100-sxm-hbm2e",
    "h100-pcie": "h100-pcie",
    "h100-80gb-pcie": "h100-pcie",
    "h100": "h100-sxm",
    "h200": "h200-sxm",
    "h800": "h800-sxm",
    "gh200": "gh200",
    "gb200": "gb200",
    "gb300": "gb300",
    "b200": "b200-sxm",
    "b300": "b300-sxm",
    "v100": "v100-sxm",
    "mi300x": "mi300x",
    "mi325x": "mi325x",
    "mi355x": "mi355x",
}


@dataclass(frozen=True, slots=True)
class Job:
    """A run as the step model takes it."""

    id: str
    source: str
    accelerator: str  # name of its profile
    precision: str
    model: Transformer
    layout: Layout
    framework: Framework
    domain: int  # GPUs under one NVLink domain
    nic: float | None  # B/s per GPU between nodes, where stated
    assumed: tuple[str, ...] = ()


def job(run: Run) -> Job:
    """The run with every gap filled.

    Raises:
        RunError: a field that is missing, of the wrong type, or impossible.
    """
    row = framework(run)
    assumed: list[str] = []
    sizes = model(run)
    network = mapping(run, "network")
    nic = network.get("internode_gbps_per_gpu")
    layout = _layout(run, sizes, row, assumed)
    check(layout, sizes)
    inside = network.get("nvlink_domain_gpus") or run.get("gpus_per_node")
    kernels = list(FLASH)[int(layout.attention)]
    assumed.append(f"habits of {row.name}, among them attention: {kernels}")
    if inside is None:
        assumed.append("nvlink_domain_gpus = 8")
    if nic is None:
        assumed.append("internode_gbps_per_gpu as in the GPU's reference cluster")
    precision = str(run.get("precision") or "bf16")
    if not run.get("precision"):
        assumed.append("precision = bf16")
    try:
        choose("precision", precision, PRECISIONS)
    except ValueError as error:
        raise RunError(str(error)) from None
    return Job(
        id=str(run.get("id") or "run"),
        source=str(run.get("source") or ""),
        accelerator=accelerator(text(run, "gpu")),
        precision=precision,
        model=sizes,
        layout=layout,
        framework=row,
        domain=whole({"nvlink_domain_gpus": inside or 8}, "nvlink_domain_gpus"),
        nic=number(network, "internode_gbps_per_gpu", least=1e-3) / 8 * 1e9 if nic else None,
        assumed=tuple(assumed),
    )


def accelerator(gpu: str) -> str:
    """The profile that a GPU's name means: ``H100-80GB-SXM``, ``h100-sxm``.

    Raises:
        RunError: when no word of it is known.

    >>> accelerator("H100-80GB-SXM")
    'h100-sxm'
    """
    name = gpu.lower().replace(" ", "-").replace("_", "-")
    if name in ACCELERATORS.values():
        return name
    parts = f"-{name}-"
    found = next((ours for word, ours in ACCELERATORS.items() if f"-{word}-" in parts), None)
    if found is None:
        known = ", ".join(sorted(set(ACCELERATORS.values())))
        raise RunError(f"gpu: {gpu[:60]!r} is not known; allowed: names that hold one of {known}")
    return found


def measured(run: Run) -> float:
    """Seconds of a step, from whatever the run's source printed. [s]

    Raises:
        NotMeasured: when nothing of it says how long a step took.
        RunError: when what says so is no time.
    """
    derived, printed = mapping(run, "derived"), mapping(run, "measured")
    for stated in (derived, printed):
        if stated.get("step_time_s") is not None:
            return number(stated, "step_time_s", least=1e-6)
    if printed.get("tokens_per_s_per_gpu") is not None:
        shape = mapping(run, "model")
        tokens = number(run, "global_batch_size") * number(shape, "seq_len")
        rate = number(printed, "tokens_per_s_per_gpu", least=1e-6) * number(run, "n_gpus")
        return tokens / rate
    if derived.get("step_time_s_from_flops") is not None:
        return number(derived, "step_time_s_from_flops", least=1e-6)
    raise NotMeasured("measured: neither step_time_s nor tokens_per_s_per_gpu is given")


def _layout(run: Run, sizes: Transformer, row: Framework, assumed: list[str]) -> Layout:
    gpus, batch = whole(run, "n_gpus"), whole(run, "global_batch_size")
    tp, pp, cp = whole(run, "tp", 1), whole(run, "pp", 1), whole(run, "cp", 1)
    micro = whole(run, "micro_batch_size", 0) or _one(assumed, "micro_batch_size")
    chunks = whole(run, "vpp", 0) or _chunks(run, assumed)
    fsdp = str(run.get("fsdp") or "")
    zero = run.get("zero_stage")
    zero = _one(assumed, "zero_stage") if zero is None else whole(run, "zero_stage", least=0)
    split = flag(run, "sequence_parallel")
    if split is None:
        split = tp > 1 and row.attention != "unfused"
        assumed.append(f"sequence_parallel = {str(split).lower()}")
    if run.get("recompute") not in ("none", "selective", "full"):
        assumed.append(f"recompute as {row.name} does by default: {row.unstated}")
    again, share = frameworks.recompute(run, row, sizes.layers, pp)
    layout = Layout(
        gpus=gpus,
        tp=tp,
        cp=cp,
        pp=pp,
        ep=whole(run, "ep", 1),
        etp=whole(run, "etp", 1),
        chunks=chunks,
        micro_batch=micro,
        batch=batch,
        sequence=whole(mapping(run, "model"), "seq_len"),
        sequence_parallel=float(bool(split) and tp > 1),
        zero=3 if fsdp and not fsdp.startswith("none") else zero,
        shard=frameworks.shard(run),
        reshard=float("SHARD_GRAD_OP" not in fsdp),
        schedule=frameworks.schedule(run),
        even=_even(str(run.get("notes") or ""), sizes, pp * chunks),
        recompute=RECOMPUTE[again],
        recompute_share=share,
        recompute_modules=frameworks.modules(run) or CHEAP,
        **_habits(run, sizes, row, chunks),
    )
    scores_kept = np.equal(layout.attention, FLASH["unfused"]) and not sizes.experts
    if run.get("recompute") is None and scores_kept and row.unstated == "none":
        return _fitted(run, sizes, layout, assumed)
    return layout


def _fitted(run: Run, sizes: Transformer, layout: Layout, assumed: list[str]) -> Layout:
    """The least recomputation with which a job that keeps its scores fits in memory."""
    hbm = hw.accelerator(accelerator(text(run, "gpu"))).hbm_bytes
    for name in ("none", "attention", "full"):
        layout = replace(layout, recompute=RECOMPUTE[name])
        if np.all(peak(Dims.of(sizes), layout).fits(hbm)):
            break
    assumed.append(f"recompute = {name}: the least that fits in memory")
    return layout


def _habits(run: Run, sizes: Transformer, row: Framework, chunks: int) -> dict[str, float]:
    """What the framework decides, as fields of the layout."""
    notes = str(run.get("notes") or "")
    return {
        "tp_overlap": OVERLAP[_reachable(run, frameworks.tp_overlap(run, row))],
        "dp_overlap": float(row.dp_overlap),
        "pp_overlap": float(row.pp_overlap and chunks > 1),
        "ep_overlap": frameworks.exchange_overlap(run, row),
        "deduplicated": float(frameworks.deduplicated(run, row)),
        # DeepSeek routes a token to at most four nodes.
        "node_limit": 4.0 if sizes.latent and sizes.experts else float("inf"),
        "attention": FLASH[frameworks.attention(run, row)],
        "fused": float(row.fused),
        "fused_experts": float(frameworks.fused_experts(run, row)),
        "fused_loss": float(row.fused_loss),
        "graphs": frameworks.graphs(run, row),
        "compiled": float(row.compiled),
        "dropout": float(row.dropout),
        "zero_kind": ZERO_KIND[row.zero_kind],
        "dropless": float(frameworks.dropless(run)),
        "early": float(frameworks.early(run, row)),
        "blocking": float("CUDA_LAUNCH_BLOCKING=1" in notes),
        "weight_bytes": frameworks.weight_bytes(run),
        "gradient_bytes": frameworks.gradient_bytes(run, row),
        "optimizer_bytes": row.optimizer_bytes,
    }


def _reachable(run: Run, overlap: str) -> str:
    """Fine-grained overlap writes 16 or 8 bits into buffers of one host: 4 GPUs of an NVL72."""
    host = run.get("gpus_per_node")
    far = isinstance(host, int) and whole(run, "tp", 1) > host
    four = "fp4" in str(run.get("precision"))
    return "backward" if (far or four) and overlap == "fine" else overlap


def _even(notes: str, sizes: Transformer, parts: int) -> float:
    """How stages are cut: 1 where embedding and head take a layer's slot, 2 by hand (with MTP)."""
    stated = "count as one layer slot" in notes or "one layer fewer" in notes
    if not (stated or sizes.layers % parts):
        return 0.0
    return 2.0 if sizes.mtp else 1.0


def _chunks(run: Run, assumed: list[str]) -> int:
    """Runs of layers per stage where none is stated: two of an interleaved schedule."""
    if "interleaved" not in str(mapping(run, "extra").get("pp_schedule")).lower():
        return _one(assumed, "vpp")
    assumed.append("vpp = 2, as torchtitan interleaves")
    return 2


def _one(assumed: list[str], key: str) -> int:
    assumed.append(f"{key} = 1")
    return 1
