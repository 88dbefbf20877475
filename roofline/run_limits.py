"""A published run's layout is held to the constraints of ``roofline.fitting``, in the run's words."""

from __future__ import annotations

from dataclasses import replace

from roofline import fitting
from roofline.layout import Layout
from roofline.model import Transformer
from roofline.run_fields import Reading, RunError, refused

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


def agree(read: Reading, layout: Layout, model: Transformer) -> None:
    """Pass when what a run states twice is the same both times, and nothing is cut that is not.

    Raises:
        RunError: naming the field that differs, and what follows from the others.
    """
    fsdp = read.text("fsdp", "none", forced=True).upper()
    stage, usual = read.stated("zero_stage"), 2 if "SHARD_GRAD_OP" in fsdp else 3
    if not fsdp.startswith("NONE") and stage not in (None, usual, 3):
        raise refused("zero_stage", stage, f"{usual} or null, for fsdp is stated")
    for path, value, why in (
        ("vpp", layout.chunks, "pp is 1" if layout.pp == 1 else ""),
        ("etp", layout.etp, "" if model.experts else "the model has no experts"),
    ):
        if why and value > 1:
            raise refused(path, int(value), f"1, for {why}")
    steps = f"{layout.microbatches:g}, global_batch_size / (dp · micro_batch_size)"
    for path, value, told in (
        ("dp", layout.dp, f"{layout.dp:g}, n_gpus / (tp · pp · cp)"),
        ("grad_accum_steps", layout.microbatches, steps),
        ("extra.num_microbatches", layout.microbatches, steps),
    ):
        stated = read.stated(path)
        if stated is not None and stated != value:
            raise refused(path, stated, told)
