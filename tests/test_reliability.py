"""Stragglers, failures and job graphs: closed forms against simulation and exhaustive search."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roofline.dag import Graph, Schedule, critical_path, schedule
from roofline.reliability import (
    asynchronous_rate,
    checkpoint_interval,
    cluster_mtbf,
    goodput,
    synchronous_rate,
    synchronous_step,
)

times = st.lists(st.floats(0.1, 10), min_size=1, max_size=8)


@given(times, st.floats(0, 1))
def test_waiting_never_pays_in_steps(workers: list[float], exchange: float) -> None:
    """As many contributions at least without waiting; as many when all are alike."""
    patient = synchronous_rate(workers, exchange)
    assert asynchronous_rate(workers, exchange) >= patient * (1 - 1e-12)
    alike = [workers[0]] * len(workers)
    assert asynchronous_rate(alike, exchange) == pytest.approx(synchronous_rate(alike, exchange))


def test_a_straggler() -> None:
    """By hand: 1.6 + 0.1 s, and 1/1.1 + 1/1.2 + 1/1.1 + 1/1.7 a second; rows are cases."""
    workers = np.array([[1.0, 1.1, 1.0, 1.6], [1.0, 1.0, 1.0, 1.0]])
    assert synchronous_step(workers, 0.1) == pytest.approx([1.7, 1.1])
    assert asynchronous_rate(workers, 0.1) == pytest.approx([3.2397504, 4 / 1.1])


def test_llama_3_fails_every_three_hours() -> None:
    """arXiv:2407.21783 section 3.3.4: 419 unexpected interruptions in 54 days on 16,384 GPUs; one
    GPU alone would go on for almost six years.
    """
    alone = 54 * 24 * 16384 / 419
    assert cluster_mtbf(alone, 16384) == pytest.approx(3.1, abs=0.05)
    assert alone / 24 / 365 == pytest.approx(5.8, abs=0.05)


def simulated(interval: float, save: float, mtbf: float, restart: float) -> float:
    """Wall time of many segments with failures at random; they strike while restarting too."""
    random = np.random.default_rng(0)
    segments, wall = 4000, 0.0
    for _ in range(segments):
        need = interval + save
        while (failure := random.exponential(mtbf)) < need:
            wall += failure
            while (again := random.exponential(mtbf)) < restart:
                wall += again
            wall += restart
        wall += need
    return segments * interval / wall


@pytest.mark.parametrize(
    ("interval", "save", "mtbf", "restart"), [(600, 60, 3600, 120), (3000, 60, 3600, 600)]
)
def test_goodput_is_what_a_simulation_finds(
    interval: float, save: float, mtbf: float, restart: float
) -> None:
    """Failures with exponential gaps, 4000 segments: within 5 %."""
    wanted = simulated(interval, save, mtbf, restart)
    assert goodput(save, mtbf, interval=interval, restart=restart) == pytest.approx(
        wanted, rel=0.05
    )


@given(st.floats(1, 100), st.floats(1e5, 1e7), st.floats(0, 600))
def test_goodput_at_first_order(save: float, mtbf: float, restart: float) -> None:
    """Young: 1 - δ/τ - (τ/2 + R)/M, to second order in them."""
    interval = checkpoint_interval(save, mtbf)
    loss = save / interval + (interval / 2 + restart) / mtbf
    assert goodput(save, mtbf, restart=restart) == pytest.approx(1 - loss, abs=2 * loss**2)


@given(st.floats(1, 100), st.floats(1e4, 1e7))
def test_young_is_near_the_best(save: float, mtbf: float) -> None:
    """No other interval has a percent more goodput."""
    tried = checkpoint_interval(save, mtbf) * np.logspace(-1, 1, 101)
    assert goodput(save, mtbf) >= np.max(goodput(save, mtbf, interval=tried)) * 0.99


def test_goodput_at_the_edges() -> None:
    """Free checkpoints lose nothing, a job that always fails does nothing, no warnings between."""
    assert goodput(0.0, 3600.0) == pytest.approx(1)
    assert goodput(60.0, 0.01) == 0
    assert goodput(60.0, np.array([1e3, 1e6])).shape == (2,)


@st.composite
def graphs(draw: st.DrawFn, channels: bool = True) -> Graph:
    names = "abcdefg"[: draw(st.integers(1, 7))]
    seconds = st.integers(0, 9)
    pairs = [(u, v) for i, u in enumerate(names) for v in names[i + 1 :] if draw(st.booleans())]
    return Graph(
        {name: draw(seconds) for name in names},
        {pair: draw(seconds) if channels else 0.0 for pair in pairs},
    )


def all_chains(graph: Graph, task: str) -> list[float]:
    ends = [
        graph.channels[edge] + rest
        for edge in graph.channels
        if edge[0] == task
        for rest in all_chains(graph, edge[1])
    ]
    return [graph.tasks[task] + end for end in [0.0, *ends]]


@given(graphs())
def test_the_critical_path_is_the_longest_chain(graph: Graph) -> None:
    """Of all there are, one by one; and its own length is that of its links."""
    path = critical_path(graph)
    assert path.seconds == max(max(all_chains(graph, task)) for task in graph.tasks)
    links = pairwise(path.tasks)
    total = sum(graph.tasks[task] for task in path.tasks)
    assert path.seconds == total + sum(graph.channels[link] for link in links)


def is_valid(graph: Graph, plan: Schedule) -> bool:
    at = {placed.task: placed for placed in plan.placed}
    after = all(
        at[v].start >= at[u].end + (0 if at[u].worker == at[v].worker else seconds)
        for (u, v), seconds in graph.channels.items()
    )
    alone = all(
        a.end <= b.start or b.end <= a.start
        for a in plan.placed
        for b in plan.placed
        if a is not b and a.worker == b.worker and a.end > a.start and b.end > b.start
    )
    return after and alone and set(at) == set(graph.tasks)


@settings(max_examples=50)
@given(graphs(), st.integers(1, 4))
def test_a_schedule_can_be_carried_out(graph: Graph, workers: int) -> None:
    """Nobody starts before its data is there, or does two things at once."""
    plan = schedule(graph, workers)
    assert is_valid(graph, plan)
    assert 0 <= plan.busy <= 1
    if workers == 1:
        assert plan.seconds == sum(graph.tasks.values())


@settings(max_examples=50)
@given(graphs(channels=False), st.integers(1, 4))
def test_grahams_bound(graph: Graph, workers: int) -> None:
    """Graham 1969: at most work/k + (1 - 1/k) times the critical path, at least either."""
    found, path = schedule(graph, workers).seconds, critical_path(graph).seconds
    share = sum(graph.tasks.values()) / workers
    assert max(path, share) <= found + 1e-9
    assert found <= share + (1 - 1 / workers) * path + 1e-9
    assert schedule(graph, len(graph.tasks)).seconds == path


def test_what_is_no_graph_is_refused() -> None:
    """Unknown tasks, cycles, negative times, no workers."""
    with pytest.raises(ValueError, match="no task 'c'"):
        Graph({"a": 1, "b": 1}, {("a", "c"): 0})
    with pytest.raises(ValueError, match="cycle"):
        Graph({"a": 1, "b": 1}, {("a", "b"): 0, ("b", "a"): 0})
    with pytest.raises(ValueError, match="-1"):
        Graph({"a": -1})
    with pytest.raises(ValueError, match="workers"):
        schedule(Graph({"a": 1}), 0)
    assert critical_path(Graph({})).seconds == schedule(Graph({}), 2).seconds == 0
