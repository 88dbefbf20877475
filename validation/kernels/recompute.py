"""Activations kept, made again, or sent to the host: time and memory, against ``roofline.activations``.

    keep         each layer's input and relu(x W_in): D + F numbers a token
    recompute    the inputs alone: D; the forward pass runs once more
    offload      nothing here; all of it to the host, and back when the backward pass asks

Layers x + relu(x W_in) W_out, forward and backward. ``comms`` is the copies both ways. The check
compares gradients, and counts what autograd keeps: other bytes than the formula's are an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from roofline.activations import KEPT, Fate, Kept, Place, Saved, activation_bytes, fates
from roofline.strategies.phases import passes
from roofline.workload import Workload
from validation.case import Case, Correctness, Expected, Kernel, Setting, Work, worst
from validation.kernels.data import BYTES, TOLERANCE, compare, random, stepped
from validation.kernels.predicted import elementwise, mlp
from validation.profile import Profile
from validation.results import Value

if TYPE_CHECKING:
    import torch

    from validation.context import Context

# (tokens, D, F, layers)
SHAPES = {"cpu": (256, 128, 512, 4), "cuda": (8192, 4096, 14336, 4)}
MORE = {
    "cpu": ((512, 256, 512, 4), (256, 256, 1024, 4)),
    "cuda": ((16384, 2048, 8192, 8), (4096, 8192, 28672, 2), (16384, 4096, 14336, 2)),
}
FATES = {"keep": "keep", "recompute": "recompute", "offload": "host"}  # names in ``activations``
LAYER = Kept(2, 0, 2, about="input and hidden activations of an MLP with a ReLU")
SMALL = (32, 64, 128)  # tokens, D and F of a problem that is solved in double precision too
ALONE = 3e8  # FLOPs forward that this takes no time for


def cases(setting: Setting) -> Iterator[Case]:
    """Every policy on each shape; ranks do the same side by side."""
    shapes = (SHAPES[setting.device], *(() if setting.quick else MORE[setting.device]))
    dtype = "bf16" if setting.device == "cuda" else "fp32"
    for tokens, d, f, layers in shapes:
        needed = layers * (6 * d * f + 2 * tokens * (d + f)) + 6 * tokens * (d + f)
        if BYTES[dtype] * needed > setting.memory:
            continue
        told: dict[str, Value] = {"tokens": tokens, "d_model": d, "d_ff": f, "layers": layers}
        for policy in FATES:
            yield Case("recompute", told | {"policy": policy, "dtype": dtype})


def predict(case: Case, profile: Profile) -> Iterator[Expected]:
    """``roofline.activations.fates``: what the policy adds to a step, and where the bytes are."""
    math = case["layers"] * _layer(case, profile, "step")
    flops = float(_workload(case).forward_flops) * case["layers"]
    whole = flops * passes("step")
    way = _fate(case, profile)
    if case["policy"] != "offload":
        again = flops if case["policy"] == "recompute" else 0.0
        yield Expected("math", math + float(way.seconds), whole + again)
        return
    yield Expected("math", math, whole)
    if way.seconds > 0:
        seconds, nbytes = float(way.seconds), 2 * float(way.elsewhere)
        yield Expected("comms", seconds, nbytes=nbytes)
        yield Expected("both", math + seconds, whole, nbytes)


def _layer(case: Case, profile: Profile, phase: Any) -> float:
    tokens, d, dtype = case["tokens"], case["d_model"], case["dtype"]
    added = elementwise(profile, (3 if phase == "forward" else 6) * tokens * d, dtype, 1)
    return mlp(profile, tokens, d, case["d_ff"], dtype, phase) + added


def _workload(case: Case) -> Workload:
    return Workload(case["tokens"], case["d_model"], case["d_ff"], dtype=case["dtype"])


def _saved(case: Case) -> Saved:
    """What the backward pass needs of all layers."""
    about: dict[str, Any] = {"layers": case["layers"], "element_bytes": BYTES[case["dtype"]]}
    tokens, d, f = case["tokens"], case["d_model"], case["d_ff"]
    return Saved(
        activation_bytes(LAYER, tokens, d, d_ff=f, **about),
        float(_workload(case).forward_flops) * case["layers"],
        activation_bytes(KEPT["block"], tokens, d, **about),
    )


def _fate(case: Case, profile: Profile) -> Fate:
    """The policy, at the rate that a forward pass reaches here, and the host's link."""
    saved = _saved(case)
    rate = saved.flops / (case["layers"] * _layer(case, profile, "forward"))
    ways = fates(saved, rate, [Place("host", _to_host(profile))], trips=2).ways
    return next(way for way in ways if way.name == FATES[case["policy"]])


