"""Training alone, with DDP and with FSDP: the rate, the cost of communication, and ranks that compute more slowly than others.

Alone, each GPU trains by itself, all at the same time: jobs of many GPUs are compared with that.

With DDP, blocks of steps that reduce gradients take turns with blocks that do not (`no_sync`), so that the clocks of the GPUs are the same
for both. Blocks without reduction show the time of each rank by itself while all others work too. Where gradients are reduced all ranks
wait for a slow GPU, which hides it. These blocks are undone. Their optimizer runs as well: it is no communication.

With FSDP2, parameters, gradients and optimizer are sharded over ranks, and each rank proves that it holds its shard and no more.
"""

import functools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.flop_counter import FlopCounterMode

from gpu_acceptance.measure.collectives import Group, largest, over_ranks
from gpu_acceptance.measure.pace import Spread
from gpu_acceptance.measure.timing import Blocks, Span, cv_percent, hopeless_blocks, time_block, time_blocks, time_each
from gpu_acceptance.measure.train.data import ON_DEVICE, Feed
from gpu_acceptance.measure.train.models import Sharding, build, compile_by_blocks, digest, replicated, sharded
from gpu_acceptance.measure.train.shapes import ResNet, Shape, Workload
from gpu_acceptance.measure.train.step import (
    CommOverlap,
    Part,
    Phases,
    TrainStep,
    data_wait_fraction,
    local,
    measure_overlap,
    median,
    peak_bytes,
    tuned,
)

_META = torch.device("meta")
_NUM_SAMPLES = 2  # normalisation over a batch wants more than one
_LAST = 10  # steps whose mean loss counts
_SEED = 0  # of the weights, the same on all ranks
_NUM_SINGLES = 40  # steps that are timed one by one
_NUM_PROFILED = 2  # steps


@functools.cache
def flops_per_sample(shape: Shape) -> int:
    """Return the FLOPs of forward and backward over one sequence or image: torch counts two for each multiplication of matrix products.

    Attention counts whole, without the half that causality spares, and nothing is recomputed: for a decoder that is
    6 (N - N_embedding) + 12 L d s for a token (PaLM, appendix B). Counted on `meta`, where nothing runs.
    """
    if isinstance(shape, ResNet):
        inputs = torch.empty(_NUM_SAMPLES, 3, shape.image_size, shape.image_size, device=_META)
        targets = torch.empty(_NUM_SAMPLES, dtype=torch.int64, device=_META)
    else:
        inputs = targets = torch.empty(_NUM_SAMPLES, shape.sequence, dtype=torch.int64, device=_META)
    with FlopCounterMode(display=False) as counter:
        build(shape, _META)(inputs, targets).backward()
    return int(counter.get_total_flops()) // _NUM_SAMPLES


@dataclass(frozen=True)
class Times:
    """Length of a training: blocks of at least so long and of at least so many steps, after a warm-up; see `time_blocks`."""

    warmup_s: float
    block_s: float
    num_blocks: int
    min_iterations: int  # steps
    hopeless_s: float = math.inf


@dataclass(frozen=True)
class Trained:
    """One workload, trained in blocks. Losses and memory are those of this rank."""

    workload: Workload
    data: str  # their source
    step_s: float  # median block
    best_step_s: float  # best block of any rank
    block_cv_percent: float
    first_step_s: float  # from nothing: weights, data, compiling, one step
    begin_s: float  # of the blocks, by time.monotonic
    end_s: float
    losses: tuple[float, ...]
    num_parameters: int  # of the whole model
    optimizer_bytes: int
    peak_bytes: int  # allocated on the device since the training began; 0 on a CPU
    is_cut: bool = False  # it is a few steps, too slow to be worth more: losses tell nothing

    @property
    def items_per_s(self) -> float:
        """The rate of one rank in images, or in tokens, of which none is padding."""
        return self.workload.items_per_step / self.step_s

    @property
    def spread(self) -> Spread:
        """The spread of the rate."""
        return Spread(self.block_cv_percent, self.workload.items_per_step / self.best_step_s, self.is_cut)

    @property
    def gflop_per_sample(self) -> float:
        """The cost of one sample, as `flops_per_sample` counts."""
        return flops_per_sample(self.workload.shape) / 1e9

    @property
    def tflop_per_s(self) -> float:
        """The rate of one rank."""
        return self.workload.batch_size / self.step_s * self.gflop_per_sample / 1e3

    @property
    def loss_ratio(self) -> float:
        """The mean loss of the last steps over the first loss."""
        return statistics.mean(self.losses[-_LAST:]) / self.losses[0]


class Steps(NamedTuple):
    """The time of a step, by blocks."""

    step_s: float  # median block
    best_step_s: float
    cv_percent: float
    is_cut: bool


def slowest_steps(
    steps_s: Sequence[float], *others: float, is_cut: bool, device: torch.device, group: Group = None
) -> tuple[Steps, list[list[float]]]:
    """Return the steps of the slowest rank, with the best block and the variation of any, and each other number by rank. Collective."""
    own = [statistics.median(steps_s), min(steps_s), cv_percent(steps_s), *others]
    medians_s, bests_s, cvs_percent, *rest = over_ranks(own, device, group)
    return Steps(max(medians_s), min(bests_s), max(cvs_percent), is_cut), rest


