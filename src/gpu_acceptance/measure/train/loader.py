"""Samples by DataLoader workers, as training reads them; and proof that torch's DistributedSampler gives every sample once in an epoch.

Workers start from a server that has imported this module and nothing of a GPU (`forkserver`). A fork of the rank itself would copy locks
that its other threads hold, those of CUDA, NCCL and gloo among them; `spawn` would import torch once for each worker. The server starts
once for each rank, in about the time that torch takes to import, and stays idle behind it. Each worker imports the script of the rank anew.

Of W ranks, rank r takes the places r, r + W, r + 2 W ... of one permutation that all ranks draw alike. Where W does not divide the samples,
those at its begin are appended until it does; with `drop_last` its end is left out instead. So the ranks' samples, laid side by side, are
that permutation again. Every rank gets the samples of all over the process group, and computes the same numbers.
Tensor suffixes: W ranks, K samples of each, N samples of the data.
"""

import itertools
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, DistributedSampler, RandomSampler, Sampler, TensorDataset

from gpu_acceptance.measure.collectives import all_gather, largest
from gpu_acceptance.measure.train import data
from gpu_acceptance.measure.train.data import Batch, Feed
from gpu_acceptance.measure.train.shapes import Workload

T = TypeVar("T")
_SEED = 0
_NUM_STEPS = 1 << 13  # of an epoch, more than a training needs: workers start anew with each
_LOST = (RuntimeError, OSError, EOFError)  # DataLoader's own, or that of a batch whose sender is gone
SAMPLES_PER_RANK = 1_000
_BATCH_SIZE = 8  # 125 batches of each rank: work for each of its workers
_NOTHING = -1  # in place of samples, on a rank that gave fewer than another


class Numbers(Dataset[torch.Tensor]):
    """A sample is its number and the process that read it."""

    def __init__(self, num_samples: int) -> None:
        self._num_samples = num_samples

    def __len__(self) -> int:
        return self._num_samples

    def __getitem__(self, number: int) -> torch.Tensor:
        return torch.tensor([number, os.getpid()])


def loader_of(
    dataset: Dataset[T],
    sampler: Sampler[Any],
    *,
    batch_size: int,
    num_workers: int,
    pin_memory: bool = False,
    is_endless: bool = False,
) -> DataLoader[T]:
    """Make a DataLoader; with 0 workers the rank reads by itself. Where a worker dies, reading raises an error within seconds.

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
    """Return a Feed of data that are made on the host, once, and come from so many DataLoader workers."""

    def feed(workload: Workload, rank: int, device: torch.device) -> Iterator[Batch]:
        made = data.batches(workload.shape, workload.batch_size, data.NUM_BATCHES, seed=_SEED, device=torch.device("cpu"))
        dataset = TensorDataset(*(torch.cat(parts) for parts in zip(*made, strict=True)))
        generator = torch.Generator().manual_seed(rank)
        sampler = RandomSampler(dataset, replacement=True, num_samples=_NUM_STEPS * workload.batch_size, generator=generator)
        loader = loader_of(dataset, sampler, batch_size=workload.batch_size, num_workers=num_workers, pin_memory=device.type == "cuda")
        return itertools.chain.from_iterable(itertools.repeat(loader))

    return Feed(feed, data.SYNTHETIC)


@dataclass(frozen=True)
class Epoch:
    """One epoch over all ranks, counted once, not once for each rank."""

    num_distinct: int  # without padding
    num_missing: int  # beyond those that `drop_last` leaves out
    num_repeated: int  # beyond the padding
    padding_difference: int  # wrong samples in the padding, too many or too few


@dataclass(frozen=True)
class Workers:
    """The DataLoader workers of this rank in one epoch."""

    num_started: int
    num_missing: int  # of those asked for: processes that did not start, or gave no sample
    num_left: int  # still alive after the epoch
    fault: str  # the error of the loader; empty where it had none


class NoWorkersError(RuntimeError):
    """A DataLoader of this job could start none of its workers."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"no worker of a DataLoader could be started: {reason}")


@dataclass(frozen=True)
class Result:
    """Some epochs over the same number of samples. Every rank gets the same, except `workers`, which are its own."""

    num_samples: int
    epochs: tuple[Epoch, ...]  # those that every rank read to their end; others were not measured
    num_same_order: int  # epochs whose order an earlier one had
    workers: tuple[Workers, ...]


