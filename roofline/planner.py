"""Which layout is best: every sensible one predicted, the fastest that fits first.

    found = plan(model, cluster, tokens=4 * 2**20, sequence=8192, tp="1-8")
    found.best.time.seconds      the winner is a ``Training`` like any other
    found.fronts, found.ranked   what else is worth a look

Layouts stream past in blocks of columns through the very code that predicts one; what is kept of
them has a fixed size, so that time grows with their number and memory does not. An answer does not
depend on the size of a block or on the order of the search: ties go to the simpler layout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from hardware_profiles import Calibration, Cluster
from hardware_profiles.catalog import networked
from hardware_profiles.errors import NoNetwork, UnfilledUnits
from roofline import plan_inputs, plan_text
from roofline.evaluate import evaluate
from roofline.first_layout import FULL
from roofline.layout import Layout
from roofline.limits import FRAMEWORKS, Framework, Limit, Values, values
from roofline.machine import node_size
from roofline.model import Transformer
from roofline.names import choose
from roofline.ranking import Ranking, Rows, complexity, distinct
from roofline.recipes import Recipe
from roofline.relaxing import relaxation
from roofline.space import BLOCK, CHOICES, Job, Space
from roofline.training import ACHIEVABLE, PEAK, Training, kept_of, overlay_of, training

if TYPE_CHECKING:
    from roofline.export import Export
    from roofline.reasons import Reasons

HEADROOM = round(1.0 - FULL, 2)

Progress = Callable[[float, int], None]  # share done, layouts seen; raise to cancel


@dataclass(frozen=True)
class Question:
    """What was asked: everything that a layout does not say."""

    model: Transformer
    cluster: Cluster  # whole units that hold the GPUs
    profile: Cluster  # that it was cut from, and that more GPUs are cut from
    gpus: int
    tokens: int  # a step
    sequence: int
    precision: str
    recipe: str | Recipe | None  # None: the framework's
    rates: str | Calibration
    framework: Framework
    headroom: float  # share of the memory that stays free
    limits: Mapping[str, Limit]
    imbalance: float = 1.0  # load of the busiest expert rank over the mean

    @property
    def job(self) -> Job:
        """The sizes that decide which layouts there are."""
        inner = node_size(self.cluster.tiers)
        batch = self.tokens // self.sequence
        rules = self.framework.rules
        return Job(self.model, self.gpus, batch, self.sequence, inner, self.base, rules=rules)

    @cached_property
    def overlay(self) -> Calibration | None:
        """Whose rates count, found once; None at the peaks."""
        return overlay_of(self.rates, self.cluster)

    @property
    def base(self) -> Layout:
        """Habits of the framework, which every layout of this question shares."""
        base = usual(self.model, self.framework, self.precision, self.kept, self.overlay)
        return replace(base, imbalance=self.imbalance)

    @property
    def kept(self) -> str | Recipe | None:
        """What is kept of each parameter: as stated, else the framework's habit."""
        return self.recipe or self.framework.recipe(self.precision)

    @property
    def room(self) -> float:
        """Bytes that a layout may take on a GPU."""
        return self.cluster.hbm_bytes * (1.0 - self.headroom)

    def training(self, layout: Layout) -> Training:
        """A layout of this question, predicted."""
        return training(
            self.model,
            layout,
            self.cluster,
            self.precision,
            recipe=self.kept,
            rates=self.overlay or PEAK,
        )


@dataclass(frozen=True, repr=False)
class Plan:
    """What a search found. Rows are columns of choices with ``seconds``, ``memory``, ``complexity``."""

    question: Question
    seen: int  # layouts predicted
    fitting: int  # of them in memory
    refused: Mapping[str, int]  # constraint → branches of the search that it cut
    ranked: Rows  # the fastest that fit, in order
    front: Rows  # not beaten in time, memory and complexity
    field: Rows  # one for each cell of time and memory, those that do not fit as well
    smallest: Rows  # the one that needs the least memory

    def layout(self, place: int = 0, rows: Rows | None = None) -> Layout:
        """The layout of a row of ``ranked``, or of other rows of this plan.

        Raises:
            ValueError: where there is no such row.
        """
        rows = self.ranked if rows is None else rows
        count = len(rows.get("seconds", ()))
        if not 0 <= place < count:
            raise ValueError(f"place: {place} is refused; this plan has {count} layouts that fit")
        space = Space(self.question.job, {})
        table = {name: rows[name][place : place + 1] for name in CHOICES}
        layout = space.layout(table)
        return replace(layout, **{n: float(getattr(layout, n)[0]) for n in (*CHOICES, "even")})

    @cached_property
    def best(self) -> Training | None:
        """The fastest layout that fits; None where none does."""
        return self.question.training(self.layout()) if self.fitting else None

    @cached_property
    def distinct(self) -> Rows:
        """Of ``ranked`` the first of every kind: no two that differ in minor choices alone."""
        return distinct(self.ranked)

    def training(self, place: int) -> Training:
        """A place of the ranking, predicted with all its terms."""
        return self.question.training(self.layout(place))

    def explain(self) -> Reasons:
        """Why the best is the best, what would change it; where nothing fits, why and what would."""
        from roofline.reasons import reasons

        return reasons(self)

    def export(self, format: str, place: int = 0) -> Export:
        """A place of the ranking as the launch file of a framework.

        Raises:
            ValueError: an unknown format, naming the nearest, or no such place.
        """
        return self.training(place).export(format)

    def to_frame(self) -> Any:
        """The ranking as a pandas frame, a layout a row."""
        return plan_text.frame(self)

    def __repr__(self) -> str:
        return plan_text.text(self)

    def _repr_html_(self) -> str:
        return plan_text.html(self)


