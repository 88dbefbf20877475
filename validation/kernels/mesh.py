"""Data, tensor and pipeline parallelism together, on a ``DeviceMesh``.

Layers x + relu(x W_in) W_out; the p stages hold as many each.

    tensor      W_in by columns, W_out by rows; tokens rest in slices, and are gathered and scattered
    pipeline    GPipe: all micro-batches forward, then all backward, by send and receive
    data        gradients added in one all-reduce a stage, after the last micro-batch

Tensor ranks are neighbours, replicas farthest apart, as ``strategies.combined`` places them. What is
measured is the step without the optimizer; the check makes a step of AdamW, and compares parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from roofline.bubbles import bubble
from roofline.groups import Group
from roofline.strategies.combined import axis_strides, combined
from roofline.strategies.phases import passes
from roofline.strategies.pipeline_parallel import hops
from roofline.workload import Workload
from validation.case import Case, Correctness, Expected, Kernel, Setting, Work, worst
from validation.kernels.data import ADAMW, BYTES, compare, random
from validation.kernels.links import Peers
from validation.kernels.predicted import comms, elementwise, mlp, moved, scaled
from validation.kernels.stage import Stage
from validation.profile import Profile
from validation.results import Value

if TYPE_CHECKING:
    import torch

    from validation.context import Context

AXES = ("tensor", "pipeline", "data")  # innermost first
# (tokens of a micro-batch, D, F, layers of a stage)
SHAPES = {"cpu": (64, 256, 512, 2), "cuda": (4096, 8192, 28672, 2)}
MORE = {
    "cpu": ((128, 256, 1024, 2), (256, 128, 512, 4)),
    "cuda": ((8192, 4096, 14336, 4), (2048, 8192, 28672, 2)),
}
MICROBATCHES = 4
MOST_STAGES = 8
MOST_SLICES = 64
FEW = 3  # meshes of the quick suite
SMALL = (8, 16, 32)  # tokens, D and F of a problem that one process solves to compare with
ALONE = 3e8  # FLOPs forward that one process does in no time


def cases(setting: Setting) -> Iterator[Case]:
    """Two axes at a time, and all three where the ranks are enough."""
    shapes = (SHAPES[setting.device], *(() if setting.quick else MORE[setting.device]))
    dtype = "bf16" if setting.device == "cuda" else "fp32"
    for degrees in _degrees(setting):
        for tokens, d, f, layers in shapes:
            told: dict[str, Value] = dict(zip(AXES, degrees, strict=True))
            told |= {"tokens": tokens, "d_model": d, "d_ff": f, "layers": layers}
            count = MICROBATCHES if degrees[1] > 1 else 1
            needed = 8 * d * f // degrees[0] + 4 * count * tokens * (d + f)
            even = tokens % degrees[0] == 0 and f % degrees[0] == 0
            if even and BYTES[dtype] * layers * needed < setting.memory:
                yield Case("mesh", told | {"microbatches": count, "dtype": dtype}, setting.world)


def _degrees(setting: Setting) -> list[tuple[int, int, int]]:
    """Tensor, pipeline and data degrees: slices inside groups of neighbours of the setting."""
    world = setting.world
    found = [(1, 2, world // 2)] if world % 2 == 0 else []
    sizes = {int(group.size) for group in setting.groups if group.stride == 1}
    for t in sorted(sizes | {size // 2 for size in sizes if size % 4 == 0}):
        rest = world // t
        if world % t or t > MOST_SLICES:
            continue
        found.append((t, 1, rest))
        found += [(t, rest, 1)] if 1 < rest <= MOST_STAGES else []
        found += [(t, 2, rest // 2)] if rest > 2 and rest % 2 == 0 else []
    several = [each for each in dict.fromkeys(found) if sum(degree > 1 for degree in each) > 1]
    several.sort(key=lambda each: -sum(degree > 1 for degree in each))
    chosen = several or found or [(1, 1, world)]
    return chosen[:FEW] if setting.quick else chosen


def predict(case: Case, profile: Profile) -> Iterator[Expected]:
    """``strategies.combined`` for what moves on each axis, ``bubbles`` for what stages wait."""
    work = _workload(case)
    m, p = case["microbatches"], case["pipeline"]
    math, talk, nbytes = _math(case, profile), _comms(case, profile, work), 0.0
    flops = float(work.forward_flops * work.layers * passes("step") / case.size)
    yield Expected("math", math, flops)
    if case.size == 1:
        return
    nbytes = talk.nbytes
    forward = (math / passes("step") + talk.tensor / 2) / m
    backward = (math + talk.tensor) / m - forward
    waits = float(bubble("gpipe", p, m, forward=forward, backward=backward).idle)
    yield Expected("comms", talk.seconds, nbytes=nbytes)
    yield Expected("both", math + talk.seconds + waits, flops, nbytes)


@dataclass(frozen=True, slots=True)
class Talk:
    """Seconds of a step on each axis, and bytes of all."""

    tensor: float
    pipeline: float
    data: float
    nbytes: float

    @property
    def seconds(self) -> float:
        """One axis after the other. [s]"""
        return self.tensor + self.pipeline + self.data


def _comms(case: Case, profile: Profile, work: Workload) -> Talk:
    """What each axis of ``combined`` moves, at what the profile takes for it."""
    m, layers = case["microbatches"], case["layers"]
    degrees = {axis: case[axis] for axis in AXES}
    rows = combined(work, profile.machine, microbatches=m, form="precise", **degrees)
    terms = {row.name: row.bound.comms for row in rows}
    groups = _groups(case)
    activations = scaled(terms["tensor"], layers)  # the bound is of one layer
    gradients = scaled(terms["data"], float(work.layers))  # and these are 1/p of each layer's
    tensor = 0.0
    for op in ("all-gather", "reduce-scatter"):
        these = [term for term in activations if op in term.name]
        tensor += comms(profile, op, these, groups["tensor"], 2 * layers * m)
    on_path = 2 * float(hops(case["pipeline"], m))
    return Talk(
        tensor,
        comms(profile, "point-to-point", terms["pipeline"], groups["pipeline"], on_path),
        comms(profile, "all-reduce", gradients, groups["data"], 1),
        moved([*activations, *gradients, *terms["pipeline"]]),
    )


def _groups(case: Case) -> dict[str, Group]:
    """Size and stride of each axis."""
    degrees = {axis: case[axis] for axis in AXES}
    return {
        axis: Group(degrees[axis], int(stride))
        for axis, stride in axis_strides(degrees, AXES).items()
    }


def _workload(case: Case) -> Workload:
    size = BYTES[case["dtype"]]
    return Workload(
        tokens=case["tokens"] * case["microbatches"] * case["data"],
        d_model=case["d_model"],
        d_ff=case["d_ff"],
        layers=case["layers"] * case["pipeline"],
        dtype=case["dtype"],
        weight_bytes=size,
        gradient_bytes=size,
        activation_bytes=size,
    )


def _math(case: Case, profile: Profile) -> float:
    """A stage's layers on every micro-batch: matmuls, residuals, gradients added up. [s]"""
    tokens, d, dtype, m = (case[name] for name in ("tokens", "d_model", "dtype", "microbatches"))
    columns = case["d_ff"] / case["tensor"]
    layer = mlp(profile, tokens, d, columns, dtype, "step")
    layer += elementwise(profile, 6 * tokens / case["tensor"] * d, dtype, 2)
    added = 3 * 2 * d * columns * (m - 1)  # two read, one written
    again = elementwise(profile, case["layers"] * added, dtype, 2 * case["layers"] * (m - 1))
    return float(case["layers"] * m * layer + again)


