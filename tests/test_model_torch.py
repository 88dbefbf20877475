"""FLOPs of whole models against torch's own counter, on modules written here and never computed."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from roofline.adapters import ADAPTERS
from roofline.adapters import counted as counted_with_adapters
from roofline.layout import Layout
from roofline.model import Experts, Latent, Transformer
from roofline.model_flops import operations
from roofline.models.parts import parameters
from roofline.presets import preset

torch = pytest.importorskip("torch")
nn = torch.nn

BATCH, SEQUENCE = 2, 512


def linear(inputs: int, outputs: int, bias: bool = False):
    return nn.Linear(inputs, outputs, bias=bias)


class Core(nn.Module):
    """q kᵀ and a v as plain matmuls over all keys."""

    def forward(self, q, k, v):
        groups = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        return torch.softmax(q @ k.transpose(-1, -2), -1) @ v


class Attention(nn.Module):
    """Multi-head or grouped."""

    def __init__(self, m: Transformer) -> None:
        super().__init__()
        self.m = m
        self.qkv = linear(m.d_model, (m.heads + 2 * m.kv_heads) * m.head_dim, m.qkv_bias)
        self.output = linear(m.heads * m.head_dim, m.d_model, m.output_bias)
        self.core = Core()

    def forward(self, x):
        m, (b, s, _) = self.m, x.shape
        split = self.qkv(x).view(b, s, -1, m.head_dim).transpose(1, 2)
        heads = split.split([m.heads, m.kv_heads, m.kv_heads], 1)
        return self.output(self.core(*heads).transpose(1, 2).reshape(b, s, -1))


class LatentAttention(nn.Module):
    """DeepSeek's, arXiv:2405.04434 section 2.1, as it trains: keys and values unfolded."""

    def __init__(self, m: Transformer, latent: Latent) -> None:
        super().__init__()
        self.m, self.latent = m, latent
        q = m.heads * (latent.nope_dim + latent.rope_dim)
        rank = latent.query_rank
        self.query_down = linear(m.d_model, rank) if rank else nn.Identity()
        self.query_norm = nn.RMSNorm(rank) if rank else nn.Identity()
        self.query_up = linear(rank or m.d_model, q)
        self.kv_down = linear(m.d_model, latent.kv_rank + latent.rope_dim)
        self.kv_norm = nn.RMSNorm(latent.kv_rank)
        self.kv_up = linear(latent.kv_rank, m.heads * (latent.nope_dim + latent.value_dim))
        self.output = linear(m.heads * latent.value_dim, m.d_model)
        self.core = Core()

    def forward(self, x):
        m, latent, (b, s, _) = self.m, self.latent, x.shape
        q = self.query_up(self.query_norm(self.query_down(x))).view(b, s, m.heads, -1)
        narrow, turned = self.kv_down(x).split([latent.kv_rank, latent.rope_dim], -1)
        kv = self.kv_up(self.kv_norm(narrow)).view(b, s, m.heads, -1)
        k, v = kv.split([latent.nope_dim, latent.value_dim], -1)
        k = torch.cat([k, turned.view(b, s, 1, -1).expand(-1, -1, m.heads, -1)], -1)
        heads = (each.transpose(1, 2) for each in (q, k, v))
        return self.output(self.core(*heads).transpose(1, 2).reshape(b, s, -1))


class Mlp(nn.Module):
    """Gated or plain."""

    def __init__(self, m: Transformer, d_ff: int) -> None:
        super().__init__()
        self.gated = m.gated
        self.up = linear(m.d_model, d_ff * (2 if m.gated else 1), m.mlp_bias)
        self.down = linear(d_ff, m.d_model, m.mlp_bias)

    def forward(self, x):
        y = self.up(x)
        if self.gated:
            gate, y = y.chunk(2, -1)
            y = torch.sigmoid(gate) * y
        return self.down(y)


