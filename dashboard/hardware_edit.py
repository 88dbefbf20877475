"""Editing a copy of a profile, without streamlit: the draft is a YAML text, checked as a whole.

A form field and the text editor change the same draft. ``check`` reads it and hands every complaint
to the field that it is about. ``signed`` writes into the sources which numbers were set by hand, so
that a changed number never stands beside a source that says another.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import yaml

import hardware_profiles as hw
from dashboard.hardware_tables import name
from hardware_profiles import Accelerator, Cluster, NetworkTier, ProfileError, reading
from hardware_profiles.errors import nearest
from hardware_profiles.writing import unit_of, written

MOST_GPUS = 10_000_000  # more than there are; the sidebar counts them exactly
DTYPES = ("bf16", "fp16", "fp8", "fp4")  # that the sidebar offers to train in
LONGEST = {"name": 60, "title": 120}
BY_HAND = "set by hand on the hardware page"
_WHERE = "profile"
_FIELD = re.compile(r"([A-Za-z_][\w.-]*): (.*)", re.DOTALL)
_MEANT = re.compile(r"did you mean (.+?)\?")


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with one field of a draft, and values that would be right."""

    field: str  # dotted path; empty when it is the text itself
    message: str
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Checked:
    """A draft after reading: the cluster it describes, or why it describes none."""

    cluster: Cluster | None
    problems: tuple[Problem, ...]

    def about(self, field: str) -> list[Problem]:
        """The complaints about one field."""
        return [problem for problem in self.problems if problem.field == field]


@dataclass(frozen=True, slots=True)
class Change:
    """A number of a copy that differs from its original's."""

    field: str
    before: str
    after: str


def start(base: Cluster, taken: Iterable[str]) -> str:
    """A copy of ``base`` under a free name, as YAML with units."""
    name, names = f"my-{base.name}"[: LONGEST["name"]], set(taken)
    name = next(n for n in (name, *(f"{name}-{i}" for i in range(2, 1000))) if n not in names)
    return hw.to_yaml(
        base.model_copy(update={"name": name, "title": f"{base.title}, edited"[:120]})
    )


def check(text: str, shipped: Iterable[str]) -> Checked:
    """Read a draft; ``shipped`` are names that stay the catalogue's."""
    try:
        cluster = cluster_of(text)
    except ProfileError as error:
        lines = str(error).split(f"\n{_WHERE}: ")
        found = tuple(_problem(line.removeprefix(f"{_WHERE}: "), text) for line in lines)
        # Where every tier is wrong, pydantic adds that no tier is left; the tiers say it better.
        return Checked(
            None, tuple(p for p in found if "after validation" not in p.message) or found
        )
    problems = tuple(_unusable(cluster, shipped))
    return Checked(None if problems else cluster, problems)


def cluster_of(text: str, base: Cluster | None = None) -> Cluster:
    """The cluster in a text; an accelerator takes its place in a copy of ``base``.

    A path is no accelerator here: a stranger's text must not make this machine open files.

    Raises:
        ProfileError: naming the field, the value and what is allowed.
    """
    named = reading.mapping(text, _WHERE).get("accelerator")
    if isinstance(named, str) and named not in hw.accelerators():
        raise ProfileError(
            f"{_WHERE}: accelerator: {named[:80]!r} is not in the catalogue; "
            f"{nearest(named, hw.accelerators())}"
        )
    found = hw.read(text, _WHERE)
    if isinstance(found, Cluster):
        return found
    if base is None:
        raise ProfileError(f"{_WHERE}: tiers: missing; this is an accelerator without a cluster")
    update = {
        "name": f"my-{found.name}"[: LONGEST["name"]],
        "title": f"{found.title} in place of {base.accelerator.title}"[: LONGEST["title"]],
        "accelerator": found,
        "price": None,
        "price_source": "",
    }
    return base.model_copy(update=update)


def upload(data: bytes, base: Cluster) -> str:
    """An uploaded file as a draft.

    Raises:
        ProfileError: when it is no text, or no profile.
    """
    if len(data) > reading.MAX_BYTES:
        raise ProfileError(f"{len(data):,} bytes are no profile; allowed: {reading.MAX_BYTES:,}")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ProfileError("not text in UTF-8; a profile is a YAML or JSON file") from None
    return text if "tiers" in reading.mapping(text, _WHERE) else hw.to_yaml(cluster_of(text, base))


def _problem(line: str, text: str) -> Problem:
    found = _FIELD.fullmatch(line)
    field, message = (found[1], found[2]) if found else ("", line)
    meant = _MEANT.search(message)
    choices = tuple(meant[1].split(" or ")) if meant else ()
    if field.endswith(".bandwidth") and "of the tier inside it" in message:
        inner = NetworkTier.model_validate(get(text, f"tiers.{int(field.split('.')[1]) - 1}"))
        choices = (
            written(inner.degree * inner.effective_bandwidth, "B/s"),
        )  # what all children send
    return Problem(field, message, choices)


def _unusable(cluster: Cluster, shipped: Iterable[str]) -> Iterator[Problem]:
    """What a profile may say in a file, but not as a choice of the sidebar."""
    if cluster.name in shipped:
        taken = f"{cluster.name!r} is the catalogue's; call a copy otherwise"
        yield Problem("name", taken, (f"my-{cluster.name}",))
    for field, longest in LONGEST.items():
        value = getattr(cluster, field)
        if len(value) > longest or not value.isprintable():
            yield Problem(
                field, f"{value[:30]!r}…; allowed: one line of up to {longest} characters"
            )
    if cluster.gpus > MOST_GPUS:
        product = f"{cluster.gpus:.3g} GPUs by the product of all degrees"
        yield Problem("tiers", f"{product}; allowed: up to {MOST_GPUS:,}")
    if not {*DTYPES} & {*cluster.accelerator.peak_flops}:
        allowed = f"allowed: a rate for at least one of {', '.join(DTYPES)}"
        yield Problem("accelerator.peak_flops", allowed)


