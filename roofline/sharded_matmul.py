"""Matmul whose contraction is split: gather an operand first, or add partial sums afterwards.

    x[B, D] · w[D_X, F]      gather:  b D F over the links, then 2 B D F FLOPs on every device
    x[B, D_X] · w[D_X, F]    add:     2 B D F / X FLOPs, then b B F over the links, twice

Gathering pays when there are many tokens, adding when the contraction is long: two chips that add
hide their exchange while D ≥ 2 C/W in bf16.

Source: How to Scale Your Model, "Rooflines", network communication rooflines, and "Sharded
Matrices", cases 2 and 3 and question 4.
"""

from __future__ import annotations

from roofline.arithmetic import matmul
from roofline.bound import Bound, Term, Threshold
from roofline.collectives import (
    ALL_GATHER,
    ALL_REDUCE,
    REDUCE_SCATTER,
    Collective,
    Form,
    collective,
)
from roofline.groups import Group
from roofline.machine import Machine
from roofline.sources import SCALING_BOOK
from roofline.units import Bytes, Count

_SOURCE = SCALING_BOOK("Sharded Matrices and How to Multiply Them")


def gather_first(
    tokens: Count,
    d: Count,
    f: Count,
    machine: Machine,
    degree: Count,
    *,
    element_bytes: Bytes = 2.0,
    dtype: str = "bf16",
    form: Form = "precise",
) -> Bound:
    """All-gather w[D_X, F] over ``degree`` devices, then multiply all of it on each of them."""
    rate = machine.flops(dtype)
    unit = collective(ALL_GATHER, 1.0, Group(degree), machine.tiers, form=form)
    gathered = element_bytes * (1.0 * d * f) * unit.seconds
    return Bound(
        "matmul after a gather",
        Term("matmul", matmul(tokens, d, f).flops / rate, r"\frac{2BDF}{C}", _SOURCE),
        (Term("weight all-gather", gathered, r"\frac{b\,DF}{W}", _SOURCE, unit),),
        Threshold(
            "tokens",
            tokens,
            element_bytes / 2 * rate * unit.seconds,
            r"B > \frac{b}{2}\,\frac{C}{W}",
            "the weights weigh the same however few tokens they are gathered for",
        ),
    )


def add_after(
    tokens: Count,
    d: Count,
    f: Count,
    machine: Machine,
    degree: Count,
    *,
    scatter: bool = False,
    element_bytes: Bytes = 2.0,
    dtype: str = "bf16",
    form: Form = "precise",
) -> Bound:
    """Multiply slices of the contraction on ``degree`` devices and all-reduce the partial sums.

    ``scatter`` leaves the result split, for half the bytes.

    >>> from roofline.machine import Ideal, Tier
    >>> print(add_after(8, 1, 1, Ideal(990e12, (Tier(2, 450e9),)), 2).threshold.needed)
    4400.0
    """
    rate = machine.flops(dtype)
    op: Collective = REDUCE_SCATTER if scatter else ALL_REDUCE
    unit = collective(op, 1.0, Group(degree), machine.tiers, form=form)
    added = element_bytes * (1.0 * tokens * f) * unit.seconds
    return Bound(
        "matmul of partial sums",
        Term(
            "matmul",
            matmul(tokens, d, f).flops / (1.0 * degree * rate),
            r"\frac{2BDF}{XC}",
            _SOURCE,
        ),
        (Term(f"output {op.name}", added, rf"\frac{{{op.passes}\,b\,BF}}{{W}}", _SOURCE, unit),),
        Threshold(
            "contracting columns",
            d,
            element_bytes / 2 * rate * degree * unit.seconds,
            r"D > \frac{b}{2}\,\frac{2(X-1)\,C}{W}",
            "partial sums are as large as the whole result however short the contraction was, "
            "so it must be long enough to be worth sending them",
        ),
    )
