"""Strategies: other people's worked answers, and the laws that tie thresholds to times."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from roofline import worked
from roofline.bound import Bound
from roofline.machine import Ideal, Tier
from roofline.strategies import (
    STRATEGIES,
    data_parallel,
    expert_parallel,
    mixed,
    pipeline_parallel,
    tensor_parallel,
)
from roofline.strategies.combined import combined
from roofline.worked.strategies import NOT_COVERED, SOLVERS
from roofline.workload import Workload

H100 = Ideal(
    990e12,
    (
        Tier(8, 450e9, "node", in_network_reduction=True, transit=False),
        Tier(32, 400e9, "unit"),
        Tier(64, 12.8e12, "spine"),
    ),
)
DENSE = Workload(4e6, 8192, 28672, layers=80)
EXPERTS = Workload(4e6, 7168, 2048, experts=4096, experts_per_token=8, layers=61)

NAMES = ("data_parallel", "fsdp", "tensor_parallel", "expert_parallel", "pipeline_parallel")
PHASES = ("forward", "backward", "step")
FORMS = ("rough", "precise")


def of(name: str) -> Workload:
    return EXPERTS if name == "expert_parallel" else DENSE


@pytest.mark.parametrize("problem", SOLVERS)
def test_worked_problem(problem: str) -> None:
    """How to Scale Your Model and the others named in each problem."""
    asked = worked.problem(problem)
    wanted = pytest.approx(asked.expected, rel=asked.rel_tol, abs=0 if asked.expected else 1e-15)
    assert SOLVERS[problem](asked.inputs) == wanted


def test_few_problems_are_left_out() -> None:
    assert len(NOT_COVERED) <= 7
    assert not set(NOT_COVERED) & set(SOLVERS)


machines = st.builds(
    lambda rate, node, size, network, nodes, own: Ideal(
        rate, (Tier(size, node, "node", transit=not own), Tier(nodes, network, "network"))
    ),
    st.floats(1e13, 1e16),
    st.floats(1e10, 2e12),
    st.sampled_from([1, 2, 4, 8, 72]),
    st.floats(1e9, 4e12),
    st.sampled_from([64, 1000, 4096]),
    st.booleans(),
)


def works(experts: bool) -> st.SearchStrategy[Workload]:
    return st.builds(
        lambda tokens, d, f, matrices, k, layers, widths: Workload(
            tokens, d, f, matrices, 8192 if experts else 1, k, layers, "bf16", *widths
        ),
        st.floats(1e3, 1e9),
        st.integers(64, 20000),
        st.integers(64, 100000),
        st.sampled_from([2, 3]),
        st.integers(1, 16) if experts else st.just(1),
        st.integers(1, 200),
        st.tuples(*[st.sampled_from([1.0, 2.0, 4.0])] * 3),
    )


@given(
    data=st.data(),
    name=st.sampled_from(NAMES),
    machine=machines,
    degree=st.sampled_from([1, 2, 3, 4, 7, 8, 16, 24, 48, 64]),
    phase=st.sampled_from(PHASES),
    form=st.sampled_from(FORMS),
)
def test_threshold_is_where_the_two_times_cross(data, name, machine, degree, phase, form) -> None:
    """Law: headroom is T_math over T_comms, and one of degree 1 communicates nothing."""
    work = data.draw(works(name == "expert_parallel"))
    if name == "pipeline_parallel":
        degree = min(degree, int(work.layers))
    if name == "expert_parallel" and form == "precise":
        degree = 2 ** int(np.log2(degree))
        machine = replace(machine, tiers=tuple(replace(t, degree=64) for t in machine.tiers))
    bound = STRATEGIES[name].bound(work, machine, degree, phase=phase, form=form)
    check_times(bound)
    if np.all(bound.t_comms > 0):
        assert bound.threshold.headroom == pytest.approx(bound.t_math / bound.t_comms)
    else:
        assert bound.threshold.needed == 0
        assert bound.compute_bound
    if degree == 1:
        assert bound.t_comms == 0


def check_times(bound: Bound) -> None:
    assert np.all(bound.t_lower <= bound.t_upper)
    assert np.all(bound.t_upper <= 2 * bound.t_lower)
    assert bound.t_comms == pytest.approx(sum(term.seconds for term in bound.comms))


@given(
    work=works(False),
    machine=machines,
    shards=st.sampled_from([1, 2, 8, 16, 64]),
    tensor=st.sampled_from([1, 2, 8, 16]),
    hierarchical=st.booleans(),
    phase=st.sampled_from(PHASES),
    form=st.sampled_from(FORMS),
)
def test_mixed_threshold_decides(work, machine, shards, tensor, hierarchical, phase, form) -> None:
    """Law: the verdict of the times is that of the tokens, where no amount may suffice."""
    machine = replace(machine, tiers=tuple(replace(t, degree=64) for t in machine.tiers))
    options = {"gpus": shards * tensor, "hierarchical": hierarchical, "phase": phase, "form": form}
    bound = mixed.bound(work, machine, shards, **options)
    assert bound.t_lower <= bound.t_upper <= 2 * bound.t_lower
    needed = bound.threshold.needed
    assert bound.compute_bound == (bound.threshold.actual >= needed) or np.isclose(
        bound.t_math, bound.t_comms
    )
    if 0 < needed < np.inf:
        enough = replace(work, tokens=float(needed) * shards * tensor)
        there = mixed.bound(enough, machine, shards, **options)
        assert there.t_math == pytest.approx(there.t_comms, rel=1e-6)
    if shards * tensor == 1:
        assert bound.t_comms == 0


@pytest.mark.parametrize("name", [*NAMES, "mixed"])
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("form", FORMS)
def test_a_curve_is_its_points(name: str, phase: str, form: str) -> None:
    """Law: an array of degrees gives what its elements give, and so does one of tokens."""
    degrees = np.array([1, 2, 4, 8, 16, 32, 64])
    evaluate = STRATEGIES[name].bound
    curve = evaluate(of(name), H100, degrees, phase=phase, form=form)
    for i, degree in enumerate(degrees):
        point = evaluate(of(name), H100, int(degree), phase=phase, form=form)
        for field in ("t_math", "t_comms", "t_upper", "t_lower", "compute_bound"):
            everywhere = np.broadcast_to(getattr(curve, field), degrees.shape)
            assert everywhere[i] == pytest.approx(getattr(point, field))
        needed = np.broadcast_to(curve.threshold.needed, degrees.shape)
        assert needed[i] == pytest.approx(point.threshold.needed)
    tokens = np.array([1e5, 1e6, 1e7])
    swept = evaluate(replace(of(name), tokens=tokens), H100, 16, phase=phase, form=form)
    alone = evaluate(replace(of(name), tokens=1e6), H100, 16, phase=phase, form=form)
    assert np.broadcast_to(swept.t_upper, 3)[1] == pytest.approx(alone.t_upper)


@pytest.mark.parametrize("name", [*NAMES, "mixed"])
@given(faster=st.floats(1, 100), tier=st.integers(0, 2), degree=st.sampled_from([2, 16, 512]))
def test_a_faster_network_never_hurts(name: str, faster: float, tier: int, degree: int) -> None:
    """Law: more bandwidth anywhere leaves T_comms as it is or less."""
    tiers = list(H100.tiers)
    tiers[tier] = replace(tiers[tier], bandwidth=tiers[tier].bandwidth * faster)
    evaluate = STRATEGIES[name].bound
    degree = min(degree, 64) if name == "pipeline_parallel" else degree
    slow = evaluate(of(name), H100, degree)
    fast = evaluate(of(name), replace(H100, tiers=tuple(tiers)), degree)
    assert fast.t_comms <= slow.t_comms * (1 + 1e-12)
    assert fast.threshold.needed <= slow.threshold.needed * (1 + 1e-12)


@pytest.mark.parametrize("name", [*NAMES, "mixed"])
def test_a_machine_of_half_the_speed_takes_twice_as_long(name: str) -> None:
    """Dimensional analysis: all rates halved, every time doubles and no verdict changes."""
    tiers = tuple(replace(tier, bandwidth=tier.bandwidth / 2) for tier in H100.tiers)
    slow = STRATEGIES[name].bound(of(name), Ideal(H100.rate / 2, tiers), 32)
    fast = STRATEGIES[name].bound(of(name), H100, 32)
    assert slow.t_upper == pytest.approx(2 * fast.t_upper)
    assert slow.threshold.needed == pytest.approx(fast.threshold.needed)


class TestDataParallel:
    """How to Scale Your Model, GPUs, data parallelism."""

    def test_zero_stages_move_the_same_bytes_until_the_third(self) -> None:
        """ZeRO (1910.02054), section 7: 2, 2, 2 and 3 times the parameters."""
        step = [
            data_parallel.bound(DENSE, H100, 64, zero=zero, phase="step").t_comms
            for zero in range(4)
        ]
        assert step == pytest.approx([step[0], step[0], step[0], 1.5 * step[0]])

    @pytest.mark.parametrize("phase", PHASES)
    def test_fsdp_has_the_threshold_of_data_parallelism(self, phase: str) -> None:
        fsdp = data_parallel.bound(DENSE, H100, 64, zero=3, phase=phase)
        plain = data_parallel.bound(DENSE, H100, 64)
        assert fsdp.threshold.needed == pytest.approx(plain.threshold.needed)

    def test_gating_changes_nothing(self) -> None:
        gated = data_parallel.bound(replace(DENSE, matrices=3), H100, 64)
        plain = data_parallel.bound(DENSE, H100, 64)
        assert gated.threshold.needed == pytest.approx(plain.threshold.needed)
        assert gated.t_math == pytest.approx(1.5 * plain.t_math)

    def test_switches_that_add_help_plain_data_parallelism_alone(self) -> None:
        """Half in theory, 1.3 times faster as measured on 8 H100."""
        plain = data_parallel.bound(DENSE, H100, 8).t_comms
        theory = data_parallel.bound(DENSE, H100, 8, in_network="theory").t_comms
        measured = data_parallel.bound(DENSE, H100, 8, in_network="measured").t_comms
        assert theory == pytest.approx(plain * 4 / 7)
        assert measured == pytest.approx(plain / 1.3)
        zero = [
            data_parallel.bound(DENSE, H100, 8, zero=1, in_network=s) for s in ("off", "theory")
        ]
        assert zero[0].t_comms == zero[1].t_comms

    @pytest.mark.parametrize(("zero", "times"), [(0, 1), (1, 1), (2, 16), (3, 16)])
    def test_zero_in_every_micro_batch(self, zero: int, times: int) -> None:
        """ZeRO-2 and 3 reduce gradients in each of m micro-batches; under ZeRO-3 B/(X m) > C/W."""
        once = data_parallel.bound(DENSE, H100, 64, zero=zero, phase="backward")
        many = data_parallel.bound(DENSE, H100, 64, zero=zero, microbatches=16)
        assert many.comms[0].seconds == pytest.approx(times * once.comms[0].seconds)

    def test_model_parallelism_relieves_only_beyond_a_node(self) -> None:
        """Rough threshold C / (m W) for m nodes of model parallelism."""
        sizes = np.array([1, 2, 4, 8, 16, 32])
        bound = data_parallel.bound(DENSE, H100, 8, model_parallel=sizes, form="rough")
        assert bound.threshold.needed[2:] == pytest.approx([2475, 2475, 1237.5, 618.75])

    def test_mistakes_are_named(self) -> None:
        with pytest.raises(ValueError, match="zero: 4 is not a ZeRO stage; allowed: 0, 1, 2, 3"):
            data_parallel.bound(DENSE, H100, 8, zero=4)
        with pytest.raises(ValueError, match="phase: 'sideways' is not one; allowed: forward"):
            data_parallel.bound(DENSE, H100, 8, phase="sideways")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="the machine has 16,384"):
            data_parallel.bound(DENSE, H100, 20000)
        with pytest.raises(ValueError, match="degree: 0 is refused; allowed: 1 and more"):
            data_parallel.bound(DENSE, H100, 0)
        with pytest.raises(ValueError, match="model_parallel: 0 is refused"):
            data_parallel.bound(DENSE, H100, np.array([1, 2]), model_parallel=np.array([1, 0]))
        with pytest.raises(ValueError, match="microbatches: 0 is refused"):
            data_parallel.bound(DENSE, H100, 8, microbatches=0)

    def test_fewer_tokens_than_gpus_are_told_and_do_not_end_a_sweep(self) -> None:
        """16 tokens on 64 GPUs: most have nothing to do."""
        few = data_parallel.bound(replace(DENSE, tokens=16), H100, 64)
        assert "; below 1, some GPUs have nothing to do" in few.sentence()
        swept = data_parallel.bound(replace(DENSE, tokens=16), H100, np.array([8, 64]))
        assert swept.threshold.possible.tolist() == [True, False]


class TestTensorParallel:
    """How to Scale Your Model, GPUs, tensor parallelism."""

    @given(st.integers(500, 60000), st.sampled_from([2, 3]), st.sampled_from(PHASES))
    @example(2200, 2, "forward")
    @example(1100, 2, "backward")
    def test_largest_degree_is_where_the_times_cross(self, width, matrices, phase) -> None:
        """Law: a little less hides and a little more does not, wherever the limit lies."""
        work = replace(DENSE, d_ff=width, matrices=matrices)
        largest = float(tensor_parallel.largest_degree(work, H100, phase=phase))
        hidden = partial(tensor_parallel.bound, work, H100, phase=phase)
        steps = np.arange(1, 1025)
        whole = hidden(steps[(steps <= 8) | (steps % 8 == 0)])
        tie = np.isclose(whole.threshold.headroom, 1, rtol=1e-9)  # C/W is 2200 columns: both round
        agree = whole.compute_bound == (whole.threshold.actual >= whole.threshold.needed)
        assert np.all(agree | tie)
        degrees = width / whole.threshold.actual
        assert np.all(whole.compute_bound[degrees < largest * (1 - 1e-9)])
        assert not np.any(whole.compute_bound[degrees > largest * (1 + 1e-9)])

    def test_backward_moves_as_much_unless_it_gathers_again(self) -> None:
        """4 B D and 6 B D bytes against twice the math."""
        forward = tensor_parallel.bound(DENSE, H100, 8)
        backward = tensor_parallel.bound(DENSE, H100, 8, phase="backward")
        again = tensor_parallel.bound(DENSE, H100, 8, phase="backward", gather_again=True)
        assert backward.t_comms == pytest.approx(forward.t_comms)
        assert again.t_comms == pytest.approx(1.5 * forward.t_comms)
        assert backward.t_math == pytest.approx(2 * forward.t_math)

    @pytest.mark.parametrize("phase", PHASES)
    def test_all_reduces_move_the_same_bytes(self, phase: str) -> None:
        """Megatron without sequence sharding."""
        pair = tensor_parallel.bound(DENSE, H100, 16, phase=phase)
        whole = tensor_parallel.bound(DENSE, H100, 16, phase=phase, sequence_sharded=False)
        assert whole.t_comms == pytest.approx(pair.t_comms)
        assert len(whole.comms) < len(pair.comms)

    def test_nothing_gathered_cannot_be_gathered_again(self) -> None:
        with pytest.raises(ValueError, match="gather_again: True needs sequence_sharded"):
            tensor_parallel.bound(DENSE, H100, 8, sequence_sharded=False, gather_again=True)


class TestMixed:
    """How to Scale Your Model, training, FSDP and tensor parallelism."""

    TORUS = Ideal(459e12, (Tier(2**20, 180e9, "torus"),))

    @given(
        works(False),
        st.sampled_from([64, 512, 4096]),
        st.tuples(st.sampled_from([1, 2]), st.sampled_from([1, 2])),
        st.sampled_from(PHASES),
    )
    def test_the_optimum_beats_its_neighbours(self, work, gpus, axes, phase) -> None:
        options = {"axes": axes, "phase": phase}
        best = mixed.optimal_degree(work, self.TORUS, gpus, **options)
        options["hierarchical"] = False
        nearby = np.clip(best * np.array([0.5, 0.9, 0.99, 1, 1.01, 1.1, 2]), 1, gpus)
        times = mixed.bound(work, self.TORUS, nearby, gpus=gpus, **options).t_comms
        inside = (nearby > 1) & (nearby < gpus)  # where both axes communicate
        if inside[3]:
            assert np.all(times[inside] >= times[3] * (1 - 1e-9))

    @given(works(False), st.sampled_from(PHASES), st.sampled_from([0.9, 1.1]))
    def test_the_optimum_hides_from_the_critical_batch_on(self, work, phase, share) -> None:
        gpus, axes = 4096, (2, 1)
        tokens = float(mixed.critical_tokens(work, self.TORUS, axes=axes, phase=phase))
        there = replace(work, tokens=share * tokens * gpus)
        best = mixed.optimal_degree(there, self.TORUS, gpus, axes=axes, phase=phase)
        if 1 < best < gpus:
            options = {"axes": axes, "hierarchical": False, "phase": phase}
            bound = mixed.bound(there, self.TORUS, best, gpus=gpus, **options)
            assert bound.t_math / bound.t_comms == pytest.approx(share**0.5)
            assert bound.compute_bound == (share > 1)

    def test_inside_a_node_tensor_parallelism_does_not_relieve_fsdp(self) -> None:
        """GPUs share their node's uplinks: only model parallelism over nodes lowers the tokens."""
        shards = np.array([512, 256, 128, 64])
        bound = mixed.bound(DENSE, H100, shards, gpus=512)
        assert bound.threshold.needed == pytest.approx([2475] * 4)
        alone = mixed.bound(DENSE, H100, shards, gpus=512, hierarchical=False)
        assert np.all(np.diff(alone.threshold.needed) < 0)

    def test_a_degree_that_is_none(self) -> None:
        with pytest.raises(ValueError, match="degree: 128 is not between 1 and the 64 GPUs"):
            mixed.bound(DENSE, H100, 128, gpus=64)
        odd = "degree: 24 does not divide 512 GPUs; the nearest: 16 and 32"
        for degree in (24, np.array([8, 24, 512])):
            with pytest.raises(ValueError, match=odd):
                mixed.bound(DENSE, H100, degree, gpus=512)
        with pytest.raises(ValueError, match="is not between 1 and the 16,384 GPUs"):
            mixed.bound(DENSE, H100, 0)
        with pytest.raises(ValueError, match=r"axes: 2, 1 links .* hierarchical=False"):
            mixed.bound(DENSE, H100, 8, axes=(2, 1))

    def test_on_a_cluster_the_network_is_not_nvlink(self) -> None:
        """FSDP over 64 nodes goes by 400e9 a node, whatever tensor parallelism does inside them."""
        there = mixed.bound(DENSE, H100, 64, gpus=512)
        assert there.comms[0].seconds == pytest.approx(2 * 2 * 8192 * 28672 / 400e9)

    def test_no_batch_is_enough(self) -> None:
        """Tensor parallelism over nodes exceeds F W/C; the sentence says so instead of infinity."""
        slow = mixed.bound(DENSE, H100, 2, gpus=512)
        assert np.isposinf(slow.threshold.needed)
        assert "no batch is enough: tensor parallelism alone is too slow" in slow.sentence()


