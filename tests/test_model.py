"""Parameters and FLOPs of whole models: published counts, torch's own count, published TFLOP/s."""

import dataclasses
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roofline import counting
from roofline.model import Experts, Latent, Transformer, Window
from roofline.model_flops import (
    CONVENTIONS,
    flops_per_token,
    keys_seen,
    operations,
    packed_length,
)
from roofline.models.parts import active_parameters, matrices, parameters
from roofline.presets import preset, presets, workload

# Tensor elements of the published checkpoints (safetensors metadata on https://huggingface.co),
# without MTP and vision; of MPT, the column of llm-foundry's scripts/train/benchmarking/README.md
# at a sequence of 2048; of Gemma 2, with the 256128 tokens of arXiv:2408.00118 table 2.
COUNTED = {
    "bloom-176b": 176_247_271_424,
    "dbrx": 131_596_523_520,
    "deepseek-v2": 235_741_434_880,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v3": 671_026_419_200,
    "gemma-2-2b": 2_024_517_888 + 590_118_912,
    "gemma-2-9b": 8_324_201_984 + 917_962_752,
    "gemma-2-27b": 26_047_480_320 + 1_180_237_824,
    "gemma-3-1b": 999_885_952,
    "gemma-3-4b": 3_880_263_168,
    "gemma-3-12b": 11_766_034_176,
    "gemma-3-27b": 27_009_346_304,
    "gpt-neox-20b": 20_554_567_680,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "kimi-k2": 1_026_408_232_448,
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3-405b": 405_853_388_800,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_630_071_296,
    "mpt-125m": 125_311_488,
    "mpt-760m": 760_470_528,
    "mpt-1b": 1_315_950_592,
    "mpt-3b": 2_651_837_440,
    "mpt-7b": 6_658_859_008,
    "mpt-13b": 12_853_954_560,
    "mpt-30b": 29_975_214_080,
    "mpt-70b": 64_862_437_376,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
}


@pytest.mark.parametrize(("name", "counted"), COUNTED.items())
def test_parameters_to_the_last_one(name: str, counted: int) -> None:
    """Nothing is rounded: the checkpoints' own counts."""
    assert parameters(preset(name).model).main == counted


def test_llama_4_but_for_its_vision() -> None:
    """Both published checkpoints, 108,641,793,536 and 401,583,781,376 elements, hold the same
    vision tower and projector: so both language models are counted right.
    """
    scout = 108_641_793_536 - parameters(preset("llama-4-scout").model).total
    maverick = 401_583_781_376 - parameters(preset("llama-4-maverick").model).total
    assert scout == maverick > 0


@pytest.mark.parametrize("name", presets())
def test_parameters_of_every_preset(name: str) -> None:
    """The size that its publisher names, to 2 % (GPT-3 prints two or three digits)."""
    row = preset(name)
    assert parameters(row.model).main == pytest.approx(row.parameters, rel=0.02)
    assert row.source
    assert row.title


@pytest.mark.parametrize(
    ("name", "billions", "printed"),
    [
        ("mixtral-8x7b", 12.9, 0.1),
        ("mixtral-8x22b", 39, 0.5),
        ("dbrx", 36, 0.5),
        ("llama-4-scout", 17, 0.5),
        ("llama-4-maverick", 17, 0.5),
        ("qwen3-30b-a3b", 3.3, 0.1),
        ("qwen3-235b-a22b", 22, 0.5),
        ("deepseek-v2", 21, 0.5),
        ("deepseek-v3", 37, 0.6),
        ("kimi-k2", 32.6, 0.4),
    ],
)
def test_active_parameters(name: str, billions: float, printed: float) -> None:
    """The active parameters in each report, as printed there."""
    counted = active_parameters(preset(name).model).main / 1e9
    assert counted == pytest.approx(billions, abs=printed)


@pytest.mark.parametrize(
    ("name", "billions", "printed"),
    [("gpt-oss-20b", 3.61, 0.005), ("gpt-oss-120b", 5.13, 0.005), ("deepseek-v2-lite", 2.4, 0.06)],
)
def test_active_parameters_without_the_embedding(
    name: str, billions: float, printed: float
) -> None:
    """arXiv:2508.10925 table 1, which counts the head; arXiv:2405.04434 appendix B."""
    parts = active_parameters(preset(name).model)
    assert (parts.main - parts.embedding) / 1e9 == pytest.approx(billions, abs=printed)


def test_the_mtp_module_of_deepseek_v3() -> None:
    """DeepSeek-V3's README_WEIGHTS: 11.5 B parameters of its own, embedding and head shared."""
    parts = parameters(preset("deepseek-v3").model)
    assert parts.mtp == pytest.approx(11.5e9, rel=0.01)
    assert parts.total == parts.main + parts.mtp


