"""The bar's model as a whole decoder: a preset, a pasted configuration, or numbers with the rest assumed."""

from __future__ import annotations

import streamlit as st

from dashboard.state import CUSTOM, Scenario
from roofline.model import Experts, Transformer
from roofline.presets import preset
from roofline.workload import Workload

HEAD_DIM = 128
KV_HEADS = 8
VOCABULARY = 128_256


def transformer(scenario: Scenario) -> Transformer:
    """The model that the scenario names."""
    if scenario.model != CUSTOM:
        return preset(scenario.model).model
    kept: Transformer | None = st.session_state.get("config_model")
    if kept is not None and _same(kept.workload(1.0), scenario.work):
        return kept
    return from_numbers(scenario.work)


def _same(one: Workload, other: Workload) -> bool:
    names = ("d_model", "d_ff", "matrices", "experts", "experts_per_token", "layers")
    return all(getattr(one, name) == getattr(other, name) for name in names)


def from_numbers(work: Workload) -> Transformer:
    """A decoder of the bar's sizes: heads of 128, 8 for keys and values, Llama 3's vocabulary."""
    d_model, d_ff = int(work.d_model), int(work.d_ff)
    heads = max(1, d_model // HEAD_DIM)
    several = work.experts > 1
    return Transformer(
        CUSTOM,
        int(work.layers),
        d_model,
        0 if several else d_ff,
        heads,
        KV_HEADS if heads % KV_HEADS == 0 else heads,
        HEAD_DIM if d_model >= HEAD_DIM else d_model,
        VOCABULARY,
        gated=work.matrices == 3,
        experts=Experts(int(work.experts), int(work.experts_per_token), d_ff) if several else None,
    )


def assumed(scenario: Scenario, model: Transformer) -> str:
    """What the bar does not say of a custom model; empty where it is all known."""
    if scenario.model != CUSTOM or model.name != CUSTOM:
        return ""
    return (
        f"Assumed of the custom model: {model.heads} heads of {model.head_dim}, "
        f"{model.kv_heads} for keys and values, a vocabulary of {model.vocab:,}. "
        "Paste a config.json in the sidebar to have its own."
    )
