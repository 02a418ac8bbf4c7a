"""A device prepared for a training, and what is said where its memory does not suffice."""

import gc
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

from gpu_acceptance.measure.train.shapes import Workload

_NO_ROOM = ("can't allocate memory", "not enough memory")  # what torch says of a CPU


class TrainingMemoryError(RuntimeError):
    """There was too little memory for a workload."""


def tuned(workload: Workload, device: torch.device) -> AbstractContextManager[None]:
    """See `prepared`."""
    return prepared(f"{workload.name} with a batch of {workload.batch_size} on each rank", workload.sized_by, device)


@contextmanager
def prepared(wanted: str, sized_by: str, device: torch.device) -> Iterator[None]:
    """For what is `wanted`, whose size the parameters `sized_by` give. Lets cuDNN look for its best convolutions, as tuned jobs do;
    `peak_bytes` counts from here. Afterwards what was compiled is forgotten, and its memory free.

    Raises TrainingMemoryError, which says how much memory there was and what to lower.
    """
    benchmark, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, True
    gc.collect()  # a training before this one may live on in cycles
    room = _room(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    try:
        yield
    except RuntimeError as error:
        if not _is_for_memory(error):
            raise
        raise TrainingMemoryError(f"out of memory: {wanted}; {room}; lower {sized_by} or use more GPUs") from error
    finally:
        torch.backends.cudnn.benchmark = benchmark
        torch._dynamo.reset()
        gc.collect()


def peak_bytes(device: torch.device) -> int:
    """The most that was allocated at once since the device was tuned; 0 on a CPU, which does not tell."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0


def _room(device: torch.device) -> str:
    if device.type != "cuda":
        return "on a CPU"
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    return f"{free_bytes / 1e9:.1f} of {total_bytes / 1e9:.1f} GB were free before it began"


def _is_for_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or any(text in str(error) for text in _NO_ROOM)
