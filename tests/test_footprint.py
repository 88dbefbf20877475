"""Memory of whole jobs against papers, Megatron-LM's own formula and what was measured."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roofline.dims import Dims
from roofline.footprint import Footprint, footprint, peak
from roofline.layout import FLASH, MODULES, OVERLAP, RECOMPUTE, SCHEDULE, Layout
from roofline.model import Transformer
from roofline.models.parts import matrices, parameters
from roofline.presets import preset, presets
from roofline.recipes import RECIPES, recipe
from roofline.schedule import timeline
from roofline.stages import Owned, cut, held, in_flight_on, owned, stage
from roofline.units import GIB

DATA = Path(__file__).parent / "data"
MEASURED = [json.loads(line) for line in (DATA / "footprints.jsonl").read_text().splitlines()]
UNFUSED = FLASH["unfused"]
KINDS = ("residual", "attention", "scores", "mlp", "experts")

# L, h, a, t, p, v, b of Korthikanti et al., table 3; s = 2048.
KORTHIKANTI = {
    "22B": (48, 6144, 64, 8, 1, 1, 4),
    "175B": (96, 12288, 96, 8, 8, 3, 1),
    "530B": (105, 20480, 128, 8, 35, 3, 1),
    "1T": (128, 25600, 160, 8, 64, 1, 1),
}


def gpt(layers: int, h: int, a: int, vocab: int = 51200) -> Dims:
    sizes = (layers, h, 4 * h, a, a, h // a, vocab)
    gelu: dict[str, Any] = {"gated": False, "norm": "layernorm", "mlp_bias": True}
    return Dims.of(Transformer("gpt", *sizes, tied=True, rope=False, **gelu))


def korthikanti(name: str, how: str) -> tuple[Dims, Layout]:
    """A model without vocabulary and biases, as the paper counts it, and one replica of its run."""
    layers, h, a, t, p, v, b = KORTHIKANTI[name]
    sequence, again = {
        "none": (0, "none"),
        "seq": (1, "none"),
        "sel": (0, "attention"),
        "seqsel": (1, "attention"),
        "full": (0, "full"),
    }[how]
    model = replace(gpt(layers, h, a), vocab=0.0, bias=0.0)
    degrees = {"tp": t, "pp": p, "chunks": v, "micro_batch": b, "batch": 8 * p * b}
    choices = {"attention": UNFUSED, "dropout": 1, "zero": 0, "recompute": RECOMPUTE[again]}
    return model, Layout(t * p, sequence_parallel=sequence, **degrees, **choices)


def layers_only(found: Footprint) -> float:
    """Activations of the layers, as equations 1 to 6 count them."""
    return float(sum(getattr(found, kind) for kind in KINDS))


@pytest.mark.parametrize(
    ("name", "states", "everything", "both"),
    [
        ("22B", 45.5625, 59.25, 9.5625),
        ("175B", 45.5625, 66.84375, 12.3515625),
        ("530B", 31.640625, 114.0234375, 23.076171875),
        ("1T", 32.958984375, 131.25, 26.5625),
    ],
)
def test_korthikanti_figure_1(name: str, states: float, everything: float, both: float) -> None:
    """Korthikanti et al., figure 1, its digits from calculon's validation.py: GiB of parameters and
    optimizer, of activations, and of those with sequence parallelism and selective recomputation.
    It counts 12 h² parameters a layer; the norms that we add are 0.04 %.
    """
    for how, activations in (("none", everything), ("seqsel", both)):
        model, layout = korthikanti(name, how)
        # The dropout mask behind the embedding is not in the figure.
        found = footprint(model, layout)
        part = stage(model, layout, 0)
        mask = layout.tokens * model.hidden / layout.split * part.in_flight
        assert found.states / GIB == pytest.approx(states, rel=5e-4)
        assert (layers_only(found) - mask) / GIB == pytest.approx(activations, rel=1e-9)


@pytest.mark.parametrize(
    ("name", "shares"),
    [
        ("22B", (66.84, 49.42, 16.18, 7.64)),
        ("175B", (62.04, 56.53, 18.49, 8.71)),
        ("530B", (58.31, 62.04, 20.27, 9.42)),
        ("1T", (58.31, 62.04, 20.27, 9.42)),
    ],
)
def test_korthikanti_figure_7(name: str, shares: tuple[float, ...]) -> None:
    """Korthikanti et al., figure 7, read by calculon: percent of tensor parallelism alone left by
    sequence parallelism, selective recomputation, both, and full recomputation.
    """
    kept = {}
    for how in ("none", "seq", "sel", "seqsel", "full"):
        model, layout = korthikanti(name, how)
        kept[how] = layers_only(footprint(model, replace(layout, pp=1, chunks=1, gpus=layout.tp)))
    ours = [100 * kept[how] / kept["none"] for how in ("seq", "sel", "seqsel", "full")]
    assert ours == pytest.approx(shares, abs=0.75)


def test_megatron_formula() -> None:
    """Megatron-LM, megatron/training/theoretical_memory_usage.py, run for three jobs: GiB of
    weights and optimizer on the fullest GPU; activations only where its formula, which knows
    neither gates nor experts, applies. 0.1 %: it counts no biases.
    """
    model = gpt(96, 12288, 96)
    layout = Layout(64, 8, 1, 8, chunks=3, batch=64, zero=0, attention=UNFUSED, dropout=1)
    layout = replace(layout, recompute=RECOMPUTE["attention"])
    gpt_3 = footprint(model, layout)
    assert gpt_3.states / GIB == pytest.approx(46.89, rel=1e-3)
    assert layers_only(gpt_3) / GIB == pytest.approx(12.38, abs=0.005)
    llama = Layout(64, tp=4, pp=4, chunks=5, batch=128, sequence=8192)
    found = footprint(Dims.of(preset("llama-3-70b").model), llama)
    assert found.states / GIB == pytest.approx(38.06, rel=1e-3)
    deepseek = replace(Dims.of(preset("deepseek-v3").model), mtp=0.0)
    layout = Layout(2048, pp=16, ep=64, batch=8192, sequence=4096)
    first, four, three = (footprint(deepseek, layout, index=i).states for i in (0, 5, 14))
    even = first - (4 - 61 / 16) * (four - three)  # the formula spreads 61 layers over 16 stages
    assert even / GIB == pytest.approx(17.81, rel=2e-3)


def measured(row: dict[str, Any]) -> float:
    """Our GiB of a row's total."""
    *sizes, gated, tied = row["model"]
    norm = "rmsnorm" if gated else "layernorm"
    looks: dict[str, Any] = {"gated": gated, "tied": tied, "norm": norm, "mlp_bias": not gated}
    model = Transformer("measured", *sizes, vocab_multiple=128, **looks)
    codes = {"recompute": RECOMPUTE, "attention": FLASH}
    layout = Layout(
        **{
            field: codes[field][value] if isinstance(value, str) else value
            for field, value in row["layout"].items()
        }
    )
    found = peak(Dims.of(model), layout, recipe(row["recipe"]), in_flight=row.get("in_flight"))
    return float(getattr(found, row["measure"])) / GIB


