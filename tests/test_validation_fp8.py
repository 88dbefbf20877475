"""fp8 matmuls: planned where they can be, legal shapes, right against fp32, predicted at fp8's rate."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import hardware_profiles as hp
from tests.measured import lines, truth, written
from tests.measured import setting as on_gpus
from validation import launch
from validation.__main__ import app
from validation.calibrate import calibrate
from validation.case import Case, Kernel, Setting, Work
from validation.context import Context, Options
from validation.evidence import gather
from validation.kernels import fp8, kernels, matmul
from validation.profile import Profile, load, on_cpu
from validation.report import report
from validation.results import read

SETTING = Setting("full", 1, "cpu", 1e9, (), ("fp8",))
SMALL = {
    "square": (64, 64, 64, 1),
    "skinny": (5, 32, 48, 1),
    "grouped": (40, 16, 32, 4),
}


def alone() -> Context:
    return Context(
        0, 1, 0, torch.device("cpu"), load("local", "none", 1, "cpu"), SETTING, 1.0, None
    )


def case_of(form: str) -> Case:
    m, n, k, batch = SMALL[form]
    shape = {"form": form, "m": m, "n": n, "k": k, "batch": batch, "dtype": "fp8"}
    return Case("matmul", shape)


def few(setting: Setting) -> Iterable[Case]:
    """As a kernel of the suite has cases, but small ones alone."""
    return [case_of(form) for form in SMALL if "fp8" in setting.dtypes] + [
        Case("matmul", dict(case_of("square").parameters) | {"dtype": "fp32"})
    ]


FEW: Kernel = replace(matmul.KERNELS[0], cases=few)


def prepared(form: str) -> Work:
    return matmul.prepare(case_of(form), alone())


@pytest.mark.parametrize("form", SMALL)
def test_products_are_those_of_the_same_operands_in_fp32(form: str) -> None:
    """C = (A scale_a) (B scale_b) by plain fp32 arithmetic, within the rounding of bf16, 2^-8."""
    case = case_of(form)
    a, b, scales = matmul._operands(case, alone())
    assert a.dtype == b.dtype == torch.float8_e4m3fn
    assert a.stride(-1) == 1
    assert b.stride(-2) == 1
    assert a.clone().stride() == a.stride()
    assert b.clone().stride() == b.stride()
    wide_a, wide_b = a.float() * scales[0], b.float() * scales[1]
    if form == "grouped":
        rows = torch.split(wide_a, matmul._rows(case["m"], case["batch"]))
        wanted = torch.cat([part @ wide_b[i] for i, part in enumerate(rows)])
    else:
        wanted = wide_a @ wide_b
    work = prepared(form)
    assert work.math is not None
    for call in range(3):
        got = work.math(call)
        assert isinstance(got, torch.Tensor)
        assert got.dtype == torch.bfloat16
        if call == 0:
            torch.testing.assert_close(got.float(), wanted, rtol=2**-8, atol=1e-4)
    assert work.check is not None
    assert work.check().passed


def test_quantised_numbers_are_near_what_they_were() -> None:
    """e4m3 has 3 bits behind the point: half a step is 2^-4, below its normal numbers 2^-10."""
    torch.manual_seed(0)
    wide = 30 * torch.randn(64, 64)
    eight, scale = fp8.quantised(wide.bfloat16())
    back = eight.float() * scale
    assert back.isfinite().all()
    assert 400 < float(eight.float().abs().max()) <= fp8.LARGEST
    near = 2**-4 * wide.abs() + 2**-10 * scale + 2**-8 * wide.abs()
    assert ((back - wide).abs() <= near).all()


Wrong = Callable[[torch.Tensor, torch.Tensor], Callable[..., torch.Tensor]]


def _unscaled(_a: torch.Tensor, scale_b: torch.Tensor) -> Callable[..., torch.Tensor]:
    return PRODUCT(torch.ones(()), scale_b)


def _half(scale_a: torch.Tensor, scale_b: torch.Tensor) -> Callable[..., torch.Tensor]:
    """Without the second half of K."""
    rest = PRODUCT(scale_a, scale_b)

    def multiplied(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return rest(a[:, : a.shape[1] // 2].contiguous(), b[: b.shape[0] // 2])

    return multiplied


def _nan(scale_a: torch.Tensor, scale_b: torch.Tensor) -> Callable[..., torch.Tensor]:
    def multiplied(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        found = PRODUCT(scale_a, scale_b)(a, b)
        found[-1, -1] = float("nan")
        return found

    return multiplied


PRODUCT = fp8.product


@pytest.mark.parametrize("wrong", [_unscaled, _half, _nan])
@pytest.mark.parametrize("form", ["square", "grouped"])
def test_a_wrong_product_is_found(wrong: Wrong, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fp8, "product", wrong)
    work = prepared(form)
    assert work.check is not None
    assert not work.check().passed


def test_shapes_are_legal_and_in_both_suites() -> None:
    """Two matrices, whose K and N are multiples of 16; the other data types keep every shape."""
    for suite in ("quick", "full"):
        cases = list(matmul.cases(on_gpus(suite, dtypes=("bf16", "fp8"))))
        mine = [case for case in cases if case["dtype"] == "fp8"]
        assert {"square", "skinny", "grouped"} <= {case["form"] for case in mine}
        assert not {"batched", "ragged"} & {case["form"] for case in mine}
        assert not any(case["n"] % 16 or case["k"] % 16 for case in mine)
        assert {"batched", "ragged"} <= {c["form"] for c in cases if c["dtype"] == "bf16"}


def test_predictions_are_at_the_rate_of_fp8() -> None:
    """An H100's 1979 TFLOP/s, one byte an operand and two a result; calibrated, fp8's own row."""
    shape = {"form": "square", "m": 8192, "n": 8192, "k": 8192, "batch": 1, "dtype": "fp8"}
    skinny = shape | {"form": "skinny", "m": 16}
    node = hp.cluster("dgx-h100-superpod").resized(8)
    (large,), (small,) = (
        list(matmul.predict(Case("matmul", told), Profile(node))) for told in (shape, skinny)
    )
    assert large.flops == 2 * 8192**3
    assert large.seconds == pytest.approx(2 * 8192**3 / 1978.9e12, rel=1e-3)
    assert small.nbytes == 16 * 8192 + 8192 * 8192 + 2 * 16 * 8192
    assert small.seconds == pytest.approx(small.nbytes / 3.35e12, rel=1e-3)
    slow = truth(matmuls__fp8={"efficiency": 0.1})
    usual = truth()
    of = [
        next(iter(matmul.predict(Case("matmul", shape), Profile(node, m)))) for m in (slow, usual)
    ]
    assert of[0].seconds > 5 * of[1].seconds


@pytest.mark.parametrize(("has", "said"), [((8, 0), "compute capability 8.0"), ((7, 5), "7.5")])
def test_a_gpu_without_it_says_so(
    has: tuple[int, int], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: has)
    monkeypatch.setattr(torch.version, "hip", None, raising=False)
    assert said in fp8.lacking(torch.device("cuda", 0))


def _refuses(*_: object, **__: object) -> Any:
    raise RuntimeError("no kernel for this CPU\nand more")


def test_a_torch_without_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither an old one nor one that refuses ends the run."""
    here = torch.device("cpu")
    assert fp8.lacking(here) == ""
    monkeypatch.setattr(torch, "_scaled_mm", _refuses)
    assert fp8.lacking(here).endswith("cannot: no kernel for this CPU")
    monkeypatch.delattr(torch, "_scaled_mm")
    assert "cannot" in fp8.lacking(here)


