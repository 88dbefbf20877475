"""A dashboard of its own and a headless Chromium on it, for benchmarks, screenshots and the browser tests."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync", "--hide-scrollbars"]  # fmt: skip
IDLE = """() => {
  const app = document.querySelector('[data-testid="stApp"]');
  return app && app.getAttribute('data-test-script-state') === 'notRunning'
    && !document.querySelector('[data-testid="stSkeleton"]')
    && [...document.querySelectorAll('[data-testid="stPlotlyChart"], .live-chart')]
      .every(chart => chart.querySelector('.main-svg'));
}"""


def chromium() -> str | None:
    """Path of the browser, if this machine has one."""
    return next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )


@contextmanager
def dashboard(timeout: float = 120.0) -> Iterator[str]:
    """The running app; yields its address and stops it in the end."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "streamlit", "run", "app.py", f"--server.port={port}"]
    server = subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"CI": "true"},
    )
    try:
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + timeout
        while not _alive(url):
            if time.monotonic() > deadline or server.poll() is not None:
                raise RuntimeError(f"the dashboard did not start within {timeout:g} s")
            time.sleep(0.05)
        yield url
    finally:
        server.terminate()
        server.wait(10)


def _alive(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/_stcore/health", timeout=1) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@contextmanager
def page(width: int = 1280, height: int = 900, dark: bool = False) -> Iterator[Any]:
    """A page of a fresh browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium(), args=FLAGS)
        try:
            context = browser.new_context(
                viewport={"width": width, "height": height},
                color_scheme="dark" if dark else "light",
            )
            yield context.new_page()
        finally:
            browser.close()


def settle(tab: Any, timeout: float = 60_000) -> None:
    """Wait until the script has run and every chart is drawn."""
    tab.wait_for_function(IDLE, timeout=timeout)
    tab.wait_for_timeout(150)
    tab.wait_for_function(IDLE, timeout=timeout)