def prepare(case: Case, context: Context) -> Work:
    """The stage of this rank."""
    axes = _axes(case, context)
    stage = _stage(case, context, axes)
    several = case.size > 1
    return Work(
        check=lambda: _check(case, context, stage),
        math=lambda i: stage.run(talks=False),
        comms=(lambda i: stage.talk()) if several else None,
        both=(lambda i: stage.run()) if several else None,
    )


def _axes(case: Case, context: Context) -> dict[str, Peers]:
    """This rank's group on every axis of a ``DeviceMesh``, outermost first there."""
    import torch
    from torch.distributed.device_mesh import DeviceMesh

    groups = _groups(case)
    peers = {
        axis: Peers.among(context, int(group.size), int(group.stride))
        for axis, group in groups.items()
    }
    names = tuple(axis for axis in reversed(AXES) if peers[axis].n > 1)
    if not names:
        return peers
    shape = [case[axis] for axis in names]
    mesh = DeviceMesh.from_group(
        [peers[axis].group for axis in names] if len(names) > 1 else peers[names[0]].group,
        context.device.type,
        mesh=torch.arange(context.world).view(shape) if len(names) > 1 else None,
        mesh_dim_names=names,
    )
    return {
        axis: replace(one, me=mesh.get_local_rank(axis), group=mesh.get_group(axis))
        if axis in names
        else one
        for axis, one in peers.items()
    }


