"""One rank dies of a signal, which no exit code tells."""

import os
import signal


def test_fault(check, ranks):
    check("segfaults.value", 5.0, "GB/s")
    if ranks.rank == 1:
        os.kill(os.getpid(), signal.SIGSEGV)