class TestExpertParallel:
    """How to Scale Your Model, GPUs, expert parallelism."""

    @pytest.mark.parametrize("k", [1, 2, 4, 8])
    def test_regimes_meet_at_eight_times_k(self, k: int) -> None:
        """At Z = 8k: F > alpha (Z-8)/k on the one side, 8 alpha (Z-8)/Z on the other."""
        work = replace(EXPERTS, experts_per_token=k)
        nodes = np.arange(2, 65)
        needed = expert_parallel.bound(work, H100, 8 * nodes).threshold.needed
        alpha, degree = 990e12 / 400e9, 8.0 * nodes
        few, many = alpha * (degree - 8) / k, 8 * alpha * (degree - 8) / degree
        assert needed == pytest.approx(np.where(degree <= 8 * k, few, many))
        assert few[k - 2] == pytest.approx(many[k - 2]) or k == 1

    def test_inside_a_node_nothing_crosses_the_network(self) -> None:
        """2 B D / W_gpu (Z-1)/Z min(k/Z, 1), twice."""
        degree = np.array([1.0, 2, 4, 8])
        bound = expert_parallel.bound(replace(EXPERTS, experts_per_token=2), H100, degree)
        share = (degree - 1) / degree * np.minimum(2 / degree, 1)
        assert bound.t_comms == pytest.approx(2 * 2 * 4e6 * 7168 / 450e9 * share)

    def test_expected_nodes_of_deepseek(self) -> None:
        """Top 8 of 256 experts on 8 nodes reach 0.662 of them, not all."""
        work = replace(EXPERTS, experts=256)
        rough = expert_parallel.bound(work, H100, 64)
        precise = expert_parallel.bound(work, H100, 64, form="precise")
        assert precise.t_comms / rough.t_comms == pytest.approx(0.662, abs=5e-4)

    def test_a_copy_per_gpu_costs_more_until_every_gpu_is_its_own_node(self) -> None:
        """Without deduplication 8k/Z is not cut off at 1."""
        once = expert_parallel.bound(EXPERTS, H100, 32)
        each = expert_parallel.bound(EXPERTS, H100, 32, deduplicated=False)
        assert each.t_comms == pytest.approx(once.t_comms * 8 * 8 / 32)

    def test_capacity_multiplies_bytes_and_imbalance_math(self) -> None:
        plain = expert_parallel.bound(EXPERTS, H100, 64)
        padded = expert_parallel.bound(EXPERTS, H100, 64, capacity=1.25)
        uneven = expert_parallel.bound(EXPERTS, H100, 64, imbalance=1.5)
        assert padded.t_comms == pytest.approx(1.25 * plain.t_comms)
        assert uneven.t_math == pytest.approx(1.5 * plain.t_math)
        assert uneven.threshold.headroom == pytest.approx(uneven.t_math / uneven.t_comms)

    def test_gating_asks_for_two_thirds_of_the_width(self) -> None:
        gated = expert_parallel.bound(replace(EXPERTS, matrices=3), H100, 64)
        plain = expert_parallel.bound(EXPERTS, H100, 64)
        assert gated.threshold.needed == pytest.approx(plain.threshold.needed * 2 / 3)

    @given(st.integers(200, 25000), st.integers(1, 24), st.sampled_from(PHASES))
    def test_largest_degree_is_where_the_times_cross(self, width, k, phase) -> None:
        """Law, over whole nodes and inside one."""
        work = replace(EXPERTS, d_ff=width, experts_per_token=k)
        largest = float(expert_parallel.largest_degree(work, H100, phase=phase))
        degrees = np.r_[1:9, 16:257:8]
        hidden = expert_parallel.bound(work, H100, degrees, phase=phase).compute_bound
        assert np.all(hidden[degrees < largest * (1 - 1e-9)])
        assert not np.any(hidden[degrees > largest * (1 + 1e-9)])

    def test_mistakes_are_named(self) -> None:
        few = replace(EXPERTS, experts=16)
        with pytest.raises(ValueError, match=r"degree: 32 GPUs for 16 experts.*the nearest is 16"):
            expert_parallel.bound(few, H100, 32)


