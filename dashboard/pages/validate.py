"""Validate: is this machine as fast as its profile, and how far off are predictions here?"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from pathlib import Path

import streamlit as st

from dashboard import state
from dashboard import validate_check as check
from dashboard import validate_data as data
from dashboard import validate_runs as runs
from dashboard import validate_views as views
from dashboard.validate_data import Report
from dashboard.words import plain

CHECKED = "the check on this machine"


class Kept:
    """A folder of this session, gone with it."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="validate-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


def folder() -> Path:
    """Where this session keeps its uploads and fits."""
    if "vl_folder" not in st.session_state:
        st.session_state["vl_folder"] = Kept()
    kept: Kept = st.session_state["vl_folder"]
    return kept.path


def choices() -> dict[str, Path]:
    """Results to look at by the name that is shown: the last check, uploads, folders lying here."""
    found: dict[str, Path] = {}
    if (done := check.finished()) is not None:
        found[CHECKED] = done
    uploads: dict[str, Path] = st.session_state.setdefault("vl_uploads", {})
    found |= dict(reversed(uploads.items()))
    here = Path.cwd()
    return found | {f"folder {p.relative_to(here)}": p for p in data.places(here)}


def choose(found: dict[str, Path]) -> Path | None:
    """One of the results, or another one brought by upload."""
    left, right = st.columns(2, gap="large")
    right.file_uploader(
        "Upload results.jsonl, or a log of nccl-tests", ["jsonl", "log", "txt", "out"],
        key="vl_upload", max_upload_size=data.MOST_RESULTS, on_change=uploaded,
    )  # fmt: skip
    if problem := st.session_state.get("vl_upload_problem"):
        right.error(plain(problem), icon=":material/error:")
    if not found:
        left.info(
            "Nothing has been measured here yet. Start the quick check, or upload results of "
            "another machine.",
            icon=":material/speed:",
        )
        return None
    if st.session_state.get("vl_results") not in found:
        st.session_state["vl_results"] = next(iter(found))
    return found[left.selectbox("Results", list(found), key="vl_results")]


def uploaded() -> None:
    """Take an uploaded file, or say why not."""
    file = st.session_state["vl_upload"]
    st.session_state["vl_upload_problem"] = ""
    if file is None:
        return
    try:
        place = data.stored(file.name, file.getvalue(), folder())
    except (ValueError, OSError) as error:
        st.session_state["vl_upload_problem"] = str(error)
        return
    st.session_state["vl_uploads"][f"upload {file.name}"] = place
    st.session_state["vl_results"] = f"upload {file.name}"


def reported(place: Path) -> Report | None:
    """The report on these results, kept until the file changes; a reason where there is none."""
    kept: dict[tuple[str, int], Report] = st.session_state.setdefault("vl_reports", {})
    try:
        key = (str(place), (place / runs.FILE).stat().st_mtime_ns)
        if key not in kept:
            with st.spinner("Judging the results"):
                kept[key] = data.report(place)
    except (runs.Refused, OSError, ValueError) as error:
        st.error(plain(str(error)), icon=":material/error:")
        return None
    return kept[key]


def main() -> None:
    """Draw the page."""
    st.title("Is this machine as fast as its profile?", anchor=False)
    st.markdown(
        "The suite measures with `torch.distributed` what the formulas predict, checks each result, "
        "and puts both next to each other."
    )
    if (done := check.finished()) is not None and not st.session_state.get("vl_taken"):
        st.session_state.update(vl_results=CHECKED, vl_taken=bool(done))
    left, right = st.columns(2, gap="large")
    with left:
        check.quick_check()
    with right:
        check.on_a_node(state.current().profile.name)
    st.header("Results", anchor=False, divider="gray")
    place = choose(choices())
    found = reported(place) if place else None
    if found:
        views.shown(found)
    st.header("Make the next prediction better", anchor=False, divider="gray")
    views.calibration(place, folder())


main()