def _to_host(profile: Profile) -> float:
    """Of a GPU its link; a CPU copies in its own memory, reading and writing. Infinite: unknown."""
    streams, link = profile.streams(), profile.machine.host_link
    if link is not None:
        return float(link.total)
    on_cpu = "cpu" in profile.chip.name
    return float(streams.hbm * streams.fraction) / 2 if on_cpu else float("inf")


@dataclass(slots=True)
class Host:
    """Memory of the host for what autograd saves, used anew in every step."""

    stays: frozenset[int]  # addresses of parameters
    device: torch.device
    slots: list[torch.Tensor] = field(default_factory=list)
    used: int = 0
    sent: dict[int, Sent] = field(default_factory=dict)  # of one layer, by address
    nbytes: int = 0  # since the step began
    keeps: bool = False  # only count

    def pack(self, tensor: torch.Tensor) -> Any:
        """Send it away; what a layer saves twice goes once."""
        if tensor.data_ptr() in self.stays:
            return tensor
        known = self.sent.get(tensor.data_ptr())
        if known is None:
            self.nbytes += tensor.numel() * tensor.element_size()
            slot = tensor if self.keeps else self.slot(tensor).copy_(tensor, non_blocking=True)
            known = self.sent[tensor.data_ptr()] = Sent(slot)
        known.uses += 1
        return tensor if self.keeps else known

    def unpack(self, packed: Any) -> torch.Tensor:
        """Fetch it back, once for all its uses."""
        if not isinstance(packed, Sent):
            found: torch.Tensor = packed
            return found
        back = self.fetch(packed.slot) if packed.back is None else packed.back
        packed.uses -= 1
        packed.back = back if packed.uses else None
        return back

    def fetch(self, slot: torch.Tensor) -> torch.Tensor:
        """A copy on the device."""
        import torch

        return torch.empty_like(slot, device=self.device).copy_(slot, non_blocking=True)

    def restart(self) -> None:
        """All slots are free again."""
        self.used = self.nbytes = 0
        self.sent = {}

    def slot(self, tensor: torch.Tensor) -> torch.Tensor:
        """The next one; the same one in every step, as steps do the same."""
        import torch

        if self.used == len(self.slots):
            pinned = self.device.type == "cuda"
            self.slots.append(torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=pinned))
        self.used += 1
        return self.slots[self.used - 1]


@dataclass(slots=True)
class Sent:
    """A tensor that is away, and as long as another use is to come, what came back."""

    slot: torch.Tensor
    uses: int = 0
    back: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class Stack:
    """The layers on one rank."""

    x: torch.Tensor
    given: torch.Tensor
    weights: list[tuple[torch.Tensor, torch.Tensor]]
    host: Host

    @property
    def parameters(self) -> list[torch.Tensor]:
        """Both matrices of every layer."""
        return [weight for pair in self.weights for weight in pair]

    def run(self, policy: str) -> tuple[torch.Tensor, ...]:
        """Gradients of the parameters."""
        import torch
        from torch.autograd.graph import saved_tensors_hooks
        from torch.utils.checkpoint import checkpoint

        self.host.restart()
        away = policy == "offload" or self.host.keeps
        x = self.x
        with saved_tensors_hooks(self.host.pack, self.host.unpack) if away else nullcontext():
            for pair in self.weights:
                self.host.sent = {}  # memory of one layer may be that of the next one
                again = policy == "recompute"
                x = checkpoint(layer, x, *pair, use_reentrant=False) if again else layer(x, *pair)
            return torch.autograd.grad(x, self.parameters, self.given)

    def copies(self) -> None:
        """What offloading sends, there and back."""
        self.host.restart()
        hidden = self.x.new_zeros((self.x.shape[0], self.weights[0][0].shape[1]))
        for _ in self.weights:
            for tensor in (self.x, hidden):
                self.host.fetch(self.host.slot(tensor).copy_(tensor, non_blocking=True))


