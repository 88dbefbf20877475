"""A plotly chart that changes in place.

Streamlit's own plotly element is built anew whenever its data change: it flashes, forgets zoom and legend, and takes
twice the time that a slider may take. This one hands the figure to plotly.js, which moves what is drawn. The library
is the one inside the plotly package; it is copied once to the folder that Streamlit serves.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import plotly
import streamlit as st

Figure = dict[str, Any]

LIBRARY = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
SERVED = Path(__file__).parent.parent / "static" / "plotly.min.js"
CSS = """
.live-grid {
  display: grid;
  gap: 1.2rem 2rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, max(22rem, 45%)), 1fr));
}
.live-panel { min-width: 0; }
.live-title { font-size: 1.15rem; font-weight: 600; margin: 0; padding: 0 0 0.3rem; color: var(--st-heading-color); }
.live-verdict { margin: 0 0 0.2rem; color: var(--st-text-color); }
.live-note { margin: 0; font-size: 0.875rem; opacity: 0.65; color: var(--st-text-color); }
.live-chart text:not(.keep) { font-family: var(--st-font), sans-serif !important; }
.live-chart :is(.xtick, .ytick, .legendtext, .xtitle, .x2title, .ytitle, .gtitle, .cbtitle, .cbaxis) text,
.live-chart text:is(.legendtext, .xtitle, .x2title, .ytitle, .gtitle, .bartext-outside) {
  fill: var(--st-text-color) !important;
}
.live-chart .hoverlayer .legend .bg {
  fill: var(--st-background-color) !important;
  stroke: var(--st-border-color) !important;
}
.live-chart .hoverlayer .legendtitletext { fill: var(--st-text-color) !important; }
.live-chart .modebar-container { opacity: 0; transition: opacity 0.2s; }
.live-chart:hover .modebar-container { opacity: 1; }
.live-chart .modebar-group { background: transparent !important; }
"""
_mount = st.components.v2.component(
    "roofline_live_chart",
    js=(Path(__file__).parent / "live_chart.js").read_text(encoding="utf-8"),
    css=CSS,
    isolate_styles=False,
)


@dataclass(frozen=True)
class Panel:
    """A figure with words around it: a title, a verdict that begins in bold, a note below."""

    figure: Figure  # a plain dict, as ``dashboard.charts`` makes them
    alt: str  # what it shows, for those who do not see it
    title: str = ""
    strong: str = ""
    rest: str = ""
    note: str = ""


def draw(figure: Figure, key: str, alt: str, on_click: Callable[[], None] | None = None) -> None:
    """Draw one figure.

    ``on_click`` is called when a point is clicked; its customdata are in ``session_state[key]``
    under "clicked".
    """
    draw_panels([Panel(figure, alt)], key, on_click)


def draw_panels(
    panels: Sequence[Panel], key: str, on_click: Callable[[], None] | None = None
) -> None:
    """Draw figures side by side where they have room, as one element: a slider then moves all at once."""
    if served():
        events = {"on_clicked_change": on_click} if on_click else {}
        # A list: in a dict Streamlit looks for data frames, and loads pandas for that.
        _mount(key=key, data=[plain(vars(panel)) for panel in panels], **events)
        return
    for i, panel in enumerate(panels):
        if panel.title:
            st.subheader(panel.title, anchor=False)
            st.markdown(f"**{panel.strong}**{panel.rest}")
        st.plotly_chart(panel.figure, key=f"{key}-{i}", alt=panel.alt, width="stretch")


@cache
def served() -> bool:
    """True once plotly.js lies where the browser can fetch it; false where this folder cannot be written."""
    try:
        if not SERVED.exists() or SERVED.stat().st_size != LIBRARY.stat().st_size:
            SERVED.parent.mkdir(exist_ok=True)
            shutil.copyfile(LIBRARY, SERVED)
    except OSError:
        return False
    return True


def plain(value: Any) -> Any:
    """Arrays as lists and what is not finite as null, which JSON has no other word for."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value.item() if isinstance(value, np.generic) else value
