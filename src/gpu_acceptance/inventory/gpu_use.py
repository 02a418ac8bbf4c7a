"""Asks NVML who is on a GPU. Opens no CUDA context: who asks is not on it."""

from typing import Any

from gpu_acceptance.inventory.answer import Answer, Missing, Why
from gpu_acceptance.inventory.gpu import GpuProcess, GpuUse
from gpu_acceptance.inventory.nvml_asker import Asker


def read_use(asker: Asker, handle: object) -> GpuUse:
    used_bytes = asker.ask("nvmlDeviceGetMemoryInfo", handle, make=lambda info: int(info.used))
    return GpuUse(read_processes(asker, handle), used_bytes)


def read_processes(asker: Asker, handle: object) -> Answer[tuple[GpuProcess, ...]]:
    """Those with a compute context, sorted by pid."""
    return asker.ask("nvmlDeviceGetComputeRunningProcesses", handle, make=_processes)


def _processes(found: list[Any]) -> tuple[GpuProcess, ...]:
    """NVML does not know the memory of a process under some driver models, and in a container."""
    unknown = Missing(Why.NOT_SUPPORTED)
    return tuple(
        GpuProcess(int(one.pid), unknown if one.usedGpuMemory is None else int(one.usedGpuMemory))
        for one in sorted(found, key=lambda one: int(one.pid))
    )
