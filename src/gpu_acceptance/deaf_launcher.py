"""A launcher that waits in a store that no longer answers does not see that its ranks have ended: it is told to end.

torchrun 2.13 with c10d rendezvous, on a node that was cut off, was there for 16 minutes more than its only rank: until the kernel gave up
on the connection. SIGTERM ends it where its main thread waits for a lock, not where that waits in the store. A static rendezvous ends by
itself. Standard library only: this is a process of its own, which outlives the rank.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys

PATIENCE_S = 15.0  # a launcher that hears ends within seconds of its first rank


def end_launcher_later(launcher_pid: int, patience_s: float = PATIENCE_S) -> None:
    """Has the launcher get a SIGTERM if it still runs after `patience_s`, and a SIGKILL if it does after as long again."""
    subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, str(launcher_pid), str(patience_s)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # torchrun kills the sessions of its ranks
    )


def main(launcher_pid: int, patience_s: float) -> None:
    with contextlib.suppress(ProcessLookupError):
        pidfd = os.pidfd_open(launcher_pid)
        for number in (signal.SIGTERM, signal.SIGKILL):
            if not select.select([pidfd], [], [], patience_s)[0]:
                signal.pidfd_send_signal(pidfd, number)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
