"""A validation passes and leaves a daemon behind, which no longer is a child of its worker."""

import subprocess
from pathlib import Path


def test_fault(check, ranks):
    check("daemonises.value", 5.0, "GB/s")
    if ranks.rank == 1:
        subprocess.run(["sh", "-c", "setsid sleep 3600 & echo $! > daemon"], check=True)


def test_gone(check):
    gone = not Path("/proc", Path("daemon").read_text().strip()).exists()
    check("daemonises.value", 5.0 if gone else 0.0, "GB/s")