class Mixture(nn.Module):
    """Routed and shared experts; every expert gets the same number of rows."""

    def __init__(self, m: Transformer, mixture: Experts) -> None:
        super().__init__()
        self.mixture = mixture
        self.router = linear(m.d_model, mixture.count, mixture.router_bias)
        self.experts = nn.ModuleList(Mlp(m, mixture.d_ff) for _ in range(mixture.count))
        self.shared = Mlp(m, mixture.shared_d_ff) if mixture.shared_d_ff else None

    def forward(self, x):
        flat = x.flatten(0, 1)
        weight = torch.softmax(self.router(flat), -1).sum(-1, keepdim=True)
        rows = (flat * weight).repeat_interleave(self.mixture.per_token, 0)
        parts = rows.chunk(self.mixture.count, 0)
        done = torch.cat([expert(part) for expert, part in zip(self.experts, parts, strict=True)])
        y = done.view(len(flat), self.mixture.per_token, -1).sum(1).view_as(x)
        return y if self.shared is None else y + self.shared(x)


class Layer(nn.Module):
    def __init__(self, m: Transformer, routed: bool) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(m.d_model) for _ in range(2))
        self.attention = LatentAttention(m, m.latent) if m.latent else Attention(m)
        self.mlp = Mixture(m, m.experts) if routed and m.experts else Mlp(m, m.d_ff)

    def forward(self, x):
        x = x + self.attention(self.norms[0](x))
        return x + self.mlp(self.norms[1](x))


class Decoder(nn.Module):
    def __init__(self, m: Transformer) -> None:
        super().__init__()
        self.embedding = nn.Embedding(m.padded_vocab, m.d_model)
        self.layers = nn.ModuleList(Layer(m, routed) for routed in m.has_experts)
        self.norm = nn.RMSNorm(m.d_model)
        self.head = linear(m.d_model, m.padded_vocab)
        if m.tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


MODELS = {
    "llama": replace(preset("llama-2-7b").model, layers=2),
    "grouped": replace(preset("llama-3-70b").model, layers=2, vocab_multiple=1024),
    "tied, biased, plain": Transformer(
        "gpt", 3, 256, 1024, 8, 8, 32, 1000,
        gated=False, tied=True, qkv_bias=True, output_bias=True, mlp_bias=True,
    ),
    "mixture": replace(preset("mixtral-8x7b").model, layers=2),
    "mixture in every other layer, shared": Transformer(
        "maverick", 4, 256, 1024, 8, 2, 64, 1000,
        experts=Experts(16, 4, 128, shared_d_ff=192, every=2),
    ),
    "latent, a dense layer first": Transformer(
        "deepseek", 3, 512, 1408, 8, 8, 64, 1000,
        latent=Latent(192, 64, 64, 32, 48),
        experts=Experts(8, 2, 176, shared_d_ff=352, first=1, router_bias=True),
    ),
    "latent, plain queries": Transformer(
        "lite", 2, 512, 1408, 8, 8, 64, 1000, latent=Latent(0, 64, 64, 32, 48)
    ),
}  # fmt: skip

# Modules of theirs, and which operations of ours they do.
CLASSES: dict[str, Callable[[str], bool]] = {
    "core": lambda name: name.split(" ")[-1] in {"scores", "values"},
    "qkv": lambda name: name == "qkv",
    "output": lambda name: name == "output",
    "query_down": lambda name: name == "query down",
    "query_up": lambda name: name in {"query up", "query"},
    "kv_down": lambda name: name == "kv down",
    "kv_up": lambda name: name == "kv up",
    "router": lambda name: name == "router",
    "shared": lambda name: name.startswith("shared"),
    "experts": lambda name: name.startswith("experts"),
    "head": lambda name: name == "head",
    "mlp": lambda name: name.startswith("mlp"),
}


def counted(name: str, backward: bool) -> tuple[dict[str, int], int, int]:
    """FLOPs of modules by what they do, of all together, and the parameters."""
    from torch.utils.flop_counter import FlopCounterMode

    with torch.device("meta"):
        model = Decoder(MODELS[name])
        tokens = torch.zeros(BATCH, SEQUENCE, dtype=torch.long)
        with FlopCounterMode(display=False) as counter:
            logits = model(tokens)
            if backward:
                logits.sum().backward()
    found, modules = dict.fromkeys(CLASSES, 0), counter.get_flop_counts()
    for module, flops in modules.items():
        path = module.split(".")
        kind = "experts" if path[-2:-1] == ["experts"] else path[-1]
        if kind in found and f"{module}.router" not in modules:
            found[kind] += sum(flops.values())
    total = counter.get_total_flops()
    return found, total, sum(weight.numel() for weight in set(model.parameters()))


