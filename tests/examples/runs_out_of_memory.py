"""One rank asks for more host memory than its limit lets it have."""

import resource

import torch
import torch.distributed as dist


def test_fault(check, ranks):
    check("runs_out_of_memory.value", 5.0, "GB/s")
    if ranks.rank == 0:
        resource.setrlimit(resource.RLIMIT_AS, (64 << 30, resource.RLIM_INFINITY))
        torch.ones(1 << 40, dtype=torch.uint8)
    dist.all_reduce(torch.ones(1))
