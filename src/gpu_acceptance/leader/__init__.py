"""Rank 0's part: what runs when, who is awaited, new generations; and who takes its place."""
