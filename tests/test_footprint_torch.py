"""Memory of small models against PyTorch's own tracker, on tensors without storage."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from roofline.dims import Dims
from roofline.footprint import footprint
from roofline.layout import FLASH, RECOMPUTE, Layout
from roofline.model import Transformer
from roofline.recipes import recipe

torch = pytest.importorskip("torch")
nn, functional = torch.nn, torch.nn.functional
tracker = pytest.importorskip("torch.distributed._tools.mem_tracker")
fake = pytest.importorskip("torch._subclasses.fake_tensor")
checkpoint = torch.utils.checkpoint.checkpoint

BATCH, SEQUENCE = 2, 1024
LLAMA = Transformer("small llama", 4, 1024, 2816, 16, 4, 64, 4096)
GPT = Transformer(
    "small gpt", 4, 1024, 4096, 16, 16, 64, 4096, gated=False, norm="layernorm", rope=False
)


@pytest.fixture(autouse=True)
def _bfloat16() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    yield
    torch.set_default_dtype(before)


class Block(nn.Module):
    """Attention and MLP, as PyTorch runs them kernel by kernel; no rotary embedding."""

    def __init__(self, m: Transformer, unfused: bool) -> None:
        super().__init__()
        self.m, self.unfused = m, unfused
        norm = nn.LayerNorm if m.norm == "layernorm" else nn.RMSNorm
        self.norms = nn.ModuleList(norm(m.d_model) for _ in range(2))
        wide = (m.heads + 2 * m.kv_heads) * m.head_dim
        self.qkv = nn.Linear(m.d_model, wide, bias=False)
        self.output = nn.Linear(m.heads * m.head_dim, m.d_model, bias=False)
        self.up = nn.Linear(m.d_model, m.d_ff * (2 if m.gated else 1), bias=False)
        self.down = nn.Linear(m.d_ff, m.d_model, bias=False)

    def forward(self, x):
        m, heads = self.m, self.qkv(self.norms[0](x))
        b, s, _ = heads.shape  # x is shorter where a sequence is split
        heads = heads.view(b, s, -1, m.head_dim).transpose(1, 2)
        q, k, v = heads.split([m.heads, m.kv_heads, m.kv_heads], 1)
        if self.unfused:
            z = torch.softmax(q @ k.transpose(-1, -2), -1) @ v
        else:
            gqa = m.kv_heads != m.heads
            z = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=gqa)
        x = x + self.output(z.transpose(1, 2).reshape(b, s, -1))
        y = self.up(self.norms[1](x))
        if m.gated:
            gate, y = y.chunk(2, -1)
            y = functional.silu(gate) * y
        else:
            y = functional.gelu(y)
        return x + self.down(y)


class Stack(nn.Module):
    """Blocks alone, each behind a checkpoint where wanted."""

    def __init__(self, m: Transformer, layers: int, unfused: bool, again: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(m, unfused) for _ in range(layers))
        self.again = again

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.again else block(x)
        return x


class Model(nn.Module):
    """Embedding, blocks, norm and head."""

    def __init__(self, m: Transformer) -> None:
        super().__init__()
        self.embedding = nn.Embedding(m.vocab, m.d_model)
        self.stack = Stack(m, m.layers, False, False)
        self.norm = nn.RMSNorm(m.d_model)
        self.head = nn.Linear(m.d_model, m.vocab, bias=False)

    def forward(self, tokens):
        return self.head(self.norm(self.stack(self.embedding(tokens))))


def tracked(snapshot, kind: str) -> float:
    """Bytes of one kind on the one device."""
    return float(
        sum(
            held for device in snapshot.values() for key, held in device.items() if kind in str(key)
        )
    )


def activations(m: Transformer, layers: int, unfused: bool, again: bool) -> float:
    """What autograd holds between the passes."""
    with fake.FakeTensorMode():
        stack = Stack(m, layers, unfused, again)
        x = torch.zeros(BATCH, SEQUENCE, m.d_model, requires_grad=True)
        with tracker.MemTracker() as memory:
            memory.track_external(stack, x)
            kept = stack(x)
            snapshot = memory.get_tracker_snapshot("current")
            del kept
    return tracked(snapshot, "ACT")


@pytest.mark.parametrize("m", [GPT, LLAMA], ids=lambda m: m.name)
@pytest.mark.parametrize("how", ["flash", "unfused", "checkpointed"])
def test_activations_of_a_block_stack(m: Transformer, how: str) -> None:
    """Four layers more keep four times what one is said to keep."""
    unfused, again = how == "unfused", how == "checkpointed"
    m = replace(m, kv_heads=m.heads) if unfused else m
    counted = (activations(m, 6, unfused, again) - activations(m, 2, unfused, again)) / 4
    layout = Layout(
        1,
        batch=BATCH,
        micro_batch=BATCH,
        sequence=SEQUENCE,
        sequence_parallel=0,
        attention=FLASH["unfused" if unfused else "flash"],
        recompute=RECOMPUTE["block" if again else "none"],
        fused=0,
    )
    found = footprint(Dims.of(m), layout)
    ours = found.activations - found.logits - found.working
    assert float(ours) / m.layers == pytest.approx(counted, rel=0.001)


def test_states_of_a_model() -> None:
    """Weights, gradients and AdamW in bfloat16, after a step."""
    with fake.FakeTensorMode():
        model = Model(LLAMA)
        adam = torch.optim.AdamW(model.parameters(), foreach=False)
        tokens = torch.zeros(BATCH, SEQUENCE, dtype=torch.long)
        with tracker.MemTracker() as memory:
            memory.track_external(model, adam)
            logits = model(tokens)
            functional.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten()).backward()
            adam.step()
            snapshot = memory.get_tracker_snapshot("current")
    found = footprint(Dims.of(LLAMA), Layout(1, batch=1, zero=0), recipe("pure-bf16"))
    for kind, part in (("PARAM", "weights"), ("GRAD", "gradients"), ("OPT", "optimizer")):
        assert float(getattr(found, part)) == pytest.approx(tracked(snapshot, kind), rel=0.001)
