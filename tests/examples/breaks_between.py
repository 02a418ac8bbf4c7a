"""One rank raises between two collectives: its peer waits in the second."""

import torch
import torch.distributed as dist


def test_fault(check, ranks):
    check("breaks_between.value", 5.0, "GB/s")
    dist.all_reduce(torch.ones(1))
    if ranks.rank == 0:
        raise OSError("the link went down")
    dist.all_reduce(torch.ones(1))
