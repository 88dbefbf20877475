"""Attention: softmax(q kᵀ) v by ``scaled_dot_product_attention``, forward and with its backward.

prefill   as many queries as keys, causal
blocks    of context parallelism: queries see all keys that came from another rank
decode    one query a sequence: bound by reading keys and values
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from roofline import arithmetic
from roofline.kernels import BACKWARD_ATTENTION
from roofline.layout import FLASH
from validation.case import Case, Correctness, Expected, Kernel, Setting, Work, worst
from validation.kernels.data import BYTES, compare, copies, random, spots
from validation.profile import Profile
from validation.results import Value

if TYPE_CHECKING:
    import torch

    from validation.context import Context

# (batch, heads, queries, keys, head_dim, backward)
SHAPES = {
    "cpu": (
        *((1, 4, 256, 256, 64, backward) for backward in (False, True)),
        *((1, 4, 128, 128, 64, backward) for backward in (False, True)),
        *((1, 4, 256, 128, 64, backward) for backward in (False, True)),
        (1, 4, 128, 256, 64, False),
        (1, 4, 512, 512, 64, False),
        (4, 8, 1, 1024, 64, False),
    ),
    "cuda": (
        *((2, 32, 4096, 4096, 128, backward) for backward in (False, True)),
        *((2, 32, 4096, 2048, 128, backward) for backward in (False, True)),
        *((8, 32, 1024, 1024, 128, backward) for backward in (False, True)),
        (32, 32, 1, 8192, 128, False),
    ),
}
MORE = {
    "cpu": ((1, 4, 1024, 1024, 64, True), (1, 8, 512, 512, 128, True)),
    "cuda": tuple(
        (max(1, 16384 // tokens), heads, tokens, tokens, 4096 // heads, backward)
        for tokens in (512, 1024, 2048, 8192, 16384)
        for heads in (32, 64)
        for backward in (False, True)
    ),
}


def cases(setting: Setting) -> Iterator[Case]:
    """Shapes, in bf16 on GPUs and fp32 on a CPU."""
    shapes = SHAPES[setting.device] + (() if setting.quick else MORE[setting.device])
    dtype = "fp32" if setting.device == "cpu" else "bf16"
    for batch, heads, queries, keys, width, backward in shapes:
        told: dict[str, Value] = {"batch": batch, "heads": heads, "queries": queries, "keys": keys}
        told |= {"head_dim": width, "backward": backward, "dtype": dtype}
        if 12 * batch * heads * keys * width * BYTES[dtype] < setting.memory:
            yield Case("attention", told)


def predict(case: Case, profile: Profile) -> Iterator[Expected]:
    """``roofline.kernels.Attention``, or reading keys and values where that takes longer."""
    width = case["head_dim"]
    work = arithmetic.attention(
        case["queries"],
        case["keys"],
        heads=case["heads"],
        kv_heads=case["heads"],
        head_dim=width,
        batch=case["batch"],
        element_bytes=BYTES[case["dtype"]],
        causal=_causal(case),
    )
    fused = profile.attention().of(FLASH["flash-2"], width)
    values = 2 * width * case["heads"] * case["batch"]
    seen = profile.causal(case["keys"]) if _causal(case) else 1.0
    about = (case["queries"], case["keys"], values, case["keys"], seen)
    seconds = max(float(fused.seconds(*about)), float(profile.streams().seconds(work.nbytes)))
    flops, nbytes = float(work.flops), float(work.nbytes)
    if case["backward"]:
        seconds += float(fused.backward_seconds(*about))
        flops *= 1 + BACKWARD_ATTENTION
        nbytes *= 3  # q, k, v and the output again, and their gradients
    yield Expected("math", seconds, flops, nbytes)


def _causal(case: Case) -> bool:
    return bool(case["queries"] == case["keys"])


def prepare(case: Case, context: Context) -> Work:
    """Rotated queries, keys and values."""
    from torch.nn.functional import scaled_dot_product_attention as attend

    shape = (case["batch"], case["heads"], case["keys"], case["head_dim"])
    queries = (*shape[:2], case["queries"], case["head_dim"])
    size = 3.0 * BYTES[case["dtype"]] * shape[0] * shape[1] * shape[2] * shape[3]

    def operands(number: int) -> list[torch.Tensor]:
        made = zip("qkv", (queries, shape, shape), strict=True)
        found = [random(context, s, case["dtype"], case.id, name, number) for name, s in made]
        return [tensor.requires_grad_(case["backward"]) for tensor in found]

    held = [operands(0)]
    if copies(context, size) > 1:
        held.append(operands(1))
        held += [_cloned(held[i % 2]) for i in range(copies(context, size) - 2)]
    given = random(context, queries, case["dtype"], case.id, "gradient")

    def math(i: int) -> tuple[torch.Tensor, ...]:
        import torch

        operands = q, k, v = held[i % len(held)]
        out = attend(q, k, v, is_causal=_causal(case))
        return torch.autograd.grad(out, operands, given) if case["backward"] else (out,)

    def check() -> Correctness:
        """Some heads, in double precision."""
        return compare_heads(math(0), held[0], given, case)

    return Work(check=check, math=math)


def compare_heads(
    got: tuple[torch.Tensor, ...], operands: list[torch.Tensor], given: torch.Tensor, case: Case
) -> Correctness:
    """Some heads against plain arithmetic: the first of the first sequence, the last, one drawn."""
    heads = spots(case["batch"] * case["heads"], case.id)
    return worst(
        _compare_head(got, operands, given, case, divmod(head, case["heads"])) for head in heads
    )


def _compare_head(
    got: tuple[torch.Tensor, ...],
    operands: list[torch.Tensor],
    given: torch.Tensor,
    case: Case,
    at: tuple[int, int],
) -> Correctness:
    """Sequence and head ``at``: its output, or the gradients of q, k and v."""
    import torch

    q, k, v = (t.detach()[at].double().requires_grad_() for t in operands)
    scores = q @ k.T / case["head_dim"] ** 0.5
    if _causal(case):
        hidden = torch.ones_like(scores, dtype=torch.bool).triu(1)
        scores = scores.masked_fill(hidden, float("-inf"))
    out = scores.softmax(-1) @ v
    wanted = [out]
    if case["backward"]:
        wanted = list(torch.autograd.grad(out, (q, k, v), given[at].double()))
    return worst(
        compare(one[at].detach(), other.detach(), case["dtype"])
        for one, other in zip(got, wanted, strict=True)
    )


def _cloned(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return [t.detach().clone().requires_grad_(t.requires_grad) for t in tensors]


KERNELS = (Kernel("attention", "fused attention, and its backward", cases, predict, prepare),)
