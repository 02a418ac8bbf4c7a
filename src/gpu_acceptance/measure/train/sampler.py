"""What torch's DistributedSampler gives to the ranks: every sample once in an epoch, and no more padding than its definition adds.

Rank r of W takes the places r, r + W, r + 2 W ... of one permutation that all ranks draw alike. Where W does not divide the samples, those
that begin it are appended until it does; with `drop_last` its end is left out instead. So the ranks' samples, laid side by side, are that
permutation again. Every rank sees those of all, brought together over the process group, and gets the same numbers.
Tensor suffixes: W ranks, K samples of each, N samples of the data.
"""

import multiprocessing
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

from gpu_acceptance.measure.collectives import all_gather, largest
from gpu_acceptance.measure.train.loader import LOST, Numbers, loader_of

SAMPLES_PER_RANK = 1_000
_BATCH_SIZE = 8  # 125 batches of each rank: work for each of its workers
_NOTHING = -1  # where a rank gave less than another


@dataclass(frozen=True)
class Epoch:
    """One epoch over all ranks, counted once, not once for each rank."""

    num_distinct: int  # without padding
    num_missing: int  # beyond those that `drop_last` leaves out
    num_repeated: int  # beyond the padding
    padding_difference: int  # samples of the padding that are others than those that begin the epoch, too many or too few


@dataclass(frozen=True)
class Workers:
    """The DataLoader workers of this rank in one epoch."""

    num_started: int
    num_missing: int  # of those asked for: processes that were there, and of which samples came
    num_left: int  # still there after the epoch
    fault: str  # why the loader gave up; empty where it did not


class NoWorkersError(RuntimeError):
    """A DataLoader of this job could start none of its workers."""

    def __init__(self, why: str) -> None:
        super().__init__(f"no worker of a DataLoader could be started: {why}")


@dataclass(frozen=True)
class Result:
    """Some epochs over as many samples. Every rank gets the same, but `workers`, which are its own."""

    num_samples: int
    epochs: tuple[Epoch, ...]  # those that every rank read to their end: what nobody read was not measured
    num_same_order: int  # of these, the ones whose order an earlier one had
    workers: tuple[Workers, ...]


def sizes(world_size: int) -> list[int]:
    """Of data that the ranks share evenly, with one sample too many, and with one too few."""
    even = SAMPLES_PER_RANK * world_size
    return sorted({even, even + 1, even + world_size - 1})


def measure(num_samples: int, *, num_workers: int, drop_last: bool, device: torch.device, num_epochs: int = 2) -> Result:
    """Reads some epochs on all ranks. Collective. A loader that gives up ends the epoch of its rank, which then counts on no rank.

    Raises NoWorkersError on all ranks where no worker of a loader came up on one of them: that says nothing about samples.
    """
    dataset = Numbers(num_samples)
    sampler: DistributedSampler[torch.Tensor] = DistributedSampler(dataset, drop_last=drop_last)
    loader = loader_of(dataset, sampler, batch_size=_BATCH_SIZE, num_workers=num_workers)
    epochs, workers, orders = [], [], []
    for epoch in range(num_epochs):
        sampler.set_epoch(epoch)
        own, found = _read(loader)
        workers.append(found)
        if has_given_up(found, device):
            continue
        orders.append(_side_by_side(own, per_rank(num_samples, dist.get_world_size(), drop_last=drop_last), device))
        epochs.append(count(orders[-1], num_samples, drop_last=drop_last))
    return Result(num_samples, tuple(epochs), num_same(orders), tuple(workers))


def has_given_up(found: Workers, device: torch.device) -> bool:
    """Whether the loader of any rank ended before its epoch did. Collective. Raises NoWorkersError where one of them never began."""
    worst = largest(0 if not found.fault else 1 if found.num_started else 2, device)
    if worst == 2:
        raise NoWorkersError(found.fault if not found.num_started and found.fault else "on another rank")
    return bool(worst)


def count(order_WK: torch.Tensor, num_samples: int, *, drop_last: bool) -> Epoch:
    """Of the samples of each rank; `_NOTHING` fills up a rank that gave less. K is no less than the definition asks for."""
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
    """As many samples every rank gets in an epoch, by definition."""
    return num_samples // world_size if drop_last else -(-num_samples // world_size)


def num_same(orders: Sequence[torch.Tensor]) -> int:
    """Of the epochs after the first, those whose order an earlier one had."""
    return sum(any(torch.equal(order, earlier) for earlier in orders[:place]) for place, order in enumerate(orders))


def _read(loader: DataLoader[torch.Tensor]) -> tuple[torch.Tensor, Workers]:
    """The numbers of this rank's samples in one epoch, in order, and by whom they were read."""
    batches: list[torch.Tensor] = []
    started: set[int] = set()
    fault = ""
    try:
        for batch_B2 in loader:
            started = started or _children()
            batches.append(batch_B2)
    except LOST as error:
        fault = f"{type(error).__name__}: {error}"
    read_K2 = torch.cat(batches) if batches else torch.empty(0, 2, dtype=torch.int64)
    num_seen = len(started & set(read_K2[:, 1].tolist()))
    return read_K2[:, 0], Workers(len(started), max(loader.num_workers - num_seen, int(bool(fault))), len(started & _children()), fault)


def _children() -> set[int]:
    """Processes that multiprocessing started here and that are alive."""
    return {process.pid for process in multiprocessing.active_children() if process.pid}


def _side_by_side(own: torch.Tensor, defined: int, device: torch.device) -> torch.Tensor:
    """The samples of all ranks, [W, K]; K is no less than is defined. Collective."""
    longest = largest(max(len(own), defined), device)
    padded_K = torch.full((longest,), _NOTHING, dtype=torch.int64, device=device)
    padded_K[: len(own)] = own.to(device)
    every = torch.empty(dist.get_world_size() * longest, dtype=torch.int64, device=device)
    all_gather(every, padded_K)
    return every.view(-1, longest).cpu()
