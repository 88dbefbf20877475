"""Numbers that are fine one by one and together look like a slip: each is questioned, once.

Either question is answered by the field ``reason``, which says why the number is right.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hardware_profiles.writing import told

if TYPE_CHECKING:
    from hardware_profiles.schema import Accelerator, NetworkTier

# Dense multiply-adds of 16 bits that one SM or compute unit does in a cycle, times two; the vendors'
# architecture whitepapers. Graphics cards of a generation do less.
TENSOR_FLOPS_PER_CYCLE = {
    "volta": 1024, "ampere": 2048, "ada": 1024, "hopper": 4096, "blackwell": 8192,
    "cdna2": 1024, "cdna3": 2048, "cdna4": 4096,
}  # fmt: skip
OVER_16_BITS = {
    "tf32": 0.5, "fp16": 1.0, "bf16": 1.0, "fp8": 2.0, "int8": 2.0, "fp6": 4.0, "fp4": 4.0,
}  # fmt: skip
TOO_FAST = 1.7  # below the 2 of sparsity, above what clocks differ by
CARDS = {12.5e9: "100", 25e9: "200", 50e9: "400", 100e9: "800"}  # B/s of a network card: Gb/s
_BITS = 8


def sparse_peak(chip: Accelerator) -> str:
    """What is odd about a peak that looks like the one with sparsity; empty where none does."""
    if chip.reason:
        return ""
    fp8 = chip.peak_flops.get("fp8")
    for dtype in ("bf16", "fp16"):
        rate = chip.peak_flops.get(dtype)
        if rate and fp8 and rate > 0.98 * fp8:
            return _dense_half(dtype, rate, f"is as much as fp8 has, {told(fp8, 'FLOP/s')}")
    known = (rate for name, rate in TENSOR_FLOPS_PER_CYCLE.items() if _is(chip.architecture, name))
    each = next(known, None)
    if each is None or not chip.sms or not chip.boost_clock:
        return ""
    for dtype, times in OVER_16_BITS.items():
        rate, dense = chip.peak_flops.get(dtype), each * times * chip.sms * chip.boost_clock
        if rate and rate > TOO_FAST * dense:
            why = (
                f"is {rate / dense:.2g} times what {chip.sms} SMs of {chip.architecture} do at "
                f"{told(chip.boost_clock, 'Hz')}"
            )
            return _dense_half(dtype, rate, why)
    return ""


def _is(architecture: str, name: str) -> bool:
    words = re.sub(r"\s+(?=\d)", "", architecture.lower())  # "CDNA 3" is cdna3
    return re.search(rf"\b{name}\b", words) is not None


def _dense_half(dtype: str, rate: float, why: str) -> str:
    return (
        f"peak_flops.{dtype}: {told(rate, 'FLOP/s')} {why}: the rate with sparsity? The dense half "
        f"is asked for, did you mean {told(rate / 2, 'FLOP/s')}? If it is right, say why in the "
        "accelerator's field 'reason'"
    )


def rising_bandwidth(chip: Accelerator, tiers: Sequence[NetworkTier], sizes: Sequence[int]) -> str:
    """What is wrong where a GPU has more bandwidth further out; empty where it shrinks outwards.

    ``sizes`` are the GPUs under one child of each tier.
    """
    per_gpu = [tier.effective_bandwidth / size for tier, size in zip(tiers, sizes, strict=False)]
    for i in range(1, len(per_gpu)):
        if per_gpu[i] > per_gpu[i - 1] * (1 + 1e-9) and not tiers[i].reason:
            inside = per_gpu[i - 2] if i > 1 else None
            slip = _of_a_chip(chip, tiers[0]) if inside is None else ""
            slip = slip or _of_a_card(tiers[i - 1], sizes[i - 1], per_gpu[i], inside)
            return _rise(tiers, sizes, i, slip)
    return ""


def _rise(tiers: Sequence[NetworkTier], sizes: Sequence[int], i: int, slip: str) -> str:
    """Both tiers with their numbers, the suspicious one first."""
    inner, outer = _part(tiers[i - 1], sizes[i - 1]), _part(tiers[i], sizes[i])
    right = f"If it is right, say why in the field 'reason' of {tiers[i].name!r}"
    if slip:
        return f"tiers.{i - 1}.bandwidth: {inner} is less than further out, {outer}; {slip} {right}"
    return (
        f"tiers.{i}.bandwidth: {outer} is more than that of the tier inside it, {inner}; is it of "
        f"all children instead of one, or in bits? {right}"
    )


def _part(tier: NetworkTier, size: int) -> str:
    width = tier.effective_bandwidth
    if size == 1:
        return f"{told(width, 'B/s')} for one GPU of {tier.name!r}"
    each = f"{told(width / size, 'B/s')} for each of its {size} GPUs"
    return f"{told(width, 'B/s')} for one child of {tier.name!r} ({each})"


def _of_a_card(tier: NetworkTier, size: int, outside: float, inside: float | None) -> str:
    """Whether the number is one card's where each GPU has one: the network then fits all around."""
    fits = tier.bandwidth >= outside * (1 - 1e-9) and (inside is None or tier.bandwidth <= inside)
    if size == 1 or tier.bandwidth not in CARDS or not fits:
        return ""
    return (
        f"it is what one network card of {CARDS[tier.bandwidth]} Gb/s carries, and {size} GPUs "
        f"often have {size}: did you mean {told(tier.bandwidth * size, 'B/s')}?"
    )


def _of_a_chip(chip: Accelerator, tier: NetworkTier) -> str:
    """Whether the number is one link's, or in bits, beside what all links of the chip carry."""
    for link in chip.links:
        for times, what in ((link.count, "one link's"), (_BITS, "in bits")):
            if times > 1 and abs(tier.bandwidth * times - link.total) < 0.01 * link.total:
                total = told(link.total, "B/s")
                return f"is it {what}? One {chip.name} has {link.name}: did you mean {total}?"
    return ""
