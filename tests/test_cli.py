"""The command line: its numbers are the library's, and what it refuses it refuses in one line."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import hardware_profiles as hw
from roofline import (
    ALL_REDUCE,
    ALL_TO_ALL,
    COLLECTIVES,
    STRATEGIES,
    Group,
    Workload,
    algorithms,
    bubbles,
    collective,
    presets,
    routing,
    strategies,
    worked,
)
from roofline.cli import app
from roofline.cli.output import plain, readable
from roofline.strategies.sweeps import degrees

ROOT = Path(__file__).parent.parent
H100 = hw.cluster("dgx-h100-superpod")
COMMANDS = [
    "strategies",
    "collectives",
    "placement",
    "guide",
    "bubbles",
    "worked",
    "hardware list",
    "hardware show",
    "hardware check",
    "hardware schema",
]

POINT = {
    "degree", "t_math", "t_comms", "t_lower", "t_upper", "compute_bound", "binding_tier", "math",
    "comms", "threshold", "sentence",
}  # fmt: skip
RESULT = {
    "op", "algorithm", "array_bytes", "nccl_bytes", "time", "time_one_tier_after_the_other",
    "latency", "algbw", "busbw", "binding_tier", "tiers", "steps", "messages", "busiest_bytes",
    "memory", "note", "source",
}  # fmt: skip


def run(line: str) -> Any:
    """What Typer's runner has of a command: exit_code, stdout, stderr, exception."""
    return CliRunner().invoke(app, shlex.split(line))


def document(line: str) -> dict[str, Any]:
    """The JSON that a command prints, with nothing else, NaN and infinity refused."""
    result = run(f"{line} --json")
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    found: dict[str, Any] = json.loads(result.stdout, parse_constant=refuse)
    return found


def refused(line: str) -> str:
    """The one line on standard error of a command that ends with exit code 2."""
    result = run(line)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    (message,) = result.stderr.splitlines()
    assert message.startswith("Error: ")
    return message.removeprefix("Error: ")


class TestHelp:
    @pytest.mark.parametrize("command", ["", *COMMANDS])
    def test_help_is_given(self, command: str) -> None:
        result = run(f"{command} --help")
        assert result.exit_code == 0
        assert "Usage: " in result.stdout

    def test_nothing_asked_is_help(self) -> None:
        assert "strategies" in run("").stdout
        assert "dgx-h100-superpod" in run("hardware").stdout

    def test_start_is_light(self) -> None:
        """The help of the whole takes no dashboard and no torch, and runs as a module."""
        program = "import sys, roofline.cli; print(*{m.partition('.')[0] for m in sys.modules})"
        command = [sys.executable, "-c", program]
        loaded = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        assert not {"streamlit", "plotly", "torch", "pandas"} & set(loaded.stdout.split())
        command = [sys.executable, "-m", "roofline", "--help"]
        helped = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        assert "collectives" in helped.stdout

    def test_a_terminal_without_our_signs_does_not_break(self) -> None:
        command = [sys.executable, "-m", "roofline", "collectives", "--bytes", "1kB"]
        ascii_only = os.environ | {"PYTHONIOENCODING": "ascii"}
        subprocess.run(command, cwd=ROOT, env=ascii_only, capture_output=True, check=True)


def documented() -> list[str]:
    texts = [(ROOT / name).read_text("utf-8") for name in ("README.md", "docs/cli.md")]
    lines = re.findall(r"^python -m roofline ([a-z].*?)(?: +#.*)?$", "\n".join(texts), re.MULTILINE)
    return [line for line in dict.fromkeys(lines) if "my-cluster" not in line]


@pytest.mark.parametrize("line", documented())
def test_documented_command_runs(line: str) -> None:
    result = run(line)
    assert result.exit_code == 0, result.output
    assert result.stdout.strip()


