"""Occupancy: how much of an accelerator a kernel's blocks, warps and lanes keep busy.

    waves = ⌈blocks / slots⌉        the last one may be nearly empty
    warps = ⌊registers of an SM / (32 lanes x registers of a thread)⌋,  64 at most
    a warp runs every path that one of its lanes takes, one after the other

Sources: How to Scale Your Model, "GPUs", "What is a GPU?"; CUDA C++ Programming Guide, "Hardware
multithreading" and "Compute capabilities".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from roofline.units import Bytes, Count, Seconds

WARP = 32  # lanes that execute one instruction together
MAX_WARPS = 64  # resident on an SM, compute capability 8.0 and 9.0
REGISTER_BYTES = 4.0
REGISTER_FILE = 65536 * REGISTER_BYTES  # of one SM


@dataclass(frozen=True, slots=True)
class Waves:
    """Rounds in which blocks run, and the share of the slots that they fill."""

    count: Count
    efficiency: Count  # 1 when the last wave is full


def waves(blocks: Count, sms: Count, blocks_per_sm: Count = 1) -> Waves:
    """Equal blocks on ``sms`` multiprocessors, each holding ``blocks_per_sm`` at a time.

    133 blocks on 132 SMs take twice as long as 132: the tail effect.

    >>> waves(133, 132).count, round(float(waves(133, 132).efficiency), 2)
    (np.float64(2.0), 0.5)
    """
    slots = 1.0 * sms * blocks_per_sm
    count = np.ceil(blocks / slots)
    return Waves(count, np.divide(blocks, np.maximum(count, 1.0) * slots))


def resident_warps(
    registers_per_thread: Count,
    *,
    register_file: Bytes = REGISTER_FILE,
    register_bytes: Bytes = REGISTER_BYTES,
    lanes: Count = WARP,
    most: Count = MAX_WARPS,
) -> Count:
    """Warps that the register file of one SM holds at once.

    >>> print(resident_warps(256), resident_warps(32))
    8.0 64.0
    """
    warps: Count = np.floor(register_file / (register_bytes * lanes * registers_per_thread))
    return np.minimum(warps, most)


def sms_occupied(lanes: Count, lanes_per_sm: Count = 4 * WARP) -> Count:
    """SMs that work when every lane of one does a different element, once: ⌈N / 128⌉.

    >>> print(sms_occupied(1024))
    8.0
    """
    occupied: Count = np.ceil(1.0 * lanes / lanes_per_sm)
    return occupied


@dataclass(frozen=True, slots=True)
class Divergence:
    """A branch that lanes of one warp take differently."""

    seconds: Seconds  # all taken paths, one after the other
    utilisation: Count  # share of lane-time that does something wanted


def divergence(
    taken: Sequence[Count], seconds: Sequence[Seconds], lanes: Count = WARP
) -> Divergence:
    """Σ t_j over the paths with a lane on them, and Σ n_j t_j / (32 Σ t_j).

    Args:
        taken: n_j, lanes on each path; a path that none takes is skipped.
        seconds: t_j, what each path takes. [s]

    Raises:
        ValueError: when paths and times differ in number, or more lanes branch than a warp has.

    >>> print(divergence([24, 8], [1e-6, 1e-6]).utilisation)
    0.5
    """
    if len(taken) != len(seconds):
        raise ValueError(f"seconds: {len(seconds)} times for {len(taken)} paths; give one for each")
    if np.any(np.greater(sum(taken, 0.0), lanes)):
        raise ValueError(f"taken: more lanes branch than the {np.max(lanes):g} of a warp")
    paths = list(zip(taken, seconds, strict=True))
    total = sum((np.greater(n, 0) * t for n, t in paths), 0.0)
    wanted = sum((1.0 * n * t for n, t in paths), 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return Divergence(total, np.divide(wanted, lanes * total))
