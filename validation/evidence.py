"""Results under one set of conditions, ready to be judged: reported on, or calibrated from.

Needs no torch. A result counts as ``trusted`` when its run checked it and found it right, or when
another program, of which nobody here can tell, measured it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pydantic import ValidationError

from validation.bounds import impossible
from validation.case import Case, Kernel
from validation.kernels import kernels
from validation.profile import Profile, rebuilt
from validation.results import METHOD, End, Failed, Header, Measured, Results, read

NAMED = 8  # results that are too fast, in words


@dataclass(frozen=True)
class Evidence:
    """Runs of one machine under equal conditions, and the machine as its profile states it."""

    headers: tuple[Header, ...]  # in the order of the file
    measured: tuple[Measured, ...]  # of each case and part, the fastest run
    failed: tuple[Failed, ...]  # that no later run measured
    ends: tuple[End, ...]
    problems: tuple[str, ...]  # lines that could not be used
    profile: Profile  # peaks

    @property
    def header(self) -> Header:
        """Of the first run."""
        return self.headers[0]

    @property
    def trusted(self) -> tuple[Measured, ...]:
        """What was checked and found right, here or elsewhere."""
        return tuple(line for line in self.measured if trusted(line))

    @property
    def left_out(self) -> dict[str, str]:
        """Kernels and data types that some run had no case of, and no run has a result of; why."""
        there = {line.kernel for line in self.measured}
        there |= {f"{line.kernel} {line.parameters.get('dtype')}" for line in self.measured}
        every = (item for header in self.headers for item in header.left_out.items())
        return {name: why for name, why in every if name not in there}

    @property
    def host_of(self) -> tuple[str, ...]:
        """The host of each rank, if ranks are counted host by host, as torchrun does."""
        return tuple(name for name, ranks in self.header.hosts.items() for _ in range(ranks))

    @property
    def unit(self) -> int:
        """Ranks in one unit of the innermost tier."""
        return self.profile.cluster.unit_sizes[1]


def trusted(line: Measured) -> bool:
    """True for a result whose program found it right; see ``Measured.trusted``."""
    return line.trusted


def gather(*places: Path, run: str = "") -> Evidence:
    """Results of files, or of ``results.jsonl`` in folders, all under the same conditions.

    Args:
        run: the beginning of a run's name: only runs under its conditions count.

    Raises:
        ValueError: no results; runs under different conditions, and ``run`` does not say which; no
            such run; a header whose cluster is none.
    """
    results = _read(places)
    headers = _alike(results, run, " ".join(map(str, places)))
    runs = {header.run: header for header in headers}
    profile = _profile(headers[0])
    possible, too_fast = _sifted([m for m in results.measured if m.run in runs], profile)
    chosen = Results(runs, possible)
    measured = tuple(chosen.best())
    done = {line.case for line in measured}
    failed = {line.case: line for line in results.failed if line.run in runs}
    return Evidence(
        headers=headers,
        measured=measured,
        failed=tuple(line for case, line in failed.items() if case not in done),
        ends=tuple(end for end in results.ends if end.run in runs),
        problems=(*map(str, results.problems), *_orphans(results), *_of_old(results), *too_fast),
        profile=profile,
    )


def _sifted(lines: Sequence[Measured], profile: Profile) -> tuple[list[Measured], list[str]]:
    """Without trusted results that are faster than the profile's peaks allow; why, of the first."""
    why = {id(m): impossible(m, profile.cluster) for m in lines if trusted(m)}
    said = list(dict.fromkeys(filter(None, why.values())))
    more = [f"and {len(said) - NAMED} more as fast"] if len(said) > NAMED else []
    return [m for m in lines if not why.get(id(m))], said[:NAMED] + more


def _read(places: Iterable[Path]) -> Results:
    try:
        return read(*places)
    except FileNotFoundError as error:
        raise ValueError(
            f"{error.filename}: no results there; measure first: python -m validation run --out DIR"
        ) from None
    except OSError as error:
        raise ValueError(f"{error.filename}: cannot be read: {error.strerror}") from None


def _alike(results: Results, run: str, where: str) -> tuple[Header, ...]:
    """Headers under the conditions of ``run``, or of all runs when they are the same."""
    everyone = [h for h in results.headers.values() if h.method == METHOD]
    if results.headers and not everyone:
        raise ValueError(f"{where}: {'; '.join(_of_old(results))}: measure again")
    if not everyone:
        first = f"; {results.problems[0]}" if results.problems else ""
        raise ValueError(f"{where}: no run's header in it, so nothing says what ran where{first}")
    if run:
        asked = [header for header in everyone if header.run.startswith(run)]
        if not asked:
            raise ValueError(f"run: {run!r} is not in {where}; it has {', '.join(results.headers)}")
        return tuple(h for h in everyone if h.conditions == asked[0].conditions)
    for other in everyone[1:]:
        if other.conditions != everyone[0].conditions:
            raise ValueError(
                f"{where}: runs under different conditions, which cannot be judged as one: "
                f"{'; '.join(_differences(everyone[0], other))}; choose by --run "
                f"{everyone[0].run} or --run {other.run}"
            )
    return tuple(everyone)


def _differences(one: Header, other: Header) -> list[str]:
    fields: tuple[str, ...] = (
        "world",
        "device",
        "backend",
        "overlay",
        "hosts",
        "devices",
    )
    fields += ("versions", "variables", "profile", "cluster")
    found = []
    for field in fields:
        a, b = getattr(one, field), getattr(other, field)
        if a != b:
            told = "the profiles differ" if field == "cluster" else f"{_short(a)} and {_short(b)}"
            found.append(f"{field}: {told}")
    return found


def _short(value: object) -> str:
    return (value if isinstance(value, str) else json.dumps(value))[:120] or "none"


def _orphans(results: Results) -> tuple[str, ...]:
    lost = sorted({line.run for line in results.measured} - set(results.headers))
    return tuple(f"run {run}: its header is missing; its lines are left out" for run in lost)


def _of_old(results: Results) -> tuple[str, ...]:
    """Runs whose times mean something else than those measured now."""
    others = (header for header in results.headers.values() if header.method != METHOD)
    return tuple(
        f"run {h.run}: measured by method {h.method}, which cannot be compared with {METHOD}; "
        "its lines are left out"
        for h in others
    )


def _profile(header: Header) -> Profile:
    try:
        return rebuilt(header.cluster)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(
            f"run {header.run}: its cluster is none: {place}: {first['msg']}"
        ) from None


@cache
def _kernels() -> dict[str, Kernel]:
    return kernels()


def predicted(line: Measured, profile: Profile) -> float | None:
    """What the kernel of ``line`` says of it on ``profile``; None where it says nothing. [s]"""
    kernel = _kernels().get(line.kernel)
    if kernel is None:
        return None
    case = Case(line.kernel, line.parameters, line.size, line.stride)
    try:
        found = [e.seconds for e in kernel.predict(case, profile) if e.part == line.part]
    except (
        ValueError,
        LookupError,
        ArithmeticError,
    ):  # parameters of another version, or another program
        return None
    return found[0] if found and found[0] > 0 else None


def is_kernel(*names: str) -> Callable[[Measured], bool]:
    """A test for results of those kernels."""
    return lambda line: line.kernel in names
