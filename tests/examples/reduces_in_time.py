"""One all_reduce after the other, with a deadline that leaves no room for a network that pauses."""

import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

LONG_S = 3


@pytest.mark.deadline(4)
def test_short(check, ranks):
    end = time.monotonic() + LONG_S
    Path(f"hurries-{ranks.rank}").touch()
    still = torch.ones(1)
    while still.item():
        still.fill_(time.monotonic() < end)
        dist.all_reduce(still, op=dist.ReduceOp.MAX)
        time.sleep(0.001)
    check("reduces_in_time.value", 5.0, "GB/s")


def test_next(check, ranks):
    one = torch.ones(1)
    dist.all_reduce(one)
    check("reduces_in_time.value", one.item(), "GB/s")