@pytest.mark.parametrize(
    ("size", "embedding", "others"),
    [("1b", 302, 698), ("4b", 675, 3209), ("12b", 1012, 10759), ("27b", 1416, 25600)],
)
def test_parts_of_gemma_3(size: str, embedding: float, others: float) -> None:
    """arXiv:2503.19786 table 1, millions; it counts 262144 and a little more tokens."""
    parts = parameters(preset(f"gemma-3-{size}").model)
    assert parts.embedding / 1e6 == pytest.approx(embedding, rel=0.007)
    assert (parts.total - parts.embedding) / 1e6 == pytest.approx(others, rel=0.001)


@pytest.mark.parametrize(
    ("name", "embedding", "others"),
    [("nemotron-4-15b", 3.2, 12.5), ("nemotron-4-340b", 9.4, 331.6)],
)
def test_parts_of_nemotron_4(name: str, embedding: float, others: float) -> None:
    """arXiv:2402.16819 section 2 and arXiv:2406.11704 section 2.2, in billions."""
    parts = parameters(preset(name).model)
    vocabulary = parts.embedding + parts.head
    assert vocabulary / 1e9 == pytest.approx(embedding, abs=0.06)
    assert (parts.total - vocabulary) / 1e9 == pytest.approx(others, abs=0.06)


@pytest.mark.parametrize(
    ("size", "sequence", "counted"),
    [
        ("7b", 16384, 6_717_579_264),
        ("13b", 512, 12_846_090_240),
        ("3b", 65536, 2_814_366_720),
        ("125m", 65536, 174_070_272),
    ],
)
def test_positions_of_mpt(size: str, sequence: int, counted: int) -> None:
    """llm-foundry scripts/train/benchmarking/README.md: a learned vector for every position."""
    model = replace(preset(f"mpt-{size}").model, positions=sequence)
    assert parameters(model).total == counted


def test_shape_is_that_of_the_closed_forms() -> None:
    """Where nothing but matrices and norms is there, both counts are one."""
    for name in ("llama-3-70b", "gemma-2-9b", "palm-540b"):
        row = preset(name)
        assert counting.parameters(row.shape).total == parameters(row.model).total
        assert counting.active_parameters(row.shape).total == active_parameters(row.model).total
    flops = counting.flops(preset("llama-3-70b").shape, 1, 8192).total
    assert flops_per_token(preset("llama-3-70b").model, 8192, "k22") == pytest.approx(flops)


def test_workload_is_the_experts() -> None:
    """What the strategies compare: E, k and F of one expert, for every layer."""
    work = preset("deepseek-v3").model.workload(4e6)
    assert (work.experts, work.experts_per_token, work.d_ff, work.layers) == (256, 8, 2048, 61)
    assert work == workload("deepseek-v3", 4e6)
    assert preset("llama-3-8b").model.workload(1e6).d_ff == 14336


def test_which_layers_are_which() -> None:
    """arXiv:2412.19437 section 4.2, and the configurations of Llama 4 Maverick, Gemma 3, gpt-oss."""
    deepseek, maverick = preset("deepseek-v3").model, preset("llama-4-maverick").model
    assert deepseek.has_experts[:5] == (False, False, False, True, True)
    assert maverick.has_experts[:4] == (False, True, False, True)
    assert (deepseek.moe_layers, maverick.moe_layers) == (58, 24)
    gemma, oss = preset("gemma-3-4b").model, preset("gpt-oss-20b").model
    assert gemma.has_window[:7] == (True, True, True, True, True, False, True)
    assert oss.has_window[:3] == (True, False, True)
    assert all(preset("mistral-7b").model.has_window)
    for name in presets():
        model = preset(name).model
        assert sum(model.has_window) == model.windowed_layers
        assert sum(model.has_experts) == model.moe_layers == model.layers - model.dense_layers


def test_padding_of_the_vocabulary() -> None:
    """Megatron pads GPT-2's 50257 to 51200 for 128 x 8."""
    model = replace(preset("gpt-3-175b").model, vocab_multiple=1024)
    assert model.padded_vocab == 51200
    assert parameters(model).embedding == 51200 * 12288


def test_capacity_factor() -> None:
    """Dropless computes k rows a token, a capacity factor pads or drops to it."""
    assert Experts(8, 2, 4).slots_per_token == 2
    assert Experts(8, 2, 4, capacity_factor=1.25).slots_per_token == 2.5


# FLOPs


