"""Layout: how a job is cut over GPUs, and the choices of the framework that runs it.

    N = tp · cp · dp · pp             EP and ETP fold into tp · cp · dp
    ranks, innermost first            tp, cp, dp, pp; experts: etp, ep, expert-dp, pp

Every field may be a scalar or a column: then one layout is a table of layouts. Choices with a name
(schedule, recompute, …) are stored as the number of their row, so that they broadcast as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from roofline.names import choose
from roofline.units import Bytes, Count

RECOMPUTE = {name: i for i, name in enumerate(("none", "attention", "half", "block", "full"))}
SCHEDULE = {
    name: i for i, name in enumerate(("1f1b", "gpipe", "zb-h1", "zb-h2", "zb-v", "dualpipe"))
}
OVERLAP = {name: i for i, name in enumerate(("none", "backward", "fine"))}
RING = {name: i for i, name in enumerate(("ring", "all-gather", "ulysses"))}
FLASH = {name: i for i, name in enumerate(("unfused", "flash", "flash-2", "flash-1"))}


def code(field: str, rows: dict[str, int], value: str) -> int:
    """The number of a named choice.

    Raises:
        ValueError: when there is none of this name, naming the nearest.
    """
    return choose(field, value, rows)


@dataclass(frozen=True, slots=True)
class Layout:
    """Degrees, batch and framework choices of one run, or a column of each."""

    gpus: Count
    tp: Count = 1
    cp: Count = 1
    pp: Count = 1
    ep: Count = 1
    etp: Count = 1
    chunks: Count = 1  # v: runs of layers per stage
    micro_batch: Count = 1  # sequences
    batch: Count = 1  # sequences, all replicas
    sequence: Count = 2048
    sequence_parallel: Count = 1  # 1: token-wise work is split over tp too
    zero: Count = 1  # ZeRO stage of the data-parallel axis
    shard: Count = 0  # ranks that states are sharded over; 0: the whole data-parallel axis
    reshard: Count = 1  # 1: FSDP frees weights after the forward pass
    schedule: Count = 0  # SCHEDULE
    even: Count = (
        0  # 1: embedding and head take the slot of a layer when stages are cut; 2: cut by hand
    )
    recompute: Count = 0  # RECOMPUTE
    recompute_share: Count = 1.0  # of the layers
    offload_share: Count = 0.0  # of the activations, to host memory
    tp_overlap: Count = 1  # OVERLAP
    cp_kind: Count = 0  # RING
    pp_overlap: Count = 1
    dp_overlap: Count = 1
    ep_overlap: Count = 0.0  # share of the experts' all-to-alls hidden behind compute
    deduplicated: Count = 1  # a token goes once to each node, and to each GPU
    node_limit: Count = np.inf
    imbalance: Count = 1.0  # load of the busiest expert rank over the mean
    attention: Count = 1  # FLASH
    fused: Count = 1  # norms, rope and activations as single kernels
    fused_loss: Count = 0
    graphs: Count = 0  # CUDA graphs: 1 of parts of a layer, 2 of the whole iteration
    dropout: Count = 0
    blocking: Count = 0  # 1: the host waits for every kernel (CUDA_LAUNCH_BLOCKING)
    weight_bytes: Bytes = 2.0  # gathered or broadcast weights
    gradient_bytes: Bytes = 2.0  # reduced gradients
    optimizer_bytes: Bytes = 46.0  # read and written per owned parameter in a step
    dispatch_bytes: Bytes = 2.0  # per element sent to experts

    @property
    def dp(self) -> Count:
        """Replicas: N / (tp · cp · pp)."""
        return self.gpus / (1.0 * self.tp * self.cp * self.pp)

    @property
    def microbatches(self) -> Count:
        """M, of one pipeline in a step."""
        return self.batch / (self.dp * self.micro_batch)

    @property
    def tokens(self) -> Count:
        """Tokens of a micro-batch on one context-parallel rank."""
        return 1.0 * self.micro_batch * self.sequence / self.cp

    @property
    def split(self) -> Count:
        """What divides token-wise work: tp with sequence parallelism, else 1."""
        return np.where(np.greater(self.sequence_parallel, 0), self.tp, 1.0)

    @property
    def data_ranks(self) -> Count:
        """Ranks that reduce a dense gradient: replicas and context-parallel ranks."""
        return self.dp * self.cp

    @property
    def shards(self) -> Count:
        """Ranks that FSDP shards over."""
        return np.where(
            np.greater(self.shard, 0), np.minimum(self.shard, self.data_ranks), self.data_ranks
        )

    @property
    def expert_data_ranks(self) -> Count:
        """Ranks that reduce an expert's gradient."""
        return np.maximum(1.0, self.gpus / (1.0 * self.pp * self.ep * self.etp))

    def misfits(self, model: Any) -> dict[str, Any]:
        """Constraint → True where the layout breaks it; ``model`` is a ``Dims``."""
        whole = _whole
        return {
            "tp · cp · pp must divide the GPUs": ~whole(self.dp),
            "replicas · micro-batch must divide the batch": ~whole(self.microbatches),
            "tp must divide the heads": ~whole(model.heads / self.tp),
            "cp must divide the sequence": ~whole(self.sequence / self.cp),
            "stages · chunks must not exceed the layers": np.greater(
                self.pp * self.chunks, model.layers
            ),
            "ep must divide the experts": ~whole(model.experts / self.ep),
            "ep · etp must divide tp · cp · dp": ~whole(self.expert_data_ranks),
            "interleaving needs micro-batches in multiples of the stages": np.logical_and(
                np.greater(self.chunks, 1), ~whole(self.microbatches / self.pp)
            ),
        }


def stack(layouts: Sequence[Layout]) -> Layout:
    """Many layouts as one, a column each."""
    names = [f.name for f in fields(Layout)]
    return Layout(*(np.array([getattr(one, n) for one in layouts], float) for n in names))


def _whole(value: Count) -> Any:
    return np.abs(value - np.round(value)) < 1e-9
