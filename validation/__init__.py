"""Check on real ranks what the formulas take for granted. The only package that imports torch."""
