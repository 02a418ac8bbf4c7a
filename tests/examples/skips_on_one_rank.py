"""One rank alone skips at set-up, the other would wait for it inside the call."""

import pytest
import torch
import torch.distributed as dist


@pytest.fixture
def port(ranks):
    if ranks.rank == 1:
        pytest.skip("no port on this rank")


@pytest.mark.usefixtures("port")
def test_skips(check):
    dist.all_reduce(torch.ones(1))
    check("skips_on_one_rank.value", 5.0, "GB/s")
