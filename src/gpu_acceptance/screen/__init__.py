"""What a node says of itself, as lines for people."""
