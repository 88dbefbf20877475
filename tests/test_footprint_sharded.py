"""Memory of FSDP2, of tensor parallelism and of both, against PyTorch's own tracker.

Rank 0 of a world of GPUs that are not there: a backend that moves nothing, tensors without storage.
The tracker is private API (``torch.distributed._tools``); where it is missing, nothing is tested.
"""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace

import pytest

from roofline.dims import Dims
from roofline.footprint import footprint
from roofline.layout import Layout
from roofline.recipes import Recipe, recipe
from tests.test_footprint_torch import BATCH, LLAMA, SEQUENCE, Model, tracked

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")
tracker = pytest.importorskip("torch.distributed._tools.mem_tracker")
sharded = pytest.importorskip("torch.distributed._tools.fsdp2_mem_tracker")
fake = pytest.importorskip("torch._subclasses.fake_tensor")
store = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
fsdp = pytest.importorskip("torch.distributed.fsdp")
tensor = pytest.importorskip("torch.distributed.tensor")
parallel = pytest.importorskip("torch.distributed.tensor.parallel")

WORLD = 8
MODEL = replace(LLAMA, layers=12)
TORCHTITAN = recipe("fsdp-dtensor")
PURE = replace(recipe("pure-bf16"), dtensor=1)


@pytest.fixture(autouse=True)
def _world() -> Iterator[None]:
    dist.init_process_group("fake", rank=0, world_size=WORLD, store=store.FakeStore())
    before = torch.get_default_dtype()
    yield
    torch.set_default_dtype(before)
    dist.destroy_process_group()


def cut(model, mesh) -> None:
    """Tensor parallelism with sequence parallelism, as torchtitan has it."""
    shard, whole = tensor.Shard(1), tensor.Replicate()
    column = parallel.ColwiseParallel(input_layouts=shard)
    row = parallel.RowwiseParallel(output_layouts=shard)
    norm = parallel.SequenceParallel()
    lookup = parallel.RowwiseParallel(input_layouts=whole, output_layouts=shard)
    logits = parallel.ColwiseParallel(
        input_layouts=shard, output_layouts=tensor.Shard(-1), use_local_output=False
    )
    parallel.parallelize_module(model, mesh, {"embedding": lookup, "norm": norm, "head": logits})
    for block in model.stack.blocks:
        plan = {"norms.0": norm, "norms.1": norm, "qkv": column, "up": column}
        parallel.parallelize_module(block, mesh, plan | {"output": row, "down": row})
        here = block.m
        block.m = replace(
            here, heads=here.heads // mesh.size(), kv_heads=here.kv_heads // mesh.size()
        )


def peak(tp: int, zero_3: bool):
    """The fullest moment of two micro-batches, the second beside gradients and AdamW's states."""
    torch.set_default_dtype(torch.float32 if zero_3 else torch.bfloat16)
    mesh = dist.device_mesh.init_device_mesh("cpu", (WORLD // tp, tp), mesh_dim_names=("dp", "tp"))
    replicas, slices = mesh["dp"], mesh["tp"]
    with torch.device("meta"):
        model = Model(MODEL)
        if tp > 1:
            cut(model, slices)
        if zero_3:
            policy = fsdp.MixedPrecisionPolicy(torch.bfloat16, torch.float32)
            for part in (*model.stack.blocks, model):
                fsdp.fully_shard(part, mesh=replicas, mp_policy=policy)
    with fake.FakeTensorMode(allow_non_fake_inputs=True):
        model.to_empty(device="cpu")
        adam = torch.optim.AdamW(model.parameters(), foreach=False)
        tokens = torch.zeros(BATCH, SEQUENCE, dtype=torch.long)
        if zero_3:
            memory = sharded.FSDPMemTracker(model, adam)
            memory.track_inputs((tokens,))
        else:
            memory = tracker.MemTracker()
            memory.track_external(model, adam)
        with memory:
            passes(model, tokens, tp)
            adam.step()
            memory.reset_mod_stats()
            passes(model, tokens, tp)
            return memory.get_tracker_snapshot("peak")


def passes(model, tokens, tp: int) -> None:
    """Forward and backward of a micro-batch."""
    with parallel.loss_parallel() if tp > 1 else nullcontext():
        logits = model(tokens)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())
        del logits
        loss.backward()


@pytest.mark.parametrize(
    ("tp", "zero_3", "kept"),
    [(1, True, recipe("fsdp")), (2, False, PURE), (2, True, TORCHTITAN)],
    ids=["FSDP2", "TP", "FSDP2 and TP"],
)
def test_the_tracker_agrees(tp: int, zero_3: bool, kept: Recipe) -> None:
    """States to a part in a thousand, activations and the whole within 5 %."""
    found = peak(tp, zero_3)
    gpus = WORLD if zero_3 else tp
    layout = Layout(
        gpus, tp=tp, micro_batch=BATCH, batch=2 * BATCH * gpus // tp, sequence=SEQUENCE,
        sequence_parallel=float(tp > 1), zero=3 if zero_3 else 0, fused=0, gradient_bytes=4.0,
    )  # fmt: skip
    ours = footprint(Dims.of(MODEL), layout, kept)
    weights = tracked(found, ".SHARDED_PARAM" if zero_3 else ".PARAM")
    assert float(ours.weights) == pytest.approx(weights, rel=1e-3)
    assert float(ours.optimizer) == pytest.approx(tracked(found, "OPT"), rel=1e-3)
    at_work = tracked(found, "ACT") + tracked(found, "TEMP")
    assert float(ours.activations + ours.exchanged) == pytest.approx(at_work, rel=0.05)
    assert float(ours.allocated) == pytest.approx(tracked(found, "Total"), rel=0.05)
