"""One training step of any model: forward, backward, AdamW, without a host sync; its learning rates, memory, and exposed communication."""

import gc
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import DeviceType
from torch.distributed.tensor import DTensor
from torch.profiler import ProfilerActivity, profile

from gpu_acceptance.measure.timing import Mark, wait_for
from gpu_acceptance.measure.train.data import Batch
from gpu_acceptance.measure.train.shapes import Workload

Phase = Literal["data_wait", "forward", "backward", "optimizer"]
Interval = tuple[float, float]  # begin and end, in one unit
Part = tuple[float, Batch]  # the weight of a micro-batch, and the micro-batch
_BETAS = (0.9, 0.95)
_NCCL = "nccl"  # ncclDevKernel_AllGather_RING_LL(...)
_US = 1e-6
_LARGEST_NORM = 1.0  # of the gradient of all trained parameters
_NO_ROOM = ("can't allocate memory", "not enough memory")  # in torch's errors on a CPU


class Phases(NamedTuple):
    """Seconds of the phases of one step."""

    data_wait_s: float = 0.0
    forward_s: float = 0.0
    backward_s: float = 0.0
    optimizer_s: float = 0.0

    @property
    def step_s(self) -> float:
        return sum(self)


class Marks:
    """Marks in the device's work at which phases ended, without waiting for it. None is set before `begin`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks: list[Mark] = []
        self._phases: list[Phase] = []

    def begin(self) -> None:
        """Forget all marks, and start anew from now."""
        self._marks, self._phases = [Mark(self._device).put()], []

    def end(self, phase: Phase) -> None:
        """Mark the end of a phase; `optimizer` ends a step."""
        if self._marks:
            self._phases.append(phase)
            self._marks.append(Mark(self._device).put())

    def steps(self) -> list[Phases]:
        """Return all steps since the beginning; wait for the device."""
        wait_for(self._device)
        steps, totals_s = list[Phases](), defaultdict[str, float](float)
        for phase, (begin, end) in zip(self._phases, pairwise(self._marks), strict=True):
            totals_s[f"{phase}_s"] += begin.seconds_to(end)
            if phase == "optimizer":
                steps.append(Phases(**totals_s))
                totals_s.clear()
        return steps


def median(steps: Sequence[Phases]) -> Phases:
    """Return the median of each phase by itself."""
    return Phases(*map(statistics.median, zip(*steps, strict=True)))


def data_wait_fraction(steps: Sequence[Phases]) -> float:
    """Return the part of the time of all steps that was spent waiting for data."""
    return sum(step.data_wait_s for step in steps) / sum(step.step_s for step in steps)


@dataclass(frozen=True)
class Schedule:
    """Number of steps, and their learning rates. ValueError for a warm-up that is not shorter than the training."""

    num_steps: int
    warmup_steps: int
    learning_rate: float  # the largest

    def __post_init__(self) -> None:
        if not 0 < self.warmup_steps < self.num_steps:
            raise ValueError(f"a warm-up of {self.warmup_steps} of {self.num_steps} steps: at least 1, and fewer than all")

    def rate(self, step: int) -> float:
        """Return the rate of a step, from 0: it rises to the largest in equal steps, falls by half a cosine, and ends above 0."""
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        done = (step - self.warmup_steps) / (self.num_steps - self.warmup_steps)
        return self.learning_rate * (1 + math.cos(math.pi * done)) / 2


class TrainStep:
    """Trains `loss` on the mean of the next parts at each call. Collective where the module is (DDP, FSDP).

    `autocast`: bf16 by torch.autocast; a sharded module has its own way to compute in bf16. `schedule`: gives each step its learning rate,
    and has gradients clipped. `divisor` of the sum over parts: the sum of their weights, unless weights on one rank differ from those in
    the mean over ranks.
    """

    def __init__(
        self,
        loss: nn.Module,
        steps: Iterator[Sequence[Part]],
        *,
        device: torch.device,
        autocast: bool = True,
        learning_rate: float = 3e-4,
        schedule: Schedule | None = None,
        divisor: float | None = None,
    ) -> None:
        self._loss, self._steps, self._device, self._autocast, self._divisor = loss, steps, device, autocast, divisor
        self._trained = [parameter for parameter in loss.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(self._trained, lr=learning_rate, betas=_BETAS, fused=True)
        self.num_done = 0  # steps of the schedule; a resumed job sets the number of its checkpoint
        self._schedule, self._losses, self._norms = schedule, list[Tensor](), list[Tensor]()
        self.marks = Marks(device)

    def __call__(self, around: AbstractContextManager[None] | None = None) -> None:
        """Train one step. `around`: a context for forward and backward."""
        parts = next(self._steps)
        with around or nullcontext():
            losses = [self._backward(*part) for part in parts]
        total = self._divisor or sum(number for number, _ in parts)
        if total != 1:  # summed up first and divided then: bf16 rounds what is divided before
            torch._foreach_div_([parameter.grad for parameter in self._loss.parameters() if parameter.grad is not None], total)
        self._losses.append(torch.stack(losses).sum() / total)
        if self._schedule:
            self._follow(self._schedule)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.marks.end("optimizer")

    def _backward(self, number: float, batch: Batch) -> Tensor:
        inputs, targets = (part.to(self._device, non_blocking=True) for part in batch)
        self.marks.end("data_wait")
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._autocast):
            loss: Tensor = number * self._loss(inputs, targets)
        self.marks.end("forward")
        loss.backward()  # type: ignore[no-untyped-call]
        self.marks.end("backward")
        return loss.detach()

    def _follow(self, schedule: Schedule) -> None:
        """Set the learning rate of this step, and clip its gradients. Collective where those are sharded."""
        for group in self.optimizer.param_groups:
            group["lr"] = schedule.rate(self.num_done)
        self._norms.append(whole(nn.utils.clip_grad_norm_(self._trained, _LARGEST_NORM)))
        self.num_done += 1

    @property
    def losses(self) -> list[float]:
        """The losses of all steps so far, without undone ones; waits for the device."""
        found: list[float] = torch.stack(self._losses).tolist() if self._losses else []
        return found

    @property
    def gradient_norms(self) -> list[float]:
        """The norm of each step made here by a schedule, before clipping; waits for the device."""
        norms: list[float] = torch.stack(self._norms).tolist()
        return norms

    @contextmanager
    def undone(self) -> Iterator[None]:
        """Restore weights, optimizer and losses at the end of the block. There must have been a step before."""
        kept, num_losses = [tensor.detach().clone() for tensor in self._state()], len(self._losses)
        yield
        torch._foreach_copy_([tensor.detach() for tensor in self._state()], kept)
        del self._losses[num_losses:]

    @property
    def optimizer_bytes(self) -> int:
        """The size of this rank's optimizer state, after a step."""
        return sum(local(tensor).nbytes for tensor in self._optimizer_state())

    def _state(self) -> list[Tensor]:
        return [*self._loss.parameters(), *self._loss.buffers(), *self._optimizer_state()]

    def _optimizer_state(self) -> list[Tensor]:
        return [value for state in self.optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]


