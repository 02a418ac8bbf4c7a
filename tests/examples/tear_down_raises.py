"""The teardown of one rank fails after its call has passed."""

import pytest
import torch
import torch.distributed as dist


@pytest.fixture
def buffer(ranks):
    yield
    if ranks.rank == 0:
        raise OSError("the buffer is still in use")


@pytest.mark.usefixtures("buffer")
def test_fault(check):
    check("tear_down_raises.value", 5.0, "GB/s")
    dist.all_reduce(torch.ones(1))
