"""Layout: how a job is cut over GPUs, and the choices of the framework that runs it.

    N = tp · cp · dp · pp             EP and ETP fold into tp · cp · dp
    ranks, innermost first            tp, cp, dp, pp; experts: etp, ep, expert-dp, pp
    or with data parallelism outside  tp, cp, pp, dp; then etp · ep has to be tp · cp

Every field may be a scalar or a column: then one layout is a table of layouts. Choices with a name
(schedule, recompute, …) are stored as the number of their row, so that they broadcast as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roofline.groups import Group
from roofline.names import choose
from roofline.units import Bytes, Count

RECOMPUTE = {
    name: i for i, name in enumerate(("none", "attention", "half", "block", "full", "modules"))
}
SCHEDULE = {
    name: i
    for i, name in enumerate(("1f1b", "gpipe", "zb-h1", "zb-h2", "zb-v", "dualpipe", "zb-2p"))
}
OVERLAP = {name: i for i, name in enumerate(("none", "backward", "fine"))}
RING = {name: i for i, name in enumerate(("ring", "all-gather", "ulysses"))}
ORDER = {name: i for i, name in enumerate(("tp-cp-dp-pp", "tp-cp-pp-dp"))}
FLASH = {name: i for i, name in enumerate(("unfused", "flash", "flash-2", "flash-1", "flash-2024"))}

# How ZeRO-1 reduces gradients and spreads weights: reduce-scatter and all-gather of slices; an
# all-reduce, then an all-gather; an all-reduce, then a broadcast of whole tensors by their owners.
ZERO_KIND = {name: i for i, name in enumerate(("scatter", "all-reduce", "broadcast"))}

# Fields that are the number of a word.
WORDS = {
    "recompute": RECOMPUTE,
    "schedule": SCHEDULE,
    "tp_overlap": OVERLAP,
    "cp_kind": RING,
    "order": ORDER,
    "attention": FLASH,
    "zero_kind": ZERO_KIND,
}

# What ``recompute = "modules"`` runs again: the sum of some of these.
MODULES = {
    name: 1 << i
    for i, name in enumerate(("attention", "norms", "activation", "mla-up", "mlp", "experts"))
}
CHEAP = MODULES["norms"] + MODULES["activation"] + MODULES["mla-up"]  # DeepSeek-V3, section 3.2.3

EXCHANGE_HIDDEN = 0.7  # of the experts' all-to-alls, where another micro-batch computes meanwhile

# Fields that one micro-batch on one stage knows nothing of.
OF_THE_STEP = (
    *("gpus", "pp", "chunks", "batch", "even", "offload_share", "pp_overlap"),
    *("zero", "shard", "reshard", "dp_overlap", "weight_bytes", "gradient_bytes"),
    *("optimizer_bytes", "zero_kind", "order"),
)


def code(field: str, rows: dict[str, int], value: str) -> int:
    """The number of a named choice.

    Raises:
        ValueError: when there is none of this name, naming the nearest.
    """
    return choose(field, value, rows)


def modules_in(chosen: Count) -> list[str]:
    """The names of a sum of ``MODULES``.

    >>> modules_in(6)
    ['norms', 'activation']
    """
    return [name for name, bit in MODULES.items() if int(np.asarray(chosen)) & bit]


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
    order: Count = 0  # ORDER: which axes lie inside, on the faster tiers
    schedule: Count = 0  # SCHEDULE
    even: Count = (
        0  # 1: embedding and head take the slot of a layer when stages are cut; 2: cut by hand
    )
    recompute: Count = 0  # RECOMPUTE
    recompute_share: Count = 1.0  # of the layers
    recompute_modules: Count = CHEAP  # sum of MODULES, where recompute is "modules"
    offload_share: Count = 0.0  # of the activations, to host memory
    tp_overlap: Count = 1  # OVERLAP
    cp_kind: Count = 0  # RING
    pp_overlap: Count = 1
    dp_overlap: Count = 1
    ep_overlap: Count = 0.0  # share of the experts' all-to-alls hidden behind compute
    deduplicated: Count = 1  # a token goes once to each node, and to each GPU
    node_limit: Count = np.inf
    imbalance: Count = 1.0  # load of the busiest of several expert ranks over the mean
    attention: Count = 1  # FLASH
    fused: Count = 1  # norms, rope and activations as single kernels
    fused_experts: Count = 1  # activation and biases of the experts in few kernels
    fused_loss: Count = 0
    graphs: Count = 0  # CUDA graphs: 1 of parts of a layer, 2 of the whole iteration
    compiled: Count = 0  # 1: the step is one program, launched as a whole (JAX)
    dropless: Count = 1  # 1: every expert takes what comes; 0: a fixed number of rows, the rest cut
    early: Count = 0  # 1: software from before kernels for this GPU had ripened
    dropout: Count = 0
    blocking: Count = 0  # 1: the host waits for every kernel (CUDA_LAUNCH_BLOCKING)
    weight_bytes: Bytes = 2.0  # gathered or broadcast weights
    gradient_bytes: Bytes = 2.0  # reduced gradients
    optimizer_bytes: Bytes = 46.0  # read and written per owned parameter in a step
    dispatch_bytes: Bytes = 2.0  # per element sent to experts
    lora_rank: Count = 0  # of adapters on every matrix of the layers; 0: all weights are trained
    frozen_bytes: Bytes = 2.0  # of a weight beside its adapter
    zero_kind: Count = 0  # ZERO_KIND

    @classmethod
    def named(cls, gpus: Count, **chosen: Count | str) -> Layout:
        """A layout whose choices may be words: ``schedule="zb-v", recompute="full"``.

        Raises:
            ValueError: an unknown field or word, naming the nearest.

        >>> Layout.named(8, recompute="full").recompute
        4
        """
        known = {each.name: None for each in fields(cls)}
        for name in chosen:
            choose("layout", name, known)
        found: dict[str, Any] = {
            name: code(name, WORDS[name], value)
            if name in WORDS and isinstance(value, str)
            else value
            for name, value in chosen.items()
        }
        return cls(gpus, **found)

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

    @property
    def busiest(self) -> Count:
        """Load of the busiest expert rank over the mean: of EP ranks none has more than all."""
        return np.minimum(1.0 * self.imbalance, self.ep)

    def repeats(self, module: str) -> NDArray[np.bool_]:
        """True where recomputation is by modules, and this one of ``MODULES`` is among them."""
        chosen = np.asarray(self.recompute_modules, dtype=np.int64) & MODULES[module] > 0
        return np.asarray(np.equal(self.recompute, RECOMPUTE["modules"]) & chosen)

    @property
    def exchange_hidden(self) -> Count:
        """Share of the experts' all-to-alls that compute hides: DualPipe is made for that."""
        paired = np.equal(self.schedule, SCHEDULE["dualpipe"])
        if not np.any(paired):
            return self.ep_overlap
        return np.where(paired, np.maximum(self.ep_overlap, EXCHANGE_HIDDEN), self.ep_overlap)

    @property
    def dp_outside(self) -> Count:
        """How much farther apart replicas are than with the pipeline outermost: pp, or 1."""
        return np.where(np.equal(self.order, ORDER["tp-cp-pp-dp"]), 1.0 * self.pp, 1.0)

    @property
    def tp_group(self) -> Group:
        """Ranks that split every matrix."""
        return Group(self.tp)

    @property
    def cp_group(self) -> Group:
        """Ranks that split a sequence."""
        return Group(self.cp, self.tp)

    @property
    def pp_group(self) -> Group:
        """The stages of one pipeline."""
        inside = np.where(np.equal(self.order, ORDER["tp-cp-pp-dp"]), 1.0, self.dp)
        return Group(self.pp, 1.0 * self.tp * self.cp * inside)

    @property
    def ends_group(self) -> Group:
        """First and last stage, where there is more than one."""
        pipe, several = self.pp_group, np.greater(self.pp, 1)
        apart = np.maximum(1.0, np.floor(pipe.stride * self.pp / 2.0))
        return Group(np.where(several, 2.0, 1.0), np.where(several, apart, 1.0))

    @property
    def data_group(self) -> Group:
        """Ranks that reduce a dense gradient; with several cp, no closer than they really are."""
        return Group(self.data_ranks, self.tp * self.dp_outside)

    @property
    def shard_group(self) -> Group:
        """Ranks that FSDP shards over."""
        return Group(self.shards, self.tp * self.dp_outside)

    @property
    def replica_group(self) -> Group:
        """Ranks that hold the same shard: HSDP's replicas."""
        stride = self.tp * self.dp_outside * self.shards
        return Group(self.data_ranks / self.shards, stride)

    @property
    def ep_group(self) -> Group:
        """Ranks that hold one set of experts."""
        return Group(self.ep, self.etp)

    @property
    def expert_data_group(self) -> Group:
        """Ranks that reduce an expert's gradient."""
        return Group(self.expert_data_ranks, 1.0 * self.ep * self.etp * self.dp_outside)


def stack(layouts: Sequence[Layout]) -> Layout:
    """Many layouts as one, a column each."""
    names = [f.name for f in fields(Layout)]
    return Layout(*(np.array([getattr(one, n) for one in layouts], float) for n in names))
