"""Model states and what ZeRO moves, against the papers and against the strategies."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardware_profiles import cluster
from roofline.counting import Shape, parameters
from roofline.machine import Ideal, Tier
from roofline.memory import (
    CONVENTIONS,
    bytes_moved,
    convention,
    fits,
    gather_buffer,
    largest_model,
    model_states,
    stage_parameters,
)
from roofline.presets import preset
from roofline.strategies import data_parallel
from roofline.workload import Workload

stages = st.integers(0, 3)
degrees = st.sampled_from([1, 2, 4, 8, 64, 1000])
conventions = st.sampled_from(list(CONVENTIONS.values()))


@pytest.mark.parametrize(("stage", "gigabytes"), [(0, 120), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_zero_figure_1(stage: int, gigabytes: float) -> None:
    """arXiv:1910.02054 figure 1: 7.5 B parameters, 64 GPUs, 2 + 2 + 12 bytes."""
    assert model_states(7.5e9, stage, 64).total / 1e9 == pytest.approx(gigabytes, abs=0.05)


def test_zero_table_1() -> None:
    """arXiv:1910.02054 table 1, 7.5 B parameters: all stages and degrees in one call."""
    printed = [
        [52.5, 35.6, 31.4, 30.4, 30.1],
        [41.3, 21.6, 16.6, 15.4, 15.1],
        [30, 7.5, 1.88, 0.47, 0.12],
    ]
    table = model_states(7.5e9, np.array([[1], [2], [3]]), np.array([4, 16, 64, 256, 1024])).total
    assert np.abs(table / 1e9 - printed).max() < 0.051


@pytest.mark.parametrize(
    ("name", "total"), [("book", 10), ("zero", 16), ("fp32", 16), ("fp32-gradients", 18)]
)
def test_conventions(name: str, total: float) -> None:
    """How to Scale Your Model, "Training"; ZeRO section 3; CS336 lecture 2; ml-engineering,
    "Anatomy of model's memory usage".
    """
    assert convention(name).total == total
    with pytest.raises(ValueError, match=f"convention.*{name}"):
        convention(name + "x")


@given(conventions, degrees, degrees, st.floats(0, 1))
def test_a_higher_stage_never_needs_more(
    widths: tuple[float, ...], replicas: int, experts: int, share: float
) -> None:
    """ZeRO only ever shards more."""
    totals = [
        model_states(
            1e9,
            stage,
            replicas,
            bytes_per_parameter=widths,
            expert_parallel=experts,
            expert_share=share,
        ).total
        for stage in range(4)
    ]
    assert all(more >= less * (1 - 1e-12) for more, less in pairwise(totals))


@given(stages, conventions)
def test_alone_every_stage_is_plain(stage: int, widths: tuple[float, ...]) -> None:
    """One replica has nobody to share with."""
    plain = model_states(7e9, 0, 1, bytes_per_parameter=widths)
    assert model_states(7e9, stage, 1, bytes_per_parameter=widths) == plain


@given(stages, degrees, degrees, degrees)
def test_model_parallelism_divides_everything(stage: int, dp: int, tp: int, pp: int) -> None:
    """TP and PP leave a smaller model."""
    whole = model_states(1e9, stage, dp).total
    part = model_states(1e9, stage, dp, tensor_parallel=tp, pipeline_parallel=pp).total
    assert part == pytest.approx(whole / (tp * pp))


@given(degrees)
def test_experts_are_shared_by_zero_3_or_by_expert_parallelism(z: int) -> None:
    """With experts over Z of N replicas, stage 3 still divides all states by N, and no experts
    means no effect.
    """
    whole = model_states(1e9, 3, 1000, expert_parallel=z, expert_share=0.9).total
    assert whole == pytest.approx(16e9 / 1000)
    assert model_states(1e9, 1, 8, expert_parallel=z) == model_states(1e9, 1, 8)
    sharded = model_states(1e9, 0, 1000, expert_parallel=z, expert_share=0.9).total
    assert sharded == pytest.approx(16e9 * (0.1 + 0.9 / z))


def test_stages_of_a_pipeline() -> None:
    """By hand: 80 layers over 16 stages are 5, with one end of the vocabulary; the ends of Llama 3
    405B's 126 layers are why its stages hold 8 and not 7.9.
    """
    shape = preset("llama-3-70b").shape
    parts = parameters(shape)
    five = (parts.mlp + parts.attention + parts.norms) / 16
    assert stage_parameters(shape, 16) == pytest.approx(five + 128256 * 8192)
    assert stage_parameters(shape, 1) == pytest.approx(parts.total)
    uneven = preset("llama-3-405b").shape
    layer = (parameters(uneven).total - parameters(uneven).vocabulary) / 126
    assert stage_parameters(uneven, 16) == pytest.approx(8 * layer + 128256 * 16384)
    tied = Shape(4, 8, 16, 2, 2, 4, 100, tied=True)
    assert np.diff(stage_parameters(tied, np.array([1, 2, 4]))).max() < 0


@given(stages, degrees, st.sampled_from([1, 4, 32]))
def test_bytes_moved_are_those_of_data_parallelism(stage: int, n: int, m: int) -> None:
    """The strategy's terms times its bandwidth: two routes to the same bytes."""
    work = Workload(1e6, 4096, 16384)
    machine = Ideal(1e15, (Tier(1000, 1e11),))
    bound = data_parallel.bound(work, machine, n, zero=stage, microbatches=m, phase="step")
    moved = bytes_moved(work.parameters, stage, n, microbatches=m).total
    assert float(np.asarray(bound.t_comms)) * 1e11 == pytest.approx(float(moved))