def keys_of(value: Any) -> set[str]:
    """Keys of a document at any depth, but not those of profiles, inputs and options."""
    if isinstance(value, list):
        return set().union(*map(keys_of, value))
    if not isinstance(value, dict):
        return set()
    inside = [keys_of(v) for k, v in value.items() if k not in ("profile", "inputs", "options")]
    return set(value).union(*inside)


@pytest.mark.parametrize(
    "line",
    [
        "strategies",
        "collectives",
        "hardware list",
        "hardware show dgx-h100-superpod",
        "placement tensor=1024",
        "guide",
        "bubbles",
        "explain --gpus 64 --model llama-3-8b --budget 1T --price 2 --measured 99",
        "worked",
    ],
)
def test_every_key_is_documented(line: str) -> None:
    text = (ROOT / "docs" / "cli.md").read_text("utf-8")
    assert not [key for key in sorted(keys_of(document(line))) if f"`{key}`" not in text]


class TestStrategies:
    @pytest.mark.parametrize(
        ("line", "options"),
        [
            ("--strategy data_parallel --form rough", {"form": "rough", "phase": "backward"}),
            ("--strategy data_parallel --zero 1 --model-parallel 8", {"zero": 1, "model_parallel": 8}),
            ("--strategy fsdp", {}),
            ("--strategy tensor_parallel --phase step", {"phase": "step"}),
            ("--strategy tensor_parallel --set gather_again=true --phase backward",
             {"gather_again": True, "phase": "backward"}),
            ("--strategy pipeline_parallel --set chunks=2 --microbatches 32",
             {"chunks": 2, "microbatches": 32}),
            ("--strategy mixed", {}),
            ("--strategy mixed --set axes=2,1 --set hierarchical=false",
             {"axes": (2, 1), "hierarchical": False}),
        ],
    )  # fmt: skip
    def test_numbers_are_the_librarys(self, line: str, options: dict[str, Any]) -> None:
        found = document(f"strategies {line} --degree 16 --tokens 4M")["strategies"][0]
        entry = STRATEGIES[found["strategy"]]
        work = presets.workload("llama-3-70b", 4e6)
        bound = entry.bound(work, H100, 16, **{"phase": entry.phase, **options})
        (point,) = found["points"]
        assert point.keys() == POINT
        assert point["t_math"] == float(bound.t_math)
        assert point["t_comms"] == float(bound.t_comms)
        assert point["threshold"]["needed"] == plain(float(bound.threshold.needed))
        assert point["sentence"] == bound.sentence()
        assert [term["name"] for term in point["comms"]] == [term.name for term in bound.comms]

    def test_threshold_of_the_book(self) -> None:
        """How to Scale Your Model, "GPUs": C/W beyond a node of H100s, with 989.4 for its 990."""
        found = document("strategies --strategy data_parallel --form rough --degree 64")
        needed = found["strategies"][0]["points"][0]["threshold"]["needed"]
        assert needed == pytest.approx(2475 * 989.4 / 990)

    def test_crossing_is_where_the_times_meet(self) -> None:
        found = document("strategies --strategy data_parallel --tokens 1M")["strategies"][0]
        (crossing,) = found["crossings"]
        work = presets.workload("llama-3-70b", 1e6)
        around = np.array([np.floor(crossing), np.ceil(crossing)])
        there = strategies.data_parallel.bound(work, H100, around)
        assert there.compute_bound.tolist() == [True, False]
        np.testing.assert_allclose(there.t_math, there.t_comms, rtol=0.02)
        assert found["swept"] == [1, 1024]

    def test_all_of_them(self) -> None:
        found = document("strategies --zero 1")["strategies"]
        assert [each["strategy"] for each in found] == list(STRATEGIES)
        for each in found:
            assert ("zero" in each["options"]) == (each["strategy"] == "data_parallel")
            assert bool(each["points"]) == (each["strategy"] != "expert_parallel")
        assert "--experts" in found[list(STRATEGIES).index("expert_parallel")]["refused"]

    def test_layer_of_ones_own(self) -> None:
        line = (
            "--d-model 8Ki --d-ff 2048 --matrices 3 --experts 64 --top-k 4 --layers 2 --tokens 4Mi"
        )
        work = document(f"strategies {line} --weight-bytes 1 --dtype fp8")["workload"]
        assert work == {
            "model": None, "tokens": 2**22, "d_model": 8192, "d_ff": 2048, "matrices": 3,
            "experts": 64, "experts_per_token": 4, "layers": 2, "weight_bytes": 1,
            "gradient_bytes": 2, "activation_bytes": 2,
        }  # fmt: skip

    def test_option_changes_a_published_model(self) -> None:
        work = document("strategies --model llama-3-8b --layers 2")["workload"]
        assert (work["model"], work["layers"], work["d_model"]) == ("llama-3-8b", 2, 4096)

    def test_rates(self) -> None:
        peak = document("strategies --gpus 512")
        achieved = document("strategies --gpus 512 --rates achievable")
        assert (peak["gpus"], peak["rates"], peak["calibration"]) == (512, "peak", None)
        assert achieved["calibration"] == "h100"
        assert achieved["flops"] < peak["flops"]
        assert document("strategies --rates h100")["flops"] == achieved["flops"]

    def test_degrees(self) -> None:
        line = "strategies --strategy tensor_parallel --degree 3 --degree 1:8 --degree 8:24:8"
        points = document(line)["strategies"][0]["points"]
        assert [point["degree"] for point in points] == [3, 1, 2, 4, 8, 8, 16, 24]

    def test_degree_one_costs_nothing(self) -> None:
        """No communication, so infinite headroom: null in JSON."""
        found = document("strategies --strategy tensor_parallel --degree 1")
        point = found["strategies"][0]["points"][0]
        assert (point["t_comms"], point["binding_tier"]) == (0, None)
        assert point["threshold"]["headroom"] is None

    def test_table(self) -> None:
        """One verdict and each term, for one point; a row a degree, for several."""
        one = run("strategies --strategy data_parallel --degree 64").stdout
        assert "Data parallelism is compute-bound: 62,500 tokens per GPU" in one
        assert "gradient all-reduce" in one
        many = run("strategies --strategy tensor_parallel").stdout
        assert re.search(r"^\s+1,024 .*scalable unit.*comms\s*$", many, re.MULTILINE)
        assert "compute-bound up to" in many


