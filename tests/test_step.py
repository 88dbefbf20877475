"""The whole step: its terms, its laws, and where it has to agree with closed forms."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hardware_profiles as hp
from hardware_profiles.calibration import for_accelerator
from roofline import calibrated, layer
from roofline.calibrated import behaviour
from roofline.collectives import ALL_GATHER
from roofline.dims import Dims
from roofline.footprint import footprint, peak
from roofline.groups import Group, spans
from roofline.layout import FLASH, ORDER, OVERLAP, RECOMPUTE, SCHEDULE, ZERO_KIND, Layout, stack
from roofline.microbatch import _around, average, tensor_parallel
from roofline.model import Experts, Transformer
from roofline.stages import owned
from roofline.step import predict

H100 = hp.cluster("dgx-h100-superpod")
A100 = hp.cluster("dgx-a100-superpod")
LLAMA = Transformer("llama-8b", 32, 4096, 14336, 32, 8, 128, 128256)
MIXTURE = replace(LLAMA, experts=Experts(8, 2, 14336))
GPT_22B = Transformer(
    "gpt-22b", 48, 6144, 24576, 64, 64, 96, 51200,
    gated=False, tied=True, norm="layernorm", rope=False, mlp_bias=True,
)  # fmt: skip


def fit(name: str = "h100-sxm"):
    overlay = for_accelerator(name)
    assert overlay is not None
    assert overlay.step is not None
    return overlay.step


def seconds(layout: Layout, model: Transformer = LLAMA, precision: str = "bf16") -> float:
    return float(predict(behaviour(H100, fit(), precision).job(Dims.of(model), layout)).seconds)


degrees = st.sampled_from([1, 2, 4, 8])
layouts = st.builds(
    lambda tp, pp, cp, dp, micro, m, v, zero, again, kind, schedule: Layout(
        gpus=tp * pp * cp * dp,
        tp=tp,
        pp=pp,
        cp=cp,
        chunks=v if pp > 1 else 1,
        micro_batch=micro,
        batch=micro * dp * m * pp,
        sequence=4096,
        sequence_parallel=float(tp > 1),
        zero=zero,
        recompute=again,
        tp_overlap=kind,
        schedule=schedule,
    ),
    tp=degrees,
    pp=st.sampled_from([1, 2, 4]),
    cp=st.sampled_from([1, 2]),
    dp=degrees,
    micro=st.sampled_from([1, 2]),
    m=st.sampled_from([1, 4]),
    v=st.sampled_from([1, 2]),
    zero=st.sampled_from([0, 1, 3]),
    again=st.sampled_from(list(RECOMPUTE.values())),
    kind=st.sampled_from(list(OVERLAP.values())),
    schedule=st.sampled_from(list(SCHEDULE.values())),
)


class TestTerms:
    @given(layouts, st.sampled_from(["bf16", "fp8"]), st.booleans())
    def test_they_sum_to_the_step(self, layout: Layout, precision: str, mixed: bool) -> None:
        """Exactly: the step is nothing but the sum of what is shown."""
        model = Dims.of(MIXTURE if mixed else LLAMA)
        found = predict(behaviour(H100, fit(), precision).job(model, layout))
        assert sum(found.terms.values()) == found.seconds
        assert all(np.all(np.greater_equal(x, 0)) for x in found.terms.values())

    @given(st.lists(layouts, min_size=2, max_size=6))
    def test_a_table_is_its_rows(self, rows: list[Layout]) -> None:
        """Scalars and columns are one path."""
        machine = behaviour(H100, fit())
        table = predict(machine.job(Dims.of(LLAMA), stack(rows))).seconds
        alone = [predict(machine.job(Dims.of(LLAMA), row)).seconds for row in rows]
        assert np.allclose(table, alone, rtol=1e-12)

    def test_many_models_are_one_call(self) -> None:
        models = [LLAMA, GPT_22B]
        layout = Layout(gpus=8, batch=8, sequence=2048)
        machine = behaviour(H100, fit())
        together = predict(machine.job(Dims.stack(models), layout)).seconds
        alone = [predict(machine.job(Dims.of(model), layout)).seconds for model in models]
        assert np.allclose(together, alone, rtol=1e-12)

    def test_a_million_layouts_in_seconds(self) -> None:
        n = 20_000
        layout = replace(Layout(gpus=64, batch=64.0), micro_batch=np.ones(n), tp=np.full(n, 8.0))
        found = predict(behaviour(H100, fit()).job(Dims.of(LLAMA), layout)).seconds
        assert found.shape == (n,)
        assert np.ptp(found) == 0


class TestLaws:
    def test_a_group_of_one_costs_nothing(self) -> None:
        found = predict(behaviour(H100, fit()).job(Dims.of(LLAMA), Layout(gpus=1, batch=4)))
        for axis in ("tensor parallel", "context parallel", "expert parallel", "data parallel"):
            assert np.all(found.terms[axis] == 0), axis
        assert np.all(found.terms["contention"] == 0)
        assert np.all(found.terms["bubble"] == 0)

    @given(layouts)
    def test_achieved_is_never_faster_than_peak(self, layout: Layout) -> None:
        """Every efficiency at most 1, every latency at least 0: a bound."""
        model = Dims.of(LLAMA)
        best = predict(behaviour(H100).job(model, layout)).seconds
        assert predict(behaviour(H100, fit()).job(model, layout)).seconds > best

    @given(layouts, st.sampled_from(["batch", "sequence"]))
    def test_more_work_takes_longer(self, layout: Layout, field: str) -> None:
        more = replace(layout, **{field: 2 * getattr(layout, field)})
        assert seconds(more) > seconds(layout)

    @given(layouts)
    def test_recomputing_more_takes_longer(self, layout: Layout) -> None:
        kinds = [RECOMPUTE[k] for k in ("none", "attention", "block", "full")]
        times = [seconds(replace(layout, recompute=kind)) for kind in kinds]
        assert times == sorted(times)

    @given(layouts)
    def test_overlapping_more_is_no_slower(self, layout: Layout) -> None:
        """At peak: where clocks fall, tensor cores that wait less are also slower."""
        ways = [replace(layout, tp_overlap=OVERLAP[k]) for k in ("none", "backward", "fine")]
        none, part, fine = predict(behaviour(H100).job(Dims.of(LLAMA), stack(ways))).seconds
        assert none >= part * (1 - 1e-12)
        assert part >= fine * (1 - 1e-12)

    def test_interleaving_shrinks_the_bubble(self) -> None:
        """By v: https://arxiv.org/abs/2104.04473, section 2.2.2."""
        layout = Layout(gpus=32, tp=8, pp=4, batch=64, chunks=np.array([1.0, 2.0, 4.0, 8.0]))
        job = behaviour(H100).job(Dims.of(LLAMA), layout)
        sends = 3 * 2 * job.network.route(Group(4, 8)).send(2.0 * 2048 * 4096 / 8)
        bubble = predict(job).terms["bubble"] - sends
        assert np.allclose(bubble * layout.chunks, bubble[0])

    def test_zero_bubble_schedules_are_in_order(self) -> None:
        """https://arxiv.org/abs/2401.10241, tables 1 and 4: 1F1B, ZB-H1, ZB-H2, ZB-2p."""
        kinds = np.array([SCHEDULE[k] for k in ("1f1b", "zb-h1", "zb-h2", "zb-2p")], float)
        layout = Layout(gpus=8, pp=8, batch=64, schedule=kinds)
        bubble = predict(behaviour(H100, fit()).job(Dims.of(LLAMA), layout)).terms["bubble"]
        assert np.all(np.diff(bubble) < 0)

    def test_graphs_spare_the_host(self) -> None:
        """An expert layer too small to keep the GPU busy while the host launches its kernels."""
        small = replace(MIXTURE, d_model=1024, heads=8, kv_heads=8, experts=Experts(64, 2, 512))
        layout = Layout(gpus=8, ep=8, batch=8, sequence=512, graphs=np.array([0.0, 1.0, 2.0]))
        waits = predict(behaviour(H100, fit()).job(Dims.of(small), layout)).terms
        host = waits["waiting for the host"]
        assert host[0] > host[1] > host[2] == 0

    def test_dropped_tokens_spare_the_host(self) -> None:
        """With a fixed number of rows per expert the host never waits to learn how many there are."""
        small = replace(MIXTURE, d_model=1024, heads=8, kv_heads=8, experts=Experts(64, 2, 512))
        layout = Layout(gpus=8, ep=8, batch=8, sequence=512, dropless=np.array([1.0, 0.0]))
        waits = predict(behaviour(H100, fit()).job(Dims.of(small), layout)).terms
        assert waits["waiting for the host"][0] > waits["waiting for the host"][1]

    def test_experts_of_their_own_take_longer_than_a_group(self) -> None:
        """By at least what starting a kernel takes, for each expert but the first, in 16 bits."""
        kernels = behaviour(H100, fit()).kernels
        model = Dims.of(replace(MIXTURE, experts=Experts(64, 2, 512)))
        layout = Layout(gpus=8, ep=8, sequence=4096, graphs=np.array([0.0, 2.0]))
        apart, grouped = layer.mixture(model, layout, kernels, 0.0).forward.matmuls
        assert apart - grouped >= 2 * 7 * kernels.matmuls.start
        assert np.allclose(
            *layer.mixture(model, replace(layout, ep=64), kernels, 0.0).forward.matmuls
        )

    def test_eager_experts_only_stream_more(self) -> None:
        kernels = behaviour(H100, fit()).kernels
        layout = Layout(gpus=8, ep=8, fused_experts=np.array([1.0, 0.0]))
        work = layer.mixture(Dims.of(MIXTURE), layout, kernels, 0.0).backward
        assert work.memory[1] > work.memory[0]
        assert np.ndim(work.matmuls) == 0

    def test_early_software_slows_matmuls_alone(self) -> None:
        machine = behaviour(H100, fit())
        machine = replace(machine, habits=replace(machine.habits, early=0.8))
        job = machine.job(Dims.of(LLAMA), Layout(gpus=8, early=np.array([0.0, 1.0])))
        rates = job.kernels.matmuls.efficiency
        assert rates[1] / rates[0] == pytest.approx(0.8)
        assert job.kernels.attention == machine.kernels.attention

    def test_a_small_dense_layer_waits_for_its_launches(self) -> None:
        """Unless graphs or a compiled program launch them; a large one hides them all."""
        small = replace(LLAMA, d_model=512, d_ff=1024, heads=4, kv_heads=4)
        layout = Layout(
            gpus=1,
            sequence=512,
            graphs=np.array([0.0, 1.0, 2.0, 0.0]),
            compiled=np.array([0.0, 0.0, 0.0, 1.0]),
        )
        machine = behaviour(H100, fit())
        host = predict(machine.job(Dims.of(small), layout)).terms["waiting for the host"]
        assert host[0] > host[1] > 0
        assert np.all(host[2:] == 0)
        large = Layout(gpus=1, sequence=8192, micro_batch=2, batch=2)
        assert predict(machine.job(Dims.of(LLAMA), large)).terms["waiting for the host"] == 0
        again = replace(layout, recompute=RECOMPUTE["full"])
        longer = predict(machine.job(Dims.of(small), again)).terms["waiting for the host"]
        assert longer[0] > host[0]

    def test_how_zero_1_sends(self) -> None:
        """An all-reduce moves twice a reduce-scatter; broadcasts pay for each owner's ring anew."""
        kinds = np.array(list(ZERO_KIND.values()), float)
        layout = Layout(gpus=1024, batch=1024, zero=1, dp_overlap=0, zero_kind=kinds)
        exposed = predict(behaviour(H100, fit()).job(Dims.of(LLAMA), layout)).terms["data parallel"]
        assert np.all(np.diff(exposed) > 0)
        alone = replace(layout, gpus=1, batch=1)
        none = predict(behaviour(H100, fit()).job(Dims.of(LLAMA), alone)).terms["data parallel"]
        assert np.all(none == 0)


