"""The validation suite as processes of their own: nothing here imports it, and none outlives its page.

A command that answers at once is ``ask``-ed, with a time limit. The quick check runs beside the page
as a ``Check``: it is killed, with its ranks, when it is cancelled, takes too long, or when no page has
looked at it for a while.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parent.parent
FILE = "results.jsonl"
ANSWER = 120.0  # seconds that a report or a fit may take
LIMIT = 900.0  # seconds that a check may take
UNSEEN = 20.0  # seconds without a page that looks at it
TOLD = re.compile(r"(\d+) of (\d+) cases; now (.*)")
_one = threading.Lock()


class Refused(ValueError):
    """A command that could not do it; the message is the command's own."""


def missing() -> list[str]:
    """Packages that measuring needs and that are not here."""
    return [name for name in ("torch", "typer", "rich") if find_spec(name) is None]


def command(*words: str) -> list[str]:
    """``python -m validation`` with these words."""
    return [sys.executable, "-m", "validation", *words]


def ask(*words: str, limit: float = ANSWER) -> str:
    """What the command prints.

    Raises:
        Refused: it ends with an error, or takes longer than ``limit`` seconds.
    """
    try:
        done = subprocess.run(
            command(*words), cwd=ROOT, capture_output=True, text=True, timeout=limit, check=False,
            stdin=subprocess.DEVNULL, encoding="utf-8", errors="replace",
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise Refused(f"`validation {words[0]}` was not done after {limit:g} s") from None
    except OSError as error:
        raise Refused(f"`validation {words[0]}` could not be started: {error.strerror}") from None
    if done.returncode:
        raise Refused(last_line(done.stderr) or f"exit code {done.returncode}")
    return done.stdout


def last_line(text: str) -> str:
    """The last line that says something: of a traceback, the error itself."""
    return next((line.strip()[:600] for line in reversed(text.splitlines()) if line.strip()), "")


@dataclass(frozen=True)
class Progress:
    """How far a check is."""

    done: int  # cases measured or failed
    cases: int  # of all; 0 until the run has told
    now: str  # the case that runs
    seconds: float

    @property
    def share(self) -> float:
        """Of the cases, between 0 and 1."""
        return min(self.done / self.cases, 1.0) if self.cases else 0.0


@dataclass
class Check:
    """A run on this machine: its process, its folder, and a thread that ends it in time."""

    folder: Path
    process: subprocess.Popen[bytes]
    started: float = field(default_factory=time.monotonic)
    seen: float = field(default_factory=time.monotonic)
    limit: float = LIMIT
    why: str = ""  # it was killed; empty otherwise

    @property
    def running(self) -> bool:
        """True until the process has ended."""
        return self.process.poll() is None

    @property
    def failure(self) -> str:
        """Why there is nothing to show; exit codes 0 and 1 are runs that came to their end."""
        code = self.process.poll()
        if self.why or code in (None, 0, 1):
            return self.why
        return last_line(self._log()) or f"ended with exit code {code}"

    def look(self) -> Progress:
        """How far it is; also tells that somebody is still there."""
        self.seen = time.monotonic()
        told = TOLD.findall(self._log())
        cases, now = (int(told[-1][1]), told[-1][2]) if told else (0, "")
        return Progress(len(cases_in(self.folder / FILE)), cases, now, self.seen - self.started)

    def stop(self, why: str = "cancelled") -> None:
        """Kill the process with all its ranks."""
        if self.running:
            self.why = self.why or why
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except (OSError, AttributeError):  # gone already, or a system without process groups
            self.process.kill()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.why = "it could not be killed"

    def watch(self) -> None:
        """Wait for its end; end it when it is too late or nobody looks."""
        while self.running:
            now = time.monotonic()
            if now - self.started > self.limit:
                self.stop(f"not done after {self.limit:g} s")
            elif now - self.seen > UNSEEN:
                self.stop("the page was left")
            time.sleep(0.2)
        self.stop()  # ranks that may be left
        atexit.unregister(self.stop)
        _one.release()

    def _log(self) -> str:
        try:
            return (self.folder / "log.txt").read_text("utf-8", "replace")
        except OSError:
            return ""


def start(words: Sequence[str] = (), limit: float = LIMIT) -> Check:
    """Begin a run in a new folder; one at a time on this machine, or both would measure each other.

    Raises:
        Refused: another one is going on, or it cannot be started.
    """
    if not _one.acquire(blocking=False):
        raise Refused("a check is going on already on this machine; wait for its end")
    try:
        folder = Path(tempfile.mkdtemp(prefix="validation-"))
        with (folder / "log.txt").open("wb") as log:
            process = subprocess.Popen(
                command("run", "--out", str(folder), *words), cwd=ROOT, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, start_new_session=True,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )  # fmt: skip
    except OSError as error:
        _one.release()
        raise Refused(f"the check could not be started: {error.strerror}") from None
    check = Check(folder, process, limit=limit)
    atexit.register(check.stop)
    threading.Thread(target=check.watch, daemon=True).start()
    return check


def cases_in(file: Path) -> set[str]:
    """Cases that a file of results has so far; half a line at its end does not matter."""
    found: set[str] = set()
    try:
        text = file.read_text("utf-8", "replace")
    except OSError:
        return found
    for line in text.splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and record.get("record") in ("measured", "failed"):
            found.add(str(record.get("case")))
    return found
