"""One accelerator: textbook numbers, and what holds for every kernel on every chip."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardware_profiles import accelerator, accelerators
from roofline.arithmetic import Kernel, attention, dot, einsum_flops, elementwise, fuse, matmul
from roofline.bound import crossings
from roofline.chip import (
    Level,
    attainable,
    binding,
    bound,
    critical_batch,
    critical_prompt,
    latency_floor,
    levels,
)
from roofline.machine import Ideal, Tier
from roofline.occupancy import divergence, resident_warps, sms_occupied, waves
from roofline.sharded_matmul import add_after, gather_first

HBM = Level("HBM", 3.35e12)
H100 = 990e12

positive = st.floats(1e-3, 1e6)
sizes = st.integers(1, 10**5)
rates = st.floats(1e12, 1e16)
widths = st.sampled_from([0.5, 1.0, 2.0, 4.0])
chips = st.lists(st.builds(Level, st.sampled_from("abc"), st.floats(1e9, 1e14)), max_size=4)


def test_ridge_points() -> None:
    """How to Scale Your Model, "GPUs", quiz 1, question 3: 295 on an H100, 281 on a B200."""
    assert HBM.ridge(H100) == pytest.approx(295.5, abs=0.05)
    assert Level("HBM", 8e12).ridge(2250e12) == pytest.approx(281.25)


@pytest.mark.parametrize(
    ("tokens", "limit", "seconds"), [(64, "HBM", 8.6e-6), (512, "math", 15e-6)]
)
def test_small_batches_wait_for_memory(tokens: int, limit: str, seconds: float) -> None:
    """The same quiz, question 4: bf16 [B, 4096] x [4096, 8192] on a B200, 8.6 and 15 µs."""
    found = bound(matmul(tokens, 4096, 8192), 2300e12, [Level("HBM", 8e12)])
    assert found.t_lower == pytest.approx(seconds, rel=0.01)
    assert binding(found) == limit


def test_int8_weights_under_bf16_math_halve_the_critical_batch() -> None:
    """How to Scale Your Model, "Rooflines", question 2: 120 tokens on a TPU v5e."""
    assert critical_batch(197e12, 8.2e11, w_bytes=1) == pytest.approx(120.1, abs=0.05)
    assert critical_batch(197e12, 8.2e11) == pytest.approx(240.2, abs=0.05)


def test_experts_scale_the_critical_batch() -> None:
    """How to Scale Your Model, "Transformers", question 8: 3840 tokens, E = 256, k = 8, int8."""
    found = critical_batch(240, 1, w_bytes=1, experts=256, experts_per_token=8)
    assert found == pytest.approx(3840)


def test_narrow_matrices_are_never_compute_bound() -> None:
    found = critical_batch(H100, 3.35e12, d=np.array([128, 600, 4096]), f=600)
    np.testing.assert_array_equal(np.isinf(found), [True, False, False])
    assert not bound(matmul(1e12, 128, 600), H100, [HBM]).compute_bound


def test_attention_intensity() -> None:
    """How to Scale Your Model, "Transformers", question 4: T G/(G+1) in prefill, nearly G after."""
    assert attention(4096, 4096, heads=8).intensity == pytest.approx(4096 * 8 / 9)
    assert attention(1, 1e9, heads=64, kv_heads=8).intensity == pytest.approx(8, rel=1e-6)
    assert critical_prompt(240) == 480


@given(rows=st.integers(1, 12), columns=st.integers(1, 12))
def test_causal_attention_counts_pairs(rows: int, columns: int) -> None:
    """Query i of T, aligned at the end, sees S - T + i + 1 keys: counted one by one."""
    keys = rows + columns
    pairs = sum(keys - rows + i + 1 for i in range(rows))
    assert attention(rows, keys, head_dim=1, causal=True).flops == 4 * pairs


@pytest.mark.parametrize("exact", [True, False])
def test_matmul_flops_are_counted(exact: bool) -> None:
    """Multiplications and additions of the schoolbook algorithm, one by one."""
    b, d, f = 3, 5, 4
    done = 0
    for _ in itertools.product(range(b), range(f)):
        done += d + (d - 1 if exact else d)
    assert matmul(b, d, f, exact=exact).flops == done


def test_tiles_are_counted() -> None:
    """Elements that blocks of 2 x 3 outputs load for [5, 7] x [7, 8], block by block."""
    loaded = 0
    for row, column in itertools.product(range(0, 5, 2), range(0, 8, 3)):
        loaded += 7 * (min(2, 5 - row) + min(3, 8 - column))
    kernel = matmul(5, 7, 8, x_bytes=1, w_bytes=1, o_bytes=0, tiles={"L2": (2, 3)})
    assert kernel.moved("L2") == loaded
    assert kernel.moved("HBM") == 5 * 7 + 7 * 8


@given(subscripts=st.sampled_from(["bd,df->bf", "ijkl,ijmno->klmno", "a,b->ab", "ab,ab->"]))
def test_einsum_flops_are_counted(subscripts: str) -> None:
    """Against numpy's own count of an unoptimised contraction."""
    given_sizes = {letter: 2 + i for i, letter in enumerate("abdfijklmno")}
    operands = subscripts.split("->")[0].split(",")
    arrays = [np.empty([given_sizes[letter] for letter in operand]) for operand in operands]
    report = np.einsum_path(subscripts, *arrays, optimize=False)[1]
    counted = float(report.split("Naive FLOP count:")[1].split()[0])
    assert einsum_flops(subscripts, given_sizes) == pytest.approx(counted, rel=1e-3)