def test_trees_where_each_node_has_one_gpu() -> None:
    """NCCL's tuner, src/graph/tuning.cc since 2.23: log2(nodes) steps of 14/3.5 us and 2.8 us a rank
    at 3/4 of the bandwidth, against 14 us a node round the ring; here a hop stands for the 14 us.
    Only where a group has one GPU of each node: enqueue's ncclPatEnable.
    """
    network = behaviour(H100.resized(100_096), fit()).network
    spread, packed = network.route(Group(12_500, 8)), network.route(Group(12_500, 4))
    start, hop = network.links["all-gather"].start, network.hop
    steps = math.log2(12_500) / 3.5 + 12_500 * 2.8 / 14
    assert spread.gather(0.0) == pytest.approx(start + hop * steps)
    ring = start + hop * (6250 - 1 + 6250 / 4)
    assert packed.gather(0.0) == pytest.approx(ring)
    long = (spread.gather(4e12) - spread.gather(2e12)) / 2e12  # the ring again, at all bandwidth
    assert long == pytest.approx(1 / network.achieved(ALL_GATHER)[1].bandwidth * 8, rel=0.01)


def test_broadcasts_fill_a_ring_each() -> None:
    """Messages cost a filled ring more each, and at no latency as many bytes as one all-gather."""
    route = behaviour(H100, fit()).network.route(Group(64))
    one, two, three = (float(route.relay(1e9, n)) for n in (1, 2, 3))
    assert three - two == pytest.approx(two - one)
    assert two > one > 0
    ideal = behaviour(H100).network.route(Group(64))
    assert ideal.relay(1e9, 0) == pytest.approx(ideal.gather(1e9))


