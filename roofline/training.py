"""A training job in one object: a model, a layout, a cluster, a precision, and whose rates to believe.

    job = training(model, Layout(512, tp=4, pp=2, batch=512, sequence=8192), cluster)
    job.time.seconds      the step, and ``terms`` that sum to it
    job.memory.total      bytes on the fullest GPU, part by part

Layout fields may be columns: then everything here is a column, one row a layout. At its peaks a
machine loses nothing; ``achievable`` takes the calibration that comes with the accelerator, and
``error`` says how far predictions with it were from runs that it was not fitted to.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from hardware_profiles import Calibration, Cluster
from hardware_profiles.behaviour import Spread, StepFit
from hardware_profiles.calibration import for_accelerator
from roofline import calibrated, fitting, footprint
from roofline.calibrated import Behaviour
from roofline.dims import Dims
from roofline.footprint import Footprint
from roofline.job import Job
from roofline.layout import Layout
from roofline.model import Transformer
from roofline.names import choose
from roofline.recipes import RECIPES, Recipe
from roofline.step import StepTime, predict

if TYPE_CHECKING:
    from roofline.export import Export

ACHIEVABLE, PEAK = "achievable", "peak"
RECIPE_OF = {"bf16": "mixed", "fp16": "mixed"}  # of every other precision: fp8


@dataclass(frozen=True, repr=False)
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
    def machine(self) -> Behaviour:
        """The cluster as the overlay has it, in this precision."""
        return calibrated.behaviour(self.cluster, self.fit, self.precision)

    @cached_property
    def job(self) -> Job:
        """What the step model computes from."""
        return self.job_in(self.layout)

    def job_in(self, layout: Layout) -> Job:
        """The same in another layout, or in a part of a table of them."""
        return self.machine.job(self.dims, layout, self.recipe)

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
        return accuracy.of(self.model.experts is not None)

    @property
    def basis(self) -> str:
        """Whose rates these are, and how far the step time may be off."""
        return basis(self.cluster, self.overlay, self.error)

    def __repr__(self) -> str:
        from roofline.training_text import text

        return text(self)

    def _repr_html_(self) -> str:
        from roofline.training_text import html

        return html(self)

    def export(self, format: str) -> Export:
        """The text of a launch file; what the format cannot say is in its ``notes``.

        Raises:
            ValueError: an unknown format, naming the nearest; a column of layouts.
        """
        from roofline.export import export

        return export(self, format)


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

    A single layout that the model or the cluster cannot have is refused; rows of a column that
    cannot be are for the caller to drop, by ``fitting.misfits``.

    Raises:
        ValueError: a precision, recipe or kind of rates that there is not; a layout that cannot be.
    """
    if not any(np.ndim(getattr(layout, field.name)) for field in fields(layout)):
        fitting.check(model, layout, cluster)
    calibrated.dtype_of(precision)
    adapted = bool(np.any(np.greater(layout.lora_rank, 0)))
    layout, kept = _adapted(layout, kept_of(recipe, precision, adapted))
    return Training(model, layout, cluster, precision, kept, overlay_of(rates, cluster))


def kept_of(recipe: str | Recipe | None, precision: str = "bf16", adapted: bool = False) -> Recipe:
    """What is kept of each parameter: as stated, by name or row; else by precision, or LoRA's.

    Raises:
        ValueError: an unknown name, telling the nearest.
    """
    name = recipe or ("lora" if adapted else RECIPE_OF.get(precision, "fp8"))
    return name if isinstance(name, Recipe) else choose("recipe", name, RECIPES)


def _adapted(layout: Layout, kept: Recipe) -> tuple[Layout, Recipe]:
    """Layout and recipe of one mind on the rank of adapters, the layout's where both have one."""
    stated = np.greater(layout.lora_rank, 0)
    if not kept.adapted:
        if np.any(stated):
            allowed = ", ".join(name for name, row in RECIPES.items() if row.adapted)
            raise ValueError(
                f"lora_rank: {layout.lora_rank} is refused with a recipe that trains every weight; "
                f"allowed: 0, or recipe {allowed}"
            )
        return layout, kept
    rank = np.where(stated, layout.lora_rank, kept.rank) if np.ndim(stated) else layout.lora_rank
    rank = rank if np.any(stated) else kept.rank
    return replace(layout, lora_rank=rank, frozen_bytes=kept.frozen), replace(kept, rank=rank)


def overlay_of(rates: str | Calibration, cluster: Cluster) -> Calibration | None:
    """The calibration that ``rates`` mean on a cluster; None at peak, or where there is none.

    Raises:
        ValueError: a kind of rates that there is not.
    """
    if isinstance(rates, Calibration):
        return rates
    wanted = choose("rates", rates, {ACHIEVABLE: True, PEAK: False})
    return for_accelerator(cluster.accelerator.name) if wanted else None


def basis(cluster: Cluster, overlay: Calibration | None, error: Spread | None = None) -> str:
    """Whose rates a step is predicted with, and what such predictions were held against.

    Args:
        error: of the overlay on runs left out of its fit; None where nobody knows.
    """
    if overlay is not None and overlay.step is not None:
        return held(error)
    known = for_accelerator(cluster.accelerator.name)
    if known is not None and known.step is not None:
        return (
            "Datasheet rates: read the step time as a bound that no job reaches, not as a forecast."
        )
    return (
        f"Nobody has calibrated whole steps of {cluster.accelerator.title}: its datasheet rates were held against no "
        "run, so read the step time as a bound, not as a forecast."
    )


def held(error: Spread | None) -> str:
    """What predictions with a calibration were held against."""
    if error is None:
        return (
            "Nobody has held such predictions against measured runs: read the step time as a "
            "bound at these rates, not as a forecast."
        )
    median, p90 = (100 * np.expm1(x) for x in (error.median, error.p90))
    return (
        f"Of {error.runs} published runs from sources left out of the fit, half were within "
        f"{median:.3g} % of the prediction and nine in ten within {p90:.3g} %."
    )