def test_flops_of_gpt_3() -> None:
    """arXiv:2205.05198 appendix A, 72 B L s h² (1 + s/6h + V/12hL), and its section 5 with
    attention once more; arXiv:2104.04473 equation 3, 96 B s L h² (1 + s/6h + V/16Lh).
    """
    layers, h, s, v = 96, 12288, 2048, 51200
    model = replace(preset("gpt-3-175b").model, vocab=v)
    layer = layers * h**2
    wanted = {
        "k22": 72 * layer * (1 + s / (6 * h) + v / (12 * h * layers)),
        "k22-selective": 72 * layer * (1 + s / (6 * h) * 4 / 3 + v / (12 * h * layers)),
        "sc21": 96 * layer * (1 + s / (6 * h) + v / (16 * h * layers)),
    }
    for name, flops in wanted.items():
        assert flops_per_token(model, s, name) == pytest.approx(flops)
    assert flops_per_token(model, s, "k22-gpt") == pytest.approx(wanted["k22"])
    assert flops_per_token(model, s, "sc21-gpt") == pytest.approx(wanted["sc21"])


def test_flops_of_palm() -> None:
    """arXiv:2204.02311 appendix B: 6 N + 12 L H Q T."""
    model = preset("palm-540b").model
    wanted = 6 * parameters(model).total + 12 * 118 * 48 * 256 * 2048
    assert flops_per_token(model, 2048, "palm") == pytest.approx(wanted)
    assert flops_per_token(model, 2048, "6n") == pytest.approx(6 * parameters(model).total)


# Published TFLOP/s per GPU and the tokens/s per GPU beside it.
#   k22: NVIDIA NeMo performance summary 24.07, 25.02, 25.04 and 25.07, H100, B200 and GB200.
#   megatron: Megatron-Bridge docs/performance-summary.md, containers 25.09 to 26.08.
#   palm, with as many positions as tokens: llm-foundry scripts/train/benchmarking/README.md.
#   sc21: bigscience-workshop/bigscience, chronicles of BLOOM-176B.
# Tokens/s are printed as whole numbers, so the agreement is that of the rounding.
PUBLISHED = [
    ("gpt-3-175b", 2048, "k22", 716, 771, {"vocab_multiple": 1024}),
    ("gpt-3-175b", 2048, "k22", 1600, 1722, {"vocab_multiple": 1024}),
    ("llama-2-7b", 4096, "k22", 16934, 780, {}),
    ("llama-2-13b", 4096, "k22", 8715, 760, {}),
    ("llama-2-70b", 4096, "k22", 1728, 768, {}),
    ("llama-3-8b", 8192, "k22", 12273, 711, {}),
    ("llama-3-70b", 8192, "k22", 1524, 734, {}),
    ("llama-3-405b", 8192, "k22", 706, 1854, {}),
    ("nemotron-4-15b", 4096, "k22", 14760, 1387, {}),
    ("nemotron-4-340b", 4096, "k22", 326, 686, {}),
    ("mixtral-8x7b", 4096, "k22", 15457, 1282, {}),
    ("llama-4-scout", 8192, "megatron", 13783, 1501, {}),
    ("llama-3-8b", 8192, "megatron", 37556, 1933, {}),
    ("llama-3-70b", 8192, "megatron", 4520, 2030, {}),
    ("llama-3-405b", 8192, "megatron", 302, 763, {}),
    ("deepseek-v3", 4096, "megatron", 4912, 1276, {}),
    ("deepseek-v3", 4096, "megatron", 4018, 1003, {"mtp": 0}),
    ("qwen3-30b-a3b", 4096, "megatron", 31470, 724, {}),
    ("qwen3-235b-a22b", 4096, "megatron", 4452, 659, {}),
    ("gpt-oss-120b", 4096, "megatron", 28672, 934, {}),
    ("mpt-70b", 2048, "palm", 1007, 408, {}),
    ("mpt-13b", 32768, "palm", 1976, 313, {"positions": 32768}),
    ("mpt-3b", 512, "palm", 27965, 458, {"positions": 512}),
    ("mpt-7b", 8192, "palm", 2887, 153, {"positions": 8192}),
    ("bloom-176b", 2048, "sc21", 104.33, 149.77, {}),
]


@pytest.mark.parametrize(("name", "sequence", "convention", "tokens", "tflops", "more"), PUBLISHED)
def test_published_throughput(
    name: str, sequence: int, convention: str, tokens: float, tflops: float, more: dict[str, int]
) -> None:
    """Tokens/s times FLOPs per token are the TFLOP/s that stand beside them, to the digits printed
    or 0.2 %. (Newer tables round tokens/s to multiples of 64, which hides more.)
    """
    model = replace(preset(name).model, **more)
    counted = tokens * flops_per_token(model, sequence, convention) / 1e12
    printed = 0.5 / tokens * tflops + 0.5
    assert counted == pytest.approx(tflops, abs=max(printed, 0.002 * tflops))


