"""Matmuls: C[m, n] = A[m, k] B[k, n], in every shape that training has.

square   large enough that the rate is all that counts
small    of a layer so small that starting shows
skinny   few rows: bound by reading B
ragged   no dimension a multiple of a tile
batched  many at once, as attention without a fused kernel
grouped  rows shared out unevenly among experts, each with weights of its own

In fp8 the shapes that ``torch._scaled_mm`` takes; quantising is not timed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from roofline import arithmetic
from roofline.kernels import Matmuls
from validation.case import Case, Correctness, Expected, Kernel, Setting, Work, worst
from validation.kernels import fp8
from validation.kernels.data import BYTES, compare, copies, random, spots
from validation.profile import Profile
from validation.results import Value

if TYPE_CHECKING:
    import torch

    from validation.context import Context

# (form, m, n, k, batch), for a CPU core and for a GPU; batch is the number of experts if grouped.
SHAPES = {
    "cpu": (
        ("square", 256, 256, 256, 1),
        ("square", 768, 768, 768, 1),
        *(("skinny", 8, 1024, 1024, 1), ("skinny", 16, 768, 1024, 1)),
        *(("small", 64, 512, 128, 1), ("small", 512, 128, 32, 1)),
        ("ragged", 515, 389, 643, 1),
        ("batched", 128, 128, 64, 16),
        ("grouped", 512, 256, 256, 4),
    ),
    "cuda": (
        ("square", 1024, 1024, 1024, 1),
        ("square", 4096, 4096, 4096, 1),
        ("square", 8192, 8192, 8192, 1),
        ("skinny", 16, 8192, 8192, 1),
        ("skinny", 128, 8192, 8192, 1),
        ("ragged", 4099, 4111, 4133, 1),
        ("batched", 2048, 2048, 128, 64),
        ("grouped", 8192, 4096, 2048, 8),
    ),
}
SWEEP = {
    "cpu": (64, 192, 384, 512, 1024, 1536),
    "cuda": (512, 1536, 2048, 3072, 5120, 6144, 10240, 12288, 16384),
}
RECTANGLES = {
    "cpu": ((32, 1024, 1024), (128, 2048, 512), (512, 512, 2048), (1024, 1024, 128)),
    "cuda": (
        *((1, 8192, 8192), (64, 8192, 8192), (256, 8192, 8192), (512, 8192, 8192)),
        *((2048, 28672, 8192), (8192, 8192, 28672), (4096, 5120, 13824), (16384, 4096, 1024)),
        *((8192, 8192, 256), (8192, 1024, 8192), (4096, 1280, 8192), (1024, 128256, 4096)),
    ),
}


def cases(setting: Setting) -> Iterator[Case]:
    """Shapes by data types; more of each in the full suite."""
    shapes = list(SHAPES[setting.device])
    if not setting.quick:
        shapes += [("square", n, n, n, 1) for n in SWEEP[setting.device]]
        shapes += [("rectangle", m, n, k, 1) for m, n, k in RECTANGLES[setting.device]]
    for dtype in (name for name in _dtypes(setting) if name in BYTES):
        for form, m, n, k, batch in shapes:
            if dtype == "fp8" and not fp8.legal(form, n, k):
                continue
            size = BYTES[dtype] * (m * k + batch * k * n) + _written(dtype) * m * n
            if size * (batch if form == "batched" else 1) * 3 < setting.memory:
                shape: dict[str, Value] = {"form": form, "m": m, "n": n, "k": k, "batch": batch}
                yield Case("matmul", shape | {"dtype": dtype})


def _dtypes(setting: Setting) -> tuple[str, ...]:
    fast = [name for name in ("bf16", "fp16") if name in setting.dtypes][:1]
    if setting.device == "cuda" and setting.quick:
        eight = ["fp8"] if "fp8" in setting.dtypes else []
        return (*fast, *eight) or setting.dtypes[:1]
    return setting.dtypes if setting.device == "cuda" or not setting.quick else ("fp32",)


def _written(dtype: str) -> int:
    """Bytes of an element of the result: of its operands' type, but for fp8's bf16. [B]"""
    return BYTES["bf16" if dtype == "fp8" else dtype]


def predict(case: Case, profile: Profile) -> Iterator[Expected]:
    """``roofline.kernels.Matmuls`` for the time, ``roofline.arithmetic`` for FLOPs and bytes."""
    rates, size = profile.matmuls(case["dtype"]), BYTES[case["dtype"]]
    out = _written(case["dtype"])
    m, n, k, batch = case["m"], case["n"], case["k"], case["batch"]
    grouped = case["form"] == "grouped"
    work = arithmetic.matmul(
        m, k, n, x_bytes=size, w_bytes=size, o_bytes=out, experts=batch if grouped else 1
    )
    times = 1 if grouped else batch
    seconds = _grouped(rates, case) if grouped else float(rates.seconds(m, n, k, batch, out))
    yield Expected("math", seconds, times * float(work.flops), times * float(work.nbytes))


def _grouped(rates: Matmuls, case: Case) -> float:
    """One matmul after the other, each of the rows of its expert."""
    out = _written(case["dtype"])
    rows = _rows(case["m"], case["batch"])
    return float(sum(rates.seconds(m, case["n"], case["k"], 1, out) for m in rows))


def _rows(m: int, experts: int) -> list[int]:
    """Rows of each expert: the first has twice what an even share would be."""
    first = min(m, 2 * m // experts)
    rest, left = divmod(m - first, experts - 1)
    return [first, *(rest + (i < left) for i in range(experts - 1))]


def prepare(case: Case, context: Context) -> Work:
    """Rotated pairs of random operands."""
    size = BYTES[case["dtype"]] * case["k"] * (case["m"] + case["n"]) * case["batch"]
    if case["form"] == "grouped":
        size = BYTES[case["dtype"]] * case["k"] * (case["m"] + case["n"] * case["batch"])
    a, b, scales = _operands(case, context)
    multiply = _multiply(case, scales)
    held = [(a, b)] + [(a.clone(), b.clone()) for _ in range(copies(context, size) - 1)]

    def math(i: int) -> torch.Tensor:
        with _precision(case["dtype"]):
            return multiply(*held[i % len(held)])

    def check() -> Correctness:
        return compare_rows(math(0), a, b, case, fp8.factor(scales))

    return Work(check=check, math=math)


def compare_rows(
    got: torch.Tensor, a: torch.Tensor, b: torch.Tensor, case: Case, scale: float = 1.0
) -> Correctness:
    """Rows of every matrix, of every expert: the first, the last, and some that are drawn.

    The whole product again would cost as much as timing. ``scale`` is what a and b are to be
    multiplied by, together.
    """
    import torch

    def wide(rows: list[int]) -> torch.Tensor:
        return scale * torch.stack([a[..., row, :].double() for row in rows], -2)

    if case["form"] != "grouped":
        rows = spots(case["m"], case.id, drawn=6)
        return compare(got[..., rows, :], wide(rows) @ b.double(), case["dtype"])
    checks, start = [], 0
    for expert, count in enumerate(_rows(case["m"], case["batch"])):
        rows = [start + row for row in spots(count, case.id, expert, drawn=6)]
        checks.append(compare(got[rows], wide(rows) @ b[expert].double(), case["dtype"]))
        start += count
    return worst(checks)


def _operands(
    case: Case, context: Context
) -> tuple[torch.Tensor, torch.Tensor, tuple[torch.Tensor, ...]]:
    """A, B, and of fp8 the scale of each."""
    m, n, k, batch, dtype = (case[name] for name in ("m", "n", "k", "batch", "dtype"))
    shape_a = (batch, m, k) if case["form"] == "batched" else (m, k)
    shape_b = (batch, k, n) if case["form"] in ("batched", "grouped") else (k, n)
    if dtype != "fp8":
        a, b = (random(context, s, dtype, case.id, w) for s, w in ((shape_a, "a"), (shape_b, "b")))
        return a, b, ()
    columns = (*shape_b[:-2], n, k)
    a, scale_a = fp8.quantised(random(context, shape_a, "bf16", case.id, "a"))
    b, scale_b = fp8.quantised(random(context, columns, "bf16", case.id, "b"))
    return a, b.transpose(-2, -1), (scale_a, scale_b)


def _multiply(
    case: Case, scales: tuple[torch.Tensor, ...]
) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    import torch

    product = fp8.product(*scales) if scales else torch.matmul
    if case["form"] != "grouped":
        return product
    rows = _rows(case["m"], case["batch"])

    def grouped(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.cat([product(part, b[i]) for i, part in enumerate(torch.split(a, rows))])

    return grouped


@contextmanager
def _precision(dtype: str) -> Iterator[None]:
    """Let fp32 matmuls run in TF32 where that is what is measured."""
    import torch

    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


KERNELS = (Kernel("matmul", "matrix products of every shape", cases, predict, prepare),)
