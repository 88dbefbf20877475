"""Fit the ``isolated`` part of calibrations to published sweeps, half of the sources; test on the rest.

    python scripts/fit_collectives.py [SWEEPS.jsonl] [--swap | --each | --deals N] [--write]

Sources (repositories, threads) are dealt out whole. One that alone has some kind of hardware goes to
the fit. Of the others, for each kind of hardware, that with the most points first, the source with
most points goes to the fit, the next to the test, and so on, unless another kind has decided.
GPUs with the same links are one family. Every source of a fit counts the same, however many points
it has; sweeps marked noisy count only where there are no others. Priors hold what few points cannot
tell. ``--swap`` fits the other half, ``--each`` leaves out one source
after the other, ``--deals`` deals at random: the error depends on who is left out. ``--write`` puts
the first fit into the calibrations. Needs scipy.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from scipy.optimize import least_squares

from hardware_profiles.behaviour import COLLECTIVES, FabricFit, HostFit, IsolatedFit, WireFit
from hardware_profiles.calibration import calibrations
from hardware_profiles.catalog import SHIPPED
from validation import compare, sweeps
from validation.sweeps import Point

FAMILIES = {
    "h100-sxm": "hopper",
    "h100-sxm-hbm2e": "hopper",
    "h200-sxm": "hopper",
    "h800-sxm": "hopper",
    "h20": "hopper",
    "gh200": "hopper",
    "b200-sxm": "blackwell",
    "b300-sxm": "blackwell",
    "gb200": "blackwell",
    "gb300": "blackwell",
    "a100-sxm-40gb": "ampere",
    "a100-sxm-80gb": "ampere",
    "l40s": "pcie",
    "mi300x": "cdna",
    "mi325x": "cdna",
    "mi355x": "cdna",
}
ADDING = ("hopper", "blackwell")  # NVLink switches that add
STANDS = {
    "point-to-point": "all-to-all",
    "all-to-all": "all-gather",
    "reduce-scatter": "all-gather",
}

# Prior median and standard deviation of the logarithm; from about where other families are.
WIRE = {
    "start": (6e-6, 1.0),
    "per_rank": (1e-6, 1.0),
    "fraction": (0.76, 0.10),
    "root": (8e-9, 0.7),
}
SWITCHED = {"switched": (0.65, 0.15)}
BARE = {"switched": 0.0, "crowding": 0.0}
CROWDING = {"crowding": (1.5, 0.5)}
HOST = {"launch": (5e-6, 0.5), "waiting": (20e-6, 0.5)}
FABRIC = {
    "hop": (10e-6, 0.6),
    "handshake": (1.8, 0.4),
    "unasked": (65536.0, 1.0),
    "message": (1e-6, 1.0),
    "root": (2e-8, 0.7),
    "growth": (0.7, 0.3),
    "ring": (0.88, 0.15),
    "exchange": (0.85, 0.25),
    "send": (0.8, 0.3),
}
TOP = {
    "fraction": 1.1,
    "switched": 1.0,
    "ring": 1.0,
    "exchange": 1.0,
    "send": 1.0,
    "growth": 1.5,
    "crowding": 4.0,
}
ELSEWHERE = "roofline/data/collectives.md"  # how much it matters who is left out
NOISE = 0.1  # of a point
WORTH = 30.0  # points that a source counts for

Wires = dict[str, dict[str, WireFit]]


def kind(point: Point) -> str:
    """The hardware that a point is about: a family's links, or a kind of network."""
    return point.fabric if point.across else FAMILIES[point.accelerator]


