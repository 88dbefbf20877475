"""Messages between the ranks of a case, by their position in its group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from validation.case import Case

if TYPE_CHECKING:
    import torch

    from validation.context import Context


@dataclass(frozen=True, slots=True)
class Peers:
    """A group as one of its ranks sees it."""

    ranks: list[int]  # of the world
    me: int  # position among them
    group: Any

    @staticmethod
    def of(case: Case, context: Context) -> Peers:
        """The group of the case."""
        return Peers.among(context, case.size, case.stride)

    @staticmethod
    def among(context: Context, size: int, stride: int) -> Peers:
        """This rank's group of that size and stride; without a group when it is alone."""
        ranks = context.members(size, stride)
        group = context.group(size, stride) if size > 1 else None
        return Peers(ranks, ranks.index(context.rank), group)

    @property
    def n(self) -> int:
        """How many they are."""
        return len(self.ranks)

    def send(self, tensor: torch.Tensor, to: int) -> None:
        """Until it is on its way (GPU) or there (CPU)."""
        import torch.distributed as dist

        dist.send(tensor, self.ranks[to], group=self.group)

    def receive(self, tensor: torch.Tensor, source: int) -> None:
        """Into ``tensor``."""
        import torch.distributed as dist

        dist.recv(tensor, self.ranks[source], group=self.group)

    def swap(self, out: torch.Tensor, to: int, into: torch.Tensor, source: int) -> None:
        """Send and receive at once."""
        for work in self.start(out, to, into, source):
            work.wait()

    def start(self, out: torch.Tensor, to: int, into: torch.Tensor, source: int) -> list[Any]:
        """The same, not waited for."""
        import torch.distributed as dist

        found: list[Any] = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, out, self.ranks[to], self.group),
                dist.P2POp(dist.irecv, into, self.ranks[source], self.group),
            ]
        )
        return found

    def begin(self, tensor: torch.Tensor, to: int) -> Any:
        """Send, and hand back what to wait for; ``tensor`` stays as it is until then."""
        import torch.distributed as dist

        return dist.isend(tensor.contiguous(), self.ranks[to], group=self.group)

    def taken(self, like: torch.Tensor, source: int) -> torch.Tensor:
        """What ``source`` sends: of the shape of ``like``."""
        import torch

        into = torch.empty_like(like)
        self.receive(into, source)
        return into
