"""Host memory for copies to and from a GPU: beside it, and pinned, so that a copy engine reads and writes it by itself.

Linux puts a page on the NUMA node of the CPU that touches it first, unless a policy says otherwise or that node has no room
(Documentation/admin-guide/mm/numa_memory_policy.rst). So all of it is touched at once, by a thread that is kept on the CPUs of the node.
"""

import math
import mmap
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

NUMA_MAPS = Path("/proc/self/numa_maps")
_PORTABLE = 1  # cudaHostRegisterPortable: what torch itself registers with
_PAGES = re.compile(r" N(\d{1,4})=(\d{1,15})\b")
_PAGE_KIB = re.compile(r" kernelpagesize_kB=([1-9]\d{0,8})\b")


@dataclass(frozen=True)
class HostMemory:
    """Zeros, all of which are there."""

    data: Tensor  # bytes
    is_bound: bool  # first touched by a thread that ran on the CPUs that were named, and on no other

    def pages_by_node(self) -> dict[int, int]:
        """How many of its pages lie on each NUMA node; empty where the kernel does not say."""
        return {int(node): int(num_pages) for node, num_pages in _PAGES.findall(self._told())}

    def num_pages(self) -> int:
        """How many pages it has, of the size that the kernel counts it in; where it does not say, of the usual one."""
        told = _PAGE_KIB.search(self._told())
        page_bytes = int(told[1]) * 1024 if told else mmap.PAGESIZE
        return math.ceil(len(self.data) / page_bytes)

    def _told(self) -> str:
        """The kernel's line of it, or nothing. The form: Documentation/filesystems/proc.rst, numa_maps."""
        try:
            lines = NUMA_MAPS.read_text(encoding="ascii", errors="replace").splitlines()
        except OSError:
            return ""
        return next((line for line in lines if line.startswith(f"{self.data.data_ptr():08x} ")), "")


@contextmanager
def host_memory(num_bytes: int, device: torch.device, cpus: frozenset[int] | None) -> Iterator[HostMemory]:
    """Memory that is first touched on these CPUs, where this process may use one of them; pinned for a GPU inside the block.

    It is a shared mapping of its own: the kernel joins it with no other, so that its pages can be told from all else.
    """
    with running_on(cpus) as is_bound:
        mapping = mmap.mmap(-1, num_bytes, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)
    memory = HostMemory(torch.frombuffer(mapping, dtype=torch.uint8), is_bound)
    if device.type == "cpu":
        yield memory
        return
    with _pinned(memory.data, device):
        yield memory


@contextmanager
def running_on(cpus: frozenset[int] | None) -> Iterator[bool]:
    """Keeps this thread on these CPUs inside the block. Yields whether it does: no where none are named, or it may use none of them."""
    before = os.sched_getaffinity(0)
    try:
        yield _move_to(cpus)
    finally:
        os.sched_setaffinity(0, before)


def _move_to(cpus: frozenset[int] | None) -> bool:
    if cpus is None:
        return False
    try:
        os.sched_setaffinity(0, cpus)
    except OSError:  # sched_setaffinity(2): none of them is there, or the cpuset of the process has none of them
        return False
    return True


@contextmanager
def _pinned(bytes_N: Tensor, device: torch.device) -> Iterator[None]:
    cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    failed = int(cudart.cudaHostRegister(bytes_N.data_ptr(), len(bytes_N), _PORTABLE))
    if failed:
        raise RuntimeError(f"{device}: cudaHostRegister of {len(bytes_N)} bytes of host memory failed with CUDA error {failed}")
    try:
        try:
            yield
        finally:
            torch.cuda.synchronize(device)  # no copy may be on its way
    except BaseException:
        cudart.cudaHostUnregister(bytes_N.data_ptr())  # whether it fails or not: what came before says more
        raise
    failed = int(cudart.cudaHostUnregister(bytes_N.data_ptr()))
    if failed:
        raise RuntimeError(f"{device}: cudaHostUnregister of {len(bytes_N)} bytes of host memory failed with CUDA error {failed}")
