"""Layouts that cannot be: every constraint by name, and a nearest value that really would do."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hardware_profiles as hp
from roofline import Ideal, Tier
from roofline.dims import Dims
from roofline.fitting import Misfit, check, misfits
from roofline.layout import RING, SCHEDULE, Layout, stack
from roofline.model import Transformer
from roofline.presets import preset
from roofline.training import training

H100 = hp.cluster("dgx-h100-superpod").resized(4096)
LLAMA = preset("llama-3-8b").model  # 32 layers, 32 heads, 8 key-value heads
DEEPSEEK = preset("deepseek-v3").model  # 61 layers, 128 heads, 256 experts of 2048
MODELS = {model.name: model for model in (LLAMA, DEEPSEEK, preset("gpt-oss-120b").model)}
ODD = st.sampled_from(
    [-3, 0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 31, 32, 33, 48, 64, 100, 128, 256]
)
DEGREES = st.sampled_from([1, 2, 4, 8])
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "gpus": ODD | st.integers(-1, 100_000),
    "tp": ODD,
    "cp": ODD,
    "pp": ODD,
    "ep": ODD | st.integers(-1, 300),
    "etp": ODD,
    "chunks": ODD,
    "micro_batch": ODD,
    "batch": ODD | st.integers(-1, 100_000),
    "sequence": st.sampled_from([2048, 4096, 4097, 100, 1]) | st.integers(-1, 200_000),
    "schedule": st.integers(-1, 6),
    "cp_kind": st.integers(0, 3),
    "zero": st.integers(-1, 4),
    "reshard": st.integers(0, 2),
    "shard": ODD,
    "sequence_parallel": st.integers(0, 1),
    "recompute_share": st.sampled_from([-0.5, 0.0, 0.5, 1.0, 2.0]),
}


@st.composite
def fitting(draw: st.DrawFn) -> dict[str, Any]:
    """A layout that can be, by construction: powers of two, and batches in whole pipelines."""
    tp, cp, pp, dp, micro = (draw(DEGREES) for _ in range(5))
    chunks = draw(st.sampled_from([1, 2])) if pp > 1 else 1
    kind = {"cp_kind": RING["all-gather"]} if draw(st.booleans()) else {}
    batch = micro * dp * 2 * pp * draw(DEGREES)
    gpus = tp * cp * pp * dp
    degrees = {"gpus": gpus, "tp": tp, "cp": cp, "pp": pp, "chunks": chunks}
    return degrees | {"micro_batch": micro, "batch": batch, "sequence": 4096} | kind


@settings(max_examples=100)
@given(st.sampled_from(sorted(MODELS)), fitting(), st.data())
def test_any_numbers(name: str, layout: dict[str, Any], data: st.DataObject) -> None:
    """Valid, or an error whose nearest values, put in, remove that very error."""
    wrong = data.draw(st.sets(st.sampled_from(sorted(FIELDS)), min_size=1, max_size=4))
    wild = Layout(**layout | {field: data.draw(FIELDS[field]) for field in sorted(wrong)})
    model = MODELS[name]
    error = refused(model, wild)
    if error is None:
        assert passes(wild, model)
        return
    assert error.nearest
    for value in error.nearest:
        assert value != error.value
        other = refused(model, replace(wild, **{error.field: value}))
        assert other is None or other.reason != error.reason


@settings(max_examples=100)
@given(fitting(), st.data())
def test_one_wrong_field(layout: dict[str, Any], data: st.DataObject) -> None:
    """Then the nearest values make the whole layout right, and no nearer one would: all are tried."""
    right = Layout(**layout)
    assert refused(LLAMA, right) is None
    field = data.draw(st.sampled_from(["tp", "cp", "pp", "ep", "chunks", "micro_batch", "batch"]))
    error = refused(LLAMA, wrong := replace(right, **{field: data.draw(st.integers(1, 64))}))
    if error is None:
        return
    for value in error.nearest:
        assert refused(LLAMA, replace(wrong, **{error.field: value})) is None
        low, high = sorted([int(error.value), int(value)])
        between = np.arange(low + 1.0, high)
        assert not np.any(passes(replace(wrong, **{error.field: between})) & (between > 0))


def refused(model: Transformer, layout: Layout) -> Misfit | None:
    """The error, if any."""
    try:
        check(model, layout, H100)
    except Misfit as error:
        return error
    return None


def passes(layout: Layout, model: Transformer = LLAMA) -> Any:
    """Row by row of a column."""
    broken = misfits(Dims.of(model), layout, H100).values()
    return ~np.any(np.stack(np.broadcast_arrays(*broken)), axis=0)


FITS = {"gpus": 64, "tp": 4, "pp": 2, "batch": 64, "sequence": 4096}


@pytest.mark.parametrize(
    ("model", "change", "message"),
    [
        (LLAMA, {"tp": 3}, "tp: 3 is refused; allowed: divisors of the 32 heads; .*: 2 and 4"),
        (
            replace(LLAMA, kv_heads=16, heads=48),
            {"tp": 3, "gpus": 96, "batch": 96},
            "tp: 3 is refused; allowed: divisors or multiples of the 16 key-value heads; .*: 2 and 4",
        ),
        (LLAMA, {"pp": 5}, "pp: 5 is refused; allowed: tp · cp · pp .20. that divides .*: 4 and 8"),
        (LLAMA, {"pp": 64, "gpus": 1024}, "pp: 64 is refused; allowed: stages of at most the 32 layers; .*: 32"),
        (LLAMA, {"chunks": 17}, r"chunks: 17 .* pp · chunks \(34\) of at most the 32 layers; .* 16"),
        (LLAMA, {"chunks": 2, "batch": 24}, "micro-batches .3. in multiples of the stages .2."),
        (LLAMA, {"cp": 2, "tp": 1, "sequence": 2050}, "sequence: 2050 .*ring; .*: 2048 and 2052"),
        (LLAMA, {"sequence": 4098}, "sequence: 4098 .* the nearest: 4096 and 4100"),
        (LLAMA, {"cp": 16, "cp_kind": RING["ulysses"]}, "cp: 16 .* the 32 heads; the nearest: 8"),
        (LLAMA, {"ep": 2}, "ep: 2 is refused; allowed: 1, for the model has no experts; .*: 1"),
        (DEEPSEEK, {"ep": 512}, "ep: 512 is refused; allowed: divisors of the 256 experts; .*: 32"),
        (DEEPSEEK, {"ep": 64}, r"ep: 64 .* ep · etp \(64\) that divides the 32 GPUs of a stage; .* 32"),
        (DEEPSEEK, {"etp": 3}, "etp: 3 is refused; allowed: divisors of .* 2048; the nearest: 2 and 4"),
        (LLAMA, {"micro_batch": 9}, "micro_batch: 9 .* local batch .64 over 8 replicas.; .*: 8"),
        (LLAMA, {"batch": 63}, "batch: 63 .* multiples of 8 replicas · micro-batch 1; .*: 56 and 64"),
        (LLAMA, {"gpus": 8192, "batch": 8192}, "gpus: 8192 is refused; allowed: at most .* 4096"),
        (LLAMA, {"gpus": 60}, "gpus: 60 is refused; allowed: multiples of tp · cp · pp = 8; .*: 32 and 64"),
        (LLAMA, {"zero": 4}, "zero: 4 is refused; allowed: 0, 1, 2, 3; the nearest: 3"),
        (LLAMA, {"zero": 1, "reshard": 0}, "0 with zero 3 alone"),
        (LLAMA, {"zero": 0, "shard": 8}, "1 to 3 where shard is set"),
        (LLAMA, {"zero": 3, "shard": 3}, "shard: 3 .* divisors of dp · cp = 8 .*: 2 and 4"),
        (LLAMA, {"chunks": 2, "schedule": SCHEDULE["zb-h1"]}, "1 chunk a stage with zb-h1"),
        (LLAMA, {"batch": 16, "schedule": SCHEDULE["zb-h2"]}, "for zb-h2 enough micro-batches .2."),
        (LLAMA, {"tp": 0}, "tp: 0 is refused; allowed: whole numbers from 1; the nearest: 1"),
        (LLAMA, {"pp": 1.5}, "pp: 1.5 is refused; allowed: whole numbers from 1; .*: 1 and 2"),
        (LLAMA, {"tp": "4"}, "tp: '4' is refused; allowed: a number"),
        (LLAMA, {"batch": float("nan")}, "batch: nan is refused; allowed: a finite number"),
        (LLAMA, {"recompute_share": 1.5}, "recompute_share: 1.5 is refused; allowed: 0 to 1; .*: 1"),
    ],
)  # fmt: skip
def test_every_constraint(model: Any, change: dict[str, Any], message: str) -> None:
    """Field, value, what is allowed, the nearest."""
    check(model, Layout(**FITS), H100)
    with pytest.raises(ValueError, match=message):
        training(model, Layout(**FITS | change), H100)


def test_words_are_named() -> None:
    """A word in the place of its number is told the number, and where words are taken."""
    model = preset("llama-3-8b").model
    with pytest.raises(Misfit, match=r"schedule: 'zb-v' is refused; .*Layout.named.*nearest: 4"):
        check(model, Layout(8, pp=2, batch=8, schedule="zb-v"))  # type: ignore[arg-type]
    with pytest.raises(Misfit, match=r"recompute: 'most' is refused; .*none 0, attention 1"):
        check(model, Layout(8, batch=8, recompute="most"))  # type: ignore[arg-type]
    with pytest.raises(Misfit, match="tp: True is refused; allowed: a whole number"):
        check(model, Layout(8, tp=True, batch=8))
    named = Layout.named(8, pp=2, batch=8, schedule="zb-v", recompute="full", attention="flash-2")
    assert named == Layout(8, pp=2, batch=8, schedule=4, recompute=4, attention=2)
    with pytest.raises(ValueError, match="layout: 'frob' is not one"):
        Layout.named(8, frob=3)
    with pytest.raises(ValueError, match="schedule: 'zb-w' is not one; the nearest"):
        Layout.named(8, schedule="zb-w")


def test_memory_of_zero() -> None:
    """The least that this layout takes is what would do."""
    machine = Ideal(1e15, (Tier(64, 450e9),), hbm_bytes=0.0)
    with pytest.raises(Misfit, match=r"hbm_bytes: 0 is refused; allowed: above 0 bytes; .*: \d+"):
        check(LLAMA, Layout(**FITS), machine)


def test_what_a_user_calls_a_field() -> None:
    with pytest.raises(Misfit, match="n_gpus: 60 is refused"):
        check(LLAMA, Layout(**FITS | {"gpus": 60}), names={"gpus": "n_gpus"})


def test_columns_are_masked() -> None:
    """One formula for both: a row is masked where the layout alone is refused, and training takes
    a column whole.
    """
    rows = [
        Layout(**FITS | {"tp": tp, "batch": batch}) for tp in (1, 3, 4, 8) for batch in (64, 63)
    ]
    table = stack(rows)
    broken = ~passes(table)
    assert broken.tolist() == [refused(LLAMA, row) is not None for row in rows]
    assert broken.tolist() == [False, True, True, True, False, True, False, True]
    assert training(LLAMA, stack([rows[0], rows[4]]), H100).time.seconds.shape == (2,)
