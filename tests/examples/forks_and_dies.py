"""A worker dies while a copy of it lives on in a session of its own, and holds every pipe of the dead one open."""

import os
import time

import torch
import torch.distributed as dist


def test_fault(check, ranks):
    check("forks_and_dies.value", 5.0, "GB/s")
    if ranks.rank == 0:
        if os.fork() == 0:
            os.setsid()
            time.sleep(3600)
        os._exit(7)
    dist.all_reduce(torch.ones(1))
