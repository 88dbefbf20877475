"""A published run, as its source states it, turned into a job: what is stated, and what is assumed.

A run is a mapping: ``model`` sizes, ``gpu``, ``n_gpus``, degrees, batch, ``precision``,
``recompute``, ``network``. What it leaves open gets the habit of the framework that ran it
(``roofline.frameworks``), and each such default is listed with the job. What was measured may be a
step time, tokens per second, or FLOP/s by one of the conventions of ``model_flops``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np

import hardware_profiles as hw
from roofline import frameworks
from roofline.dims import Dims
from roofline.footprint import peak
from roofline.frameworks import Framework
from roofline.layout import CHEAP, FLASH, OVERLAP, RECOMPUTE, ZERO_KIND, Layout
from roofline.model import Transformer
from roofline.run_fields import NotMeasured, Reading, Run, RunError, checked
from roofline.run_gpus import accelerator, domain, gpu_named, known_network, reference_cluster
from roofline.run_limits import agree, check
from roofline.run_model import model
from roofline.run_schema import INTERLEAVED

__all__ = ["Job", "Run", "RunError", "accelerator", "job", "measured"]

NODE = 8  # GPUs of one, where nothing is said


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
    measured: float | None = None  # seconds of a step, where the run says


def job(run: Run) -> Job:
    """The run with every gap filled.

    Raises:
        RunError: a field that is unknown, missing, of the wrong type, or impossible.
    """
    unread: list[str] = []
    read = Reading(checked(run, unread), unread)
    row, told = frameworks.named(read.run)
    gpu, untold = gpu_named(read.text("gpu", ""))
    sizes = model(read)
    precision = read.text("precision", "bf16")
    layout = _layout(read, sizes, row, gpu)
    amp = read.text("precision_detail", "", forced=True).startswith("amp")
    read.whole("year", 2024, forced=not amp)  # Composer's AMP gathers and reduces otherwise since
    read.assume(untold)
    read.assume(told)
    _graphs(read)
    read.assume(f"habits of {row.name}, among them attention: {list(FLASH)[int(layout.attention)]}")
    inside = _domain(read, gpu)
    return Job(
        id=read.text("id", "run", forced=True),
        source=read.text("source", "", forced=True),
        accelerator=gpu,
        precision=precision,
        model=sizes,
        layout=layout,
        framework=row,
        domain=inside,
        nic=_nic(read, gpu, inside),
        assumed=tuple(read.assumed),
        measured=_seconds(read),
    )


def _graphs(read: Reading) -> None:
    """Say so where a text alone speaks of CUDA graphs."""
    if read.stated("extra.cuda_graphs") == "1" and not read.stated("extra.cuda_graph_impl"):
        read.assume("no CUDA graphs: extra.cuda_graphs '1' is a text; allowed: true, to count them")


def _domain(read: Reading, gpu: str) -> int:
    """GPUs under one NVLink domain."""
    path = "network.nvlink_domain_gpus"
    default = 1 if read.stated(path) else domain(gpu, read.stated("gpus_per_node"))
    return read.whole(path, default, forced=read.whole("n_gpus") == 1)


def _nic(read: Reading, gpu: str, inside: int) -> float | None:
    """Of a GPU between nodes, where stated. [B/s]"""
    rate = read.stated("network.internode_gbps_per_gpu")
    if rate is not None:
        return float(rate) / 8 * 1e9
    if read.whole("n_gpus") > inside:
        known_network(gpu)
        read.assume(f"network.internode_gbps_per_gpu as in {reference_cluster(gpu)}")
    return None


def measured(run: Run) -> float:
    """Seconds of a step, from whatever the run's source printed. [s]

    Raises:
        NotMeasured: when nothing of it says how long a step took.
        RunError: when what says so is no time.
    """
    seconds = _seconds(Reading(checked(run)))
    if seconds is None:
        raise NotMeasured("measured: neither step_time_s nor tokens_per_s_per_gpu is given")
    return seconds


def _seconds(read: Reading) -> float | None:
    """Of a measured step; None where nothing says. [s]"""
    for path in ("derived.step_time_s", "measured.step_time_s"):
        if (seconds := read.stated(path)) is not None:
            return float(seconds)
    if (rate := read.stated("measured.tokens_per_s_per_gpu")) is not None:
        tokens = 1.0 * read.whole("global_batch_size") * read.whole("model.seq_len")
        return float(tokens / (rate * read.whole("n_gpus")))
    seconds = read.stated("derived.step_time_s_from_flops")
    return None if seconds is None else float(seconds)


def _layout(read: Reading, sizes: Transformer, row: Framework, gpu: str) -> Layout:
    run = read.run
    gpus, batch = read.whole("n_gpus"), read.whole("global_batch_size")
    alone = gpus == 1
    tp, pp = read.whole("tp", forced=alone), read.whole("pp", forced=alone)
    cp = read.whole("cp", forced=alone)
    chunks = _chunks(read, alone)
    unfused = frameworks.attention(run, row) == "unfused"
    unsaid = read.stated("recompute") is None
    fitted = unsaid and unfused and not sizes.experts and row.unstated == "none"
    if unsaid and not fitted:
        read.assume(f"recompute as {row.name} does by default: {row.unstated}")
    again, share = frameworks.recompute(run, row, sizes.layers, pp)
    layout = Layout(
        gpus=gpus,
        tp=tp,
        cp=cp,
        pp=pp,
        ep=read.whole("ep", forced=alone or not sizes.experts),
        etp=read.whole("etp", forced=alone or not sizes.experts),
        chunks=chunks,
        micro_batch=_micro_batch(read, gpus / (tp * pp * cp)),
        batch=batch,
        sequence=read.whole("model.seq_len"),
        sequence_parallel=_sequence_parallel(read, row, tp),
        zero=_zero(read),
        shard=_shard(read, gpus / (tp * pp)),
        reshard=float("SHARD_GRAD_OP" not in _fsdp(read)),
        schedule=_schedule(read),
        even=_even(str(run.get("notes") or ""), sizes, pp * chunks),
        recompute=RECOMPUTE[again],
        recompute_share=share,
        recompute_modules=frameworks.modules(run) or CHEAP,
        **_habits(run, sizes, row, chunks),
    )
    if read.stated("gpus_per_node") is None and tp > 1 and layout.tp_overlap == OVERLAP["fine"]:
        read.assume(f"gpus_per_node = {tp} or more")
    check(layout, sizes)
    agree(read, layout, sizes)
    return _fitted(read, sizes, layout, gpu) if fitted else layout


def _sequence_parallel(read: Reading, row: Framework, tp: int) -> float:
    usual = tp > 1 and row.attention != "unfused"
    alone = tp == 1 and (read.stated("tp") == 1 or read.whole("n_gpus") == 1)
    split = read.flag("sequence_parallel", usual, forced=alone)
    return float(split and tp > 1)


def _micro_batch(read: Reading, replicas: float) -> int:
    """Sequences; those of one step of accumulation, where the run says how many there are."""
    steps = read.stated("grad_accum_steps") or read.stated("extra.num_microbatches")
    if steps is None:
        return read.whole("micro_batch_size", forced=read.whole("global_batch_size") == replicas)
    size = read.whole("global_batch_size") / (replicas * steps)
    return read.whole("micro_batch_size", max(1, round(size)), forced=size == round(size))


def _fsdp(read: Reading) -> str:
    """How FSDP is named, in upper case; empty where there is none."""
    name = read.text("fsdp", "", forced=True).upper()
    return "" if name.startswith("NONE") else name


def _zero(read: Reading) -> int:
    """The ZeRO stage; FSDP is the third."""
    name = _fsdp(read)
    stage = read.whole("zero_stage", 1, forced=bool(name) or read.whole("n_gpus") == 1)
    return 3 if name else stage


def _shard(read: Reading, replicas: float) -> float:
    """Ranks that states are sharded over; 0: all."""
    found, name = frameworks.shard(read.run), _fsdp(read)
    if not found and name.startswith("HSDP"):
        found = min(read.stated("gpus_per_node") or NODE, replicas)
        read.assume(f"fsdp = HSDP (dp_shard={found:g}), the replicas of a node")
    elif not found and re.search(r"\d", re.sub(r"FSDP[12]", "", name)):
        read.assume("extra.fsdp_shard = all ranks: a number in the words of fsdp is not read")
    return found


def _schedule(read: Reading) -> int:
    """The number of the pipeline schedule."""
    read.text("extra.pp_schedule", "1f1b", forced=read.whole("pp", forced=True) == 1)
    return frameworks.schedule(read.run)


def _chunks(read: Reading, alone: bool) -> int:
    """Runs of layers per stage where none is stated: two of an interleaved schedule."""
    if read.stated("extra.pp_schedule") == INTERLEAVED:
        return read.whole("vpp", 2, why="as torchtitan interleaves")
    return read.whole("vpp", forced=alone or read.stated("pp") == 1)


def _fitted(read: Reading, sizes: Transformer, layout: Layout, gpu: str) -> Layout:
    """The least recomputation with which a job that keeps its scores fits in memory."""
    hbm = hw.accelerator(gpu).hbm_bytes
    for name in ("none", "attention", "full"):
        layout = replace(layout, recompute=RECOMPUTE[name])
        if np.all(peak(Dims.of(sizes), layout).fits(hbm)):
            break
    read.assume(f"recompute = {name}: the least that fits in memory")
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
    far = run.get("tp", 1) > run.get("gpus_per_node", np.inf)
    four = "fp4" in run.get("precision", "bf16")
    return "backward" if (far or four) and overlap == "fine" else overlap


def _even(notes: str, sizes: Transformer, parts: int) -> float:
    """How stages are cut: 1 where embedding and head take a layer's slot, 2 by hand (with MTP)."""
    stated = "count as one layer slot" in notes or "one layer fewer" in notes
    if not (stated or sizes.layers % parts):
        return 0.0
    return 2.0 if sizes.mtp else 1.0
