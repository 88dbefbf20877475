"""Fields of a configuration that somebody else wrote: there and of the right type, or refused."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

Result = TypeVar("Result")

# A size of ours, and the keys that state it in the files of one family or another.
KEYS: dict[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers"),
    "d_model": ("hidden_size", "n_embd", "n_embed", "d_model"),
    "d_ff": ("moe_intermediate_size", "intermediate_size", "intermediate_size_mlp", "n_inner"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "kv_heads": ("num_key_value_heads", "kv_n_heads"),
    "head_dim": ("head_dim",),
    "vocab": ("vocab_size",),
    "positions": ("n_positions", "max_seq_len"),
    "mtp": ("num_nextn_predict_layers",),
    "query_rank": ("q_lora_rank",),
    "kv_rank": ("kv_lora_rank",),
    "nope_dim": ("qk_nope_head_dim",),
    "rope_dim": ("qk_rope_head_dim",),
    "value_dim": ("v_head_dim",),
    "size": ("sliding_window", "attention_chunk_size"),
    "full_every": ("sliding_window_pattern",),
    "count": ("num_experts", "num_local_experts", "n_routed_experts"),
    "per_token": ("num_experts_per_tok", "experts_per_token"),
    "shared_d_ff": ("shared_expert_intermediate_size", "n_shared_experts"),
    "first": ("first_k_dense_replace", "mlp_only_layers"),
    "every": ("decoder_sparse_step", "interleave_moe_layer_step"),
}


@dataclass(frozen=True, slots=True)
class Fields:
    """A mapping and where it came from; ``null`` counts as not stated."""

    values: Mapping[str, Any]
    where: str = ""  # of messages: "config.json: ", "config.json: text_config."

    def named(self, field: str) -> str:
        """The field as messages call it."""
        return f"{self.where}{field}"

    def has(self, field: str) -> bool:
        """Whether the field is stated."""
        return self.values.get(field) is not None

    def first(self, *names: str) -> str:
        """The first of several names that is stated, or the first of all."""
        return next(filter(self.has, names), names[0])

    def whole(self, field: str, default: int | None = None, *, least: int = 1) -> int:
        """A whole number.

        Raises:
            ValueError: when it is missing and has no default, is no whole number or below
                ``least``.

        >>> Fields({"layers": "two"}, "mine.json: ").whole("layers")
        Traceback (most recent call last):
        ValueError: mine.json: layers: 'two' is refused; allowed: a whole number from 1
        """
        value = self._value(field, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self.refused(field, value, f"a whole number from {least}")
        return value

    def flag(self, field: str, default: bool) -> bool:
        """True or false.

        Raises:
            ValueError: when it is neither.
        """
        value = self._value(field, default)
        if not isinstance(value, bool):
            raise self.refused(field, value, "true or false")
        return value

    def text(self, field: str, default: str | None = None) -> str:
        """A text.

        Raises:
            ValueError: when it is missing and has no default, or is no text.
        """
        value = self._value(field, default)
        if not isinstance(value, str):
            raise self.refused(field, value, "a text")
        return value

    def items(self, field: str) -> list[Any]:
        """A list; empty where none is stated.

        Raises:
            ValueError: when it is no list.
        """
        value = self._value(field, [])
        if not isinstance(value, list | tuple):
            raise self.refused(field, value, "a list")
        return list(value)

    def section(self, field: str) -> Fields:
        """A mapping inside this one.

        Raises:
            ValueError: when it is missing or no mapping.
        """
        value = self._value(field, None)
        if not isinstance(value, Mapping):
            raise self.refused(field, value, "a mapping of fields to values")
        return Fields(value, f"{self.named(field)}.")

    def refused(self, field: str, value: Any, allowed: str) -> ValueError:
        """The error that says what was wrong with a field."""
        return ValueError(
            f"{self.named(field)}: {reprlib.repr(value)} is refused; allowed: {allowed}"
        )

    def explain(self, make: Callable[[], Result]) -> Result:
        """What ``make`` returns; its errors say where the numbers came from, by the file's keys."""
        try:
            return make()
        except ValueError as error:
            text = str(error)
            known = text if text.startswith(self.where) else f"{self.where}{self._theirs(text)}"
            raise ValueError(known) from None

    def _theirs(self, text: str) -> str:
        """A refusal of ours that begins with the keys of this file, ours in brackets."""
        ours, colon, reason = text.partition(": ")
        fields = [field.rpartition(".")[2] for field in ours.split(", ")]
        keys = [key for field in fields for key in KEYS.get(field, ()) if self.has(key)]
        exact = [key for key in keys if reason.startswith(f"{self.values[key]!r} is refused")]
        spelt = ", ".join(exact or keys)
        return text if spelt in ("", ours) else f"{spelt} ({ours}){colon}{reason}"

    def _value(self, field: str, default: Any) -> Any:
        value = self.values.get(field)
        if value is not None:
            return value
        if default is None:
            raise ValueError(
                f"{self.named(field)}: missing, and there is no default{self._near(field)}"
            )
        return default

    def _near(self, field: str) -> str:
        from hardware_profiles.errors import nearest

        known = [str(name) for name, value in self.values.items() if value is not None]
        near = nearest(field, known) if known else ""
        return f"; {near}" if near.startswith("the nearest") else ""
