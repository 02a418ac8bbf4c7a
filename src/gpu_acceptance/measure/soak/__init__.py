"""A GPU under a mixed load for a long time: matrix products, memory, links, round after round, every result checked."""
