"""In what order a device runs its passes, schedule by schedule, as their papers have it.

Of the virtual stages, which a micro-batch visits in turn, device s of p holds

    looped     s, s + p, s + 2p, …       chunk j // p
    V          s and 2p - 1 - s          its first and its last layers meet on one device
    DualPipe   s, and p - 1 - s for the micro-batches that enter at the other end

The orders are those of passes that all take the same time; what other times make of them, the
simulation in ``roofline.schedule`` shows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from roofline.passes import (
    BACKWARD,
    FORWARD,
    INPUT,
    WEIGHT,
    Codes,
    Script,
    Size,
    fill,
    merge,
)


def order(name: str, size: Size) -> list[Codes]:
    """The passes of each device in the order in which it runs them.

    >>> size = Size(stages=2, microbatches=2, chunks=1)
    >>> [size.read(passes)[0].tolist() for passes in order("1f1b", size)]  # FFBB and FBFB
    [[0, 0, 1, 1], [0, 1, 0, 1]]
    """
    lists = [_ORDERS[name](size, device) for device in range(size.stages)]
    return fill(size, lists, 2 * _LIMITS[name](size.stages)) if name in _LIMITS else lists


def ways(name: str, size: Size) -> list[Codes]:
    """The device of each virtual stage; of DualPipe, whose micro-batches go two ways, of both.

    >>> ways("zb-v", Size(stages=3, microbatches=5, chunks=2))[0].tolist()
    [0, 1, 2, 2, 1, 0]
    """
    there = np.arange(size.stages)
    if name == "dualpipe":
        return [there, there[::-1]]
    homeward = name in ("zb-v", "v-half", "v-min", "dualpipev")
    return [np.append(there, there[::-1]) if homeward else np.tile(there, size.chunks)]


def _naive(size: Size, device: int) -> Codes:
    """A micro-batch comes back before the next one leaves."""
    each = np.arange(size.microbatches)
    forward, backward = size.code(FORWARD, each, device), size.code(BACKWARD, each, device)
    return np.stack([forward, backward], axis=1).ravel()


def _gpipe(size: Size, device: int) -> Codes:
    """All forward passes, then all backward passes."""
    each = np.arange(size.microbatches)
    return np.append(size.code(FORWARD, each, device), size.code(BACKWARD, each, device))


def _one_f_one_b(size: Size, device: int) -> Codes:
    """p - s forward passes, then a backward pass before each further one."""
    each = np.arange(size.microbatches)
    return merge(
        (size.code(FORWARD, each, device), 2 * (each - (size.stages - device)) + 1),
        (size.code(BACKWARD, each, device), 2 * each),
    )


def _interleaved(size: Size, device: int) -> Codes:
    """Megatron: p micro-batches through a chunk, then the same ones through the next.

    2 (p - s - 1) + (v - 1) p forward passes of chunks come first. One chunk is plain 1F1B.
    """
    p, v = size.stages, size.chunks
    step = np.arange(size.microbatches * v)
    group, inside = np.divmod(step, p * v)
    chunk, place = np.divmod(inside, p)
    ahead = (p - device - 1) * (2 if v > 1 else 1) + (v - 1) * p
    microbatch = group * p + place
    return merge(
        (size.code(FORWARD, microbatch, chunk * p + device), 2 * (step - ahead)),
        (size.code(BACKWARD, microbatch, (v - 1 - chunk) * p + device), 2 * step + 1),
    )


def _zero_bubble(size: Size, device: int, ahead: int, delay: int) -> Codes:
    """1F1B with ``ahead`` forward passes first; weight gradients ``delay`` micro-batches late."""
    each = np.arange(size.microbatches)
    return merge(
        (size.code(FORWARD, each, device), 3 * (each - ahead) + 2),
        (size.code(INPUT, each, device), 3 * each),
        (size.code(WEIGHT, each, device), 3 * (each + delay) + 1),
    )


def _zb_h1(size: Size, device: int) -> Codes:
    """Each stage keeps p micro-batches: p - s before their backward pass, s waiting for W."""
    return _zero_bubble(size, device, size.stages - device, device)


def _zb_h2(size: Size, device: int) -> Codes:
    """Each stage keeps 2p - 1, which is what the first needs to have no gap before its first B."""
    return _zero_bubble(size, device, 2 * (size.stages - device) - 1, 2 * device)


def _building_block(
    size: Size, device: int, pace: tuple[int, ...], rest: Callable[[int], tuple[int, ...]]
) -> Codes:
    """One micro-batch's way, repeated every six passes; what is free is for weight gradients.

    A device has six passes per micro-batch, so the four whose times are fixed here must differ
    modulo six on every device: that is what ``rest``, the time between two ways, is for.

    Args:
        pace: from one device to the next, on the four ways: out and home, forward and backward.
        rest: of p, after each way, before the next one starts on the same device.
    """
    far = size.stages - 1
    every = np.arange(size.microbatches)
    mirror = size.virtual - 1 - device
    passes = [(FORWARD, device), (FORWARD, mirror), (INPUT, mirror), (INPUT, device)]
    runs, arrival = [], 0
    for way, (kind, virtual) in enumerate(passes):
        passed = far - device if way % 2 else device
        times = arrival + pace[way] * passed + 6 * every
        runs.append((size.code(kind, every, virtual), times))
        arrival += pace[way] * far + 1 + rest(size.stages)[way]
    return merge(*runs)


def _zb_v(size: Size, device: int) -> Codes:
    """Enough forward passes to have no gap before the first B, then F, B, W of each chunk in turn."""
    p, m = size.stages, size.microbatches
    script = Script(size, (device, size.virtual - 1 - device), (0, 0))
    for _ in range(2 * (p - device) - 1):
        script.forward(0)
    for _ in range(device):
        script.forward(1)
        script.forward(0)
    for _ in range(p - device):
        script.forward(1)
        script.backward(1, split=True)
        script.weight()
    for done in range(m - p):
        if done < m - (2 * p - 1 - device):
            script.forward(0)
        script.backward(0, split=True)
        script.weight()
        script.forward(1)
        script.backward(1, split=True)
        script.weight()
    for _ in range(device):
        script.backward(0, split=True)
        script.backward(1, split=True)
    for _ in range(p - device):
        script.backward(0, split=True)
        script.weight()
    while script.late:
        script.weight()
    return np.array(script.codes)


def _dualpipe(size: Size, device: int) -> Codes:
    """Phase 0 enters at the nearer end, phase 1 at the farther; the two halves mirror each other."""
    p, half = size.stages, size.microbatches // 2
    mirrored = device >= p // 2
    virtual, first = (device, p - 1 - device), (0, half)
    if mirrored:
        virtual, first = (virtual[1], virtual[0]), (half, 0)
    script = Script(size, virtual, first)
    return _from_both_ends(script, min(device, p - 1 - device), p // 2, half)


def _dualpipev(size: Size, device: int) -> Codes:
    """Phase 1 is the way home through the mirrored stages, on the same devices."""
    script = Script(size, (device, size.virtual - 1 - device), (0, 0))
    return _from_both_ends(script, device, size.stages, size.microbatches)


def _from_both_ends(script: Script, device: int, devices: int, count: int) -> Codes:
    """DualPipe's eight steps on a device, of half the devices, with ``count`` per phase."""
    inner = devices - 1 - device
    for _ in range(2 * inner):
        script.forward(0)
    for _ in range(device + 1):
        script.forward(0)
        script.forward(1)
    for _ in range(inner):
        script.backward(1, split=True)
        script.weight()
        script.forward(1)
    for turn in range(count - 2 * devices + device + 1):
        if turn == 0 and inner == 0:  # apart, so that the backward pass leaves earlier
            script.forward(0)
            script.backward(1)
        else:
            script.pair(0, 1)
        script.pair(1, 0)
    for _ in range(inner):
        script.backward(1)
        script.pair(1, 0)
    for turn in range(2 * (device + 1)):  # the second half leaves its weight gradients for later
        script.backward(1 - turn % 2, split=turn > device)
    for _ in range(inner):
        script.weight()
        script.backward(0, split=True)
    while script.late:
        script.weight()
    return np.array(script.codes)


_ORDERS: dict[str, Callable[[Size, int], Codes]] = {
    "naive": _naive,
    "gpipe": _gpipe,
    "1f1b": _one_f_one_b,
    "interleaved": _interleaved,
    "zb-h1": _zb_h1,
    "zb-h2": _zb_h2,
    "zb-v": _zb_v,
    # A micro-batch takes two passes' time per device outward and one homeward: every device then
    # holds the same, half of what 1F1B does. Going on at once everywhere makes it a third.
    "v-half": partial(
        _building_block,
        pace=(2, 1, 2, 1),
        rest=lambda p: (1 if p % 2 else 4, 0, 0, 0),
    ),
    "v-min": partial(
        _building_block,
        pace=(1, 1, 1, 1),
        rest=lambda p: (0, 0, 0, 0) if p % 3 else (2, 0, 2, 0),
    ),
    "dualpipe": _dualpipe,
    "dualpipev": _dualpipev,
}

# Micro-batches in flight beyond which a device makes weight gradients first.
_LIMITS: dict[str, Callable[[int], int]] = {
    "v-half": lambda p: (p + 2) // 2,
    "v-min": lambda p: (p + 4) // 3,
}
