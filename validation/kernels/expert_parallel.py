"""Expert parallelism: a router, tokens to their experts and back, forward and with the backward.

    router      logits = x W_r, the k largest; gates are a softmax over these
    dispatch    a token and its gates to every GPU that holds one of its experts, once
    experts     Σ gate · relu(x W_in) W_out over the experts of the token that are here
    combine     these sums back the same way, and added up

With ``node`` a token goes once to every node, to the GPU there that has its sender's place, and
from it to the GPUs that need it; sums are added in the node on the way back. Splits are uneven, as
the router has it. Which token goes where is settled before the timing: inputs stay the same, and
the counts that ranks would tell each other are a few bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from roofline.collectives import ALL_TO_ALL
from roofline.groups import Group
from roofline.machine import Ideal, Tier
from roofline.routing import reached
from roofline.strategies import expert_parallel
from roofline.strategies.phases import passes
from roofline.workload import Workload
from validation.case import Case, Correctness, Expected, Kernel, Setting, Work, worst
from validation.kernels.data import BYTES, compare, random, stepped, torch_dtype
from validation.kernels.expert_layer import (
    Exchange,
    Layer,
    all_to_all,
    choose,
    exchanges,
    messages,
    plan,
)
from validation.kernels.links import Peers
from validation.kernels.predicted import elementwise, linear, mlp
from validation.profile import Profile
from validation.results import Value

if TYPE_CHECKING:
    import torch

    from validation.context import Context

# (tokens of a rank, D, F, experts of a rank, k)
SHAPES = {"cpu": (256, 128, 512, 2, 2), "cuda": (8192, 4096, 2048, 8, 4)}
MORE = {
    "cpu": ((512, 256, 1024, 2, 2), (1024, 128, 256, 4, 4), (256, 512, 512, 2, 1)),
    "cuda": ((4096, 7168, 2048, 8, 8), (16384, 2048, 1024, 8, 4), (8192, 4096, 14336, 1, 2)),
}
SMALL = (32, 64, 128)  # tokens, D and F of a problem that one process solves to compare with
ALONE = 3e8  # FLOPs forward that one process does in no time


def cases(setting: Setting) -> Iterator[Case]:
    """All ranks, and those of a node; with copies for each GPU and for each node."""
    shapes = (SHAPES[setting.device], *(() if setting.quick else MORE[setting.device]))
    dtype = "bf16" if setting.device == "cuda" else "fp32"
    groups = [group for group in setting.groups if group.stride == 1] or [Group(1)]
    for group in groups[: 1 if setting.quick else 2]:
        for tokens, d, f, held, k in shapes:
            n = int(group.size)
            told: dict[str, Value] = {"tokens": tokens, "d_model": d, "d_ff": f}
            told |= {"experts": held * n, "k": min(k, held * n), "dtype": dtype}
            weights = held * 2 * d * f
            if 8 * BYTES[dtype] * (weights + k * tokens * (d + f)) > setting.memory:
                continue
            for phase in ("step",) if setting.quick else ("forward", "step"):
                yield Case("expert parallel", told | {"phase": phase}, n)
                node = _node(setting, n)
                if node:
                    yield Case("expert parallel", told | {"phase": phase, "node": node}, n)


def _node(setting: Setting, n: int) -> int:
    """Ranks of a node, where there are several in the group; 0 where there are not."""
    known = {(int(group.size), int(group.stride)) for group in setting.groups}
    inner = [size for size, stride in known if stride == 1 and size < n]
    return max((size for size in inner if (n // size, size) in known), default=0)


def predict(case: Case, profile: Profile) -> Iterator[Expected]:
    """``strategies.expert_parallel`` for what moves, kernels of the shapes for what is computed."""
    work = _workload(case)
    math = _math(case, profile)
    flops = float(work.forward_flops) * passes(case["phase"]) / case.size
    nbytes = float(work.tokens * work.d_model * work.activation_bytes)
    talk = _comms(case, profile, work)
    yield Expected("math", math, flops)
    if case.size > 1:
        yield Expected("comms", talk, nbytes=nbytes)
        yield Expected("both", math + talk, flops, nbytes)


def _workload(case: Case) -> Workload:
    size = BYTES[case["dtype"]]
    return Workload(
        tokens=case["tokens"] * case.size,
        d_model=case["d_model"],
        d_ff=case["d_ff"],
        experts=case["experts"],
        experts_per_token=case["k"],
        dtype=case["dtype"],
        weight_bytes=size,
        gradient_bytes=size,
        activation_bytes=size,
    )


def _math(case: Case, profile: Profile) -> float:
    """Every expert with its share of the tokens, the router, and rows picked and added. [s]"""
    tokens, d, dtype, phase = (case[name] for name in ("tokens", "d_model", "dtype", "phase"))
    held = case["experts"] / case.size
    rows = tokens * case["k"]  # of all experts of a rank
    seconds = held * mlp(profile, rows / held, d, case["d_ff"], dtype, phase)
    seconds += linear(profile, tokens, d, case["experts"], dtype, phase)
    copies = tokens * case.size * float(_reached(case, case.size))
    moved = d * (7 * rows + 5 * copies)  # picked 2, weighed 2, added 3
    return float(seconds) + elementwise(profile, moved * passes(phase), dtype, 10)


def _reached(case: Case, shards: int) -> Any:
    return reached(case["k"], shards, form="distinct", experts=case["experts"])


def _comms(case: Case, profile: Profile, work: Workload) -> float:
    """All of the bound's all-to-alls on tiers as achieved; of two hops one after the other. [s]"""
    node = int(case.parameters.get("node", 0))
    tiers = profile.network().achieved(ALL_TO_ALL)
    machine = Ideal(profile.machine.flops(case["dtype"]), _split(tiers, node) if node else tiers)
    bound = expert_parallel.bound(
        work,
        machine,
        case.size,
        stride=case.stride,
        deduplicated=bool(node),
        phase=case["phase"],
        form="precise",
    )
    hops = [Group(case.size, case.stride)]
    if node:
        hops = [Group(case.size // node, node), Group(node)]
    start = sum(profile.collective("all-to-all", 0.0, hop) for hop in hops)
    each = [sum(t.on_tiers().values()) if node else t.seconds for t in bound.comms]
    return float(sum(float(seconds) + start for seconds in each))


def _split(tiers: tuple[Tier, ...], node: int) -> tuple[Tier, ...]:
    """The tiers with ``node`` ranks in the innermost; what is taken for a node may be part of one.

    What leaves a node passes its own links at another time than what is handed on there.
    """
    first, *rest = tiers
    if first.degree <= node:
        return (replace(first, transit=False), *rest)
    inner = replace(first, degree=node, name=f"{node} of the {first.name}", transit=False)
    outer = replace(first, degree=first.degree // node, bandwidth=first.bandwidth * node)
    return (inner, outer, *rest)


def prepare(case: Case, context: Context) -> Work:
    """The layer, with stand-ins for what others would send while it computes alone."""
    layer = _layer(case, context)
    real, still = exchanges()
    sent = messages(layer)

    def comms(i: int) -> None:
        for tensor, hop, back in sent:
            counts = (hop.receive, hop.send) if back else (hop.send, hop.receive)
            all_to_all(tensor, *counts, hop.group)

    return Work(
        check=lambda: _check(case, context, layer, real),
        math=lambda i: layer.run(still),
        comms=comms if case.size > 1 else None,
        both=(lambda i: layer.run(real)) if case.size > 1 else None,
    )


def _layer(case: Case, context: Context) -> Layer:
    peers = Peers.of(case, context)
    held = case["experts"] // case.size
    mine = range(peers.me * held, (peers.me + 1) * held)
    x, router = _tokens(case, context, peers.me), _router(case, context)
    first, second = zip(*(_weights(case, context, expert) for expert in mine), strict=True)
    chosen, _ = choose(x, router, case["k"])
    hops, arrived = plan(case, context, peers, chosen)
    found = [(arrived == expert).nonzero() for expert in mine]
    given = _given(case, context, peers.me)
    layer = Layer(
        case, peers, x, router, list(first), list(second), hops,
        [each[:, 0] for each in found], [each[:, 1:] for each in found], given,
    )  # fmt: skip
    for parameter in layer.parameters:
        parameter.requires_grad_(case["phase"] == "step")
    return layer


def _tokens(case: Case, context: Context, position: int) -> torch.Tensor:
    shape = (case["tokens"], case["d_model"])
    return random(context, shape, case["dtype"], case.id, "x", position, same=True)


def _given(case: Case, context: Context, position: int) -> torch.Tensor:
    shape = (case["tokens"], case["d_model"])
    return random(context, shape, case["dtype"], case.id, "gradient", position, same=True)


def _router(case: Case, context: Context) -> torch.Tensor:
    """Columns of equal length, so that every expert is as likely."""
    import torch

    shape = (case["d_model"], case["experts"])
    router = random(context, shape, "fp32", case.id, "router", same=True)
    return torch.nn.functional.normalize(router, dim=0).to(torch_dtype(case["dtype"]))


def _weights(case: Case, context: Context, expert: int) -> tuple[torch.Tensor, torch.Tensor]:
    d, f, dtype = case["d_model"], case["d_ff"], case["dtype"]
    first = random(context, (d, f), dtype, case.id, "in", expert, same=True)
    second = random(context, (f, d), dtype, case.id, "out", expert, same=True)
    return first.mul_(d**-0.5), second.mul_(f**-0.5)


def _check(case: Case, context: Context, layer: Layer, exchange: Exchange) -> Correctness:
    """Output, gradients, and parameters after a step of AdamW against one process with it all.

    A problem too large for one process is checked by a small one, with the same ranks, experts and k.
    """
    if float(_workload(case).forward_flops) > ALONE:
        tokens, d, f = SMALL
        told = dict(case.parameters) | {"tokens": tokens, "d_model": d, "d_ff": f}
        case = Case(case.kernel, told, case.size, case.stride)
        layer = _layer(case, context)
    got = list(layer.run(exchange))
    if case["phase"] == "step":
        _sum_up(got[2], layer.peers)  # the router's gradient is that of all tokens
        got += stepped(layer.parameters[1:], got[2:])
    wanted = _reference(case, context, layer)
    return worst(compare(a, b, case["dtype"]) for a, b in zip(got, wanted, strict=True))


def _sum_up(tensor: torch.Tensor, peers: Peers) -> None:
    import torch.distributed as dist

    if peers.group is not None:
        dist.all_reduce(tensor, group=peers.group)


def _reference(case: Case, context: Context, layer: Layer) -> list[torch.Tensor]:
    """The same of all tokens in double precision; of it, what is ours."""
    import torch

    n, me, tokens = case.size, layer.peers.me, case["tokens"]
    held = case["experts"] // n
    parts = [_tokens(case, context, position) for position in range(n)]
    router = _router(case, context)
    chosen = torch.cat([choose(part, router, case["k"])[0] for part in parts])
    x = torch.cat(parts).double().requires_grad_()
    wide = router.double().requires_grad_()
    gates = torch.zeros((n * tokens, case["experts"]), dtype=torch.float64, device=x.device)
    gates = gates.scatter(1, chosen, (x @ wide).gather(1, chosen).softmax(1))
    weights = [
        [w.double().requires_grad_() for w in _weights(case, context, expert)]
        for expert in range(case["experts"])
    ]
    out = torch.zeros_like(x)
    for expert, (w_in, w_out) in enumerate(weights):
        rows = (chosen == expert).any(1).nonzero()[:, 0]
        here = (x[rows] @ w_in).relu() @ w_out
        out = out.index_add(0, rows, gates[rows, expert : expert + 1] * here)
    own = slice(me * tokens, (me + 1) * tokens)
    if case["phase"] == "forward":
        return [out.detach()[own]]
    mine = weights[me * held : (me + 1) * held]
    ours = [x, wide, *(w for w, _ in mine), *(w for _, w in mine)]
    given = torch.cat([_given(case, context, position) for position in range(n)]).double()
    of_x, *gradients = torch.autograd.grad(out, ours, given)
    return [out.detach()[own], of_x[own], *gradients, *stepped(ours[1:], gradients)]


KERNELS = (
    Kernel("expert parallel", "a router, dispatch, experts and combine", cases, predict, prepare),
)
