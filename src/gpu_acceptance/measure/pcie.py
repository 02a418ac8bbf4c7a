"""Traffic between host and GPU."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_BYTES = 64 << 20
_ENQUEUED = 64  # copies of 64 MiB: some 80 ms at 50 GB/s, longer than reading a link takes


@contextmanager
def copying(device: torch.device) -> Iterator[None]:
    """Copies from host to GPU and back inside the block, so that the link is awake; waits for their end. Needs a GPU."""
    host = torch.empty(_BYTES, dtype=torch.uint8, pin_memory=True)
    on_device = torch.empty(_BYTES, dtype=torch.uint8, device=device)
    for _ in range(_ENQUEUED):
        on_device.copy_(host, non_blocking=True)
        host.copy_(on_device, non_blocking=True)
    yield
    torch.cuda.synchronize(device)
