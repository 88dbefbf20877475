"""A published run's layout is held to the constraints of ``roofline.fitting``, in the run's words."""

from __future__ import annotations

from dataclasses import replace

from roofline import fitting
from roofline.layout import Layout
from roofline.model import Transformer
from roofline.run_fields import RunError

# What a run calls a field of its layout, where the name differs.
FIELDS = {
    "gpus": "n_gpus",
    "batch": "global_batch_size",
    "micro_batch": "micro_batch_size",
    "chunks": "vpp",
    "sequence": "model.seq_len",
    "zero": "zero_stage",
    "shard": "fsdp",
    "reshard": "fsdp",
}


# Habits of some frameworks and kernels: a run that was published got by without them.
BELIEVED = (
    "tp must divide the key-value heads, or be a multiple of them",
    "tp · cp must divide the sequence where sequence parallelism splits it",
    "tp · cp must divide the heads under Ulysses",
    "etp must divide the experts' width",
    "the schedule needs enough micro-batches, in its multiples",
    "interleaving is a kind of 1F1B",
)


def check(layout: Layout, model: Transformer) -> None:
    """Pass when the layout can be; a run that spreads experts over more GPUs than are is believed.

    Raises:
        RunError: naming the first field that cannot be, and the nearest values that can.
    """
    experts = model.experts.count if model.experts else 1
    if layout.ep <= experts and layout.ep * layout.etp > layout.gpus / layout.pp:
        layout = replace(layout, ep=1, etp=1)
    try:
        fitting.check(model, layout, names=FIELDS, believed=BELIEVED)
    except fitting.Misfit as error:
        raise RunError(str(error)) from None