def test_a_result_with_its_maximum_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch 2.4 gave it; scales by name, in whatever order they are declared."""
    ours = torch._scaled_mm

    def old(a: Any, b: Any, *, out_dtype: Any, scale_a: Any, scale_b: Any, **_: Any) -> Any:
        found = ours(a, b, scale_a=scale_a, scale_b=scale_b, out_dtype=out_dtype)
        return found, found.max()

    monkeypatch.setattr(torch, "_scaled_mm", old)
    assert fp8.lacking(torch.device("cpu")) == ""
    work = prepared("square")
    assert work.check is not None
    assert work.check().passed


OPTIONS = Options(suite="full", timeout=20, budget=0.5)


def test_it_is_measured_checked_and_resumed(tmp_path: Path) -> None:
    tally = launch.local(OPTIONS, tmp_path, 1, [FEW])
    assert tally.passed
    assert tally.measured == 4
    found = read(tmp_path)
    eight = [m for m in found.measured if m.parameters["dtype"] == "fp8"]
    assert {m.parameters["form"] for m in eight} == set(SMALL)
    assert all(m.trusted and (m.predicted or 0) > 0 for m in eight)
    (header,) = found.headers.values()
    assert header.left_out == {}
    again = launch.local(replace(OPTIONS, resume=True), tmp_path, 1, [FEW])
    assert (again.measured, again.skipped) == (0, 4)
    assert {row.parameters["dtype"] for row in report(tmp_path).rows} == {"fp32", "fp8"}


def test_where_it_is_not_the_run_and_its_report_say_so(tmp_path: Path) -> None:
    """An A100 has no fp8: in the header of the run, and in the report."""
    options = replace(OPTIONS, cluster="dgx-a100-superpod", overlay="none", device="cpu")
    launch.local(options, tmp_path, 1, [FEW])
    assert {m.parameters["dtype"] for m in read(tmp_path).measured} == {"fp32"}
    told = CliRunner().invoke(app, ["report", str(tmp_path)]).output
    assert "Not measured here" in told
    assert "matmul fp8: a100-sxm-80gb has no rate of it" in told


def test_it_is_told_of_where_matmuls_are_asked_for() -> None:
    """Who measures memory alone is not told what matmuls lack."""
    lacks = replace(SETTING, lacking={"fp8": "no rate"})
    assert launch.dtypes_left_out([FEW], lacks) == {"matmul fp8": "no rate"}
    assert launch.dtypes_left_out([kernels()["memory"]], lacks) == {}


def test_a_calibration_has_its_rate_apart(tmp_path: Path) -> None:
    """bf16 at 55 % and fp8 at 35 % of their peaks come back, each from its own cases."""
    real = truth(matmuls__bf16={"efficiency": 0.55}, matmuls__fp8={"efficiency": 0.35})
    found = lines(real, names=("matmul",), noise=0.01, dtypes=("bf16", "fp8"))
    mine = calibrate(gather(written(tmp_path, found)), "mine")
    assert {"matmul bf16", "matmul fp8"} <= set(mine.fitted)
    assert mine.overlay.matmul["bf16"] == pytest.approx(0.55, rel=0.05)
    assert mine.overlay.matmul["fp8"] == pytest.approx(0.35, rel=0.05)
    rates = {r.variant for r in report(written(tmp_path / "again", found)).rates}
    assert rates == {"bf16", "fp8"}


def test_a_cpu_is_no_faster_in_eight_bits() -> None:
    """It widens them: its profile says so, and why."""
    chip = on_cpu(2).accelerator
    assert chip.peak_flops["fp8"] == chip.peak_flops["fp32"]
    assert "fp32" in (chip.reason or "")
