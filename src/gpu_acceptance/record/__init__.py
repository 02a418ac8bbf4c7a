"""What a run leaves behind, to and from JSON: what other rooms hand to each other and what a report is built from."""
