"""What a GPU does over time: its clocks, power, heat and traffic, sampled while it works."""
