"""A pipeline schedule played through: every pass of every micro-batch, when and on which device.

    start(pass) ≥ end(the pass before it on its device)
    start(F of stage j) ≥ end(F of stage j - 1) + send, and of B the other way round
    start(W) ≥ end(its B)

Sends overlap with passes and cost nothing between chunks on one device. The order on a device is
fixed beforehand, by ``roofline.orders``. So this is what the closed forms of ``roofline.bubbles``
are equal to, for all p to 16, m to 64 and v to 8, with B_i = B - W, the pass that makes the
gradients of the activations. ``in_flight`` is equal for every schedule; these are times:

    naive, GPipe, 1F1B, interleaved   the step, for any F and B
    ZB-H1   the step, for any F, B_i, W; as published, (p-1)(F + B_i - W), if W ≤ min(F, B_i)
    ZB-H2   the longest stall, for any; the step idles (p-1) max(F, F + B_i - 2W, B_i - F)
    ZB-V    the longest stall, if W ≤ F ≤ B_i or W = 0, and the step idles that or (p-1) B_i/2; at
            other times up to half a pass more than the stall, with no loss per micro-batch
    V-Half  the step and F/2 more, if F = B_i = W; at other times up to 3 max(F, B_i) or a tenth
            more than the work per micro-batch
    V-Min   the same; at other times max(F + B, 3 max(F, B_i)) per micro-batch
    DualPipe, DualPipeV   the step, if F = B_i ≥ W, whatever a pair takes; up to F more than the
            step if B_i > F ≥ W; less than it if W > min(F, B_i) or B_i < F

Sends of GPipe add 2 (p-1) to the step, short ones of interleaved, ZB-H2 and ZB-V no more than a
fill and a drain. 1F1B has too few micro-batches in flight to hide them: 2 (p-1)/p of a send each.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from roofline.bubbles import Schedule, bubble
from roofline.orders import order, ways
from roofline.passes import BACKWARD, FORWARD, GATE, INPUT, PAIR, TAIL, WEIGHT, Codes, Size
from roofline.timeline import Floats, Messages, Timeline

_KINDS = np.array(["F", "B", "B", "W", "", "FB", ""])  # in the order of the codes


def timeline(
    name: str,
    stages: int,
    microbatches: int,
    *,
    chunks: int | None = None,
    forward: ArrayLike = 1.0,
    backward: ArrayLike | None = None,
    weight: ArrayLike | None = None,
    pair: ArrayLike | None = None,
    send: float = 0.0,
) -> Timeline:
    """Play the schedule called ``name`` through.

    Times are of one micro-batch on one stage: a number, or one per stage, or an array of stages
    and chunks with the time of each chunk by itself.

    Args:
        stages: p, devices along the pipeline.
        microbatches: m, per pipeline and step.
        chunks: v, runs of layers per stage, where the schedule leaves a choice.
        forward: F. [s]
        backward: the full backward pass; twice F when left out. [s]
        weight: the part of it that makes weight gradients; half of it when left out. [s]
        pair: F and B overlapped, a number or one per device; their sum when left out. [s]
        send: from one device to the next, beside the passes. [s]

    Raises:
        ValueError: an unknown schedule, a pipeline it does not work for, or times that are
            negative, of no such shape, or longer for the weights than for the whole pass.

    >>> timeline("1f1b", 4, 8, forward=1, backward=2).step
    33.0
    >>> timeline("zb-h1", 4, 8, forward=1, backward=2).step
    27.0
    """
    row = bubble(name, stages, microbatches, chunks=chunks).schedule
    size = Size(int(stages), int(microbatches), int(row.chunks or chunks or 1))
    for field, given, kept in zip(Size._fields, (stages, microbatches, chunks), size, strict=True):
        if given not in (None, kept):
            raise ValueError(f"{field}: {given} is refused; allowed: whole numbers, as {kept}")
    whole = 2.0 * np.asarray(forward, float) if backward is None else np.asarray(backward)
    part = 0.5 * np.asarray(whole, float) if weight is None else np.asarray(weight)
    named = {"forward": forward, "backward": whole, "weight": part}
    times = {field: _per_virtual_stage(field, time, row, size) for field, time in named.items()}
    if np.any(times["weight"] > times["backward"]):
        raise ValueError(f"weight: {part} s is refused; allowed: at most backward, {whole} s")
    lag = float(_checked("send", send, ()))
    program = _compile(row, size, times, pair)
    return _timeline(row, size, program, _run(program, lag), lag)


class _Program(NamedTuple):
    """The steps of all devices, one device after the other."""

    device: Codes
    kind: Codes
    microbatch: Codes
    virtual: Codes
    seconds: Floats
    need: Codes  # the step on another device, or of another chunk, that it waits for; or -1
    first: Codes  # step of each device, and one behind the last


def _compile(
    row: Schedule, size: Size, times: dict[str, Floats], pair: ArrayLike | None
) -> _Program:
    lists = order(row.name, size)
    device = np.repeat(np.arange(size.stages), [len(steps) for steps in lists])
    kind, (microbatch, virtual) = size.read(np.concatenate(lists))
    length = np.zeros((TAIL + 1, size.virtual))
    length[FORWARD] = times["forward"]
    length[BACKWARD] = times["backward"]
    length[INPUT] = times["backward"] - times["weight"]
    length[WEIGHT] = times["weight"]
    seconds = length[kind, virtual]
    pairs = np.flatnonzero(kind == PAIR)
    both = times["forward"][virtual[pairs]] + times["backward"][virtual[pairs + 1]]
    if pair is not None:
        each = _checked("pair", pair, (), (size.stages,))
        both = np.broadcast_to(each, size.stages)[device[pairs]] / size.chunks
    seconds[pairs] = both
    need = _needs(kind, microbatch * size.virtual + virtual, size)
    first = np.searchsorted(device, np.arange(size.stages + 1))
    return _Program(device, kind, microbatch, virtual, seconds, need, first)


def _needs(kind: Codes, place: Codes, size: Size) -> Codes:
    """The step that each one waits for: its micro-batch in the virtual stage before, or after."""
    every = np.arange(len(kind))
    need = np.full(len(kind), -1)
    forward, made = _any(kind, FORWARD, PAIR), _any(kind, BACKWARD, INPUT, TAIL)
    maker = np.full(size.microbatches * size.virtual + 1, -1)
    maker[place[forward]] = every[forward]
    inner = forward & (place % size.virtual > 0)
    need[inner] = maker[place[inner] - 1]
    maker[place[made]] = every[made]
    waits = _any(kind, BACKWARD, INPUT, GATE) & (place % size.virtual < size.virtual - 1)
    need[waits] = maker[place[waits] + 1]
    return need


def _any(kind: Codes, *wanted: int) -> NDArray[np.bool_]:
    """Which of the steps are of a wanted kind."""
    table = np.zeros(TAIL + 1, bool)
    table[list(wanted)] = True
    return table[kind]


def _run(program: _Program, send: float) -> Floats:
    """When each step starts: behind the one before it on its device, and what it waits for."""
    need, seconds = program.need.tolist(), program.seconds.tolist()
    crosses = program.device[program.need] != program.device
    lag = np.where(crosses, send, 0.0).tolist()
    place, stop = program.first[:-1].tolist(), program.first[1:].tolist()
    clock = [0.0] * len(place)
    start, end = [0.0] * len(need), [-1.0] * len(need)
    waiting: dict[int, int] = {}
    ready = list(range(len(place)))
    while ready:
        device = ready.pop()
        time, last = clock[device], stop[device]
        step = place[device]
        while step < last:
            source = need[step]
            if source >= 0:
                if end[source] < 0:
                    waiting[source] = device
                    break
                arrival = end[source] + lag[step]
                if arrival > time:  # quicker than max()
                    time = arrival
            start[step] = time
            time += seconds[step]
            end[step] = time
            if step in waiting:
                ready.append(waiting.pop(step))
            step += 1
        place[device], clock[device] = step, time
    assert place == stop, f"{place} of {stop}: the schedule waits for itself"
    return np.array(start)


def _timeline(row: Schedule, size: Size, program: _Program, start: Floats, send: float) -> Timeline:
    """The rows of the steps that take time; the marks around a pair go into its row."""
    kind, microbatch = program.kind, program.microbatch
    keep = (kind != GATE) & (kind != TAIL)
    chunk = program.virtual // size.stages
    chunk = chunk + microbatch * len(ways(row.name, size)) // size.microbatches
    tail = np.append(np.where(kind[1:] == TAIL, np.arange(1, len(kind)), -1), -1)[keep]
    number = np.cumsum(keep) - 1
    number[kind == GATE] += 1
    crosses = (program.need >= 0) & (program.device[program.need] != program.device)
    target = np.flatnonzero(crosses)
    forward = _any(kind[target], FORWARD, PAIR)
    taken, freed = _any(kind, FORWARD, PAIR), _any(kind, BACKWARD, PAIR, WEIGHT)
    return Timeline(
        row,
        size,
        send,
        program.device[keep],
        start[keep],
        (start + program.seconds)[keep],
        _KINDS[kind[keep]],
        microbatch[keep],
        chunk[keep],
        np.where(tail < 0, -1, microbatch[tail]),
        np.where(tail < 0, -1, chunk[tail]),
        taken[keep].astype(int),
        freed[keep].astype(int),
        Messages(number[program.need[target]], number[target], np.where(forward, "F", "B")),
    )


def _per_virtual_stage(field: str, time: ArrayLike, row: Schedule, size: Size) -> Floats:
    """The time of one micro-batch in each virtual stage. [s]"""
    given = _checked(field, time, (), (size.stages,), (size.stages, size.chunks))
    where = ways(row.name, size)[0]
    if given.ndim == 2:
        return given[where, np.arange(size.virtual) // size.stages]
    return np.broadcast_to(given, size.stages)[where] / size.chunks


def _checked(field: str, time: ArrayLike, *shapes: tuple[int, ...]) -> Floats:
    """Times as an array of one of the shapes."""
    given = np.asarray(time, float)
    if given.shape not in shapes:
        allowed = " or ".join(str(shape) if shape else "a number" for shape in shapes)
        raise ValueError(f"{field}: shape {given.shape} is refused; allowed: {allowed}")
    if not np.all((given >= 0) & np.isfinite(given)):
        raise ValueError(f"{field}: {given} s is refused; allowed: 0 and more")
    return given
