"""Schedules played through pass by pass, against the closed forms and the laws of a pipeline."""

import json
import time
from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roofline.bubbles import SCHEDULES, allowed, bubble
from roofline.layout import SCHEDULE, Layout
from roofline.microbatch import MicroBatch
from roofline.schedule import timeline
from roofline.stages import in_flight_on
from roofline.step import filling, weight_gradients
from roofline.timeline import Timeline
from roofline.work import Work

STAGES, MICROBATCHES, CHUNKS = 16, 64, 8
TINY = 1e-9
SPLIT = ["zb-h1", "zb-h2", "zb-v", "v-half", "v-min"]
PREDICTED = SCHEDULE | {"interleaved": SCHEDULE["1f1b"]}  # by the whole step
THIRD = MicroBatch(Work(1.0, 0.0, 0.0), Work(2.0, 0.0, 0.0), 0.0)  # F = B_i = W
PARTS = [(1, 1, 1), (1, 1.25, 0.75), (1, 0.75, 1.25), (2, 1, 1), (1, 2, 1), (1, 1, 2), (1, 1, 0)]


def pipelines(name: str, stages: int = STAGES) -> Iterator[tuple[int, int, int | None]]:
    """All p, m and v up to the limits, with which the schedule works."""
    for p in range(1, stages + 1):
        for m in range(1, MICROBATCHES + 1):
            if allowed(name, p, m):
                many = SCHEDULES[name].chunks is None
                yield from ((p, m, v) for v in (range(1, CHUNKS + 1) if many else [None]))


def beyond(name: str, p: int) -> tuple[float, float]:
    """What the step and the worst stage idle more than the closed form says, if F = B_i = W = 1.

    ZB-H2 and ZB-V state what a stage waits between its first and last pass; the last stage starts
    p - 1 passes late. V-Half and V-Min state about 3/2 and 2 (p-1) F; it is half a pass less.
    """
    late = {"zb-h2": p - 1.0, "zb-v": (p - 1) / 2}.get(name, 0.0)
    less = -0.5 if name in ("v-half", "v-min") and p > 1 else 0.0
    return late + less, less


@pytest.mark.parametrize("name", SCHEDULES)
def test_closed_forms(name: str) -> None:
    """Step, worst stage and memory for all p to 16, m to 64 and v to 8, with F = B_i = W; and what
    the whole step takes for filling and draining, and for micro-batches in flight on every stage.
    """
    for p, m, v in pipelines(name):
        told, found = bubble(name, p, m, chunks=v), timeline(name, p, m, chunks=v)
        step, stage = beyond(name, p)
        assert abs(found.step - told.step - step) < TINY, (p, m, v)
        assert abs(found.stall.max() - told.idle - stage) < TINY, (p, m, v)
        assert abs(found.in_flight.max() - told.in_flight) < TINY, (p, m, v)
        if name in PREDICTED and (p > 1 or name != "gpipe"):  # one stage has nothing to hold
            layout = Layout(p, pp=p, chunks=v or 1, batch=m, schedule=PREDICTED[name])
            assert np.abs(found.in_flight - in_flight_on(layout, np.arange(p))).max() < TINY
            assert abs(filling(layout, THIRD, 0.0) - told.idle) < TINY, (p, m, v)


@pytest.mark.parametrize("name", ["naive", "gpipe", "1f1b", "interleaved"])
def test_any_ratio_of_forward_to_backward(name: str) -> None:
    for p, m, v in pipelines(name, 5):
        for forward, backward in [(1, 1), (3, 2.5), (1, 0), (0, 1)]:
            times = {"forward": forward, "backward": backward, "chunks": v}
            told, found = bubble(name, p, m, **times), timeline(name, p, m, **times)
            assert abs(found.step - told.step) < TINY, (p, m, v, times)
            assert np.abs(found.idle - told.idle).max() < TINY, (p, m, v, times)


def split(forward: float, inputs: float, weight: float) -> dict[str, float]:
    return {"forward": forward, "backward": inputs + weight, "weight": weight}