def test_swept_degrees_fill_units() -> None:
    """128 nodes of 8: every number in a node, whole nodes to 256, whole scalable units to 1024."""
    work = Workload(1e6, 8192, 28672, experts=48, layers=24)
    found = degrees("tensor_parallel", work, H100)
    assert found.tolist() == [*range(1, 9), *range(16, 257, 8), 512, 768, 1024]
    assert degrees("pipeline_parallel", work, H100).tolist() == [*range(1, 9), 16, 24]
    assert degrees("expert_parallel", work, H100).tolist() == [1, 2, 3, 4, 6, 8, 12, 16, 24, 48]
    assert degrees("mixed", work, H100).tolist() == [2**n for n in range(11)]
    assert degrees("data_parallel", work, H100, inner=256).tolist() == [1, 2, 3, 4]
    assert degrees("data_parallel", work, H100, inner=2048).size == 0


class TestCollectives:
    def test_numbers_are_the_librarys(self) -> None:
        line = "collectives --bytes 64MiB --ranks 64 --stride 8 --latency --form rough --alone"
        found = document(line)
        assert [each["op"] for each in found["results"]] == list(COLLECTIVES)
        for each in found["results"]:
            time = collective(
                COLLECTIVES[each["op"]],
                2.0**26,
                Group(64, 8, alone=True),
                H100.tiers,
                form="rough",
                latency=True,
            )
            assert each.keys() == RESULT
            assert each["time"] == float(time.seconds)
            assert each["binding_tier"] == str(time.binding)
            assert [tier["time"] for tier in each["tiers"]] == [float(t) for t in time.by_tier]

    def test_bus_bandwidth_is_the_link(self) -> None:
        """nccl-tests, "Performance": busbw of a ring inside one node is the link, 450 GB/s."""
        found = document("collectives --ranks 8")["results"]
        ring = [each for each in found if each["op"] in ("all-gather", "all-reduce", "all-to-all")]
        assert [each["busbw"] for each in ring] == [pytest.approx(450e9)] * 3

    def test_siblings_share_the_uplink(self) -> None:
        (found,) = document("collectives --op all-reduce --ranks 64 --stride 8")["results"]
        assert [tier["siblings"] for tier in found["tiers"]] == [1, 8, 8]
        assert [tier["children"] for tier in found["tiers"]] == [1, 32, 2]

    def test_every_algorithm(self) -> None:
        line = "collectives --op all-reduce --bytes 1GB --ranks 8 --algorithm all"
        found = {each["algorithm"]: each for each in document(line)["results"]}
        assert {"hierarchical", "ring", "tree", "butterfly", "central server"} <= found.keys()
        for name in found.keys() - {"hierarchical", "ring", "tree"}:
            assert found[name]["time"] == pytest.approx(algorithms.time(name, 1e9, 8, 450e9))
            assert found[name]["steps"] == algorithms.steps(name, 8)
        six = document("collectives --op all-reduce --ranks 6 --algorithm all")["results"]
        assert "butterfly" not in [each["algorithm"] for each in six]

    def test_routed(self) -> None:
        line = "collectives --op all-to-all --bytes 1GB --ranks 64 --top-k 8 --experts 256"
        (found,) = document(line)["results"]
        tiers, group = H100.tiers, Group(64)
        ragged = routing.ragged_all_to_all(1e9, 8, group, tiers, form="distinct", experts=256)
        assert found["time"] == float(ragged.seconds)
        (found,) = document("collectives --op dispatch --bytes 59MB --ranks 64 --top-k 8")[
            "results"
        ]
        assert found["time"] == float(routing.dispatch(59e6, 8, group, tiers).seconds)
        assert found["algorithm"] == "bound"

    def test_size_of_nccl_tests(self) -> None:
        (found,) = document("collectives --op all-to-all --ranks 8 --bytes 1MB --nccl-size")[
            "results"
        ]
        assert (found["array_bytes"], found["nccl_bytes"]) == (8e6, 1e6)
        assert found["time"] == float(collective(ALL_TO_ALL, 8e6, Group(8), H100.tiers).seconds)

    def test_switches_that_add(self) -> None:
        line = "collectives --op all-reduce --ranks 8 --in-network theory"
        (found,) = document(line)["results"]
        time = collective(ALL_REDUCE, 1e9, Group(8), H100.tiers, in_network="theory")
        assert found["time"] == float(time.seconds)

    def test_one_rank_moves_nothing(self) -> None:
        for each in document("collectives --ranks 1")["results"]:
            assert (each["time"], each["algbw"], each["binding_tier"]) == (0, None, None)

    def test_table(self) -> None:
        shown = run("collectives --op all-gather --ranks 8").stdout
        assert "all-gather, hierarchical: 1.94 ms, algbw 514 GB/s, busbw 450 GB/s" in shown


