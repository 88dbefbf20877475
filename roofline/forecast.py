"""What a run's predicted step brings, and the memory of its fullest GPU, by the usual recipe."""

from __future__ import annotations

from dataclasses import dataclass

import hardware_profiles as hw
from hardware_profiles.behaviour import StepFit
from roofline import runs
from roofline.backtest import Row
from roofline.calibrated import dtype_of
from roofline.dims import Dims
from roofline.footprint import Footprint, peak
from roofline.outcome import Outcome
from roofline.recipes import RECIPES
from roofline.training import RECIPE_OF


@dataclass(frozen=True, slots=True)
class Forecast:
    """A prediction with what it is worth."""

    outcome: Outcome
    memory: Footprint
    room: float  # of one GPU [B]

    @property
    def fits(self) -> bool:
        """True where the memory is enough."""
        return bool(self.memory.fits(self.room))


def forecast(job: runs.Job, row: Row, fit: StepFit | None) -> Forecast:
    """Outcome and memory of a run whose step is ``row``; FLOPs as the back-test counts them."""
    chip, dtype = hw.accelerator(job.accelerator), dtype_of(job.precision)
    accuracy = None if fit is None else fit.accuracy
    found = Outcome(
        row.predicted,
        float(job.layout.batch * job.layout.sequence),
        row.gpus,
        row.flops,
        row.flops,
        chip.flops(dtype),
        "causal",
        dtype,
        chip.name,
        None if accuracy is None else accuracy.of(job.model.experts is not None),
    )
    recipe = "fsdp" if job.layout.zero == 3 else RECIPE_OF.get(job.precision, "fp8")
    return Forecast(found, peak(Dims.of(job.model), job.layout, RECIPES[recipe]), chip.hbm_bytes)
