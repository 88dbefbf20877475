"""What people hand to ``plan``: names become models and clusters, slips are refused by name."""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np

import hardware_profiles
from hardware_profiles import Cluster
from roofline.model import Transformer


def a_model(model: Transformer | str) -> Transformer:
    """A model, or the preset of this name.

    Raises:
        ValueError: an unknown name, telling the nearest, or no model at all.
    """
    if isinstance(model, str):
        from roofline.presets import preset

        return preset(model).model
    if not isinstance(model, Transformer):
        raise ValueError(
            f"model: {_shown(model)} is refused; allowed: a Transformer, such as a preset's model, "
            "or the name of a preset"
        )
    return model


def a_cluster(cluster: Cluster | str) -> Cluster:
    """A cluster, or the profile of this name.

    Raises:
        ValueError: an unknown name, telling the nearest, or no cluster at all.
    """
    if isinstance(cluster, str):
        return hardware_profiles.cluster(cluster)
    if not isinstance(cluster, Cluster):
        raise ValueError(
            f"cluster: {_shown(cluster)} is refused; allowed: a Cluster, or the name of a profile"
        )
    return cluster


def whole_batch(tokens: float, sequence: float) -> int:
    """Tokens of whole sequences.

    Raises:
        ValueError: tokens that are no multiple of the sequence, or no numbers.
    """
    number("tokens", tokens, "a number of tokens, such as 4 * 2**20")
    number("sequence", sequence, "whole numbers of 1 and more")
    if not (sequence >= 1 and sequence == int(sequence)):
        raise ValueError(f"sequence: {sequence} is refused; allowed: whole numbers of 1 and more")
    if not np.isfinite(tokens) or tokens < sequence or tokens % sequence:
        below = max(1, int(tokens // sequence)) * sequence if np.isfinite(tokens) else sequence
        asked = f"{tokens:,.0f}" if tokens == np.round(tokens) else f"{tokens:,}"
        raise ValueError(
            f"tokens: {asked} is refused; allowed: multiples of the sequence, {sequence:,}; "
            f"the nearest: {below:,.0f} and {below + sequence:,.0f}"
        )
    return int(tokens)


def share(headroom: float) -> float:
    """The share of the memory that stays free.

    Raises:
        ValueError: no number from 0 to below 1.
    """
    number("headroom", headroom, "a share from 0 to below 1")
    if not 0 <= headroom < 1:
        raise ValueError(f"headroom: {headroom} is refused; allowed: a share from 0 to below 1")
    return float(headroom)


def imbalance(value: float, model: Transformer) -> float:
    """Load of the busiest expert rank over the mean.

    Raises:
        ValueError: below 1, no number, or more than the experts of the model.
    """
    most = model.experts.count if model.experts else 1
    allowed = (
        f"1 (balanced) to {most}, where one of the {most} experts has all tokens"
        if model.experts
        else f"1, for {model.name} has no experts"
    )
    number("imbalance", value, allowed)
    if not 1 <= value <= most:
        raise ValueError(f"imbalance: {value:g} is refused; allowed: {allowed}")
    return float(value)


def number(field: str, value: Any, allowed: str) -> None:
    """Pass for a number; neither text nor a truth value is one.

    Raises:
        ValueError: for anything else.
    """
    if isinstance(value, bool | np.bool_) or not isinstance(value, Real):
        raise ValueError(f"{field}: {_shown(value)} is refused; allowed: {allowed}")


def _shown(value: Any) -> str:
    return repr(value)[:60]
