"""What kernels share: data types, random buffers that are rotated, and how far off a result is."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from validation.case import Correctness, Setting

if TYPE_CHECKING:
    import torch

    from validation.context import Context

BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1}  # an element in memory
CACHE = {"cpu": 64e6, "cuda": 256e6}  # buffers rotate through more than this, where they fit [B]
MOST_COPIES = 64
# Largest error of a sum over the largest term, for which a result counts as right.
# Of fp8 half a step of its 3 bits: sums of fast accumulation keep some 14 bits of each product.
TOLERANCE = {"fp64": 1e-12, "fp32": 1e-4, "tf32": 5e-3, "fp16": 1e-2, "bf16": 3e-2, "fp8": 2**-4}

# Beside a small eps, what is left of a gradient that should be zero would decide the step.
ADAMW: dict[str, Any] = {"lr": 1e-2, "betas": (0.9, 0.95), "eps": 1.0, "weight_decay": 0.1}


def torch_dtype(name: str) -> torch.dtype:
    """The element type in memory; tf32 is fp32 there."""
    import torch

    return {
        "fp64": torch.float64,
        "fp32": torch.float32,
        "tf32": torch.float32,
        "fp16": torch.float16,
        "bf16": torch.bfloat16,
    }[name]


def random(
    context: Context, shape: Sequence[int], dtype: str, *what: object, same: bool = False
) -> torch.Tensor:
    """Normal random numbers; other ones on each rank unless ``same``."""
    import torch

    generator = context.generator(*what, same=same)
    return torch.randn(
        tuple(shape), generator=generator, device=context.device, dtype=torch_dtype(dtype)
    )


def copies(context: Context, nbytes: float) -> int:
    """How many buffers of ``nbytes`` a case rotates, so that none is in a cache when used again."""
    wanted = CACHE[context.device.type] / max(nbytes, 1.0)
    room = context.setting.memory / 3 / max(nbytes, 1.0)
    return max(1, min(int(wanted) + 1, int(room), MOST_COPIES))


def rotated(context: Context, tensor: torch.Tensor) -> Callable[[int], torch.Tensor]:
    """``tensor`` in turn with as many copies of it as it takes to be out of the caches."""
    held = [tensor]
    count = copies(context, tensor.numel() * tensor.element_size())
    held += [tensor.clone() for _ in range(count - 1)]
    return lambda i: held[i % len(held)]


def spots(count: int, *what: object, drawn: int = 1) -> list[int]:
    """The first of ``count`` places, the last, and some between that ``what`` decides."""
    rng = np.random.default_rng(zlib.crc32(repr(what).encode()))
    between = rng.integers(count, size=drawn).tolist() if count else []
    return sorted({0, count - 1, *between}) if count else []


def compare(got: torch.Tensor, reference: torch.Tensor, dtype: str) -> Correctness:
    """Largest difference over the largest element of the reference."""
    import torch

    if got.numel() == 0:
        return Correctness(0.0, TOLERANCE[dtype])
    reference = reference.to(device=got.device, dtype=torch.float64)
    largest = reference.abs().max().clamp_min(1e-30)
    return Correctness(float((got.double() - reference).abs().max() / largest), TOLERANCE[dtype])


def stepped(
    parameters: Iterable[torch.Tensor], gradients: Iterable[torch.Tensor]
) -> list[torch.Tensor]:
    """What a step of AdamW makes of ``parameters``, which stay; narrow ones in fp32."""
    import torch

    made = []
    for parameter, gradient in zip(parameters, gradients, strict=True):
        wide = torch.promote_types(parameter.dtype, torch.float32)
        made.append(parameter.detach().to(wide, copy=True).requires_grad_())
        made[-1].grad = gradient.detach().to(wide)
    torch.optim.AdamW(made, **ADAMW).step()
    return [one.detach() for one in made]


def sizes(setting: Setting, least: float, most: float, factor: int) -> list[int]:
    """Sizes from ``least`` by ``factor`` [B], in the full suite ``most`` itself too, bounded by a
    sixth of the memory.

    >>> sizes(Setting("full", 2, "cpu", 1e6, (), ()), 1000, 20_000, 4)
    [1000, 4000, 16000, 20000]
    """
    found, size = [], int(least)
    while size <= most:
        found.append(size)
        size *= factor
    if not setting.quick and found[-1:] != [int(most)]:
        found.append(int(most))
    return [size for size in found if size <= setting.memory / 6]
