"""Recomputation by modules: bytes against what autograd keeps, time against FLOPs by hand."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest

import hardware_profiles as hw
from roofline.calibrated import behaviour
from roofline.dims import Dims
from roofline.export import load
from roofline.footprint import footprint
from roofline.kept import in_a_layer
from roofline.layout import CHEAP, MODULES, RECOMPUTE, Layout
from roofline.microbatch import average
from roofline.model import Experts, Latent, Transformer
from roofline.outcome import outcome
from roofline.planner import plan
from roofline.presets import preset
from roofline.recipes import recipe
from roofline.run_schema import MODULE_NAMES
from roofline.training import training

torch = pytest.importorskip("torch")
functional = torch.nn.functional

LATENT = Latent(query_rank=96, kv_rank=64, nope_dim=32, rope_dim=16, value_dim=32)
DENSE = Transformer("small mla", 1, 256, 640, 8, 8, 48, 1024, latent=LATENT)
SPARSE = replace(DENSE, d_ff=0, experts=Experts(4, 2, 192, shared_d_ff=128))
BATCH, SEQUENCE = 2, 16
TOKENS = BATCH * SEQUENCE
BY_MODULES = RECOMPUTE["modules"]


class Attention(torch.autograd.Function):
    """One fused kernel: keeps queries, keys, values, its output, and a number per token and head."""

    @staticmethod
    def forward(ctx, q, k, v):
        scores = (q @ k.transpose(-1, -2)).float()
        out = torch.softmax(scores, -1).to(v.dtype) @ v
        out = out.transpose(1, 2).contiguous()
        ctx.save_for_backward(q, k, v, out, torch.logsumexp(scores, -1))
        return out


class SwiGLU(torch.autograd.Function):
    """One fused kernel: keeps both inputs, in one tensor, and the router's weights."""

    @staticmethod
    def forward(ctx, x, weights=None):
        gate, up = x.chunk(2, -1)
        made = functional.silu(gate) * up
        ctx.save_for_backward(x, *([] if weights is None else [weights]))
        return made if weights is None else made * weights


class Autograd:
    """What autograd saves in a forward pass, and which modules made it."""

    def __init__(self) -> None:
        self.saved: dict[int, Any] = {}
        self.made: dict[int, set[str]] = {}
        self.alive: list[Any] = []
        self.inside: list[tuple[str, set[int]]] = []

    @contextmanager
    def module(self, name: str, *inputs: Any) -> Iterator[Callable[..., None]]:
        """What is saved inside, and the outputs that are named, can be made again of the inputs."""
        self.inside.append((name, {t.untyped_storage().data_ptr() for t in inputs}))
        yield lambda *outputs: [self.mark(out, {name}) for out in outputs]
        self.inside.pop()

    def mark(self, tensor: Any, names: set[str]) -> None:
        """Made in these modules."""
        self.alive.append(tensor)  # or another takes its place in memory
        self.made.setdefault(tensor.untyped_storage().data_ptr(), set()).update(names)

    def pack(self, tensor: Any) -> Any:
        """Save a tensor of tokens by features; parameters and numbers per token are not counted."""
        place = tensor.untyped_storage().data_ptr()
        parameter = tensor.is_leaf and tensor.requires_grad
        if not parameter and tensor.is_floating_point() and tensor.numel() > 2 * TOKENS:
            if place not in self.saved:
                self.mark(tensor, {name for name, inputs in self.inside if place not in inputs})
            self.saved[place] = tensor
        return tensor

    def kept(self, again: set[str]) -> int:
        """Bytes that stay where these modules are run again."""
        held = (t for place, t in self.saved.items() if not self.made.get(place, set()) & again)
        return sum(t.untyped_storage().nbytes() for t in held)


def weight(*shape: int) -> Any:
    return torch.randn(*shape, dtype=torch.bfloat16).mul_(0.05).requires_grad_()


def forward(m: Transformer, tape: Autograd) -> Any:
    """One layer: latent attention, and an MLP or routed and shared experts."""
    x = weight(BATCH, SEQUENCE, m.d_model) * 1.0  # no leaf: the layer below made it
    x = x + attend(m, x, tape)
    with tape.module("norms", x) as made:
        y = functional.layer_norm(x, (m.d_model,))
        made(y)
    return x + (route(m, y, tape) if m.experts else feed(m.d_model, m.d_ff, y, tape, "mlp"))