def test_elementwise_intensity() -> None:
    """How to Scale Your Model, "GPUs", quiz 1, question 7: 1/12, so 2.8e11 additions a second."""
    add = elementwise(2**30)
    assert add.intensity == pytest.approx(1 / 12)
    assert bound(add, 33.5e12, [HBM]).t_lower == pytest.approx(3.846e-3, rel=1e-4)
    assert dot(4096).intensity == pytest.approx(0.5, abs=2e-4)


def test_fusing_a_chain_leaves_one_read_and_one_write() -> None:
    """relu(a·x + b) over n elements in three kernels: 8 passes over memory become 4."""
    n = 1e6
    chain = [elementwise(n), elementwise(n), elementwise(n, reads=1)]
    fused = fuse(chain, passed=2 * 4 * n)
    assert fused.before.nbytes == 8 * 4 * n
    assert fused.after.nbytes == 4 * 4 * n
    assert fused.bytes_saved == 4 * 4 * n
    assert fused.after.intensity == 2 * fused.before.intensity
    with pytest.raises(ValueError, match="passed"):
        fuse(chain, passed=1e12)


def test_levels_of_an_h100() -> None:
    """132 SMs at 1.98 GHz: 128 bytes of shared memory a cycle, CUDA Programming Guide."""
    found = {level.name: level for level in levels(accelerator("scaling-book-h100"))}
    assert list(found) == ["registers", "shared memory", "L2", "HBM"]
    assert found["shared memory"].bandwidth == pytest.approx(33.45e12, rel=1e-3)
    assert found["L2"].bandwidth == 5.5e12


@pytest.mark.parametrize("name", accelerators())
def test_levels_widen_inwards(name: str) -> None:
    bandwidths = [level.bandwidth for level in levels(accelerator(name))]
    assert bandwidths == sorted(bandwidths, reverse=True)


def test_latency_floor_is_where_latency_equals_transfer() -> None:
    """How to Scale Your Model, "Sharded Matrices": 45 kB for a TPU v5e link of 1 µs."""
    floor = latency_floor(45e9, 1e-6)
    assert floor == pytest.approx(45e3)
    found = bound(Kernel("copy", 0.0, floor), H100, [Level("ICI", 45e9)], latency=1e-6)
    assert found.t_comms == pytest.approx(2e-6)


@given(b=sizes, d=sizes, f=sizes, rate=rates, memories=chips)
def test_time_is_at_least_both_sides(
    b: int, d: int, f: int, rate: float, memories: Sequence[Level]
) -> None:
    kernel = matmul(b, d, f)
    found = bound(kernel, rate, memories)
    assert found.t_lower >= kernel.flops / rate
    assert all(found.t_lower >= kernel.nbytes / level.bandwidth for level in memories)
    assert found.t_lower <= found.t_upper <= 2 * found.t_lower
    above = found.threshold.actual >= found.threshold.needed
    assert above == found.compute_bound or found.t_math == pytest.approx(found.t_comms)


@given(b=sizes, d=sizes, f=sizes, rate=rates, bandwidth=st.floats(1e9, 1e14), more=st.floats(1, 10))
def test_faster_memory_never_hurts(
    b: int, d: int, f: int, rate: float, bandwidth: float, more: float
) -> None:
    slow, fast = (
        bound(matmul(b, d, f), rate, [Level("m", w)]) for w in (bandwidth, more * bandwidth)
    )
    assert fast.t_lower <= slow.t_lower
    assert fast.threshold.needed <= slow.threshold.needed


@given(
    d=sizes,
    f=sizes,
    rate=rates,
    bandwidth=st.floats(1e11, 1e14),
    x=widths,
    w=widths,
    o=widths,
    k=st.integers(1, 8),
    spare=st.integers(0, 100),
)
def test_times_cross_at_the_critical_batch(
    d: int, f: int, rate: float, bandwidth: float, x: float, w: float, o: float, k: int, spare: int
) -> None:
    options = {"x_bytes": x, "w_bytes": w, "o_bytes": o}
    options |= {"experts": k + spare, "experts_per_token": k}
    batch = critical_batch(rate, bandwidth, d, f, **options)
    memory = [Level("m", bandwidth)]
    if np.isinf(batch):
        assert not bound(matmul(1e9, d, f, **options), rate, memory).compute_bound
    else:
        at = bound(matmul(batch, d, f, **options), rate, memory)
        assert at.t_math == pytest.approx(at.t_comms, rel=1e-6)