@pytest.mark.parametrize("parts", PARTS)
def test_zero_bubble_at_any_ratio(parts: tuple[float, float, float]) -> None:
    """ZB-H1's closed form is the idle time of the step, ZB-H2's the stall of the worst stage."""
    forward, inputs, weight = parts
    for p in range(2, 9):
        for m in (2 * p - 1, 2 * p, 5 * p):
            told = {name: bubble(name, p, m, **split(*parts)) for name in ("zb-h1", "zb-h2")}
            found = {name: timeline(name, p, m, **split(*parts)) for name in told}
            assert found["zb-h1"].step == pytest.approx(told["zb-h1"].step)
            assert found["zb-h2"].stall.max() == pytest.approx(told["zb-h2"].idle, abs=TINY)
            lone = (p - 1) * max(forward, forward + inputs - 2 * weight, inputs - forward)
            assert found["zb-h2"].idle.max() == pytest.approx(lone)
            published = (p - 1) * (forward + inputs - weight)
            if weight <= min(forward, inputs):
                assert told["zb-h1"].idle == pytest.approx(published)
            else:
                assert told["zb-h1"].idle > published


def test_zb_v_at_any_ratio() -> None:
    """ZB-V's closed form is the longest stall where W ≤ F ≤ B_i, as in a transformer, and where
    W = 0, as with frozen weights; anywhere else it is between that and half a pass more.
    """
    times = (0, 0.05, 0.25, 0.5, 0.75, 1, 1.5, 2, 3)
    for p in (2, 3, 5, 8, 16):
        for forward, inputs, weight in [(1, *two) for two in product(times, times)] + [(0, 1, 1)]:
            kinds = split(forward, inputs, weight)
            for m in (2 * p - 1, 3 * p):
                told, found = bubble("zb-v", p, m, **kinds), timeline("zb-v", p, m, **kinds)
                more = told.idle - found.stall.max()
                usual = weight <= forward <= inputs or weight == 0
                most = 0 if usual else max(forward, inputs, weight) / 2
                assert -TINY <= more <= most + TINY, (p, m, forward, inputs, weight)
                if usual:
                    late = max(told.idle, (p - 1) * inputs / 2)
                    assert found.idle.max() == pytest.approx(late)


@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "zb-h2", "zb-v", "dualpipe", "zb-2p"])
@pytest.mark.parametrize("inputs", [1.0, 2.0])
def test_frozen_weights_fill_nothing(name: str, inputs: float) -> None:
    """With LoRA no weight gradient is left to move: one micro-batch through one chunk per stage
    waits for every stage there and back, whatever the order; the V passes the bend in a half.
    """
    p, m = 8, 16
    layout = Layout(p, pp=p, batch=m, schedule=SCHEDULE[name], lora_rank=16)
    part = MicroBatch(Work(1.0, 0.0, 0.0), Work(inputs, 0.0, 0.0), 0.0)
    assert weight_gradients(layout, part) == 0
    idle = float(filling(layout, part, 0.0))
    if name == "zb-2p":  # no order to play: any has to wait as long as 1F1B does
        assert idle == pytest.approx((p - 1) * (1 + inputs))
        return
    found = timeline(name, p, m, forward=1.0, backward=inputs, weight=0.0)
    least = found.idle.max() if name != "zb-h2" else found.stall.max()
    if name == "dualpipe":  # up to F more where the backward pass is longer
        assert least <= idle <= least + 1
    else:
        assert idle == pytest.approx(least)


def test_zb_2p_is_published_without_bubble() -> None:
    """Its authors' step times of GPTs, whose W is 0.3 to 0.42 (F + B_i), leave room for none; as W
    shrinks it turns into the bubble of 1F1B without a jump.
    """
    p = 8
    layout = Layout(p, pp=p, batch=32, schedule=SCHEDULE["zb-2p"])
    weight = np.linspace(0, 1, 101)
    part = MicroBatch(Work(1.0, 0.0, 0.0), Work(2 * weight, 0.0, 1.0), 0.0)  # B_i = W + 1
    idle = np.asarray(filling(layout, part, 0.0))
    assert idle[0] == pytest.approx((p - 1) * 2)
    assert np.all(idle[weight >= 0.29 * (2 + weight)] == 0)
    assert np.abs(np.diff(idle)).max() <= 4 * (p - 1) * 0.01 + TINY


@pytest.mark.parametrize("parts", PARTS)
def test_v_schedules_at_other_ratios(parts: tuple[float, float, float]) -> None:
    """How far from the closed forms for F = B_i = W the same orders are at other times.

    ZB-V keeps its pace and only fills and drains more slowly. V-Min and V-Half lose time with
    every micro-batch: V-Min's takes 3 max(F, B_i), where that is more than the work, and V-Half's
    that or a tenth more than the work at most.
    """
    work, slowest = sum(parts), max(parts[:2])
    for p in (4, 5, 8):
        few, many = ({n: timeline(n, p, k * p, **split(*parts)) for n in SPLIT} for k in (4, 8))
        pace = {name: (many[name].step - few[name].step) / (4 * p) for name in SPLIT}
        assert pace["zb-v"] == pytest.approx(work)
        assert many["zb-v"].idle.max() <= (p - 1) * max(parts) + TINY
        assert many["zb-v"].stall.max() <= (p - 1) * (max(parts) - min(parts)) + TINY
        assert pace["v-min"] == pytest.approx(max(work, 3 * slowest))
        assert work - TINY <= pace["v-half"] <= max(1.1 * work, 3 * slowest) + TINY


