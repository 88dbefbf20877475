"""Fields of a published run: read with their type, or refused with their name and value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roofline.model import Experts, Latent, Transformer, Window

Run = Mapping[str, Any]
LARGEST = 1e9  # of any count: more is a typing mistake


class RunError(ValueError):
    """A run that cannot be predicted; the message names the field, its value and what is allowed."""


class NotMeasured(RunError):
    """A run that says of nothing how long a step took: it can be predicted, not compared."""


def number(run: Run, key: str, default: float | None = None, *, least: float = 1.0) -> float:
    """A number of ``least`` or more; ``default`` where the run has none.

    Raises:
        RunError: missing, of another type, or out of range.
    """
    value = run.get(key)
    if value is None:
        if default is None:
            raise RunError(f"{key}: missing, and there is no default")
        return default
    fits = isinstance(value, int | float) and not isinstance(value, bool)
    if not fits or not least <= value <= LARGEST:  # neither NaN nor infinity lies between
        raise RunError(f"{key}: {_shown(value)} is refused; allowed: {least:g} to {LARGEST:g}")
    return float(value)


def whole(run: Run, key: str, default: int | None = None, *, least: int = 1) -> int:
    """The same, and a whole number."""
    value = number(run, key, default, least=least)
    if value != int(value):
        raise RunError(f"{key}: {_shown(value)} is refused; allowed: whole numbers")
    return int(value)


def mapping(run: Run, key: str) -> Mapping[str, Any]:
    """An object of the run; empty where there is none."""
    value = run.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise RunError(f"{key}: {_shown(value)} is refused; allowed: an object")
    return value


def flag(run: Run, key: str, default: bool | None = None) -> bool | None:
    """Yes or no; ``default`` where the run has none.

    Raises:
        RunError: anything else.
    """
    value = run.get(key)
    if value is None:
        return default
    if value not in (True, False):
        raise RunError(f"{key}: {_shown(value)} is refused; allowed: true, false")
    return bool(value)


def text(run: Run, key: str) -> str:
    """A text that has to be there."""
    value = run.get(key)
    if not isinstance(value, str) or not value:
        raise RunError(f"{key}: {_shown(value)} is refused; allowed: a text")
    return value


def _shown(value: Any) -> str:
    try:
        return repr(value)[:60]
    except (RecursionError, ValueError):  # nested too deeply, or too long a number
        return f"this {type(value).__name__}"


def model(run: Run) -> Transformer:
    """The sizes of the run's model; the vocabulary padded as Megatron does.

    Raises:
        RunError: a size that is missing, of another type, or impossible.
    """
    shape = mapping(run, "model")
    hidden, heads = whole(shape, "hidden"), whole(shape, "heads")
    latent = _latent(mapping(shape, "mla"))
    gated = bool(flag(shape, "gated_mlp"))
    tied = flag(shape, "tied_embeddings")
    try:
        return Transformer(
            name=str(shape.get("name") or "model"),
            layers=whole(shape, "layers"),
            d_model=hidden,
            d_ff=whole(shape, "ffn_hidden", 4 * hidden),
            heads=heads,
            kv_heads=heads if latent else whole(shape, "kv_heads", heads),
            head_dim=whole(shape, "head_dim", max(1, hidden // heads)),
            vocab=whole(shape, "vocab"),
            vocab_multiple=int(128 * number(run, "tp", 1)),
            gated=gated,
            tied=not gated if tied is None else bool(tied),
            norm="rmsnorm" if gated else "layernorm",
            positions=0 if gated else 1,
            rope=gated,
            mlp_bias=not gated,
            latent=latent,
            window=Window(128, full_every=2) if "128-token" in _window(shape) else None,
            experts=_experts(shape),
            mtp=whole(shape, "mtp_layers", 0, least=0),
        )
    except RunError:
        raise
    except ValueError as error:
        raise RunError(f"model: {error}") from None


def _window(shape: Mapping[str, Any]) -> str:
    return str(shape.get("attn_window") or "")


def _latent(shape: Mapping[str, Any]) -> Latent | None:
    if not shape:
        return None
    return Latent(
        query_rank=whole(shape, "q_lora_rank", 0, least=0),
        kv_rank=whole(shape, "kv_lora_rank"),
        nope_dim=whole(shape, "qk_nope_head_dim"),
        rope_dim=whole(shape, "qk_rope_head_dim"),
        value_dim=whole(shape, "v_head_dim"),
    )


def _experts(shape: Mapping[str, Any]) -> Experts | None:
    if not shape.get("experts"):
        return None
    one = whole(shape, "moe_ffn_hidden", whole(shape, "ffn_hidden"))
    layers, dense = whole(shape, "layers"), whole(shape, "dense_layers", 0, least=0)
    mixed = whole(shape, "moe_layers", max(1, layers - dense))
    every = max(1, round((layers - dense) / mixed)) if dense + mixed < layers else 1
    if dense * 2 == layers:
        dense, every = 0, 2
    return Experts(
        count=whole(shape, "experts"),
        per_token=whole(shape, "top_k"),
        d_ff=one,
        shared_d_ff=one * whole(shape, "shared_experts", 0, least=0),
        first=dense,
        every=every,
    )
