"""A job as a graph: tasks are vertices, channels carry data between them, workers run them.

    finish(v) = start(v) + t_v
    start(v) ≥ finish(u) + t_uv     for each channel u → v; no t_uv where both run on one worker
    critical path = the longest chain of tasks and channels: no number of workers is faster

unless it puts a whole chain on one worker, whose channels then are free. ``schedule`` hands tasks
out as a job manager would: a worker is never idle while it could start one, and among several the
one with the longest way still to go comes first. Where channels are free, that is at most 2 - 1/k
times as long as the best schedule on k workers.

Sources: Isard et al., "Dryad: distributed data-parallel programs from sequential building blocks",
2007; Graham, "Bounds on multiprocessing timing anomalies", 1969.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from graphlib import CycleError, TopologicalSorter


@dataclass(frozen=True)
class Graph:
    """Tasks and the channels between them; times in seconds."""

    tasks: Mapping[str, float]
    channels: Mapping[tuple[str, str], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, seconds in [*self.tasks.items(), *self.channels.items()]:
            if not seconds >= 0:
                raise ValueError(f"{name}: {seconds} s is refused; allowed: 0 and more")
        for edge in self.channels:
            for task in edge:
                if task not in self.tasks:
                    known = ", ".join(self.tasks)
                    raise ValueError(f"channels: {edge} names no task {task!r}; there are: {known}")
        try:
            self.order  # noqa: B018 - a cycle shows when they are put in order
        except CycleError as error:
            raise ValueError(f"channels: {' → '.join(error.args[1])} is a cycle") from None

    @cached_property
    def before(self) -> Mapping[str, tuple[str, ...]]:
        """The tasks that each one reads from."""
        sources: dict[str, tuple[str, ...]] = dict.fromkeys(self.tasks, ())
        for source, target in self.channels:
            sources[target] += (source,)
        return sources

    @cached_property
    def order(self) -> tuple[str, ...]:
        """All tasks, each behind those that it reads from."""
        return tuple(TopologicalSorter(self.before).static_order())

    @cached_property
    def to_go(self) -> Mapping[str, float]:
        """From the start of each task to the end of the job, along the longest way. [s]"""
        left = dict.fromkeys(self.tasks, 0.0)
        for task in reversed(self.order):
            left[task] += self.tasks[task]
            for source in self.before[task]:
                left[source] = max(left[source], self.channels[source, task] + left[task])
        return left


@dataclass(frozen=True, slots=True)
class Path:
    """A chain of tasks."""

    tasks: tuple[str, ...]
    seconds: float


def critical_path(graph: Graph) -> Path:
    """The longest chain of tasks and channels.

    >>> diamond = Graph({"a": 1, "b": 5, "c": 2, "d": 1}, {("a", "b"): 0, ("a", "c"): 4,
    ...                                                    ("b", "d"): 0, ("c", "d"): 1})
    >>> critical_path(diamond)
    Path(tasks=('a', 'c', 'd'), seconds=9.0)
    """
    readers: dict[str, list[str]] = {task: [] for task in graph.tasks}
    for source, target in graph.channels:
        readers[source].append(target)
    chain: list[str] = []
    ahead = list(graph.tasks)
    while ahead:
        longest = max(ahead, key=lambda task: _through(graph, chain, task))
        chain.append(longest)
        ahead = readers[longest]
    return Path(tuple(chain), graph.to_go[chain[0]] if chain else 0.0)


@dataclass(frozen=True, slots=True)
class Placed:
    """A task on a worker."""

    task: str
    worker: int
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Schedule:
    """Who runs what when."""

    placed: tuple[Placed, ...]
    workers: int

    @property
    def seconds(self) -> float:
        """When the last task ends. [s]"""
        return max((placed.end for placed in self.placed), default=0.0)

    @property
    def busy(self) -> float:
        """Share of the workers' time spent on tasks."""
        work = sum(placed.end - placed.start for placed in self.placed)
        return work / (self.workers * self.seconds) if work else 0.0


def schedule(graph: Graph, workers: int) -> Schedule:
    """List scheduling on ``workers`` alike: what can start first does, the longest way to go first.

    Raises:
        ValueError: no worker.
    """
    if workers < 1:
        raise ValueError(f"workers: {workers} is refused; allowed: 1 and more")
    free = [0.0] * workers
    done: dict[str, Placed] = {}
    while len(done) < len(graph.tasks):
        ready = [
            task
            for task in graph.order
            if task not in done and all(source in done for source in graph.before[task])
        ]
        starts = {
            (task, worker): max(free[worker], _arrival(graph, done, task, worker))
            for task in ready
            for worker in range(workers)
        }
        task, worker = min(starts, key=lambda pair: (starts[pair], -graph.to_go[pair[0]]))
        start = starts[task, worker]
        done[task] = Placed(task, worker, start, start + graph.tasks[task])
        free[worker] = done[task].end
    return Schedule(tuple(done.values()), workers)


def _arrival(graph: Graph, done: Mapping[str, Placed], task: str, worker: int) -> float:
    """When all that ``task`` reads has reached ``worker``."""
    return max(
        (
            done[source].end
            + (0.0 if done[source].worker == worker else graph.channels[source, task])
            for source in graph.before[task]
        ),
        default=0.0,
    )


def _through(graph: Graph, chain: Sequence[str], task: str) -> float:
    """Time to go by way of ``task``, from the end of ``chain``."""
    channel = graph.channels[chain[-1], task] if chain else 0.0
    return channel + graph.to_go[task]
