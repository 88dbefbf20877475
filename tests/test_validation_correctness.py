"""Checks of kernels see what is wrong wherever it is, and NaN most of all."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from validation.case import Case, Correctness, Setting, worst
from validation.context import Context
from validation.kernels import attention, expert_parallel, kernels, matmul, mesh
from validation.kernels import mlp as mlps
from validation.kernels import recompute as recomputing
from validation.kernels.data import ADAMW, sizes, spots, stepped
from validation.kernels.expert_layer import Layer
from validation.kernels.ring import Ring
from validation.kernels.stage import Stage
from validation.profile import load
from validation.results import Value

NAN = float("nan")
SETTING = Setting("quick", 1, "cpu", 1e8, (), ("fp32",))


def alone() -> Context:
    """One rank, that talks to nobody."""
    return Context(
        0, 1, 0, torch.device("cpu"), load("local", "none", 1, "cpu"), SETTING, 1.0, None
    )


@pytest.mark.parametrize("errors", [(NAN, 1.0), (1.0, NAN), (float("inf"), NAN, 0.0)])
def test_nan_is_worst_wherever_it_stands(errors: tuple[float, ...]) -> None:
    """Every comparison with NaN is false (IEEE 754), so ``max`` depends on the order."""
    assert not worst(Correctness(error, 10.0) for error in errors).passed


def test_without_nan_the_largest_error_is_worst() -> None:
    assert worst(Correctness(error, 1.0) for error in (0.1, 0.7, 0.3)).max_error == 0.7
    with pytest.raises(ValueError, match="empty"):
        worst([])


SPOILT: dict[str, tuple[type, dict[str, Value], int]] = {  # class, parameters, results of its run
    "context parallel": (Ring, {"heads": 2, "tokens": 8, "head_dim": 4, "backward": True}, 3),
    "expert parallel": (
        Layer,
        {"tokens": 8, "d_model": 4, "d_ff": 4, "experts": 2, "k": 1, "phase": "step"},
        7,
    ),
    "recompute": (
        recomputing.Stack,
        {"tokens": 8, "d_model": 4, "d_ff": 8, "layers": 2, "policy": "keep"},
        4,
    ),
}


def spoil(run: Callable[..., Any], place: int) -> Callable[..., Any]:
    """``run`` with NaN in all of its result number ``place``."""

    def spoilt(*given: Any) -> Any:
        flat = [tensor.detach().clone() for tensor in run(*given)]
        flat[place].fill_(NAN)
        return tuple(flat)

    return spoilt


@pytest.mark.parametrize(
    ("name", "place"), [(name, i) for name, (_, _, n) in SPOILT.items() for i in range(n)]
)
def test_nan_in_any_result_is_found(name: str, place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The output or one of the gradients; unspoilt the same case is right."""
    kind, told, _ = SPOILT[name]
    case = Case(name, told | {"dtype": "fp32"})
    work = kernels()[name].prepare(case, alone())
    assert work.check is not None
    assert work.check().passed
    monkeypatch.setattr(kind, "run", spoil(kind.run, place))  # type: ignore[attr-defined]
    assert not work.check().passed


