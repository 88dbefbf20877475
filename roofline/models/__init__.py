"""Rows and readers behind ``roofline.model``: families, configuration files, published models."""
