"""Eight validations, each with workers of its own; each stays for a moment, so that the run can be looked at."""

import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist


@pytest.mark.worker(fresh=True)
@pytest.mark.parametrize("number", range(8))
def test_value(number, check, ranks):
    Path(f"number-{number}-{ranks.rank}").touch()
    time.sleep(1)
    total = torch.ones(1)
    dist.all_reduce(total)
    check("many_generations.value", 5.0 if float(total) == ranks.world_size else 0.0, "GB/s")
