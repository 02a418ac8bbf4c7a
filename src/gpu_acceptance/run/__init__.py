"""One run on one rank, from hello to exit: options, collection, plan, refusals, and what it leaves on disk."""