@pytest.mark.parametrize("row", MEASURED, ids=lambda row: str(row["id"]))
def test_measured(row: dict[str, Any]) -> None:
    """data/footprints.jsonl: published memory per GPU, within what the row says."""
    assert measured(row) == pytest.approx(row["gib"], rel=row["within"])


def test_most_that_can_be_known_is_within_5_percent() -> None:
    """Of zero bubble's 48 rows 42, of torchtitan's 20 all but three (8B all 12), and of BLOOM's 48,
    which one configuration measured twice has 16 % apart, 8: 67 of 116.
    """
    near = [row for row in MEASURED if abs(measured(row) / row["gib"] - 1) <= 0.05]
    for group, least in (("zero-bubble", 42), ("8b", 12), ("torchtitan", 17), ("bloom", 8)):
        assert sum(group in (row["group"], *row["id"].split("-")) for row in near) >= least
    assert all(row in near or row["why"] for row in MEASURED)


def test_zero_3_of_the_paper() -> None:
    """Rajbhandari et al., figure 1: 7.5e9 parameters on 64 GPUs: 120, 31.4, 16.6, 1.9 GB."""
    model = gpt(36, 4096, 32)
    scale = 7.5e9 / parameters_of(model)
    layout = Layout(64, batch=64, zero=np.arange(4), sequence_parallel=0)
    states = footprint(model, layout, recipe("bf16-gradients")).states * scale
    assert states / 1e9 == pytest.approx([120, 31.4, 16.6, 1.88], abs=0.05)


