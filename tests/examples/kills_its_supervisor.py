"""A node that goes away: on one rank even the supervisor is gone, without a word."""

import os
import signal

import torch
import torch.distributed as dist


def test_lost(check, ranks):
    check("kills_its_supervisor.value", 5.0, "GB/s")
    if ranks.rank == 1:
        os.kill(os.getppid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(1))


def test_next(check):
    check("kills_its_supervisor.value", 5.0, "GB/s")
