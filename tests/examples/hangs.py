"""One rank never comes back while the other waits in a collective; what follows must be right again."""

import time

import pytest
import torch
import torch.distributed as dist


@pytest.mark.deadline(3)
def test_fault(check, ranks):
    check("hangs.value", 5.0, "GB/s")
    if ranks.rank == 1:
        time.sleep(3600)
    dist.all_reduce(torch.ones(1))
