"""One rank is slow, but below its deadline: the others wait for it, and the figures decide."""

import time

import pytest
import torch
import torch.distributed as dist


@pytest.mark.deadline(60)
def test_fault(check, ranks):
    if ranks.rank == 1:
        time.sleep(4)
    dist.all_reduce(torch.ones(1))
    check("comes_late.value", 5.0, "GB/s")
