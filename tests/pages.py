"""A page of the dashboard, opened as a browser would, and what it shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from streamlit.testing.v1 import AppTest

APP = str(Path(__file__).parent.parent / "app.py")


def opened(page: str = "", **address: str | list[str]) -> AppTest:
    """A page at an address, run once; without a name, the one that people land on."""
    app = AppTest.from_file(APP, default_timeout=60)
    for key, value in address.items():
        app.query_params[key] = value
    app.run()
    return app.switch_page(f"dashboard/pages/{page}.py").run() if page else app


def panels(app: AppTest) -> list[dict[str, Any]]:
    """What the page's charts were given: figures and the words around them."""
    charts = app.get("bidi_component")
    return [panel for chart in charts for panel in json.loads(chart.proto.json)]


def said(app: AppTest) -> str:
    """Everything that the page says in words, headings and tables included."""
    headings = (app.header, app.subheader)
    boxes = (app.warning, app.error, app.info, app.success)
    words = [
        element.value
        for group in (*headings, app.markdown, app.caption, *boxes)
        for element in group
    ]
    return "\n".join([*words, *(element.proto.body for element in app.get("html"))])


def drawn(app: AppTest) -> list[dict[str, Any]]:
    """The figures of the page's charts."""
    return [panel["figure"] for panel in panels(app)]