class Training:
    """One workload that begins here: `module` is `wrap` of its model, and one step has been made. Collective where that module is.

    `rank`: its part of `feed`. `autocast`: see TrainStep.
    """

    def __init__(
        self,
        workload: Workload,
        rank: int,
        device: torch.device,
        wrap: Callable[[nn.Module], nn.Module],
        *,
        feed: Feed,
        autocast: bool = True,
    ) -> None:
        begin_s = time.monotonic()
        torch.manual_seed(_SEED)
        self.workload, self.device, self.source = workload, device, feed.source
        self.module = wrap(build(workload.shape, device))
        steps: Iterator[Sequence[Part]] = ([(1, batch)] for batch in feed.batches(workload, rank, device))
        self.step = TrainStep(self.module, steps, device=device, autocast=autocast)
        self.first_step_s = time_block(self.step, 1, device).end_s - begin_s

    def time_blocks(self, times: Times, agree: Callable[[int], int]) -> Blocks:
        """Time blocks of steps that begin together. `agree` returns the largest of one number from each rank. Collective, in `agree`."""
        return time_blocks(self.step, device=self.device, **vars(times), before_block=lambda: agree(0), agree=agree)

    def block(
        self, num_steps: int, group: Group, around: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> tuple[Span, list[Phases]]:
        """Run one block, which begins on all ranks of a group together. `around`: a context for each step. Collective there."""
        largest(0, self.device, group)
        self.step.marks.begin()
        span = time_block(lambda: self.step(around()), num_steps, self.device)
        return span, self.step.marks.steps()

    def largest_in(self, group: Group) -> Callable[[int], int]:
        """Return the function that returns the largest of one number from each rank of a group."""
        return lambda number: largest(number, self.device, group)

    def steps_filling(self, seconds: float, min_steps: int, group: Group) -> int:
        """Return a number of steps that takes so long, the same on all ranks of a group; runs a few of them. Collective there."""
        span, _ = self.block(min_steps, group)
        return largest(max(min_steps, round(seconds / (span.elapsed_s / min_steps))), self.device, group)

    def result(self, steps: "Steps", spans: Sequence[Span]) -> Trained:
        """Return the result of blocks. Waits for the device."""
        return Trained(
            workload=self.workload,
            data=self.source,
            step_s=steps.step_s,
            best_step_s=steps.best_step_s,
            block_cv_percent=steps.cv_percent,
            is_cut=steps.is_cut,
            first_step_s=self.first_step_s,
            begin_s=spans[0].begin_s,
            end_s=spans[-1].end_s,
            losses=tuple(self.step.losses),
            num_parameters=sum(parameter.numel() for parameter in self.module.parameters()),
            optimizer_bytes=self.step.optimizer_bytes,
            peak_bytes=peak_bytes(self.device),
        )


def measure_alone(
    workload: Workload,
    *,
    rank: int,
    device: torch.device,
    compiled: bool,
    times: Times,
    agree: Callable[[int], int],
    feed: Feed = ON_DEVICE,
) -> tuple[Trained, list[float]]:
    """Train on this rank alone, in blocks that begin together; return also the seconds of single steps, one after the other.

    `agree` returns the largest of one number from each rank. Collective, in `agree` alone.
    """
    with tuned(workload, device):
        training = Training(workload, rank, device, lambda model: _compiled(model) if compiled else model, feed=feed)
        blocks = training.time_blocks(times, agree)
        steps_s = list(blocks.operation_s) if blocks.is_cut else time_each(training.step, _NUM_SINGLES, device)
        return training.result(Steps(blocks.median_s, blocks.best_s, blocks.cv_percent, blocks.is_cut), blocks.spans), steps_s


def _compiled(model: nn.Module) -> nn.Module:
    model.compile()
    return model


@dataclass(frozen=True)
class DdpResult:
    """One model on all ranks of a group.

    Every rank gets the same numbers, except its own `compute_s`, phases, digest, losses and memory.
    """

    trained: Trained  # gradients reduced; the step of the slowest rank, the variation of the rank where it is largest
    compute_s: float  # a step without reduction, this rank
    slowest_compute_s: float
    mean_compute_s: float
    phases: Phases  # of the steps of this rank that reduce, medians
    data_wait_fraction: float  # of the time of all its steps together: a rare stall counts as well
    gradient_bytes: int
    digest: str  # of this rank's weights, bit for bit

    @property
    def compute_items_per_s(self) -> float:
        """The rate of this rank without reduction."""
        return self.trained.workload.items_per_step / self.compute_s

    @property
    def exposed_s(self) -> float:
        """The time that reduction adds to a step."""
        return self.trained.step_s - self.slowest_compute_s

    @property
    def communication_efficiency(self) -> float:
        """The part of the slowest rank's rate that is left with reduction: weak scaling without the spread of GPUs."""
        return self.slowest_compute_s / self.trained.step_s

    @property
    def spread_efficiency(self) -> float:
        """The part of the mean rate that is left where all wait for the slowest rank."""
        return self.mean_compute_s / self.slowest_compute_s


class _Turns:
    """Blocks of steps that reduce gradients, and of steps that do not, by turns."""

    def __init__(self, training: Training, group: Group) -> None:
        self.spans = list[Span]()
        self.reducing, self.others = list[Phases](), list[Phases]()
        self.is_cut = False
        self._training, self._group = training, group

    def run(self, times: Times) -> tuple[list[float], list[float]]:
        """Return the seconds of a step that reduces and of one that does not, by blocks. Collective in the group."""
        training, group = self._training, self._group
        lasts_s = times.warmup_s + times.num_blocks * times.block_s
        if few := hopeless_blocks(self._reduced, times.hopeless_s, training.largest_in(group), lasts_s=lasts_s):
            self.is_cut, self.spans = True, list(few.spans)
            return list(few.operation_s), [self._alone(1).elapsed_s for _ in range(2)]
        self.reducing.clear()
        training.block(training.steps_filling(times.warmup_s, times.min_iterations, group), group)
        num_steps = training.steps_filling(times.block_s, times.min_iterations, group)
        self.spans = [kind(num_steps) for _ in range(times.num_blocks) for kind in (self._reduced, self._alone)]
        steps_s = [span.elapsed_s / num_steps for span in self.spans]
        return steps_s[::2], steps_s[1::2]

    def _reduced(self, num_steps: int) -> Span:
        span, phases = self._training.block(num_steps, self._group)
        self.reducing += phases
        return span

    def _alone(self, num_steps: int) -> Span:
        module = cast(DistributedDataParallel, self._training.module)
        with self._training.step.undone():
            span, phases = self._training.block(num_steps, self._group, module.no_sync)
        self.others += phases
        return span


def measure_ddp(
    workload: Workload, *, device: torch.device, compiled: bool, times: Times, group: Group = None, feed: Feed = ON_DEVICE
) -> DdpResult:
    """Train in blocks of each kind by turns, after a warm-up, over a process group: all ranks unless one is given. Collective there."""

    def wrap(model: nn.Module) -> nn.Module:
        module = replicated(model, group=group)
        return _compiled(module) if compiled else module

    with tuned(workload, device):
        training = Training(workload, dist.get_rank(), device, wrap, feed=feed)
        turns = _Turns(training, group)
        reduced_s, alone_s = turns.run(times)
        compute_s = statistics.median(alone_s)
        steps, (computes_s,) = slowest_steps(reduced_s, compute_s, is_cut=turns.is_cut, device=device, group=group)
        return DdpResult(
            trained=training.result(steps, turns.spans),
            compute_s=compute_s,
            slowest_compute_s=max(computes_s),
            mean_compute_s=statistics.mean(computes_s),
            phases=median(turns.reducing),
            data_wait_fraction=data_wait_fraction(turns.reducing + turns.others),
            gradient_bytes=sum(parameter.nbytes for parameter in training.module.parameters()),
            digest=digest(training.module.parameters()),
        )


@dataclass(frozen=True)
class FsdpResult:
    """One model over all ranks of a mesh. The same on each of them, except its own `held_bytes`, `overlap`, losses and memory."""

    trained: Trained  # the step of the slowest rank, the variation of the rank where it is largest
    held_bytes: int  # parameters and moments of this rank
    promised_bytes: int  # the size of this rank's shard of them
    overlap: CommOverlap | None  # None on a CPU, and of a few steps
    digest: str | None  # of the whole weights, bit for bit, by the replica that this rank is in; None if there is only one

    @property
    def held(self) -> float:
        """The held part of the promise: 1; the number of shards, where nothing is sharded."""
        return self.held_bytes / self.promised_bytes


def measure_fsdp(
    workload: Workload, sharding: Sharding, *, device: torch.device, compiled: bool, times: Times, feed: Feed = ON_DEVICE
) -> FsdpResult:
    """Train in blocks, after a warm-up: bf16 parameters and activations, reduction in fp32. Collective in the mesh, which is all ranks."""

    def wrap(model: nn.Module) -> nn.Module:
        if compiled:
            compile_by_blocks(model)
        return sharded(model, sharding)

    with tuned(workload, device):
        training = Training(workload, dist.get_rank(), device, wrap, feed=feed, autocast=False)
        blocks = training.time_blocks(times, lambda number: largest(number, device))
        steps, _ = slowest_steps(blocks.operation_s, is_cut=blocks.is_cut, device=device)
        trained, parameters = training.result(steps, blocks.spans), list(training.module.parameters())
        return FsdpResult(
            trained=trained,
            held_bytes=sum(local(parameter).nbytes for parameter in parameters) + trained.optimizer_bytes,
            promised_bytes=sum(sharding.promised_bytes(parameter.shape) for parameter in parameters),
            overlap=measure_overlap(training.step, _NUM_PROFILED, device) if device.type == "cuda" and not steps.is_cut else None,
            digest=digest(parameters) if sharding.mesh.ndim > 1 else None,
        )
