"""A worker starts a daemon, which no longer is its child, and dies."""

import os
import signal
import subprocess
from pathlib import Path

import torch
import torch.distributed as dist


def test_fault(check, ranks):
    check("daemonises_and_dies.value", 5.0, "GB/s")
    if ranks.rank == 1:
        subprocess.run(["sh", "-c", "setsid sleep 3600 & echo $! > daemon-of-the-dead"], check=True)
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(1))


def test_gone(check):
    gone = not Path("/proc", Path("daemon-of-the-dead").read_text().strip()).exists()
    check("daemonises_and_dies.value", 5.0 if gone else 0.0, "GB/s")
