"""A node's inventory as one file: written on the machine, read and judged anywhere."""
