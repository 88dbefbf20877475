"""Tables of layouts: blocks, different rows evaluated once, and what cannot be evaluated."""

import tracemalloc
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hardware_profiles as hp
from roofline.constraints import RULES
from roofline.distinct import FEW, once, only, without
from roofline.evaluate import Evaluation, evaluate
from roofline.layout import FLASH, OVERLAP, RECOMPUTE, RING, SCHEDULE, Layout
from roofline.model import Experts, Transformer
from roofline.training import Training, training

H100 = hp.cluster("dgx-h100-superpod")
LLAMA = Transformer("llama-8b", 32, 4096, 14336, 32, 8, 128, 128256)
MIXTURE = replace(LLAMA, experts=Experts(8, 2, 14336))
MODELS = {"dense": LLAMA, "experts": MIXTURE}
EXACT = 1e-12


def layouts(rows: int, seed: int = 0) -> Layout:
    """Random layouts of at most 512 GPUs in which every field varies; some break a constraint."""
    draw = np.random.default_rng(seed)

    def any_of(*values: float) -> Any:
        return draw.choice(np.array(values, float), rows)

    tp, pp, cp, dp = any_of(1, 2, 4, 8), any_of(1, 2, 4, 8), any_of(1, 2), any_of(1, 2, 4)
    micro = any_of(1, 2, 4)
    return Layout(
        gpus=tp * pp * cp * dp,
        tp=tp,
        pp=pp,
        cp=cp,
        ep=np.minimum(any_of(1, 2, 4), tp * cp * dp),
        chunks=np.where(pp > 1, any_of(1, 2), 1.0),
        micro_batch=micro,
        batch=dp * micro * any_of(1, 3, 8),
        sequence=any_of(2048, 4096, 131072),
        sequence_parallel=any_of(0, 1),
        zero=any_of(0, 1, 2, 3),
        shard=any_of(0, 4),
        reshard=any_of(0, 1),
        schedule=any_of(*SCHEDULE.values()),
        even=any_of(0, 1, 2),
        recompute=any_of(*RECOMPUTE.values()),
        recompute_share=any_of(0.3, 1),
        offload_share=any_of(0, 0.5),
        tp_overlap=any_of(*OVERLAP.values()),
        cp_kind=any_of(*RING.values()),
        pp_overlap=any_of(0, 1),
        dp_overlap=any_of(0, 1),
        ep_overlap=any_of(0, 0.7),
        deduplicated=any_of(0, 1),
        node_limit=any_of(2, np.inf),
        imbalance=any_of(1, 1.2),
        attention=any_of(*FLASH.values()),
        fused=any_of(0, 1),
        fused_loss=any_of(0, 1),
        graphs=any_of(0, 1, 2),
        dropout=any_of(0, 1),
        blocking=any_of(0, 1),
        weight_bytes=any_of(1, 2, 4),
        gradient_bytes=any_of(2, 4),
        optimizer_bytes=any_of(30, 46),
        dispatch_bytes=any_of(1, 2),
    )


def planned(rows: int, seed: int = 0) -> Layout:
    """Layouts as a planner has them: few fields vary, and these repeat."""
    table = layouts(rows, seed)
    varied = ("gpus", "tp", "pp", "chunks", "micro_batch", "batch", "recompute", "zero")
    return Layout(**{name: getattr(table, name) for name in varied})


def row(table: Layout, index: Any) -> Layout:
    values = {f.name: getattr(table, f.name) for f in fields(Layout)}
    return Layout(**{name: v[index] if np.ndim(v) else v for name, v in values.items()})


def everything(found: Evaluation) -> dict[str, Any]:
    flat = {"seconds": found.seconds, "memory": found.memory, "possible": found.possible}
    return flat | found.misfits | found.terms | found.parts


def assert_same(one: Evaluation, other: Evaluation, order: Any = slice(None)) -> None:
    a, b = everything(one), everything(other)
    assert a.keys() == b.keys()
    for name, values in a.items():
        assert np.allclose(values[order], b[name], rtol=EXACT, atol=0), name


def job(table: Layout, model: str = "dense") -> Training:
    return training(MODELS[model], table, H100)