class TestPipelineParallel:
    """How to Scale Your Model, GPUs, pipeline parallelism."""

    def test_hops(self) -> None:
        """m + p - 2; interleaved m v + p - 2; none for one stage."""
        assert pipeline_parallel.hops(np.array([1, 2, 16]), 32) == pytest.approx([0, 32, 46])
        assert pipeline_parallel.hops(16, 32, chunks=4) == 142

    def test_a_gpu_alone_has_its_own_network_card(self) -> None:
        """400e9 of a node are 50e9 of a GPU: slices of a stage send side by side."""
        whole = pipeline_parallel.bound(DENSE, H100, 16, tensor_parallel=8, microbatches=64)
        alone = pipeline_parallel.bound(DENSE, H100, 16, microbatches=64)
        inside = pipeline_parallel.bound(DENSE, H100, 8, microbatches=64)
        nbytes = 2 * 4e6 * 8192 / 64
        assert whole.t_comms == pytest.approx(78 * nbytes / 400e9)
        assert alone.t_comms == pytest.approx(78 * nbytes / 50e9)
        assert inside.t_comms == pytest.approx(70 * nbytes / 450e9)

    def test_shared_embedding_is_one_all_reduce_of_two(self) -> None:
        """Hugging Face notes: an embedding shared by two stages costs extra; V D b bytes."""
        term = pipeline_parallel.tied_embedding(DENSE, H100, 4, vocabulary=128256, stride=8)
        assert term.seconds == pytest.approx(2 * 128256 * 8192 * 8 / 400e9)
        lone = pipeline_parallel.tied_embedding(DENSE, H100, 1, vocabulary=128256)
        assert lone.seconds == 0

    def test_zero_warning(self) -> None:
        """Hugging Face notes: with pipelines only ZeRO-1; 2 and 3 pay in each micro-batch."""
        for quiet in ((1, 4, 8), (3, 1, 8), (2, 4, 1)):
            assert not pipeline_parallel.zero_warning(*quiet)
        assert "gathers weights" in pipeline_parallel.zero_warning(3, 4, 8)

    def test_mistakes_are_named(self) -> None:
        with pytest.raises(ValueError, match="microbatches: 0 is refused; allowed: 1 and more"):
            pipeline_parallel.bound(DENSE, H100, 4, microbatches=0)
        with pytest.raises(ValueError, match="chunks: 0 is refused"):
            pipeline_parallel.bound(DENSE, H100, 4, chunks=0)
        with pytest.raises(ValueError, match=r"degree: 96 stages for 80 layers .* nearest is 80"):
            pipeline_parallel.bound(DENSE, H100, np.array([8, 96]))

    def test_the_slowest_stage_sets_the_pace(self) -> None:
        """Stages of 1, 1, 1 and 2 take 8/5 of the mean; what has to be hidden stays."""
        even = pipeline_parallel.bound(DENSE, H100, 4)
        uneven = pipeline_parallel.bound(DENSE, H100, 4, imbalance=1.6)
        assert uneven.t_math == pytest.approx(1.6 * even.t_math)
        assert uneven.t_comms == even.t_comms
        assert uneven.threshold.headroom == pytest.approx(uneven.t_math / uneven.t_comms)
        with pytest.raises(ValueError, match=r"imbalance: 0\.5 is refused; allowed: 1 and more"):
            pipeline_parallel.bound(DENSE, H100, 4, imbalance=0.5)


