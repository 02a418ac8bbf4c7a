"""The result of a collective is wrong on one rank, in three of its elements."""

import torch
import torch.distributed as dist


def test_fault(check, ranks):
    total = torch.ones(100)
    dist.all_reduce(total)
    if ranks.rank == 1:
        total[[3, 50, 99]] = 0
    check("wrong_result.value", 5.0, "GB/s")
    check("wrong_result.wrong", int((total != ranks.world_size).sum()), "elements")
