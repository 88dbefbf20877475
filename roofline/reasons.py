"""A plan explained in sentences: why the best layout is the best, and what would change the answer.

    winner       what its step consists of; what separates it from the next; what each rate of the
                 machine and each other choice would bring
    nothing fits what takes the memory of the smallest layout, and what would make one fit

Every number is of ``roofline.explain`` or of another search; here they become words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from html import escape

import numpy as np

from roofline import plan_text
from roofline.describe import degrees, describe
from roofline.explain import Choice, Rate, choices, rates, said, versus
from roofline.layout import Layout
from roofline.limits import FRAMEWORKS, values
from roofline.planner import Plan, Question, alone, holding, largest, search
from roofline.space import CHOICES
from roofline.training import Training
from roofline.tries import between
from roofline.units import show

TOLD = 4  # of anything
LEAST = 0.005  # of the step: less is not worth a word
WORTH = 0.1  # more tokens a second and GPU: then another number of GPUs is named
DOUBLINGS = 10  # of the GPUs, before giving up


@dataclass(frozen=True, repr=False)
class Reasons:
    """Sentences about a plan, and the rows that they were made of."""

    sentences: tuple[str, ...]
    rates: tuple[Rate, ...] = ()  # of the machine, the most telling first
    choices: tuple[Choice, ...] = ()  # other values of one choice, the fastest first

    def __str__(self) -> str:
        return "\n".join(self.sentences)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        head, *rest = self.sentences
        items = "".join(f"<li>{escape(each)}</li>" for each in rest)
        return f"<p><b>{escape(head)}</b></p><ul>{items}</ul>"


def reasons(plan: Plan) -> Reasons:
    """Why the best of ``plan`` is the best; where nothing fits, why, and what would."""
    best = plan.best
    if best is None:
        return Reasons((plan_text.headline(plan), *_unfit(plan)))
    moved, changed = tuple(rates(best)), tuple(choices(plan.question, best.layout))
    sentences = (
        plan_text.headline(plan),
        f"{plan.seen:,} layouts were predicted, {plan.fitting:,} fit the memory.",
        dominant(best),
        *_runners(plan, best),
        *_rates(moved),
        *_choices(plan, changed),
        *_whole_nodes(plan, best),
    )
    return Reasons(sentences, moved, changed)


def dominant(job: Training) -> str:
    """The terms that the step mostly consists of, in a sentence."""
    whole = float(job.time.seconds)
    terms = {name: float(each) for name, each in job.time.terms.items()}
    first = sorted(terms.items(), key=lambda item: -item[1])[:TOLD]
    told = [f"{name} {seconds / whole:.0%}" for name, seconds in first if seconds > LEAST * whole]
    rest = 1 - sum(seconds for _, seconds in first if seconds > LEAST * whole) / whole
    return f"The step is {', '.join(told)}" + (f", the rest {rest:.0%}." if rest > LEAST else ".")


def changes(here: Layout, there: Layout) -> str:
    """Choices of ``there`` that are not those of ``here``: ``chunks 10 instead of 1``."""
    found = [
        (name, float(getattr(there, name)), float(getattr(here, name))) for name in ("dp", *CHOICES)
    ]
    return ", ".join(
        f"{name} {said(name, new)} instead of {said(name, old)}"
        for name, new, old in found
        if new != old
    )


def _runners(plan: Plan, best: Training) -> Iterator[str]:
    """The next of another kind, and where it has the same degrees the first with others."""
    rows = plan.distinct
    count = len(rows["seconds"])
    if count < 2:
        return
    second = plan.question.training(plan.layout(1, rows))
    told = changes(best.layout, second.layout)
    yield versus(best, second, f"The next of another kind, with {told},") + "."
    if degrees(second.layout) != degrees(best.layout):
        return
    for place in range(2, count):
        layout = plan.layout(place, rows)
        if degrees(layout) != degrees(best.layout):
            told = f"The best with other degrees, {degrees(layout)},"
            yield versus(best, plan.question.training(layout), told) + "."
            return


def _rates(moved: tuple[Rate, ...]) -> Iterator[str]:
    worth = [row for row in moved if row.doubled < 1 - LEAST][:TOLD]
    if worth:
        told = ", ".join(f"{row.name} {1 - row.doubled:.0%}" for row in worth)
        yield f"Twice a rate of the machine would shorten the step: {told}."
    idle = [row.name for row in moved if row.doubled >= 1 - LEAST]
    if idle:
        yield f"Faster would not help: {', '.join(idle)}."


def _choices(plan: Plan, changed: tuple[Choice, ...]) -> Iterator[str]:
    """What another value of one choice would bring: those that fit, and those that do not.

    What the user fixed or left out himself is no news to him.
    """
    changed = tuple(row for row in changed if row.name not in plan.question.limits)
    faster = [row for row in changed if row.fits and row.slower < -LEAST]
    if faster:
        told = ", ".join(f"{row.name} {row.value} {-row.slower:.1%}" for row in faster[:TOLD])
        yield f"Faster, but left out of this search: {told}."
    tight = [row for row in changed if not row.fits and row.slower < -LEAST]
    if tight:
        room = show(plan.question.room, "B")
        told = ", ".join(
            f"{row.name} {row.value} {-row.slower:.1%} ({show(row.memory, 'B')})"
            for row in tight[:TOLD]
        )
        yield f"Faster, but more than {room} a GPU: {told}."
    asked = plan.question
    able = values(asked.job, asked.framework, asked.limits)
    near: dict[str, Choice] = {}
    for row in changed:
        if float(getattr(row.layout, row.name)) not in able[row.name]:
            continue
        if row.fits and row.slower >= -LEAST and not _moot(row):
            near.setdefault(row.name, row)
    if near:
        told = ", ".join(
            f"{row.name} {row.value} {round(row.slower, 3) + 0.0:+.1%}"
            for row in list(near.values())[: 2 * TOLD]
        )
        yield f"One choice changed, to its next best value: {told}."


def _whole_nodes(plan: Plan, best: Training) -> Iterator[str]:
    """Where the GPUs leave a node partly filled, as a prime number of them does: whether fewer do more.

    The batch is as many sequences a GPU, as far as they are whole.
    """
    asked = plan.question
    gpus = asked.gpus - asked.gpus % asked.job.inner
    if gpus in (0, asked.gpus):
        return
    each = round(asked.job.batch / asked.gpus)
    tokens = (each * gpus or asked.job.batch) * asked.sequence

    def filled() -> Question:
        return replace(asked, cluster=holding(asked.profile, gpus), gpus=gpus, tokens=tokens)

    for _, other in _fitting("", filled):
        there = other.training(0)
        rates = [
            size / float(job.time.seconds) / count
            for size, job, count in ((asked.tokens, best, asked.gpus), (tokens, there, gpus))
        ]
        more = rates[1] / rates[0] - 1
        if more > WORTH:
            yield (
                f"{gpus:,} GPUs, whole nodes, bring {more:.0%} more tokens a second and GPU with "
                f"{tokens:,} tokens a step: {describe(there.layout)}."
            )


def _moot(row: Choice) -> bool:
    """A choice that changes nothing in this layout."""
    layout = row.layout
    return (row.name == "recompute_share" and not layout.recompute) or (
        row.name in ("zero", "shard") and layout.data_ranks == 1
    )


def _unfit(plan: Plan) -> Iterator[str]:
    """What takes the memory of the smallest layout, and what would make one fit."""
    small = plan.question.training(plan.layout(0, plan.smallest))
    need = float(small.memory.total)
    parts = {name: float(each) for name, each in small.memory.parts.items()}
    first = sorted(parts.items(), key=lambda item: -item[1])[:TOLD]
    yield "Its memory: " + ", ".join(f"{name} {show(size, 'B')}" for name, size in first) + "."
    found = [
        f"{name}: {describe(there.layout())}" for name, there in _remedies(plan.question, need)
    ]
    if found:
        yield "What would fit: " + "; ".join(found) + "."
    else:
        profile = plan.question.profile
        most = min(float(plan.question.gpus << DOUBLINGS), largest(profile))
        more = f"up to {most:,.0f} GPUs" if most > plan.question.gpus else "more GPUs"
        yield f"Neither other choices nor {more} make it fit."
        if most == largest(profile):
            yield f"{alone(profile)}."


def _remedies(asked: Question, need: float) -> Iterator[tuple[str, Plan]]:
    """Changes of the question, one at a time, under which a layout fits; the smallest of each kind.

    ``need`` bytes take the smallest layout of the question as it is.
    """
    least = np.floor(1000.0 * (1.0 - need / asked.cluster.hbm_bytes)) / 1000.0
    if least >= 0:
        yield from _fitting(
            f"headroom {least:g} instead of {asked.headroom:g}",
            lambda: replace(asked, headroom=float(least)),
        )
    if asked.framework.name != "any":
        yield from _fitting("any framework", lambda: replace(asked, framework=FRAMEWORKS["any"]))
    if asked.limits:
        yield from _fitting("no limits", lambda: replace(asked, limits={}))
    offloaded = {**asked.limits, "offload_share": 1.0}
    yield from _fitting(
        "all activations kept on the host", lambda: replace(asked, limits=offloaded)
    )
    yield from _more(asked)


def _more(asked: Question) -> Iterator[tuple[str, Plan]]:
    """Fewest GPUs that hold a layout: the first doubling that does, then the eighths below it."""
    for doubling in range(1, DOUBLINGS + 1):
        above = list(_on(asked, asked.gpus << doubling))
        if above:
            lower = between(asked.profile, asked.gpus << (doubling - 1), asked.gpus << doubling)
            yield next((found for gpus in lower for found in _on(asked, gpus)), above[0])
            return


def _on(asked: Question, gpus: int) -> Iterator[tuple[str, Plan]]:
    def grown() -> Question:
        return replace(asked, cluster=holding(asked.profile, gpus), gpus=gpus)

    return _fitting(f"{gpus:,} GPUs", grown)


def _fitting(name: str, other: Callable[[], Question]) -> Iterator[tuple[str, Plan]]:
    """The plan of another question where something fits."""
    try:
        found = search(other())
    except ValueError:  # nothing divides
        return
    if found.fitting:
        yield name, found
