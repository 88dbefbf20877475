"""Pipeline schedules against a simulation that knows only who waits for whom."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roofline.bubbles import (
    SCHEDULES,
    allowed,
    bubble,
    nearest_microbatches,
    schedule,
)

Pass = tuple[str, int, int]  # F or B, micro-batch, chunk


def gpipe(stage: int, p: int, m: int, v: int) -> list[Pass]:
    """All forward passes, then all backward passes."""
    return [(kind, i, 0) for kind in "FB" for i in range(m)]


def one_f_one_b(stage: int, p: int, m: int, v: int) -> list[Pass]:
    """Fill with p - stage - 1 forward passes, then one of each in turn (Megatron)."""
    return interleaved(stage, p, m, 1, warm_up=min(p - stage - 1, m), group=m)


def interleaved(
    stage: int, p: int, m: int, v: int, warm_up: int | None = None, group: int | None = None
) -> list[Pass]:
    """Megatron's order: p micro-batches through a chunk, then the same through the next."""
    size = group or p
    steps = [
        (first + i, chunk)
        for first in range(0, m, size)
        for chunk in range(v)
        for i in range(min(size, m - first))
    ]
    forward = [("F", i, chunk) for i, chunk in steps]
    backward = [("B", i, v - 1 - chunk) for i, chunk in steps]
    if warm_up is None:
        warm_up = min(2 * (p - stage - 1) + (v - 1) * p, m * v)
    steady = [one for pair in zip(forward[warm_up:], backward, strict=False) for one in pair]
    return forward[:warm_up] + steady + backward[len(forward) - warm_up :]


ORDERS = {"gpipe": gpipe, "1f1b": one_f_one_b, "interleaved": interleaved}


def simulate(name: str, p: int, m: int, v: int, forward: float, backward: float):
    """Makespan, and most chunks that stage 0 holds activations of at once."""
    order = one_f_one_b if v == 1 and name == "interleaved" else ORDERS[name]
    plans = [order(stage, p, m, v) for stage in range(p)]
    ends: dict[tuple[str, int, int], float] = {}  # pass and virtual stage -> its end
    clock, place = [0.0] * p, [0] * p
    last = p * v - 1
    while any(place[s] < len(plans[s]) for s in range(p)):
        moved = False
        for s in range(p):
            while place[s] < len(plans[s]):
                kind, i, chunk = plans[s][place[s]]
                at = chunk * p + s
                if kind == "F":
                    before = [("F", i, at - 1)] if at else []
                else:
                    before = [("F", i, at)] if at == last else [("B", i, at + 1), ("F", i, at)]
                if any(one not in ends for one in before):
                    break
                ready = max([clock[s], *(ends[one] for one in before)])
                clock[s] = ready + (forward if kind == "F" else backward) / v
                ends[kind, i, at] = clock[s]
                place[s] += 1
                moved = True
        assert moved, "the schedule waits for itself"
    held = np.cumsum([1 if kind == "F" else -1 for kind, _, _ in plans[0]])
    return max(clock), int(held.max())


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize(("forward", "backward"), [(1.0, 2.0), (1.0, 1.0), (3.0, 2.5)])
def test_simulation(name: str, forward: float, backward: float) -> None:
    """Brute force over p to 8, m to 16, v to 4: time of the step and peak on the first stage."""
    for p in range(1, 9):
        for m in range(1, 17):
            for v in (1, 2, 3, 4) if name == "interleaved" else (1,):
                if not allowed(name, p, m):
                    continue
                makespan, peak = simulate(name, p, m, v, forward, backward)
                chunks = {"chunks": v} if name == "interleaved" else {}
                found = bubble(name, p, m, forward=forward, backward=backward, **chunks)
                assert found.step == pytest.approx(makespan), (p, m, v)
                assert found.in_flight * v == pytest.approx(peak), (p, m, v)


def greedy(p: int, m: int, limit: list[int], times: tuple[float, float, float]) -> list[float]:
    """Idle time of each stage between its first and last pass: B first, then F, then W.

    A stage has at most ``limit`` micro-batches between their F and their B. Times are integers.
    """
    length = dict(zip("FBW", times, strict=True))
    done: dict[tuple[str, int, int], float] = {}
    free, spans = [0.0] * p, [[] for _ in range(p)]
    counts = [dict.fromkeys("FBW", 0) for _ in range(p)]
    now = 0.0
    while any(counts[s]["W"] < m for s in range(p)):
        for s in range(p):
            if free[s] > now:
                continue
            n = counts[s]
            ready = {
                "B": n["B"] < n["F"]
                and (done.get(("B", s + 1, n["B"]), 1e9) if s < p - 1 else 0) <= now,
                "F": n["F"] < m
                and n["F"] - n["B"] < limit[s]
                and (done.get(("F", s - 1, n["F"]), 1e9) if s else 0) <= now,
                "W": n["W"] < n["B"],
            }
            kind = next((k for k in "BFW" if ready[k]), None)
            if kind:
                done[kind, s, n[kind]] = free[s] = now + length[kind]
                spans[s].append((now, free[s]))
                n[kind] += 1
        now += 1.0
    work = m * sum(times)
    return [rows[-1][1] - rows[0][0] - work for rows in spans]


@pytest.mark.parametrize("p", [2, 4, 6, 8])
def test_zero_bubble_by_list_scheduling(p: int) -> None:
    """Zero Bubble Pipeline Parallelism, table 2, with F = B = W and its limits of activations."""
    m = 3 * p
    parts = {"forward": 1.0, "backward": 2.0, "weight": 1.0}
    h1 = greedy(p, m, [p - s for s in range(p)], (1, 1, 1))
    assert max(h1) == pytest.approx(bubble("zb-h1", p, m, **parts).idle)
    h2 = greedy(p, m, [2 * (p - s) - 1 for s in range(p)], (1, 1, 1))
    assert max(h2) == pytest.approx(bubble("zb-h2", p, m, **parts).idle)


