"""One rank of several that read data with torch's DistributedSampler on gloo; prints what it found as JSON. Started by test_sampler.py."""

import json
import multiprocessing
import os
import signal
import sys
from dataclasses import asdict
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler

from gpu_acceptance.measure.train import sampler, split
from gpu_acceptance.measure.train.shapes import Decoder

CPU = torch.device("cpu")
SMALL = Decoder("gpt2", num_layers=2, width=64, num_heads=2, vocabulary=256, sequence=32)
NUM_WORKERS = 2


def measured(num_samples: int, *, num_workers: int = 0, drop_last: bool = False) -> dict[str, Any]:
    return asdict(sampler.measure(num_samples, num_workers=num_workers, drop_last=drop_last, device=CPU))


def with_a_fault(name: str, fault: Any) -> dict[str, Any]:
    with patch.object(DistributedSampler, name, fault):
        return measured(sampler.sizes(dist.get_world_size())[-1])


def own_rank_wrong(self: Any) -> Any:
    """Rank 1 believes to be rank 0."""
    self.rank = 0
    return of_torch(self)


of_torch = DistributedSampler.__iter__


def without_a_worker() -> dict[str, Any]:
    """Rank 1 loses one while it reads."""
    real = sampler._children

    def lose_one() -> set[int]:
        found = real()
        if dist.get_rank() == 1 and len(found) == NUM_WORKERS:
            os.kill(min(found), signal.SIGKILL)
        return found

    with patch.object(sampler, "_children", lose_one):
        return measured(sampler.sizes(2)[-1], num_workers=NUM_WORKERS)


def main(rank: int, num_ranks: int, store_file: str) -> None:
    dist.init_process_group("gloo", store=dist.FileStore(store_file, num_ranks), rank=rank, world_size=num_ranks)
    sizes = sampler.sizes(num_ranks)
    found: dict[str, Any] = {
        "sizes": sizes,
        "sound": [measured(size, drop_last=drop_last) for size in [*sizes, 1] for drop_last in (False, True)],
        "not shuffled anew": with_a_fault("set_epoch", lambda *_: None),
        "rank wrong": with_a_fault("__iter__", own_rank_wrong),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]), 2, sys.argv[2])
