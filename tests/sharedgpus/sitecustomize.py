"""Two H200 that only NVML shows, and workers that say they have opened them: in each Python with this folder on its PYTHONPATH.

Each file in the folder `SHARED_GPUS`/1 or /2 is a process on that GPU: its name is the pid, its content the memory in bytes.
The worker of local rank 0 opens both GPUs, as the one does that measures between GPUs.
"""

import ctypes
import os
import sys
from pathlib import Path
from types import SimpleNamespace

sys.path.append(str(Path(__file__).parents[1]))
from inventory.fake_nvml import UUIDS, MiB, install, processes

_FOLDER = Path(os.environ.get("SHARED_GPUS", "/nonsense"))
_MODULES = {"gpu_acceptance.worker.worker", "gpu_acceptance.worker.fork_server"}


def _on_gpu(device, *arguments):
    folder = _FOLDER / str(ctypes.cast(device, ctypes.c_void_p).value)
    found = []
    for file in folder.glob("[0-9]*"):
        if Path("/proc", file.name).exists():
            found.append((int(file.name), int(file.read_text() or 0)))
    return processes(*found)(device, *arguments)


def _open_devices():
    """Let workers say that their CPU is a GPU."""
    import torch

    from gpu_acceptance.worker import group

    place = {}
    facts_of = group.device_facts

    def open_device(local_rank, *, expects_gpu):
        place["local_rank"] = local_rank
        for number in (1, 2) if local_rank == 0 else (local_rank + 1,):
            (_FOLDER / str(number) / str(os.getpid())).write_text(str(500 * MiB))
        return torch.device("cpu")

    def device_facts(device):
        return {**facts_of(device), "gpu_uuid": UUIDS[place["local_rank"]]}

    group.open_device, group.device_facts = open_device, device_facts


install(SimpleNamespace(setattr=setattr), nvmlDeviceGetComputeRunningProcesses_v3=_on_gpu)
sys.path.pop()
if _MODULES & {*sys.orig_argv}:
    _open_devices()
