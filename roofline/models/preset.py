"""What a published model is listed with."""

from __future__ import annotations

from dataclasses import dataclass

from roofline.counting import Shape
from roofline.model import Transformer


@dataclass(frozen=True, slots=True)
class Preset:
    """A published model."""

    title: str
    model: Transformer
    parameters: float  # as published, without MTP
    active: float  # those that one token meets, as published
    source: str
    off_by: float = 0.01  # closed form of ``shape`` against published, relative, at most
    notes: str = ""

    @property
    def name(self) -> str:
        """What it is chosen by."""
        return self.model.name

    @property
    def shape(self) -> Shape:
        """The numbers of the closed forms."""
        return self.model.shape


def config(repository: str) -> str:
    """The source of a row that follows a model's configuration file."""
    return f"config.json, https://huggingface.co/{repository}"
