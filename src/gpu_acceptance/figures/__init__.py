"""What was read of a machine -> figures that can be judged."""
