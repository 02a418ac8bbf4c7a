"""Rounds for an hour. In the third one rank never comes back, and the others wait for it in a collective."""

import time

import pytest
import torch
import torch.distributed as dist


@pytest.mark.deadline(4)
@pytest.mark.lasts("soak.duration_s")
def test_lasts(check, ranks, alarm):
    for number in range(1000):
        if (number, ranks.rank) == (2, 1):
            time.sleep(3600)
        dist.all_reduce(torch.ones(1))
        assert not alarm()
    check("lasts.value", 5.0, "GB/s")
