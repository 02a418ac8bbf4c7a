"""Two runs of one cluster beside each other. Pure."""
