"""One rank of two that read data with torch's DistributedSampler on gloo; prints what it found as JSON. Started by test_loader.py."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from multiprocessing import forkserver
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler

from gpu_acceptance.measure.train import loader
from gpu_acceptance.measure.train.shapes import Decoder, Workload

CPU = torch.device("cpu")
SMALL = Workload("gpt2", Decoder("gpt2", num_layers=2, width=64, num_heads=2, vocabulary=256, sequence=32), 4)
NUM_WORKERS, SLOW_S = 2, 0.3  # of a sample
_torch_iterates = DistributedSampler.__iter__


def measured(*, num_workers: int = 0, drop_last: bool = False) -> dict[str, Any]:
    return asdict(loader.measure_epochs(2 * loader.SAMPLES_PER_RANK + 1, num_workers=num_workers, drop_last=drop_last, device=CPU))


def with_a_fault(name: str, fault: Callable[..., Any]) -> dict[str, Any]:
    with patch.object(DistributedSampler, name, fault):
        return measured()


def as_rank_0(self: Any) -> Any:
    self.rank = 0
    return _torch_iterates(self)


def without_a_worker() -> dict[str, Any]:
    """Rank 1 loses one while it reads."""
    real = loader._children

    def lose_one() -> set[int]:
        found = real()
        if dist.get_rank() == 1 and len(found) == NUM_WORKERS:
            os.kill(min(found), signal.SIGKILL)
        return found

    with patch.object(loader, "_children", lose_one):
        return measured(num_workers=NUM_WORKERS)


def in_too_long_a_folder() -> str:
    """The temporary folder of rank 1 is one in which no socket can be made."""

    def refuse(*_: Any) -> None:
        raise OSError("AF_UNIX path too long")

    with patch.object(forkserver._forkserver, "ensure_running", refuse) if dist.get_rank() else nullcontext():
        try:
            measured(num_workers=NUM_WORKERS)
        except loader.NoWorkersError as error:
            return str(error)
    return ""


def with_loaded_data() -> dict[str, Any]:
    """Soundly, and from a worker that is slow."""
    # Not at the top: each worker imports this script, and transformers take seconds.
    from gpu_acceptance.measure.train import throughput
    from gpu_acceptance.measure.train.throughput import Times

    def measured() -> dict[str, Any]:
        times = Times(warmup_s=0.0, block_s=0.0, num_blocks=2, min_iterations=1)
        found = throughput.measure_ddp(SMALL, device=CPU, compiled=False, times=times, feed=loader.by_workers(NUM_WORKERS))
        return {"phases": found.phases._asdict(), "waits": found.data_wait_fraction, "num_steps": len(found.trained.losses)}

    with patch.object(loader, "TensorDataset", Slow):
        slow = measured()
    return {"sound": measured(), "slow": slow}


class Slow(loader.TensorDataset):
    """Its workers give fewer samples than are trained."""

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        time.sleep(SLOW_S)
        return super().__getitem__(number)


def main(rank: int, store_file: str) -> None:
    dist.init_process_group("gloo", store=dist.FileStore(store_file, 2), rank=rank, world_size=2)
    found = {
        "padded": measured(num_workers=NUM_WORKERS),
        "dropped": measured(drop_last=True),
        "never shuffled anew": with_a_fault("set_epoch", lambda *_: None),
        "another's part": with_a_fault("__iter__", as_rank_0),
        "a dead worker": without_a_worker(),
        "a path that is too long": in_too_long_a_folder(),
        "loaded": with_loaded_data(),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