def test_zero_volume() -> None:
    """arXiv:1910.02054 section 7: 2 Ψ elements for plain DP, P_os and P_os+g, 3 Ψ for P_os+g+p."""
    moved = bytes_moved(1.0, np.arange(4), weight_bytes=1.0, gradient_bytes=1.0).total
    assert moved.tolist() == [2, 2, 2, 3]
    assert np.all(bytes_moved(1e9, np.arange(4), 1).total == 0)


def test_gather_buffer() -> None:
    """ZeRO-3's alone, twice a unit of bf16, and none where there is nobody to gather from."""
    buffers = gather_buffer(1e9, np.arange(4), 8)
    assert np.asarray(buffers).tolist() == [0, 0, 0, 4e9]
    assert gather_buffer(1e9, 3, 1) == 0


def test_largest_model() -> None:
    """CS336 lecture 2: 40 B parameters on 8 H100 at 16 bytes; the book's 9.6 B on a v5p."""
    h100 = Ideal(1.0, hbm_bytes=80e9)
    assert largest_model(h100, 3, 8, usable=1) == pytest.approx(40e9)
    v5p, book = Ideal(1.0, hbm_bytes=96e9), convention("book")
    assert largest_model(v5p, bytes_per_parameter=book, usable=1) == pytest.approx(9.6e9)
    assert largest_model(h100, other=1e12) == 0


@given(stages, degrees, st.floats(0, 50e9))
def test_the_largest_model_just_fits(stage: int, n: int, other: float) -> None:
    """And one a hair larger does not."""
    machine = cluster("dgx-h100-superpod")
    size = largest_model(machine, stage, n, other=other)
    assert fits(machine, model_states(size * (1 - 1e-9), stage, n).total, other).fits
    assert not fits(machine, model_states(size * (1 + 1e-9), stage, n).total, other).fits


def test_fits_adds_up() -> None:
    """Nine tenths of 80 GB hold 72."""
    fit = fits(Ideal(1.0, hbm_bytes=80e9), np.array([30e9, 60e9]), 20e9, 5e9)
    assert fit.fits.tolist() == [True, False]
    assert fit.spare == pytest.approx([17e9, -13e9])


@pytest.mark.parametrize("stage", [-1, 4, 1.5])
def test_there_are_four_stages(stage: float) -> None:
    """Refused, naming them."""
    for refuse in (model_states, bytes_moved, gather_buffer):
        with pytest.raises(ValueError, match="allowed: 0, 1, 2, 3"):
            refuse(1e9, stage)


def test_an_array_is_its_points() -> None:
    """One code path."""
    n, stage = np.array([1, 8, 64]), np.array([0, 2, 3])
    together = model_states(7e9, stage, n, expert_parallel=4, expert_share=0.5)
    for k in range(3):
        alone = model_states(7e9, stage[k], n[k], expert_parallel=4, expert_share=0.5)
        assert np.asarray(together.total)[k] == alone.total
