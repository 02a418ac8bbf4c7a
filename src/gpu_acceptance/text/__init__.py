"""Text and data from files and machines: read strictly, written safely. Knows nothing of a run."""
