"""FSDP by torch's own ``fully_shard`` (FSDP2): each layer a unit, gathered in every pass.

On GPUs weights and moments rest in fp32 and travel in bf16, gradients too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from validation.case import Case, Correctness
from validation.kernels.data import torch_dtype
from validation.kernels.mlp import AdamW, Block, drawn, widths_of

if TYPE_CHECKING:
    import torch

    from validation.context import Context


class Sharded:
    """One rank's model under ``fully_shard``, the same unsharded, and its collectives alone."""

    def __init__(self, case: Case, context: Context) -> None:
        from validation.kernels.data_parallel import Replica

        self.case, self.context, self.widths = case, context, widths_of(case)
        self.m, self.n = case["microbatches"], case.size
        self.by_hand = Replica(case, context)
        self.whole = self._model()
        # Weights of a rank's part, of which AdamW is a part of the math.
        self.parts = [
            w.detach()[: max(1, len(w) // self.n)].float().clone() for w in self.whole.parameters()
        ]
        self.update = AdamW(self.parts)
        self.update.rate = 0.0
        self.model = self._sharded()
        self.adam = AdamW([w.detach().to_local() for w in self.model.parameters()])

    def _model(self, dtype: str = "") -> Any:
        import torch

        kind = torch_dtype(dtype or self.case["dtype"])
        layers = range(self.case["layers"])
        flat = [drawn(self.context, self.case, layer).to(kind) for layer in layers]
        return torch.nn.Sequential(*(_layer(Block.of(one, self.widths)) for one in flat))

    def _sharded(self) -> Any:
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        kind = torch_dtype(self.case["dtype"])
        group: Any = self.by_hand.group
        where = self.context.device.type
        mesh = DeviceMesh.from_group(group, where, mesh_dim_names=("shard",))
        model = self._model("fp32")
        policy = MixedPrecisionPolicy(param_dtype=kind, reduce_dtype=kind)
        for unit in (*model, model):
            fully_shard(unit, mesh=mesh, mp_policy=policy)
        return model

    def step(self, *, math: bool = True, comms: bool = True) -> None:
        """All of it, or a part."""
        if not math:
            return self.by_hand.step(math=False)
        if comms:
            self._through(self.model)
            self.adam.step([w.grad.to_local() for w in self.model.parameters()])
        else:
            self._through(self.whole)
            self.update.step(self.parts)  # any gradients take as long
        return None

    def _through(self, model: Any) -> None:
        """Forward and backward of every micro-batch; the mean over ranks is FSDP's own."""
        model.zero_grad()
        given = self.by_hand.inputs
        for x, dy in zip(given.x, given.dy, strict=True):
            model(x).backward(dy * self.n)

    def check(self) -> Correctness:
        """One step against the reference."""
        reference = self.by_hand.reference()
        self.step()
        self.adam.rate = 0.0
        gradients = [_flat(layer, grad=True) for layer in self.model]
        weights = [_flat(layer, grad=False) for layer in self.model]
        return reference.judge(range(len(weights)), gradients, weights)


def _layer(block: Block) -> torch.nn.Module:
    """x W_in, SiLU, W_out by modules; a Linear holds the transposed matrix."""
    import torch

    linears = []
    for matrix in block:
        into, out = matrix.shape
        linear = torch.nn.Linear(into, out, bias=False, device="meta")
        linear.weight = torch.nn.Parameter(matrix.T.contiguous())
        linears.append(linear)
    return torch.nn.Sequential(linears[0], torch.nn.SiLU(), linears[1])


def _flat(layer: Sequence[Any], *, grad: bool) -> torch.Tensor:
    """The weights of a layer, or their gradients, whole and in one piece; all ranks call it."""
    import torch

    found = []
    for linear in (layer[0], layer[2]):
        tensor = linear.weight.grad if grad else linear.weight.detach()
        whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        found.append(whole.T.reshape(-1))
    return torch.cat(found)