class TestClosedForms:
    def test_matmuls_of_a_step_at_peak(self) -> None:
        """6 FLOPs a parameter and token over the peak: matrices of all layers, and the head."""
        model, layout = Dims.of(LLAMA), Layout(gpus=1, batch=4, sequence=4096, micro_batch=4)
        found = predict(behaviour(H100).job(model, layout)).terms
        tokens, h, f = 4 * 4096, 4096, 14336
        layers = 32 * (h * (32 + 2 * 8) * 128 + 32 * 128 * h + 3 * h * f)
        assert found["matmuls"] == pytest.approx(6 * layers * tokens / H100.flops("bf16"), rel=1e-9)

    def test_causal_attention_at_peak(self) -> None:
        """2 s² a d forward (half of the square), 2.5 times that backward: FlashAttention-2."""
        layout = Layout(gpus=1, batch=1, sequence=8192)
        found = predict(behaviour(H100).job(Dims.of(LLAMA), layout)).terms
        forward = 2 * 8192**2 * 32 * 128
        expected = 32 * 3.5 * forward / H100.flops("bf16")
        assert found["attention"] == pytest.approx(expected, rel=1e-9)

    def test_tensor_parallel_at_peak(self) -> None:
        """With sequence parallelism a gather or scatter moves 2 T h (t-1)/t bytes a GPU."""
        layout = Layout(gpus=8, tp=8, batch=1, sequence=4096, tp_overlap=OVERLAP["none"])
        forward, backward = tensor_parallel(behaviour(H100).job(Dims.of(LLAMA), layout), (0.0, 0.0))
        one = 2 * 4096 * 4096 * 7 / 8 / 450e9
        assert forward == pytest.approx(4 * one)
        assert backward == pytest.approx(6 * one)

    def test_data_parallel_at_peak(self) -> None:
        """ZeRO-1: gradients scattered and weights gathered, 2 bytes each, N-1 of N parts, over
        one NIC a GPU across nodes; all of it exposed where nothing overlaps."""
        model = Dims.of(LLAMA)
        layout = Layout(gpus=16, tp=8, batch=2, sequence=4096, dp_overlap=0)
        job = behaviour(H100).job(model, layout)
        exposed = predict(job).terms["data parallel"]
        nbytes = owned(model, layout).total * 2
        assert exposed == pytest.approx(2 * nbytes / 2 / 50e9, rel=1e-9)

    def test_bubble_of_1f1b_at_peak(self) -> None:
        """(p-1)/M of the stages' work: https://arxiv.org/abs/2104.04473, section 2.2.1."""
        layout = Layout(gpus=4, pp=4, batch=8, sequence=4096)
        job = behaviour(H100).job(Dims.of(LLAMA), layout)
        part = average(job)
        send = job.network.route(Group(4, 1)).send(2.0 * 4096 * 4096)
        found = predict(job).terms["bubble"]
        assert found == pytest.approx(3 * (part.seconds + 2 * send), rel=1e-9)

    def test_a_precision_nobody_trains_in(self) -> None:
        with pytest.raises(ValueError, match=r"precision: 'fp7' is not one; the nearest .*fp"):
            behaviour(H100, None, "fp7")

    def test_a_rate_that_a_gpu_has_not(self) -> None:
        message = (
            "^precision: 'mxfp8' is refused: a100-sxm-80gb has no fp8 rate; "
            "allowed: bf16, fp16; the nearest is bf16$"
        )
        with pytest.raises(ValueError, match=message):
            behaviour(A100, fit("a100-sxm-80gb"), "mxfp8")
        with pytest.raises(ValueError, match=r"has no fp4 rate; .*; the nearest is fp8$"):
            behaviour(H100, None, "nvfp4")


