"""Training with DistributedDataParallel: how fast, what its communication costs, and which rank computes more slowly than the others.

Blocks of steps that reduce gradients take turns with blocks that do not (`no_sync`), so that the clocks of the GPUs are the same for
both. The latter are what each rank takes by itself while all others are at work too: a slow GPU, which hides in the waiting of all others
where gradients are reduced, shows in its own. What they train is undone. Their optimizer runs as well: it is no communication.
"""

import inspect
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gpu_acceptance.measure.collectives import Group, largest, over_ranks
from gpu_acceptance.measure.corruption.hashing import as_text, hash_tensors
from gpu_acceptance.measure.timing import Span, time_block
from gpu_acceptance.measure.train.shapes import Workload
from gpu_acceptance.measure.train.step import TrainStep
from gpu_acceptance.measure.train.trained import Times, Trained, Training
from gpu_acceptance.measure.train.tuned import tuned

# torch's 25 MB cut GPT-2 into twenty parts that are compiled one by one: on 2 H200 512,921 tokens/s for one GPU, and 522,390 with these
# (reports/evidence/h200-training/x2-tuning.jsonl).
_BUCKET_MB = 130
# Statistics of a batch stay with the rank that saw it: to send them round at each step would train nothing. Renamed in torch 2.13.
_IS_RENAMED = "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
_LOCAL_STATISTICS: dict[str, Any] = {"forward_sync_buffers" if _IS_RENAMED else "broadcast_buffers": False}


@dataclass(frozen=True)
class DdpResult:
    """One model on all ranks of a group. Every rank gets the same numbers, but its own `compute_s`, digest, losses and memory."""

    trained: Trained  # gradients reduced; the step of the slowest rank, the variation of the rank where it is largest
    compute_s: float  # the same without reducing, this rank
    slowest_compute_s: float
    mean_compute_s: float
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


def measure(workload: Workload, *, device: torch.device, compiled: bool, times: Times, group: Group = None) -> DdpResult:
    """Trains in blocks of each kind by turns, after a warm-up, over a process group: all ranks unless one is given. Collective there."""

    def wrap(model: nn.Module) -> nn.Module:
        wrapped = DistributedDataParallel(
            model, process_group=group, gradient_as_bucket_view=True, bucket_cap_mb=_BUCKET_MB, **_LOCAL_STATISTICS
        )
        if compiled:
            wrapped.compile()
        return wrapped

    with tuned(workload, device):
        return _measured(Training(workload, dist.get_rank(), device, wrap), times, group)


def _measured(training: Training, times: Times, group: Group) -> DdpResult:
    step, device, module = training.step, training.device, cast(DistributedDataParallel, training.module)

    def compute() -> None:
        step(module.no_sync())

    _block(step, _steps_filling(times.warmup_s, step, device, times.min_steps, group), device, group)
    num_steps = _steps_filling(times.block_s, step, device, times.min_steps, group)
    reduced, alone = _by_turns(step, compute, num_steps, times.num_blocks, device, group)
    reduced_s, alone_s = ([span.elapsed_s / num_steps for span in spans] for spans in (reduced, alone))
    own = [statistics.median(reduced_s), statistics.median(alone_s), 100 * statistics.stdev(reduced_s) / statistics.mean(reduced_s)]
    steps_s, computes_s, cvs_percent = over_ranks(own, device, group)
    parameters = [parameter.detach() for parameter in module.parameters()]
    return DdpResult(
        trained=training.told(max(steps_s), max(cvs_percent), reduced[0].begin_s, alone[-1].end_s),
        compute_s=own[1],
        slowest_compute_s=max(computes_s),
        mean_compute_s=statistics.mean(computes_s),
        gradient_bytes=sum(parameter.nbytes for parameter in parameters),
        digest=as_text(hash_tensors([parameter.contiguous() for parameter in parameters])),
    )


def _by_turns(
    step: TrainStep, compute: Callable[[], object], num_steps: int, num_blocks: int, device: torch.device, group: Group
) -> tuple[list[Span], list[Span]]:
    """Blocks with reduction and without. Collective."""
    reduced, alone = [], []
    for _ in range(num_blocks):
        reduced.append(_block(step, num_steps, device, group))
        with step.undone():
            alone.append(_block(compute, num_steps, device, group))
    return reduced, alone


def _block(step: Callable[[], object], num_steps: int, device: torch.device, group: Group) -> Span:
    """On a rank that begins when all have come. Collective."""
    largest(0, device, group)
    return time_block(step, num_steps, device)


def _steps_filling(seconds: float, step: Callable[[], object], device: torch.device, min_steps: int, group: Group) -> int:
    """As many on all ranks; takes the time of a few. Collective."""
    step_s = _block(step, min_steps, device, group).elapsed_s / min_steps
    return largest(max(min_steps, round(seconds / step_s)), device, group)
