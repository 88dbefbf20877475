"""Context parallelism: a causal sequence in n parts, keys and values passed round a ring.

Of 2n pieces a rank has the i-th from either end, so that all have as much to do (zig-zag). Its own
two are an ordinary causal block. Of what comes from a rank before it all queries see the first
half, and none the second; what comes from a rank after it, only its later queries see, and all:

    forward     n blocks, n-1 hops of k and v
    backward    n blocks, n-1 hops of k and v, n hops of their gradients

Blocks are fused attention with the logarithms of its sums, by which outputs are put together. The
next keys travel while a block is computed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, cast

from roofline import arithmetic, microbatch
from roofline.communication import Network
from roofline.dims import Dims
from roofline.groups import Group
from roofline.job import Job
from roofline.kernels import BACKWARD_ATTENTION, Kernels
from roofline.layout import FLASH, Layout
from roofline.work import Work as Seconds
from validation.case import Case, Correctness, Expected, Kernel, Setting, Work, worst
from validation.kernels.data import BYTES, compare, random
from validation.kernels.links import Peers
from validation.kernels.predicted import elementwise, together
from validation.kernels.ring import Blocks, Ring
from validation.profile import Profile
from validation.results import Value

if TYPE_CHECKING:
    import torch

    from validation.context import Context

# (heads, tokens of a rank, head_dim)
SHAPES = {"cpu": (4, 256, 64), "cuda": (32, 4096, 128)}
MORE = {
    "cpu": ((4, 512, 64), (8, 128, 64), (2, 1024, 64)),
    "cuda": ((32, 1024, 128), (32, 16384, 128), (8, 8192, 128)),
}
SMALL = (2, 32, 16)  # of a problem that one process solves to compare with
ALONE = 3e8  # FLOPs forward that one process does in no time


def cases(setting: Setting) -> Iterator[Case]:
    """All ranks, and in the full suite the other groups."""
    shapes = (SHAPES[setting.device], *(() if setting.quick else MORE[setting.device]))
    dtype = "bf16" if setting.device == "cuda" else "fp32"
    groups = setting.groups or (Group(1),)
    for group in groups[: 1 if setting.quick else 3]:
        for heads, tokens, width in shapes:
            told: dict[str, Value] = {"heads": heads, "tokens": tokens * int(group.size)}
            told |= {"head_dim": width, "dtype": dtype}
            if 24 * BYTES[dtype] * heads * tokens * width > setting.memory:
                continue
            for backward in (False, True):
                size, stride = int(group.size), int(group.stride)
                yield Case("context parallel", told | {"backward": backward}, size, stride)


def predict(case: Case, profile: Profile) -> Iterator[Expected]:
    """``roofline.kernels.Attention`` of the blocks, ``microbatch.context_parallel`` of the ring."""
    times = [_blocks(case, profile, backward=False), _blocks(case, profile, backward=True)]
    shown = _exposed(case, profile, times[0])
    hop = profile.collective("send-receive", _hop_bytes(case), case.group)
    passes = 2 if case["backward"] else 1
    hops = case.size - 1 + (2 * case.size - 1 if case["backward"] else 0)
    flops = float(_flops(case)) * (1 + BACKWARD_ATTENTION if case["backward"] else 1)
    nbytes = _hop_bytes(case) * hops
    math = sum(times[:passes])
    yield Expected("math", math, flops)
    if case.size > 1:
        talk = hops * hop
        yield Expected("comms", talk, nbytes=nbytes)
        hidden = min(talk - sum(shown[:passes]), math)  # behind that, there is nothing else
        both = together(profile, math, talk, hidden)
        yield Expected("both", both, flops, nbytes)


def _part(case: Case) -> int:
    """Tokens of a rank."""
    return int(case["tokens"]) // case.size


def _hop_bytes(case: Case) -> float:
    """Keys and values of a rank. [B]"""
    return float(2 * BYTES[case["dtype"]] * case["heads"] * case["head_dim"] * _part(case))


def _flops(case: Case) -> Any:
    """Of one rank, forward: a causal block, and halves of the others."""
    part, about = _part(case), {"heads": case["heads"], "head_dim": case["head_dim"]}
    own = arithmetic.attention(part, part, causal=True, **about).flops
    return own + (case.size - 1) * arithmetic.attention(part // 2, part, **about).flops


def _blocks(case: Case, profile: Profile, *, backward: bool) -> float:
    """A rank's blocks one after the other, and putting them together. [s]"""
    part, width = _part(case), case["head_dim"]
    fused = profile.attention().of(FLASH["flash-2"], width)
    run = fused.backward_seconds if backward else fused.seconds
    values = 2 * width * case["heads"]
    seconds = 1.0 * run(part, part, values, part, profile.causal(part))
    seconds = seconds + (case.size - 1) * run(part, part / 2, values, part / 2, 1.0)
    added = (9 if backward else 5) * part * width * case["heads"]  # two sums read, one written
    return float(seconds) + elementwise(profile, (case.size - 1) * added, case["dtype"], 4)


