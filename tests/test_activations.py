"""What a layer keeps, and keeping, recomputing or sending it away."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardware_profiles import cluster
from roofline.activations import (
    KEPT,
    Place,
    Saved,
    activation_bytes,
    all_layers,
    breakeven_width,
    fates,
    kept,
    matmul_output,
    optimizer_offload,
    places,
)
from roofline.presets import preset

# Sequence, width, heads of GPT-3 and MT-NLG, micro-batch 1: Korthikanti et al., table 3.
GPT_3, MT_NLG = (2048, 12288, 96), (2048, 20480, 128)


def layer(policy: str, s: int, h: int, a: int, **how: int) -> float:
    sizes = {"d_ff": 4 * h, "heads": a, "length": s}
    return float(activation_bytes(kept(policy), s, h, **sizes, **how))


@pytest.mark.parametrize(("model", "attention"), [(GPT_3, 80), (MT_NLG, 64)])
def test_korthikanti_formulas(model: tuple[int, int, int], attention: int) -> None:
    """Korthikanti et al., table 2, and section 5: 5as/h is 80 for GPT-3 and 64 for MT-NLG."""
    s, h, _ = model
    t = 8
    one = s * h
    assert layer("everything", *model) == one * (34 + attention)
    assert layer("everything", *model, tensor_parallel=t) == pytest.approx(
        one * (10 + 24 / t + attention / t)
    )
    both = {"tensor_parallel": t, "sequence_parallel": True}
    assert layer("everything", *model, **both) == pytest.approx(one * (34 + attention) / t)
    assert layer("selective", *model, **both) == pytest.approx(one * 34 / t)
    assert layer("selective", *model, tensor_parallel=t) == pytest.approx(one * (10 + 24 / t))
    assert layer("block", *model) == 2 * one


@pytest.mark.parametrize(("model", "saved"), [(GPT_3, 0.70), (MT_NLG, 0.65)])
def test_what_selective_recomputation_saves(model: tuple[int, int, int], saved: float) -> None:
    """Korthikanti et al., section 5: 70 % and 65 % of the activation memory."""
    share = layer("selective", *model) / layer("everything", *model)
    assert 1 - share == pytest.approx(saved, abs=0.005)


def test_the_books_sums() -> None:
    """How to Scale Your Model, "Transformers": 84 TB for 4e6 tokens, D = 8192, L = 64, and about a
    twentieth with block remat; "Training", question 2: 42 TB of MLP outputs for LLaMA 2-13B.
    """
    everything = activation_bytes(kept("book-everything"), 4e6, 8192, layers=64)
    assert everything / 1e12 == pytest.approx(84, abs=0.5)
    assert activation_bytes(kept("block"), 4e6, 8192, layers=64) == everything / 20
    outputs = activation_bytes(kept("mlp-outputs"), 16e6, 5120, layers=40, d_ff=13824)
    assert outputs / 1e12 == pytest.approx(42, abs=0.5)


@given(st.sampled_from(list(KEPT)), st.sampled_from([1, 2, 8]), st.booleans())
def test_parallelism_never_adds(policy: str, t: int, sp: bool) -> None:
    """More ways to cut keep less on each GPU; one way changes nothing."""
    cut = layer(policy, *GPT_3, tensor_parallel=t, sequence_parallel=sp)
    assert layer(policy, *GPT_3) / t <= cut * (1 + 1e-12)
    assert cut <= layer(policy, *GPT_3)
    assert layer(policy, *GPT_3, tensor_parallel=t, sequence_parallel=True) == pytest.approx(
        layer(policy, *GPT_3) / t
    )


def test_sizes_that_are_missing_are_asked_for() -> None:
    """Never a quiet zero."""
    with pytest.raises(ValueError, match="heads and length"):
        activation_bytes(kept("everything"), 4096, 8192)
    with pytest.raises(ValueError, match="d_ff"):
        activation_bytes(kept("mlp-outputs"), 4096, 8192)
    with pytest.raises(ValueError, match="selective"):
        kept("selectve")


def test_places_of_an_h100() -> None:
    """450 GB/s to a peer, one 400 Gb/s card to another node, 63 GB/s to the host: DGX H100."""
    h100 = cluster("dgx-h100-superpod")
    assert h100.host_link is not None
    found = places(h100, h100.host_link.total)
    assert found[0].bandwidth == 450e9
    assert found[1].bandwidth == 50e9
    assert found[-1] == ("host", 63e9)
    assert len(places(h100)) == len(h100.tiers)


@pytest.mark.parametrize(("bandwidth", "width"), [(450e9, 2200), (63e9, 15714), (50e9, 19800)])
def test_breakeven_of_an_h100(bandwidth: float, width: float) -> None:
    """990e12 over the bandwidth, and there the two times are equal."""
    assert breakeven_width(990e12, bandwidth) == pytest.approx(width, abs=1)
    saved = matmul_output(4096, breakeven_width(990e12, bandwidth), 8192)
    ways = fates(saved, 990e12, [Place("there", bandwidth)]).ways
    assert ways[1].seconds == pytest.approx(ways[2].seconds)


def test_who_wins() -> None:
    """What fits is kept; else a narrow matmul is made again and a wide one fetched."""
    h100 = [Place("peer", 450e9), Place("host", 63e9)]
    saved = matmul_output(4096, np.array([1024, 2100, 2300, 16384]), 8192)
    assert fates(saved, 990e12, h100).best.tolist() == ["keep"] * 4
    tight = fates(saved, 990e12, h100, free=1e6)
    assert tight.best.tolist() == ["recompute", "recompute", "peer", "peer"]
    host = fates(saved, 990e12, h100[1:], free=1e6)
    assert host.best.tolist() == ["recompute"] * 3 + ["host"]
    hidden = fates(saved, 990e12, h100[1:], free=1e6, hidden=1.0)
    assert hidden.best.tolist() == ["host"] * 4
    assert fates(saved._replace(inputs=2e6), 990e12, [], free=1e6).best.tolist() == [""] * 4


@given(
    st.floats(1, 1e12),
    st.floats(1, 1e15),
    st.floats(0, 1e12),
    st.floats(1e9, 1e12),
    st.integers(1, 2),
)
def test_the_best_is_the_fastest_that_fits(
    nbytes: float, work: float, free: float, bandwidth: float, trips: int
) -> None:
    """By trying all."""
    found = fates(Saved(nbytes, work, nbytes / 20), 1e15, [Place("p", bandwidth)], free=free)
    possible = [way for way in found.ways if way.memory <= free]
    assert str(found.best) == min(possible, key=lambda way: way.seconds).name


def test_all_layers() -> None:
    """Made again from the layer inputs: a forward pass of 2 Ψ FLOPs a token and attention."""
    shape = preset("llama-2-13b").shape
    saved = all_layers(shape, 4096, 4096, "everything")
    assert saved.inputs == 2 * 4096 * 5120 * 40
    assert saved.flops == pytest.approx(
        4096 * 2 * (8_493_465_600 + 4_194_304_000) + 4 * 4096**2 * 5120 * 40
    )
    assert saved.nbytes > all_layers(shape, 4096, 4096).nbytes > saved.inputs


def test_optimizer_offload() -> None:
    """7 B parameters over PCIe 5 x16: 14 GB each way at 63 GB/s."""
    assert optimizer_offload(7e9, 63e9) == pytest.approx(14 / 63)
    assert optimizer_offload(7e9, 63e9, duplex=False) == pytest.approx(28 / 63)
    assert optimizer_offload(7e9, 63e9, gradient_bytes=4) == pytest.approx(28 / 63)
