"""One rank's process ends in the middle of a collective."""

import os

import torch
import torch.distributed as dist


def test_fault(check, ranks):
    check("exits.value", 5.0, "GB/s")
    if ranks.rank == 1:
        os._exit(7)
    dist.all_reduce(torch.ones(1))
