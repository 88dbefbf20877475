"""A report in words, and as one HTML file without scripts that needs no network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

import numpy as np

from roofline.units import show
from validation.rates import Rate
from validation.report import Overlap, Report, Row

WIDTH, HEIGHT, LEFT, TOP = 560, 420, 64, 16  # of the drawing, and of its edges [px]
COLOURS = ("#0b6e99", "#d9730d", "#4d6461", "#ad1a72", "#6940a5", "#0f7b6c", "#dfab01", "#e03e3e")
GONE = 40  # cases of a list that are shown in words

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem }
table { border-collapse: collapse; margin: .5rem 0 1.5rem }
th, td { padding: .2rem .7rem; text-align: right; border-bottom: 1px solid #ddd }
th:first-child, td:first-child { text-align: left }
.bad td { color: #b3261e } .scroll { max-height: 40rem; overflow: auto }
svg text { font: 11px system-ui, sans-serif } h2 { margin-top: 2rem }
"""


def headline(found: Report) -> str:
    """What ran where, and the median error."""
    env, summary = found.environment, found.summary
    hosts = ", ".join(f"{name} ({ranks} ranks)" for name, ranks in env["hosts"].items())
    versions = ", ".join(f"{name} {version}" for name, version in env["versions"].items())
    rates = env["overlay"] or "peaks"
    error, spread = summary["median_error"], summary["median_spread"]
    judged = "no trusted result has a prediction"
    if error is not None:
        judged = f"median error {error:.1%} of {summary['trusted']} trusted results"
        judged += f", which scatter by {spread:.0%}"
    if summary["elsewhere"]:
        judged += f"; {summary['elsewhere']} were measured by another program, not checked here"
    ran = ", ".join(filter(None, (hosts, *env["devices"], env["backend"], versions)))
    doubt = f"{env['foreign']}\n" if env["foreign"] else ""
    return f"{env['started']}: {ran}\n{doubt}predicted for {env['profile']} at {rates}: {judged}"


def sections(found: Report) -> list[tuple[str, list[str]]]:
    """Titles and lines of everything that is told in words; empty ones left out."""
    told = [
        ("Slow against the profile", [rate.sentence for rate in found.rates if rate.slow]),
        ("Faster than the profile", [rate.sentence for rate in found.rates if _fast(rate)]),
        (
            "As the profile has it",
            [rate.sentence for rate in found.rates if not rate.slow and not rate.fast],
        ),
        ("Slow starts", [start.sentence for start in found.starts]),
        ("Overlap of math and comms", list(_overlaps(found))),
        ("Stragglers", [one.sentence for one in found.stragglers]),
        ("Suspects", [line for cause in found.causes for line in _suspect(cause)]),
        ("Not measured here", [f"{k}: {why}" for k, why in found.environment["left_out"].items()]),
        ("Failed", [f"{f.case}: rank {f.rank}: {f.reason}" for f in found.failed]),
        ("Not trusted: wrong, or not checked", _few(_untrusted(found))),
        ("No formula speaks of", _few(found.unpredicted)),
        ("Problems of the files", list(found.problems)),
    ]
    return [(title, lines) for title, lines in told if lines]


def _fast(rate: Rate) -> bool:
    return rate.fast and not rate.slow


def _suspect(cause: object) -> Iterable[str]:
    name, evidence, remedy = (getattr(cause, field) for field in ("name", "evidence", "remedy"))
    yield f"{name} ({remedy})"
    yield from (f"    {line}" for line in evidence)


def _overlaps(found: Report) -> Iterable[str]:
    for kernel in dict.fromkeys(one.kernel for one in found.overlaps):
        these = sorted((o for o in found.overlaps if o.kernel == kernel), key=lambda o: o.hidden)
        usual = float(np.median([one.hidden for one in these]))
        said = f"{min(usual, 1.0):.0%} of the shorter one is hidden"
        if usual < 0:
            times = float(np.median([one.of_sum for one in these]))
            said = f"computing and talking at once takes {times:.2g} times their sum"
        least, most = _hidden(these[0]), _hidden(these[-1])
        yield f"{kernel}: {said} (median of {len(these)} cases, {least} to {most})"


def _hidden(one: Overlap) -> str:
    if one.hidden < 0:
        return f"{one.of_sum:.2g} times their sum"
    return f"{min(one.hidden, 1.0):.0%}"  # noise may make both faster than the longer part


def _untrusted(found: Report) -> list[str]:
    why = {"no": "the result is wrong", "unchecked": "the run did not check it"}
    rows = {row.case: row for row in found.rows if not row.trusted}
    other = "its numbers contradict each other, or it took no time"
    return [f"{case}: {why.get(row.correct, other)}" for case, row in rows.items()]


def _few(lines: Sequence[str]) -> list[str]:
    more = [f"… and {len(lines) - GONE} more"] if len(lines) > GONE else []
    return [*lines[:GONE], *more]


