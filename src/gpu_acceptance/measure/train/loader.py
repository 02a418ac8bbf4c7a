"""Samples by DataLoader workers, as training reads them.

Workers start from a server that has imported this module and nothing of a GPU (`forkserver`). A fork of the rank itself would copy locks
that its other threads hold, those of CUDA, NCCL and gloo among them; `spawn` would import torch once for each worker. The server starts
once for each rank, in about the time that torch takes to import, and stays idle behind it. Each worker imports the script of the rank anew.
"""

import itertools
import multiprocessing
import os
from collections.abc import Iterator
from typing import TypeVar

import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from gpu_acceptance.measure.train import data
from gpu_acceptance.measure.train.data import Batch, Feed
from gpu_acceptance.measure.train.shapes import Workload

T = TypeVar("T")
_SEED = 0
_NUM_STEPS = 1 << 13  # of an epoch, more than a training needs: workers start anew with each
LOST = (RuntimeError, OSError, EOFError)  # DataLoader's own, or that of a batch whose sender is gone


class Numbers(Dataset[torch.Tensor]):
    """A sample is its number and the process that read it."""

    def __init__(self, num_samples: int) -> None:
        self._num_samples = num_samples

    def __len__(self) -> int:
        return self._num_samples

    def __getitem__(self, number: int) -> torch.Tensor:
        return torch.tensor([number, os.getpid()])


class Repeated(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """So many samples from fewer inputs and targets, [B, ...] each, over and over."""

    def __init__(self, inputs: torch.Tensor, targets: torch.Tensor, num_samples: int) -> None:
        self._inputs, self._targets, self._num_samples = inputs, targets, num_samples

    def __len__(self) -> int:
        return self._num_samples

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        place = number % len(self._inputs)
        return self._inputs[place], self._targets[place]


def loader_of(
    dataset: Dataset[T],
    sampler: DistributedSampler[T],
    *,
    batch_size: int,
    num_workers: int,
    pin_memory: bool = False,
    is_endless: bool = False,
) -> DataLoader[T]:
    """With 0 workers the rank reads by itself. Where a worker dies, reading raises one of LOST within seconds.

    `is_endless`: for epoch after epoch of whole batches, over which workers live.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return DataLoader(
        dataset,
        batch_size=batch_size,
        sampler=sampler,
        num_workers=num_workers,
        pin_memory=pin_memory,
        drop_last=is_endless,
        persistent_workers=is_endless and num_workers > 0,
        multiprocessing_context=context if num_workers else None,
    )


def by_workers(num_workers: int) -> Feed:
    """A Feed of data that are made on the host, once, and come from so many DataLoader workers."""

    def feed(workload: Workload, rank: int, device: torch.device) -> Iterator[Batch]:
        made = data.batches(workload.shape, workload.batch_size, data.NUM_BATCHES, seed=_SEED, device=torch.device("cpu"))
        inputs, targets = (torch.cat(parts) for parts in zip(*made, strict=True))
        dataset = Repeated(inputs, targets, _NUM_STEPS * workload.batch_size)
        # Each rank draws from all of it: torch would have each rank permute the samples of all ranks.
        sampler: DistributedSampler[Batch] = DistributedSampler(dataset, num_replicas=1, rank=0, seed=rank)
        loader = loader_of(dataset, sampler, batch_size=workload.batch_size, num_workers=num_workers, pin_memory=device.type == "cuda")
        return itertools.chain.from_iterable(itertools.repeat(loader))

    return Feed(feed, data.SYNTHETIC)
