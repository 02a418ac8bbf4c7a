"""One rank dies of a signal, which no exit code tells."""

import os
import signal

import torch
import torch.distributed as dist


def test_segfaults(check, ranks):
    check("segfaults.value", 5.0, "GB/s")
    if ranks.rank == 1:
        os.kill(os.getpid(), signal.SIGSEGV)


def test_next(check):
    total = torch.ones(1)
    dist.all_reduce(total)
    check("segfaults.value", float(total), "GB/s")