class TestCombined:
    """TP x EP x PP x DP side by side."""

    def test_strides_follow_the_order(self) -> None:
        layout = {"tensor": 8, "pipeline": 4, "data": 16}
        axes = combined(DENSE, H100, **layout)
        assert {axis.name: int(axis.stride) for axis in axes} == {
            "tensor": 1,
            "expert": 8,
            "pipeline": 8,
            "data": 32,
        }
        outside_in = combined(DENSE, H100, **layout, order=("data", "pipeline", "expert", "tensor"))
        slow = {axis.name: axis.bound for axis in outside_in}["tensor"]
        fast = {axis.name: axis.bound for axis in axes}["tensor"]
        assert slow.t_comms > 5 * fast.t_comms

    def test_a_pipeline_over_nodes_relieves_data_parallelism(self) -> None:
        """LLaMA-3: TP 8 and PP 16 span 16 nodes, 2475 / 16 tokens per GPU."""
        *_, data = combined(DENSE, H100, tensor=8, pipeline=16, data=128, phase="backward")
        assert data.bound.threshold.needed == pytest.approx(2475 / 16)

    def test_a_single_axis_is_its_strategy(self) -> None:
        axes = combined(DENSE, H100, tensor=8, phase="forward")
        alone = tensor_parallel.bound(DENSE, H100, 8, form="rough")
        assert axes[0].bound.t_comms == pytest.approx(alone.t_comms)
        assert all(axis.bound.t_comms == 0 for axis in axes[1:])

    def test_an_order_that_is_none(self) -> None:
        with pytest.raises(ValueError, match="order: tensor, data must hold each of"):
            combined(DENSE, H100, order=("tensor", "data"))


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_explains_itself(name: str) -> None:
    entry = STRATEGIES[name]
    bound = entry.bound(of(name), H100, 8)
    assert entry.text
    assert "hidden while" in entry.text
    assert "-bound:" in bound.sentence()
    for term in (bound.math, *bound.comms):
        assert term.formula.count("{") == term.formula.count("}")
        assert str(term.source)


