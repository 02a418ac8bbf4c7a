"""Eight validations, each with workers of its own."""

import pytest
import torch
import torch.distributed as dist


@pytest.mark.worker(fresh=True)
@pytest.mark.parametrize("number", range(8))
def test_value(number, check, ranks):
    total = torch.ones(1)
    dist.all_reduce(total)
    check("many_generations.value", 5.0 if float(total) == ranks.world_size else 0.0, "GB/s")
