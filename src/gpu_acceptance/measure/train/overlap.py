"""Communication that computing does not hide, from a profile of training steps."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

_NCCL = "nccl"  # ncclDevKernel_AllGather_RING_LL(...)
_US = 1e-6

Interval = tuple[float, float]  # begin and end, in one unit


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