def get(text: str, field: str) -> Any:
    """The value at a dotted path of a draft, None where it is not given."""
    value: Any = _read(text)
    for key in field.split("."):
        if isinstance(value, list):
            value = value[int(key)] if key.isdigit() and int(key) < len(value) else None
        else:
            value = value.get(key) if isinstance(value, dict) else None
    return value


@lru_cache(maxsize=8)
def _read(text: str) -> dict[str, Any]:
    """A draft's mapping for looking things up, which a form does for every field of it."""
    return reading.mapping(text, _WHERE)


def put(text: str, field: str, value: Any) -> str:
    """The draft with ``value`` at a dotted path; None takes the field away."""
    data = reading.mapping(text, _WHERE)
    *path, last = field.split(".")
    inner: Any = data
    for key in path:
        inner = inner[int(key)] if isinstance(inner, list) else inner[key]
    if isinstance(inner, list):
        inner[int(last)] = value
    elif value is None:
        inner.pop(last, None)
    else:
        inner[last] = value
    return _dump(data)


def typed(text: str) -> Any:
    """What a person typed: a whole number, a number, or a text that carries its unit."""
    text = text.strip()
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def with_accelerator(text: str, name: str) -> str:
    """The draft with an accelerator of the catalogue in place of its own."""
    chip = yaml.safe_load(hw.to_yaml(hw.accelerator(name)))
    chip.pop("kind")
    data = reading.mapping(text, _WHERE)
    return _dump({key: chip if key == "accelerator" else data[key] for key in data})


def grown(text: str, cluster: Cluster) -> str:
    """The draft with one more tier outside, as fast per GPU as the outermost one."""
    data, outer = reading.mapping(text, _WHERE), cluster.tiers[-1]
    names = {tier.name for tier in cluster.tiers}
    free = (name for name in ("super-spine", "hall", "campus", f"tier {len(names)}"))
    data["tiers"].append({
        "name": next(name for name in free if name not in names),
        "degree": 2,
        "bandwidth": written(outer.degree * outer.effective_bandwidth, "B/s"),
        "latency": written(outer.latency, "s"),
        "technology": outer.technology,
        "source": BY_HAND,
    })  # fmt: skip
    return _dump(data)


def shrunk(text: str) -> str:
    """The draft without its outermost tier."""
    data = reading.mapping(text, _WHERE)
    data["tiers"].pop()
    return _dump(data)


def _dump(data: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(data), sort_keys=False, allow_unicode=True, width=100)


def changes(base: Cluster, copy: Cluster) -> list[Change]:
    """The numbers of ``copy`` that are not ``base``'s, with both values."""
    found = []
    if copy.accelerator.name != base.accelerator.name:
        found.append(Change("accelerator", base.accelerator.title, copy.accelerator.title))
    else:
        was, now = base.accelerator.numbers(), copy.accelerator.numbers()
        found += _differ("accelerator", Accelerator, was, now)
    for i, tier in enumerate(copy.tiers):
        old = base.tiers[i] if i < len(base.tiers) else None
        if old is None:
            found.append(Change(f"tiers.{i}", "–", f"{tier.name}, new"))
            continue
        was, now = ({f: getattr(t, f) for f in NetworkTier.model_fields} for t in (old, tier))
        found += _differ(f"tiers.{i}", NetworkTier, was, now)
    gone = base.tiers[len(copy.tiers) :]
    return found + [Change("tiers", tier.name, "taken away") for tier in gone]


def _differ(path: str, model: Any, was: Mapping[str, Any], now: Mapping[str, Any]) -> list[Change]:
    return [
        Change(f"{path}.{field}", *(_said(model, field, v.get(field)) for v in (was, now)))
        for field in {**was, **now}
        if was.get(field) != now.get(field) and field != "source"
    ]


def _said(model: Any, field: str, value: Any) -> str:
    unit = unit_of(model, field.split(".")[0])
    if value is None:
        return "–"
    return written(value, unit) if unit else f"{value:g}" if type(value) is float else str(value)


def said(cluster: Cluster, field: str) -> str:
    """A dotted path as a person says it: the tier by its name, the field in words."""
    part, _, rest = field.partition(".")
    if part != "tiers" or not rest:
        return name(rest.rsplit(".", 1)[-1]) if rest else part
    index, _, what = rest.partition(".")
    return f"{cluster.tiers[int(index)].name} {name(what)}".strip()


def signed(base: Cluster, copy: Cluster) -> Cluster:
    """``copy`` with a word in the source of each number that was changed but cites the old one."""
    sources, tiers = dict(copy.accelerator.sources), list(copy.tiers)
    for change in changes(base, copy):
        part, _, field = change.field.partition(".")
        note = f"{BY_HAND}: {change.after} (was {change.before})"
        if part == "accelerator" and field:
            if copy.accelerator.source_of(field) == base.accelerator.source_of(field):
                sources[field] = f"{note}; {copy.accelerator.source_of(field)}"
        elif field.count("."):
            i, what = int(field.split(".")[0]), field.split(".")[1]
            if copy.tiers[i].source == base.tiers[i].source:
                source = f"{what} {note}; {tiers[i].source}"
                tiers[i] = tiers[i].model_copy(update={"source": source})
    chip = copy.accelerator.model_copy(update={"sources": sources})
    return copy.model_copy(update={"accelerator": chip, "tiers": tuple(tiers)})
