"""Training with DistributedDataParallel: how fast, what its communication costs, and which rank computes more slowly than the others.

Blocks of steps that reduce gradients take turns with blocks that do not (`no_sync`), so that the clocks of the GPUs are the same for
both. The latter are what each rank takes by itself while all others are at work too: a slow GPU, which hides in the waiting of all others
where gradients are reduced, shows in its own. What they train is undone. Their optimizer runs as well: it is no communication.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gpu_acceptance.measure.collectives import largest, over_ranks
from gpu_acceptance.measure.corruption.hashing import as_text, hash_tensors
from gpu_acceptance.measure.timing import time_block
from gpu_acceptance.measure.train import data
from gpu_acceptance.measure.train.models import build
from gpu_acceptance.measure.train.shapes import Shape
from gpu_acceptance.measure.train.step import TrainStep

_NUM_BATCHES = 4
_SEED = 0  # of the weights, which DDP would take from rank 0 anyway
_LAST = 10  # steps whose mean loss counts


@dataclass(frozen=True)
class DdpResult:
    """One model on all ranks. Every rank gets the same numbers, but its own `compute_s`, losses and weights."""

    batch_size: int  # of one rank
    step_s: float  # gradients reduced; median block of the slowest rank
    block_cv_percent: float  # of the rank where it is largest
    compute_s: float  # the same without reducing, this rank
    slowest_compute_s: float
    mean_compute_s: float
    first_step_s: float  # from nothing: weights, compiling, one step
    losses: tuple[float, ...]
    num_parameters: int
    optimizer_bytes: int
    gradient_bytes: int
    digest: str  # of this rank's weights, bit for bit

    @property
    def samples_per_s(self) -> float:
        """Of one rank."""
        return self.batch_size / self.step_s

    @property
    def compute_samples_per_s(self) -> float:
        """What this rank would do alone."""
        return self.batch_size / self.compute_s

    @property
    def communication_efficiency(self) -> float:
        """What is left of the rate of the slowest rank, once gradients are reduced: weak scaling without the spread of GPUs."""
        return self.slowest_compute_s / self.step_s

    @property
    def spread_efficiency(self) -> float:
        """What is left of the mean rate, where all wait for the slowest rank."""
        return self.mean_compute_s / self.slowest_compute_s

    @property
    def loss_ratio(self) -> float:
        """Of the last steps' mean loss to the first one's."""
        return statistics.mean(self.losses[-_LAST:]) / self.losses[0]


def measure(
    shape: Shape,
    batch_size: int,
    *,
    device: torch.device,
    compiled: bool,
    block_s: float,
    num_blocks: int,
    warmup_s: float,
    min_steps: int = 10,
) -> DdpResult:
    """Trains in `num_blocks` blocks of each kind, at least `min_steps` steps long, after a warm-up. Collective."""
    step, module, first_step_s = _begin(shape, batch_size, device, compiled)

    def compute() -> None:
        step(module.no_sync())

    _block_s(step, _steps_filling(warmup_s, step, device, min_steps), device)
    num_steps = _steps_filling(block_s, step, device, min_steps)
    reduced_s, alone_s = _by_turns(step, compute, num_steps, num_blocks, device)
    own = [statistics.median(reduced_s), statistics.median(alone_s), 100 * statistics.stdev(reduced_s) / statistics.mean(reduced_s)]
    steps_s, computes_s, cvs_percent = over_ranks(own, device)
    parameters = list(module.parameters())
    return DdpResult(
        batch_size=batch_size,
        step_s=max(steps_s),
        block_cv_percent=max(cvs_percent),
        compute_s=own[1],
        slowest_compute_s=max(computes_s),
        mean_compute_s=statistics.mean(computes_s),
        first_step_s=first_step_s,
        losses=tuple(step.losses),
        num_parameters=sum(parameter.numel() for parameter in parameters),
        optimizer_bytes=step.optimizer_bytes,
        gradient_bytes=sum(parameter.nbytes for parameter in parameters),
        digest=as_text(hash_tensors([parameter.detach().contiguous() for parameter in parameters])),
    )


def _begin(shape: Shape, batch_size: int, device: torch.device, compiled: bool) -> tuple[TrainStep, DistributedDataParallel, float]:
    """The step, its module, and the seconds up to the end of the first one."""
    begin_s = time.monotonic()
    torch.manual_seed(_SEED)
    module = DistributedDataParallel(build(shape, device), gradient_as_bucket_view=True)
    if compiled:
        module.compile()
    batches = data.batches(shape, batch_size, _NUM_BATCHES, seed=dist.get_rank(), device=device)
    step = TrainStep(module, batches, device=device)
    return step, module, time_block(step, 1, device).end_s - begin_s


def _by_turns(
    step: TrainStep, compute: Callable[[], object], num_steps: int, num_blocks: int, device: torch.device
) -> tuple[list[float], list[float]]:
    """Seconds of one step by block, with reduction and without. Collective."""
    reduced_s, alone_s = [], []
    for _ in range(num_blocks):
        reduced_s.append(_block_s(step, num_steps, device))
        with step.undone():
            alone_s.append(_block_s(compute, num_steps, device))
    return reduced_s, alone_s


def _block_s(step: Callable[[], object], num_steps: int, device: torch.device) -> float:
    """Seconds of one step, on a rank that begins when all have come. Collective."""
    largest(0, device)
    return time_block(step, num_steps, device).elapsed_s / num_steps


def _steps_filling(seconds: float, step: Callable[[], object], device: torch.device, min_steps: int) -> int:
    """As many on all ranks; takes the time of a few. Collective."""
    return largest(max(min_steps, round(seconds / _block_s(step, min_steps, device))), device)
