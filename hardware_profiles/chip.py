"""What follows from an accelerator's numbers: lanes, vector rate, ridge points, memory ladder.

A number that a profile does not give is None in the result, never a guess. Source of the formulas:
"How to Scale Your Model", chapters 1 and 12 (https://jax-ml.github.io/scaling-book/gpus/).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from hardware_profiles.fabric import per_gpu
from hardware_profiles.schema import Accelerator, Cluster

# What one SM or one lane takes in a cycle. CUDA C++ Programming Guide, "Shared memory": 32 banks of
# 4 bytes. A fused multiply-add reads three 4-byte registers.
SHARED_MEMORY_BYTES_PER_CYCLE = 32 * 4.0
REGISTER_BYTES_PER_LANE = 3 * 4.0

_LINE_RATE = {3: 8e9, 4: 16e9, 5: 32e9, 6: 64e9, 7: 128e9}  # transfers/s of a lane, one bit each


def pcie_bandwidth(generation: int, lanes: int = 16) -> float:
    """Usable bandwidth of a PCIe slot: lanes x GT/s / 8 x encoding. [B/s, one way]

    The encoding is 128 of 130 bits up to generation 5, and 242 of 256 bytes of a flit from 6 on.
    PCI-SIG, https://pcisig.com/specifications.

    >>> pcie_bandwidth(7), round(pcie_bandwidth(5) / 1e9)
    (242000000000.0, 63)
    """
    if generation not in _LINE_RATE:
        raise ValueError(f"PCIe {generation}: allowed: {', '.join(map(str, _LINE_RATE))}")
    encoding = 128 / 130 if generation < 6 else 242 / 256
    return lanes * _LINE_RATE[generation] / 8 * encoding


def l1_total(chip: Accelerator) -> float | None:
    """L1 and shared memory of the whole chip: SMs x bytes of each. [B]"""
    return _product(chip.sms, chip.shared_memory_per_sm)


def registers_total(chip: Accelerator) -> float | None:
    """Register files of the whole chip: SMs x bytes of each. [B]

    >>> from hardware_profiles import accelerator
    >>> registers_total(accelerator("h100-sxm")) / 2**20
    33.0
    """
    return _product(chip.sms, chip.registers_per_sm)


def register_bandwidth(chip: Accelerator) -> float | None:
    """Three operands of a fused multiply-add a cycle and lane, at the boost clock. [B/s]

    >>> from hardware_profiles import accelerator
    >>> round(register_bandwidth(accelerator("h100-sxm")) / 1e12)
    371
    """
    lanes = _product(cuda_cores(chip), chip.boost_clock, REGISTER_BYTES_PER_LANE)
    return lanes if chip.registers_per_sm else None


def shared_memory_bandwidth(chip: Accelerator) -> float | None:
    """128 bytes a cycle and SM, at the boost clock: a peak by construction. [B/s]

    >>> from hardware_profiles import accelerator
    >>> round(shared_memory_bandwidth(accelerator("h100-sxm")) / 1e12, 1)
    30.9
    """
    banks = _product(chip.sms, chip.boost_clock, SHARED_MEMORY_BYTES_PER_CYCLE)
    return banks if chip.shared_memory_per_sm else None


class Memory(NamedTuple):
    """One memory of a whole chip; None where nobody says."""

    name: str
    capacity: float | None  # [B]
    bandwidth: float | None  # [B/s]


def memories(chip: Accelerator) -> tuple[Memory, ...]:
    """Registers, shared memory (L1 with it), L2 and HBM, from the inside out."""
    return (
        Memory("registers", registers_total(chip), register_bandwidth(chip)),
        Memory("shared memory", l1_total(chip), shared_memory_bandwidth(chip)),
        Memory("L2", chip.l2_bytes, chip.l2_bandwidth),
        Memory("HBM", chip.hbm_bytes, chip.hbm_bandwidth),
    )


def cuda_cores(chip: Accelerator) -> int | None:
    """Lanes that do one fp32 operation a cycle: SMs x sub-partitions x lanes. [1]

    Scaling book, chapter 12, quiz 1.

    >>> from hardware_profiles import accelerator
    >>> cuda_cores(accelerator("h100-sxm"))
    16896
    """
    return None if chip.sms is None else chip.sms * chip.simd_per_sm * chip.lanes_per_simd


def vector_flops(chip: Accelerator, clock: float | None = None, fma: bool = True) -> float | None:
    """Vector rate: CUDA cores x clock, twice that with fused multiply-add. [FLOP/s]

    ``clock`` is the boost clock unless given. [Hz] Datasheets count the FMA; c = a + b has none.

    >>> from hardware_profiles import accelerator
    >>> round(vector_flops(accelerator("h100-sxm"), 1.59e9, fma=False) / 1e12, 1)
    26.9
    """
    return _product(cuda_cores(chip), clock or chip.boost_clock, 2 if fma else 1)


def tensor_core_flops_per_cycle(
    chip: Accelerator, dtype: str, clock: float | None = None
) -> float | None:
    """What one tensor core does in a cycle: peak / (SMs x sub-partitions x clock). [FLOP]

    There is one to a sub-partition from Ampere on; the V100's 256 are two tensor cores of 128.

    >>> from hardware_profiles import accelerator
    >>> round(tensor_core_flops_per_cycle(accelerator("h100-sxm"), "bf16"))
    1024
    """
    cycles = _product(chip.sms, chip.simd_per_sm, clock or chip.boost_clock)
    return None if cycles is None else chip.flops(dtype) / cycles


def ridge(flops: float, bandwidth: float | None) -> float | None:
    """Arithmetic intensity above which math takes longer than moving the bytes: C / W. [FLOP/B]"""
    return None if bandwidth is None else flops / bandwidth


@dataclass(frozen=True, slots=True)
class Rung:
    """One level that data can be in, seen from one accelerator; None where nobody says.

    ``ridge`` is C over the bandwidth of one child of the level (C/W of the scaling book: 2475
    beyond a DGX H100 node, where the 8 GPUs of a node share the work of a collective);
    ``ridge_per_gpu`` is C over one GPU's part of it.
    """

    level: str
    capacity: float | None  # [B]
    bandwidth: float | None  # of one accelerator, one way for links [B/s]
    ridge: float | None  # [FLOP/B]
    ridge_per_gpu: float | None  # [FLOP/B]


def memory_ladder(machine: Cluster | Accelerator, dtype: str = "bf16") -> tuple[Rung, ...]:
    """The memories of one accelerator, then the HBM within reach of each tier.

    >>> from hardware_profiles import cluster
    >>> [(r.level, round(r.ridge)) for r in memory_ladder(cluster("dgx-h100-superpod"))][1:6]
    [('shared memory', 32), ('L2', 180), ('HBM', 295), ('node', 2199), ('scalable unit', 2474)]
    """
    chip = machine.accelerator if isinstance(machine, Cluster) else machine
    rate = chip.flops(dtype)
    rungs = [
        Rung(name, size, width, ridge(rate, width), ridge(rate, width))
        for name, size, width in memories(chip)
    ]
    if isinstance(machine, Cluster):
        for i, tier in enumerate(machine.tiers):
            reach, share = machine.unit_sizes[i + 1] * chip.hbm_bytes, per_gpu(machine, i)
            whole = ridge(rate, tier.effective_bandwidth)
            rungs.append(Rung(tier.name, reach, share, whole, ridge(rate, share)))
    return tuple(rungs)


def _product(*factors: float | None) -> float | None:
    known = [factor for factor in factors if factor is not None]
    return math.prod(known) if len(known) == len(factors) else None