def parameters_of(model: Dims) -> float:
    return float(held(model, Layout(1), model.layers, model.mtp, 2 - model.tied).total)


@pytest.mark.parametrize("name", presets())
def test_parameters_are_the_models(name: str) -> None:
    """What all stages hold is the whole model: learned positions, up to 1.3 %, are left out."""
    row = preset(name)
    model, pp = Dims.of(row.model), 3
    layout = Layout(pp, pp=pp, batch=24)
    total = parameters(row.model).total
    assert parameters_of(model) == pytest.approx(total, rel=0.014)
    found = cut(model, layout, np.arange(pp))
    ends = found.ends(model.tied)
    together = np.sum(held(model, layout, found.layers, model.mtp * found.head, ends).total)
    assert together == pytest.approx(total + model.tied * model.embedding, rel=0.014)


@pytest.mark.parametrize("name", [*SCHEDULE, "interleaved"])
@pytest.mark.parametrize("p", [2, 4, 8])
@pytest.mark.parametrize("m", [16, 24])
def test_in_flight_is_what_the_schedule_plays(name: str, p: int, m: int) -> None:
    """roofline.schedule, played pass by pass, on every stage; ZB-2p keeps what ZB-H2 keeps."""
    chunks = 3 if name == "interleaved" else 1
    code = SCHEDULE["1f1b" if name == "interleaved" else name]
    layout = Layout(p, pp=p, chunks=chunks, batch=m, schedule=code)
    played = timeline(
        "zb-h2" if name == "zb-2p" else name, p, m, chunks=3 if chunks > 1 else None
    ).in_flight
    ours = np.broadcast_to(in_flight_on(layout, np.arange(p)), p)
    assert ours == pytest.approx(played)


MODELS = {
    "gpt": gpt(24, 2048, 16),
    "llama": Dims.of(preset("llama-3-8b").model),
    "gpt-oss": Dims.of(preset("gpt-oss-120b").model),
    "deepseek": Dims.of(preset("deepseek-v3").model),
}
TWOS = st.sampled_from([1, 2, 4, 8])


@st.composite
def layouts(draw: st.DrawFn) -> dict[str, Any]:
    """A layout with eight replicas or more, so that every axis has something to cut."""
    tp, cp, pp = draw(TWOS), draw(st.sampled_from([1, 2])), draw(TWOS)
    schedule = draw(st.sampled_from(list(SCHEDULE)))
    return {
        "gpus": 64 * cp * pp * tp,
        "tp": tp,
        "cp": cp,
        "pp": pp,
        "ep": draw(TWOS),
        "chunks": draw(st.sampled_from([1, 2])) if schedule == "1f1b" else 1,
        "batch": 64 * draw(st.sampled_from([16, 32])),
        "sequence": draw(st.sampled_from([2048, 8192])),
        "zero": draw(st.integers(0, 3)),
        "shard": draw(st.sampled_from([0, 8])),
        "reshard": draw(st.integers(0, 1)),
        "schedule": SCHEDULE[schedule],
        "even": draw(st.integers(0, 1)),
        "recompute": draw(st.integers(0, 4)),
        "recompute_share": draw(st.sampled_from([0.5, 1.0])),
        "offload_share": draw(st.sampled_from([0.0, 0.5])),
        "sequence_parallel": draw(st.integers(0, 1)),
        "attention": draw(st.sampled_from([UNFUSED, FLASH["flash"]])),
        "dropout": draw(st.integers(0, 1)),
        "fused": draw(st.integers(0, 1)),
        "fused_loss": draw(st.integers(0, 1)),
    }


