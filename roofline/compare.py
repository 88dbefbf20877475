"""Jobs side by side: two or more layouts, models or clusters, term by term.

    found = compare([plan_a, plan_b], names=["H100", "B200"])
    found.terms       seconds of a step, term by term; columns are jobs, the first is the reference
    found.sentences   what separates each from the first

Jobs with other batches or numbers of GPUs compare by GPU seconds for a million tokens: the same
terms, times GPUs, over tokens. Jobs on calibrated and on uncalibrated accelerators compare at the
rates of their datasheets, all of them; ``footing`` says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardware_profiles import Cluster
from roofline.describe import degrees, describe
from roofline.explain import TOLD, differences
from roofline.outcome import Outcome, outcome
from roofline.planner import Plan
from roofline.step import StepTime
from roofline.training import ACHIEVABLE, Training, overlay_of
from roofline.units import Count, show

Column = NDArray[np.float64]
MILLION = 1e6  # tokens
ALIKE = 5e-4  # of a time: less is as fast


@dataclass(frozen=True, repr=False)
class Comparison:
    """Jobs side by side; every row has one number a job."""

    names: tuple[str, ...]
    jobs: tuple[Training, ...]
    footing: str = ""  # why all are at peak rates, where a calibration was left aside

    @cached_property
    def outcomes(self) -> tuple[Outcome, ...]:
        """Tokens per second, MFU and their like of each."""
        return tuple(outcome(job) for job in self.jobs)

    @property
    def seconds(self) -> Column:
        """Of a step."""
        return self._row(job.time.seconds for job in self.jobs)

    @property
    def memory(self) -> Column:
        """Of the fullest GPU. [B]"""
        return self._row(job.memory.total for job in self.jobs)

    @property
    def mfu(self) -> Column:
        """Model FLOPs over the peak."""
        return self._row(one.mfu for one in self.outcomes)

    @property
    def tokens_per_second_per_gpu(self) -> Column:
        """Of one GPU."""
        return self._row(one.tokens_per_second_per_gpu for one in self.outcomes)

    @property
    def terms(self) -> dict[str, Column]:
        """Term → seconds of a step in each job; the rows sum to ``seconds``."""
        return _rows([job.time.terms for job in self.jobs])

    @property
    def shares(self) -> dict[str, Column]:
        """Term → its share of the step."""
        return {name: row / self.seconds for name, row in self.terms.items()}

    @property
    def parts(self) -> dict[str, Column]:
        """Part of the memory → its bytes on the fullest GPU; the rows sum to ``memory``."""
        return _rows([job.memory.parts for job in self.jobs])

    @property
    def alike(self) -> bool:
        """Whether all have the same GPUs and tokens a step, so that steps compare."""
        sizes = {(float(one.gpus), float(one.tokens)) for one in self.outcomes}
        return len(sizes) == 1

    @property
    def costs(self) -> Column:
        """What is compared: seconds of a step, or GPU seconds for a million tokens."""
        return self.seconds * self._scales

    @property
    def sentences(self) -> tuple[str, ...]:
        """What separates every job from the first."""
        return tuple(self._versus(i) for i in range(1, len(self.jobs)))

    def table(self) -> list[dict[str, Any]]:
        """A row for each number, in SI units: ``part``, ``row``, and a column for each job."""
        rows: list[tuple[str, str, Sequence[Any] | Column]] = [
            ("job", "layout", [describe(job.layout) for job in self.jobs]),
            ("job", "gpus", self._row(one.gpus for one in self.outcomes)),
            ("job", "tokens", self._row(one.tokens for one in self.outcomes)),
            ("step", "seconds", self.seconds),
            ("step", "tokens_per_s_per_gpu", self.tokens_per_second_per_gpu),
            ("step", "mfu", self.mfu),
            *(("seconds", name, row) for name, row in self.terms.items() if np.any(row)),
            *(("share", name, row) for name, row in self.shares.items() if np.any(row)),
            ("memory", "total", self.memory),
            *(("memory", name, row) for name, row in self.parts.items() if np.any(row)),
        ]
        return [
            {"part": part, "row": name} | dict(zip(self.names, values, strict=True))
            for part, name, values in rows
        ]

    def to_frame(self) -> Any:
        """The table as a pandas frame."""
        from pandas import DataFrame  # type: ignore[import-untyped]

        return DataFrame(self.table()).set_index(["part", "row"])

    def text_rows(self) -> list[tuple[str, ...]]:
        """The same for people: a name, and what each job has."""
        shown: dict[str, Any] = {
            "layout": [describe(job.layout) for job in self.jobs],
            "step": [show(x, "s") for x in self.seconds],
            "tokens/s a GPU": [show(x) for x in self.tokens_per_second_per_gpu],
            "MFU": [f"{x:.1%}" for x in self.mfu],
        }
        for name, row in self.terms.items():
            if np.any(row):
                shares = self.shares[name]
                shown[name] = [
                    f"{show(x, 's')} ({y:.0%})" for x, y in zip(row, shares, strict=True)
                ]
        shown["memory"] = [show(x, "B") for x in self.memory]
        for name, row in self.parts.items():
            if np.any(row):
                shown[f"  {name}"] = [show(x, "B") for x in row]
        return [(name, *values) for name, values in shown.items()]

    def __repr__(self) -> str:
        rows = [("", *self.names), *self.text_rows()]
        wide = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, wide, strict=True)).rstrip()
            for row in rows
        ]
        return "\n".join([*lines, "", *self._told])

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(name)}</th>" for name in ("", *self.names))
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
            for row in self.text_rows()
        )
        said = "".join(f"<li>{escape(each)}</li>" for each in self._told)
        return f"<table><tr>{head}</tr>{body}</table><ul>{said}</ul>"

    @property
    def _told(self) -> tuple[str, ...]:
        """The sentences, and on which footing."""
        return (*self.sentences, self.footing) if self.footing else self.sentences

    @property
    def _scales(self) -> Column:
        """What a second of each job counts."""
        if self.alike:
            return np.ones(len(self.jobs))
        return self._row(one.gpus / one.tokens * MILLION for one in self.outcomes)

    def _versus(self, place: int) -> str:
        scales, costs = self._scales, self.costs
        here, there = (_scaled(self.jobs[i].time, float(scales[i])) for i in (0, place))
        ratio = float(costs[place] / costs[0]) - 1
        speed = "is as fast as" if abs(ratio) < ALIKE else f"is {abs(ratio):.1%} "
        if abs(ratio) >= ALIKE:
            speed += "slower than" if ratio > 0 else "faster than"
        unit = "" if self.alike else ", in GPU seconds for a million tokens"
        because = [
            f"{one.term} {'+' if one.more > 0 else '-'}{show(abs(one.more), 's')}"
            for one in differences(here, there)[:TOLD]
            if abs(one.more) > 1e-3 * float(costs[0])
        ]
        text = f"{self.names[place]} {speed} {self.names[0]}{unit}"
        text += f": {', '.join(because)}" if because else ""
        needs, room = float(self.memory[place]), self.jobs[place].cluster.hbm_bytes
        if needs > room:
            text += f"; and it does not fit: {show(needs, 'B')} of {show(room, 'B')}"
        return f"{text}."

    def _row(self, values: Any) -> Column:
        return np.array([float(value) for value in values])


def compare(jobs: Sequence[Training | Plan], names: Sequence[str] | None = None) -> Comparison:
    """Two or more jobs side by side; of a plan its best.

    Args:
        names: one for each; what tells them apart where None.

    Raises:
        ValueError: fewer than two jobs, a plan in which nothing fits, a column of layouts, names
            that are not as many as the jobs, or not all different.
    """
    if len(jobs) < 2:
        raise ValueError(f"jobs: {len(jobs)} is refused; allowed: two and more")
    ready = tuple(_job(i, each) for i, each in enumerate(jobs))
    called = tuple(_names(ready) if names is None else names)
    if len(called) != len(ready) or len(set(called)) != len(called):
        raise ValueError(
            f"names: {', '.join(called)} is refused; allowed: {len(ready)} that differ, one for each job"
        )
    footing = one_footing(dict(zip(called, ready, strict=True)))
    if footing:
        ready = tuple(replace(job, overlay=None) for job in ready)
    return Comparison(called, ready, footing)


def one_footing(given: Mapping[str, Training | Cluster]) -> str:
    """Why calibrations have to be left aside where these are compared; empty where they need not.

    A datasheet's rates against calibrated ones would make the uncalibrated accelerator win.

    Args:
        given: jobs, or clusters whose jobs will be predicted at achievable rates, by name.
    """
    bare = [name for name, one in given.items() if _uncalibrated(one)]
    fitted = [name for name, one in given.items() if _fitted(one)]
    if not (bare and fitted):
        return ""
    return (
        "All are compared at the rates of their datasheets, because nobody has calibrated whole "
        f"steps of {', '.join(bare)}."
    )


def _fitted(one: Training | Cluster) -> bool:
    """Whether whole steps are predicted with a calibration."""
    if isinstance(one, Training):
        return one.fit is not None
    overlay = overlay_of(ACHIEVABLE, one)
    return overlay is not None and overlay.step is not None


def _uncalibrated(one: Training | Cluster) -> bool:
    """Whether they are not, because the accelerator has none."""
    if isinstance(one, Training):
        return not (_fitted(one) or _fitted(one.cluster))
    return not _fitted(one)


def _job(place: int, given: Training | Plan) -> Training:
    job = given.best if isinstance(given, Plan) else given
    if job is None:
        raise ValueError(
            f"jobs: number {place + 1} is a plan in which no layout fits the memory; allowed: plans "
            "with a best, and trainings"
        )
    if np.ndim(job.time.seconds):
        raise ValueError(
            f"jobs: number {place + 1} is a column of {np.size(job.time.seconds)} layouts; allowed: "
            "single layouts"
        )
    return job


def _names(jobs: Sequence[Training]) -> list[str]:
    """What differs between them: model, cluster, degrees; numbered where that is not enough."""
    columns = [
        [job.model.name for job in jobs],
        [job.cluster.name for job in jobs],
        [f"{job.layout.gpus:,.0f} GPUs" for job in jobs],
        [job.precision for job in jobs],
        [degrees(job.layout) for job in jobs],
    ]
    telling: list[list[str]] = []
    for column in columns:
        if len(set(column)) > 1 and len(set(zip(*telling, strict=True))) < len(jobs):
            telling.append(column)
    found = [", ".join(parts) for parts in zip(*(telling or [columns[-1]]), strict=True)]
    if len(set(found)) == len(found):
        return found
    return [f"{i}: {name}" for i, name in enumerate(found, 1)]


def _rows(tables: Sequence[Mapping[str, Count]]) -> dict[str, Column]:
    names = dict.fromkeys(name for table in tables for name in table)
    return {
        name: np.array([float(np.asarray(table.get(name, 0.0))) for table in tables])
        for name in names
    }


def _scaled(time: StepTime, scale: float) -> StepTime:
    return StepTime({name: scale * seconds for name, seconds in time.terms.items()})
