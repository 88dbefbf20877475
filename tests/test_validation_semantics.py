"""The definitions of the collectives against torch.distributed on real ranks."""

import time

import numpy as np
import pytest
from typer.testing import CliRunner

from validation import ranks, semantics
from validation.__main__ import app

pytestmark = pytest.mark.distributed


def _sleep(rank: int, count: int) -> None:
    time.sleep(600 if rank == 1 else 0)


def _fail(rank: int, count: int) -> int:
    if rank == 1:
        raise LookupError("nothing here")
    return rank


def _sum(rank: int, count: int, addend: int) -> int:
    return rank + count + addend


def test_every_operation_on_four_ranks() -> None:
    """The command prints a line for each and is content."""
    result = CliRunner().invoke(app, ["semantics", "--ranks", "4"])
    assert result.exit_code == 0, result.output
    assert "21 of 21 operations agree" in result.output


def test_a_difference_is_shown_and_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong definition of the broadcast: every rank but the root differs."""
    case = next(case for case in semantics.cases(2) if case.operation == "broadcast")
    wrong = semantics.Case("wrong", case.operation, case.inputs, case.inputs, case.options)
    outcomes = semantics.check(2, chosen=[case, wrong])
    assert [outcome.passed for outcome in outcomes] == [True, False]
    assert list(outcomes[1].wrong) == [0]
    monkeypatch.setattr("validation.__main__.check", lambda *_: outcomes)
    result = CliRunner().invoke(app, ["semantics", "--ranks", "2"])
    assert result.exit_code == 1
    assert "1 of 2 operations agree" in result.output


def test_differences_look_at_shape_and_value() -> None:
    """What is undefined may be anything."""
    one = np.array([1.0])
    assert semantics.differences([one, None], [one, one]) == {}
    assert list(semantics.differences([one, one], [np.array([1.0, 1.0]), None])) == [0, 1]


def test_ranks_return_in_order() -> None:
    """rank + count + addend, of three processes."""
    assert ranks.run(_sum, 3, 10) == [13, 14, 15]


def test_a_rank_that_fails_says_why() -> None:
    """Its traceback, with its number."""
    with pytest.raises(ranks.RanksFailed, match=r"(?s)rank 1:.*nothing here"):
        ranks.run(_fail, 2, timeout=30)


def test_a_rank_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed after the timeout; the caller goes on."""
    monkeypatch.setattr(ranks, "GRACE", 1.0)
    started = time.monotonic()
    with pytest.raises(ranks.RanksFailed, match="rank"):
        ranks.run(_sleep, 2, timeout=3)
    assert time.monotonic() - started < 30


def test_no_ranks_are_refused() -> None:
    """One is the least."""
    with pytest.raises(ValueError, match="ranks: 0 is refused"):
        ranks.run(_sum, 0, 10)
