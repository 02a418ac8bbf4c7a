"""The folder of a run: its results and journals, the digests of its files, and what becomes of journals that nobody put together."""