@pytest.mark.parametrize("name", MODELS)
def test_forward_flops_of_every_operation(name: str) -> None:
    """torch.utils.flop_counter on the meta device, class by class, to the last FLOP."""
    found, total, _ = counted(name, backward=False)
    rows = operations(MODELS[name], SEQUENCE, "full")
    tokens = BATCH * SEQUENCE
    for module, is_one in CLASSES.items():
        ours = sum(float(row.forward) for row in rows if is_one(row.name))
        assert ours * tokens == pytest.approx(found[module], rel=1e-9), module
    assert sum(float(row.forward) for row in rows) * tokens == pytest.approx(total, rel=1e-9)


@pytest.mark.parametrize("name", MODELS)
def test_backward_flops_are_twice_forward(name: str) -> None:
    """The same with the backward pass."""
    _, total, _ = counted(name, backward=True)
    rows = operations(MODELS[name], SEQUENCE, "full")
    ours = sum(float(row.forward) + float(row.backward) for row in rows)
    assert ours * BATCH * SEQUENCE == pytest.approx(total, rel=1e-9)


@pytest.mark.parametrize("name", MODELS)
def test_parameters_are_the_tensors(name: str) -> None:
    """Elements of all tensors; the bias of DeepSeek's router is a tensor here as well."""
    _, _, elements = counted(name, backward=False)
    assert parameters(MODELS[name]).total == elements


class Adapted(nn.Module):
    """A frozen matrix and LoRA beside it, one for each of the parts that are one matmul."""

    def __init__(self, frozen, parts: list[int], rank: int) -> None:
        super().__init__()
        self.frozen = frozen
        self.a = nn.ModuleList(linear(frozen.in_features, rank) for _ in parts)
        self.b = nn.ModuleList(linear(rank, part) for part in parts)

    def forward(self, x):
        narrow = [b(a(x)) for a, b in zip(self.a, self.b, strict=True)]
        return self.frozen(x) + torch.cat(narrow, -1)


def adapt(model, m: Transformer, rank: int) -> None:
    """All weights frozen, adapters on every matrix of the layers but routers; and as PEFT does for
    checkpointing, the output of the embedding has a gradient.
    """
    model.requires_grad_(False)
    model.embedding.register_forward_hook(lambda module, given, out: out.requires_grad_())
    for parent in list(model.layers.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear) and name != "router":
                parts = [child.out_features]
                if name == "qkv":
                    parts = [m.heads * m.head_dim, *2 * [m.kv_heads * m.head_dim]]
                if name == "up" and m.gated:
                    parts = 2 * [child.out_features // 2]
                setattr(parent, name, Adapted(child, parts, rank))


@pytest.mark.parametrize("name", MODELS)
def test_flops_with_adapters(name: str) -> None:
    """Frozen matrices: forward and the gradient of their input; adapters: all three passes."""
    from torch.utils.flop_counter import FlopCounterMode

    m, rank = MODELS[name], 8
    with torch.device("meta"):
        model = Decoder(m)
        adapt(model, m, rank)
        tokens = torch.zeros(BATCH, SEQUENCE, dtype=torch.long)
        with FlopCounterMode(display=False) as ahead:
            model(tokens)
        with FlopCounterMode(display=False) as both:
            model(tokens).sum().backward()
    rows = counted_with_adapters(m, Layout(1, sequence=SEQUENCE, lora_rank=rank), "full")
    assert {row.name for row in rows} > {ADAPTERS, "head"}
    forward = sum(float(row.forward) for row in rows) * BATCH * SEQUENCE
    total = sum(float(row.total) for row in rows) * BATCH * SEQUENCE
    assert forward == pytest.approx(ahead.get_total_flops(), rel=1e-9)
    assert total == pytest.approx(both.get_total_flops(), rel=1e-9)
