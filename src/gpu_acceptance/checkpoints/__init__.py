"""Checkpoints of models: looked at without loading them, kept, and removed where a run of ours has written them."""