def html(found: Report) -> str:
    """The whole report as one file."""
    lines = "".join(f"<p>{escape(line)}</p>" for line in headline(found).splitlines())
    words = "".join(_list(title, told) for title, told in sections(found))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>Predicted against measured</title><style>{STYLE}</style></head><body>"
        f"<h1>Predicted against measured</h1>{lines}{scatter(found.rows)}{_errors(found)}"
        f"{words}{_cases(found)}</body></html>\n"
    )


def _list(title: str, lines: Iterable[str]) -> str:
    items = "".join(f"<li>{escape(line.strip())}</li>" for line in lines)
    return f"<h2>{escape(title)}</h2><ul>{items}</ul>"


def _errors(found: Report) -> str:
    head = ("kernel", "part", "bytes", "cases", "median error", "bias", "worst", "spread")
    rows = (
        (
            *(row.kernel, row.part, row.bytes, str(row.cases), f"{row.median:.1%}"),
            *(f"{row.bias:+.1%}", f"{row.worst:+.0%}", f"{row.spread:.0%}"),
        )
        for row in found.errors
    )
    return "<h2>Errors</h2>" + _table(head, ((cells, False) for cells in rows))


def _cases(found: Report) -> str:
    head = ("case", "part", "measured", "p10", "p90", "predicted", "error", "correct")
    rows = ((_cells(row), not row.trusted) for row in found.rows)
    return f'<h2>Every case</h2><div class="scroll">{_table(head, rows)}</div>'


def _cells(row: Row) -> tuple[str, ...]:
    times = (show(seconds, "s") for seconds in (row.seconds, row.p10, row.p90))
    wanted = "" if row.predicted is None else show(row.predicted, "s")
    error = "" if row.error is None else f"{row.error:+.0%}"
    return (row.case, row.part, *times, wanted, error, row.correct)


def _table(head: Iterable[str], rows: Iterable[tuple[Iterable[str], bool]]) -> str:
    titles = "".join(f"<th>{escape(title)}</th>" for title in head)
    body = "".join(
        f"<tr{' class=bad' if bad else ''}>"
        + "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        + "</tr>"
        for cells, bad in rows
    )
    return f"<table><tr>{titles}</tr>{body}</table>"


def scatter(rows: Sequence[Row]) -> str:
    """Predicted over measured, both on logarithmic scales; results that are not trusted hollow."""
    shown = [row for row in rows if row.predicted and row.seconds > 0]
    if not shown:
        return ""
    every = [value for row in shown for value in (row.seconds, row.predicted or 0.0)]
    low, high = np.floor(np.log10(min(every))), np.ceil(np.log10(max(every)))
    span = max(high - low, 1.0)

    def place(seconds: float, length: float) -> float:
        return float((np.log10(seconds) - low) / span * length)

    kernels = list(dict.fromkeys(row.kernel for row in shown))
    dots = "".join(
        f'<circle cx="{LEFT + place(row.seconds, WIDTH):.1f}" '
        f'cy="{TOP + HEIGHT - place(row.predicted or 1.0, HEIGHT):.1f}" r="4" '
        f"{_paint(kernels.index(row.kernel), row.trusted)}><title>{escape(row.case)}</title></circle>"
        for row in shown
    )
    ticks = "".join(_tick(low + i, i / span) for i in range(int(span) + 1))
    names = "".join(
        f'<circle cx="{LEFT + WIDTH + 20}" cy="{TOP + 16 * i + 8}" r="4" {_paint(i, True)}/>'
        f'<text x="{LEFT + WIDTH + 30}" y="{TOP + 16 * i + 12}">{escape(name)}</text>'
        for i, name in enumerate(kernels)
    )
    size = f'width="{LEFT + WIDTH + 220}" height="{TOP + max(HEIGHT + 44, 16 * len(kernels) + 20)}"'
    equal = (
        f'<line x1="{LEFT}" y1="{TOP + HEIGHT}" x2="{LEFT + WIDTH}" y2="{TOP}" stroke="#999"/>'
        f'<text x="{LEFT + WIDTH / 2:.0f}" y="{TOP + HEIGHT + 36}" text-anchor="middle">measured'
        f'</text><text x="{LEFT}" y="{TOP - 4}">predicted</text>'
    )
    return f'<svg {size} role="img">{ticks}{equal}{dots}{names}</svg>'


def _paint(index: int, filled: bool) -> str:
    colour = COLOURS[index % len(COLOURS)]
    return f'fill="{colour if filled else "none"}" stroke="{colour}" fill-opacity="0.7"'


def _tick(power: float, at: float) -> str:
    x, y = LEFT + at * WIDTH, TOP + HEIGHT - at * HEIGHT
    told = escape(show(10.0**power, "s"))
    return (
        f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{TOP + HEIGHT}" stroke="#eee"/>'
        f'<line x1="{LEFT}" y1="{y:.1f}" x2="{LEFT + WIDTH}" y2="{y:.1f}" stroke="#eee"/>'
        f'<text x="{x:.1f}" y="{TOP + HEIGHT + 16}" text-anchor="middle">{told}</text>'
        f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{told}</text>'
    )
