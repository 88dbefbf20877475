"""Roofline: T_math against T_comms of every way to spread a model over GPUs."""
