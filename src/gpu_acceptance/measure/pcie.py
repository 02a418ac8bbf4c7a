"""Traffic between host and GPU."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

_BYTES = 64 << 20
_ENQUEUED = 128  # copies each way: 8 GiB, which take 0.15 s at 55 GB/s


@contextmanager
def copying(device: torch.device) -> Iterator[Callable[[], bool]]:
    """Copies from host to GPU and back inside the block, so that the link is awake; waits for their end. Needs a GPU.

    Yields a function that tells whether the GPU still copies.
    """
    host = torch.empty(_BYTES, dtype=torch.uint8, pin_memory=True)
    on_device = torch.empty(_BYTES, dtype=torch.uint8, device=device)
    for _ in range(_ENQUEUED):
        on_device.copy_(host, non_blocking=True)
        host.copy_(on_device, non_blocking=True)
    stream = torch.cuda.current_stream(device)
    yield lambda: not stream.query()
    torch.cuda.synchronize(device)