@pytest.mark.parametrize("name", ["dualpipe", "dualpipev"])
@pytest.mark.parametrize("shorter", [1.0, 0.8])
def test_dualpipe_at_other_ratios(name: str, shorter: float) -> None:
    """Exact for F = B_i ≥ W, whatever a pair takes; up to F less where B_i is longer than F ≥ W."""
    for p in (2, 4, 6, 8):
        for m in (2 * p, 2 * p + 2, 5 * p):
            for forward, inputs, weight in [
                (1, 1, 1),
                (2, 2, 1),
                (1, 1, 0),
                (1, 2, 1),
                (1, 1.5, 1),
            ]:
                times = split(forward, inputs, weight)
                times["pair"] = shorter * (forward + inputs + weight)
                less = bubble(name, p, m, **times).step - timeline(name, p, m, **times).step
                assert -TINY <= less <= (0 if inputs == forward else forward) + TINY


def test_dualpipe_exceeds_its_closed_form() -> None:
    """README, (PP/2-1)(F&B+B-3W): with W longer than F or B_i more is idle than that."""
    for parts in [(1, 1, 2), (1, 0.5, 1), (0.5, 1, 2)]:
        times = split(*parts)
        assert timeline("dualpipe", 8, 20, **times).step > bubble("dualpipe", 8, 20, **times).step


@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "zb-h2", "dualpipe"])
def test_memory_of_each_device(name: str) -> None:
    """1F1B holds min(m, p - s); split weight gradients and DualPipe make all devices alike."""
    for p, m, _ in pipelines(name, 8):
        expected = {
            "1f1b": np.minimum(m, p - np.arange(p)),
            "zb-h1": np.full(p, p),
            "zb-h2": np.full(p, 2 * p - 1),
            "dualpipe": np.full(p, p + 1),
        }
        assert timeline(name, p, m).in_flight.tolist() == expected[name].tolist(), (p, m)


def test_megatrons_warm_up() -> None:
    """Megatron-LM, schedules.py: 2 (p - s - 1) + (v - 1) p forward passes, then F before B."""
    for p, m, v in pipelines("interleaved", 6):
        if v > 1:
            found = timeline("interleaved", p, m, chunks=v)
            for device in range(p):
                kinds = "".join(found.kind[found.device == device])
                ahead = min(2 * (p - device - 1) + (v - 1) * p + 1, m * v)
                assert kinds.index("B") == ahead


def virtual_stages(found: Timeline) -> np.ndarray:
    """Of each row, the place of its chunk in the model: written down anew."""
    p, chunk = found.size.stages, found.chunk
    name = found.schedule.name
    if name == "dualpipe":
        return np.where(chunk == 0, found.device, p - 1 - found.device)
    if name in ("zb-v", "v-half", "v-min", "dualpipev"):
        return np.where(chunk == 0, found.device, 2 * p - 1 - found.device)
    return chunk * p + found.device


