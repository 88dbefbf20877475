"""The dashboard: `make app`, or `streamlit run app.py`."""

from dashboard import shell

shell.run()