class TestBlocks:
    @pytest.mark.parametrize("model", MODELS)
    @pytest.mark.parametrize("space", [layouts, planned])
    def test_they_change_nothing(self, model: str, space: Callable[[int], Layout]) -> None:
        """A thousand rows go straight through; of three thousand the different ones do."""
        several = job(space(3 * FEW), model)
        whole = evaluate(several, detail=True)
        assert_same(whole, evaluate(several, block=1000, detail=True))
        few = job(space(40), model)
        for block in (1, 7):
            assert_same(evaluate(few, detail=True), evaluate(few, block=block, detail=True))

    @pytest.mark.parametrize("model", MODELS)
    @pytest.mark.parametrize("space", [layouts, planned])
    def test_rows_are_scalar_calls(self, model: str, space: Callable[[int], Layout]) -> None:
        table = space(2 * FEW)
        found = evaluate(job(table, model), detail=True)
        for index in np.flatnonzero(found.possible)[:: len(found.seconds) // 25]:
            one = job(row(table, index), model)
            for name, seconds in one.time.terms.items():
                assert found.terms[name][index] == pytest.approx(float(seconds), rel=EXACT), name
            for name, nbytes in one.memory.parts.items():
                assert found.parts[name][index] == pytest.approx(float(nbytes), rel=EXACT), name
            assert found.seconds[index] == pytest.approx(float(one.time.seconds), rel=EXACT)
            assert found.memory[index] == pytest.approx(float(one.memory.total), rel=EXACT)

    @settings(max_examples=10)
    @given(st.integers(0, 2**32 - 1), st.sampled_from([100, 700, 1400]))
    def test_order_changes_nothing(self, seed: int, block: int) -> None:
        table = planned(1500, seed)
        order = np.random.default_rng(seed).permutation(1500)
        mixed = evaluate(job(row(table, order)), block=block, detail=True)
        assert_same(evaluate(job(table), detail=True), mixed, order)

    def test_memory_does_not_grow(self) -> None:
        """But by the columns that come out: two of floats and nine of yes or no."""
        most = {}
        for rows in (20_000, 120_000):
            several = job(planned(rows))
            several.machine, several.dims  # noqa: B018
            tracemalloc.start()
            evaluate(several, block=10_000)
            most[rows] = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        a_row = 2 * 8 + len(RULES) + 1 + 4  # two columns of floats, a mask for each rule, a little
        assert most[120_000] - most[20_000] < 100_000 * a_row

    def test_what_is_refused(self) -> None:
        with pytest.raises(ValueError, match="block: 0 is refused; allowed: 1 and more"):
            evaluate(job(planned(3)), block=0)
        uneven = Layout(8, tp=np.ones(3), pp=np.ones(2))
        with pytest.raises(ValueError, match=r"shapes \(2,\) and \(3,\) are refused"):
            evaluate(job(uneven))


class TestMisfits:
    def test_what_is_impossible_takes_for_ever(self) -> None:
        tp = np.array([1.0, 3.0, 8.0, 64.0])  # three divides nothing, 64 not the heads
        found = evaluate(job(Layout(64, tp=tp, batch=64)), detail=True)
        assert list(found.possible) == [True, False, True, False]
        assert list(found.misfits["tp · cp · pp must divide the GPUs"]) == [
            False,
            True,
            False,
            False,
        ]
        assert list(found.misfits["tp must divide the heads"]) == [False, True, False, True]
        for name in ("seconds", "memory", "matmuls", "weights"):
            assert list(np.isfinite(everything(found)[name])) == list(found.possible)

    def test_a_cluster_has_so_many_gpus(self) -> None:
        gpus = np.array([512.0, 2.0**30])
        found = evaluate(job(Layout(gpus, batch=gpus)))
        assert list(found.misfits["the cluster must have the GPUs"]) == [False, True]
        assert list(np.isfinite(found.seconds)) == [True, False]

    def test_nothing_is_possible(self) -> None:
        found = evaluate(job(Layout(7, tp=2, batch=7, micro_batch=np.ones(5))), detail=True)
        assert not found.possible.any()
        assert list(found.seconds) == list(found.memory) == [np.inf] * 5

    def test_one_layout_and_lists(self) -> None:
        one = job(Layout(64, tp=8, batch=64))
        assert evaluate(one).seconds == [float(one.time.seconds)]
        listed: Any = [4, 8]
        both = evaluate(job(Layout(64, tp=listed, batch=64)))
        assert both.seconds[1] == pytest.approx(float(one.time.seconds), rel=EXACT)


class TestOnce:
    """Each different row is evaluated once, whatever the columns hold."""

    @given(
        st.lists(
            st.sampled_from(
                [
                    [1.0, 2.0, 8.0],
                    [0.3, -1.0, np.inf],
                    [1e9, 2e9, 0.0],
                    [131072.0, 4096.0],
                    [0.0, 1e5, 2e5, 5.5],
                    [7.0],
                    [np.nan, 1.0],
                    list(range(40)),
                ]
            ),
            min_size=1,
            max_size=6,
        ),
        st.integers(0, 2**32 - 1),
    )
    def test_any_columns(self, values: list[list[float]], seed: int) -> None:
        draw = np.random.default_rng(seed)
        columns = [draw.choice(np.array(each), 2 * FEW) for each in values]
        seen = []

        def formula(*columns: Any) -> dict[str, Any]:
            seen.append(len(columns[0]))
            return {"columns": columns, "constant": 3.0}

        found = once(formula, *columns)
        assert found["constant"] == 3.0
        for column, back in zip(columns, found["columns"], strict=True):
            assert np.array_equal(column, back, equal_nan=True)
        numbers = np.nan_to_num(np.column_stack(columns), nan=-7.0)
        different = len(np.unique(numbers, axis=0))
        assert seen == [different if different <= FEW else 2 * FEW]

    @pytest.mark.parametrize(
        "columns",
        [
            (3.0, 4.0),
            (np.arange(5.0), 1.0),
            (np.ones(FEW - 1),),
            (np.arange(2.0 * FEW),),
            (np.ones((FEW, 3)),),
            (np.ones(4 * FEW), np.ones(1)),
        ],
        ids=["numbers", "few", "one too few", "nothing repeats", "a grid", "lengths"],
    )
    def test_what_goes_straight_through(self, columns: tuple[Any, ...]) -> None:
        def formula(*inside: Any) -> Any:
            assert all(a is b for a, b in zip(inside, columns, strict=True))
            return inside

        assert once(formula, *columns) == columns

    def test_a_field_left_out_cannot_be_read(self) -> None:
        table = Layout(8, tp=np.ones(3), zero=np.ones(3))
        readers: list[Callable[[Layout], Any]] = [
            lambda layout: np.equal(layout.zero, 3),
            lambda layout: np.where(layout.zero, 1.0, 2.0),
            lambda layout: 2.0 * layout.zero,
            lambda layout: layout.zero > 2,
            lambda layout: layout.zero == 3,
            lambda layout: layout.dp,
            lambda layout: layout.shards,
            lambda layout: 1.0 if layout.zero else 0.0,
        ]
        tokens = ("micro_batch", "sequence", "cp")
        for left in (without(table, "zero", "gpus"), only(table, *tokens)):
            for read in readers:
                with pytest.raises(TypeError, match=r"^\w+: read by a formula"):
                    read(left)
            assert left.tokens == 2048
