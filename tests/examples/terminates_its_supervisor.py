"""The scheduler ends one rank: all must end alike."""

import os
import signal
import time


def test_terminated(check, ranks):
    check("terminates_its_supervisor.value", 5.0, "GB/s")
    if ranks.rank == 1:
        os.kill(os.getppid(), signal.SIGTERM)
    time.sleep(3600)
