"""A whole decoder: every size that its parameters, FLOPs and memory follow from.

    x = embedding(token) (+ learned position)
    layer:  x += attention(norm(x));  x += mlp(norm(x))  or  x += experts(norm(x))
    logits = head(norm(x))

``counting.Shape`` holds the seven numbers that one needs on paper; this is what a checkpoint holds.
Attention is multi-head, grouped (K < N) or latent; all of it or part of it slides in a window.
What a matrix costs stands in ``models.parts``, what a token costs in ``model_flops``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, TypeAlias

from roofline.counting import Shape
from roofline.names import choose
from roofline.units import Count
from roofline.workload import Workload

LARGEST = 10**7  # of any size: more is a typing mistake
Sizes: TypeAlias = tuple[int, int, int, int, int, int, int]  # L, D, F, N, K, H, V
NORMS = {"rmsnorm": 1, "layernorm": 2, "layernorm without bias": 1}  # vectors of a norm


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention: keys and values come from one narrow vector per token."""

    query_rank: int  # 0: queries straight from the residual stream
    kv_rank: int
    nope_dim: int  # of a head's query and key, without position
    rope_dim: int  # and with: one key of it for all heads
    value_dim: int

    def __post_init__(self) -> None:
        _whole(self, 0, "query_rank")
        _whole(self, 1, "kv_rank", "nope_dim", "rope_dim", "value_dim")


