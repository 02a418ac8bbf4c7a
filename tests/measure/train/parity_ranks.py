"""One rank whose figures of acceptance/test_parity.py are printed as JSON, without a fault and with each. Started by test_parity.py."""

import functools
import json
import math
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

sys.path.append(str(Path(__file__).parents[3]))

from acceptance.test_parity import test_training
from gpu_acceptance.measure.train import models, parity
from gpu_acceptance.measure.train.shapes import Decoder, Workload
from gpu_acceptance.measure.train.step import Part

SMALL = Workload("gpt2", Decoder("gpt2", num_layers=2, width=64, num_heads=2, vocabulary=256, sequence=32), 2)


def figures(dtype: str, num_steps: int, fault: AbstractContextManager[object]) -> list[tuple[str, object, str, str]]:
    """Return the figures that the shipped validation checks: metric, value, unit, detail."""
    found = []

    def check(metric: str, value: object, unit: str, detail: str = "") -> None:
        found.append((metric, value, unit, detail))

    with fault:
        test_training(
            dtype,
            SimpleNamespace(device=torch.device("cpu"), rank=dist.get_rank()),
            workload=lambda _: SMALL,
            check=check,
            record=lambda *_: None,
            record_curve=lambda *_: None,
            parameter={"parity.num_steps": num_steps, "parity.batch_size": 2}.__getitem__,
        )
    return found


def reduced_by(take: Callable[[Tensor, Tensor], Tensor], part: float = 1.0) -> AbstractContextManager[object]:
    """DDP takes for its gradients what `take` makes of this rank's own and of the sum of all; this rank gives `part` of its own."""

    def reduce(_: None, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        own = bucket.buffer().clone()
        work = dist.all_reduce(bucket.buffer().mul_(part), async_op=True)
        return work.get_future().then(lambda future: take(own, future.value()[0]))

    def replicated(module: torch.nn.Module, **options: Any) -> DistributedDataParallel:
        made = DistributedDataParallel(module, **options)
        made.register_comm_hook(None, reduce)
        return made

    return patch.object(models, "DistributedDataParallel", replicated)


def summed_by_fsdp() -> AbstractContextManager[object]:
    real = models.fully_shard

    def sharded(module: torch.nn.Module, **options: Any) -> object:
        made = real(module, **options)
        made.set_force_sum_reduction_for_comms(True)
        made.set_gradient_divide_factor(1.0)
        return made

    return patch.object(models, "fully_shard", sharded)


def data_of_rank_0() -> AbstractContextManager[object]:
    real = parity._micro_batches
    return patch.object(parity, "_micro_batches", lambda workload, num_steps, _, device: real(workload, num_steps, 0, device))


def loss_that_is_lost(rank: int) -> AbstractContextManager[object]:
    """Lose the loss of one middle step, where DDP or FSDP trains."""
    real = parity.train

    def lost(loss: torch.nn.Module, steps: list[list[Part]], device: torch.device) -> parity.Course:
        found = real(loss, steps, device)
        return found if len(steps[0]) > 1 else replace(found, losses=[*found.losses[:1], math.nan, *found.losses[2:]])

    return patch.object(parity, "train", lost) if rank == 1 else nullcontext()


def faults(rank: int) -> dict[str, AbstractContextManager[object]]:
    """Faults on two ranks."""
    return {
        "ddp sums": reduced_by(lambda _, whole: whole),
        "fsdp sums": summed_by_fsdp(),
        "rank 1 keeps its own gradients": reduced_by(lambda own, whole: own if rank == 1 else whole / 2),
        "rank 1 adds nothing": reduced_by(lambda _, whole: whole / 2, part=1.0 - rank),
        "rank 1 draws other weights": patch.object(parity, "_SEED", rank),
        "rank 1 trains the data of rank 0": data_of_rank_0() if rank == 1 else nullcontext(),
        "rank 1 loses a loss": loss_that_is_lost(rank),
    }


def main(rank: int, store_file: str, world_size: int, num_steps: int) -> None:
    dist.init_process_group("gloo", store=dist.FileStore(store_file, world_size), rank=rank, world_size=world_size)
    sound = functools.partial(figures, num_steps=num_steps, fault=nullcontext())
    found = {f"{dtype} sound": sound(dtype) for dtype in parity.DTYPES}
    if world_size == 2:
        found |= {name: figures("fp32", 3, fault) for name, fault in faults(rank).items()}
        found |= {f"bf16 {name}": figures("bf16", 3, fault) for name, fault in faults(rank).items() if "sums" in name}
    print(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
