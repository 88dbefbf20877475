"""Published sweeps against the shipped overlays: the numbers to reach, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from validation import compare, sweeps
from validation.__main__ import app

LINE: dict[str, Any] = {
    "gpu": "H100-SXM-80GB",
    "collective": "all_reduce",
    "n_nodes": 2,
    "n_ranks": 16,
    "nic": "400G IB",
    "message_bytes": 2**30,
    "time_us": 4500.0,
}


@pytest.fixture(scope="module")
def shipped() -> dict[str, Any]:
    return compare.document(compare.compare(sweeps.shipped()))


def one(**changed: Any) -> str:
    return json.dumps(LINE | changed)


def test_sources_that_were_left_out_of_the_fit(shipped: dict[str, Any]) -> None:
    """At most 15 % from 1 MB on, 30 % below: the numbers that the tool was built to reach."""
    held = shipped["summary"]["held_out"]
    assert held["points_large"] > 500
    assert held["points_small"] > 500
    assert held["median_error_large"] <= 0.15
    assert held["median_error_small"] <= 0.30
    assert held["by_network"]["inside"]["median_error_large"] <= 0.15
    assert held["by_network"]["inside"]["median_error_small"] <= 0.30
    assert held["by_network"]["infiniband"]["median_error_large"] <= 0.15
    assert held["by_network"]["infiniband"]["median_error_small"] <= 0.30
    assert len(held["by_collective"]) == 5
    for name, found in held["by_collective"].items():
        assert found["median_error_large"] <= 0.15, name
        assert found["median_error_small"] <= 0.30, name


def test_every_published_point(shipped: dict[str, Any]) -> None:
    summary = shipped["summary"]
    assert summary["median_error_large"] <= 0.15
    assert summary["median_error_small"] <= 0.30
    assert summary["predicted"] == len(shipped["rows"])
    assert summary["predicted"] + summary["refused"] == 5295
    assert len(summary["by_collective"]) == 5
    for way in ("by_gpu", "by_collective", "by_nodes", "by_network"):
        counted = sum(m["points_large"] + m["points_small"] for m in summary[way].values())
        assert counted == len(shipped["rows"])


def test_held_out_and_fitted_share_no_source(shipped: dict[str, Any]) -> None:
    sources = {
        fitted: {r["source"] for r in shipped["rows"] if r["fitted"] == fitted}
        for fitted in (True, False)
    }
    assert not sources[True] & sources[False]
    assert len(sources[True]) > 5
    assert len(sources[False]) > 5


def test_errors_are_of_the_rows(shipped: dict[str, Any]) -> None:
    for row in shipped["rows"]:
        assert row["error"] == pytest.approx(row["predicted_s"] / row["measured_s"] - 1)


def test_a_line_is_a_point_or_a_sweep() -> None:
    points = "\n".join(
        one(message_bytes=size, time_us=time) for size, time in ((2**20, 90.0), (2**30, 4500.0))
    )
    whole = one(message_bytes=[2**20, 2**30], time_us=[90.0, 4500.0])
    a, b = compare.compare(points).rows, compare.compare(whole).rows
    assert [row.predicted for row in a] == [row.predicted for row in b]


def test_a_network_may_be_told_outright() -> None:
    """A tenth of the rate takes ten times as long, where the network is all there is to it."""
    (row,) = compare.compare(one(nic_GBps=10, collective="all_gather")).rows
    (slow,) = compare.compare(one(nic_GBps=1, collective="all_gather")).rows
    assert slow.predicted / row.predicted == pytest.approx(10, rel=0.05)
    (efa,) = compare.compare(one(fabric="efa", nic_GBps=50)).rows
    assert efa.point.fabric == "efa"


def test_collectives_have_the_names_of_programs_and_ours() -> None:
    for ours, theirs in (("all-reduce", "all_reduce"), ("point-to-point", "sendrecv")):
        mine, log = (compare.compare(one(collective=name)).rows[0] for name in (ours, theirs))
        assert mine.predicted == log.predicted


def test_how_it_was_called_is_told_by_the_sweep() -> None:
    """nccl-tests -g 8: launches of eight GPUs, one after the other, but none in a recorded graph."""
    small = {"n_nodes": 1, "n_ranks": 8, "message_bytes": 1024, "nccl_version": "2.22.3"}
    own, thread, graph, waited = (
        compare.compare(one(**small, **told)).rows[0]
        for told in (
            {},
            {"per_thread": 8},
            {"per_thread": 8, "calls": "graph"},
            {"calls": "waited for"},
        )
    )
    assert own.predicted == graph.predicted < thread.predicted
    assert waited.predicted > own.predicted + 10e-6
    both = [small | {"collective": "alltoall", "nccl_version": version} for version in ("2.22", "")]
    old, new = (compare.compare(one(**told)).rows[0] for told in both)
    assert (old.point.queues, new.point.queues) == (True, False)
    assert old.predicted > new.predicted


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"gpu": "RTX 9090"}, "gpu: 'RTX 9090' has no profile"),
        ({"collective": "all_redcue"}, "collective: 'all_redcue' is not one; .*all_reduce"),
        ({"n_ranks": 15}, "n_ranks: 15 on 2 nodes"),
        ({"n_nodes": 0}, "n_nodes: 0 is refused"),
        ({"n_nodes": 0.5}, "n_nodes: 0.5 is refused; allowed: whole numbers"),
        ({"n_nodes": 1, "n_ranks": 64}, "n_ranks: 64 on 1 nodes; a node of .* has 8 and less"),
        ({"per_thread": 1.5}, "per_thread: 1.5 is refused; allowed: whole numbers"),
        ({"per_thread": 3}, "per_thread: 3 of 8 GPUs on a node"),
        ({"nccl_version": 2.3}, "nccl_version: 2.3 is a number; allowed: a text"),
        ({"per_thread": 16}, "per_thread: 16 of 8 GPUs on a node"),
        ({"per_thread": "all"}, "per_thread: 'all' is not a number"),
        ({"calls": "graphs"}, "calls: 'graphs' is not one; .*graph"),
        ({"n_ranks": "16"}, "n_ranks: '16' is not a number"),
        ({"time_us": -1}, "time_us: -1 is refused"),
        ({"time_us": None}, "time_us: None is not a number"),
        ({"message_bytes": float("nan")}, "message_bytes: nan is refused"),
        ({"algo": "NCCL_ALGO=Ring"}, "algo: the algorithm was forced"),
        ({"algo": "inference-engine custom all-reduce"}, "no collective of NCCL"),
        ({"quality": "DEGRADED: slow"}, "quality: 'DEGRADED"),
        ({"nic": "unspecified"}, "the rate of the network is not stated"),
        ({"fabric": "token ring"}, "fabric: 'token ring' is not one"),
        ({"message_bytes": [1, 2], "time_us": [1.0]}, "message_bytes has 2 numbers, time_us 1"),
        ({"gpu": "v100-sxm", "n_nodes": 1}, "no cluster with v100-sxm"),
        ({"gpu": "rtx-4090", "n_nodes": 1, "n_ranks": 8}, "no overlay has all-reduce of rtx-4090"),
    ],
)
def test_what_cannot_be_predicted_is_listed_with_the_reason(
    changed: dict[str, Any], why: str
) -> None:
    found = compare.compare(one(**changed) + "\n" + one())
    assert len(found.rows) == 1
    (refused,) = found.refused
    with pytest.raises(ValueError, match=why):
        raise ValueError(refused.reason)


@pytest.mark.parametrize(
    ("version", "queues"),
    [
        *(("2.22.3", True), ("v2.21.5", True), ("2.21.5+cuda12.4", True), (22105, True)),
        *(("2.23.4", False), ("2.3.7", True), (22304, False), ("3.0", False), (None, False)),
        ("n/a (vllm/0.24.0)", False),
    ],
)
def test_an_old_nccl_by_any_spelling(version: object, queues: bool) -> None:
    """NCCL_VERSION_CODE of nccl.h: 2.21.5 is 22105."""
    (row,) = compare.compare(one(nccl_version=version, per_thread=None, calls=None)).rows
    assert row.point.queues is queues


@pytest.mark.parametrize("text", ["{", "[1]", "null", '"x"', "nonsense", "\x00"])
def test_lines_that_are_none(text: str) -> None:
    found = compare.compare(text + "\n\n" + one())
    assert len(found.rows) == 1
    assert found.refused[0].id == "line 1"


def test_the_screen_says_why_points_are_missing(tmp_path: Path) -> None:
    """Those of a reason together, most first."""
    file = tmp_path / "sweeps.jsonl"
    other = one(gpu="RTX 9090", message_bytes=[1, 2, 3], time_us=[1, 2, 3])
    file.write_text("\n".join((one(n_nodes=0.5), other, one())), "utf-8")
    told = CliRunner().invoke(app, ["compare-collectives", str(file)])
    assert told.exit_code == 0
    many, single = told.stderr.splitlines()
    assert told.stdout.count("1 MB and more") == 1  # no fit has seen this file
    assert " and 2 more: gpu: 'RTX 9090'" in many
    assert ": n_nodes: 0.5" in single
    assert " more: " not in single


def test_the_command(tmp_path: Path) -> None:
    file = tmp_path / "sweeps.jsonl"
    file.write_text(one() + "\n" + one(gpu="RTX 9090"), "utf-8")
    told = CliRunner().invoke(app, ["compare-collectives", str(file), "--json"])
    assert told.exit_code == 0
    found = json.loads(told.stdout)
    keys = {
        "id",
        "gpu",
        "collective",
        "nodes",
        "ranks",
        "bytes",
        "predicted_s",
        "measured_s",
        "error",
    }
    assert keys <= found["rows"][0].keys()
    assert {
        "median_error_large",
        "median_error_small",
        "by_gpu",
        "by_collective",
        "by_nodes",
    } <= found["summary"].keys()
    assert (
        "1 points predicted, 1 not"
        in CliRunner().invoke(app, ["compare-collectives", str(file)]).output
    )
    file.write_text("no\n[]\n", "utf-8")
    garbage = CliRunner().invoke(app, ["compare-collectives", str(file)])
    assert garbage.exit_code == 1
    for said in ("line 1: cut off, or not JSON", "line 2: no object", "0 points predicted, 2 not"):
        assert said in garbage.output
    assert CliRunner().invoke(app, ["compare-collectives", str(tmp_path / "none")]).exit_code == 2
    file.write_text("", "utf-8")
    assert CliRunner().invoke(app, ["compare-collectives", str(file)]).exit_code == 1