class TestHardware:
    def test_list(self) -> None:
        found = document("hardware list")
        assert [row["name"] for row in found["accelerators"]] == hw.accelerators()
        assert [row["name"] for row in found["clusters"]] == hw.clusters()
        assert [row["name"] for row in found["calibrations"]] == hw.calibrations()
        assert document("hardware list --kind accelerator").keys() == {"accelerators"}

    def test_show_cluster(self) -> None:
        """How to Scale Your Model, "GPUs": 400 GB/s out of a node, 413 GB/s over all."""
        found = document("hardware show dgx-h100-superpod")
        assert (found["kind"], found["gpus"]) == ("cluster", 1024)
        assert found["tiers"][0]["egress"] == 400e9
        assert found["slowest_collective"]["bandwidth"] == pytest.approx(413e9, rel=1e-3)
        assert found["profile"]["accelerator"]["hbm_bytes"] == 80e9
        assert all(number["source"] for number in found["numbers"])

    def test_show_accelerator(self) -> None:
        """How to Scale Your Model, "GPUs", quiz 1: 16,896 lanes in an H100."""
        found = document("hardware show h100-sxm --dtype fp8")
        assert (found["kind"], found["cuda_cores"], found["tiers"]) == ("accelerator", 16896, None)
        shown = run("hardware show h100-sxm").stdout
        assert "hbm_bandwidth 3.35 TB/s" in shown

    def test_show_has_one_ladder(self) -> None:
        """32 banks of 4 bytes a cycle on 132 SMs; CUDA C++ Programming Guide, "Shared memory"."""
        ladder = document("hardware show h100-sxm")["ladder"]
        names = [rung["level"] for rung in ladder]
        assert names == ["registers", "shared memory", "L2", "HBM"]
        assert ladder[1]["bandwidth"] == pytest.approx(132 * 128 * 1.83e9)
        assert all(rung["bandwidth"] for rung in ladder)

    def test_own_files_in_place_of_shipped_ones_are_marked(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "h100-sxm.yaml").write_text(hw.to_yaml(hw.accelerator("h100-sxm")), "utf-8")
        monkeypatch.setenv("ROOFLINE_PROFILES", str(tmp_path))
        rows = {row["name"]: row for row in document("hardware list")["accelerators"]}
        assert [name for name, row in rows.items() if row["overrides"]] == ["h100-sxm"]
        assert rows["h100-sxm"]["file"] == str(tmp_path / "h100-sxm.yaml")
        assert "h100-sxm *" in run("hardware list").stdout
        for name in ("h100-sxm", "dgx-h100-superpod"):
            (said,) = document(f"hardware show {name}")["overrides"]
            assert (
                said
                == f"* h100-sxm is your {tmp_path / 'h100-sxm.yaml'}, in place of the shipped one"
            )
            assert "in place of the shipped one" in " ".join(
                run(f"hardware show {name}").stdout.split()
            )
        assert document("hardware show b200-sxm")["overrides"] == []

    def test_check(self, tmp_path: Path) -> None:
        good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
        good.write_text(hw.to_yaml(H100), "utf-8")
        bad.write_text(
            hw.to_yaml(H100).replace("450 GB/s", "450 apples").replace("degree: 32", "degree: 0")
        )
        result = run(f"hardware check {good}")
        assert (result.exit_code, "ok, cluster dgx-h100-superpod" in result.stdout) == (0, True)
        result = run(f"hardware check {good} {bad}")
        assert result.exit_code == 1
        problems = [line for line in result.stdout.splitlines() if line.startswith(str(bad))]
        assert len(problems) == 2 + problems[0].count("links")
        found = json.loads(run(f"hardware check {bad} --json").stdout)
        assert not found["ok"]
        assert found["files"][0]["problems"] == problems

    def test_check_in_this_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        Path("mine").write_text(hw.to_yaml(hw.accelerator("h100-sxm")), "utf-8")
        assert "ok, accelerator h100-sxm" in run("hardware check mine").stdout

    @pytest.mark.parametrize("name", ["h100", "mi300x"])
    def test_check_calibration(self, name: str) -> None:
        file = ROOT / "hardware_profiles" / "catalog" / "calibrations" / f"{name}.yaml"
        assert f"ok, calibration {name}" in run(f"hardware check {file}").stdout

    def test_broken_yaml(self, tmp_path: Path) -> None:
        broken = tmp_path / "broken.yaml"
        broken.write_text("name: [x\n")
        result = run(f"hardware check {broken}")
        assert result.exit_code == 1
        assert "not plain YAML" in result.stdout
        assert "not plain YAML" in refused(f"strategies --cluster {broken}")

    def test_broken_profile_is_listed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "mine.yaml").write_text("kind: cluster\nname: mine\n")
        monkeypatch.setenv("ROOFLINE_PROFILES", str(tmp_path))
        (row,) = [r for r in document("hardware list")["clusters"] if r["name"] == "mine"]
        assert "missing" in row["error"]
        assert "mine: " in run("hardware list").stdout

    def test_schema(self) -> None:
        assert json.loads(run("hardware schema").stdout).keys() == {"accelerator", "cluster"}


