"""A training job as a person reads it, and what is said of its rates."""

from dataclasses import replace

import numpy as np
import pytest

import hardware_profiles as hp
from hardware_profiles.calibration import for_accelerator
from roofline.layout import SCHEDULE, Layout
from roofline.outcome import outcome
from roofline.planner import plan
from roofline.presets import preset
from roofline.training import Training, basis, training
from roofline.units import show

H100, L40S = hp.cluster("dgx-h100-superpod"), hp.cluster("l40s-box")
LLAMA = preset("llama-3-8b").model
LAYOUT = Layout(64, tp=2, pp=2, batch=64, sequence=4096)
FEW = replace(LAYOUT, gpus=8)


def job(layout: Layout = LAYOUT, **more) -> Training:
    return training(LLAMA, layout, more.pop("cluster", H100), **more)


class TestText:
    def test_one_layout(self) -> None:
        found = job()
        brought = outcome(found)
        said = repr(found)
        assert brought.wide is not None
        assert len(said.splitlines()) == 5
        for part in (
            "llama-3-8b, bf16, on 64 × NVIDIA H100 SXM5 80 GB",
            "TP 2 · PP 2 · DP 16",
            f"{show(float(brought.seconds), 's')} a step",
            f"{show(float(brought.wide.low), 's')} to {show(float(brought.wide.high), 's')}",
            f"MFU {float(brought.mfu):.1%}",
            f"{show(float(found.memory.total), 'B')} of 80 GB",
            brought.sentence(),
        ):
            assert part in said

    def test_html_says_the_same(self) -> None:
        found = job()
        assert all(line in found._repr_html_() for line in repr(found).splitlines())

    def test_columns(self) -> None:
        table = job(replace(LAYOUT, tp=np.array([1.0, 2.0])))
        seconds = [show(float(each), "s") for each in sorted(table.time.seconds)]
        assert f"2 layouts: {seconds[0]} to {seconds[1]} a step" in repr(table)

    def test_what_does_not_fit(self) -> None:
        large = training(preset("llama-3-70b").model, replace(LAYOUT, zero=0), H100)
        assert "does not fit" in repr(large)
        assert "does not fit" not in repr(job())

    @pytest.mark.parametrize("name", SCHEDULE)
    def test_every_schedule_has_a_name(self, name: str) -> None:
        assert repr(job(replace(LAYOUT, schedule=SCHEDULE[name])))

    def test_adapters(self) -> None:
        assert "LoRA of rank 8" in repr(job(replace(LAYOUT, lora_rank=8)))


class TestBasis:
    def test_calibrated(self) -> None:
        error = job().error
        assert error is not None
        assert f"Of {error.runs} published runs" in job().basis

    def test_at_peak_where_there_is_a_calibration(self) -> None:
        assert job(rates="peak").basis.startswith("Datasheet rates: ")

    @pytest.mark.parametrize("rates", ["peak", "achievable"])
    def test_nobody_has_calibrated_it(self, rates: str) -> None:
        """An L40S has rates of kernels and none of whole steps; both ways its peaks count."""
        said = job(FEW, cluster=L40S, rates=rates).basis
        assert "Nobody has calibrated whole steps of NVIDIA L40S 48 GB" in said
        assert said in repr(job(FEW, cluster=L40S, rates=rates))

    def test_a_calibration_that_was_held_against_nothing(self) -> None:
        overlay = for_accelerator("h100-sxm")
        assert overlay is not None
        assert overlay.step is not None
        unheld = overlay.step.model_copy(update={"accuracy": None})
        mine = overlay.model_copy(update={"step": unheld})
        assert "Nobody has held such predictions" in basis(H100, mine)
        assert job(rates=mine).basis == basis(H100, mine)

    def test_plans_say_it_too(self) -> None:
        options = {"tokens": 64 * 4096, "sequence": 4096, "tp": 2, "cp": 1}
        found = plan(LLAMA, L40S, **options)
        assert "Nobody has calibrated whole steps" in repr(found)
        assert "Nobody has calibrated whole steps" in found._repr_html_()
        assert "calibrated" not in repr(plan(LLAMA, H100, 8, **options))