@pytest.mark.parametrize(
    ("name", "causal", "full"),
    [("llama-3-70b", 449, 481), ("llama-3-8b", 51.5, 57.9)],
)
def test_the_same_run_in_two_conventions(name: str, causal: float, full: float) -> None:
    """GFLOP a token at 8192: NVIDIA's tables before and after they halved attention."""
    model = preset(name).model
    assert flops_per_token(model, 8192, "causal") / 1e9 == pytest.approx(causal, rel=0.001)
    assert flops_per_token(model, 8192, "full") / 1e9 == pytest.approx(full, rel=0.001)


def test_torchtitan_leaves_the_embedding_out() -> None:
    """torchtitan models/utils.py: 6 (N - N_embedding) + 12 L H Q T; kept where tied."""
    llama, tied = preset("llama-3-8b").model, preset("qwen3-4b").model
    attention = 12 * 32 * 4096 * 8192
    wanted = 6 * (8_030_261_248 - 128256 * 4096) + attention
    assert flops_per_token(llama, 8192, "torchtitan") == pytest.approx(wanted)
    assert flops_per_token(tied, 4096, "torchtitan") == flops_per_token(tied, 4096, "palm")


def test_hfu_is_a_third_more() -> None:
    """llm-foundry: HFU is 4/3 MFU with activation checkpointing."""
    model = preset("mpt-7b").model
    hfu, mfu = (flops_per_token(model, 2048, name) for name in ("foundry-hfu", "palm"))
    assert hfu / mfu == pytest.approx(4 / 3)


