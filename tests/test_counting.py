"""Parameters, FLOPs and times against published counts, and the laws between them."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roofline.counting import (
    Flops,
    Parameters,
    Shape,
    active_parameters,
    attention_crossover,
    chips_needed,
    flops,
    kv_cache_bytes,
    model_flops,
    parameters,
    projection_crossover,
    run,
    tokens_per_gpu,
    utilization,
)
from roofline.presets import preset, presets, workload

sizes = st.integers(1, 64)
shapes = st.builds(
    Shape,
    layers=sizes,
    d_model=sizes,
    d_ff=sizes,
    heads=sizes,
    kv_heads=sizes,
    head_dim=sizes,
    vocab=sizes,
    matrices=st.sampled_from([2, 3]),
    experts=st.integers(4, 16),
    experts_per_token=st.integers(1, 4),
    shared_experts=st.integers(0, 2),
    tied=st.booleans(),
)


@pytest.mark.parametrize(
    ("name", "counted"),
    [
        ("llama-2-7b", 6_738_415_616),
        ("llama-2-13b", 13_015_864_320),
        ("llama-2-70b", 68_976_648_192),
        ("llama-3-8b", 8_030_261_248),
        ("llama-3-70b", 70_553_706_496),
        ("llama-3-405b", 405_853_388_800),
        ("mistral-7b", 7_241_732_096),
        ("gemma-2-9b", 8_324_201_984 + 917_962_752),
        ("gemma-2-27b", 26_047_480_320 + 1_180_237_824),
        ("mixtral-8x7b", 46_702_792_704 - 32 * 8 * 4096),
    ],
)
def test_parameters_to_the_last_one(name: str, counted: int) -> None:
    """Tensor counts of the published checkpoints; of Gemma 2, arXiv:2408.00118 table 2 (embedding
    and other parameters). Mixtral without its routers.
    """
    assert parameters(preset(name).shape).total == counted


@pytest.mark.parametrize("name", presets())
def test_parameters_of_every_preset(name: str) -> None:
    """The parameter count its publisher gives."""
    row = preset(name)
    assert parameters(row.shape).total == pytest.approx(row.parameters, rel=row.off_by)
    assert row.source
    assert workload(name, 1e6).layers == row.shape.layers


@pytest.mark.parametrize(
    ("name", "billions", "printed"),
    [("mixtral-8x7b", 12.9, 0.1), ("mixtral-8x22b", 39, 0.5), ("qwen3-235b-a22b", 22, 0.5)],
)
def test_active_parameters(name: str, billions: float, printed: float) -> None:
    """arXiv:2401.04088 table 2; mistral.ai/news/mixtral-8x22b; arXiv:2505.09388 table 2."""
    counted = active_parameters(preset(name).shape).total / 1e9
    assert counted == pytest.approx(billions, abs=printed)


@pytest.mark.parametrize(("name", "billions"), [("gpt-oss-120b", 5.13), ("gpt-oss-20b", 3.61)])
def test_active_parameters_without_the_embedding(name: str, billions: float) -> None:
    """arXiv:2508.10925 table 1: unembedding counted, embedding not."""
    shape = preset(name).shape
    counted = active_parameters(shape).total - shape.vocab * shape.d_model
    assert counted / 1e9 == pytest.approx(billions, rel=0.005)


def test_llama_2_13b_parts() -> None:
    """How to Scale Your Model, "Training", question 1."""
    parts = parameters(preset("llama-2-13b").shape)
    assert parts.mlp == pytest.approx(8.5e9, rel=0.01)
    assert parts.attention == pytest.approx(4.2e9, rel=0.01)
    assert parts.vocabulary == 2 * 32000 * 5120
    assert parts.matmuls == pytest.approx(13e9, rel=0.005)


def test_parameters_are_the_matrices_of_a_model() -> None:
    """Counted array by array."""
    shape = Shape(3, 8, 20, 4, 2, 5, 11, experts=6, experts_per_token=2, shared_experts=1)
    arrays = [np.empty((11, 8)), np.empty((8, 11)), np.empty(8)]
    for _ in range(3):
        arrays += [np.empty(8), np.empty(8)]
        arrays += [np.empty((8, 4 * 5)), np.empty((4 * 5, 8))]
        arrays += [np.empty((8, 2 * 5)), np.empty((8, 2 * 5))]
        arrays += [np.empty((20, 8)) for _ in range((6 + 1) * 3)]
    assert parameters(shape).total == sum(array.size for array in arrays)


def test_dense_layers_among_experts() -> None:
    """DeepSeek-V3, arXiv:2412.19437 section 4.2: 58 layers of 256 + 1 experts, 3 dense."""
    parts = parameters(preset("deepseek-v3").shape)
    assert parts.mlp == 3 * 7168 * (58 * 257 * 2048 + 3 * 18432)


def test_attention_share_of_gpt_3_and_mt_nlg() -> None:
    """Korthikanti et al., section 5: recomputing attention costs 2.7 % and 1.6 % of the forward
    FLOPs for GPT-3 (V = 51200) and MT-NLG.
    """
    gpt3 = dataclasses.replace(preset("gpt-3-175b").shape, vocab=51200)
    mt_nlg = Shape(105, 20480, 4 * 20480, 128, 128, 160, 51200, matrices=2)
    for shape, printed in ((gpt3, 0.027), (mt_nlg, 0.016)):
        forward = flops(shape, 2048, 2048, phase="forward")
        assert forward.attention / forward.total == pytest.approx(printed, abs=0.0005)


def test_megatron_flops() -> None:
    """Narayanan et al., arXiv:2104.04473, equation 3 without its recomputation (72 for 96):
    72 B s L h² (1 + s/6h + V/12 L h).
    """
    b, s, layers, h, v = 4, 2048, 96, 12288, 51200
    shape = Shape(layers, h, 4 * h, 96, 96, 128, v, matrices=2)
    wanted = 72 * b * s * layers * h**2 * (1 + s / (6 * h) + v / (12 * layers * h))
    assert flops(shape, b * s, s).total == pytest.approx(wanted)


@given(shapes)
def test_parts_sum_to_the_total(shape: Shape) -> None:
    """Nothing is counted twice or left out."""
    for result in (parameters(shape), flops(shape, 100, 10)):
        parts = [getattr(result, field.name) for field in dataclasses.fields(result)]
        assert result.total == pytest.approx(sum(parts))


@given(shapes)
def test_six_flops_per_parameter_and_token(shape: Shape) -> None:
    """Without attention, norms and the lookup, a step is 6 Ψ T."""
    counted, active = flops(shape, 1000, 1), active_parameters(shape)
    rest = active.matmuls - active.vocabulary + shape.vocab * shape.d_model
    assert counted.total - counted.attention == pytest.approx(model_flops(rest, 1000))


@given(shapes)
def test_a_token_meets_no_more_than_all(shape: Shape) -> None:
    """Active parameters are some of the parameters."""
    assert active_parameters(shape).total <= parameters(shape).total


@given(shapes)
def test_a_step_is_three_forward_passes(shape: Shape) -> None:
    """Backward is twice forward, in every part."""
    step = flops(shape, 64, 16)
    forward = flops(shape, 64, 16, phase="forward")
    assert step.total == pytest.approx(3 * forward.total)
    causal = flops(shape, 64, 16, causal=True)
    assert causal.attention == pytest.approx(step.attention / 2)


def test_the_mlp_is_that_of_the_workload() -> None:
    """Counting and the strategies mean the same block."""
    name = "mixtral-8x22b"
    mixtral, work = preset(name).shape, workload(name, 5e5)
    assert flops(mixtral, 5e5, 1, phase="forward").mlp == pytest.approx(
        work.forward_flops * work.layers
    )
    assert parameters(mixtral).mlp == work.parameters * work.layers


@given(shapes)
def test_attention_crosses_where_it_says(shape: Shape) -> None:
    """At the crossover both sides are equal."""
    length = attention_crossover(shape)
    at = flops(shape, 1, length)
    assert at.attention == pytest.approx(at.layers)
    length = projection_crossover(shape)
    at = flops(shape, 1, length)
    assert at.attention == pytest.approx(at.projections)


@pytest.mark.parametrize("count", [lambda s: parameters(s), lambda s: flops(s, 4e6, 4096)])
def test_an_array_is_its_points(count) -> None:
    """One code path."""
    widths = np.array([1024, 4096, 8192])
    table: Parameters | Flops = count(Shape(32, widths, 4 * widths, 32, 8, 128, 32000))
    for k, width in enumerate(widths.tolist()):
        one = count(Shape(32, width, 4 * width, 32, 8, 128, 32000))
        assert np.asarray(table.total)[k] == one.total


def test_integers_do_not_wrap() -> None:
    """6 x 405e9 x 16e6 tokens is beyond 63 bits."""
    tokens = np.array([16_000_000])
    assert model_flops(405_000_000_000, tokens)[0] == pytest.approx(3.888e19)
    assert kv_cache_bytes(preset("llama-3-405b").shape, tokens)[0] > 0


def test_a_run() -> None:
    """How to Scale Your Model, "Training LLaMA 3 on TPUs": 44 days on a v5p pod at 40 %, 435 years
    on one chip.
    """
    pod = run(70e9, 15e12, gpus=8960, rate=459e12, mfu=0.4)
    assert pod.days == pytest.approx(44, abs=0.5)
    assert pod.gpu_hours == pytest.approx(pod.days * 24 * 8960)
    assert run(70e9, 15e12, gpus=1, rate=459e12).years == pytest.approx(435, abs=0.5)
    found = utilization(70e9, 15e12, gpu_seconds=pod.seconds * 8960, rate=459e12)
    assert found == pytest.approx(0.4)


def test_recomputing_everything_is_a_third_more() -> None:
    """8 Ψ T for 6 Ψ T."""
    assert model_flops(1, 1, recompute=1) / model_flops(1, 1) == pytest.approx(4 / 3)


def test_small_things() -> None:
    """Rounding up; a batch; LLaMA 2-13B's cache of 8192 tokens, 6.25 GiB."""
    assert chips_needed(700e9, 80e9) == 9
    assert tokens_per_gpu(15360, 4096) == 62_914_560
    assert kv_cache_bytes(preset("llama-2-13b").shape, 8192) == 6.25 * 2**30


def test_a_misspelt_preset_names_the_nearest() -> None:
    """People mistype."""
    with pytest.raises(ValueError, match=r"'lama-3-70b'.*llama-3-70b"):
        preset("lama-3-70b")
    with pytest.raises(ValueError, match="phase"):
        model_flops(1, 1, phase="backwards")