def sizes(world_size: int) -> list[int]:
    """Return sizes of data: shared evenly by the ranks, with one sample too many, and with one too few."""
    even = SAMPLES_PER_RANK * world_size
    return sorted({even, even + 1, even + world_size - 1})


def measure_epochs(num_samples: int, *, num_workers: int, drop_last: bool, device: torch.device, num_epochs: int = 2) -> Result:
    """Read some epochs on all ranks. Collective. An error of one rank's loader ends that rank's epoch, which then counts on no rank.

    Raises NoWorkersError on all ranks where on one of them no worker of a loader started: that says nothing about samples.
    """
    dataset = Numbers(num_samples)
    sampler: DistributedSampler[torch.Tensor] = DistributedSampler(dataset, drop_last=drop_last)
    loader = loader_of(dataset, sampler, batch_size=_BATCH_SIZE, num_workers=num_workers)
    epochs, workers, orders = [], [], []
    for epoch in range(num_epochs):
        sampler.set_epoch(epoch)
        own, found = _read(loader)
        workers.append(found)
        worst = largest(0 if not found.fault else 1 if found.num_started else 2, device)
        if worst == 2:
            raise NoWorkersError(found.fault if not found.num_started and found.fault else "on another rank")
        if worst:
            continue
        orders.append(_side_by_side(own, per_rank(num_samples, dist.get_world_size(), drop_last=drop_last), device))
        epochs.append(count(orders[-1], num_samples, drop_last=drop_last))
    return Result(num_samples, tuple(epochs), num_same(orders), tuple(workers))


def _read(loader: DataLoader[torch.Tensor]) -> tuple[torch.Tensor, Workers]:
    """Return the numbers of this rank's samples in one epoch, in order, and the workers that read them."""
    batches: list[torch.Tensor] = []
    started: set[int] = set()
    fault = ""
    try:
        for batch_B2 in loader:
            started = started or _children()
            batches.append(batch_B2)
    except _LOST as error:
        fault = f"{type(error).__name__}: {error}"
    read_K2 = torch.cat(batches) if batches else torch.empty(0, 2, dtype=torch.int64)
    num_seen = len(started & set(read_K2[:, 1].tolist()))
    return read_K2[:, 0], Workers(len(started), max(loader.num_workers - num_seen, int(bool(fault))), len(started & _children()), fault)


def _children() -> set[int]:
    """Return the living processes that multiprocessing started here."""
    return {process.pid for process in multiprocessing.active_children() if process.pid}


def _side_by_side(own: torch.Tensor, defined: int, device: torch.device) -> torch.Tensor:
    """Return the samples of all ranks, [W, K]; K is at least the defined number. Collective."""
    longest = largest(max(len(own), defined), device)
    padded_K = torch.full((longest,), _NOTHING, dtype=torch.int64, device=device)
    padded_K[: len(own)] = own.to(device)
    every = torch.empty(dist.get_world_size() * longest, dtype=torch.int64, device=device)
    all_gather(every, padded_K)
    return every.view(-1, longest).cpu()


def count(order_WK: torch.Tensor, num_samples: int, *, drop_last: bool) -> Epoch:
    """Count the samples of each rank; `_NOTHING` fills up a rank that gave fewer. K is at least the defined number."""
    world_size = len(order_WK)
    defined = world_size * per_rank(num_samples, world_size, drop_last=drop_last)
    num_padding, num_left_out = max(0, defined - num_samples), max(0, num_samples - defined)
    places = order_WK.T.flatten()
    given = places[places != _NOTHING]
    counts_N = torch.bincount(given, minlength=num_samples)
    num_distinct = int((counts_N[:num_samples] > 0).sum())
    head, tail = places[:num_samples], places[num_samples:defined]
    wanted = head.repeat(-(-num_padding // num_samples))[:num_padding]
    return Epoch(
        num_distinct=num_distinct,
        num_missing=max(0, num_samples - num_distinct - num_left_out),
        num_repeated=max(0, len(given) - num_distinct - num_padding),
        padding_difference=int((tail != wanted).sum()) + abs(len(given) - defined),
    )


def per_rank(num_samples: int, world_size: int, *, drop_last: bool) -> int:
    """Return the number of samples that every rank gets in an epoch, by definition."""
    return num_samples // world_size if drop_last else -(-num_samples // world_size)


def num_same(orders: Sequence[torch.Tensor]) -> int:
    """Count the epochs whose order an earlier one had."""
    return sum(any(torch.equal(order, earlier) for earlier in orders[:place]) for place, order in enumerate(orders))
