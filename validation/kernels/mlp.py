"""The block that strategies are measured on: y = silu(x W_in) W_out, as ``roofline.workload`` has it.

Forward and backward are written by hand, so that weight gradients can wait and shards can be sent;
the reference is autograd: in fp64 of fp32, in bf16 of bf16, as rounding grows
with every layer. Rank or micro-batch i has the same tokens in another
order, and the loss c_i Σ y dy with a weight of its own. Their gradients then add up to Σ c_i times
those of one, so the reference costs the same however many there are; whatever is left out, counted
twice, or put together from different micro-batches shows.

AdamW keeps weights and moments in fp32 beside weights in bf16. Its ε is larger than gradients are:
an update then is as exact as its gradient, and can be compared. Once checked it updates by nothing,
which takes as long, and lets data stay as random as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from roofline import arithmetic
from roofline.groups import Group
from roofline.workload import Workload
from validation.case import Case, Correctness, Setting, worst
from validation.kernels.data import BYTES, TOLERANCE, random
from validation.profile import Profile

if TYPE_CHECKING:
    import torch

    from validation.context import Context

RATE, EPSILON, DECAY = 0.1, 100.0, 0.01  # of AdamW
# Of h, and what makes y as large as x then: where silu is nearly straight, depth changes nothing.
SPREAD, GAIN = 4.0, 0.359
STATE = 4  # bytes of a moment, and of a weight that AdamW updates


class Widths(NamedTuple):
    """Sizes of a block on one rank."""

    tokens: int  # at a time
    d_model: int
    d_ff: int

    @property
    def numbers(self) -> int:
        """Weights of one block."""
        return 2 * self.d_model * self.d_ff


class Saved(NamedTuple):
    """What the weight gradients of a block need; the last two come with the backward pass."""

    x: torch.Tensor
    h: torch.Tensor
    hidden: torch.Tensor  # silu(h)
    dy: torch.Tensor | None = None
    dh: torch.Tensor | None = None


class Block(NamedTuple):
    """Two matrices: views of one flat tensor, that is sent as a whole."""

    w_in: torch.Tensor  # [D, F]
    w_out: torch.Tensor  # [F, D]

    @classmethod
    def of(cls, flat: torch.Tensor, widths: Widths) -> Block:
        """The matrices in a flat tensor; what is behind them pads it."""
        half = widths.numbers // 2
        return cls(
            flat[:half].view(widths.d_model, widths.d_ff),
            flat[half : 2 * half].view(widths.d_ff, widths.d_model),
        )

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, Saved]:
        """y, and what the backward pass needs."""
        import torch

        h = x @ self.w_in
        hidden = torch.nn.functional.silu(h)
        return hidden @ self.w_out, Saved(x, h, hidden)

    def backward(self, dy: torch.Tensor, saved: Saved) -> tuple[torch.Tensor, Saved]:
        """dx, and what the weight gradients need."""
        import torch

        dh = torch.ops.aten.silu_backward(dy @ self.w_out.T, saved.h)
        return dh @ self.w_in.T, saved._replace(dy=dy, dh=dh)

    def weight(self, saved: Saved, *, first: bool = True) -> None:
        """Weight gradients into this block, which holds gradients; added unless ``first``."""
        assert saved.dy is not None
        assert saved.dh is not None
        keep = 0.0 if first else 1.0
        self.w_out.addmm_(saved.hidden.T, saved.dy, beta=keep)
        self.w_in.addmm_(saved.x.T, saved.dh, beta=keep)


class AdamW:
    """AdamW over flat pieces of the weights.

    By torch's function: its class takes seconds to load the first time.
    """

    def __init__(self, weights: Sequence[torch.Tensor], *, fused: bool = True) -> None:
        import torch

        self.weights, self.fused, self.rate = list(weights), fused, RATE
        narrow = (torch.bfloat16, torch.float16)
        self.masters = [w.float() if w.dtype in narrow else w for w in weights]
        self.moments = [[w.new_zeros(w.shape) for w in self.masters] for _ in range(2)]
        self.steps = [w.new_zeros((), dtype=torch.float32) for w in self.masters]

    def step(self, gradients: Sequence[torch.Tensor]) -> None:
        """Update the weights."""
        import torch
        from torch.optim.adamw import adamw

        grads = [g.to(w.dtype) for g, w in zip(gradients, self.masters, strict=True)]
        first, second = self.moments
        with torch.no_grad():
            adamw(
                self.masters,
                grads,
                first,
                second,
                [],
                self.steps,
                foreach=False,
                fused=self.fused,
                amsgrad=False,
                beta1=0.9,
                beta2=0.95,
                lr=self.rate,
                weight_decay=DECAY,
                eps=EPSILON,
                maximize=False,
            )
            for weight, master in zip(self.weights, self.masters, strict=True):
                if weight is not master:
                    weight.copy_(master)


def settings(
    setting: Setting, sizes: Mapping[str, Sequence[tuple[int, ...]]], most: float = inf
) -> Iterator[tuple[Group, str, tuple[int, ...]]]:
    """Groups, a data type and sizes: every size on the first group of at most ``most`` ranks, the
    first on the others; in the quick suite the first size and group alone. One rank is a group.
    """
    dtype = "bf16" if setting.device == "cuda" and "bf16" in setting.dtypes else "fp32"
    groups = [group for group in setting.groups or (Group(1),) if group.size <= most]
    for place, group in enumerate(groups):
        if place == 0 or not setting.quick:
            rows = sizes[setting.device]
            for row in rows[:1] if place or setting.quick else rows:
                yield group, dtype, row


def widths_of(case: Case) -> Widths:
    """Sizes of the whole block of a case."""
    return Widths(case["tokens"], case["d_model"], case["d_ff"])


def workload(case: Case, tokens: float) -> Workload:
    """The same as ``roofline.strategies`` take it."""
    size = float(BYTES[case["dtype"]])
    return Workload(
        tokens,
        case["d_model"],
        case["d_ff"],
        layers=case["layers"],
        dtype=case["dtype"],
        weight_bytes=size,
        gradient_bytes=size,
        activation_bytes=size,
    )


def drawn(context: Context, case: Case, layer: int, padded: int = 0) -> torch.Tensor:
    """Flat weights of one layer, the same on all ranks, zeros behind them up to ``padded``."""
    import torch

    widths, dtype = widths_of(case), case["dtype"]
    half = widths.numbers // 2
    w_in = random(context, (half,), dtype, case.id, "in", layer, same=True)
    w_out = random(context, (half,), dtype, case.id, "out", layer, same=True)
    w_in *= SPREAD * widths.d_model**-0.5
    w_out *= GAIN * widths.d_ff**-0.5
    return torch.cat([w_in, w_out, w_in.new_zeros(max(0, padded - 2 * half))])


@dataclass(frozen=True, slots=True)
class Inputs:
    """Tokens and the gradients of what becomes of them: of one input, and of those of this rank."""

    one_x: torch.Tensor
    one_dy: torch.Tensor
    x: list[torch.Tensor]
    dy: list[torch.Tensor]
    total: float  # what all inputs' gradients are over those of the one: Σ c

    @classmethod
    def of(cls, context: Context, case: Case, count: int, mine: Iterable[int]) -> Inputs:
        """Input i of ``count`` has the tokens turned by i, and its own share c of the loss."""
        widths = widths_of(case)
        shape = (widths.tokens, widths.d_model)
        x = random(context, shape, case["dtype"], case.id, "x", same=True)
        dy = random(context, shape, case["dtype"], case.id, "dy", same=True)
        dy *= widths.tokens**-0.5
        c = [(1.0 + i / count) / count for i in range(count)]
        numbers = list(mine)
        return cls(
            x,
            dy,
            [x.roll(i, 0) for i in numbers],
            [dy.roll(i, 0) * c[i] for i in numbers],
            sum(c),
        )


@dataclass(frozen=True, slots=True)
class Reference:
    """Gradients of all layers by autograd, and weights after AdamW."""

    gradients: list[torch.Tensor]  # flat
    before: list[torch.Tensor]
    after: list[torch.Tensor]
    dtype: str

    @classmethod
    def of(cls, weights: Sequence[torch.Tensor], inputs: Inputs, case: Case) -> Reference:
        """Of a single process."""
        import torch

        exact = torch.float64 if case["dtype"] == "fp32" else weights[0].dtype
        widths = widths_of(case)
        flat = [w[: widths.numbers].to(exact, copy=True).requires_grad_() for w in weights]
        y = inputs.one_x.to(exact)
        for one in flat:
            block = Block.of(one, widths)
            y = torch.nn.functional.silu(y @ block.w_in) @ block.w_out
        torch.autograd.backward(y, inputs.one_dy.to(exact) * inputs.total)
        before = [one.detach().clone() for one in flat]
        grads = [one.grad for one in flat if one.grad is not None]
        adam = AdamW([one.detach() for one in flat], fused=False)
        adam.step(grads)
        return cls(grads, before, adam.masters, case["dtype"])

    def judge(
        self,
        layers: Sequence[int],
        gradients: Sequence[torch.Tensor],
        weights: Sequence[torch.Tensor],
        cut: Callable[[torch.Tensor], torch.Tensor] = lambda flat: flat,
    ) -> Correctness:
        """Of the part ``cut`` of some layers, over the largest of the whole layer."""
        checks = [Correctness(0.0, TOLERANCE[self.dtype])]
        for layer, gradient, weight in zip(layers, gradients, weights, strict=True):
            before = cut(self.before[layer])
            there = slice(before.numel())  # what is behind them pads
            updated = weight[there].double() - before
            update = self.after[layer] - self.before[layer]
            for got, wanted in ((gradient[there], self.gradients[layer]), (updated, update)):
                if got.numel():
                    off = (got.double() - cut(wanted)).abs().max() / wanted.abs().max()
                    checks.append(Correctness(float(off), TOLERANCE[self.dtype]))
        return worst(checks)


@dataclass(frozen=True, slots=True)
class Times:
    """What the passes of a block should take on one rank. [s]"""

    forward: float
    backward: float  # of the activations alone
    weight: float

    @classmethod
    def of(cls, profile: Profile, widths: Widths, dtype: str) -> Times:
        """``roofline.kernels.Matmuls`` and ``Streams``."""
        t, d, f = widths
        rates, size = profile.matmuls(dtype), BYTES[dtype]
        up, down = (float(rates.seconds(t, n, k, 1, size)) for n, k in ((f, d), (d, f)))
        w_in, w_out = (float(rates.seconds(m, n, t, 1, size)) for m, n in ((d, f), (f, d)))
        silu = streamed(profile, t * f, 1, 1, size)
        slope = streamed(profile, t * f, 2, 1, size)
        return cls(up + down + silu, up + down + slope, w_in + w_out)

    @property
    def total(self) -> float:
        """Forward and backward. [s]"""
        return self.forward + self.backward + self.weight


def streamed(profile: Profile, numbers: float, reads: int, writes: int, size: float) -> float:
    """A pass over ``numbers`` elements of ``size`` bytes. [s]"""
    work = arithmetic.elementwise(numbers, reads=reads, writes=writes, element_bytes=size)
    return float(profile.streams().seconds(work.nbytes))


def update_seconds(profile: Profile, numbers: float, dtype: str) -> float:
    """AdamW on ``numbers`` weights: weight, gradient and two moments read, all but one written. [s]

    Beside weights in bf16, gradients are widened and weights narrowed.
    """
    seconds = streamed(profile, numbers, 4, 3, STATE)
    if BYTES[dtype] != STATE:
        seconds += 2 * streamed(profile, numbers, 1, 1, (BYTES[dtype] + STATE) / 2)
    return seconds