class TestImbalance:
    """The busiest expert rank sets the pace; where one rank has all experts there is none busier."""

    @given(st.floats(1.0, 8.0), st.sampled_from([1, 2, 4, 8]))
    def test_it_takes_the_busiest_rank_as_long_as_it_has_rows(
        self, busiest: float, ep: int
    ) -> None:
        """At the peaks of the machine an all-to-all takes as long as the most bytes of a rank, and no
        rank has more than all tokens: EP times the mean.
        """
        even = Layout(gpus=64, ep=ep, batch=64, sequence=4096)
        model, machine = Dims.of(MIXTURE), behaviour(H100)
        plain, uneven = (
            predict(machine.job(model, layout))
            for layout in (even, replace(even, imbalance=busiest))
        )
        sent = min(busiest, ep) * float(np.asarray(plain.terms["expert parallel"]))
        assert float(np.asarray(uneven.terms["expert parallel"])) == pytest.approx(sent)
        if ep == 1:
            assert float(uneven.seconds) == float(plain.seconds)
            told = (
                peak(model, layout).total for layout in (even, replace(even, imbalance=busiest))
            )
            assert len({float(np.asarray(each)) for each in told}) == 1


class TestRing:
    """What ring attention shows of its hops: no more than all, no less than physics leaves."""

    @given(st.floats(0, 10), st.floats(0, 100), st.sampled_from([2, 3, 4, 8, 64]))
    def test_neither_the_link_nor_the_gpu_is_faster_than_alone(
        self, hop: float, attention: float, cp: int
    ) -> None:
        """Keys and values take cp - 1 hops; backward their gradients take one more, home."""
        for each, hops in ((1, cp - 1), (2, 2 * cp - 1)):
            shown = float(_around(hop, each, hops, attention, cp))
            assert shown >= 0
            assert attention + shown >= hops * hop * (1 - 1e-12)
            assert attention + shown <= attention + hops * hop + 1e-9

    def test_a_link_alone_and_a_gpu_alone(self) -> None:
        """Without computing all hops show; behind long blocks one does."""
        assert float(_around(1.0, 2, 7, 0.0, 4)) == 7
        assert float(_around(1.0, 1, 3, 0.0, 4)) == 3
        assert float(_around(1.0, 2, 7, 100.0, 4)) == 1


