"""What every test shares: how Hypothesis searches, and where the browser is."""

import os
import shutil

import pytest
from hypothesis import settings

CI = os.environ.get("CI") == "true"

settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if CI else "local")


def find_chromium() -> str | None:
    """The browser's path: $CHROMIUM, or the first known name on the PATH."""
    names = (os.environ.get("CHROMIUM"), "chromium", "chromium-browser", "google-chrome")
    return next(filter(None, (shutil.which(name) for name in names if name)), None)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep tests that share a costly fixture (a server, a pool of ranks) on one worker."""
    for item in items:
        for group in ("browser", "distributed"):
            if item.get_closest_marker(group):
                item.add_marker(pytest.mark.xdist_group(group))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("browser") and not find_chromium():
        missing = "no Chromium found: install the package chromium, or set CHROMIUM to its path"
        pytest.fail(missing, pytrace=False) if CI else pytest.skip(missing)


@pytest.fixture(scope="session")
def chromium() -> str:
    """The browser's path; for tests marked `browser`."""
    path = find_chromium()
    assert path, "a test that uses the browser carries the marker `browser`"
    return path
