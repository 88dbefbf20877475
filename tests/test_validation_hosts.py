"""Several hosts: two torchrun agents on this machine, and the launch files for Slurm and Kubernetes."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from torch.distributed.run import get_args_parser
from typer.testing import CliRunner

from tests.test_validation_faults import PYTHON, ROOT, shell
from validation import launch
from validation.__main__ import app
from validation.context import Context
from validation.profile import Profile, load
from validation.results import read

FILES = ROOT / "validation" / "launch_files"

TWO_NODES = """
name: two
title: Two nodes of two
accelerator: h100-sxm
tiers:
  - {name: node, degree: 2, bandwidth: 450 GB/s, source: a test}
  - {name: network, degree: 2, bandwidth: 50 GB/s, source: a test}
"""


@pytest.mark.distributed
@pytest.mark.slow
def test_two_agents_are_two_hosts(tmp_path: Path) -> None:
    """Rendezvous by c10d; groups inside each node, across nodes, and of all, right and predicted."""
    profile = tmp_path / "two.yaml"
    profile.write_text(TWO_NODES)
    agent = (
        f"{PYTHON} -m torch.distributed.run --nnodes 2 --nproc-per-node 2 --rdzv-backend c10d "
        f"--rdzv-endpoint localhost:{25000 + os.getpid() % 5000} --rdzv-id two --node-rank"
    )
    suite = (
        f"-m validation --out {tmp_path}/out --cluster {profile} --device cpu --timeout 20 "
        "--budget 4 --kernels all-reduce,all-to-all"
    )
    both = f"{agent} 0 {suite} & zero=$!; {agent} 1 {suite} & one=$!; wait $zero && wait $one"
    done = shell(both, 150)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("cases measured") == 1
    (note,) = (line for line in done.stderr.splitlines() if "note:" in line)
    assert "not on h100-sxm" in note  # and nothing on hosts that are not the profile's units
    found = read(tmp_path / "out")
    assert not found.failed
    for kernel in ("all-reduce", "all-to-all"):
        groups = {(m.size, m.stride) for m in found.measured if m.kernel == kernel}
        assert groups == {(4, 1), (2, 1), (2, 2)}
    assert all(m.trusted and m.world == 4 and m.predicted for m in found.measured)
    assert all(len(m.per_rank) == len(m.per_rank_p90) == 4 for m in found.measured)
    assert all(0 < (m.minimum or 0) <= m.p10 <= m.seconds <= m.p90 for m in found.measured)
    inside, across = (
        next(
            m.predicted
            for m in found.measured
            if m.kernel == "all-reduce" and (m.size, m.stride) == group and m.nbytes > 1e6
        )
        for group in ((2, 1), (2, 2))
    )
    assert inside is not None
    assert across is not None
    assert inside < across


def _context(profile: Profile, hosts: tuple[str, ...]) -> Context:
    context: Any = object.__new__(Context)
    context.profile, context.hosts = profile, hosts
    return context  # type: ignore[no-any-return]


def test_a_profile_whose_units_are_not_the_hosts_is_doubted(tmp_path: Path) -> None:
    profile = tmp_path / "two.yaml"
    profile.write_text(TWO_NODES)
    two = load(str(profile), "none", 4, "cuda")
    assert launch.hosts_doubt(_context(two, ("a", "a", "b", "b"))) == ""
    assert launch.hosts_doubt(_context(two, ("a",) * 4)) == ""
    told = launch.hosts_doubt(_context(two, ("a", "a", "a", "b")))
    assert "2 hosts have 1, 3 ranks each, but two has units of 1, 2, 4" in told


def torchrun_options(words: list[str]) -> None:
    """Assert that torchrun knows every option before ``-m validation``, and the suite those after."""
    at = words.index("-m")
    mine = words[at + 2 :]
    assert words[at + 1] == "validation"
    parsed = get_args_parser().parse_args([*words[:at], "-m", "validation"])
    assert parsed.module
    assert "-h" not in mine
    told = CliRunner().invoke(app, [*mine, "--help"])
    assert told.exit_code == 0, told.output
    bad = CliRunner().invoke(app, [*mine, "--nonsense"])
    assert "No such option: --nonsense" in bad.output


def filled(text: str, **variables: str) -> list[str]:
    """Words of a command over several lines, its variables filled in."""
    for name, value in variables.items():
        text = re.sub(rf"\$\{{?{name}\}}?", value, text)
    assert "$" not in text
    return text.replace("\\\n", " ").replace('"', "").split()


def test_the_slurm_script(tmp_path: Path) -> None:
    """Bash parses it; run with stand-ins for srun and scontrol it starts torchrun as it should."""
    script = FILES / "slurm.sbatch"
    subprocess.run(["bash", "-n", str(script)], check=True)
    directives = re.findall(r"^#SBATCH (--[a-z-]+)", script.read_text(), re.MULTILINE)
    assert {"--nodes", "--ntasks-per-node", "--gpus-per-node", "--time"} <= set(directives)
    for name, body in {
        "scontrol": 'test "$*" = "show hostnames n[1-2]" && echo n1 && sleep 0.2 && echo n2',
        "srun": 'printf "%s\\n" "$@"',
    }.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    variables = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "12345",
        "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_GPUS_ON_NODE": "4",
        "PYTHON": sys.executable,
    }
    done = shell(f"bash {script} --suite full --resume", 20, **variables)
    assert done.returncode == 0, done.stderr
    words = done.stdout.splitlines()
    assert words[:4] == ["--kill-on-bad-exit=1", sys.executable, "-m", "torch.distributed.run"]
    assert {"--nnodes=2", "--nproc-per-node=4", "--rdzv-endpoint=n1:22345"} <= set(words)
    assert words[-5:] == ["--out", "results/12345", "--suite", "full", "--resume"]
    torchrun_options(words[4:])


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="shellcheck is not installed")
def test_shellcheck_has_nothing_to_say() -> None:
    subprocess.run(["shellcheck", str(FILES / "slurm.sbatch")], check=True)


def test_the_pytorchjob() -> None:
    """Fields by the v1 API of the training operator; as many GPUs as ranks; no restarts."""
    job = yaml.safe_load((FILES / "pytorchjob.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    spec = job["spec"]
    assert set(spec) == {"nprocPerNode", "runPolicy", "elasticPolicy", "pytorchReplicaSpecs"}
    assert spec["elasticPolicy"]["rdzvBackend"] == "c10d"
    assert spec["elasticPolicy"]["maxRestarts"] == 0
    worker = spec["pytorchReplicaSpecs"]["Worker"]
    assert worker["restartPolicy"] == "Never"
    (pod,) = worker["template"]["spec"]["containers"]
    assert pod["name"] == "pytorch"
    gpus = pod["resources"]["limits"]["nvidia.com/gpu"]
    assert spec["nprocPerNode"] == str(gpus)
    assert pod["command"][:2] == ["torchrun", f"--nproc-per-node={gpus}"]
    torchrun_options(pod["command"][1:] + pod["args"])
    _volumes(pod, worker["template"]["spec"])


def test_the_jobset() -> None:
    """One indexed job with a pod for each node; the first pod's name as JobSet makes it."""
    job = yaml.safe_load((FILES / "jobset.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    assert job["spec"]["network"]["enableDNSHostnames"] is True
    assert job["spec"]["failurePolicy"] == {"maxRestarts": 0}
    (workers,) = job["spec"]["replicatedJobs"]
    spec = workers["template"]["spec"]
    assert spec["completionMode"] == "Indexed"
    assert spec["backoffLimit"] == 0
    (pod,) = spec["template"]["spec"]["containers"]
    told = {variable["name"]: variable["value"] for variable in pod["env"]}
    assert spec["parallelism"] == spec["completions"] == int(told["NODES"])
    assert pod["resources"]["limits"]["nvidia.com/gpu"] == int(told["GPUS"])
    name = job["metadata"]["name"]
    assert told["FIRST"] == f"{name}-{workers['name']}-0-0.{name}"
    assert pod["command"] == ["bash", "-c"]
    (script,) = pod["args"]
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    words = filled(script, JOB_COMPLETION_INDEX="1", **told)
    assert words[:2] == ["exec", "torchrun"]
    assert "--rdzv-endpoint=validation-workers-0-0.validation:29400" in words
    torchrun_options(words[2:])
    _volumes(pod, spec["template"]["spec"])


def _volumes(pod: dict[str, Any], spec: dict[str, Any]) -> None:
    mounted = {mount["name"]: mount["mountPath"] for mount in pod["volumeMounts"]}
    assert set(mounted) == {volume["name"] for volume in spec["volumes"]}
    assert mounted["shm"] == "/dev/shm"
    assert mounted["results"] in (pod["args"][0] + " ".join(pod["args"]))