class TestOrder:
    """Replicas outside the pipeline: stages side by side, gradients over the outer tiers."""

    LAYOUT = Layout(
        gpus=64, tp=2, pp=4, batch=64, sequence=4096, pp_overlap=0, dp_overlap=0,
    )  # fmt: skip

    @pytest.mark.parametrize(
        ("order", "pipeline", "replicas"),
        [("tp-cp-dp-pp", [1, 4, 1], [4, 2, 1]), ("tp-cp-pp-dp", [4, 1, 1], [1, 8, 1])],
    )
    def test_children_that_groups_span(
        self, order: str, pipeline: list[int], replicas: list[int]
    ) -> None:
        """By hand: 2 · 4 GPUs of a pipeline are a node of 8, or 2 · 8 of a stage are two."""
        layout = replace(self.LAYOUT, order=ORDER[order])
        for group, degrees in ((layout.pp_group, pipeline), (layout.data_group, replicas)):
            assert [float(reach.degree) for reach in spans(group, H100.tiers)] == degrees

    def test_times_at_peak(self) -> None:
        """Sends over NVLink in place of a card; gradients over one card a node in place of four."""
        orders = np.array([ORDER["tp-cp-dp-pp"], ORDER["tp-cp-pp-dp"]], float)
        job = behaviour(H100).job(Dims.of(LLAMA), replace(self.LAYOUT, order=orders))
        terms = predict(job).terms
        sent = 2 * (8 - 1) * 2.0 * 4096 * 4096 / 2  # but for the first micro-batch, both ways
        assert terms["pipeline sends"] == pytest.approx([sent / 50e9, sent / 450e9])
        nbytes = owned(Dims.of(LLAMA), self.LAYOUT).total * 2
        near, far = nbytes / 2 / (4 * 50e9), nbytes * 7 / 8 / 50e9  # 2 nodes, or 8
        assert terms["data parallel"] == pytest.approx([2 * near, 2 * far])


