"""The supervisor of one rank, which cannot hang: event loop, attempts, worker slot; and the part of rank 0, which leads the run."""