def layer(x: torch.Tensor, w_in: torch.Tensor, w_out: torch.Tensor) -> torch.Tensor:
    """x + relu(x W_in) W_out."""
    return x + (x @ w_in).relu() @ w_out


def prepare(case: Case, context: Context) -> Work:
    """The layers; of offloading the copies too, and all without them."""
    stack = _stack(case, context)
    policy = str(case["policy"])
    if policy != "offload":
        return Work(check=lambda: _check(case, context, stack), math=lambda i: stack.run(policy))
    return Work(
        check=lambda: _check(case, context, stack),
        math=lambda i: stack.run("keep"),
        comms=lambda i: stack.copies(),
        both=lambda i: stack.run(policy),
    )


def _stack(case: Case, context: Context) -> Stack:
    tokens, d, f, dtype = (case[name] for name in ("tokens", "d_model", "d_ff", "dtype"))
    weights = []
    for number in range(case["layers"]):
        w_in = random(context, (d, f), dtype, case.id, "in", number).mul_(d**-0.5)
        w_out = random(context, (f, d), dtype, case.id, "out", number).mul_(f**-0.5)
        weights.append((w_in.requires_grad_(), w_out.requires_grad_()))
    x, given = (random(context, (tokens, d), dtype, case.id, name) for name in ("x", "gradient"))
    stays = frozenset(weight.data_ptr() for pair in weights for weight in pair)
    return Stack(x, given, weights, Host(stays, context.device))


def _check(case: Case, context: Context, stack: Stack) -> Correctness:
    """Gradients and a step of AdamW against double precision, and bytes against the formula.

    Large problems are compared by a small one; their bytes are counted as they are.
    """
    wrong = abs(_counted(case, stack) / _kept(case) - 1)
    if float(_workload(case).forward_flops) * case["layers"] > ALONE:
        tokens, d, f = SMALL
        told = dict(case.parameters) | {"tokens": tokens, "d_model": d, "d_ff": f}
        case = Case(case.kernel, told, case.size, case.stride)
        stack = _stack(case, context)
    gradients = stack.run(case["policy"])
    got = (*gradients, *stepped(stack.parameters, gradients))
    pairs = zip(got, _reference(stack), strict=True)
    counted = Correctness(wrong, TOLERANCE[case["dtype"]])
    return worst([counted, *(compare(a, b, case["dtype"]) for a, b in pairs)])


def _reference(stack: Stack) -> tuple[torch.Tensor, ...]:
    import torch

    weights = [[w.detach().double().requires_grad_() for w in pair] for pair in stack.weights]
    x = stack.x.double()
    for w_in, w_out in weights:
        x = layer(x, w_in, w_out)
    parameters = [w for pair in weights for w in pair]
    gradients = torch.autograd.grad(x, parameters, stack.given.double())
    return (*gradients, *stepped(parameters, gradients))


def _counted(case: Case, stack: Stack) -> int:
    """Bytes that a step keeps between forward and backward, here or on the host."""
    policy = str(case["policy"])
    counter = Host(stack.host.stays, stack.host.device, keeps=policy != "offload")
    Stack(stack.x, stack.given, stack.weights, counter).run(policy)
    return counter.nbytes


def _kept(case: Case) -> float:
    """The same by the formula. [B]"""
    saved = _saved(case)
    return float(saved.inputs if case["policy"] == "recompute" else saved.nbytes)


KERNELS = (
    Kernel("recompute", "activations kept, made again or sent away", cases, predict, prepare),
)