class TestWhatMatmulsHide:
    """A collective hides behind matmuls at most as long as these last: here on links of 1 GB/s.

    Source: Megatron-LM, megatron/core/tensor_parallel/layers.py: the gradient of W hides the
    exchange of dX, that of x the gathering of x, in the two of four matrices split by columns.
    """

    SLOW = H100.model_copy(
        update={"tiers": tuple(t.model_copy(update={"bandwidth": 1e9}) for t in H100.tiers)}
    )
    LAYOUT = Layout(gpus=8, tp=8, batch=1, sequence=4096)
    TOKENS, WIDE = 4096, 4096 * 4096 / 8
    COLUMNS = (
        (6144 + 2 * 14336) / 4096 * WIDE
    )  # weights of query, key, value, gate and up, on a GPU
    ROWS = (4096 + 14336) / 4096 * WIDE
    COLLECTIVE = 2 * 4096 * 4096 * 7 / 8 / 1e9  # a gather or a scatter; two are an all-reduce

    def exposed(self, kind: str, split: int, model: Transformer = LLAMA, **more) -> tuple:
        layout = replace(self.LAYOUT, tp_overlap=OVERLAP[kind], sequence_parallel=split, **more)
        found = average(behaviour(self.SLOW).job(Dims.of(model), layout))
        return tuple(np.array(found.tp) / model.layers)

    @pytest.mark.parametrize(
        ("kind", "split", "gathers", "hiding"),
        [
            ("none", 0, (4, 4), (0.0, 0.0)),
            ("none", 1, (4, 6), (0.0, 0.0)),
            ("backward", 0, (4, 4), (0.0, COLUMNS)),
            ("backward", 1, (4, 6), (0.0, 2 * COLUMNS)),
            ("fine", 0, (4, 4), (COLUMNS + ROWS, 2 * (COLUMNS + ROWS))),
            ("fine", 1, (4, 6), (COLUMNS + ROWS, 2 * (COLUMNS + ROWS))),
        ],
    )
    def test_by_kind(self, kind: str, split: int, gathers: tuple, hiding: tuple) -> None:
        """At peak rates: 2 FLOPs a weight and token, twice backward."""
        waits = zip(self.exposed(kind, split), gathers, hiding, strict=True)
        for found, count, weights in waits:
            matmuls = 2 * self.TOKENS * weights / H100.flops("bf16")
            assert found == pytest.approx(count * self.COLLECTIVE - matmuls, rel=1e-3)

    def test_experts_hide_nothing_of_attention(self) -> None:
        """Their matmuls run between exchanges of their own: attention's four matrices alone count."""
        found = self.exposed("fine", 1, MIXTURE, ep=8, gpus=8, batch=1)
        matmuls = 2 * self.TOKENS * (6144 + 4096) / 4096 * self.WIDE / H100.flops("bf16")
        assert found[0] == pytest.approx(2 * self.COLLECTIVE - matmuls, rel=1e-3)


