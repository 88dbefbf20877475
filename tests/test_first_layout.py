"""A layout to begin with: it can be, it fits where anything does, and it splits no more than it must."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

import hardware_profiles as hp
from roofline.constraints import misfits
from roofline.dims import Dims
from roofline.first_layout import FULL, First, first
from roofline.footprint import peak
from roofline.presets import preset, presets

H100 = hp.cluster("dgx-h100-superpod")


def of(name: str, gpus: int = 1024, batch: int = 256, sequence: int = 4096) -> First:
    return first(preset(name).model, H100.resized(gpus), gpus, batch, sequence)


@pytest.mark.parametrize("name", presets())
def test_it_can_be_and_fits(name: str) -> None:
    found = of(name)
    dims = Dims.of(preset(name).model)
    assert not any(np.any(broken) for broken in misfits(dims, found.layout, H100).values())
    assert found.fits
    assert float(peak(dims, found.layout).total) <= FULL * H100.hbm_bytes
    assert found.layout.tp <= H100.tiers[0].degree


def test_a_small_model_is_not_split() -> None:
    layout = of("gpt-3-125m", gpus=64).layout
    assert (layout.tp, layout.cp, layout.pp, layout.recompute) == (1, 1, 1, 0)


@pytest.mark.parametrize("name", ["llama-3-70b", "llama-3-405b", "gpt-3-175b"])
def test_less_splitting_would_not_fit(name: str) -> None:
    """One by one: no TP in a node and no PP with a smaller product works and fits."""
    found = of(name)
    dims = Dims.of(preset(name).model)
    for tp in (1, 2, 4, 8):
        for pp in (1, 2, 4, 8, 16, 32):
            less = replace(found.layout, tp=tp, pp=pp, sequence_parallel=float(tp > 1))
            if tp * pp >= found.layout.tp * found.layout.pp or less.microbatches < pp:
                continue
            broken = any(np.any(each) for each in misfits(dims, less, H100).values())
            assert broken or float(peak(dims, less).total) > FULL * H100.hbm_bytes, (tp, pp)


def test_what_does_not_fit_anywhere_is_told() -> None:
    found = of("llama-3-405b", gpus=8, batch=8)
    assert not found.fits


def test_a_batch_that_cannot_be_shared_out_is_refused() -> None:
    with pytest.raises(ValueError, match="batch"):
        of("llama-3-8b", gpus=64, batch=7, sequence=4095)


@settings(max_examples=30)
@given(
    st.sampled_from(presets()), st.sampled_from([8, 64, 512]), st.sampled_from([8, 64, 1024]),
    st.sampled_from([1024, 8192, 131072]),
)  # fmt: skip
def test_whatever_it_gives_can_be(name: str, gpus: int, batch: int, sequence: int) -> None:
    try:
        found = of(name, gpus, batch, sequence)
    except ValueError:
        reject()
    dims = Dims.of(preset(name).model)
    assert not any(np.any(broken) for broken in misfits(dims, found.layout, H100).values())
