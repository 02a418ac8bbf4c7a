"""Something outside SIGKILLs the worker of one rank, which waits inside a collective."""

import os
import subprocess
import time

import torch
import torch.distributed as dist


def test_fault(check, ranks):
    check("killed_inside.value", 5.0, "GB/s")
    if ranks.rank == 1:
        subprocess.Popen(["sh", "-c", f"sleep 1; kill -KILL {os.getpid()}"], start_new_session=True)
    else:
        time.sleep(3)
    dist.all_reduce(torch.ones(1))