models = st.sampled_from(list(MODELS))
recipes = st.sampled_from(list(RECIPES))


@given(models, layouts(), recipes)
def test_parts_are_the_total(model: str, layout: dict[str, Any], name: str) -> None:
    """Every byte has a name, none is negative, and the totals nest."""
    found = peak(MODELS[model], Layout(**layout), recipe(name))
    assert sum(found.parts.values()) == pytest.approx(found.total, rel=1e-12)
    assert all(np.all(part >= 0) for part in found.parts.values())
    assert found.allocated <= found.reserved <= found.total
    assert found.headroom(80e9) == 80e9 - found.total
    assert found.fits(80e9) == (found.total <= 80e9)


@given(models, layouts(), recipes)
def test_the_peak_is_over_all_stages(model: str, layout: dict[str, Any], name: str) -> None:
    """Three or four stages are enough to look at."""
    each = [
        footprint(MODELS[model], Layout(**layout), recipe(name), index).total
        for index in range(layout["pp"])
    ]
    assert peak(MODELS[model], Layout(**layout), recipe(name)).total == pytest.approx(max(each))


def rising(field: str, values: list[int], model: str, layout: dict[str, Any], name: str) -> Any:
    """Footprints of one layout with a field at several values."""
    return peak(MODELS[model], Layout(**layout | {field: np.array(values)}), recipe(name))


@given(models, layouts(), recipes)
def test_more_zero_is_never_more_states(model: str, layout: dict[str, Any], name: str) -> None:
    """And on a model of many layers never more memory up to stage 2; stage 3 gathers layers."""
    found = rising("zero", [0, 1, 2, 3], model, layout, name)
    assert np.all(np.diff(found.states) <= 1e-9 * found.states[:-1])
    assert np.all(np.diff(found.total[:3]) <= 1e-9 * found.total[:2])
    if layout["reshard"] and layout["pp"] == 1:
        assert found.total[3] <= found.total[0] * (1 + 1e-9)


@given(models, layouts(), recipes)
def test_more_recomputation_is_never_more(model: str, layout: dict[str, Any], name: str) -> None:
    """None, attention, half, block, full; none, one module more each time."""
    whole = [RECOMPUTE[how] for how in ("none", "attention", "half", "block", "full")]
    found = rising("recompute", whole, model, layout, name)
    assert np.all(np.diff(found.total) <= 1e-9 * found.total[:-1])
    layout = layout | {"recompute": RECOMPUTE["modules"]}
    sets = np.cumsum([0, *MODULES.values()]).tolist()
    more = rising("recompute_modules", sets, model, layout, name)
    kept = more.activations - more.working
    assert np.all(np.diff(kept) <= 1e-9 * more.total[:-1])
    if not layout["recompute_share"] < 1:
        assert np.isclose(more.total[0], found.total[0], rtol=1e-12)


