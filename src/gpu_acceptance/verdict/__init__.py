"""Figures and limits -> judgements, rows, and one verdict. Pure: neither torch nor pytest."""