def attend(m: Transformer, x: Any, tape: Autograd) -> Any:
    latent, heads = m.latent, m.heads
    assert latent
    with tape.module("norms", x) as made:
        y = functional.layer_norm(x, (m.d_model,))
        made(y)
    q = y @ weight(m.d_model, latent.query_rank)
    narrow = y @ weight(m.d_model, latent.kv_rank + latent.rope_dim)
    kv, rope = narrow.split([latent.kv_rank, latent.rope_dim], -1)
    with tape.module("norms", q, kv) as made:
        q = functional.layer_norm(q, (latent.query_rank,))
        kv = functional.layer_norm(kv, (latent.kv_rank,))
        made(q, kv)
    with tape.module("mla-up", q, kv, rope) as made:
        q = q @ weight(latent.query_rank, heads * m.query_dim)
        kv = kv @ weight(latent.kv_rank, heads * (latent.nope_dim + latent.value_dim))
        q = q.view(BATCH, SEQUENCE, heads, -1).transpose(1, 2)
        kv = kv.view(BATCH, SEQUENCE, heads, -1).transpose(1, 2)
        k, v = kv.split([latent.nope_dim, latent.value_dim], -1)
        shared = rope.unsqueeze(1).expand(-1, heads, -1, -1)
        k, v = torch.cat([k, shared], -1), v.contiguous()
        made(q, k, v)
    out = Attention.apply(q, k, v)
    return out.reshape(BATCH, SEQUENCE, -1) @ weight(heads * latent.value_dim, m.d_model)


def feed(d_model: int, d_ff: int, y: Any, tape: Autograd, whole: str, weights: Any = None) -> Any:
    with tape.module(whole, y):
        up = y @ weight(d_model, 2 * d_ff)
        with tape.module("activation", up) as made:
            product = SwiGLU.apply(up, weights)
            made(product)
        return product @ weight(d_ff, d_model)


def route(m: Transformer, y: Any, tape: Autograd) -> Any:
    """Every token to its experts, whose matrices are one here: only rows count."""
    experts = m.experts
    assert experts
    weights = weight(experts.per_token * TOKENS, 1)
    with tape.module("experts", y):
        rows = torch.cat([y.view(TOKENS, -1)] * experts.per_token)
        out = feed(m.d_model, experts.d_ff, rows, tape, "experts")
        with tape.module("activation"):  # the router's weights are part of it where it is repeated
            out = out * weights
        out = out.view(experts.per_token, TOKENS, -1).sum(0).view_as(y)
    return out + feed(m.d_model, experts.shared_d_ff, y, tape, "experts")


SETS = [
    set(chosen)
    for size in range(4)
    for chosen in combinations(("norms", "activation", "mla-up", "mlp", "experts"), size)
]


@pytest.mark.parametrize("m", [DENSE, SPARSE], ids=["dense", "experts"])
def test_bytes_are_what_autograd_keeps(m: Transformer) -> None:
    """A layer in PyTorch with fused kernels for norm, attention and SwiGLU: tensors that autograd
    saves, without those that the chosen modules make. Exact.
    """
    tape = Autograd()
    with torch.autograd.graph.saved_tensors_hooks(tape.pack, lambda t: t):
        out = forward(m, tape)
    layout = Layout(1, batch=BATCH, micro_batch=BATCH, sequence=SEQUENCE)
    for chosen in SETS:
        bits = sum(MODULES[name] for name in chosen)
        by = replace(layout, recompute=BY_MODULES, recompute_modules=bits)
        kept = in_a_layer(Dims.of(m), by, recipe("mixed"))
        assert sum(float(kind.stays) for kind in kept.values()) == tape.kept(chosen), chosen
    assert out.requires_grad


def test_the_cheap_three_of_deepseek_v3() -> None:
    """arXiv:2412.19437, section 3.2.3 and 4.2: norms, SwiGLU and MLA up-projections are not kept.
    Stay, of a token in an expert layer, in 16 bits: the stream twice, the latents (1536, 512 and
    64), the attention's output of 128 heads of 128 with a number per head, 8 rows of 7168 and what
    SwiGLU reads, twice 2048, of them and of the shared expert.
    """
    model = replace(Dims.of(preset("deepseek-v3").model), moe_layers=61.0, mtp=0.0)
    layout = Layout(64, ep=64, batch=64, sequence=4096, recompute=BY_MODULES)
    stays = 2 * (2 * 7168 + 1536 + 512 + 64 + 128 * 128) + 4 * 128
    stays += 2 * (8 * (7168 + 2 * 2048) + 2 * 2048)
    kept = in_a_layer(model, layout, recipe("mixed"))
    assert sum(float(kind.stays) for kind in kept.values()) == pytest.approx(4096 * stays)
    again = 2 * (2 * 7168 + 1536 + 512 + 128 * (192 + 192 + 128))
    again += 2 * (8 * (2048 + 7168) + 2048)
    assert footprint(model, layout).working == pytest.approx(4096 * again)


PEAK = behaviour(hw.cluster("h800-deepseek"))
DEEPSEEK = Dims.of(preset("deepseek-v3").model)


def again(chosen: int, **more: Any) -> Any:
    """Seconds of recomputation of a micro-batch on 8 GPUs at the datasheet's rates."""
    layout = Layout(64, ep=8, batch=64, sequence=4096, recompute=BY_MODULES)
    return average(PEAK.job(DEEPSEEK, replace(layout, recompute_modules=chosen, **more))).again


