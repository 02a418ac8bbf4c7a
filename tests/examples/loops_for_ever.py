"""An endless loop in Python on rank 1; the others wait for it in a collective."""

import pytest
import torch
import torch.distributed as dist


@pytest.mark.deadline(4)
def test_fault(check, ranks):
    check("loops_for_ever.value", 5.0, "GB/s")
    while ranks.rank == 1:
        pass
    dist.all_reduce(torch.ones(1))
