"""One acceptance run on one rank, from hello to bye, and what it leaves on disk."""
