"""The Validate page's first half: what to run on a node, and the quick check that runs here."""

from __future__ import annotations

import shutil
from pathlib import Path

import streamlit as st

from dashboard import validate_runs as runs
from dashboard.words import plain

LENGTHS = {"short, half a minute": ["--budget", "3"], "quick suite, 2 minutes": []}
SLURM = """#!/bin/bash
#SBATCH --nodes=8 --ntasks-per-node=1 --gpus-per-node=8 --exclusive --time=01:00:00
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun torchrun --nnodes="$SLURM_NNODES" --nproc-per-node=8 --rdzv-backend=c10d \\
  --rdzv-id="$SLURM_JOB_ID" --rdzv-endpoint="$head:29500" \\
  -m validation --out results --suite full --cluster CLUSTER"""
NCCL = """mpirun -np 8 all_reduce_perf -b 1K -e 8G -f 2 -g 1 | tee nccl.log
python -m validation import nccl-tests nccl.log --out results --cluster CLUSTER"""


def on_a_node(cluster: str) -> None:
    """One command for each kind of place, to copy."""
    st.subheader("On your machine", anchor=False)
    node = "torchrun --nproc-per-node=8 -m validation --out results --cluster CLUSTER"
    commands = {
        "A laptop or a node": ("make validate", "Measures on the GPUs, or CPU ranks where there "
                               "are none, and writes `results/results.jsonl`."),
        "8 GPUs": (node, "One process a GPU. The predictions are those of the profile named."),
        "Slurm": (SLURM, "Save as `validate.sh`, fit nodes and GPUs, then `sbatch validate.sh`. The "
                  "folder must be one that rank 0 can write."),
        "nccl-tests": (NCCL, "A log that you have is enough: upload it below as it is."),
    }  # fmt: skip
    for tab, (text, about) in zip(st.tabs(list(commands)), commands.values(), strict=True):
        with tab:
            st.code(text.replace("CLUSTER", cluster), language="bash", wrap_lines=True)
            st.caption(about)


def quick_check() -> None:
    """Start a run here and follow it."""
    st.subheader("Quick check on this machine", anchor=False)
    if gone := runs.missing():
        st.info(
            f"Measuring needs {', '.join(gone)}, not installed here. `make setup-dev` adds it; reports "
            "on files that you upload need no torch.",
            icon=":material/download:",
        )
        return
    check = current()
    if check is not None and check.running:
        st.fragment(_follow, run_every=1.0)()
        return
    st.caption(
        "Runs `python -m validation run` on the machine that serves this page: on its GPUs, or on "
        "CPU ranks over gloo. It ends when you cancel it or leave the page."
    )
    length = st.segmented_control(
        "How long", list(LENGTHS), default=next(iter(LENGTHS)), key="vl_length", required=True
    )
    st.button(
        "Check this machine", type="primary", icon=":material/play_arrow:", key="vl_start",
        on_click=_start, args=(length,),
    )  # fmt: skip
    if problem := st.session_state.get("vl_problem"):
        st.error(plain(problem), icon=":material/error:")


def current() -> runs.Check | None:
    """The check that this session started last."""
    check: runs.Check | None = st.session_state.get("vl_check")
    return check


def _start(length: str) -> None:
    st.session_state["vl_problem"] = ""
    before = current()
    try:
        st.session_state["vl_check"] = runs.start(LENGTHS[length])
    except runs.Refused as error:
        st.session_state["vl_problem"] = str(error)
        return
    st.session_state["vl_taken"] = False
    if before is not None:
        shutil.rmtree(before.folder, ignore_errors=True)


def _follow() -> None:
    """The bar, once a second; the page is drawn anew when the run is over."""
    check = current()
    if check is None or not check.running:
        st.rerun(scope="app")
    else:
        at = check.look()
        st.progress(at.share, _words(at))
        st.caption(f"Lately: {plain(at.now)}" if at.now else "The ranks are starting.")
        st.button("Cancel", icon=":material/stop:", key="vl_cancel", on_click=check.stop)


def _words(at: runs.Progress) -> str:
    of = f" of {at.cases}" if at.cases else ""
    return f"{at.done}{of} cases, {at.seconds:.0f} s"


def finished() -> Path | None:
    """The folder of a check that is over and has measured something; what went wrong is said later."""
    check = current()
    if check is None or check.running:
        return None
    if check.failure:
        st.session_state["vl_problem"] = f"The check ended early: {check.failure}."
    return check.folder if runs.cases_in(check.folder / runs.FILE) else None
