"""One rank of a job that is made to fail: `python -m gpu_acceptance.measure.failure_rank WAY BACKEND FOLDER`, under torchrun.

The last rank dies while all others wait for it in a collective.

torchrun polls the ranks of its own node every 0.1 s, and of those that it finds dead at once it names the lowest
(torch/distributed/elastic/multiprocessing, torch 2.9 to 2.13: `_poll` asks them in that order, `ProcessFailure` keeps whole seconds). It
finds the last rank dead once the kernel has closed its files and the driver has freed its GPU. Its peers can learn of the death before,
from a connection or from a rank of another node that ended for it. A peer that ended by then would be named. So no rank of the dead rank's
node ends by itself; only its launcher ends it. Launchers do not talk to each other (LocalElasticAgent). On other nodes ranks end on a
network error, or after 10 s, and their launchers name the first of those.

A process that ends while its GPU is busy can make the driver report XID 45 (NVIDIA, Xid catalogue), and a kernel of NCCL spins until its
peers come. So each survivor aborts its process group before it ends.
"""

import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import NoReturn

import torch
import torch.distributed as dist

from gpu_acceptance.measure.failure import EXIT_CODE

AHEAD_S = 0.5  # from when all have met until the rank dies: the others are in the collective by then
_COLLECTIVE_S = 10.0  # for ranks that no launcher can reach; torch's watchdog can sleep a minute first (ProcessGroupNCCL.cpp)
_ABORT_S = 5  # an abort took 0.5 s on H200s; torchrun sends SIGKILL 30 s after SIGTERM
_POLL_S = 0.02


def main(way: str, backend: str, folder: Path) -> NoReturn:
    """Write when the last rank dies, by the clock of this host (time.monotonic()), to a file of this rank; then play its part."""
    rank, world_size, node, num_nodes = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"))
    tensor = _met(backend)
    signal.signal(signal.SIGTERM, _end_at_sigterm)
    part = folder / f"rank-{rank}.part"
    part.write_text(str(time.monotonic() + AHEAD_S), encoding="ascii")
    part.replace(part.with_suffix(""))  # whole or not at all
    if rank == world_size - 1:
        time.sleep(AHEAD_S)
        _die(way)
    _wait_for_the_dead(tensor)
    while node == num_nodes - 1:
        signal.pause()
    _abort()
    os._exit(1)  # the interpreter's own end would wait for threads of torch


def _met(backend: str) -> torch.Tensor:
    """Connect all ranks by a first collective, and return its tensor. With `nccl` each opens the GPU of its local rank. Collective."""
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if backend == "nccl" else None
    if device:
        torch.cuda.set_device(device)
    dist.init_process_group(backend, device_id=device)
    tensor = torch.ones(1, device=device)
    dist.all_reduce(tensor)
    tensor.cpu()  # waits
    return tensor


def _wait_for_the_dead(tensor: torch.Tensor) -> None:
    """Wait until the collective has failed, at most 10 s. In Python, where a signal handler can run: within a call of CUDA it cannot."""
    end = time.monotonic() + _COLLECTIVE_S
    with contextlib.suppress(RuntimeError):  # a network error before the collective began
        work = dist.all_reduce(tensor, async_op=True)
        while not work.is_completed() and time.monotonic() < end:
            time.sleep(_POLL_S)


def _end_at_sigterm(number: int, _: FrameType | None) -> None:
    """Abort the group, so that the GPU is idle, then end by this signal as a process without a handler does."""
    try:
        _abort()
    finally:
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)


def _abort() -> None:
    """End the collective; or the process, where the abort hangs: SIGALRM works even while another thread holds the interpreter."""
    signal.alarm(_ABORT_S)
    assert dist.group.WORLD
    dist.group.WORLD.abort()  # of NCCL's kernels; gloo ends nothing by it
    if dist.get_backend() == "nccl":
        torch.cuda.synchronize()


def _die(way: str) -> NoReturn:
    if way == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(EXIT_CODE)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
