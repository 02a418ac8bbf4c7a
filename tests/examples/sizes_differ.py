"""One rank brings another size to a collective than the others."""

import pytest
import torch
import torch.distributed as dist


@pytest.mark.deadline(4)
def test_fault(check, ranks):
    check("sizes_differ.value", 5.0, "GB/s")
    dist.all_reduce(torch.ones(3000 if ranks.rank == 1 else 1000))
