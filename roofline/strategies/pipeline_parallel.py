"""Pipeline parallelism: p stages hold some of the layers each, and m micro-batches flow through.

    hop     = 2 B D / (W m)            bf16 activations of one micro-batch, to the next stage
    T_comms = hop · (m + p - 2)        forward: the first crosses p-1 links, the others follow
    T_math  = 4 L B D F / (p C)        forward: a stage's share of the layers
    hidden while   L / p  ≥  C / (W F) · (m + p - 2) / m

B is the batch of one pipeline. Per layer that is about 1.5 · 2 B D / (W L), the 1.5 standing for
(m + p - 2)/m at m = 2 (p - 2). One stage has no hops. The backward pass sends gradients of the same
size the other way, against twice the math. With v chunks of layers per stage a micro-batch comes by
v times: m v + p - 2 hops. Idle time while the pipeline fills and drains is not communication and
stands in ``roofline.bubbles``.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from roofline import checks
from roofline.blocks import pointwise
from roofline.bound import Bound, Term, Threshold
from roofline.collectives import ALL_REDUCE, SEND, Form, collective
from roofline.groups import Group
from roofline.machine import Machine
from roofline.sources import GPUS, HF_GUIDE
from roofline.strategies.phases import Phase, matmuls, passes
from roofline.units import Count
from roofline.workload import Workload

ROUGH_HOPS = 1.5  # hops per micro-batch, (m + p - 2) / m at m = 2 (p - 2)
ENOUGH_MICROBATCHES = 4  # per stage: the bubble is negligible, GPipe section 2.3

_SOURCE = GPUS("Pipeline parallelism")
_SENDS: dict[Phase, tuple[str, ...]] = {
    "forward": ("activations",),
    "backward": ("gradients",),
    "step": ("activations", "gradients"),
}


@pointwise
def bound(
    work: Workload,
    machine: Machine,
    degree: Count,
    *,
    microbatches: Count | None = None,
    chunks: Count = 1,
    tensor_parallel: Count = 1,
    data_parallel: Count = 1,
    stride: Count | None = None,
    imbalance: Count = 1.0,
    phase: Phase = "forward",
    form: Form = "precise",
) -> Bound:
    """T_math against T_comms of all layers under a pipeline of ``degree`` stages.

    Args:
        degree: p, stages.
        microbatches: m; four per stage when left out.
        chunks: v, separate runs of layers per stage (interleaving).
        tensor_parallel: Y, GPUs inside a stage; each sends its slice of the activations.
        data_parallel: X, pipelines that share the tokens; each sees B / X.
        stride: ranks between neighbours of this axis; Y when left out.
        imbalance: time of the slowest stage over the mean: the pipeline runs at its pace.
        phase: which pass.
        form: ``rough`` takes 1.5 hops per micro-batch, ``precise`` counts them.

    Raises:
        ValueError: an unknown phase, less than one micro-batch, more stages than layers, or a group
            larger than the machine.
    """
    others = {"tensor_parallel": tensor_parallel, "data_parallel": data_parallel}
    checks.all_at_least(1, degree=degree, chunks=chunks, **others, imbalance=imbalance)
    _check(work, degree)
    count = ENOUGH_MICROBATCHES * degree if microbatches is None else microbatches
    layer = matmuls(work, machine, phase, 1.0 * degree * tensor_parallel * data_parallel, "pXY")
    group = Group(degree, tensor_parallel if stride is None else stride)
    math = work.layers * layer.seconds * imbalance
    unit = collective(SEND, 1.0, group, machine.tiers)
    per_microbatch = hops(degree, count, chunks, form) / count
    width = work.activation_bytes * work.d_model / tensor_parallel  # of one token's message
    sent = per_microbatch * width * (1.0 * work.tokens / data_parallel)
    per_byte = unit.seconds
    per_column = passes(phase) * 2.0 * work.matrices * work.experts_per_token / tensor_parallel
    return Bound(
        "pipeline parallelism",
        replace(layer, seconds=math, formula=rf"L\,{layer.formula}"),
        tuple(
            Term(f"{what} to the next stage", sent * per_byte, _formula(form), _SOURCE, unit, sent)
            for what in _SENDS[phase]
        ),
        Threshold(
            "layers per stage",
            1.0 * work.layers / degree,
            len(_SENDS[phase])
            * per_microbatch
            * work.activation_bytes
            / tensor_parallel
            * per_byte
            * machine.flops(work.dtype)
            / (per_column * work.d_ff * imbalance),
            r"\frac{L}{p} > \frac{C}{W F}\,\frac{m + p - 2}{m}",
            "activations cross once per stage however many layers it holds, "
            "so a stage must hold enough of them to be worth the hop",
        ),
    )


def hops(degree: Count, microbatches: Count, chunks: Count = 1, form: Form = "precise") -> Count:
    """Hops on the critical path of one pass: m v + p - 2, and none for a single stage.

    Raises:
        ValueError: fewer than one micro-batch.

    >>> print(hops(16, 32))
    46.0
    """
    checks.at_least("microbatches", microbatches, 1)
    checks.at_least("chunks", chunks, 1)
    visits = 1.0 * microbatches * chunks
    on_path = ROUGH_HOPS * visits if form == "rough" else visits + degree - 2.0
    return np.where(np.greater(degree, 1), on_path, 0.0)


def tied_embedding(
    work: Workload,
    machine: Machine,
    degree: Count,
    *,
    vocabulary: Count,
    tensor_parallel: Count = 1,
    stride: Count | None = None,
) -> Term:
    """All-reduce per step that keeps an embedding shared by the first and last stage the same.

    Either stage sees a part of its gradient, V · D elements. Degree 1 holds both ends: no cost.
    """
    apart = (tensor_parallel if stride is None else stride) * np.maximum(1.0, degree - 1.0)
    unit = collective(ALL_REDUCE, 1.0, Group(np.minimum(degree, 2.0), apart), machine.tiers)
    nbytes = work.gradient_bytes * vocabulary * work.d_model / tensor_parallel
    formula = r"\frac{b\,VD}{Y\,W}"
    return Term("shared embedding all-reduce", nbytes * unit.seconds, formula, HF_GUIDE("PP"), unit)


def zero_warning(zero: int, degree: int, microbatches: int) -> str:
    """Why a ZeRO stage sits badly with a pipeline; empty when it does not.

    >>> zero_warning(1, degree=4, microbatches=16)
    ''
    >>> zero_warning(2, degree=4, microbatches=16)
    'ZeRO-2 reduces gradients in each of the 16 micro-batches: 16 times the bytes of ZeRO-1'
    """
    if zero < 2 or degree < 2 or microbatches < 2:
        return ""
    what = "reduces gradients" if zero == 2 else "gathers weights and reduces gradients"
    times = f"{microbatches} times the bytes of ZeRO-{zero - 1 if zero == 2 else '3 without it'}"
    return f"ZeRO-{zero} {what} in each of the {microbatches} micro-batches: {times}"


def _check(work: Workload, degree: Count) -> None:
    if np.any(np.greater(degree, work.layers)):
        raise ValueError(
            f"degree: {np.max(degree):g} stages for {np.min(work.layers):g} layers leave some "
            f"without one; the nearest is {np.min(work.layers):g}"
        )


def _formula(form: Form) -> str:
    factor = r"\tfrac32" if form == "rough" else r"\frac{m v + p - 2}{m}"
    return rf"{factor}\,\frac{{b\,BD}}{{X\,W}}"