@pytest.mark.parametrize(
    "window", [None, Window(1), Window(5), Window(64), Window(5, chunked=True)]
)
@pytest.mark.parametrize("causal", [True, False])
def test_keys_seen_one_by_one(window: Window | None, causal: bool) -> None:
    """Counted in a mask, but for the half of the diagonal that print leaves out."""
    for s in (1, 4, 5, 13, 40):
        i, j = np.indices((s, s))
        seen = (j <= i) if causal else np.ones((s, s), bool)
        size = window.size if window else s
        if window and causal:
            seen &= (i // size == j // size) if window.chunked else (i - j < size)
        if window and not causal:
            seen = np.ones((s, min(size, s)), bool)
        diagonal = _half_diagonal(s, window) if causal else 0.0
        assert keys_seen(s, window, causal=causal) == pytest.approx(seen.sum() / s - diagonal)


def _half_diagonal(s: int, window: Window | None) -> float:
    sliding = window is not None and not window.chunked
    return 0.5 * min(window.size / s, 1.0) if sliding and window else 0.5


def test_packed_documents() -> None:
    """Attention of a sequence of two documents: 1² + 3² quarters of one."""
    assert packed_length(np.array([1024.0, 3072.0])) == 10 / 16 * 4096
    assert packed_length(4096.0) == 4096


def test_an_array_is_its_points() -> None:
    """One code path, under every convention."""
    lengths = np.array([1, 127, 128, 4096, 131072])
    for name in ("llama-3-8b", "gpt-oss-20b", "deepseek-v3", "llama-4-scout"):
        model = preset(name).model
        for convention in CONVENTIONS:
            table = np.broadcast_to(flops_per_token(model, lengths, convention), lengths.shape)
            for k, length in enumerate(lengths.tolist()):
                assert table[k] == pytest.approx(flops_per_token(model, length, convention))


sizes = st.integers(1, 32)
heads = st.integers(1, 4)
mixtures = st.none() | st.builds(
    Experts,
    count=st.integers(4, 16),
    per_token=st.integers(1, 4),
    d_ff=sizes,
    shared_d_ff=st.integers(0, 8),
    first=st.integers(0, 1),
    router_bias=st.booleans(),
)
models = st.builds(
    lambda kv_heads, group, **more: Transformer(
        "any", heads=kv_heads * group, kv_heads=kv_heads, **more
    ),
    kv_heads=heads,
    group=heads,
    layers=st.integers(2, 8),
    d_model=sizes,
    d_ff=sizes,
    head_dim=sizes,
    vocab=sizes,
    gated=st.booleans(),
    tied=st.booleans(),
    mlp_bias=st.booleans(),
    experts=mixtures,
    window=st.none() | st.builds(Window, sizes, full_every=st.integers(0, 4)),
    mtp=st.integers(0, 2),
)


@given(models)
def test_parts_sum_to_the_total(model: Transformer) -> None:
    """Nothing is counted twice or left out, and a token meets no more than there is."""
    for counted in (parameters(model), active_parameters(model)):
        assert counted.total == sum(dataclasses.astuple(counted))
    for part in dataclasses.fields(parameters(model)):
        met = getattr(active_parameters(model), part.name)
        assert met <= getattr(parameters(model), part.name)


@given(models, st.integers(1, 100_000))
def test_conventions_are_ordered(model: Transformer, sequence: int) -> None:
    """Whoever counts more, counts no less."""
    count = {name: flops_per_token(model, sequence, name) for name in CONVENTIONS}
    slack = 1 + 1e-12
    assert count["causal"] <= count["full"] * slack
    assert count["causal"] <= count["hardware"] * slack
    assert count["megatron"] <= count["causal"] * slack
    assert count["k22"] <= count["k22-selective"] * slack <= count["sc21"] * slack**2
    assert count["6n"] <= count["palm"] * slack <= count["foundry-hfu"] * slack**2
    assert count["torchtitan"] <= count["palm"] * slack


@given(models, st.integers(1, 100_000))
def test_operations_sum_to_the_total(model: Transformer, sequence: int) -> None:
    """Each is forward, backward and what is computed again."""
    for name in CONVENTIONS:
        rows = operations(model, sequence, name)
        assert len({row.name for row in rows}) == len(rows)
        for row in rows:
            assert row.total == pytest.approx(row.forward + row.backward + row.recomputed)
        total = sum(row.total for row in rows)
        assert flops_per_token(model, sequence, name) == pytest.approx(total)


@given(models)
def test_weights_cost_two_flops_each(model: Transformer) -> None:
    """Forward FLOPs of a token are twice the matrices that it meets."""
    for row in matrices(model):
        assert row.forward_flops == 2 * row.layers * row.met * row.inputs * row.outputs


TINY = ("tiny", 2, 8, 16, 4, 2, 2, 100)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": 0}, r"layers: 0 is refused; allowed: whole numbers from 1.*nearest is 1$"),
        ({"layers": 2.5}, r"layers: 2.5.*whole numbers.*nearest is 2"),
        ({"layers": float("nan")}, r"layers: nan"),
        ({"layers": float("inf")}, r"layers: inf.*nearest is 10000000"),
        ({"layers": "two"}, r"layers: 'two'"),
        ({"layers": True}, r"layers: True"),
        ({"vocab": 10**12}, r"vocab: .*nearest is 10000000"),
        ({"d_ff": 0}, r"d_ff: 0"),
        ({"kv_heads": 3}, r"kv_heads: 3 is refused; allowed: divisors of the 4 heads; .* is 2"),
        ({"norm": "rmnsorm"}, r"norm: 'rmnsorm' is not one; the nearest are rmsnorm"),
        ({"norm": 1}, r"norm: '1' is not one"),
        ({"tied": 1}, r"tied: 1 is refused; allowed: True or False"),
        ({"latent": Latent(0, 4, 2, 2, 2)}, r"kv_heads: 2.*as many as heads, 4"),
        ({"experts": Experts(4, 2, 8, first=2)}, r"experts.first.*2 layers"),
        ({"mtp": -1}, r"mtp: -1.*nearest is 0"),
    ],
)
def test_a_wrong_size_is_told(change: dict[str, object], message: str) -> None:
    """Field, value, what is allowed, and the nearest that is."""
    with pytest.raises(ValueError, match=message):
        replace(Transformer(*TINY), **change)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Experts(4, 5, 8), r"per_token: 5.*nearest is 4"),
        (lambda: Experts(4, 2, 8, capacity_factor=0.0), r"capacity_factor: 0.0"),
        (lambda: Window(0), r"size: 0"),
        (lambda: Latent(0, 0, 2, 2, 2), r"kv_rank: 0"),
        (lambda: flops_per_token(Transformer(*TINY), 0), r"sequence: 0"),
        (lambda: flops_per_token(Transformer(*TINY), 8, "megatorn"), r"the nearest is megatron"),
    ],
)
def test_a_wrong_part_is_told(make, message: str) -> None:
    """The same for the parts."""
    with pytest.raises(ValueError, match=message):
        make()


def test_numpy_integers_do_not_wrap() -> None:
    """32 bits of numpy would, at 405 B."""
    wide = [np.int32(n) for n in (126, 16384, 53248, 128, 8, 128, 128256)]
    assert parameters(Transformer("llama-3-405b", *wide)).total == 405_853_388_800
