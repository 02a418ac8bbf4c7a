"""The loss of one rank is NaN, which its validation asserts before the gradients are reduced."""

import torch
import torch.distributed as dist


def test_fault(check, ranks):
    check("loses_its_loss.value", 5.0, "GB/s")
    loss = torch.tensor(float("nan") if ranks.rank == 1 else 2.5)
    assert torch.isfinite(loss), f"the loss is {float(loss)} in step 3"
    dist.all_reduce(torch.ones(1))
