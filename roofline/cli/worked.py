"""``roofline worked``: the literature's worked problems, ours beside the printed value."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from roofline import worked as book
from roofline.cli import inputs, output
from roofline.worked import Result

FAILED = 1

IdOption = Annotated[
    list[str] | None, typer.Option("--id", metavar="ID", help="One problem in full. Repeatable.")
]
FailedOption = Annotated[bool, typer.Option("--failed", help="Only those we get wrong.")]
ErrataOption = Annotated[bool, typer.Option("--errata", help="Only those that the source gets.")]
AllOption = Annotated[bool, typer.Option("--all", help="Every problem, a line each.")]


def worked(
    id: IdOption = None,
    failed: FailedOption = False,
    errata: ErrataOption = False,
    every: AllOption = False,
    json: inputs.JsonOption = False,
) -> None:
    """Solve the worked problems through the public formulas; exit code 1 if one fails.

    Examples:

        roofline worked
        roofline worked --errata
        roofline worked --id q2.3-allgather-time
    """
    results = [_result(each) for each in id] if id else book.check()
    shown = [
        each
        for each in results
        if (not failed or not each.passed) and (not errata or each.problem.erratum)
    ]
    wrong = sum(not each.passed for each in results)
    if json:
        output.as_json(_counts(results) | {"problems": [_document(each) for each in shown]})
    elif id:
        for each in shown:
            _tell(each)
    else:
        _tell_all(results, shown if failed or errata or every or wrong else [])
    if wrong:
        raise typer.Exit(FAILED)


def _result(id: str) -> Result:
    with inputs.naming("--id"):
        return Result(book.problem(id), book.solve(id))


def _counts(results: list[Result]) -> dict[str, Any]:
    return {
        "solved": len(results),
        "passed": sum(each.passed for each in results),
        "errata": sum(each.problem.erratum for each in results),
        "not_covered": len(book.not_covered()),
    }


def _document(result: Result) -> dict[str, Any]:
    problem = result.problem
    return {
        "id": problem.id,
        "quantity": problem.quantity,
        "unit": problem.unit,
        "ours": result.ours,
        "expected": problem.expected,
        "printed": problem.printed or None,
        "printed_value": problem.book_value,
        "status": problem.status,
        "passed": result.passed,
        "error": result.error,
        "inputs": problem.inputs,
        "formula": problem.formula,
        "source": problem.source,
        "notes": problem.notes or None,
    }


def _tell(result: Result) -> None:
    problem = result.problem
    relation = f" ({problem.status.replace('_', ' ')})" if problem.status else ""
    given = ", ".join(f"{name} = {value:g}" for name, value in problem.inputs.items())
    output.say(f"{problem.id}: {problem.quantity}", style="bold")
    output.say(
        f"  ours      {result.ours:.10g} {problem.unit}",
        f"  expected  {problem.expected:.10g} {problem.unit}",
        f"  printed   {problem.printed or 'nothing'}{relation}",
        f"  inputs    {given or 'none'}",
        f"  formula   {problem.formula}",
        f"  source    {problem.source}",
        *([f"  notes     {problem.notes}"] if problem.notes else []),
    )


def _tell_all(results: list[Result], shown: list[Result]) -> None:
    if shown:
        output.table(
            ["", "id", "quantity", ">ours", "unit", "printed"],
            [
                [
                    "ok" if each.passed else "WRONG",
                    each.problem.id,
                    each.problem.quantity,
                    f"{each.ours:.4g}",
                    each.problem.unit,
                    each.problem.printed or "–",
                ]
                for each in shown
            ],
        )
    counts = _counts(results)
    right = counts["passed"] == counts["solved"]
    output.say(
        f"{counts['passed']} of {counts['solved']} worked problems reproduced, "
        f"{counts['errata']} of them errata of their source; "
        f"{counts['not_covered']} more are measurements or plain identities",
        style="green" if right else "red",
    )
