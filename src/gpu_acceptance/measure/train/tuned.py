"""Settings of a training: memory, the schedule of the learning rate, and clipped gradients."""

import gc
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from gpu_acceptance.measure.train.shapes import Workload

_LARGEST_NORM = 1.0  # of the gradient of all trained parameters
_NO_ROOM = ("can't allocate memory", "not enough memory")  # in torch's errors on a CPU


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


class LrSchedule:
    """Gives each step of an optimizer its learning rate, and clips its gradients. Collective where those are sharded."""

    def __init__(self, optimizer: torch.optim.Optimizer, schedule: Schedule) -> None:
        self.num_done = 0  # steps; a resumed job sets the number of its checkpoint
        self._schedule, self._norms = schedule, list[Tensor]()
        optimizer.register_step_pre_hook(self._prepare)

    @property
    def gradient_norms(self) -> list[float]:
        """The norm of each step made here, before clipping; waits for the device."""
        norms: list[float] = torch.stack(self._norms).tolist()
        return norms

    def _prepare(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        for group in optimizer.param_groups:
            group["lr"] = self._schedule.rate(self.num_done)
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        norm = nn.utils.clip_grad_norm_(parameters, _LARGEST_NORM)
        self._norms.append(norm.full_tensor() if isinstance(norm, DTensor) else norm)
        self.num_done += 1


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
