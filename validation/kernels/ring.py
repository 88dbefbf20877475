"""A ring of ranks with parts of a causal sequence: attention in blocks, while keys travel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from validation.kernels.links import Peers

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Blocks:
    """Fused attention of some queries and keys, with the logarithms of its sums."""

    cuda: bool

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Output [1, heads, queries, width], and log Σ exp of each query's scores."""
        import torch

        aten: Any = torch.ops.aten
        run = aten._scaled_dot_product_flash_attention_for_cpu
        if self.cuda:
            run = aten._scaled_dot_product_flash_attention
        out, logs, *_ = run(q, k, v, 0.0, causal)
        return out, logs

    def backward(
        self, given: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
        out: torch.Tensor, logs: torch.Tensor, causal: bool,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
        """Gradients of q, k and v, from the output and logarithms over all keys there are."""
        import torch

        aten: Any = torch.ops.aten
        about: tuple[Any, ...] = (0.0, causal)
        run = aten._scaled_dot_product_flash_attention_for_cpu_backward
        if self.cuda:
            none = torch.empty(0, dtype=torch.int64, device=q.device)  # random state, for dropout
            about = (None, None, q.shape[2], k.shape[2], 0.0, causal, none, none)
            run = aten._scaled_dot_product_flash_attention_backward
        dq, dk, dv = run(given, q, k, v, out, logs, *about)
        return dq, dk, dv


@dataclass(frozen=True, slots=True)
class Ring:
    """One rank: its queries, keys and values, and whom it passes them to."""

    peers: Peers
    q: torch.Tensor  # [1, heads, tokens, width]
    kv: torch.Tensor  # [2, 1, heads, tokens, width]
    given: torch.Tensor
    blocks: Blocks
    talks: bool = True
    computes: bool = True

    def forward(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Output of all keys, and its logarithms."""
        import torch

        out, logs = torch.zeros_like(self.q), self.q.new_zeros(self.q.shape[:3]).float()
        kv = self.kv
        for step in range(self.peers.n):
            last = step == self.peers.n - 1
            coming, works = (kv, []) if last else self._pass(kv)
            if self.computes and step == 0:
                out, logs = self.blocks.forward(self.q, kv[0], kv[1], True)
                out, logs = out.float(), logs.float().clone()
            elif self.computes:
                rows, keys = self._seen(step)
                k, v = kv[0][:, :, keys], kv[1][:, :, keys]
                add(
                    out[:, :, rows],
                    logs[:, :, rows],
                    *self.blocks.forward(self.q[:, :, rows], k, v, False),
                )
            self._wait(works)
            kv = coming
        return out.to(self.q.dtype), logs

    def backward(self, out: torch.Tensor, logs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Gradients of q, and of this rank's k and v, which have been all round the ring."""
        import torch

        dq, sums = torch.zeros_like(self.q), torch.zeros_like(self.kv)
        kv, coming_sums = self.kv, sums
        sum_works: list[Any] = []
        for step in range(self.peers.n):
            last = step == self.peers.n - 1
            coming, works = (kv, []) if last else self._pass(kv)
            found: list[Any] = []
            rows = keys = slice(None)
            if self.computes:
                rows, keys = self._seen(step) if step else (rows, keys)
                given, q, mine = (t[:, :, rows] for t in (self.given, self.q, out))
                k, v = kv[0][:, :, keys], kv[1][:, :, keys]
                sums_of = logs[:, :, rows].contiguous()
                found = list(self.blocks.backward(given, q, k, v, mine, sums_of, step == 0))
            self._wait(sum_works)
            sums = coming_sums
            if found:
                dq[:, :, rows] += found[0]
                sums[0][:, :, keys] += found[1]
                sums[1][:, :, keys] += found[2]
            coming_sums, sum_works = self._pass(sums)
            self._wait(works)
            kv = coming
        self._wait(sum_works)
        return dq, coming_sums

    def _seen(self, step: int) -> tuple[slice, slice]:
        """Of what came ``step`` ranks far: queries that see it, and keys that they see."""
        half = self.q.shape[2] // 2
        earlier = self.peers.me >= step
        return (slice(None), slice(half)) if earlier else (slice(half, None), slice(None))

    def _pass(self, tensor: torch.Tensor) -> tuple[torch.Tensor, list[Any]]:
        """To the next rank, while that of the rank before comes."""
        import torch

        n, me = self.peers.n, self.peers.me
        if n == 1 or not self.talks:
            return tensor, []
        into = torch.empty_like(tensor)
        return into, self.peers.start(tensor, (me + 1) % n, into, (me - 1) % n)

    def _wait(self, works: list[Any]) -> None:
        for work in works:
            work.wait()

    def run(self, backward: bool) -> tuple[torch.Tensor, ...]:
        """Output; with the backward pass, gradients of q and of k and v too."""
        out, logs = self.forward()
        return (out, *self.backward(out, logs)) if backward else (out,)


def add(out: torch.Tensor, logs: torch.Tensor, more: torch.Tensor, other: torch.Tensor) -> None:
    """Put the output of more keys to one of some, in place: each weighs what its sums weigh."""
    import torch

    share = torch.sigmoid(other - logs)  # of the new keys
    out.lerp_(more.to(out.dtype), share.unsqueeze(-1))
    logs.copy_(torch.logaddexp(logs, other))