@given(models, layouts(), recipes)
def test_more_tensor_parallelism_is_never_more(
    model: str, layout: dict[str, Any], name: str
) -> None:
    """With as many replicas; what sequence parallelism gathers is less than what it cuts."""
    tp = np.array([1, 2, 4, 8])
    scaled = layout | {"gpus": layout["gpus"] // layout["tp"] * tp, "tp": tp, "offload_share": 0.0}
    found = peak(MODELS[model], Layout(**scaled), recipe(name))
    assert np.all(np.diff(found.total) <= 1e-9 * found.total[:-1])


@given(models, layouts(), recipes)
def test_more_context_parallelism_and_fewer_micro_batches_are_never_more(
    model: str, layout: dict[str, Any], name: str
) -> None:
    """Both cut tokens; the replicas that context parallelism takes still shard."""
    found = rising("cp", [1, 2, 4, 8], model, layout, name)
    assert np.all(np.diff(found.total) <= 1e-9 * found.total[:-1])
    found = rising("batch", [64 * 8, 64 * 16, 64 * 64], model, layout, name)
    assert np.all(np.diff(found.total) >= -1e-9 * found.total[:-1])


@settings(max_examples=25)
@given(st.lists(st.tuples(models, layouts()), min_size=2, max_size=5), recipes)
def test_a_table_is_its_rows(rows: list[tuple[str, dict[str, Any]]], name: str) -> None:
    """Models and layouts in columns give what each gives alone."""
    columns = {field: np.array([layout[field] for _, layout in rows]) for field in rows[0][1]}
    sizes = [
        np.array([getattr(MODELS[model], field) for model, _ in rows])
        for field in Dims.__dataclass_fields__
    ]
    table = peak(Dims(*sizes), Layout(**columns), recipe(name))
    for at, (model, layout) in enumerate(rows):
        alone = peak(MODELS[model], Layout(**layout), recipe(name))
        for part, value in table.parts.items():
            here = np.broadcast_to(value, len(rows))[at]
            assert here == pytest.approx(float(alone.parts[part]), rel=1e-9, abs=1e-3)


@pytest.mark.parametrize(
    ("name", "total"),
    [
        ("mixed", 18),
        ("bf16-gradients", 16),
        ("precision-aware", 14),
        ("fsdp", 16),
        ("pure-bf16", 8),
        ("fp32", 16),
    ],
)
def test_bytes_per_parameter(name: str, total: float) -> None:
    """Megatron-LM, theoretical_memory_usage.py (18, and 6 + 12/D); ZeRO, section 3; DeepSeek-V3,
    section 3.3.3; PyTorch FSDP.
    """
    model = gpt(12, 1024, 16)
    found = footprint(model, Layout(16, batch=16, zero=0), recipe(name))
    assert found.states == pytest.approx(total * parameters_of(model))
    sharded = footprint(model, Layout(16, batch=16), recipe(name)).states
    states = recipe(name).states
    per_parameter = states.weights + states.gradients + states.optimizer / 16
    assert sharded == pytest.approx(per_parameter * parameters_of(model))


def test_lora() -> None:
    """Hu et al., section 4.2: GPT-3 with r = 4 on query and value trains 10,000 times less than
    175 B; on every matrix of a layer it is r (9 h + f + h + h + f) a layer. Dettmers et al.: frozen
    weights of the layers at half a byte, 0.127 bits of constants; embedding and head stay in 16 bits.
    """
    model = gpt(96, 12288, 96)
    h, f = model.hidden, model.ffn
    one = Layout(1, batch=1, zero=0)
    adapters = 96 * 4 * (4 * 2 * h + 2 * (h + f))
    lora, qlora = (footprint(model, one, recipe(name, 4)) for name in ("lora", "qlora"))
    assert lora.gradients == pytest.approx(4 * adapters)
    assert lora.optimizer == pytest.approx(8 * adapters)
    assert lora.weights == pytest.approx(2 * parameters_of(model) + 4 * adapters)
    frozen = qlora.weights - 4 * adapters
    ends = 51200 * 12288  # one matrix: GPT's head is its embedding
    assert frozen == pytest.approx(4.127 / 8 * (parameters_of(model) - ends) + 2 * ends)
    whole = footprint(model, one).logits  # of one token: inputs of final norm and head, logits
    assert whole - lora.logits == pytest.approx(2 * one.tokens * h)  # a frozen head: no dW = xᵀ dy
    ranks = footprint(model, one, recipe("lora", np.array([8, 16]))).gradients
    assert ranks == pytest.approx(4 * adapters * np.array([2, 4]))


@pytest.mark.parametrize("name", presets())
def test_adapters_of_every_model(name: str) -> None:
    """r (in + out) for each matrix of the layers that model_parts lists, routers and gates of
    shared experts left out; queries, keys and values are three, gate and up two.
    """
    model = preset(name).model
    wanted = 0
    for one in matrices(model):
        if one.part in ("attention", "mlp", "experts", "shared") and one.name != "shared gate":
            joint = 3 if one.name == "qkv" else 2 if one.name.endswith(" up") and model.gated else 1
            joint = 1 if one.part == "attention" and one.name != "qkv" else joint
            wanted += one.layers * one.stored * 8 * (joint * one.inputs + one.outputs)
    found = footprint(Dims.of(model), Layout(1, batch=1, zero=0), recipe("lora", 8))
    assert found.gradients / 4 == pytest.approx(wanted)


def test_ends_of_the_pipeline() -> None:
    """The embedding is on the first stage and the head on the last; a V has both on the first, and
    DualPipe on both, with twice the layers: DeepSeek-V3 (arXiv:2412.19437), table 2.
    """
    model = MODELS["llama"]
    plain = Layout(4, pp=4, batch=32)
    every = np.arange(4)
    logits = footprint(model, plain, index=every).logits
    assert list(logits > 0) == [False, False, False, True]
    folded = footprint(model, replace(plain, schedule=SCHEDULE["zb-v"]), index=every)
    assert list(folded.logits > 0) == [True, False, False, False]
    both = footprint(model, replace(plain, schedule=SCHEDULE["dualpipe"]), index=every)
    one = footprint(model, plain, index=every)
    assert list(both.logits > 0) == [True, False, False, True]
    assert both.weights[1] == pytest.approx(2 * one.weights[1])
    assert both.residual[1] == pytest.approx(5 / 3 * one.residual[1])


def test_experts_have_their_own_data_axis() -> None:
    """E/e experts stay; their optimizer states are cut by N/(p e), not by N/p: Megatron-LM."""
    model = MODELS["deepseek"]
    layout = Layout(512, ep=np.array([1, 8, 64, 256]), batch=512)
    routed = (model.moe_layers + model.mtp) * model.expert * model.experts
    dense = parameters_of(model) - routed
    found = footprint(model, layout)
    assert found.weights == pytest.approx(2 * (dense + routed / layout.ep))
    assert found.optimizer == pytest.approx(np.full(4, 12 * (dense + routed) / 512))


def test_hybrid_sharding() -> None:
    """HSDP cuts by the ranks of a shard group, whatever the replicas: PyTorch FSDP."""
    model = gpt(24, 2048, 16)
    layout = Layout(64, batch=64, zero=3, shard=np.array([1, 8, 64, 0]))
    whole = 16 * parameters_of(model)
    shares = whole / np.array([1, 8, 64, 64])
    assert footprint(model, layout, recipe("fsdp")).states == pytest.approx(shares)


@pytest.mark.parametrize(("name", "operand"), [("mixed", 2), ("fp8", 1)])
def test_a_layer_of_deepseek_v3(name: str, operand: int) -> None:
    """Tensor by tensor, from the sizes in arXiv:2412.19437, section 4.2: width 7168, 128 heads of
    128 + 64 and 128, ranks 1536 and 512, 8 of 256 experts of 2048 and a shared one. What only a
    matmul reads takes 8 bits where it is kept so; attention keeps its output in 16 bits as well.
    The latent vectors are normed, and kept before and after.
    """
    model = replace(MODELS["deepseek"], moe_layers=61.0, mtp=0.0)
    residual = 2 * 7168 * 2 + 2 * 7168 * operand + (1536 + 512) * operand
    wide = 128 * (192 + 192 + 128)
    output = 128 * 128 * (2 if operand == 2 else 3)
    attention = 2 * (1536 + 512 + 64) + 2 * wide + output + 4 * 128
    routed = 8 * (7168 * operand + 7168 * 2 + 2 * 2048 * 2 + 2048 * operand)
    shared = 2 * 2048 * 2 + 2048 * operand
    layout = Layout(64, ep=64, batch=64, sequence=4096)
    found = footprint(model, layout, recipe(name))
    tokens = 61 * 4096
    assert found.residual == pytest.approx(tokens * residual)
    assert found.attention == pytest.approx(tokens * attention)
    assert found.experts == pytest.approx(tokens * (routed + shared))
    assert found.mlp == found.scores == found.working == 0


def test_buffers_of_fsdp_and_others() -> None:
    """Two layers gathered and a gradient, or a whole stage; nothing on one GPU."""
    model, params = gpt(24, 8192, 64, 1024), 12 * 8192**2
    layout = Layout(8, batch=8, zero=3, gradient_bytes=4.0)
    assert footprint(model, layout).gathered == pytest.approx((2 * 2 + 4) * params, rel=1e-3)
    kept = footprint(model, replace(layout, reshard=0)).gathered
    assert kept == pytest.approx((24 * 2 + 4) * params, rel=5e-3)
    alone = footprint(model, Layout(1, batch=1, zero=3))
    assert alone.gathered == alone.exchanged == alone.nccl == 0
    assert footprint(model, replace(layout, zero=2)).gathered == 0


def test_what_is_refused() -> None:
    """The field, the value, what is allowed."""
    with pytest.raises(
        ValueError, match="stage: 4 is refused; allowed: 0 to stages - 1, at most 3"
    ):
        footprint(MODELS["gpt"], Layout(4, pp=4, batch=8), index=4)
    with pytest.raises(ValueError, match="recipe: 'mixd' is not one; the nearest is mixed"):
        recipe("mixd")
    with pytest.raises(ValueError, match=r"rank: 8 is refused for 'mixed'.*lora, qlora"):
        recipe("mixed", 8)
    with pytest.raises(ValueError, match="rank: 0 is refused"):
        recipe("lora", 0)


def test_owned_is_the_average_stage() -> None:
    """Layers over stages, and one end where there are several."""
    model = MODELS["llama"]
    found = owned(model, Layout(8, tp=2, pp=4))
    assert isinstance(found, Owned)
    assert found.ends == model.embedding / 2
    assert owned(model, Layout(1)).total == pytest.approx(parameters_of(model))


def test_what_dtensor_keeps() -> None:
    """The inputs of qkv and MLP as gathered, t times a shard, unless tensor parallelism is
    asynchronous; and a fourth fp32 copy of its vocabulary slice in the eager loss:
    torch/distributed/tensor/parallel/loss.py adds exp(x), the one-hot and their sum beside x.
    """
    model, (b, s, h, t) = gpt(24, 2048, 16), (2, 4096, 2048, 8)
    layout = Layout(t, tp=t, batch=b, micro_batch=b, sequence=s, zero=3, tp_overlap=0)
    plain = footprint(model, layout, recipe("fsdp"))
    found = footprint(model, layout, recipe("fsdp-dtensor"))
    assert found.residual - plain.residual == pytest.approx(24 * 2 * 2 * b * s * h * (1 - 1 / t))
    assert found.logits - plain.logits == pytest.approx(4 * b * s * 51200 / t)
    fine = footprint(model, replace(layout, tp_overlap=OVERLAP["fine"]), recipe("fsdp-dtensor"))
    assert fine.residual == plain.residual
    alone = replace(layout, tp=1)
    same = (footprint(model, alone, recipe(name)).total for name in ("fsdp", "fsdp-dtensor"))
    assert len(set(map(float, same))) == 1


def test_what_deepspeed_keeps() -> None:
    """Two buckets of 5e8 16-bit elements, an owned shard's gradients flat in 16 and 32 bits, and what
    a stage sent on, until its backward pass: stage_1_and_2.py, pipe/engine.py.
    """
    model = gpt(24, 2048, 16)
    layout = Layout(32, tp=2, pp=4, batch=64, sequence_parallel=0)
    plain = footprint(model, layout, recipe("bf16-gradients"))
    found = footprint(model, layout, recipe("deepspeed-fp16"))
    sent = 4 * 2 * 2048 * 2048
    assert found.residual - plain.residual == pytest.approx(sent)
    owned_here = plain.weights / 2 / 4
    more = 2 * 5e8 * 2 + 6 * owned_here + 0.04 * sent
    assert found.slack - plain.slack == pytest.approx(more)
    assert footprint(model, layout, recipe("deepspeed-bf16")).gradients == 3 * found.gradients


def test_gradients_of_scores() -> None:
    """Into and out of the softmax, 2 a s² b bytes each, in one layer at a time; none when fused."""
    model = gpt(24, 2048, 16)
    layout = Layout(1, batch=4, micro_batch=4, sequence=1024, attention=UNFUSED)
    assert footprint(model, layout).working == pytest.approx(2 * 2 * 16 * 1024**2 * 4)
    assert footprint(model, replace(layout, attention=FLASH["flash"])).working == 0
