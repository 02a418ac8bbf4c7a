"""Linux processes: what they are, how they end, and what keeps a run from leaving anything of them behind."""
