"""Point-to-point between two ranks while a third idles, and a group of two: all of it right."""

import torch
import torch.distributed as dist


def test_pair(check, ranks):
    group = dist.new_group([0, 1])
    value = torch.full((1,), 5.0)
    if ranks.rank == 0:
        dist.send(value, 1)
    elif ranks.rank == 1:
        dist.recv(value, 0)
    if ranks.rank < 2:
        dist.all_reduce(value, op=dist.ReduceOp.MAX, group=group)
    check("talks_in_pairs.value", float(value), "GB/s")


def test_next(check):
    total = torch.ones(1)
    dist.all_reduce(total)
    check("talks_in_pairs.value", float(total), "GB/s")
