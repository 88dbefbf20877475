"""The planner: every layout there is, the right winner, the same answer whatever the order."""

from dataclasses import fields, replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hardware_profiles as hw
from hardware_profiles.catalog import networked
from hardware_profiles.errors import NoNetwork
from roofline import explain
from roofline.layout import RECOMPUTE, SCHEDULE, Layout
from roofline.limits import FRAMEWORKS, allowed, values
from roofline.planner import Plan, holding, plan
from roofline.presets import preset
from roofline.ranking import CUT, KIND, Ranking, distinct, front, nanoseconds
from roofline.scaling import Scaling, scaling
from roofline.space import CHOICES, Job, Space, sensible

H100 = hw.cluster("dgx-h100-superpod")
OBJECTIVES = ("seconds", "memory", "complexity")
LLAMA = preset("llama-3-70b").model


def found(**more: object) -> Plan:
    asked = {"tokens": 128 * 4096, "sequence": 4096, **more}
    return plan(preset("llama-3-8b").model, H100, 32, **asked)


def divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


class TestSpace:
    def test_the_fixed_space_has_its_layouts(self) -> None:
        """6,474: counted by plain loops, of the definition in benchmarks/planner.py."""
        count = 0
        for tp in (1, 2, 4, 8):
            for pp in (p for p in divisors(96) if (512 // tp) % p == 0):
                dp = 512 // (tp * pp)
                for _ in divisors(96 // pp) if pp > 1 else [1]:
                    rest = (2 if tp > 1 else 1) * (2 if dp > 1 else 1) * 3
                    count += len(divisors(512 // dp)) * rest
        job = Job(preset("gpt-3-175b").model, 512, 512, 2048, 8, ragged=True)
        chosen = dict.fromkeys(CHOICES, (0.0,)) | {
            "tp": (1, 2, 4, 8), "cp": (1,), "ep": (1,), "etp": (1,), "pp": divisors(96),
            "chunks": divisors(96), "micro_batch": divisors(512), "zero": (0, 1),
            "sequence_parallel": (0, 1), "recompute": (0, 1, 4), "recompute_share": (1.0,),
        }  # fmt: skip
        size = sum(len(layout.tp) for _, layout in Space(job, chosen).blocks(1000))
        assert count == size == 6474

    @given(
        gpus=st.integers(1, 96),
        batch=st.integers(1, 64),
        name=st.sampled_from(["llama-3-8b", "mixtral-8x7b", "gpt-3-6.7b"]),
        data=st.data(),
    )
    def test_every_layout_is_one_and_none_is_missing(
        self, gpus: int, batch: int, name: str, data: st.DataObject
    ) -> None:
        """Against the definition, tried value by value."""
        job = Job(preset(name).model, gpus, batch, 4096, 8)
        usual = sensible(job)
        some = {
            key: tuple(
                sorted(data.draw(st.sets(st.sampled_from(usual[key]), min_size=1, max_size=2)))
            )
            for key in CHOICES
        }
        rows = [
            tuple(getattr(layout, key)[i] for key in CHOICES)
            for _, layout in Space(job, some).blocks(100)
            for i in range(len(layout.tp))
        ]
        assert len(set(rows)) == len(rows)
        assert set(rows) == {row for row in product(*some.values()) if fits(job, some, row)}

    @given(st.integers(1, 5000))
    def test_blocks_are_bounded_and_alike(self, rows: int) -> None:
        job = Job(LLAMA, 64, 128, 4096, 8)
        one = np.concatenate([layout.pp for _, layout in Space(job, sensible(job)).blocks(1 << 20)])
        blocks = [layout.pp for _, layout in Space(job, sensible(job)).blocks(rows)]
        assert max(map(len, blocks)) <= rows
        assert np.array_equal(np.concatenate(blocks), one)


def fits(job: Job, some: dict[str, tuple[float, ...]], row: tuple[float, ...]) -> bool:
    """One layout held against every rule, in plain Python."""
    c = dict(zip(CHOICES, row, strict=True))
    model = job.model
    experts = model.experts.count if model.experts else 1
    if model.heads % c["tp"] or (c["cp"] > 1 and job.sequence % (2 * c["cp"])):
        return False
    if job.sequence % (c["tp"] * c["cp"]):
        return False
    if job.gpus % (c["tp"] * c["cp"] * c["pp"]) or c["pp"] > model.layers:
        return False
    dp = job.gpus / (c["tp"] * c["cp"] * c["pp"])
    ranks = c["tp"] * c["cp"] * dp
    if job.batch % (dp * c["micro_batch"]) or experts % c["ep"] or ranks % (c["ep"] * c["etp"]):
        return False
    if c["etp"] not in (1, c["tp"]):
        return False
    if c["order"] and not (c["pp"] > 1 and dp > 1):
        return False
    if c["order"] and experts > 1 and c["etp"] * c["ep"] != c["tp"] * c["cp"]:
        return False
    return _details_fit(job, some, c, dp)


def _details_fit(
    job: Job, some: dict[str, tuple[float, ...]], c: dict[str, float], dp: float
) -> bool:
    model, micro = job.model, job.batch / (dp * c["micro_batch"])
    if c["chunks"] > 1:
        slots = model.layers + 2 + model.mtp
        if c["pp"] == 1 or micro % c["pp"]:
            return False
        parts = c["pp"] * c["chunks"]
        ends = slots % parts or slots < parts * (2 + model.mtp)  # a layer beside head or embedding
        if model.layers % parts and ends:
            return False
    if c["schedule"] != SCHEDULE["1f1b"]:
        least = {
            SCHEDULE["zb-h1"]: c["pp"], SCHEDULE["zb-v"]: 2 * c["pp"] - 1, SCHEDULE["dualpipe"]: 2 * c["pp"],
        }[c["schedule"]]  # fmt: skip
        if c["pp"] == 1 or c["chunks"] > 1 or micro < least:
            return False
        if c["schedule"] == SCHEDULE["zb-v"] and model.layers % (2 * c["pp"]):
            return False
        if c["schedule"] == SCHEDULE["dualpipe"] and (c["pp"] % 2 or micro % 2):
            return False
    replicas = dp * c["cp"]
    if replicas == 1 and c["zero"] != min(some["zero"]):
        return False
    if c["shard"] and (c["zero"] != 3 or c["shard"] >= replicas or replicas % c["shard"]):
        return False
    return not (c["recompute"] == 0 and c["recompute_share"] != max(some["recompute_share"]))


class TestRanking:
    @settings(max_examples=30)
    @given(st.data())
    def test_what_is_kept_is_what_a_full_sort_finds(self, data: st.DataObject) -> None:
        """Best and front of a stream, against all rows at once."""
        n = data.draw(st.integers(1, 60))
        draw = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
        rows = {name: draw.integers(0, 3, n).astype(float) for name in CHOICES}
        rows["tp"] = np.arange(n, dtype=float)  # no two rows alike
        rows["seconds"] = draw.integers(1, 6, n) / 4.0
        rows["memory"] = draw.integers(1, 6, n) * 1e9
        rows["complexity"] = draw.integers(0, 3, n).astype(float)
        rows["fits"] = draw.integers(0, 2, n).astype(float)
        ranking = Ranking(kept=5)
        order = draw.permutation(n)
        size = data.draw(st.integers(1, n))
        for first in range(0, n, size):
            part = order[first : first + size]
            ranking.add({name: column[part] for name, column in rows.items()})
        good = [i for i in range(n) if rows["fits"][i]]
        key = {
            i: (rows["seconds"][i], rows["complexity"][i], *(rows[c][i] for c in CHOICES))
            for i in good
        }
        best = sorted(good, key=key.__getitem__)[:5]
        assert ranking.best.get("tp", np.array([])).tolist() == [rows["tp"][i] for i in best]
        points = {i: tuple(rows[name][i] for name in OBJECTIVES) for i in good}
        front = {points[i] for i in good if not any(beats(points[j], points[i]) for j in good)}
        kept = ranking.front
        have = zip(*(kept.get(name, np.array([])) for name in OBJECTIVES), strict=True)
        assert {tuple(map(float, row)) for row in have} == front
        assert ranking.seen == n
        assert ranking.fitting == len(good)

    @pytest.mark.parametrize("block", [1, 97, 4096, 1 << 20])
    def test_the_answer_does_not_depend_on_the_block(self, block: int) -> None:
        whole = found(block=1 << 18, pp="1-4", recompute="none,full", schedule="1f1b")
        part = found(
            block=max(block, 97) if block > 1 else 97,
            pp="1-4",
            recompute="none,full",
            schedule="1f1b",
        )
        for rows in ("ranked", "front", "field", "smallest"):
            a, b = getattr(whole, rows), getattr(part, rows)
            assert all(np.allclose(a[name], b[name], rtol=1e-12) for name in a), rows

    def test_it_does_not_depend_on_the_order_of_the_search(self) -> None:
        job = Job(preset("llama-3-8b").model, 32, 128, 4096, 8)
        usual = values(job, FRAMEWORKS["any"], {})
        turned = {name: tuple(reversed(each)) for name, each in usual.items()}
        a, b = (
            sorted(
                tuple(getattr(layout, name)[i] for name in CHOICES)
                for _, layout in Space(job, each).blocks()
                for i in range(len(layout.tp))
            )
            for each in (usual, turned)
        )
        assert a == b


def beats(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return a != b and all(x <= y for x, y in zip(a, b, strict=True))


class TestPlan:
    def test_rows_are_what_single_predictions_say(self) -> None:
        """One code path: the winner predicted alone takes as long, and as much memory."""
        answer = found()
        for place in (0, 1, 50, 199):
            one = answer.training(place)
            assert float(one.time.seconds) == pytest.approx(
                answer.ranked["seconds"][place], rel=1e-12
            )
            assert float(one.memory.total) == pytest.approx(
                answer.ranked["memory"][place], rel=1e-12
            )

    def test_ranked_by_time_and_all_fit(self) -> None:
        answer = found()
        assert np.all(np.diff(nanoseconds(answer.ranked)) >= 0)
        assert np.all(answer.ranked["memory"] <= H100.hbm_bytes)

    def test_headroom_leaves_room(self) -> None:
        assert np.all(found(headroom=0.3).ranked["memory"] <= 0.7 * H100.hbm_bytes)

    @pytest.mark.parametrize("name", FRAMEWORKS)
    def test_a_framework_gets_what_it_can(self, name: str) -> None:
        answer = found(framework=name)
        for choice, can in FRAMEWORKS[name].can.items():
            able = allowed(choice, can, ())
            assert set(answer.ranked[choice]) <= set(able), choice

    @pytest.mark.parametrize("gpus", [1, 7, 13, 100, 100_000])
    def test_odd_numbers_of_gpus(self, gpus: int) -> None:
        answer = plan(
            preset("llama-3-8b").model, H100, gpus, tokens=gpus * 4 * 4096, sequence=4096,
            framework="megatron",
        )  # fmt: skip
        assert answer.seen > 0
        if gpus > 1:
            layout = answer.layout()
            assert layout.tp * layout.cp * layout.pp * layout.dp == gpus

    def test_a_model_too_large_says_so(self) -> None:
        answer = plan(preset("llama-3-405b").model, H100, 8, tokens=8 * 8192, sequence=8192)
        assert answer.best is None
        assert "none of" in repr(answer)
        assert float(answer.smallest["memory"][0]) > H100.hbm_bytes
        with pytest.raises(ValueError, match="place: 0 is refused"):
            answer.layout()

    def test_progress_can_cancel(self) -> None:
        seen: list[float] = []

        def stop(done: float, count: int) -> None:
            seen.append(done)
            if count > 1000:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            found(progress=stop, block=500)
        assert seen == sorted(seen)
        assert 0 < seen[-1] < 1
        found()  # and the next search is as good as new

    def test_progress_ends_at_one(self) -> None:
        seen: list[float] = []
        found(progress=lambda done, count: seen.append(done))
        assert seen[-1] == 1.0

    def test_a_frame_and_html(self) -> None:
        answer = found()
        frame = answer.to_frame()
        assert len(frame) == 200
        assert frame["step_s"].is_monotonic_increasing
        assert "<table>" in answer._repr_html_()
        assert "tokens/s a GPU" in repr(answer)


class TestBadInput:
    @pytest.mark.parametrize(
        ("limits", "message"),
        [
            ({"tp": 7}, "tp=7 leaves no layout on 32 GPUs; the nearest that does: tp=8"),
            ({"pp": 3}, "pp=3 leaves no layout on 32 GPUs; the nearest that does: pp=4"),
            ({"micro_batch": 3}, "the nearest that does: micro_batch="),
            ({"tp": 2, "ep": 2}, "ep=2 leaves no layout"),
            ({"tp": 32, "pp": 2}, "leaves no layout"),
            ({"depth": 1}, "depth: a plan takes no such limit; allowed: tp, cp"),
            ({"micro_batches": 1}, "no such limit; the nearest: micro_batch"),
            ({"framwork": "any"}, "no such limit; the nearest: framework"),
            ({"tp": True}, "tp: True is refused; allowed: whole numbers of 1 and more"),
            ({"tokens": 1.5}, "tokens: 1.5 is refused"),
            ({"tokens": "4Mi"}, "tokens: '4Mi' is refused; allowed: a number of tokens"),
            ({"sequence": "8k"}, "sequence: '8k' is refused; allowed: whole numbers"),
            ({"headroom": "5%"}, "headroom: '5%' is refused; allowed: a share"),
            (
                {"framework": "megatron", "zero": 3},
                "zero: 3 is refused, megatron cannot do it; allowed: 0, 1, or framework any",
            ),
            (
                {"framework": "torchtitan", "schedule": "1f1b,zb-v"},
                "schedule: zb-v is refused, torchtitan cannot do it; allowed: 1f1b, or",
            ),
            ({"tp": "8-2"}, "tp: '8-2' is refused; allowed: 2-8"),
            ({"block": 0}, "block: 0 is refused; allowed: 1 and more"),
            ({"zero": 5}, "zero: 5 is refused; allowed: whole numbers, 0 to 3"),
            ({"recompute": "most"}, "recompute: 'most' is not one"),
            ({"tokens": 1000}, "tokens: 1,000 is refused"),
            ({"sequence": 0}, "sequence: 0 is refused"),
            ({"headroom": 1.0}, "headroom: 1.0 is refused"),
            ({"imbalance": 0.9}, "imbalance: 0.9 is refused; allowed: 1, for llama-3-8b has no"),
            ({"imbalance": "1.2"}, "imbalance: '1.2' is refused; allowed: 1, for llama-3-8b"),
            ({"imbalance": 1.2}, "imbalance: 1.2 is refused; allowed: 1, for llama-3-8b has no"),
            ({"framework": "magatron"}, "framework: 'magatron' is not one"),
            ({"precision": "fp7"}, "precision"),
        ],
    )
    def test_the_message_names_the_way_out(self, limits: dict[str, object], message: str) -> None:
        with pytest.raises(ValueError, match=r"\w") as error:
            found(**limits)
        assert message in str(error.value)

    def test_names_stand_for_models_and_clusters(self) -> None:
        asked: dict[str, Any] = {"tokens": 128 * 4096, "sequence": 4096}
        named = plan("llama-3-8b", "dgx-h100-superpod", 32, **asked)
        assert named.ranked["seconds"][0] == found().ranked["seconds"][0]
        for model, cluster, words in (
            ("llama-3-9b", H100, "llama-3-8b"),
            (LLAMA, "dgx-h100-superpd", "dgx-h100-superpod"),
            (3, H100, "model: 3 is refused; allowed: a Transformer"),
            (LLAMA, 3, "cluster: 3 is refused; allowed: a Cluster"),
        ):
            with pytest.raises(ValueError, match=words):
                plan(model, cluster, 32, **asked)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="gpus: '32' is refused; allowed: whole numbers"):
            plan(LLAMA, H100, "32", **asked)  # type: ignore[arg-type]

    def test_of_several_limits_the_nearest_is_blamed(self) -> None:
        """64 replicas have 16 sequences each: the micro-batch of 64 is too large."""
        limits: dict[str, Any] = {"tp": 1, "pp": 1, "cp": 1, "zero": 0, "micro_batch": 64}
        with pytest.raises(ValueError, match=r"^micro_batch=64 leaves .* does: micro_batch=16$"):
            plan(LLAMA, H100, 64, tokens=4 * 2**20, sequence=4096, **limits)

    @pytest.mark.parametrize("limits", [{"tp": 7}, {"pp": 3}, {"micro_batch": 3}])
    def test_the_nearest_value_works(self, limits: dict[str, int]) -> None:
        with pytest.raises(ValueError, match="nearest that does") as error:
            found(**limits)
        name, value = str(error.value).rsplit(" ", 1)[1].split("=")
        assert found(**{name: value}).seen > 0


class TestExplain:
    def test_differences_sum_to_the_whole(self) -> None:
        answer = found()
        a, b = answer.training(0), answer.training(20)
        parts = explain.differences(a.time, b.time)
        whole = float(b.time.seconds - a.time.seconds)
        assert sum(one.more for one in parts) == pytest.approx(whole, rel=1e-9, abs=1e-12)

    def test_a_slower_layout_is_said_to_be_slower(self) -> None:
        answer = found()
        best = answer.training(0)
        other = answer.question.training(replace(best.layout, recompute=RECOMPUTE["full"]))
        text = explain.versus(best, other)
        assert "slower" in text
        assert "recompute" in text

    def test_rates_are_those_of_a_faster_machine(self) -> None:
        """Twice the HBM bandwidth in one array call is a job on a profile with twice of it."""
        answer = found(tp=4, pp=2, schedule="1f1b")
        training = answer.training(0)
        worth = {row.name: row for row in explain.rates(training)}
        cluster = training.cluster
        chip = cluster.accelerator.model_copy(
            update={"hbm_bandwidth": 2 * cluster.accelerator.hbm_bandwidth}
        )
        faster = replace(training, cluster=cluster.model_copy(update={"accelerator": chip}))
        ratio = float(faster.time.seconds) / float(training.time.seconds)
        assert worth["HBM bandwidth"].doubled == pytest.approx(ratio, rel=1e-9)
        assert all(row.elasticity <= 1e-12 for row in worth.values())
        assert sum(row.elasticity for row in worth.values()) >= -1.0 - 1e-6

    def test_choices_differ_in_one_choice(self) -> None:
        answer = found(framework="megatron")
        layout = answer.layout()
        for one in explain.choices(answer.question, layout):
            changed = {
                f.name
                for f in fields(Layout)
                if getattr(one.layout, f.name) != getattr(layout, f.name)
            }
            assert one.name in changed
            assert changed <= {one.name, "even", "schedule", "chunks"}
            alone = answer.question.training(one.layout)
            assert float(alone.time.seconds) == pytest.approx(one.seconds, rel=1e-12)


class TestFront:
    @given(st.data())
    def test_it_is_what_no_other_row_beats(self, data: st.DataObject) -> None:
        """Brute force, pair by pair: rows alike in all three count once, times to the nanosecond."""
        n = data.draw(st.integers(0, 40))
        draw = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
        rows = {name: draw.integers(0, 2, n).astype(float) for name in CHOICES}
        rows["seconds"] = draw.integers(1, 8, n) / 4.0 + draw.integers(0, 3, n) * 1e-10
        rows["memory"] = draw.integers(1, 8, n) * 1e9
        rows["complexity"] = draw.integers(0, 6, n).astype(float)
        points = [
            (round(seconds * 1e9), level, memory)
            for seconds, memory, level in zip(*(rows[name] for name in OBJECTIVES), strict=True)
        ]
        expected = sorted({a for a in points if not any(beats(b, a) for b in points)})
        kept = front(rows)
        have = zip(*(kept[name] for name in OBJECTIVES), strict=True)
        assert [
            (round(seconds * 1e9), level, memory) for seconds, memory, level in have
        ] == expected


class TestScaling:
    def test_a_doubling_that_does_not_fit_does_not_pay(self) -> None:
        """Each doubles the tokens per second; the second is too large for the memory."""
        gpus = np.array([8.0, 16.0, 32.0])
        fits = np.array([True, False, True])
        assert Scaling("dp", gpus, gpus, np.ones(3), gpus, fits).stops == 8
        assert Scaling("dp", gpus, gpus, np.ones(3), gpus, np.ones(3, bool)).stops == 32

    def test_weak_data_parallelism_keeps_its_efficiency(self) -> None:
        answer = found(tp=2, pp=1, cp=1)
        weak = scaling(answer.question, answer.layout(), weak=True)["dp"]
        assert weak.gpus[-1] == 131_072
        assert np.all(np.diff(weak.efficiency) <= 1e-9)
        assert weak.efficiency[0] == 1

    def test_strong_scaling_ends_where_the_batch_does(self) -> None:
        answer = found(tp=2, pp=1, cp=1, micro_batch=1)
        strong = scaling(answer.question, answer.layout())["dp"]
        assert strong.degree[-1] <= 128
        assert strong.stops <= strong.gpus[-1]

    def test_one_call_is_single_predictions(self) -> None:
        answer = found(tp=2, pp=1, cp=1)
        layout = answer.layout()
        for axis, line in scaling(answer.question, layout).items():
            more = {} if axis in ("dp", "ep") else {axis: float(line.degree[1])}
            one = replace(layout, gpus=float(line.gpus[1]), **more)
            grown = replace(answer.question, cluster=holding(H100, int(one.gpus)))
            alone = grown.training(one)
            assert float(alone.time.seconds) == pytest.approx(line.seconds[1], rel=1e-9), axis


class TestKinds:
    def test_what_stands_beside_the_best_differs_or_saves(self) -> None:
        """By definition, held against every row of the ranking."""
        answer = found()
        rows, few = answer.ranked, answer.distinct
        assert few["place"][0] == 1
        kept = (few["place"] - 1).astype(int)
        cuts = [tuple(rows[name][i] for name in CUT) for i in kept]
        kinds = [tuple(rows[name][i] for name in KIND) for i in kept]
        assert len(set(kinds)) == len(kinds)
        for n, i in enumerate(kept):
            before = [
                rows["memory"][j] for j, cut in zip(kept[:n], cuts, strict=False) if cut == cuts[n]
            ]
            assert all(rows["memory"][i] < 0.99 * memory for memory in before)
        every = {tuple(rows[name][i] for name in CUT) for i in range(len(rows["seconds"]))}
        assert every == set(cuts)

    def test_nothing_has_no_kinds(self) -> None:
        assert distinct({}) == {}


class TestBox:
    """One node, and nothing beyond: it can be cut, and cannot grow."""

    @pytest.mark.parametrize("name", ["l40s-box", "h100-pcie-box"])  # the latter: pairs in a node
    def test_it_is_cut_and_does_not_grow(self, name: str) -> None:
        box = hw.cluster(name)
        assert holding(box, 4).gpus == 4
        with pytest.raises(NoNetwork, match=f"gpus: 9 is refused; {name} has 8 GPUs") as told:
            holding(box, 9)
        assert told.value.most == 8
        assert all(hw.cluster(near).tiers[-1].name != "node" for near in networked(box))
        same = networked(hw.cluster("dgx-h100-superpod"), 5)
        assert {hw.cluster(name).accelerator.name for name in same} == {"h100-sxm"}

    @pytest.mark.parametrize("name", ["l40s-box", "h100-pcie-box"])
    def test_its_scaling_ends_with_it(self, name: str) -> None:
        box = hw.cluster(name)
        asked: dict[str, Any] = {"tokens": 64 * 4096, "sequence": 4096}
        answer = plan(preset("qwen3-0.6b").model, box, 4, **asked)
        curves = scaling(answer.question, answer.layout())
        assert curves
        assert max(float(curve.gpus[-1]) for curve in curves.values()) == 8