class TestOffload:
    """Activations in the host's memory: 34 s b h a layer (arXiv:2205.05198, equation 6)."""

    LAYOUT = Layout(
        gpus=1, batch=2, sequence=2048, attention=FLASH["unfused"], dropout=1,
        recompute=RECOMPUTE["attention"],
    )  # fmt: skip

    @pytest.mark.parametrize("share", [0.25, 1.0])
    @pytest.mark.parametrize("link", [np.inf, 200e9, 25e9, 1e9])
    def test_exposes_what_no_pass_hides(self, share: float, link: float) -> None:
        """max(0, bytes / W - pass), each way and for each micro-batch."""
        layout = replace(self.LAYOUT, offload_share=share)
        job = replace(behaviour(H100).job(Dims.of(GPT_22B), layout), host_link=link)
        copy = share * 48 * 34 * 2048 * 6144 / link
        part = average(job)
        waits = max(0, copy - part.forward_seconds) + max(0, copy - part.backward_seconds)
        assert predict(job).terms["offload"] == pytest.approx(2 * waits, rel=1e-9)

    def test_memory_falls_by_the_share(self) -> None:
        """But for the layer at work, which is fetched back."""
        layout = replace(self.LAYOUT, dropout=0, offload_share=np.array([0.0, 0.25, 1.0]))
        found = footprint(Dims.of(GPT_22B), layout)
        kept = found.residual + found.attention + found.scores + found.mlp
        assert kept == pytest.approx(kept[0] * np.array([1.0, 0.75, 0.0]))
        back = found.working - found.working[0]
        assert back == pytest.approx(kept[0] / 48 * np.array([0.0, 0.25, 1.0]))


class TestMeasuredLayers:
    """One layer of a 22B GPT on 8 A100, tensor parallel 8, micro-batch 4, sequence 2048.

    Source: Korthikanti et al., https://arxiv.org/abs/2205.05198, table 4 [ms].
    """

    LAYOUT = Layout(
        gpus=8, tp=8, micro_batch=4, batch=4, sequence=2048, attention=FLASH["unfused"], dropout=1,
    )  # fmt: skip

    @pytest.mark.parametrize(
        ("split", "again", "forward", "backward"),
        [
            (0, "none", 7.7, 11.9),
            (1, "none", 7.2, 11.8),
            (0, "full", 7.7, 19.5),
            (0, "attention", 7.7, 13.2),
            (1, "attention", 7.2, 13.1),
        ],
    )
    def test_against_measurement(
        self, split: int, again: str, forward: float, backward: float
    ) -> None:
        layout = replace(self.LAYOUT, sequence_parallel=split, recompute=RECOMPUTE[again])
        job = behaviour(A100, fit("a100-sxm-80gb"), "fp16").job(Dims.of(GPT_22B), layout)
        part = average(job)
        ours = np.array([part.forward_seconds, part.backward_seconds]) / 48 * 1e3
        assert ours == pytest.approx([forward, backward], rel=0.08)


def test_kinds_of_attention_differ_by_their_fit() -> None:
    kernels = calibrated.kernels(H100.accelerator, fit(), "bf16")
    kinds = np.array([FLASH[k] for k in ("flash", "flash-2024", "flash-2", "flash-1")])
    found = kernels.attention.of(kinds, 128.0)
    assert np.all(np.diff(found.efficiency) < 0)
    assert np.all(kernels.attention.of(kinds, 64.0).efficiency < found.efficiency)


def test_unaligned_heads_are_slow() -> None:
    """Tensor cores want multiples of 8 (BLOOM's search: heads of 108 took 1.3 times as long)."""
    layout = replace(TestMeasuredLayers.LAYOUT, tp=1, gpus=1)
    kernels = calibrated.kernels(A100.accelerator, fit("a100-sxm-80gb"), "fp16")
    times = [
        layer.core_attention(replace(Dims.of(GPT_22B), head_dim=d), layout, kernels).total
        for d in (104.0, 108.0, 112.0)
    ]
    assert times[1] > 3 * times[2] > times[0]
