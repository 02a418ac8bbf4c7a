"""Two H200 that only NVML shows, and a process of somebody else on the second: in each Python with this folder on its PYTHONPATH."""

import ctypes
import sys
from pathlib import Path
from types import SimpleNamespace

sys.path.append(str(Path(__file__).parents[1]))
from inventory.fake_nvml import MiB, install, processes

_NOBODY, _SOMEBODY = processes(), processes((1607, 1204 * MiB))


def _by_gpu(device, *arguments):
    is_second = ctypes.cast(device, ctypes.c_void_p).value == 2
    return (_SOMEBODY if is_second else _NOBODY)(device, *arguments)


install(SimpleNamespace(setattr=setattr), nvmlDeviceGetComputeRunningProcesses_v3=_by_gpu)
sys.path.pop()