def ends(found: Timeline, kind: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Start, end and device of a kind of pass, by micro-batch and virtual stage; each just once."""
    m, last = found.size.microbatches, found.size.virtual
    virtual, microbatch = virtual_stages(found), found.microbatch
    rows = np.flatnonzero(np.isin(found.kind, [kind, "FB"] if kind == "F" else [kind]))
    which = microbatch[rows] * last + virtual[rows]
    if kind == "B":
        pairs = np.flatnonzero(found.kind == "FB")
        other = found.paired_chunk[pairs] != found.chunk[pairs]
        assert np.all(other)
        mirror = found.size.stages * found.size.chunks - 1 - virtual[pairs]
        which = np.append(which, found.paired_microbatch[pairs] * last + mirror)
        rows = np.append(rows, pairs)
    assert np.array_equal(np.sort(which), np.arange(m * last)), kind
    rows = rows[np.argsort(which)].reshape(m, last)
    return found.start[rows], found.end[rows], found.device[rows]


def check(found: Timeline) -> None:
    """Every pass once, none before what it waits for, none beside another, none later than need."""
    where = found.schedule.name
    start_f, end_f, on = ends(found, "F")
    start_b, end_b, same = ends(found, "B")
    assert np.array_equal(on, same), where
    lag = found.send * (on[:, 1:] != on[:, :-1])
    assert np.all(start_f[:, 1:] >= end_f[:, :-1] + lag - TINY), where
    assert np.all(start_b[:, :-1] >= end_b[:, 1:] + lag - TINY), where
    assert np.all(start_b[:, -1] >= end_f[:, -1] - TINY), where
    if where in SPLIT:
        start_w, _, at = ends(found, "W")
        assert np.array_equal(on, at), where
        assert np.all(start_w >= end_b - TINY), where
    after = np.flatnonzero(np.diff(found.device) == 0) + 1
    assert np.all(found.start[after] >= found.end[after - 1] - TINY), where
    arrival = np.zeros(len(found.start))
    arrival[after] = found.end[after - 1]
    made, target, _ = found.messages
    np.maximum.at(arrival, target, found.end[made] + found.send)
    assert np.all(found.start <= arrival + TINY), where
    assert np.all(found.held >= 0), where
    assert np.all(found.in_flight <= found.schedule.in_flight(*found.size[:2], found.size.chunks))


SOME = {
    name: [(p, m, v) for p, m, v in pipelines(name, 7) if m <= 20 and (v or 1) <= 3]
    for name in SCHEDULES
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_laws(name: str) -> None:
    for p, m, v in SOME[name]:
        check(timeline(name, p, m, chunks=v))


seconds = st.floats(0, 10)


@pytest.mark.parametrize("name", SCHEDULES)
@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_laws_with_any_times(name: str, data: st.DataObject) -> None:
    """Stages and chunks of any time, and sends of any time."""
    p, m, v = data.draw(st.sampled_from(SOME[name]))
    chunks = v or SCHEDULES[name].chunks
    shape = data.draw(st.sampled_from([(), (p,), (p, chunks)]))
    count = int(np.prod(shape))
    draw = [data.draw(st.lists(seconds, min_size=count, max_size=count)) for _ in range(3)]
    forward, inputs, weight = (np.reshape(times, shape) for times in draw)
    send = data.draw(seconds)
    times = {"forward": forward, "backward": inputs + weight, "weight": weight, "send": send}
    found = timeline(name, p, m, chunks=v, **times)
    check(found)
    whole = forward + inputs + weight
    work = m * (whole.sum(axis=1) if whole.ndim == 2 else np.broadcast_to(whole, p))
    if name == "dualpipe":
        work = (work + work[::-1]) / 2
    assert found.busy == pytest.approx(work, abs=1e-6)
    assert np.all(found.idle >= found.stall - 1e-6)
    assert -TINY <= found.share <= 1 + TINY


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v"])
def test_a_slow_stage_sets_the_rate(name: str) -> None:
    """Each further micro-batch takes what it takes on the slowest stage."""
    p = 4
    for slow in range(p):
        forward = np.where(np.arange(p) == slow, 1.5, 1.0)
        few, many = (timeline(name, p, m, forward=forward) for m in (8 * p, 16 * p))
        assert many.step - few.step == pytest.approx(8 * p * 3 * 1.5)
        assert many.idle.argmin() == slow


def test_chunks_of_their_own_times() -> None:
    """A head on the last chunk: half a stage's work more on the device that holds it."""
    p, m, v = 4, 16, 2
    times = np.full((p, v), 0.5)
    even = timeline("interleaved", p, m, chunks=v, forward=times)
    assert even.step == pytest.approx(timeline("interleaved", p, m, chunks=v).step)
    times[-1, -1] = 1.0
    assert timeline("interleaved", p, m, chunks=v, forward=times).busy == pytest.approx(
        [3 * m, 3 * m, 3 * m, 4.5 * m]
    )


def test_sends_lengthen_fill_and_drain() -> None:
    """GPipe sends while it computes: two hops per stage, however many micro-batches."""
    for p, m, _ in pipelines("gpipe", 6):
        for send in (0.25, 1.0):
            plain = timeline("gpipe", p, m).step
            assert timeline("gpipe", p, m, send=send).step == pytest.approx(
                plain + 2 * (p - 1) * send
            )


@pytest.mark.parametrize("name", ["interleaved", "zb-h2", "zb-v"])
def test_short_sends_cost_nothing_per_micro_batch(name: str) -> None:
    """There is enough in flight to hide them: only the fill and the drain grow."""
    p, v = 4, 2 if name == "interleaved" else None
    few, many = (
        [timeline(name, p, k * p, chunks=v, send=send).step for send in (0, 0.1)] for k in (4, 8)
    )
    assert many[1] - many[0] == pytest.approx(few[1] - few[0])
    assert 0 < few[1] - few[0] <= 0.1 * 6 * p


@pytest.mark.parametrize(("name", "pairs"), [("dualpipe", 1), ("dualpipev", 2)])
def test_dualpipe_waits_for_sends(name: str, pairs: int) -> None:
    """Both passes of a pair have to be there before it starts: at most a send for each pair."""
    few, many = ([timeline(name, 4, m, send=send).step for send in (0, 0.1)] for m in (16, 32))
    assert 0 < (many[1] - many[0] - few[1] + few[0]) / 16 <= 0.1 * pairs + TINY


def test_1f1b_waits_for_sends() -> None:
    """No more than p - s in flight: a micro-batch's way there and back is not covered.

    p micro-batches share one way through the pipeline of p (F + B) and 2 (p - 1) sends.
    """
    for p in (2, 4, 8):
        few, many = (timeline("1f1b", p, m, send=0.1).step for m in (4 * p, 8 * p))
        assert (many - few) / (4 * p) == pytest.approx(3 + 2 * (p - 1) / p * 0.1)


@pytest.mark.parametrize("name", SCHEDULES)
def test_memory_over_time(name: str) -> None:
    """A staircase from nothing to nothing, whose highest step is the device's peak."""
    found = timeline(name, 4, 16)
    for device in range(4):
        times, held = found.memory(device)
        assert np.all(np.diff(times) >= 0)
        assert held.max() == found.in_flight[device]
        assert held[-1] == 0
        assert times[-1] == found.end[found.device == device].max()


def test_events() -> None:
    """Ready for a chart or a trace: plain numbers, a send for each hop between devices."""
    found = timeline("dualpipe", 4, 8, send=0.5)
    events = json.loads(json.dumps(found.to_events()))
    sends = [event for event in events if event["kind"] == "send"]
    assert len(events) - len(sends) == len(found.start)
    assert len(sends) == 2 * 8 * 3
    assert {abs(event["device"] - event["to"]) for event in sends} == {1}
    assert {event["end"] - event["start"] for event in sends} == {0.5}
    pairs = [event for event in events if event["kind"] == "FB"]
    assert pairs
    assert all(event["chunk"] != event["paired_chunk"] for event in pairs)
    quiet = timeline("zb-v", 2, 4, send=0.5).to_events()
    turn = [event for event in quiet if event["kind"] == "send" and event["device"] == 1]
    assert {(event["of"], event["chunk"]) for event in turn} == {("F", 1), ("B", 0)}


def test_fast() -> None:
    """The longest of the grid, 16 devices, 64 micro-batches and 8 chunks: 16,384 passes."""
    began = time.process_time()
    found = timeline("interleaved", 16, 64, chunks=8)
    assert len(found.start) == 2 * 16 * 64 * 8
    assert time.process_time() - began < 1


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="schedule: '1f2b' is not one; the nearest is 1f1b"):
        timeline("1f2b", 4, 8)
    with pytest.raises(ValueError, match=r"microbatches: 5 is refused by ZB-V.*allowed: 7"):
        timeline("zb-v", 4, 5)
    with pytest.raises(
        ValueError, match=r"forward: shape \(3,\) is refused; allowed: a number or \(4,\)"
    ):
        timeline("1f1b", 4, 8, forward=[1, 1, 1])
    with pytest.raises(ValueError, match=r"backward: -1\.0 s is refused; allowed: 0 and more"):
        timeline("1f1b", 4, 8, backward=-1)
    with pytest.raises(ValueError, match=r"weight: 3\.0 s is refused; allowed: at most backward"):
        timeline("zb-h1", 4, 8, backward=2.0, weight=3.0)
    with pytest.raises(ValueError, match=r"send: -1\.0 s is refused"):
        timeline("1f1b", 4, 8, send=-1)
    with pytest.raises(ValueError, match=r"pair: shape \(3,\) is refused"):
        timeline("dualpipe", 4, 8, pair=[1, 1, 1])
    with pytest.raises(
        ValueError, match=r"stages: 4\.5 is refused; allowed: whole numbers; the nearest: 4"
    ):
        timeline("1f1b", 4.5, 8)
    with pytest.raises(ValueError, match="chunks: 3 is refused; 1F1B has 1 per stage"):
        timeline("1f1b", 4, 8, chunks=3)
