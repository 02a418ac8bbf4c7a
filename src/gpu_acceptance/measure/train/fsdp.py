"""Training with parameters, gradients and optimizer sharded over ranks (FSDP2): the rate, and proof that they are sharded."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from gpu_acceptance.measure.collectives import largest, over_ranks
from gpu_acceptance.measure.train.data import ON_DEVICE, Feed
from gpu_acceptance.measure.train.models import Sharding, compile_by_blocks, digest, sharded
from gpu_acceptance.measure.train.shapes import Workload
from gpu_acceptance.measure.train.step import local
from gpu_acceptance.measure.train.throughput import Times, Trained, Training
from gpu_acceptance.measure.train.tuned import tuned

_NCCL = "nccl"  # ncclDevKernel_AllGather_RING_LL(...)
_US = 1e-6

Interval = tuple[float, float]  # begin and end, in one unit
_NUM_PROFILED = 2  # steps
_STATE_BYTES = 3 * 4  # of a parameter: itself and AdamW's two moments, in fp32
_COUNT_BYTES = 4  # of each tensor: AdamW's count of its steps


@dataclass(frozen=True)
class CommOverlap:
    """Seconds of one step of one GPU."""

    communication_s: float  # in which a kernel of NCCL runs
    exposed_s: float  # of them, in which no other does
    idle_s: float  # in which none runs


def measure_overlap(step: Callable[[], object], num_steps: int, device: torch.device) -> CommOverlap:
    """Run so many steps under the profiler. Collective where a step is. Raises RuntimeError where it saw no kernel of NCCL."""
    torch.cuda.synchronize(device)
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(num_steps):
            step()
        torch.cuda.synchronize(device)
    on_device = [event for event in seen.events() or () if event.device_type == DeviceType.CUDA and not event.is_user_annotation]
    kernels = [(event.name, (event.time_range.start * _US, event.time_range.end * _US)) for event in on_device]
    return overlap_of(kernels, num_steps)


def overlap_of(kernels: Iterable[tuple[str, Interval]], num_steps: int) -> CommOverlap:
    """Compute the overlap from names and times in s. exposed = |union(NCCL) without union(others)|."""
    ours, others = list[Interval](), list[Interval]()
    for name, interval in kernels:
        (ours if name.lower().startswith(_NCCL) else others).append(interval)
    if not ours:
        raise RuntimeError(f"the profiler saw {len(others)} kernels in {num_steps} steps, none of NCCL: nothing communicated")
    both = [*ours, *others]
    busy_s, length_s = _covered(both), max(end for _, end in both) - min(begin for begin, _ in both)
    return CommOverlap(_covered(ours) / num_steps, (busy_s - _covered(others)) / num_steps, (length_s - busy_s) / num_steps)


def _covered(intervals: Iterable[Interval]) -> float:
    """Return the length of their union."""
    covered, reached = 0.0, float("-inf")
    for begin, end in sorted(intervals):
        covered += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return covered


@dataclass(frozen=True)
class FsdpResult:
    """One model over all ranks of a mesh. The same on each of them, except its own `held_bytes`, `overlap`, losses and memory."""

    trained: Trained  # the step of the slowest rank, the variation of the rank where it is largest
    held_bytes: int  # parameters and moments of this rank
    promised_bytes: int  # the size of this rank's shard of them
    overlap: CommOverlap | None  # None on a CPU
    digest: str | None  # of the whole weights, bit for bit, by the replica that this rank is in; None if there is only one

    @property
    def held(self) -> float:
        """The held part of the promise: 1; the number of shards, where nothing is sharded."""
        return self.held_bytes / self.promised_bytes


def measure(
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
        steps_s, cvs_percent = over_ranks([blocks.median_s, blocks.cv_percent], device)
        trained = training.result(max(steps_s), max(cvs_percent), blocks.spans[0].begin_s, blocks.spans[-1].end_s)
        return FsdpResult(
            trained=trained,
            held_bytes=sum(local(parameter).nbytes for parameter in training.module.parameters()) + trained.optimizer_bytes,
            promised_bytes=sum(_promised(one.shape, sharding.shard, sharding.num_shards) for one in training.module.parameters()),
            overlap=measure_overlap(training.step, _NUM_PROFILED, device) if device.type == "cuda" else None,
            digest=digest(training.module) if sharding.mesh.ndim > 1 else None,
        )


def _promised(shape: torch.Size, shard: int, num_shards: int) -> int:
    """Return the bytes of one shard of a tensor cut along its first dimension, as torch.chunk cuts: the last may be smaller, or empty."""
    rows = math.ceil(shape[0] / num_shards)
    return _STATE_BYTES * min(rows, max(0, shape[0] - shard * rows)) * math.prod(shape[1:]) + _COUNT_BYTES