@pytest.mark.parametrize("place", range(5))
def test_nan_in_any_result_of_a_mesh_is_found(place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An output, or the gradient of one of four matrices."""
    told: dict[str, Value] = {"tokens": 8, "d_model": 4, "d_ff": 8, "layers": 2}
    told |= dict.fromkeys(mesh.AXES, 1) | {"microbatches": 1, "dtype": "fp32"}
    case = Case("mesh", told)
    work = kernels()["mesh"].prepare(case, alone())
    assert work.check is not None
    assert work.check().passed
    whole = Stage.run

    def spoilt(stage: Stage) -> list[torch.Tensor]:
        outputs = [tensor.detach().clone() for tensor in whole(stage)]
        gradients = [parameter.grad for parameter in stage.parameters]
        (outputs + [g for g in gradients if g is not None])[place].fill_(NAN)
        return outputs

    monkeypatch.setattr(Stage, "run", spoilt)
    assert not kernels()["mesh"].prepare(case, alone()).check().passed  # type: ignore[misc]


@pytest.mark.parametrize("place", range(4))
def test_nan_in_gradients_or_weights_of_layers_is_found(place: int) -> None:
    """``Reference.judge``, of two layers."""
    flat = [torch.ones(3), torch.full((3,), 2.0)]
    reference = mlps.Reference(flat, flat, [2 * one for one in flat], "fp32")
    got = [one.clone() for one in (*flat, *reference.after)]
    assert reference.judge((0, 1), got[:2], got[2:]).passed
    got[place][1] = NAN
    assert not reference.judge((0, 1), got[:2], got[2:]).passed


@pytest.mark.parametrize("wrong", [NAN, 7.0])
@pytest.mark.parametrize("expert", range(4))
def test_every_expert_of_a_grouped_matmul_is_compared(expert: int, wrong: float) -> None:
    shape: dict[str, Value] = {
        "form": "grouped",
        "m": 51,
        "n": 8,
        "k": 8,
        "batch": 4,
        "dtype": "fp32",
    }
    case = Case("matmul", shape)
    a, b = torch.randn(51, 8), torch.randn(4, 8, 8)
    rows = torch.arange(4).repeat_interleave(torch.tensor(matmul._rows(51, 4)))
    got = torch.einsum("mk,mkn->mn", a, b[rows])
    assert matmul.compare_rows(got, a, b, case).passed
    got[rows == expert] = wrong
    assert not matmul.compare_rows(got, a, b, case).passed


@pytest.mark.parametrize("row", [0, -1])
@pytest.mark.parametrize("form", ["square", "batched"])
def test_both_ends_of_a_matrix_are_compared(form: str, row: int) -> None:
    shape: dict[str, Value] = {"form": form, "m": 64, "n": 8, "k": 8, "batch": 3, "dtype": "fp32"}
    a, b = torch.randn(3, 64, 8), torch.randn(3, 8, 8)
    if form == "square":
        a, b = a[0], b[0]
    got = a @ b
    assert matmul.compare_rows(got, a, b, Case("matmul", shape)).passed
    got[..., row, :] = 7
    assert not matmul.compare_rows(got, a, b, Case("matmul", shape)).passed


@pytest.mark.parametrize("wrong", [NAN, 7.0])
@pytest.mark.parametrize("part", range(3))
@pytest.mark.parametrize("at", [(0, 0), (3, 3), "drawn"])
def test_several_heads_of_attention_are_compared(
    at: tuple[int, int] | str, part: int, wrong: float
) -> None:
    """Gradients of q, k and v of one head of one sequence."""
    told: dict[str, Value] = {"batch": 4, "heads": 4, "queries": 16, "keys": 16, "head_dim": 8}
    case = Case("attention", told | {"backward": True, "dtype": "fp32"})
    operands = [torch.randn(4, 4, 16, 8, requires_grad=True) for _ in range(3)]
    q, k, v = operands
    given = torch.randn(4, 4, 16, 8)
    attend = torch.nn.functional.scaled_dot_product_attention
    got = torch.autograd.grad(attend(q, k, v, is_causal=True), operands, given)
    assert attention.compare_heads(got, operands, given, case).passed
    drawn = divmod(spots(16, case.id)[1], 4)
    got[part][drawn if isinstance(at, str) else at] = wrong
    assert not attention.compare_heads(got, operands, given, case).passed


def test_a_step_of_adamw_by_hand() -> None:
    """Loshchilov & Hutter 2019, algorithm 2, at t = 1: both moments' corrections cancel their
    weights, so the step is lr (g / (|g| + eps) + decay w); narrow parameters are widened.
    """
    w, g = [0.5, -1.0, 0.25], [3.0, -0.5, 0.0]
    lr, eps, decay = (ADAMW[name] for name in ("lr", "eps", "weight_decay"))
    wanted = [a - lr * (b / (abs(b) + eps) + decay * a) for a, b in zip(w, g, strict=True)]
    before = torch.tensor(w, dtype=torch.bfloat16)
    (after,) = stepped([before], [torch.tensor(g, dtype=torch.bfloat16)])
    assert after.dtype == torch.float32
    assert after.tolist() == pytest.approx(wanted, rel=1e-6)
    assert before.tolist() == w


@pytest.mark.parametrize("name", ["expert parallel", "recompute"])
def test_a_wrong_step_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights go the other way than the reference's, which are in double precision."""
    _, told, _ = SPOILT[name]
    module = expert_parallel if name == "expert parallel" else recomputing
    check = kernels()[name].prepare(Case(name, told | {"dtype": "fp32"}), alone()).check
    assert check is not None

    def wrong(parameters: list[torch.Tensor], gradients: list[torch.Tensor]) -> list[torch.Tensor]:
        sign = 1 if parameters[0].dtype == torch.float64 else -1
        return stepped(parameters, [sign * gradient for gradient in gradients])

    monkeypatch.setattr(module, "stepped", wrong)
    assert not check().passed


def test_sizes_end_with_the_largest_that_fits() -> None:
    """1 KiB to 8 GiB by fours, which would end at 4 GiB."""
    roomy = replace(SETTING, suite="full", memory=1e12)
    found = sizes(roomy, 1024, 2**33, 4)
    assert found == [2**k for k in (*range(10, 33, 2), 33)]
    assert sizes(replace(roomy, memory=6.0 * 2**32), 1024, 2**33, 4) == found[:-1]
    assert sizes(roomy, 1024, 2**20, 4)[-2:] == [2**18, 2**20]
    assert sizes(replace(roomy, suite="quick"), 1024, 2**33, 4) == found[:-1]


def test_a_type_that_matmuls_cannot_have_here_is_left_out() -> None:
    """fp4 has no kernel; a profile that has its rate does not end the run."""
    every = replace(SETTING, suite="full", device="cuda", dtypes=("fp4", "bf16"), memory=1e11)
    for setting in (every, replace(every, suite="quick", dtypes=("fp4",))):
        assert "fp4" not in {case["dtype"] for case in matmul.cases(setting)}
    assert {case["dtype"] for case in matmul.cases(every)} == {"bf16"}


def test_spots_are_both_ends_and_some_between() -> None:
    """All inside, the same each time, none twice."""
    assert spots(0, "x") == []
    assert spots(1, "x") == [0]
    found = spots(1000, "x", drawn=3)
    assert found == spots(1000, "x", drawn=3) != spots(1000, "y", drawn=3)
    assert (found[0], found[-1], len(found)) == (0, 999, 5)
