"""What stands beside the predicted step of a run: MFU, the band of its calibration, memory, fit.

The band holds nine in ten of the runs that the calibration was not fitted to; MFU counts causal
matmuls over the peak of the precision. Memory is that of the fullest GPU, by the usual recipe.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import hardware_profiles as hw
from hardware_profiles.behaviour import StepFit
from roofline import runs
from roofline.backtest import Row
from roofline.calibrated import dtype_of
from roofline.dims import Dims
from roofline.footprint import peak
from roofline.recipes import RECIPES
from roofline.training import RECIPE_OF


@dataclass(frozen=True, slots=True)
class Forecast:
    """A prediction with what it is worth."""

    mfu: float
    band: tuple[float, float] | None  # of the step [s]; None where no runs were left out
    memory: float  # [B]
    room: float  # of one GPU [B]

    @property
    def fits(self) -> bool:
        """True where the memory is enough."""
        return self.memory <= self.room


def forecast(job: runs.Job, row: Row, fit: StepFit | None) -> Forecast:
    """MFU, band and memory of a run whose step is ``row``."""
    chip = hw.accelerator(job.accelerator)
    rate = row.gpus * chip.flops(dtype_of(job.precision))
    accuracy = None if fit is None else fit.accuracy
    spread = None if accuracy is None else accuracy.moe if job.model.experts else accuracy.dense
    factor = None if spread is None else float(np.exp(spread.p90))
    recipe = "fsdp" if job.layout.zero == 3 else RECIPE_OF.get(job.precision, "fp8")
    return Forecast(
        mfu=row.flops / (row.predicted * rate),
        band=None if factor is None else (row.predicted / factor, row.predicted * factor),
        memory=float(peak(Dims.of(job.model), job.layout, RECIPES[recipe]).total),
        room=chip.hbm_bytes,
    )
