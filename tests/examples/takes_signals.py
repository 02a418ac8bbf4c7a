"""Takes the signals for itself when it is imported, then takes long."""

import os
import signal
import time
from pathlib import Path

signal.set_wakeup_fd(-1)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
if "GPU_ACCEPTANCE_SUPERVISOR" not in os.environ:  # a worker refuses what an import blocks
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])


def test_long(check, ranks):
    check("takes_signals.value", 5.0, "GB/s")
    Path(f"begun-{ranks.rank}").touch()
    time.sleep(3600)
