"""The set-up of one rank fails: no rank may enter the call, where the other would wait for it."""

import pytest
import torch
import torch.distributed as dist


@pytest.fixture
def buffer(ranks):
    if ranks.rank == 1:
        raise MemoryError("no room for the buffer")


@pytest.mark.usefixtures("buffer")
def test_value(check):
    dist.all_reduce(torch.ones(1))
    check("set_up_raises_on_one_rank.value", 5.0, "GB/s")
