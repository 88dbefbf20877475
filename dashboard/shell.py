"""Page configuration, navigation and the workload bar that every page shares."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from dashboard import state

PAGES = Path(__file__).parent / "pages"
FORECASTS = ("Plan", "Explain")  # pages that say how fast a job runs, and not what bounds it


def pages() -> list[st.Page]:
    """Every page in the order of the menu; a new page is a file and a line here."""
    return [
        st.Page(PAGES / "plan.py", title="Plan", icon=":material/route:", default=True),
        st.Page(PAGES / "explain.py", title="Explain", icon=":material/troubleshoot:"),
        st.Page(PAGES / "rooflines.py", title="Rooflines", icon=":material/show_chart:"),
        st.Page(PAGES / "collectives.py", title="Collectives", icon=":material/hub:"),
        st.Page(PAGES / "hardware.py", title="Hardware", icon=":material/memory:"),
        st.Page(PAGES / "placement.py", title="Placement", icon=":material/grid_view:"),
        st.Page(PAGES / "validate.py", title="Validate", icon=":material/speed:"),
        st.Page(PAGES / "evidence.py", title="Evidence", icon=":material/fact_check:"),
    ]


def run() -> None:
    """Draw the app. The bar stands before the page so that one state serves all pages."""
    st.set_page_config(
        page_title="Roofline calculator", page_icon=":material/roofing:", layout="wide"
    )
    st.html("<style>.stMainBlockContainer { padding-top: 2.8rem; padding-bottom: 3rem; }</style>")
    page = st.navigation(pages())
    state.turn_to(page.title)
    state.workload_bar(state.ACHIEVABLE if page.title in FORECASTS else state.PEAK)
    page.run()