def local(tensor: Tensor) -> Tensor:
    """Return the part of a tensor that this rank holds."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """Return a tensor with all its shards. Collective where it is sharded."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


class TrainingMemoryError(RuntimeError):
    """There was too little memory for a workload."""


def tuned(workload: Workload, device: torch.device) -> AbstractContextManager[None]:
    """Prepare for a workload; see `prepared`."""
    return prepared(f"{workload.name} with a batch of {workload.batch_size} on each rank", workload.sized_by, device)


@contextmanager
def prepared(wanted: str, sized_by: str, device: torch.device) -> Iterator[None]:
    """Prepare for a training. Let cuDNN search for its best convolutions, as tuned jobs do; `peak_bytes` counts from here.

    `wanted`: the training, for a message; `sized_by`: the parameters of its size. At the end compiled code is dropped, and memory is free.
    Raises TrainingMemoryError, which says how much memory there was and which parameters to lower.
    """
    benchmark, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, True
    gc.collect()  # a training before this one may live on in cycles
    room = "on a CPU"
    if device.type == "cuda":
        free_bytes, total_bytes = torch.cuda.mem_get_info(device)
        room = f"{free_bytes / 1e9:.1f} of {total_bytes / 1e9:.1f} GB were free before it began"
        torch.cuda.reset_peak_memory_stats(device)
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, torch.OutOfMemoryError) and not any(text in str(error) for text in _NO_ROOM):
            raise
        raise TrainingMemoryError(f"out of memory: {wanted}; {room}; lower {sized_by} or use more GPUs") from error
    finally:
        torch.backends.cudnn.benchmark = benchmark
        torch._dynamo.reset()
        gc.collect()


def peak_bytes(device: torch.device) -> int:
    """Return the most bytes allocated at once since `prepared`; 0 on a CPU, which does not tell."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0


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
