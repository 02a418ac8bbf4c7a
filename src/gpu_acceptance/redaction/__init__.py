"""A copy of a run that names no machine."""
