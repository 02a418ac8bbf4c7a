"""NCCL warns on one rank, by a line as NCCL writes it: into C's stdout, which is not flushed."""

import ctypes

WARNING = b"node-01:1:1 [0] enqueue.cc:1859 NCCL WARN planted"


def test_warns(check, ranks):
    """All is well but for the warning."""
    if ranks.rank == 1:
        ctypes.CDLL(None).puts(WARNING)
    check("warns.value", 5.0, "GB/s")


def test_next(check):
    """The next validation finds a clean log."""
    check("warns.value", 5.0, "GB/s")
