"""``roofline plan --find``: searches over GPUs, money, batch, sequence or clusters."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import typer

from hardware_profiles import Cluster
from hardware_profiles.errors import NoNetwork
from roofline import checks, searches
from roofline.cli import inputs, output
from roofline.cli.asked import Asked, Bar, asked, limits
from roofline.compare import one_footing
from roofline.names import choose
from roofline.training import ACHIEVABLE, PEAK

FINDS = ("gpus", "money", "batch", "sequence", "cluster")


def sought(params: Mapping[str, Any]) -> str | None:
    """What is searched over, said or meant.

    Raises:
        ValueError: an unknown search, one without what it needs, or days that are not above 0.
    """
    what: str | None = params["find"]
    if params["days"] is not None:
        checks.above("days", params["days"])
    budget, days, price = (params[name] is not None for name in ("budget", "days", "price"))
    if what is not None:
        choose("find", what, dict.fromkeys(FINDS))
    elif "," in params["cluster"]:
        what = "cluster"
    elif params["gpus"] is None and budget and (days or price):
        what = "money" if price else "gpus"
    needed = {"gpus": ("budget", "days"), "money": ("budget",)}.get(what or "", ())
    for name in needed:
        if params[name] is None:
            raise ValueError(f"{name}: missing; --find {what} needs --{' and --'.join(needed)}")
    return what


def find(what: str, params: Mapping[str, Any]) -> None:
    """A search over GPUs, batch, sequence or clusters: its tries as they come, and its answer."""
    names, form = params["cluster"].split(","), output.wanted(params)
    job = _job(params, names)
    if what != "cluster":
        job.check()
    with Bar() as bar:
        search = _search(what, job, params, names, bar)
        answer = search.answer
    best = answer.best.plan if answer.best else None
    brought = answer.best.outcome if answer.best else None
    first = answer.best.row() | output.known(brought) if answer.best and brought else None
    footing = one_footing(_rows(params, names)) if _together(what, params) else ""
    launch = best.export(form) if form and best else None
    free = what in ("gpus", "money")  # nobody said how many GPUs
    if params["json"]:
        output.as_json(
            job.about()
            | ({"gpus": None} if free else {})
            | {"limits": limits(params), "find": what, "answer": answer.sentence}
            | ({"footing": footing or None} if what == "cluster" else {})
            | ({"rates": "peak", "calibration": None} if footing else {})
            | {"best": first, "tries": answer.rows()}
            | {"export": launch and output.exported(launch)}
        )
    else:
        machine = job.machine.profile.accelerator.title if free else job.line()
        if what == "cluster":
            machine = f"{job.gpus:,} GPUs of each cluster"
        output.say(f"{job.model.name} on {machine}")
        output.say(answer.sentence, style="bold")
        output.say(*([output.held(brought)] if brought else []))
        output.table(_HEAD, [_tried(one) for one in answer.tries])
    if launch is not None:
        output.hand_over(launch, params["output_file"], params["json"])
    if answer.best is None:
        raise typer.Exit(1)


def _together(what: str, params: Mapping[str, Any]) -> bool:
    """Whether clusters are compared at what each achieves."""
    return what == "cluster" and params["rates"] != "peak"


def _rows(params: Mapping[str, Any], names: list[str]) -> dict[str, Cluster]:
    """The clusters by name, as their profiles have them."""
    asked = [{**params, "cluster": name.strip(), "gpus": None} for name in names]
    profiles = [inputs.machine_of_steps(one).profile for one in asked]
    return {one.name: one for one in profiles}


def _job(params: Mapping[str, Any], names: list[str]) -> Asked:
    """The job on the first of some clusters that can hold it; the others keep their reason."""
    for name in names[:-1]:
        with suppress(NoNetwork):
            return asked({**params, "cluster": name.strip()})
    return asked({**params, "cluster": names[-1].strip()})


def _search(
    what: str, job: Asked, params: Mapping[str, Any], names: list[str], bar: Bar
) -> searches.Search:
    budget = None if params["budget"] is None else inputs.count("--budget", params["budget"])
    given: dict[str, Any] = {**job.options, **limits(params), "progress": bar}
    where = job.machine.profile
    if what == "batch":
        given.pop("tokens")
        return searches.largest_batch(job.model, where, job.gpus, **given)
    if what == "sequence":
        given.pop("sequence")
        return searches.longest_sequence(job.model, where, job.gpus, **given)
    if what == "cluster":
        given["rates"] = ACHIEVABLE if _together(what, params) else PEAK
        return searches.over_clusters(job.model, _rows(params, names), job.gpus, **given)
    assert budget is not None, "checked by _sought"
    if params["gpus"] is not None:
        given["most"] = job.gpus
    if what == "gpus":
        return searches.smallest(
            job.model, where, budget=budget, days=params["days"], price=params["price"], **given
        )
    limit = {} if params["days"] is None else {"days": params["days"]}
    return searches.cheapest(
        job.model, where, budget=budget, price=params["price"], **limit, **given
    )


_HEAD = (">value", ">step", ">tokens/s a GPU", ">MFU", ">memory", ">time", ">money", "layout")


def _tried(one: searches.Try) -> tuple[str, ...]:
    row = one.row()
    each = None if row["tokens_per_s"] is None else row["tokens_per_s"] / row["gpus"]
    value = f"{row['value']:,}" if isinstance(row["value"], int) else str(row["value"])
    return (
        value,
        output.number(row["step_s"], "s"),
        output.number(each),
        "–" if row["mfu"] is None else f"{row['mfu']:.1%}",
        output.number(row["memory_bytes"], "B"),
        output.number(row["train_s"], "s"),
        "–" if row["money"] is None else f"{row['money']:,.0f}",
        row["layout"] or row["reason"],
    )