def test_time_of_mla_up_projections_at_peak() -> None:
    """Two matmuls of 2 T r n FLOPs each in 61 layers and the MTP module, and rope's bytes over the
    memory bandwidth: 6 of 192 and 4 of 256 a head.
    """
    chip = hw.cluster("h800-deepseek").accelerator
    flops = 2 * 4096 * (1536 * 128 * 192 + 512 * 128 * 256)
    moved = 4096 * 128 * (6 * 192 + 4 * 256)
    by_hand = 62 * (flops / 989.5e12 + moved / chip.hbm_bandwidth)
    assert again(MODULES["mla-up"]) == pytest.approx(by_hand, rel=0.01)


def test_time_of_norms_at_peak() -> None:
    """Two norms read and write 7168 numbers in 16 bits."""
    chip = hw.cluster("h800-deepseek").accelerator
    by_hand = 62 * 2 * 4 * 4096 * 7168 / chip.hbm_bandwidth
    assert again(MODULES["norms"]) == pytest.approx(by_hand, rel=0.01)


def test_modules_add_up() -> None:
    """Disjoint ones; an activation inside experts that are run again is not run twice."""
    each = {name: float(again(bit)) for name, bit in MODULES.items()}
    light = ("attention", "norms", "mla-up", "activation")
    assert again(sum(MODULES[name] for name in light)) == pytest.approx(
        sum(each[name] for name in light)
    )
    assert again(MODULES["experts"] + MODULES["mlp"] + MODULES["activation"]) == pytest.approx(
        each["experts"] + each["mlp"]
    )
    assert again(0) == 0


def test_attention_alone_is_the_mode_of_this_name() -> None:
    """Megatron's selective recomputation without a list of modules."""
    mode = again(CHEAP, recompute=RECOMPUTE["attention"])
    assert again(MODULES["attention"]) == pytest.approx(float(mode))


def test_experts_repeat_their_all_to_alls() -> None:
    """The difference between exchanges that are seen and hidden ones is in the repeated part too."""
    seen = again(MODULES["experts"]) - again(MODULES["experts"], ep_overlap=1.0)
    layout = Layout(64, ep=8, batch=64, sequence=4096)
    exchanges = average(PEAK.job(DEEPSEEK, layout)).ep[0]
    assert seen == pytest.approx(float(exchanges))
    assert again(CHEAP) == again(CHEAP, ep_overlap=1.0)


def test_columns_of_modules_are_rows_of_their_own() -> None:
    """A table of sets, as one call and one by one."""
    bits = np.arange(64.0)
    table = again(bits)
    assert table.tolist() == [float(again(int(each))) for each in bits]
    share = again(bits, recompute_share=0.25)
    assert share == pytest.approx(table / 4)


def test_hardware_flops_count_what_is_repeated() -> None:
    """HFU over MFU: the forward pass of the up-projections once more, of 3 passes of all."""
    found = {}
    for name in ("none", "modules"):
        layout = Layout(64, ep=8, batch=64, sequence=4096, recompute=RECOMPUTE[name])
        job = training(preset("deepseek-v3").model, layout, hw.cluster("h800-deepseek"))
        found[name] = outcome(job)
    up = 62 * 2 * (1536 * 128 * 192 + 512 * 128 * 256) * 64 * 4096
    more = found["modules"].hardware_flops - found["none"].hardware_flops
    assert more == pytest.approx(up)


@pytest.mark.parametrize("bits", [1, 2, 6, 8, CHEAP, CHEAP + MODULES["experts"], 63])
def test_megatron_names_them(bits: int) -> None:
    """``--recompute-modules`` of Megatron-Core, written and read back."""
    model = preset("deepseek-v3").model
    layout = Layout(64, ep=8, batch=64, sequence=4096, recompute=BY_MODULES)
    job = training(model, replace(layout, recompute_modules=bits), hw.cluster("h800-deepseek"))
    text = str(job.export("megatron"))
    assert "--recompute-granularity selective" in text
    for theirs, ours in MODULE_NAMES.items():
        named = theirs in text.split("--recompute-modules")[1].split("--")[0].split()
        assert named == bool(bits & MODULES[ours])
    back = load(text, "megatron", gpus=64).layout
    assert back.repeats("attention") == (bits & 1 > 0) or back.recompute == RECOMPUTE["attention"]
    if bits > 1:
        assert (back.recompute, back.recompute_modules) == (BY_MODULES, bits)


def test_only_models_with_something_cheap_to_repeat_try_modules() -> None:
    """Experts or latent attention; the space of dense models stays as it was."""
    asked: dict[str, Any] = {"tokens": 64 * 4096, "sequence": 4096, "tp": 1, "cp": 1, "pp": 1}
    dense = plan(preset("llama-3-8b").model, hw.cluster("dgx-h100-superpod"), 8, **asked)
    assert BY_MODULES not in dense.field["recompute"]
    mixture = plan(preset("qwen3-30b-a3b").model, hw.cluster("dgx-h100-superpod"), 8, **asked)
    assert BY_MODULES in mixture.field["recompute"]
