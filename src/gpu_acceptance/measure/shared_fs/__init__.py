"""Whether a directory is the same one on all nodes, keeps what programs rely on, and how fast it is."""