@pytest.mark.parametrize(
    ("name", "ratio", "in_flight", "copies", "traffic"),
    [
        ("1f1b", 7 / 32, 8, 1, 1),
        ("zb-h1", 7 / 96, 8, 1, 1),
        ("zb-h2", 0, 15, 1, 1),
        ("zb-v", 0, 8, 1, 2),
    ],
)
def test_zero_bubble_table(name, ratio, in_flight, copies, traffic) -> None:
    """sail-sg/zero-bubble README, comparison of schedules, T_F = T_B = T_W."""
    found = bubble(name, 8, 32)
    assert found.ratio == pytest.approx(ratio)
    assert found.in_flight == in_flight
    assert found.schedule.parameter_copies == copies
    assert found.traffic == traffic


def test_controllable_memory_table() -> None:
    """sail-sg, pipeline parallelism with controllable memory: about p/2m and 2p/3m."""
    p, m = 100, 1000
    assert bubble("v-half", p, m).ratio == pytest.approx(p / (2 * m), rel=0.011)
    assert bubble("v-min", p, m).ratio == pytest.approx(2 * p / (3 * m), rel=0.011)
    assert bubble("v-half", 16, 64).in_flight == 9
    assert bubble("v-min", 16, 64).in_flight == 6


def test_dualpipe_table() -> None:
    """deepseek-ai/DualPipe README: (PP/2-1)(F&B + B - 3W), parameters twice, PP+1 activations."""
    parts = {"forward": 2.0, "backward": 5.0, "weight": 2.0, "pair": 6.0}
    dual = bubble("dualpipe", 8, 20, **parts)
    assert dual.idle == pytest.approx(3 * (6 + 5 - 6))
    assert (dual.in_flight, dual.schedule.parameter_copies) == (9, 2)
    half = bubble("dualpipev", 4, 20, **parts)  # 8 half-stages on 4 GPUs
    assert half.idle == pytest.approx(dual.idle / 2)  # each takes half as long
    assert half.in_flight == pytest.approx(9 / 2)
    assert half.schedule.parameter_copies == 1


@pytest.mark.parametrize("name", SCHEDULES)
@given(p=st.sampled_from([2, 4, 8, 16]), times=st.integers(2, 9), forward=st.floats(0.1, 10))
def test_every_schedule(name: str, p: int, times: int, forward: float) -> None:
    """Laws: idle is not negative and below naive's, memory at most GPipe's, scale drops out."""
    m = p * times
    found = bubble(name, p, m, forward=forward)
    assert 0 <= found.idle <= bubble("naive", p, m, forward=forward).idle
    assert 0 <= found.share < 1
    assert found.step == pytest.approx(found.idle + found.work)
    assert found.in_flight <= m
    assert found.ratio == pytest.approx(bubble(name, p, m).ratio)


@pytest.mark.parametrize("name", SCHEDULES)
def test_arrays(name: str) -> None:
    p, m = np.array([2, 4, 8]), np.array([8, 16, 32])
    together = bubble(name, p, m)
    for i in range(3):
        alone = bubble(name, int(p[i]), int(m[i]))
        assert np.broadcast_to(together.idle, 3)[i] == pytest.approx(alone.idle)
        assert np.broadcast_to(together.in_flight, 3)[i] == pytest.approx(alone.in_flight)


def test_one_stage_never_idles() -> None:
    for name, row in SCHEDULES.items():
        if not row.even_stages:
            assert bubble(name, 1, 8).idle == 0


def test_interleaving_one_chunk_is_1f1b() -> None:
    one = bubble("interleaved", 8, 32, chunks=1)
    plain = bubble("1f1b", 8, 32)
    assert (one.idle, one.in_flight, one.traffic) == (plain.idle, plain.in_flight, plain.traffic)


def test_where_a_schedule_works() -> None:
    assert allowed("interleaved", 4, np.array([4, 6, 8])).tolist() == [True, False, True]
    assert allowed("zb-h2", 4, np.array([6, 7])).tolist() == [False, True]
    assert allowed("dualpipe", np.array([3, 4, 4]), np.array([8, 8, 9])).tolist() == [
        False,
        True,
        False,
    ]
    assert allowed("dualpipev", 3, 7).tolist() is True
    assert not allowed("1f1b", 4, 0)


@pytest.mark.parametrize(
    ("name", "p", "m", "near"),
    [("interleaved", 4, 10, [8, 12]), ("zb-h1", 8, 3, [8]), ("dualpipe", 4, 9, [8, 10])],
)
def test_nearest_micro_batches(name: str, p: int, m: int, near: list[int]) -> None:
    assert nearest_microbatches(name, p, m) == near
    with pytest.raises(ValueError, match=f"microbatches: {m} is refused.*{near[0]}"):
        bubble(name, p, m)


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="schedule: '1f2b' is not one; the nearest is 1f1b"):
        schedule("1f2b")
    with pytest.raises(ValueError, match="chunks: 3 is refused; 1F1B has 1 per stage"):
        bubble("1f1b", 4, 8, chunks=3)
    with pytest.raises(ValueError, match=r"stages: 5 is odd and DualPipe.*4 and 6"):
        bubble("dualpipe", 5, 20)
    with pytest.raises(ValueError, match="stages: 0 is refused; allowed: 1 and more"):
        bubble("1f1b", 0, 20)
    with pytest.raises(ValueError, match="microbatches: 6 is refused by ZB-H2 with 4 stages"):
        bubble("zb-h2", 4, np.array([8, 6]))
