"""Rank 2 leaves out the collective in which the others wait."""

import pytest
import torch
import torch.distributed as dist


@pytest.mark.deadline(4)
def test_fault(check, ranks):
    check("never_enters.value", 5.0, "GB/s")
    if ranks.rank != 2:
        dist.all_reduce(torch.ones(1))