def dealt(points: Iterable[Point]) -> tuple[set[str], set[str]]:
    """Sources to fit to, and sources to test on."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for point in points:
        counts[kind(point)][point.source] += 1
    halves: tuple[set[str], set[str]] = (set(), set())
    halves[0].update(next(iter(only)) for only in counts.values() if len(only) == 1)
    for _, sources in sorted(counts.items(), key=lambda each: (-each[1].total(), each[0])):
        for source, _ in sorted(sources.items(), key=lambda each: (-each[1], each[0])):
            if source not in halves[0] | halves[1]:
                here = [sum(s in half for s in sources) for half in halves]
                halves[here[1] < here[0]].add(source)
    return halves


def fitted(
    groups: Sequence[Sequence[Point]], priors: dict[str, Any], build: Any
) -> dict[str, float]:
    """Numbers under which points, in groups that are predicted together, come out best."""
    counts = Counter(point.source for group in groups for point in group)
    weights = [
        np.array([min(1.0, (WORTH / counts[p.source]) ** 0.5) / NOISE for p in g]) for g in groups
    ]
    taken = [np.array([point.seconds for point in group]) for group in groups]
    middle = np.log([prior for prior, _ in priors.values()])
    spread = np.array([deviation for _, deviation in priors.values()])
    top = np.array([np.log(TOP.get(name, np.inf)) for name in priors])
    bottom = np.array([0.0 if name == "handshake" else -30.0 for name in priors])

    def off(x: np.ndarray) -> np.ndarray:
        numbers = dict(zip(priors, np.exp(x).tolist(), strict=True))
        parts = [(x - middle) / spread]
        for group, weight, seconds in zip(groups, weights, taken, strict=True):
            found = compare.predict(group, build(numbers, group[0]))
            parts.append(weight * np.log(found / seconds))
        return np.concatenate(parts)

    found = least_squares(off, np.minimum(middle, top - 1e-3), bounds=(bottom, top), loss="soft_l1")
    return {
        name: float(f"{value:.4g}") for name, value in zip(priors, np.exp(found.x), strict=True)
    }


def together(points: Iterable[Point]) -> list[list[Point]]:
    """Points that one call predicts."""
    groups: dict[tuple[str, str, str], list[Point]] = defaultdict(list)
    for point in points:
        groups[point.accelerator, point.collective, point.fabric].append(point)
    return list(groups.values())


def _isolated(wires: dict[str, WireFit], fabrics: dict[str, FabricFit], **told: Any) -> IsolatedFit:
    return IsolatedFit.model_construct(wires=wires, fabrics=fabrics, **told)


def wires_of(points: Sequence[Point]) -> Wires:
    """Each family's links, each collective."""
    nowhere = {"infiniband": FabricFit(**{name: prior for name, (prior, _) in FABRIC.items()})}
    found: Wires = {family: {} for family in FAMILIES.values()}
    for family, wires in found.items():
        priors = WIRE | (CROWDING if family == "pcie" else {})
        for name in COLLECTIVES:
            here = [p for p in points if kind(p) == family and p.collective == name]
            here = [p for p in here if p.quality != "noisy"] or here
            here = [p for p in here if not called(p)] or here
            if not here:
                continue
            asked = priors | (SWITCHED if name == "all-reduce" and family in ADDING else {})
            if name == "all-reduce" and "all-gather" in wires:  # the same rings
                asked = asked | {"fraction": (wires["all-gather"].fraction, 0.05)}

            def build(numbers: dict[str, float], first: Point) -> IsolatedFit:
                wire = WireFit.model_construct(None, **(BARE | numbers))
                return _isolated({first.collective: wire}, nowhere)

            wires[name] = WireFit(**fitted(together(here), asked, build))
    return _completed(found)


def _completed(found: Wires) -> Wires:
    """What nobody measured is taken from the nearest collective, else from the priors."""
    guess = {name: prior for name, (prior, _) in WIRE.items()}
    for family, wires in found.items():
        for name in ("all-gather", "reduce-scatter", "all-to-all", "point-to-point", "all-reduce"):
            if name not in wires:
                wires[name] = wires.get(STANDS.get(name, "")) or WireFit(**guess)
                if name == "point-to-point":  # one step: no chunks to fill it with
                    wires[name] = wires[name].model_copy(update={"root": 0.0})
        if family in ADDING and not wires["all-reduce"].switched:
            wires["all-reduce"] = wires["all-reduce"].model_copy(
                update={"switched": SWITCHED["switched"][0]}
            )
    return found


def called(point: Point) -> bool:
    """True where the CPUs may be slower than the GPUs."""
    return point.per_thread > 1 or point.waits


def host_of(points: Sequence[Point], wires: Wires) -> HostFit:
    """CPUs, where they are slower than the GPUs."""
    here = [point for point in points if called(point) and not point.across]
    nowhere = {"infiniband": FabricFit(**{name: prior for name, (prior, _) in FABRIC.items()})}

    def build(numbers: dict[str, float], first: Point) -> IsolatedFit:
        host = HostFit.model_construct(None, **numbers)
        return _isolated(wires[FAMILIES[first.accelerator]], nowhere, host=host)

    return HostFit(**fitted(together(here), HOST, build))


def fabrics_of(points: Sequence[Point], wires: Wires) -> dict[str, FabricFit]:
    """Each kind of network."""
    across = [point for point in points if point.across]

    def build(numbers: dict[str, float], first: Point) -> IsolatedFit:
        fabric = FabricFit.model_construct(None, **numbers)
        return _isolated(
            wires[FAMILIES[first.accelerator]], {"infiniband": fabric, first.fabric: fabric}
        )

    found = {}
    for name in sorted({point.fabric for point in across}):
        here = [p for p in across if p.fabric == name]
        here = [p for p in here if p.quality != "noisy"] or here
        found[name] = FabricFit(**fitted(together(here), FABRIC, build))
    found.setdefault(
        "infiniband", FabricFit(**{name: prior for name, (prior, _) in FABRIC.items()})
    )
    return found


