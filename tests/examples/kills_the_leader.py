"""The supervisor of rank 0, which judges and writes, is gone without a word."""

import os
import signal

import torch
import torch.distributed as dist


def test_lost(check, ranks):
    check("kills_the_leader.value", 5.0, "GB/s")
    if ranks.rank == 0:
        os.kill(os.getppid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(1))
