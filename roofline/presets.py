"""Published models by name, each with the place where its numbers stand.

A preset is data: ``model`` for the whole step, ``shape`` for counting, ``workload`` for the
strategies. The parameters that ``roofline.counting`` finds in its shape are the published ones to
within ``off_by``; ``notes`` says what the closed form cannot know.
"""

from __future__ import annotations

from roofline.models.preset import Preset
from roofline.models.presets_dense import DENSE
from roofline.models.presets_moe import MIXTURES
from roofline.names import choose
from roofline.workload import Workload

_PRESETS: dict[str, Preset] = {row.name: row for row in (*DENSE, *MIXTURES)}
# Other names of the same sizes.
_ALIASES = {f"llama-3.1-{size}": f"llama-3-{size}" for size in ("8b", "70b", "405b")}


def presets() -> list[str]:
    """Names of all presets."""
    return list(_PRESETS)


def preset(name: str) -> Preset:
    """The preset of this name, or of another that its publisher has for the same sizes.

    Raises:
        ValueError: when there is none, naming the nearest.

    >>> preset("llama-3-70b").model.d_ff
    28672
    """
    return choose("model", _ALIASES.get(name, name), _PRESETS)


def workload(name: str, tokens: float) -> Workload:
    """The MLP block of a preset and a batch of ``tokens``.

    Every layer of a mixture of experts counts as one with experts; shared experts are left out.

    Raises:
        ValueError: when there is no such preset, naming the nearest.
    """
    return preset(name).model.workload(tokens)