def test_a_sweep_crosses_where_the_formula_says() -> None:
    tokens = np.geomspace(1, 1e5, 401)
    sweep = bound(matmul(tokens, 4096, 8192), 2250e12, [Level("HBM", 8e12)])
    assert crossings(tokens, sweep) == pytest.approx([313.5], rel=1e-3)


@given(st.lists(st.tuples(sizes, sizes, sizes), min_size=1, max_size=5))
def test_an_array_is_its_points(shapes: list[tuple[int, int, int]]) -> None:
    memories = [Level("L2", 5.5e12), HBM]
    b, d, f = np.array(shapes, float).T
    options = {"tiles": {"L2": (128, 256)}}
    at_once = bound(matmul(b, d, f, **options), H100, memories)
    one_by_one = [bound(matmul(*s, **options), H100, memories) for s in shapes]
    np.testing.assert_allclose(at_once.t_lower, [point.t_lower for point in one_by_one])
    assert list(binding(at_once)) == [str(binding(point)) for point in one_by_one]
    batches = critical_batch(H100, 3.35e12, d, f)
    np.testing.assert_allclose(batches, [critical_batch(H100, 3.35e12, *s[1:]) for s in shapes])


@given(intensity=st.floats(1e-3, 1e6))
def test_attainable_is_flops_over_time(intensity: float) -> None:
    memories = [Level("L2", 5.5e12), HBM]
    for roof, level in zip(attainable(intensity, H100, memories), memories, strict=True):
        took = bound(Kernel("k", intensity, 1.0), H100, [level]).t_lower
        assert roof.flops == pytest.approx(intensity / took)
        assert attainable(roof.ridge, H100, [level])[0].flops == pytest.approx(H100)


def test_too_many_experts_are_refused() -> None:
    with pytest.raises(ValueError, match="experts_per_token: 8 of 4"):
        matmul(1, 1, 1, experts=4, experts_per_token=8)
    with pytest.raises(ValueError, match="experts_per_token"):
        critical_batch(1, 1, experts=4, experts_per_token=8)


@pytest.mark.parametrize("subscripts", ["bd,df", "bd->b", "a,b,c->abc"])
def test_other_einsums_are_refused(subscripts: str) -> None:
    with pytest.raises(ValueError, match="subscripts"):
        einsum_flops(subscripts, {})


def test_an_index_needs_a_size() -> None:
    with pytest.raises(ValueError, match="none is given for d, f"):
        einsum_flops("bd,df->bf", {"b": 1})


def test_occupancy_of_an_h100() -> None:
    """How to Scale Your Model, "GPUs": 8 warps of 256 registers; 1024 lanes are 8 SMs."""
    assert resident_warps(256) == 8
    assert sms_occupied(1024) == 8
    assert waves(np.array([0, 1, 132, 133]), 132).count.tolist() == [0, 1, 1, 2]


@given(st.lists(st.tuples(st.integers(0, 8), positive), min_size=1, max_size=4))
def test_divergent_paths_add_up(paths: list[tuple[int, float]]) -> None:
    """A warp replayed instruction by instruction: every taken path, its lanes alone active."""
    lanes, times = zip(*paths, strict=True)
    found = divergence(lanes, times)
    taken = [(n, t) for n, t in paths if n]
    assert found.seconds == pytest.approx(sum(t for _, t in taken))
    if taken:
        active = sum(n * t for n, t in taken)
        assert found.utilisation == pytest.approx(active / (32 * found.seconds))


@pytest.mark.parametrize(("taken", "times"), [([33], [1.0]), ([1, 2], [1.0])])
def test_impossible_branches_are_refused(taken: list[float], times: list[float]) -> None:
    with pytest.raises(ValueError, match=r"taken|seconds"):
        divergence(taken, times)


def test_two_chips_add_partial_sums() -> None:
    """How to Scale Your Model, "Rooflines": two v5e chips hide the exchange from D = 8755 on."""
    v5e = Ideal(1.97e14, (Tier(2, 4.5e10),))
    found = add_after(1024, 8755.56, 512, v5e, 2)
    assert found.t_math == pytest.approx(found.t_comms, rel=1e-5)
    assert add_after(1024, 8192, 512, v5e, 2, scatter=True).threshold.needed == pytest.approx(
        4377.8, abs=0.05
    )


@given(b=sizes, d=sizes, f=sizes, degree=st.integers(1, 64), width=widths)
def test_sharded_matmuls_agree_with_their_thresholds(
    b: int, d: int, f: int, degree: int, width: float
) -> None:
    machine = Ideal(H100, (Tier(64, 450e9),))
    for strategy in (gather_first, add_after):
        found = strategy(b, d, f, machine, degree, element_bytes=width)
        if degree == 1:
            assert found.t_comms == 0
        else:
            assert found.t_math / found.t_comms == pytest.approx(found.threshold.headroom)