@given(share=st.floats(0, 1), degree=st.sampled_from([2, 8, 64]))
def test_overlap_lies_between_the_two_times(share: float, degree: int) -> None:
    """Law: all hidden at 1, nothing at 0, linear between."""
    bound = data_parallel.bound(DENSE, H100, degree)
    assert bound.overlapped(0) == bound.t_upper
    assert bound.overlapped(1) == pytest.approx(float(bound.t_lower))
    between = bound.overlapped(share)
    assert between == pytest.approx(share * bound.t_lower + (1 - share) * bound.t_upper)
    with pytest.raises(ValueError, match=r"share: 1\.5 is refused; allowed: 0 to 1"):
        bound.overlapped(1.5)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_list_of_degrees_is_an_array(name: str) -> None:
    listed = STRATEGIES[name].bound(of(name), H100, [1, 2, 4]).t_upper
    array = STRATEGIES[name].bound(of(name), H100, np.array([1, 2, 4])).t_upper
    np.testing.assert_array_equal(listed, array)


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("degree", [0, -1, float("nan"), np.array([1, 0]), "8", None])
def test_a_degree_that_is_none_is_named(name: str, degree: object) -> None:
    with pytest.raises(ValueError, match=r"degree: .* (is refused|is not between)"):
        STRATEGIES[name].bound(of(name), H100, degree)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_group_is_whole(name: str) -> None:
    with pytest.raises(ValueError, match=r"2\.5 (is refused|does not divide)"):
        STRATEGIES[name].bound(of(name), H100, 2.5)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tokens", 0),
        ("tokens", float("nan")),
        ("tokens", np.array([1e6, -1])),
        ("tokens", "4M"),
        ("d_model", 0),
        ("d_ff", -1),
        ("matrices", 4),
        ("matrices", 2.5),
        ("experts", 0),
        ("experts_per_token", 2),
        ("layers", 0),
        ("weight_bytes", -2),
        ("activation_bytes", None),
    ],
)
def test_a_workload_that_is_none_is_named(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"{field}: .* is refused; allowed: "):
        replace(DENSE, **{field: value})  # type: ignore[arg-type]


