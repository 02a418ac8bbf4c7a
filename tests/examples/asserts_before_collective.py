"""One rank asserts before its first collective while the other waits inside: the next validation must be right again."""

import torch
import torch.distributed as dist


def test_asserts(ranks):
    assert ranks.rank != 0, "rank 0 gives up before the collective"
    dist.all_reduce(torch.ones(1))


def test_value(check):
    total = torch.ones(1)
    dist.all_reduce(total)
    check("asserts_before_collective.value", float(total), "GB/s")
