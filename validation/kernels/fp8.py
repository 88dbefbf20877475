"""Matmuls of 8-bit operands (e4m3) by ``torch._scaled_mm``, as frameworks train with them.

    C = (A scale_a) (B scale_b)     one scale for each operand, C in bf16, fast accumulation

A is in rows, B in columns, and both sizes of B are multiples of 16; A may have any number of rows. The
blockwise scales of MXFP8 and NVFP4 have a layout of their own, and no kernel here.

Source: PyTorch, ``aten::_scaled_mm`` (pull requests 106844, 108308, 128683); the CUDA kernels need
compute capability 8.9.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

CAPABILITY = (8, 9)  # of NVIDIA GPUs with 8-bit tensor cores: Ada, Hopper and later
MULTIPLE = 16  # of the sizes of B
FORMS = ("square", "small", "skinny", "ragged", "rectangle", "grouped")  # two matrices at a time
LARGEST = 448.0  # of e4m3


def legal(form: str, n: int, k: int) -> bool:
    """Whether ``torch._scaled_mm`` takes it: no batches, and lengths that are whole blocks.

    >>> legal("square", 4096, 4096), legal("ragged", 4111, 4133), legal("batched", 2048, 128)
    (True, False, False)
    """
    return form in FORMS and not n % MULTIPLE and not k % MULTIPLE


def lacking(device: torch.device) -> str:
    """Why there are no 8-bit matmuls on ``device``; empty where there are."""
    import torch

    if device.type == "cuda" and torch.version.hip is None:
        has = torch.cuda.get_device_capability(device)
        if has < CAPABILITY:
            return f"compute capability {has[0]}.{has[1]}, 8.9 is needed"
    try:
        one, side = torch.ones((), device=device), torch.ones(MULTIPLE, MULTIPLE, device=device)
        eight = side.to(torch.float8_e4m3fn)
        float(product(one, one)(eight, eight.t())[0, 0])
    except (RuntimeError, AttributeError, TypeError, ValueError) as error:
        told = str(error).strip().splitlines() or [type(error).__name__]
        return f"torch {torch.__version__} cannot: {told[0][:120]}"
    return ""


def quantised(wide: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``wide`` in e4m3, its largest number at e4m3's, and what makes it ``wide`` again.

    ``wide`` itself is overwritten, so that large ones need no third copy.
    """
    import torch

    largest = torch.maximum(wide.max(), -wide.min()).float().clamp_min(1e-30)
    # A hair below, as bf16 rounds up and e4m3 has no infinity to round to.
    by = LARGEST * (1 - 2**-7) / largest
    return wide.mul_(by.to(wide.dtype)).to(torch.float8_e4m3fn), 1 / by.to(wide.dtype).float()


def product(
    scale_a: torch.Tensor, scale_b: torch.Tensor
) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """A B of two matrices in e4m3, B in columns.

    Scales go by their names, which every torch has; before 2.5 the result came with its maximum.
    """
    import torch

    multiply: Any = torch._scaled_mm

    def multiplied(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        found: Any = multiply(
            a,
            b,
            scale_a=scale_a,
            scale_b=scale_b,
            out_dtype=torch.bfloat16,
            use_fast_accum=True,
        )
        whole: torch.Tensor = found[0] if isinstance(found, tuple) else found
        return whole

    return multiplied


def factor(scales: tuple[torch.Tensor, ...]) -> float:
    """All scales together; 1 of none."""
    return math.prod(map(float, scales))
