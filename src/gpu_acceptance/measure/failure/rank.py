"""One rank of a job that is made to fail: `python -m gpu_acceptance.measure.failure.rank WAY BACKEND FOLDER`, under torchrun.

The last rank dies while all others wait for it in a collective. Those of its node do not end by themselves, so that only their launcher
can end them: gloo tells them that a connection was closed, and NCCL nothing. Ranks of other nodes end by what their network tells them, or
when the collective has lasted too long.
"""

import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _set_pg_timeout

from gpu_acceptance.measure.failure import EXIT_CODE

AHEAD_S = 0.5  # from when all have met until the rank dies: the others are in the collective by then
_COLLECTIVE_S = 10.0  # which ends ranks that no launcher can reach, with NCCL; torch's default is 10 minutes


def main(way: str, backend: str, folder: Path) -> None:
    """Writes when the last rank is to die, by the clock of this host (time.monotonic()), to a file of this rank."""
    rank, world_size = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
    tensor = _met(backend)
    _write(folder / f"rank-{rank}", str(time.monotonic() + AHEAD_S))
    if rank == world_size - 1:
        time.sleep(AHEAD_S)
        _die(way)
    try:
        dist.all_reduce(tensor)
        tensor.cpu()
    except RuntimeError:
        if os.environ["GROUP_RANK"] != str(int(os.environ["GROUP_WORLD_SIZE"]) - 1):
            raise
    while True:
        signal.pause()


def _met(backend: str) -> torch.Tensor:
    """What all ranks have summed up: from here on they are connected. With `nccl` each opens the GPU of its local rank. Collective."""
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if backend == "nccl" else None
    if device:
        torch.cuda.set_device(device)
    dist.init_process_group(backend, device_id=device)
    tensor = torch.ones(1, device=device)
    dist.all_reduce(tensor)
    tensor.cpu()  # waits
    _set_pg_timeout(timedelta(seconds=_COLLECTIVE_S))
    return tensor


def _write(path: Path, text: str) -> None:
    """All of it or nothing."""
    part = path.with_suffix(".part")
    part.write_text(text, encoding="ascii")
    part.replace(path)


def _die(way: str) -> None:
    if way == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(EXIT_CODE)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
