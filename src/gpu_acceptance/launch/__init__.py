"""Who this process is, by whichever launcher started it, and how a run is refused before any GPU is touched."""