def plan(
    model: Transformer | str,
    cluster: Cluster | str,
    gpus: int | None = None,
    *,
    tokens: float,
    sequence: int = 4096,
    precision: str = "bf16",
    recipe: str | Recipe | None = None,
    rates: str | Calibration = ACHIEVABLE,
    framework: str = "any",
    headroom: float = HEADROOM,
    imbalance: float = 1.0,
    progress: Progress | None = None,
    block: int = BLOCK,
    **limits: Limit,
) -> Plan:
    """The best layouts of a model on ``gpus`` GPUs of a cluster, or on all of it.

    A cluster that is too small grows at its outermost tier; GPUs need not fill its units.

    Args:
        model: a model, or the name of a preset.
        cluster: a cluster, or the name of a profile.
        tokens: of a step, all replicas; whole sequences.
        recipe: what is kept of each parameter; the framework's habit where None.
        headroom: share of the memory that has to stay free.
        imbalance: load of the busiest expert rank over the mean.
        progress: called after each block with the share done and the layouts seen.
        limits: values of a choice: ``tp=8``, ``pp="2-8"``, ``recompute="none,full"``.

    Raises:
        ValueError: a batch of no whole sequences, a limit beyond the framework, or limits that leave
            nothing: naming which, and the smallest change that leaves something.
    """
    model, cluster = plan_inputs.a_model(model), plan_inputs.a_cluster(cluster)
    if gpus is not None:
        plan_inputs.number("gpus", gpus, "whole numbers of 1 and more")
    question = Question(
        model,
        cluster if gpus is None else holding(cluster, gpus),
        cluster,
        cluster.gpus if gpus is None else int(gpus),
        plan_inputs.whole_batch(tokens, sequence),
        int(sequence),
        precision,
        recipe,
        rates,
        choose("framework", framework, FRAMEWORKS),
        plan_inputs.share(headroom),
        limits,
        plan_inputs.imbalance(imbalance, model),
    )
    return search(question, progress, block)


def usual(
    model: Transformer,
    framework: Framework,
    precision: str,
    recipe: str | Recipe | None,
    overlay: Calibration | None,
) -> Layout:
    """What a framework does where a layout does not say; what plans and single layouts begin with.

    Raises:
        ValueError: an unknown recipe, telling the nearest.
    """
    fitted = overlay is not None and overlay.step is not None
    return framework.usual(model, kept_of(recipe, precision), fitted)


def largest(cluster: Cluster) -> float:
    """GPUs that a cluster can grow to: without a network beyond the server, those that it has."""
    return float("inf") if cluster.networked else cluster.gpus


def alone(cluster: Cluster) -> str:
    """That a cluster has no network, and which profiles have one, in a sentence without its stop."""
    name, near = cluster.name.partition(" (")[0], ", ".join(networked(cluster))  # not the overlay
    return (
        f"{name} has {cluster.gpus:,} GPU{'s' * (cluster.gpus > 1)} and no network beyond; the nearest profiles "
        f"with a network: {near}"
    )


def resized(cluster: Cluster, gpus: int) -> Cluster:
    """The cluster with ``gpus`` in whole units.

    Raises:
        ValueError: when ``gpus`` is no whole number, below 1, does not fill whole units, or is more
            than a cluster has that is a single node without a network.
    """
    if gpus > largest(cluster):
        raise NoNetwork(f"gpus: {gpus:,} is refused; {alone(cluster)}", cluster.gpus)
    return cluster.resized(gpus)


def holding(cluster: Cluster, gpus: int) -> Cluster:
    """The cluster with as many whole units as it takes to hold ``gpus``.

    Raises:
        ValueError: as ``resized``, but for units that are not filled.
    """
    try:
        return resized(cluster, gpus)
    except UnfilledUnits as error:
        return cluster.resized(error.nearest[1])


def search(question: Question, progress: Progress | None = None, block: int = BLOCK) -> Plan:
    """Every layout of a question, predicted and ranked.

    Raises:
        ValueError: where limits leave no layout.
    """
    if block < 1:
        raise ValueError(f"block: {block} is refused; allowed: 1 and more")
    job = question.job
    chosen = values(job, question.framework, question.limits)
    space, ranking = Space(job, chosen), Ranking()
    for done, layouts in space.blocks(block):
        ranking.add(_rows(question, layouts))
        if progress is not None:
            progress(done, ranking.seen)
    if not ranking.seen:
        raise ValueError(relaxation(job, question.framework, question.limits))
    return Plan(
        question,
        ranking.seen,
        ranking.fitting,
        dict(space.refused.most_common()),
        ranking.best,
        ranking.front,
        ranking.field,
        ranking.smallest,
    )


def _rows(question: Question, layouts: Layout) -> Rows:
    """A block of layouts with what was predicted of them."""
    found = evaluate(question.training(layouts), check=False)  # the space has no others
    rows: Rows = {name: getattr(layouts, name) for name in CHOICES}
    rows["seconds"], rows["memory"] = found.seconds, found.memory
    rows["complexity"] = complexity(rows)
    rows["fits"] = np.where(rows["memory"] <= question.room, 1.0, 0.0)
    return rows


__all__ = ["Plan", "Question", "Values", "plan", "search"]
