"""One rank of two that read data with torch's DistributedSampler on gloo; prints what it found as JSON. Started by test_sampler.py."""

import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler

from gpu_acceptance.measure.train import sampler
from gpu_acceptance.measure.train.shapes import Decoder

CPU = torch.device("cpu")
SMALL = Decoder("gpt2", num_layers=2, width=64, num_heads=2, vocabulary=256, sequence=32)
NUM_WORKERS, NUM_STEPS = 2, 6
_torch_iterates = DistributedSampler.__iter__


def measured(*, num_workers: int = 0, drop_last: bool = False) -> dict[str, Any]:
    return asdict(sampler.measure(2 * sampler.SAMPLES_PER_RANK + 1, num_workers=num_workers, drop_last=drop_last, device=CPU))


def with_a_fault(name: str, fault: Callable[..., Any]) -> dict[str, Any]:
    with patch.object(DistributedSampler, name, fault):
        return measured()


def as_rank_0(self: Any) -> Any:
    self.rank = 0
    return _torch_iterates(self)


def without_a_worker() -> dict[str, Any]:
    """Rank 1 loses one while it reads."""
    real = sampler._children

    def lose_one() -> set[int]:
        found = real()
        if dist.get_rank() == 1 and len(found) == NUM_WORKERS:
            os.kill(min(found), signal.SIGKILL)
        return found

    with patch.object(sampler, "_children", lose_one):
        return measured(num_workers=NUM_WORKERS)


def step_split() -> dict[str, Any]:
    from gpu_acceptance.measure.train import split  # not at the top: each worker imports this script, and transformers take seconds

    found = split.measure(SMALL, 4, device=CPU, compiled=False, num_steps=NUM_STEPS, num_workers=NUM_WORKERS)
    step_s = sum(found.median_s(f"{phase}_s") for phase in ("data_wait", "forward", "backward", "optimizer"))
    return {
        "phases": [[asdict(step) for step in steps] for steps in (found.reduced, found.alone)],
        "batch_size": found.batch_size,
        "waits": found.data_wait_fraction,
        "exposed_s": found.exposed_communication_s,
        "rate": found.samples_per_s,
        "step_s": step_s,
    }


def main(rank: int, store_file: str) -> None:
    dist.init_process_group("gloo", store=dist.FileStore(store_file, 2), rank=rank, world_size=2)
    found = {
        "padded": measured(num_workers=NUM_WORKERS),
        "dropped": measured(drop_last=True),
        "never shuffled anew": with_a_fault("set_epoch", lambda *_: None),
        "another's part": with_a_fault("__iter__", as_rank_0),
        "a dead worker": without_a_worker(),
        "step": step_split(),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
