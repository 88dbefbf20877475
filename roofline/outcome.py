"""What a training job brings: tokens per second, MFU, days, energy and money, with the error's band.

    tokens/s      B s / T              B sequences of s tokens in a step of T
    MFU           FLOPs that the model needs / (T · GPUs · peak)
    HFU           the same and the forward FLOPs that recomputation runs again
                  with LoRA both count 4 FLOPs per frozen parameter, 6 per parameter of adapters
    days          budget / (tokens/s)
    energy        power · GPUs · days  power of the accelerator alone, as its datasheet limits it
    money         price · GPUs · days

Which FLOPs count is a convention: a row of ``model_flops.CONVENTIONS``. The band is what runs of
sources left out of a calibration's fit showed: half of them lie within the inner one, nine in ten
within the outer one. Energy is an upper bound for the accelerators, without hosts, network and
cooling. Everything may be a column, one row a layout.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hardware_profiles.behaviour import Spread
from roofline import checks
from roofline.adapters import WEIGHTLESS, counted
from roofline.calibrated import dtype_of
from roofline.layout import RECOMPUTE, Layout
from roofline.model_flops import CONVENTIONS, Operation
from roofline.names import choose
from roofline.training import Training, held
from roofline.units import DAY, Count, FlopPerSecond, Seconds

HOUR = 3600.0
KILOWATT_HOUR = 3.6e6  # joule
OF_MODULES = {  # operations of ``layout.MODULES`` that have FLOPs to count
    "mla-up": ("query", "query up", "kv up"),
    "mlp": ("mlp up", "mlp down"),
    "experts": (
        *("router", "experts up", "experts down"),
        *("shared up", "shared down", "shared gate"),
    ),
}


class Band(NamedTuple):
    """The least and the most of a number."""

    low: Count
    high: Count


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a job brings; every field may be a column."""

    seconds: Seconds  # of a step
    tokens: Count  # of a step
    gpus: Count
    model_flops: Count  # of a step, all GPUs
    hardware_flops: Count  # and those that are run again
    peak: FlopPerSecond  # of one GPU, in the precision of the matmuls
    convention: str
    dtype: str
    accelerator: str
    error: Spread | None = None
    budget: Count | None = None  # tokens to train on
    power: Count | None = None  # watt of one accelerator
    power_source: str = ""
    price: Count | None = None  # of one accelerator for an hour
    price_source: str = ""
    adapted: bool = False  # LoRA: most weights are frozen
    basis: str = ""  # whose rates, and what they were held against

    @property
    def tokens_per_second(self) -> Count:
        """Of the whole job."""
        return self.tokens / self.seconds

    @property
    def tokens_per_second_per_gpu(self) -> Count:
        """Of one accelerator."""
        return self.tokens_per_second / self.gpus

    @property
    def flops_per_second_per_gpu(self) -> FlopPerSecond:
        """Model FLOPs that one accelerator achieves. [FLOP/s]"""
        return self.model_flops / (self.seconds * self.gpus)

    @property
    def mfu(self) -> Count:
        """Model FLOPs over what the accelerators could do."""
        return self.flops_per_second_per_gpu / self.peak

    @property
    def hfu(self) -> Count:
        """The same with what recomputation runs again."""
        return self.hardware_flops / (self.seconds * self.gpus * self.peak)

    @property
    def typical(self) -> Band | None:
        """Step times within which half of the runs left out of the fit lay; None where unknown."""
        return None if self.error is None else self._band(self.error.median)

    @property
    def wide(self) -> Band | None:
        """The same of nine runs in ten."""
        return None if self.error is None else self._band(self.error.p90)

    def _band(self, error: float) -> Band:
        """The error is |ln(predicted / measured)|, so the band is a factor to either side."""
        return Band(self.seconds * np.exp(-error), self.seconds * np.exp(error))

    @property
    def training_seconds(self) -> Seconds:
        """Time for the token budget. [s]

        Raises:
            ValueError: when there is no budget.
        """
        if self.budget is None:
            raise ValueError("budget: missing; allowed: the tokens to train on, such as 15e12")
        return self.budget / self.tokens_per_second

    @property
    def days(self) -> Count:
        """Days for the token budget, without interruptions.

        Raises:
            ValueError: when there is no budget.
        """
        return self.training_seconds / DAY

    @property
    def gpu_hours(self) -> Count:
        """Hours of one accelerator for the token budget.

        Raises:
            ValueError: when there is no budget.
        """
        return self.training_seconds * self.gpus / HOUR

    @property
    def energy(self) -> Count:
        """Energy of the accelerators for the token budget, at their power limit. [J]

        Raises:
            ValueError: when there is no budget, or nobody says what an accelerator draws.
        """
        if self.power is None:
            raise ValueError(
                f"power: the profile of {self.accelerator} states none; allowed: watts per "
                "accelerator, such as 700"
            )
        return self.training_seconds * self.gpus * self.power

    @property
    def kilowatt_hours(self) -> Count:
        """The same in kWh.

        Raises:
            ValueError: as ``energy``.
        """
        return self.energy / KILOWATT_HOUR

    @property
    def money(self) -> Count:
        """Rent of the accelerators for the token budget, in the currency of the price.

        Raises:
            ValueError: when there is no budget or no price.
        """
        if self.price is None:
            raise ValueError(
                "price: the cluster's profile states none; allowed: a price per accelerator and "
                "hour, such as 2.5"
            )
        return self.gpu_hours * self.price

    def counting(self) -> str:
        """Which FLOPs MFU and HFU count."""
        title = CONVENTIONS[self.convention].title
        if not self.adapted:
            return f"MFU counts: {title}."
        return (
            f"MFU counts: {title}; of frozen weights 4 FLOPs a parameter and token, without "
            "gradients of their own, and 6 of adapters."
        )

    def sentence(self) -> str:
        """How far the step time may be off, and by which runs that is known."""
        return self.basis or held(self.error)


