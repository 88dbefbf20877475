"""One rank of a mesh: a pipeline stage's slices of its layers, and its place on every axis."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from validation.case import Case
from validation.kernels.links import Peers

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Stage:
    """One rank: a stage's slices of its layers, and its place on every axis."""

    case: Case
    axes: dict[str, Peers]
    weights: list[tuple[torch.Tensor, torch.Tensor]]  # of each layer: [D, F/t] and [F/t, D]
    inputs: list[torch.Tensor]  # of each micro-batch: [tokens/t, D], for the first stage
    given: list[torch.Tensor]  # gradients of the outputs, for the last

    @property
    def parameters(self) -> list[torch.Tensor]:
        """Both slices of every layer."""
        return [weight for pair in self.weights for weight in pair]

    def layers(self, x: torch.Tensor, talks: bool) -> torch.Tensor:
        """All layers of the stage on a slice of the tokens."""
        for w_in, w_out in self.weights:
            whole = _moved(x, self.axes["tensor"], "gather", talks)
            out = (whole @ w_in).relu() @ w_out
            x = x + _moved(out, self.axes["tensor"], "scatter", talks)
        return x

    def run(self, talks: bool = True) -> list[torch.Tensor]:
        """Forward and backward of all micro-batches, gradients added; the outputs."""
        import torch

        for parameter in self.parameters:
            parameter.grad = None
        line = self.axes["pipeline"] if talks else Peers([0], 0, None)
        sent: list[Any] = []
        held = [self._forward(line, micro, talks, sent) for micro in range(len(self.inputs))]
        for micro, (x, out) in enumerate(held):
            gradient = self.given[micro]
            if line.me < line.n - 1:
                gradient = line.taken(gradient, line.me + 1)
            torch.autograd.backward(out, gradient)
            if line.me > 0 and x.grad is not None:
                sent.append(line.begin(x.grad, line.me - 1))
        for work in sent:
            work.wait()
        if talks:
            self.reduce([p.grad for p in self.parameters if p.grad is not None])
        return [out.detach() for _, out in held]

    def _forward(
        self, line: Peers, micro: int, talks: bool, sent: list[Any]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.inputs[micro]
        if line.me > 0:
            x = line.taken(x, line.me - 1)
        x = x.detach().requires_grad_(line.me > 0)
        out = self.layers(x, talks)
        if line.me < line.n - 1:
            sent.append(line.begin(out.detach(), line.me + 1))
        return x, out

    def reduce(self, gradients: list[torch.Tensor]) -> None:
        """Add up those of all replicas, in one piece."""
        import torch
        import torch.distributed as dist

        peers = self.axes["data"]
        if peers.n == 1:
            return
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        dist.all_reduce(flat, group=peers.group)
        parts = torch.split(flat, [gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))

    def talk(self) -> None:
        """All communication of a step, one axis after the other."""
        case, line, tensor = self.case, self.axes["pipeline"], self.axes["tensor"]
        x, m = self.inputs[0], case["microbatches"]
        for _ in range(2 * case["layers"] * m if tensor.n > 1 else 0):
            _scattered(_gathered(x, tensor), tensor)
        for step in (1, -1):
            self._down_the_line(line, step)
        self.reduce([parameter.detach() for parameter in self.parameters])

    def _down_the_line(self, line: Peers, step: int) -> None:
        """A message for each micro-batch from stage to stage, ``step`` ahead."""
        sent = []
        for x in self.inputs:
            if 0 <= line.me - step < line.n:
                x = line.taken(x, line.me - step)
            if 0 <= line.me + step < line.n:
                sent.append(line.begin(x, line.me + step))
        for work in sent:
            work.wait()


def _gathered(x: torch.Tensor, peers: Peers) -> torch.Tensor:
    import torch.distributed as dist

    # Named all_gather_into_tensor before torch 2.13, where that name warns.
    call: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    out = x.new_empty((x.shape[0] * peers.n, *x.shape[1:]))
    call(out, x.contiguous(), group=peers.group)
    return out


def _scattered(x: torch.Tensor, peers: Peers) -> torch.Tensor:
    import torch.distributed as dist

    call: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    out = x.new_empty((x.shape[0] // peers.n, *x.shape[1:]))
    call(out, x.contiguous(), group=peers.group)
    return out


def _moved(x: torch.Tensor, peers: Peers, way: str, talks: bool) -> torch.Tensor:
    """Gathered tokens, or sums scattered over them; the gradient goes the other way."""
    if peers.n == 1:
        return x
    moved: torch.Tensor = _function().apply(x, peers, way, talks)
    return moved


@cache
def _function() -> Any:
    """Both as a function that autograd can go back through, and stand-ins that do not talk."""
    import torch

    def move(x: torch.Tensor, peers: Peers, way: str, talks: bool) -> torch.Tensor:
        if talks:
            return _gathered(x, peers) if way == "gather" else _scattered(x, peers)
        rows = x.shape[0]
        return x.repeat(peers.n, 1) if way == "gather" else x[: rows // peers.n].clone()

    class Moved(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, *about: Any) -> torch.Tensor:
            ctx.about = about
            return move(x, *about)

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
            peers, way, talks = ctx.about
            back = "scatter" if way == "gather" else "gather"
            return move(gradients[0], peers, back, talks), None, None, None

    return Moved
