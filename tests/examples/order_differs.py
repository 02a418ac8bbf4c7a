"""Rank 1 is one collective ahead: the same number of them, in another order."""

import pytest
import torch
import torch.distributed as dist


@pytest.mark.deadline(4)
def test_fault(check, ranks):
    check("order_differs.value", 5.0, "GB/s")
    if ranks.rank == 1:
        dist.all_gather([torch.empty(1000) for _ in range(ranks.world_size)], torch.ones(1000))
        dist.all_reduce(torch.ones(1))
        return
    dist.all_reduce(torch.ones(1))
    dist.all_gather([torch.empty(1000) for _ in range(ranks.world_size)], torch.ones(1000))
