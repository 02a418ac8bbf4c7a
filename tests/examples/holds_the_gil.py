"""A call into C that holds the GIL on rank 0: no Python thread of that process runs any more."""

import ctypes

import pytest
import torch
import torch.distributed as dist


@pytest.mark.deadline(4)
def test_fault(check, ranks):
    check("holds_the_gil.value", 5.0, "GB/s")
    while ranks.rank == 0:  # again after a signal
        ctypes.PyDLL(None).sleep(600)
    dist.all_reduce(torch.ones(1))
