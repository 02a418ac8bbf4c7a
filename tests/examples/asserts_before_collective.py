"""One rank asserts before its first collective while the other waits inside: the next validation must be right again."""

import torch
import torch.distributed as dist


def test_fault(ranks):
    assert ranks.rank != 0, "rank 0 gives up before the collective"
    dist.all_reduce(torch.ones(1))
