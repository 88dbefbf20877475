"""A layer of experts on one rank: who gets which rows, and the passes over them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from validation.case import Case
from validation.kernels.links import Peers

if TYPE_CHECKING:
    import torch

    from validation.context import Context

Exchange = Callable[["torch.Tensor", list[int], list[int], Any], "torch.Tensor"]


@dataclass(frozen=True, slots=True)
class Hop:
    """One all-to-all: which rows go out, in order of who gets them, and how many to and from whom."""

    group: Any
    rows: torch.Tensor
    send: list[int]
    receive: list[int]


@dataclass(frozen=True, slots=True)
class Layer:
    """The layer on one rank."""

    case: Case
    peers: Peers
    x: torch.Tensor  # own tokens
    router: torch.Tensor  # [D, E], the same on every rank
    first: list[torch.Tensor]  # W_in of each expert here
    second: list[torch.Tensor]  # W_out
    hops: list[Hop]
    rows: list[torch.Tensor]  # of what arrives, those for each expert here
    slots: list[torch.Tensor]  # and which of a row's k gates is that expert's
    given: torch.Tensor  # gradient of the output

    @property
    def parameters(self) -> list[torch.Tensor]:
        """All that gradients are for, the input first."""
        return [self.x, self.router, *self.first, *self.second]

    def forward(self, exchange: Exchange) -> torch.Tensor:
        """Output of this rank's tokens."""
        import torch

        gates = choose(self.x, self.router, self.case["k"])[1]
        table = torch.cat([self.x, gates], dim=1)
        heights = []
        for hop in self.hops:
            heights.append(table.shape[0])
            table = exchange(table.index_select(0, hop.rows), hop.send, hop.receive, hop.group)
        out = self._experts(table)
        for hop, height in zip(reversed(self.hops), reversed(heights), strict=True):
            out = exchange(out, hop.receive, hop.send, hop.group)
            out = out.new_zeros((height, out.shape[1])).index_add(0, hop.rows, out)
        return out

    def _experts(self, table: torch.Tensor) -> torch.Tensor:
        width = self.x.shape[1]
        out = table.new_zeros((table.shape[0], width))
        parts = zip(self.first, self.second, self.rows, self.slots, strict=True)
        for w_in, w_out, rows, slots in parts:
            picked = table.index_select(0, rows)
            gate = picked[:, width:].gather(1, slots)
            out = out.index_add(0, rows, gate * ((picked[:, :width] @ w_in).relu() @ w_out))
        return out

    def run(self, exchange: Exchange) -> tuple[torch.Tensor, ...]:
        """Output, and where the phase asks for it the gradients of ``parameters``."""
        import torch

        if self.case["phase"] == "forward":
            with torch.no_grad():
                return (self.forward(exchange),)
        out = self.forward(exchange)
        return (out.detach(), *torch.autograd.grad(out, self.parameters, self.given))


def choose(
    x: torch.Tensor, router: torch.Tensor, k: int
) -> tuple[torch.Tensor, torch.Tensor]:  # [tokens, k] each
    """The k experts of every token, and their gates."""
    logits = x @ router
    experts = logits.detach().topk(k, dim=1).indices
    return experts, logits.gather(1, experts).softmax(1)


def messages(layer: Layer) -> list[tuple[torch.Tensor, Hop, bool]]:
    """Dispatch and combine, and with the backward both again: rows, hop, and which way."""
    width = layer.x.shape[1]
    there = [(layer.x.new_ones((sum(hop.send), width)), hop, False) for hop in layer.hops]
    back = [(layer.x.new_ones((sum(hop.receive), width)), hop, True) for hop in layer.hops]
    once = [*there, *reversed(back)]
    return once * (1 if layer.case["phase"] == "forward" else 2)


def all_to_all(x: torch.Tensor, send: list[int], receive: list[int], group: Any) -> torch.Tensor:
    import torch.distributed as dist

    out = x.new_empty((sum(receive), *x.shape[1:]))
    dist.all_to_all_single(out, x.contiguous(), receive, send, group=group)
    return out


def exchanges() -> tuple[Exchange, Exchange]:
    """An all-to-all that gradients go back through; and one that hands on rows without talking."""
    import torch

    def stand_in(x: torch.Tensor, send: list[int], receive: list[int], group: Any) -> torch.Tensor:
        height = sum(receive)
        if height <= x.shape[0]:
            return x[:height].clone()
        return torch.cat([x, x.new_ones((height - x.shape[0], *x.shape[1:]))])

    def differentiable(call: Exchange) -> Exchange:
        class Exchanged(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: torch.Tensor, *about: Any) -> torch.Tensor:
                ctx.about = about
                return call(x, *about)

            @staticmethod
            def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
                send, receive, group = ctx.about
                return call(gradients[0], receive, send, group), None, None, None

        return Exchanged.apply

    return differentiable(all_to_all), differentiable(stand_in)


def plan(
    case: Case, context: Context, peers: Peers, chosen: torch.Tensor
) -> tuple[list[Hop], torch.Tensor]:
    """The hops, and the experts of every row that arrives."""
    held, node = case["experts"] // case.size, int(case.parameters.get("node", 0))
    if case.size == 1:
        return [], chosen
    if not node:
        hop, arrived = _hop(peers, chosen, chosen // held)
        return [hop], arrived
    across = Peers.among(context, case.size // node, node)
    inside = Peers.among(context, node, 1)
    outer, passed = _hop(across, chosen, chosen // (held * node))
    here = passed // held - peers.me // node * node
    inner, arrived = _hop(inside, passed, here)
    return [outer, inner], arrived


def _hop(peers: Peers, chosen: torch.Tensor, owners: torch.Tensor) -> tuple[Hop, torch.Tensor]:
    """Each row once to every member that owns one of its experts."""
    import torch

    to = [(owners == member).any(1).nonzero()[:, 0] for member in range(peers.n)]
    send = [len(rows) for rows in to]
    ones = [1] * peers.n
    counts = torch.tensor(send, device=chosen.device)
    receive = [int(count) for count in all_to_all(counts, ones, ones, peers.group)]
    rows = torch.cat(to)
    arrived = all_to_all(chosen.index_select(0, rows), send, receive, peers.group)
    return Hop(peers.group, rows, send, receive), arrived
