"""Training with DistributedDataParallel: how fast, what its communication costs, and which rank computes more slowly than the others.

Blocks of steps that reduce gradients take turns with blocks that do not (`no_sync`), so that the clocks of the GPUs are the same for
both. The latter are what each rank takes by itself while all others are at work too: a slow GPU, which hides in the waiting of all others
where gradients are reduced, shows in its own. What they train is undone. Their optimizer runs as well: it is no communication.
"""

import statistics
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import cast

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gpu_acceptance.measure.collectives import Group, largest, over_ranks
from gpu_acceptance.measure.timing import Span, time_block
from gpu_acceptance.measure.train.data import ON_DEVICE, Feed
from gpu_acceptance.measure.train.parallel import digest, replicated
from gpu_acceptance.measure.train.shapes import Workload
from gpu_acceptance.measure.train.step import Phases, TrainStep, data_wait_fraction, median
from gpu_acceptance.measure.train.trained import Times, Trained, Training
from gpu_acceptance.measure.train.tuned import tuned


@dataclass(frozen=True)
class DdpResult:
    """One model on all ranks of a group. Every rank gets the same numbers, but its own `compute_s`, phases, digest, losses and memory."""

    trained: Trained  # gradients reduced; the step of the slowest rank, the variation of the rank where it is largest
    compute_s: float  # the same without reducing, this rank
    slowest_compute_s: float
    mean_compute_s: float
    phases: Phases  # of the steps of this rank that reduce, medians
    data_wait_fraction: float  # of the time of all its steps together: a stall now and then counts as well
    gradient_bytes: int
    digest: str  # of this rank's weights, bit for bit

    @property
    def compute_items_per_s(self) -> float:
        """What this rank would do alone."""
        workload = self.trained.workload
        return workload.batch_size * workload.items_per_sample / self.compute_s

    @property
    def exposed_s(self) -> float:
        """What a step takes longer for its reduction."""
        return self.trained.step_s - self.slowest_compute_s

    @property
    def communication_efficiency(self) -> float:
        """What is left of the rate of the slowest rank, once gradients are reduced: weak scaling without the spread of GPUs."""
        return self.slowest_compute_s / self.trained.step_s

    @property
    def spread_efficiency(self) -> float:
        """What is left of the mean rate, where all wait for the slowest rank."""
        return self.mean_compute_s / self.slowest_compute_s


def measure(
    workload: Workload, *, device: torch.device, compiled: bool, times: Times, group: Group = None, feed: Feed = ON_DEVICE
) -> DdpResult:
    """Trains in blocks of each kind by turns, after a warm-up, over a process group: all ranks unless one is given. Collective there."""

    def wrap(model: nn.Module) -> nn.Module:
        wrapped = replicated(model, group=group)
        if compiled:
            wrapped.compile()
        return wrapped

    with tuned(workload, device):
        return _measured(Training(workload, dist.get_rank(), device, wrap, feed=feed), times, group)


def _measured(training: Training, times: Times, group: Group) -> DdpResult:
    run = _Run(training.step, training.device, group)
    module = cast(DistributedDataParallel, training.module)
    run.block(run.steps_filling(times.warmup_s, times.min_steps))
    num_steps = run.steps_filling(times.block_s, times.min_steps)
    reduced, alone = run.by_turns(module.no_sync, num_steps, times.num_blocks)
    reduced_s, alone_s = ([block.span.elapsed_s / num_steps for block in blocks] for blocks in (reduced, alone))
    own = [statistics.median(reduced_s), statistics.median(alone_s), 100 * statistics.stdev(reduced_s) / statistics.mean(reduced_s)]
    steps_s, computes_s, cvs_percent = over_ranks(own, training.device, group)
    return DdpResult(
        trained=training.told(max(steps_s), max(cvs_percent), reduced[0].span.begin_s, alone[-1].span.end_s),
        compute_s=own[1],
        slowest_compute_s=max(computes_s),
        mean_compute_s=statistics.mean(computes_s),
        phases=median([step for block in reduced for step in block.steps]),
        data_wait_fraction=data_wait_fraction([step for block in (*reduced, *alone) for step in block.steps]),
        gradient_bytes=sum(parameter.nbytes for parameter in module.parameters()),
        digest=digest(module),
    )


@dataclass(frozen=True)
class _Block:
    span: Span
    steps: list[Phases]


@dataclass(frozen=True)
class _Run:
    """Blocks of one step, over the ranks of a group. All is collective there."""

    step: TrainStep
    device: torch.device
    group: Group

    def by_turns(
        self, alone: Callable[[], AbstractContextManager[None]], num_steps: int, num_blocks: int
    ) -> tuple[list[_Block], list[_Block]]:
        """Blocks as they are, and blocks with each step in `alone`, which are undone."""
        reduced, apart = [], []
        for _ in range(num_blocks):
            reduced.append(self.block(num_steps))
            with self.step.undone():
                apart.append(self.block(num_steps, alone))
        return reduced, apart

    def block(self, num_steps: int, around: Callable[[], AbstractContextManager[None]] = nullcontext) -> _Block:
        """On a rank that begins when all have come."""
        largest(0, self.device, self.group)
        self.step.marks.begin()
        span = time_block(lambda: self.step(around()), num_steps, self.device)
        return _Block(span, self.step.marks.steps())

    def steps_filling(self, seconds: float, min_steps: int) -> int:
        """As many on all ranks; takes the time of a few."""
        step_s = self.block(min_steps).span.elapsed_s / min_steps
        return largest(max(min_steps, round(seconds / step_s)), self.device, self.group)
