"""Recipes: what a framework keeps of each parameter, and of each number that a matmul reads.

A recipe is a row: bytes of weights, gradients and optimizer states of a trained parameter, which
ZeRO shards as ``roofline.memory`` says; bytes of a stored activation and of a stored matmul input.
With LoRA the model's own weights are frozen and adapters [in, r] and [r, out] beside every matrix
of the layers are trained: r (in + out) parameters for in · out.

    mixed            2 + 4 + 12    18, or 6 + 12/D with the optimizer sharded (ZeRO-1)
    bf16-gradients   2 + 2 + 12    16, of the ZeRO paper
    fsdp             4 + 4 + 8     16, all sharded, and the layers at work gathered in 16 bits

Sources: Rajbhandari et al., section 3; Megatron-LM, theoretical_memory_usage.py; PyTorch, FSDP and
torch/distributed/tensor/parallel/loss.py; DeepSpeed, runtime/zero/stage_1_and_2.py, runtime/pipe;
https://arxiv.org/abs/2106.09685, section 4; https://arxiv.org/abs/2305.14314, section 3;
https://arxiv.org/abs/2412.19437, section 3.3.3.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from roofline.dims import Dims
from roofline.layout import Layout
from roofline.memory import CONVENTIONS, Convention
from roofline.names import choose
from roofline.stages import Owned
from roofline.units import Bytes, Count

NF4 = 0.5 + 0.127 / 8  # bytes of a QLoRA weight: 4 bits, and constants of 0.127 bits
RANK = 16  # of LoRA, where none is given


@dataclass(frozen=True, slots=True)
class Recipe:
    """Bytes kept per parameter and per stored number."""

    states: Convention  # of a trained parameter
    about: str
    frozen: Bytes = 0.0  # of a weight that is not trained, where there are adapters
    rank: Count = 0  # of the adapters; 0: every parameter is trained
    element: Bytes = 2.0  # of a stored activation
    operand: Bytes = 2.0  # of an activation stored only because a matmul reads it
    up: Bytes = 0.0  # of an up matmul's output, which its activation reads; 0: an ``element``
    attended: Bytes = 0.0  # of attention's output, for both that read it; 0: element and operand
    dtensor: Count = 0  # 1: tensor parallelism by PyTorch's DTensor, which gathers nothing again
    buckets: Bytes = 0.0  # flat buffers for collectives
    flat: Bytes = 0.0  # per owned parameter, of gradients made flat for the optimizer's step
    outputs: Count = 0  # 1: a stage keeps what it sent on until the backward pass

    @property
    def adapted(self) -> bool:
        """True where only adapters are trained."""
        return bool(np.any(np.greater(self.rank, 0)))


def _row(weights: Bytes, gradients: Bytes, optimizer: Bytes, about: str, **more: Count) -> Recipe:
    return Recipe(Convention(weights, gradients, optimizer, about), about, **more)


def _lora(frozen: Bytes, about: str) -> Recipe:
    return _row(4, 4, 8, about, frozen=frozen, rank=RANK)


# Of ZeRO-1: buckets of 5e8 elements to reduce and to gather; outputs of a stage are kept for
# autograd; fp16 makes an owned shard's gradients flat in 16 bits, then in 32.
_DEEPSPEED: dict[str, Count] = {"buckets": 2 * 5e8 * 2, "outputs": 1}

_DEEPSEEK: dict[str, Count] = {"operand": 1.0, "up": 1.0, "attended": 1.5}

RECIPES = {
    "mixed": _row(2, 4, 12, "bf16 weights; gradients, copy and moments fp32 (Megatron-LM)"),
    "bf16-gradients": Recipe(CONVENTIONS["zero"], "bf16 weights and gradients (ZeRO, DeepSpeed)"),
    "deepspeed-fp16": _row(
        2, 2, 12, "fp16 weights and gradients, flat buffers (DeepSpeed)", flat=6.0, **_DEEPSPEED
    ),
    "deepspeed-bf16": _row(
        2, 6, 12, "bf16 gradients, their fp32 sum, flat buffers (DeepSpeed)", **_DEEPSPEED
    ),
    "precision-aware": _row(2, 4, 8, "mixed, with bf16 moments (DeepSeek-V3)"),
    "fp8": _row(2, 4, 12, "mixed, with 8-bit matmul inputs", operand=1.0),
    "fp8-bf16-gradients": _row(2, 2, 12, "bf16 gradients, with 8-bit matmul inputs", operand=1.0),
    "deepseek-v3": _row(
        *(2, 4, 8),
        about="bf16 moments, 8-bit inputs of matmuls and SwiGLU, E5M6 behind attention",
        **_DEEPSEEK,
    ),
    "fp8-weights": _row(1, 4, 12, "8-bit weights and matmul inputs (Blackwell)", operand=1.0),
    "fp8-weights-transposed": _row(
        2, 4, 12, "8-bit weights twice, one transposed (Hopper), 8-bit inputs", operand=1.0
    ),
    "fsdp": _row(4, 4, 8, "fp32 shards, gathered in 16 bits (PyTorch FSDP)"),
    "fsdp-fp8": _row(4, 4, 8, "fsdp, with 8-bit matmul inputs", operand=1.0),
    "fsdp-dtensor": _row(
        4, 4, 8, "fsdp, with DTensor's tensor parallelism (torchtitan)", dtensor=1
    ),
    "fsdp-dtensor-fp8": _row(4, 4, 8, "the same, with 8-bit matmul inputs", dtensor=1, operand=1.0),
    "pure-bf16": _row(2, 2, 4, "everything in bf16, Adam"),
    "fp32": _row(4, 4, 8, "everything in fp32, Adam", element=4.0, operand=4.0),
    "lora": _lora(2, "frozen bf16 weights, fp32 adapters"),
    "qlora": _lora(NF4, "frozen 4-bit weights, fp32 adapters"),
}


def recipe(name: str, rank: Count | None = None) -> Recipe:
    """The recipe of this name, with adapters of ``rank`` where it has any.

    Raises:
        ValueError: an unknown name, telling the nearest, or a rank for a recipe without adapters.

    >>> recipe("mixed").states.total
    18
    """
    row = choose("recipe", name, RECIPES)
    if rank is None:
        return row
    if np.any(np.less(rank, 1)) or not row.adapted:
        with_rank = ", ".join(key for key, value in RECIPES.items() if value.adapted)
        raise ValueError(f"rank: {rank} is refused for {name!r}; allowed: 1 and more, {with_rank}")
    return replace(row, rank=rank)


def adapters(model: Dims, layout: Layout, layers: Count, rank: Count) -> Owned:
    """Parameters of LoRA on every matrix of some layers, routers left out; cut like the matrices."""
    t, h, share = 1.0 * layout.tp, model.hidden, layers / model.layers
    queries, values = model.heads * model.head_dim, model.heads * model.value_dim
    plain = 3.0 * h + queries + 2.0 * model.kv_heads * model.head_dim
    down = np.greater(model.query_rank, 0)
    latent = np.where(down, h + 2.0 * model.query_rank, h) + queries + h + model.rope_dim
    latent = latent + 2.0 * model.kv_rank + model.heads * model.nope_dim + values
    attention = np.where(np.greater(model.latent, 0), latent, plain) + values + h
    moe = share * model.moe_layers
    mlp = share * model.dense_layers * (h + model.ffn)
    shared = moe * (h + model.shared_ffn) * np.greater(model.shared_ffn, 0)
    matrices = model.inputs + 1.0
    experts = moe * matrices * model.experts * (h + model.expert_ffn)
    dense = layers * attention + matrices * (mlp + shared)
    return Owned(rank * dense / t, rank * experts / (1.0 * layout.ep * layout.etp), 0.0)
