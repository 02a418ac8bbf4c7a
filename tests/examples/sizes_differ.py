"""One rank brings another size to a collective than the others."""

import pytest
import torch
import torch.distributed as dist


@pytest.mark.deadline(4)
def test_fault(check, ranks):
    check("sizes_differ.value", 5.0, "GB/s")
    dist.all_reduce(torch.ones(3000 if ranks.rank == 1 else 1000))


def test_next(check, ranks):
    total = torch.ones(1)
    dist.all_reduce(total)
    check("sizes_differ.value", 5.0 if float(total) == ranks.world_size else 0.0, "GB/s")
