"""An exception that is no assertion, on one rank, before the collective."""

import torch
import torch.distributed as dist


def test_fault(check, ranks):
    check("raises.value", 5.0, "GB/s")
    if ranks.rank == 0:
        raise OSError("no such device")
    dist.all_reduce(torch.ones(1))
