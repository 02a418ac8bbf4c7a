"""One all_reduce after the other for some seconds; says that it has begun."""

import time
from pathlib import Path

import torch
import torch.distributed as dist

LONG_S = 12


def test_value(check, ranks):
    end = time.monotonic() + LONG_S
    Path(f"reduces-{ranks.rank}").touch()
    still = torch.ones(1)
    while still.item():
        still.fill_(time.monotonic() < end)
        dist.all_reduce(still, op=dist.ReduceOp.MAX)
        time.sleep(0.001)
    check("reduces_on.value", 5.0, "GB/s")
