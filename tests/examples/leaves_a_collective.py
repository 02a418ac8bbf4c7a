"""One rank issues a collective that no other does: the next validation's would pair with it, and pass on garbage."""

import pytest
import torch
import torch.distributed as dist

KEPT = []


@pytest.mark.deadline(5)
def test_one_sided(check, ranks):
    check("leaves_a_collective.value", 5.0, "GB/s")
    if ranks.rank == 0:
        tensor = torch.full((4,), 100.0)
        KEPT.append((tensor, dist.all_reduce(tensor, async_op=True)))


def test_next(check):
    total = torch.ones(4)
    dist.all_reduce(total)
    check("leaves_a_collective.value", float(total[0]), "GB/s")