def test_workloads_may_be_lists() -> None:
    work = Workload([1e6, 2e6], 8192, 28672)  # type: ignore[arg-type]
    assert data_parallel.bound(work, H100, 8).t_math[1] == 2 * tensor_time(1e6)


def tensor_time(tokens: float) -> float:
    return float(data_parallel.bound(Workload(tokens, 8192, 28672), H100, 8).t_math)


def test_links_of_pairs_carry_a_whole_node_or_nothing() -> None:
    """Without a switch T_TP is V (D-1)/(Y W): the same share of the math for every Y in the node."""
    for width, wanted in ((28672, 8), (4096, 1)):
        work = replace(DENSE, d_ff=width)
        box = Ideal(1300e12, (Tier(8, 448e9, "node", direct=True),))
        hidden = tensor_parallel.bound(work, box, np.arange(1, 9)).compute_bound
        assert np.flatnonzero(hidden).max() + 1 == wanted
        largest = float(tensor_parallel.largest_degree(work, box))
        assert largest == wanted or wanted == 8 <= largest


def test_a_million_points_are_quick() -> None:
    """Closed forms are sweeps: the best of a few tries stays far below a second."""
    from timeit import repeat

    tokens = np.linspace(1e5, 1e8, 1_000_000)
    work = replace(DENSE, tokens=tokens)
    assert min(repeat(lambda: data_parallel.bound(work, H100, 64).t_upper, number=1)) < 0.1
