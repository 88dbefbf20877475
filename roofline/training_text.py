"""A training job for people: a few lines, or HTML for a notebook."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from roofline.describe import describe
from roofline.outcome import outcome
from roofline.units import show

if TYPE_CHECKING:
    from roofline.training import Training


def text(job: Training) -> str:
    """Model, layout, cluster, step time with its band, MFU, memory, and whose rates these are."""
    return "\n".join(_lines(job))


def html(job: Training) -> str:
    """The same as HTML."""
    first, *rest = map(escape, _lines(job))
    return f"<p><b>{first}</b></p><p>{'<br>'.join(rest)}</p>"


def _lines(job: Training) -> Iterator[str]:
    gpus = np.max(job.layout.gpus)
    yield f"{job.model.name}, {job.precision}, on {gpus:,.0f} × {job.cluster.accelerator.title}"
    if any(np.ndim(getattr(job.layout, field.name)) for field in fields(job.layout)):
        yield _column(job)
    else:
        yield from _single(job)
    yield job.basis


def _column(job: Training) -> str:
    seconds, memory = np.asarray(job.time.seconds), np.asarray(job.memory.total)
    return (
        f"{seconds.size:,} layouts: {_between(seconds, 's')} a step, "
        f"{_between(memory, 'B')} of {show(job.cluster.hbm_bytes, 'B')} a GPU"
    )


def _between(values: Any, unit: str) -> str:
    low, high = float(np.min(values)), float(np.max(values))
    return f"{show(low, unit)} to {show(high, unit)}"


def _single(job: Training) -> Iterator[str]:
    brought, memory = outcome(job), float(np.asarray(job.memory.total))
    wide = brought.wide
    band = "" if wide is None else f" ({_between(wide, 's')} in nine runs of ten)"
    fits = "" if memory <= job.cluster.hbm_bytes else ": does not fit"
    yield describe(job.layout)
    yield (
        f"{show(float(np.asarray(brought.seconds)), 's')} a step{band}, "
        f"MFU {float(np.asarray(brought.mfu)):.1%}, "
        f"{show(float(np.asarray(brought.tokens_per_second_per_gpu)))} tokens/s a GPU"
    )
    yield f"{show(memory, 'B')} of {show(job.cluster.hbm_bytes, 'B')} a GPU{fits}"