class TestLayouts:
    def test_placement(self) -> None:
        """TP in the node; four stages beside each other; replicas over all of it."""
        found = document("placement tensor=8 pipeline=4 data=?")["axes"]
        assert [(a["axis"], a["degree"], a["stride"]) for a in found] == [
            ("tensor", 8, 1),
            ("pipeline", 4, 8),
            ("data", 32, 32),
        ]
        assert [a["crossed"] for a in found] == [
            ["node"],
            ["scalable unit"],
            ["scalable unit", "SuperPod"],
        ]
        assert "scalable unit" in run("placement tensor=8 data=128").stdout

    def test_guide(self) -> None:
        """Hugging Face, "Parallelism methods": a model that fits one GPU of a node takes DDP."""
        found = document("guide --model llama-2-7b --gpus 8 --bytes-per-parameter inference")
        assert found["situation"]["model_fits_one_gpu"]
        assert [choice["name"] for choice in found["choices"]] == ["DDP", "ZeRO"]

    def test_bubbles(self) -> None:
        found = document("bubbles --stages 4 --microbatches 12")["schedules"]
        assert [row["schedule"] for row in found] == list(bubbles.SCHEDULES)
        by_name = {row["schedule"]: row for row in found}
        assert by_name["1f1b"]["ratio"] == 0.25  # (p-1)/m, Megatron-LM section 2.2.1
        few = document("bubbles --stages 8 --microbatches 4")["schedules"]
        assert "microbatches" in {row["schedule"]: row for row in few}["dualpipe"]["refused"]


