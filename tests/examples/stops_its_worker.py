"""The worker of rank 2 is stopped; it cannot even say where it is."""

import os
import signal

import pytest
import torch
import torch.distributed as dist


@pytest.mark.deadline(4)
def test_fault(check, ranks):
    check("stops_its_worker.value", 5.0, "GB/s")
    if ranks.rank == 2:
        os.kill(os.getpid(), signal.SIGSTOP)
    dist.all_reduce(torch.ones(1))
