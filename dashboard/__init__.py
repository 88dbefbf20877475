"""The only room that imports streamlit and plotly. It collects inputs, calls roofline, and draws the answer."""