class TestWorked:
    def test_counts(self) -> None:
        found = document("worked")
        results = worked.check()
        assert found["solved"] == found["passed"] == len(results) == len(found["problems"])
        assert found["errata"] == sum(result.problem.erratum for result in results)
        assert f"{len(results)} of {len(results)} worked problems" in run("worked").stdout

    def test_one(self) -> None:
        (found,) = document("worked --id q2.3-allgather-time")["problems"]
        assert found["ours"] == pytest.approx(1.04e-3, rel=5e-3)
        assert found["printed"] == "1.04ms"
        assert "1.04ms (rounds)" in run("worked --id q2.3-allgather-time").stdout

    def test_errata(self) -> None:
        rows = document("worked --errata")["problems"]
        assert {row["status"] for row in rows} == {"erratum"}
        assert "q5.2.3-tp-limit" in run("worked --errata").stdout

    def test_a_failure_is_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        wrong = [worked.Result(worked.problems()[0], 1.0)]
        monkeypatch.setattr(worked, "check", lambda: wrong)
        result = run("worked")
        assert result.exit_code == 1
        assert "WRONG" in result.stdout
        assert json.loads(run("worked --failed --json").stdout)["passed"] == 0


BAD = {
    "strategis": "Did you mean 'strategies'",
    "strategies --cluster dgx-h10-superpod": "--cluster: no cluster is called .* dgx-h100-superpod",
    "strategies --cluster nope.yaml": "--cluster: nope.yaml: cannot be read: No such file",
    "strategies --strategy data_paralel": "--strategy: 'data_paralel' .* nearest are data_parallel",
    "strategies --dtype fp7": "--dtype: h100-sxm has no fp7 rate; it has .*bf16",
    "strategies --tokens '7 apples'": "--tokens: '7 apples' is refused; allowed: .*4M",
    "strategies --tokens 0": "--tokens: '0' is refused; allowed: 1 and more",
    "strategies --tokens 1e999": "--tokens: '1e999' is refused",
    "strategies --degree 0": "--degree: 0 is refused; allowed: 1 to",
    "strategies --degree eight": "--degree: 'eight' is refused; allowed: 8, 1:1024",
    "strategies --degree 8:1": "--degree: '8:1' runs backwards; the nearest is '1:8'",
    "strategies --degree 1:100000:1": "--degree: .* are refused; allowed: 4096 at once",
    "strategies --strategy fsdp --degree 2048": "--degree 2048: .* the machine has 1,024",
    "strategies --strategy data_parallel --model-parallel 4096": "--model-parallel: 4096 is refused",
    "strategies --gpus 1000": "--gpus: 1000 GPUs do not fill whole units .* 768 and 1024",
    "strategies --gpus 0": "--gpus: 0 is refused; allowed: 1 to",
    "strategies --gpus many": "--gpus: 'many' is refused; ",
    "strategies --gpus=99999999999999999999": "--gpus: 99999999999999999999 is refused",
    "strategies --rates best": "--rates: no calibration is called 'best'; allowed: .*h100",
    "strategies --rates achievable --cluster rtx-4090-box": "--rates: nobody has calibrated",
    "strategies --model llama": "--model: 'llama' is not one; the nearest are llama-2-7b",
    "strategies --d-model 8192": "--d-ff: missing",
    "strategies --d-ff 8192": "--d-model: missing",
    "strategies --layers 0": "--layers: 0 is refused; allowed: above 0",
    "strategies --matrices 4": "--matrices: 4 is refused; allowed: 2, 3",
    "strategies --bytes-per-element 0": "--bytes-per-element: 0 is refused; allowed: above 0",
    "strategies --strategy dp": "--strategy: 'dp' .*; allowed: data_parallel, fsdp, tensor_par.*mixed",
    "strategies --strategy mixed --degree 24": "--degree.* 24 does not divide 1,024 .* 16 and 32",
    "strategies --strategy pipeline_parallel --degree 96": "--degree.* 96 stages for 80 layers",
    "placement tensor=8 tensor=4 data=?": "AXIS: 'tensor' is given twice",
    "placement tensr=8 data=?": "AXIS: 'tensr' is not one; the nearest is tensor",
    "strategies --weight-bytes nan": "--weight-bytes: nan is refused",
    "strategies --experts 4 --top-k 8": "--top-k: 8 is refused; allowed: 1 to the 4 experts",
    "strategies --strategy expert_parallel": "--experts: one expert cannot be divided",
    "strategies --strategy fsdp --zero 2": "--zero: fsdp does not take it; allowed: --form",
    "strategies --zero 9": "--zero: 9 is not a ZeRO stage; allowed: 0, 1, 2, 3",
    "strategies --zero x": "--zero: 'x' is refused; ",
    "strategies --form exact": "--form: 'exact' is refused; .*'precise', 'rough'",
    "strategies --set chunks": "--set: 'chunks' is refused; allowed: NAME=VALUE",
    "strategies --set chunks=x": "--set: 'chunks=x' is refused; allowed: a number above 0",
    "strategies --set axes=1": "--set: 'axes=1' is refused; allowed: 2 numbers",
    "strategies --set hierarchical=1": "--set: 'hierarchical=1' is refused; allowed: true, false",
    "strategies --set color=2": "--set color=…: no strategy takes it; allowed: .*--set chunks",
    "collectives --op allreduce": "--op: 'allreduce' is not one; the nearest are all-reduce",
    "collectives --bytes -1GB": "--bytes: '-1GB' is refused; allowed: 0 B and more",
    "collectives --bytes '7 apples'": "--bytes: '7 apples': unit 'apples' .*allowed: B",
    "collectives --bytes lots": "--bytes: 'lots' is not a number; give one .*'80 GB'",
    "collectives --ranks 0": "--ranks: 0 is refused; allowed: 1 to",
    "collectives --ranks 4096": "--ranks: a group of 4,096 ranks.*the machine has 1,024",
    "collectives --stride 0": "--stride: 0 is refused; allowed: 1 to",
    "collectives --ranks 64 --stride 32": "--ranks: a group of 64 ranks, 32 apart, takes 2,048",
    "collectives --algorithm rng": "--algorithm: 'rng' is not one; the nearest is ring",
    "collectives --op all-reduce --algorithm butterfly --ranks 6": "--ranks: .* are 4 and 8",
    "collectives --op all-reduce --algorithm butterfly": "--algorithm: 'butterfly' knows one tier",
    "collectives --op reduce --algorithm butterfly --ranks 8": "--algorithm: .* of all-reduce",
    "collectives --op all-gather --in-network theory": "--in-network: 'theory' is of all-reduce",
    "collectives --op reduce --top-k 2": "--top-k: reduce sends to every rank; allowed with --op",
    "collectives --op dispatch": "--top-k: missing",
    "collectives --experts 8": "--experts: 8 goes with --top-k",
    "collectives --op dispatch --ranks 8 --top-k 9 --experts 8": "--top-k: 9 experts per token",
    "collectives --op dispatch --ranks 8 --top-k 2 --experts 9": "--experts: 9 do not spread",
    "hardware lst": "Did you mean 'list'",
    "hardware list --kind chip": "--kind: 'chip' is not one; allowed: accelerator",
    "hardware show h10": "no profile is called 'h10'; the nearest are .*h100",
    "hardware show h100": "no profile is called 'h100'; the nearest are h100-pcie-box, h100-pcie, h100-sxm",
    "hardware show nope.yaml": "nope.yaml: cannot be read",
    "hardware show h100-sxm --dtype fp4": "--dtype: h100-sxm has no fp4 rate",
    "hardware check nope.yaml": "FILE: 'nope.yaml' is not there",
    "hardware check": "Missing argument 'FILE...'",
    "placement tensor=x": "AXIS=DEGREE: 'tensor=x' is refused; allowed: AXIS=DEGREE",
    "placement tensor=7 data=?": "--gpus: tensor 7 = 7 does not fill 1024 GPUs; the nearest: 1022",
    "guide --bytes-per-parameter zer": "--bytes-per-parameter: 'zer' .* the nearest is zero",
    "bubbles --stages 0": "--stages: '0' is refused",
    "bubbles --schedule 1f2b": "--schedule: '1f2b' is not one; the nearest is 1f1b",
    "bubbles --schedule dualpipe --stages 3": "--stages: 3 is odd .* try 2 and 4",
    "worked --id q2": "--id: no worked problem is called 'q2'; the nearest are q2.1",
}


