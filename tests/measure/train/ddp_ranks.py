"""One rank of two that train a small GPT-2 with DDP on gloo; prints what it found as JSON. Started by test_ddp.py."""

import json
import sys
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from gpu_acceptance.measure.train import ddp
from gpu_acceptance.measure.train.shapes import Decoder
from gpu_acceptance.measure.train.step import TrainStep

SMALL = Decoder("gpt2", num_layers=2, width=64, num_heads=2, vocabulary=256, sequence=32)
SLOW_S = 0.05  # several steps' time
TIMES = {"block_s": 0.02, "num_blocks": 3, "warmup_s": 0.02}


def measured() -> dict[str, object]:
    found = ddp.measure(SMALL, 4, device=torch.device("cpu"), compiled=False, **TIMES)
    names = ("num_parameters", "optimizer_bytes", "gradient_bytes", "digest", "loss_ratio", "communication_efficiency", "spread_efficiency")
    return {
        **{name: getattr(found, name) for name in names},
        "num_steps": len(found.losses),
        "rates": [found.samples_per_s, found.compute_samples_per_s],
    }


def with_a_fault(owner: type, name: str, before: Callable[[Any], None]) -> dict[str, object]:
    """`before` runs on rank 1 alone, ahead of each call of this method."""
    real = getattr(owner, name)

    def faulty(self: Any, *arguments: object) -> object:
        if dist.get_rank() == 1:
            before(self)
        return real(self, *arguments)

    with patch.object(owner, name, faulty):
        return measured()


def add_noise(optimizer: torch.optim.Optimizer) -> None:
    """To gradients that were reduced already."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad.add_(torch.randn_like(parameter.grad))


def main(rank: int, store_file: str) -> None:
    dist.init_process_group("gloo", store=dist.FileStore(store_file, 2), rank=rank, world_size=2)
    apart = with_a_fault(torch.optim.AdamW, "step", add_noise)
    slow = with_a_fault(TrainStep, "__call__", lambda _: time.sleep(SLOW_S))
    print(json.dumps({"sound": measured(), "apart": apart, "slow": slow}))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
