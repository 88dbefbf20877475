"""Bound: what a strategy costs on its own, which side binds, and where the two sides cross.

    T_lower = max(T_math, T_comms)      everything overlaps
    T_upper = T_math + T_comms          nothing overlaps; never more than twice T_lower

Source: How to Scale Your Model, "Rooflines".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import reduce
from operator import add

import numpy as np
from numpy.typing import NDArray

from roofline import checks
from roofline.blocks import pointwise
from roofline.collectives import CollectiveTime
from roofline.sources import Source
from roofline.units import Bytes, Count, Num, Seconds, show


@dataclass(frozen=True, slots=True)
class Term:
    """One addend of a time; terms are listed, never merged: each keeps its formula and source."""

    name: str
    seconds: Seconds
    formula: str  # LaTeX, in the symbols of the source
    source: Source
    moved: CollectiveTime | None = None  # where it is communication: tier by tier, per byte
    nbytes: Bytes | None = None  # so many bytes of that; worked out from the two times if left out

    @property
    def tier(self) -> NDArray[np.str_] | str:
        """The level of the hierarchy that sets this time; empty for compute."""
        return "" if self.moved is None else self.moved.binding

    def on_tiers(self) -> dict[str, Seconds]:
        """Time that this keeps the links of each tier busy; the slowest one is ``seconds``. [s]"""
        if self.moved is None:
            return {}
        if len(self.moved.tiers) == 1:
            return {self.moved.tiers[0]: self.seconds}
        if self.nbytes is not None:
            return {
                tier: self.nbytes * t
                for tier, t in zip(self.moved.tiers, self.moved.by_tier, strict=True)
            }
        longest = np.asarray(self.moved.seconds)
        per_unit = np.divide(
            self.seconds, longest, out=np.zeros(np.shape(self.seconds)), where=longest > 0
        )
        return {
            tier: per_unit * t for tier, t in zip(self.moved.tiers, self.moved.by_tier, strict=True)
        }


@dataclass(frozen=True, slots=True)
class Threshold:
    """Work per GPU against what the machine asks for: hidden while ``actual >= needed``."""

    quantity: str  # "tokens per GPU"
    actual: Count
    needed: Count
    inequality: str  # LaTeX
    because: str  # one sentence a newcomer can follow
    least: Count = 0.0  # below it some GPUs have nothing to work on
    never: str = "no amount is enough"  # where ``needed`` is infinite

    @property
    def possible(self) -> NDArray[np.bool_]:
        """True where every GPU has work: a token, a column of a matrix."""
        return np.greater_equal(self.actual, self.least)

    @property
    def headroom(self) -> Count:
        """actual / needed: above 1 the strategy is compute-bound."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.divide(self.actual, self.needed)


@dataclass(frozen=True, slots=True)
class Bound:
    """One strategy on one machine. Every number may be an array: then this is a curve."""

    strategy: str
    math: Term
    comms: tuple[Term, ...]
    threshold: Threshold
    concurrent: bool = (
        False  # communication terms run at the same time, each tier serving one after another
    )

    @property
    def t_math(self) -> Seconds:
        """Time of the matmuls. [s]"""
        return self.math.seconds

    @property
    def t_comms(self) -> Seconds:
        """All communication, one after the other; where concurrent, of the busiest tier. [s]"""
        if self.concurrent:
            return _longest(self.comms)
        return reduce(add, (term.seconds for term in self.comms)) if self.comms else 0.0

    @property
    def t_lower(self) -> Seconds:
        """All communication hidden behind compute, or the reverse. [s]"""
        return np.maximum(self.t_math, self.t_comms)

    @property
    def t_upper(self) -> Seconds:
        """Nothing hidden. [s]"""
        return self.t_math + self.t_comms

    def overlapped(self, share: Count) -> Seconds:
        """Between the two: ``share`` of the shorter side is hidden behind the longer. [s]

        0 is ``t_upper``, 1 is ``t_lower``; the GPU's kernels decide what lies between.

        Raises:
            ValueError: a share outside 0 to 1.
        """
        hidden = checks.between("share", share, 0, 1)
        return self.t_upper - hidden * np.minimum(self.t_math, self.t_comms)

    @property
    def compute_bound(self) -> NDArray[np.bool_]:
        """True where T_math >= T_comms."""
        return np.greater_equal(self.t_math, self.t_comms)

    def sentence(self) -> str:
        """The verdict in words, for one point.

        Raises:
            ValueError: when this bound holds a curve.
        """
        if np.ndim(self.t_upper):
            raise ValueError("a curve has no single verdict; evaluate the strategy at one point")
        limit = self.threshold
        verdict = "compute-bound" if self.compute_bound else "communication-bound"
        relation = "at least" if self.compute_bound else "less than"
        times = f"T_math {show(float(self.t_math), 's')}, T_comms {show(float(self.t_comms), 's')}"
        name = f"{self.strategy[:1].upper()}{self.strategy[1:]}"
        needed = f"{relation} the {_plain(limit.needed)} that hide the communication"
        if np.isposinf(limit.needed):
            needed = limit.never
        idle = "" if limit.possible else f"; below {limit.least:g}, some GPUs have nothing to do"
        return f"{name} is {verdict}: {_plain(limit.actual)} {limit.quantity}, {needed} ({times}){idle}"


def busy(terms: Iterable[Term]) -> dict[str, Seconds]:
    """Time that all ``terms`` together keep the links of each tier busy. [s]"""
    total: dict[str, Seconds] = {}
    for term in _merged(terms):
        for tier, seconds in term.on_tiers().items():
            total[tier] = total.get(tier, 0.0) + seconds
    return total


@pointwise
def _longest(terms: tuple[Term, ...]) -> Seconds:
    """Time of the busiest tier. [s]"""
    longest: Seconds = 0.0
    for seconds in busy(terms).values():
        longest = np.maximum(longest, seconds)
    return longest


def _merged(terms: Iterable[Term]) -> Iterable[Term]:
    """Terms that move bytes in the very same way as one, which is as good for a sum."""
    found: dict[int, Term] = {}
    alone = []
    for term in terms:
        if term.moved is None or term.nbytes is None:
            alone.append(term)
            continue
        known = found.get(id(term.moved))
        found[id(term.moved)] = (
            term
            if known is None or known.nbytes is None
            else replace(
                known, seconds=known.seconds + term.seconds, nbytes=known.nbytes + term.nbytes
            )
        )
    return [*alone, *found.values()]


def _plain(value: Num) -> str:
    return show(float(value), digits=4)


def crossings(x: Num, bound: Bound) -> NDArray[np.float64]:
    """Where along the sweep ``x`` the binding side changes, interpolated on log axes.

    Points with no communication at all count as compute-bound.
    """
    x = np.asarray(x, float)
    t_math, t_comms = np.broadcast_arrays(
        np.asarray(bound.t_math, float), np.asarray(bound.t_comms, float), x
    )[:2]
    gap = np.log(t_math) - np.log(np.maximum(t_comms, np.finfo(float).tiny))
    change = np.flatnonzero(np.diff(np.sign(gap) >= 0))
    before, after = gap[change], gap[change + 1]
    sudden = (
        t_comms[change] * t_comms[change + 1] == 0
    )  # from nothing to something: the step itself
    share = np.where(sudden, 1.0, before / (before - after))
    return np.asarray(
        np.exp(np.log(x[change]) + share * (np.log(x[change + 1]) - np.log(x[change])))
    )