@pytest.mark.parametrize("line", BAD)
def test_bad_input_is_refused_in_one_line(line: str) -> None:
    assert re.search(BAD[line], refused(line))


def test_refusals_with_json_leave_standard_output_empty() -> None:
    refused("strategies --degree 0 --json")


def test_a_mistake_of_ours_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(worked, "check", broken)
    assert isinstance(run("worked").exception, RuntimeError)


def test_json_of_odd_numbers() -> None:
    odd = {
        "a": np.array([1.0, np.inf]),
        "b": np.float64("nan"),
        "c": (np.int64(2), None),
        "d": True,
    }
    assert plain(odd) == {"a": [1.0, None], "b": None, "c": [2, None], "d": True}


@pytest.mark.parametrize(
    ("latex", "text"),
    [
        (r"\tfrac32\,\frac{b\,BD}{X\,W}", "3/2 · b BD / (X W)"),
        (r"\frac{m v + p - 2}{m}\,\frac{b\,BD}{X\,W}", "(m v + p - 2) / m · b BD / (X W)"),
        (r"\frac{Z-8}{Z}\,\min\left(\frac{8k}{Z}, 1\right)", "(Z-8) / Z · min(8k / Z, 1)"),
    ],
)
def test_formula_in_a_line(latex: str, text: str) -> None:
    assert readable(latex) == text
