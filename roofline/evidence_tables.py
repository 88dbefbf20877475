"""The summary as rows of text, the same for a terminal, for Markdown and for the dashboard."""

from __future__ import annotations

from collections.abc import Sequence

from hardware_profiles.behaviour import Spread
from roofline.accuracy import Errors, Ranking
from roofline.evidence import LeftOut, Summary

Table = tuple[tuple[str, ...], list[tuple[str, ...]]]  # names; ">" begins those of numbers
NONE = "–"
KINDS = ("fitted", "left out")


def percent(value: float, sign: bool = False) -> str:
    """A share.

    >>> percent(0.0347), percent(-0.02, sign=True)
    ('3.5%', '-2.0%')
    """
    return f"{value:+.1%}" if sign else f"{value:.1%}"


def error_table(groups: Sequence[Errors], name: str) -> Table:
    """Errors of groups beside the baseline's."""
    numbers = ("runs", "bias", "median", "90%", "largest", "baseline median", "baseline 90%")
    rows = [
        (
            each.group,
            str(each.count),
            percent(each.bias, sign=True),
            *map(percent, (each.median, each.p90, each.largest)),
            *map(percent, (each.baseline_median, each.baseline_p90)),
        )
        for each in groups
    ]
    return (name, *(f">{number}" for number in numbers)), rows


def summary_table(found: Summary) -> Table:
    """Groups, then families, then all."""
    return error_table(found.groups, ", ".join(found.by))


def left_out_table(found: Sequence[LeftOut], in_sample: bool = True) -> Table:
    """Fitted and left out side by side, a calibration and family a line.

    Args:
        in_sample: whether the runs are those that were fitted; else there is nothing beside.
    """
    kinds = KINDS if in_sample else KINDS[1:]
    numbers = (f"{which}: {name}" for which in kinds for name in ("bias", "median", "90%"))
    names = ("calibration, family", ">runs", *(f">{name}" for name in numbers), "left out by")
    rows = [
        (
            f"{each.calibration}, {each.family}",
            str(each.left_out.runs),
            *(_spread(each.fitted) if in_sample else ()),
            *_spread(each.left_out),
            "model" if "each model" in each.how else "source",
        )
        for each in found
    ]
    return names, rows


def _spread(found: Spread | None) -> tuple[str, ...]:
    if found is None:
        return (NONE,) * 3
    return percent(found.bias, sign=True), percent(found.median), percent(found.p90)


def ranking_table(found: Sequence[Ranking]) -> Table:
    """Ranks within sweeps."""
    rows: list[tuple[str, ...]] = [
        (r.sweep, str(r.count), f"{r.tau:.2f}", percent(r.regret), f"{r.baseline_tau:.2f}")
        for r in found
    ]
    return ("sweep", ">runs", ">tau", ">regret", ">baseline tau"), rows


def markdown(found: Summary, in_sample: bool) -> str:
    """The tables with what they mean; ``in_sample`` when the runs are those that we ship, as the
    README holds them: then what was left out of the fit stands beside."""
    total = found.total
    refused = f"; {found.refused} cannot be predicted" if found.refused else ""
    fitted = " The calibrations were fitted to these runs." if in_sample else ""
    base = "fitted to the same runs" if in_sample else "of the published runs that we ship"
    parts = [
        f"**{'In sample: all' if in_sample else 'All'} {total.count:,} measured of "
        f"{found.predicted:,} predicted runs{refused}.** Error is predicted over measured step "
        "time, minus 1: its median with sign (bias), then median, 90th percentile and largest "
        f"without.{fitted} The baseline is one utilisation per GPU and precision, {base}, "
        "times 1 + bubble.",
        as_markdown(summary_table(found)),
    ]
    if in_sample:
        parts += [
            "**Left out: the core set, each source left out of the fit in turn** and predicted by "
            "a fit to the others (each model, where a GPU has one source only); beside it the "
            "shipped fit, on the core set too. Errors here are ln(predicted / measured).",
            as_markdown(left_out_table(found.left_out)),
        ]
    if found.rankings:
        parts += [
            "**Ranks within sweeps on as many GPUs.** Tau (Kendall) is 1 where the order is right; "
            "regret is how much slower the run predicted fastest is than the fastest.",
            as_markdown(ranking_table(found.rankings)),
        ]
    return "\n\n".join(parts)


def as_markdown(table: Table) -> str:
    """A table in Markdown; numbers to the right.

    >>> print(as_markdown((("gpu", ">runs"), [("a100", "310")])))
    | gpu | runs |
    |---|--:|
    | a100 | 310 |
    """
    names, rows = table
    head = _line([name.removeprefix(">") for name in names])
    rule = "|" + "|".join("--:" if name.startswith(">") else "---" for name in names) + "|"
    return "\n".join([head, rule, *map(_line, rows)])


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"