def _stage(case: Case, context: Context, axes: dict[str, Peers]) -> Stage:
    tensor, data = axes["tensor"], axes["data"]
    first = axes["pipeline"].me * case["layers"]
    weights = []
    for layer in range(first, first + case["layers"]):
        w_in, w_out = _weights(case, context, layer)
        columns = w_in.chunk(tensor.n, dim=1)[tensor.me].clone()
        rows = w_out.chunk(tensor.n, dim=0)[tensor.me].clone()
        weights.append((columns.requires_grad_(), rows.requires_grad_()))
    count = range(case["microbatches"])
    inputs, given = (
        [_tokens(case, context, what, data.me, i).chunk(tensor.n)[tensor.me] for i in count]
        for what in ("x", "gradient")
    )
    return Stage(case, axes, weights, inputs, given)


def _weights(case: Case, context: Context, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
    d, f, dtype = case["d_model"], case["d_ff"], case["dtype"]
    w_in = random(context, (d, f), dtype, case.id, "in", layer, same=True)
    w_out = random(context, (f, d), dtype, case.id, "out", layer, same=True)
    return w_in.mul_(d**-0.5), w_out.mul_(f**-0.5)


def _tokens(case: Case, context: Context, what: str, replica: int, micro: int) -> torch.Tensor:
    shape = (case["tokens"], case["d_model"])
    return random(context, shape, case["dtype"], case.id, what, replica, micro, same=True)


def _check(case: Case, context: Context, stage: Stage) -> Correctness:
    """Outputs, gradients, and parameters after a step of AdamW against one process with it all.

    A model too large for one process is checked by a small one, on the same mesh.
    """
    import torch

    work = _workload(case)
    if float(work.forward_flops * work.layers) > ALONE:
        tokens, d, f = (size * case["tensor"] for size in SMALL)
        told = dict(case.parameters) | {"tokens": tokens, "d_model": d, "d_ff": f}
        case = Case(case.kernel, told, case.size, case.stride)
        stage = _stage(case, context, stage.axes)
    outputs = stage.run()
    last = stage.axes["pipeline"].me == case["pipeline"] - 1
    gradients = [parameter.grad for parameter in stage.parameters]
    got = [*(outputs if last else []), *(g.clone() for g in gradients if g is not None)]
    torch.optim.AdamW(stage.parameters, **ADAMW).step()
    wanted = _reference(case, context, stage.axes, last)
    pairs = zip([*got, *(p.detach() for p in stage.parameters)], wanted, strict=True)
    return worst(compare(a, b, case["dtype"]) for a, b in pairs)


def _reference(
    case: Case, context: Context, axes: dict[str, Peers], last: bool
) -> list[torch.Tensor]:
    """The whole model on all tokens in double precision; of it, what this rank has."""
    import torch

    layers = range(case["layers"] * case["pipeline"])
    weights = [
        [w.double().requires_grad_() for w in _weights(case, context, layer)] for layer in layers
    ]
    everything = [(x, i) for x in range(case["data"]) for i in range(case["microbatches"])]
    x, given = (
        torch.cat([_tokens(case, context, what, *which) for which in everything]).double()
        for what in ("x", "gradient")
    )
    for w_in, w_out in weights:
        x = x + (x @ w_in).relu() @ w_out
    torch.autograd.backward(x, given)
    tensor, mine = axes["tensor"], axes["pipeline"].me * case["layers"]
    parameters = [w for pair in weights for w in pair]
    gradients = _sliced([w.grad for w in parameters if w.grad is not None], tensor)
    torch.optim.AdamW(parameters, **ADAMW).step()
    stepped = _sliced([w.detach() for w in parameters], tensor)
    ours = slice(2 * mine, 2 * (mine + case["layers"]))
    outputs = x.detach().chunk(len(everything))[axes["data"].me * case["microbatches"] :]
    parts = [out.chunk(tensor.n)[tensor.me] for out in outputs[: case["microbatches"]]]
    return [*(parts if last else []), *gradients[ours], *stepped[ours]]


def _sliced(matrices: list[torch.Tensor], tensor: Peers) -> list[torch.Tensor]:
    """Columns of every W_in, rows of every W_out."""
    return [each.chunk(tensor.n, dim=1 - i % 2)[tensor.me] for i, each in enumerate(matrices)]


KERNELS = (Kernel("mesh", "data, tensor and pipeline parallel on a mesh", cases, predict, prepare),)