def outcome(
    job: Training,
    *,
    convention: str = "causal",
    budget: Count | None = None,
    price: Count | None = None,
    power: Count | None = None,
) -> Outcome:
    """What ``job`` brings.

    Args:
        convention: which FLOPs count, a name of ``CONVENTIONS``.
        budget: tokens to train on, for days, energy and money.
        price: of an accelerator for an hour; the cluster profile's where None.
        power: of an accelerator in watt; the limit of its datasheet where None.

    Raises:
        ValueError: a convention that there is not; a budget, price or power that is no number or
            negative.
    """
    checks.given_at_least(0, budget=budget, price=price, power=power)
    row = choose("convention", convention, CONVENTIONS)
    layout, cluster = job.layout, job.cluster
    chip = cluster.accelerator
    rows = counted(job.model, layout, row.name)
    tokens = 1.0 * layout.batch * layout.sequence
    once = sum(each.total - each.recomputed for each in rows)
    again = sum(_again(each, layout) * each.forward for each in rows)
    dtype = dtype_of(job.precision)
    return Outcome(
        job.time.seconds,
        tokens,
        1.0 * layout.gpus,
        tokens * sum(each.total for each in rows),
        tokens * (once + again),
        cluster.flops(dtype),
        row.name,
        dtype,
        chip.name,
        job.error,
        budget,
        chip.power if power is None else power,
        chip.source_of("power") if power is None and chip.power else "as given",
        cluster.price if price is None else price,
        cluster.price_source if price is None else "as given",
        job.recipe.adapted,
        job.basis,
    )


def _of_modules(row: Operation, core: bool, layout: Layout) -> Count:
    """1 where one of the modules that are run again holds this operation."""
    name = row.name.removeprefix("mtp ")
    found = next((module for module, names in OF_MODULES.items() if name in names), None)
    found = "attention" if core else found
    return np.where(layout.repeats(found), 1.0, 0.0) if found else 0.0


def _again(row: Operation, layout: Layout) -> Count:
    """Forward passes of an operation that recomputation adds; heads keep what they need.

    A recomputed block leaves out its last matmul, whose output nobody needs.
    """
    if row.name.endswith("head"):
        return 0.0
    core = row.name.split()[-1] in WEIGHTLESS
    last = row.name.endswith("mlp down")
    kinds = {
        "attention": 1.0 if core else 0.0,
        "half": 0.0 if core else 0.5,
        "block": 0.0 if last else 1.0,
        "full": 1.0,
        "modules": _of_modules(row, core, layout),
    }
    chosen = [np.equal(layout.recompute, RECOMPUTE[name]) for name in kinds]
    return np.select(chosen, list(kinds.values()), 0.0) * layout.recompute_share
