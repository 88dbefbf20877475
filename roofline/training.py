"""A training job in one object: a model, a layout, a cluster, a precision, and whose rates to believe.

    job = training(model, Layout(512, tp=4, pp=2, batch=512, sequence=8192), cluster)
    job.time.seconds      the step, and ``terms`` that sum to it
    job.memory.total      bytes on the fullest GPU, part by part

Layout fields may be columns: then everything here is a column, one row a layout. At its peaks a
machine loses nothing; ``achievable`` takes the calibration that comes with the accelerator, and
``error`` says how far predictions with it were from runs that it was not fitted to.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from hardware_profiles import Calibration, Cluster
from hardware_profiles.behaviour import Spread, StepFit
from hardware_profiles.calibration import for_accelerator
from roofline import calibrated, footprint
from roofline.dims import Dims
from roofline.footprint import Footprint
from roofline.job import Job
from roofline.layout import Layout
from roofline.model import Transformer
from roofline.names import choose
from roofline.recipes import RECIPES, Recipe
from roofline.step import StepTime, predict

ACHIEVABLE, PEAK = "achievable", "peak"
RECIPE_OF = {"bf16": "mixed", "fp16": "mixed"}  # of every other precision: fp8


@dataclass(frozen=True)
class Training:
    """A model trained in a layout on a cluster; made by ``training``."""

    model: Transformer
    layout: Layout
    cluster: Cluster
    precision: str
    recipe: Recipe
    overlay: Calibration | None  # None: at the peaks of the datasheet

    @property
    def fit(self) -> StepFit | None:
        """What the overlay says of whole steps."""
        return None if self.overlay is None else self.overlay.step

    @cached_property
    def dims(self) -> Dims:
        """The model as numbers."""
        return Dims.of(self.model)

    @cached_property
    def job(self) -> Job:
        """What the step model computes from."""
        machine = calibrated.behaviour(self.cluster, self.fit, self.precision)
        return machine.job(self.dims, self.layout)

    @cached_property
    def time(self) -> StepTime:
        """One optimizer step, term by term."""
        return predict(self.job)

    @cached_property
    def memory(self) -> Footprint:
        """Memory of the fullest stage's GPU, part by part. [B]"""
        return footprint.peak(self.dims, self.layout, self.recipe)

    @property
    def error(self) -> Spread | None:
        """Errors of this overlay on runs left out of its fit; None at peak, or where unknown."""
        accuracy = None if self.fit is None else self.fit.accuracy
        if accuracy is None:
            return None
        return accuracy.moe if self.model.experts else accuracy.dense


def training(
    model: Transformer,
    layout: Layout,
    cluster: Cluster,
    precision: str = "bf16",
    *,
    recipe: str | Recipe | None = None,
    rates: str | Calibration = ACHIEVABLE,
) -> Training:
    """A training job on ``cluster``.

    Args:
        recipe: what is kept of each parameter, a name of ``RECIPES``; by precision where None.
        rates: ``achievable``, ``peak``, or a calibration of one's own.

    Raises:
        ValueError: a precision, recipe or kind of rates that there is not.
    """

    calibrated.dtype_of(precision)
    name = recipe or RECIPE_OF.get(precision, "fp8")
    kept = name if isinstance(name, Recipe) else choose("recipe", name, RECIPES)
    overlay = rates if isinstance(rates, Calibration) else _overlay(rates, cluster)
    return Training(model, layout, cluster, precision, kept, overlay)


def _overlay(rates: str, cluster: Cluster) -> Calibration | None:

    wanted = choose("rates", rates, {ACHIEVABLE: True, PEAK: False})
    return for_accelerator(cluster.accelerator.name) if wanted else None
