"""What predictions of strategies share: the bytes that a bound moves, at the rates of the profile.

The strategies of ``roofline`` say which bytes move and how often; ``Profile`` says how long so many
take here, start included. Matmuls take what ``roofline.kernels.Matmuls`` says of their shapes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from roofline.bound import Term
from roofline.groups import Group
from roofline.strategies.phases import Phase
from validation.case import Case, Expected
from validation.kernels import plans
from validation.kernels.data import BYTES
from validation.kernels.plans import Op
from validation.profile import Profile


def linear(
    profile: Profile, tokens: float, width: float, into: float, dtype: str, phase: Phase
) -> float:
    """x[tokens, width] w[width, into]; in a whole step with the gradients of x and w. [s]"""
    rates, size = profile.matmuls(dtype), BYTES[dtype]
    seconds = rates.seconds(tokens, into, width, 1, size)
    if phase == "step":
        seconds = seconds + rates.seconds(tokens, width, into, 1, size)
        seconds = seconds + rates.seconds(width, into, tokens, 1, size)
    return float(seconds)


def mlp(
    profile: Profile, tokens: float, d_model: float, d_ff: float, dtype: str, phase: Phase
) -> float:
    """Two matrices with a ReLU between them. [s]"""
    there = linear(profile, tokens, d_model, d_ff, dtype, phase)
    back = linear(profile, tokens, d_ff, d_model, dtype, phase)
    passed = 2 if phase == "forward" else 5  # reads and writes; backward reads two and writes one
    return there + back + elementwise(profile, passed * tokens * d_ff, dtype, 1 + (passed > 2))


def elementwise(profile: Profile, elements: float, dtype: str, kernels: float = 1) -> float:
    """``elements`` read or written through memory. [s]"""
    return float(profile.streams().seconds(elements * BYTES[dtype], kernels))


def comms(profile: Profile, op: str, terms: Iterable[Term], group: Group, calls: float) -> float:
    """The bytes of a bound's terms in ``calls`` collectives ``op`` of equal size. [s]"""
    if group.size == 1 or not calls:
        return 0.0
    return calls * profile.collective(op, moved(terms) / calls, group)


def together(profile: Profile, math: float, talk: float, hidden: float) -> float:
    """Both at once, where ``hidden`` seconds of ``talk`` are beside ``math`` and slow it down. [s]

    Hiding a second costs what the step model calls contention; see ``roofline.job.Habits``.
    """
    behind = float(np.clip(hidden, 0.0, talk))
    return math + talk - behind * (1.0 - profile.contention)


def of_a_plan(
    case: Case,
    profile: Profile,
    ops: Sequence[Op],
    taken: Mapping[str, float],
    sent: Mapping[str, float],
    flops: float,
) -> Iterator[Expected]:
    """Math alone, communication alone and both, of a plan whose kinds of passes take so long.

    Args:
        taken: seconds of one pass or collective of each kind.
        sent: bytes of one collective of each kind.
        flops: of the whole step on one rank.
    """
    math = plans.alone(ops, lambda op: taken[op.kind], talks=False)
    yield Expected("math", math, flops)
    if case.size == 1:
        return
    nbytes = sum(sent.get(op.kind, 0.0) for op in ops)
    comms = plans.alone(ops, lambda op: taken[op.kind], talks=True)
    yield Expected("comms", comms, nbytes=nbytes)
    overlapped = plans.seconds(ops, lambda op: taken[op.kind], overlap=case["overlap"])
    both = together(profile, math, comms, math + comms - overlapped)
    yield Expected("both", both, flops, nbytes)


def moved(terms: Iterable[Term]) -> float:
    """Bytes of all terms together, each as its strategy counts them. [B]"""
    return float(sum(float(term.nbytes or 0.0) for term in terms))


def scaled(terms: Iterable[Term], factor: float) -> list[Term]:
    """The same terms with ``factor`` times the bytes and the time."""
    return [
        replace(term, seconds=term.seconds * factor, nbytes=(term.nbytes or 0.0) * factor)
        for term in terms
    ]