def fit(points: Sequence[Point], sources: set[str]) -> dict[str, IsolatedFit]:
    """The ``isolated`` part of each family, fitted to ``sources``."""
    mine = [point for point in points if point.source in sources]
    wires = wires_of(mine)
    host, fabrics = host_of(mine, wires), fabrics_of(mine, wires)
    return {
        family: IsolatedFit(
            wires=wires[family],
            fabrics=fabrics,
            host=host,
            fitted_to=tuple(sorted(sources)),
            source="sweeps of roofline/data/collectives.md, by scripts/fit_collectives.py",
        )
        for family in wires
    }


def report(text: str, fits: dict[str, IsolatedFit]) -> tuple[str, dict[str, Any]]:
    """Medians of held-out sources in words, and all of them."""

    def of(accelerator: str) -> IsolatedFit | None:
        return fits.get(FAMILIES.get(accelerator, ""))

    found = compare.compare(text, of)
    held = compare.summary([row for row in found.rows if not row.fitted])
    words = (
        "sources left out of the fit: median error "
        f"{held['median_error_large']:.1%} over {held['points_large']} points of 1 MB and more, "
        f"{held['median_error_small']:.1%} over {held['points_small']} smaller ones"
    )
    return words, held


def each_left_out(points: Sequence[Point], text: str) -> dict[str, Any]:
    """Medians where every source is predicted by a fit to all the others."""
    every = {point.source for point in points}
    rows = []
    for source in sorted(every):
        fits = fit(points, every - {source})
        found = compare.compare(text, lambda name, fits=fits: fits.get(FAMILIES.get(name, "")))  # type: ignore[misc]
        rows += [row for row in found.rows if row.point.source == source]
    return compare.summary(rows)


def at_random(points: Sequence[Point], text: str, deals: int) -> None:
    """Print the medians of held-out sources of deals by lot; the only ones of a kind are fitted to."""
    kinds: dict[str, set[str]] = defaultdict(set)
    for point in points:
        kinds[kind(point)].add(point.source)
    alone = {source for sources in kinds.values() if len(sources) == 1 for source in sources}
    every = sorted(set().union(*kinds.values()))
    rest = [source for source in every if source not in alone]
    for seed in range(deals):
        lot = np.random.default_rng(seed).permutation(len(rest))
        mine = {rest[i] for i in lot[: max(len(every) // 2 - len(alone), 0)]}
        print(report(text, fit(points, alone | mine))[0])


def write(fits: dict[str, IsolatedFit], words: str) -> None:
    """Put each family's part at the end of its calibrations."""
    for name in calibrations():
        path = SHIPPED / "calibrations" / f"{name}.yaml"
        if not path.exists():
            continue
        text = path.read_text("utf-8").partition("\nisolated:")[0].rstrip("\n")
        family = FAMILIES.get(yaml.safe_load(text)["accelerators"][0])  # its own part may be of old
        if family is None:
            continue
        told = (
            fits[family]
            .model_copy(update={"error": f"{words}; of others: {ELSEWHERE}"})
            .model_dump(exclude_defaults=True)
        )
        part = yaml.safe_dump({"isolated": told}, sort_keys=False, width=100)
        path.write_text(f"{text}\n{part}", "utf-8")


def main() -> None:
    """Fit, test, and write if asked."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("sweeps", type=Path, nargs="?", help="left out: those of the package")
    options.add_argument("--swap", action="store_true", help="fit to the other half")
    options.add_argument("--write", action="store_true", help="into the calibrations")
    options.add_argument("--each", action="store_true", help="leave out each source in turn")
    options.add_argument("--deals", type=int, default=0, help="deals by lot, to see the spread")
    asked = options.parse_args()
    text = asked.sweeps.read_text("utf-8") if asked.sweeps else sweeps.shipped()
    points = [p for p in sweeps.parse(text)[0] if p.accelerator in FAMILIES]
    if asked.deals:
        at_random(points, text, asked.deals)
        return
    halves = dealt(points)
    fits = fit(points, halves[asked.swap])
    words, held = report(text, fits)
    if asked.each:
        words, held = "every source left out in turn", each_left_out(points, text)
    print(*(f"{k} {v}" for k, v in held.items() if not isinstance(v, dict)))
    for way, names in held.items():
        for name, medians in names.items() if isinstance(names, dict) else ():
            print(f"{way:14} {name:16}", *(f"{k} {v}" for k, v in medians.items()))
    print(words)
    if asked.write and not (asked.swap or asked.each):
        write(fits, words)


if __name__ == "__main__":
    main()