@dataclass(frozen=True, slots=True)
class _Network:
    """What the step model asks of a network, by what the profile says: starts included."""

    profile: Profile
    group: Group

    def route(self, group: Group) -> _Network:
        return _Network(self.profile, group)

    def send(self, nbytes: float) -> float:
        return self.profile.collective("point-to-point", nbytes, self.group)

    def swap(self, nbytes: float) -> float:
        return self.profile.collective("send-receive", nbytes, self.group)

    def gather(self, nbytes: float) -> float:
        return self.profile.collective("all-gather", nbytes, self.group)

    def scatter(self, nbytes: float) -> float:
        return self.profile.collective("reduce-scatter", nbytes, self.group)

    def exchange(self, nbytes: float) -> float:
        return self.profile.collective("all-to-all", nbytes * float(self.group.size), self.group)


def _exposed(case: Case, profile: Profile, forward: float) -> tuple[float, float]:
    """What the step model leaves of the ring beside the blocks, forward and backward. [s]"""
    tp = float(case.stride)  # ranks between neighbours; it divides the heads
    layout = Layout(gpus=case.size * tp, tp=tp, cp=float(case.size), sequence=case["tokens"])
    told = {field.name: 1.0 for field in fields(Dims)}
    # It counts two bytes for an element of keys and values: wider ones count as more heads.
    told["kv_heads"] = case["heads"] * tp * BYTES[case["dtype"]] / 2
    told["head_dim"] = float(case["head_dim"])
    network = cast(Network, _Network(profile, case.group))
    job = Job(Dims(**told), layout, cast(Kernels, None), network)
    shown = microbatch.context_parallel(job, Seconds(0.0, forward, 0.0))
    return float(shown[0]), float(shown[1])


def prepare(case: Case, context: Context) -> Work:
    """The ring, and rings that only compute or only talk."""
    ring = _ring(case, context)
    alone, silent = replace(ring, talks=False), replace(ring, computes=False)
    backward = bool(case["backward"])
    return Work(
        check=lambda: _check(case, context, ring),
        math=lambda i: alone.run(backward),
        comms=(lambda i: silent.run(backward)) if case.size > 1 else None,
        both=(lambda i: ring.run(backward)) if case.size > 1 else None,
    )


def _ring(case: Case, context: Context) -> Ring:
    import torch

    peers = Peers.of(case, context)
    q, k, v, given = (_mine(case, context, peers.me, name) for name in ("q", "k", "v", "gradient"))
    return Ring(peers, q, torch.stack([k, v]), given, Blocks(context.device.type == "cuda"))


def _mine(case: Case, context: Context, position: int, name: str) -> torch.Tensor:
    """Both pieces of a rank, one after the other."""
    import torch

    ends = position, 2 * case.size - 1 - position
    return torch.cat([_piece(case, context, piece, name) for piece in ends], dim=2)


def _piece(case: Case, context: Context, piece: int, name: str) -> torch.Tensor:
    shape = (1, case["heads"], _part(case) // 2, case["head_dim"])
    return random(context, shape, case["dtype"], case.id, name, piece, same=True)


def _check(case: Case, context: Context, ring: Ring) -> Correctness:
    """Output and gradients of this rank's tokens against plain attention over the whole sequence.

    A sequence too long for one process is checked by a short one, over the same ranks.
    """
    if case.size * float(_flops(case)) > ALONE:
        heads, part, width = SMALL
        told = {"heads": heads, "tokens": part * case.size, "head_dim": width}
        case = Case(case.kernel, dict(case.parameters) | told, case.size, case.stride)
        ring = _ring(case, context)
    backward = bool(case["backward"])
    got = ring.run(backward)
    wanted = _reference(case, context, ring.peers.me)[: 4 if backward else 1]
    found = [got[0], got[1], *got[2]] if backward else [got[0]]
    return worst(compare(a, b, case["dtype"]) for a, b in zip(found, wanted, strict=True))


def _reference(case: Case, context: Context, me: int) -> list[torch.Tensor]:
    """Output, and gradients of q, k and v, of the whole sequence; of these, what is ours."""
    import torch

    pieces = range(2 * case.size)
    q, k, v, given = (
        torch.cat([_piece(case, context, piece, name) for piece in pieces], dim=2).double()
        for name in ("q", "k", "v", "gradient")
    )
    ours = [tensor.requires_grad_() for tensor in (q, k, v)]
    scores = q @ k.transpose(-1, -2) / case["head_dim"] ** 0.5
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    out = scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v
    found = [out.detach(), *torch.autograd.grad(out, ours, given)]
    each = [tensor.chunk(2 * case.size, dim=2) for tensor in found]
    return [torch.cat([one[me], one[2 * case.size - 1 - me]], dim=2) for one in each]


KERNELS = (
    Kernel("context parallel", "ring attention over a long sequence", cases, predict, prepare),
)