@dataclass(frozen=True, slots=True)
class Window:
    """Local attention: a query sees at most ``size`` keys."""

    size: int
    full_every: int = 0  # every n-th layer sees all keys; 0: none does
    chunked: bool = False  # True: fixed chunks of the sequence, not a window that slides

    def __post_init__(self) -> None:
        _whole(self, 1, "size")
        _whole(self, 0, "full_every")
        _flags(self, "chunked")


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts in the place of the MLP."""

    count: int  # E
    per_token: int  # k
    d_ff: int  # F of one expert
    shared_d_ff: int = 0  # F of all shared experts together
    first: int = 0  # so many layers at the bottom have a dense MLP
    every: int = 1  # of the others, every n-th has experts
    router_bias: bool = False
    shared_gate: bool = False  # a learned scalar on the shared experts
    capacity_factor: float | None = None  # None: dropless

    def __post_init__(self) -> None:
        _whole(self, 1, "count", "per_token", "d_ff", "every")
        _whole(self, 0, "shared_d_ff", "first")
        _flags(self, "router_bias", "shared_gate")
        if self.per_token > self.count:
            limit = f"1 to the {self.count} experts; the nearest is {self.count}"
            raise _refused("per_token", self.per_token, limit)
        factor = self.capacity_factor
        number = isinstance(factor, int | float) and not isinstance(factor, bool)
        if factor is not None and not (number and 0 < factor < LARGEST):
            raise _refused("capacity_factor", factor, "None (dropless) or a number above 0")

    @property
    def slots_per_token(self) -> float:
        """Expert rows per token that are computed: k, times the capacity factor where padded."""
        return self.per_token * (1.0 if self.capacity_factor is None else self.capacity_factor)


@dataclass(frozen=True, slots=True)
class Transformer:
    """Sizes of a decoder.

    Raises:
        ValueError: a size that no such model has, naming the field, what is allowed and nearest.

    >>> Transformer("mine", 32, 4096, 14336, 32, 8, 128, 128256).kv_width
    1024
    """

    name: str
    layers: int  # L
    d_model: int  # D
    d_ff: int  # F, of a layer without experts; 0 where there is none
    heads: int  # N, of queries
    kv_heads: int  # K, of keys and values
    head_dim: int  # H; where attention is latent, its own sizes count
    vocab: int  # V
    gated: bool = True  # a third matrix in the MLP, as in SwiGLU
    tied: bool = False  # one matrix for embedding and head
    vocab_multiple: int = 1  # the vocabulary is padded to a multiple of this
    positions: int = 0  # learned, a vector each
    rope: bool = True  # queries and keys are turned by their position
    qkv_bias: bool = False
    output_bias: bool = False  # of the attention
    mlp_bias: bool = False  # of MLP and experts
    norm: str = "rmsnorm"
    layer_norms: int = 2  # norms of width D in a layer
    qk_norm: bool = False  # a norm of width H for queries and one for keys
    embedding_norm: bool = False
    sinks: bool = False  # a learned logit for every head
    latent: Latent | None = None
    window: Window | None = None
    experts: Experts | None = None
    mtp: int = 0  # modules that predict a further token: a layer, a projection, the head again

    def __post_init__(self) -> None:
        _whole(self, 1, "layers", "d_model", "heads", "kv_heads", "head_dim", "vocab")
        _whole(self, 1, "vocab_multiple", "layer_norms")
        _whole(self, 0, "positions", "mtp")
        _flags(self, "gated", "tied", "rope", "qkv_bias", "output_bias", "mlp_bias")
        _flags(self, "qk_norm", "embedding_norm", "sinks")
        choose("norm", str(self.norm), NORMS)
        self._check_together()

    def _check_together(self) -> None:
        if self.heads % self.kv_heads:
            fits = _divisor(self.heads, self.kv_heads)
            limit = f"divisors of the {self.heads} heads; the nearest is {fits}"
            raise _refused("kv_heads", self.kv_heads, limit)
        if self.latent and self.kv_heads != self.heads:
            limit = f"as many as heads, {self.heads}, where attention is latent"
            raise _refused("kv_heads", self.kv_heads, limit)
        if self.experts and not self.moe_layers:
            limit = f"what leaves one of the {self.layers} layers with experts"
            place = (self.experts.first, self.experts.every)
            raise _refused("experts.first, experts.every", place, limit)
        _whole(self, 1 if self.dense_layers else 0, "d_ff")

    @property
    def padded_vocab(self) -> int:
        """V rounded up: rows of the embedding and columns of the head."""
        return -(-self.vocab // self.vocab_multiple) * self.vocab_multiple

    @property
    def matrices(self) -> int:
        """3 in a gated MLP, else 2."""
        return 3 if self.gated else 2

    @property
    def query_dim(self) -> int:
        """What one head's query is wide, and its key."""
        return self.latent.nope_dim + self.latent.rope_dim if self.latent else self.head_dim

    @property
    def value_dim(self) -> int:
        """What one head's value is wide."""
        return self.latent.value_dim if self.latent else self.head_dim

    @property
    def kv_width(self) -> int:
        """K H: what all keys of a token are wide. Plain attention only."""
        return self.kv_heads * self.head_dim

    @property
    def moe_layers(self) -> int:
        """Layers with experts."""
        return (self.layers - self.experts.first) // self.experts.every if self.experts else 0

    @property
    def dense_layers(self) -> int:
        """Layers with an MLP."""
        return self.layers - self.moe_layers

    @property
    def windowed_layers(self) -> int:
        """Layers with local attention."""
        if self.window is None:
            return 0
        every = self.window.full_every
        return self.layers - self.layers // every if every else self.layers

    @property
    def has_experts(self) -> tuple[bool, ...]:
        """Per layer from the bottom: whether it has experts."""
        rule = self.experts
        return tuple(
            rule is not None and i >= rule.first and (i - rule.first + 1) % rule.every == 0
            for i in range(self.layers)
        )

    @property
    def has_window(self) -> tuple[bool, ...]:
        """Per layer from the bottom: whether its attention is local."""
        rule = self.window
        return tuple(
            rule is not None and not (rule.full_every and (i + 1) % rule.full_every == 0)
            for i in range(self.layers)
        )

    @property
    def shape(self) -> Shape:
        """The numbers of the closed forms: latent attention counts as plain heads of H."""
        norms = self.layer_norms * self.layers + 1
        sizes = (self.heads, self.kv_heads, self.head_dim, self.vocab, self.matrices)
        dense = Shape(self.layers, self.d_model, self.d_ff, *sizes, tied=self.tied, norms=norms)
        mixture = self.experts
        if mixture is None:
            return dense
        return replace(
            dense,
            d_ff=mixture.d_ff,
            experts=mixture.count,
            experts_per_token=mixture.per_token,
            shared_experts=mixture.shared_d_ff / mixture.d_ff,
            dense_layers=self.dense_layers,
            dense_d_ff=self.d_ff,
        )

    def workload(self, tokens: Count) -> Workload:
        """The main MLP, or the experts, and a batch of ``tokens``: what the closed forms compare.

        Every layer of a mixture of experts counts as one with experts; shared ones are left out.
        """
        shape = self.shape
        return Workload(
            tokens,
            shape.d_model,
            shape.d_ff,
            shape.matrices,
            experts=shape.experts,
            experts_per_token=shape.experts_per_token,
            layers=shape.layers,
        )


def _whole(row: Any, least: int, *names: str) -> None:
    """Fields as Python's own integers: numpy's wrap."""
    for name in names:
        value = getattr(row, name)
        kind = isinstance(value, Integral) and not isinstance(value, bool)
        if not kind or not least <= value <= LARGEST:
            limit = f"whole numbers from {least} to {LARGEST}"
            raise _refused(name, value, limit + _whole_near(value, least))
        object.__setattr__(row, name, int(value))


def _whole_near(value: Any, least: int) -> str:
    known = isinstance(value, int | float) and not isinstance(value, bool) and value == value
    return f"; the nearest is {round(min(max(value, least), LARGEST))}" if known else ""


def _flags(row: Any, *names: str) -> None:
    for name in names:
        if not isinstance(getattr(row, name), bool):
            raise _refused(name, getattr(row, name), "True or False")


def _divisor(number: int, near: int) -> int:
    return min((n for n in range(1, number + 1) if number % n == 0), key=lambda n: abs(n - near))


def _refused(field: str, value: Any, limit: str) -> ValueError:
    return ValueError(f"{field}: {repr(value)[:80]} is refused; allowed: {limit}")
