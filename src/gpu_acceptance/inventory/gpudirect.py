"""GPUDirect RDMA: can a NIC read and write GPU memory without a copy through the host?

Source: NVIDIA GPU Operator, "GPUDirect RDMA and GPUDirect Storage", which names both ways and what they need.
"""

from dataclasses import dataclass
from pathlib import Path

from gpu_acceptance.inventory.answer import Answer, Missing, Why, names_in, read_value
from gpu_acceptance.inventory.parsers import parser


@dataclass(frozen=True)
class GpuDirectRdma:
    """The two ways. That one is there does not prove that a transfer takes it: NCCL's log says `GDRDMA` where one does.

    The older way is a module: nvidia_peermem of the GPU driver, before it nv_peer_mem. Loaded, it was built against an RDMA stack that has
    peer memory clients. The newer way, DMA-BUF, needs no module: open kernel modules of the GPU driver, and Linux 5.12. Both together say
    that it should work. An older kernel does not say that it cannot: distributions, and NVIDIA's own RDMA stack, bring it there.
    """

    peermem_module: Answer[str]
    has_open_kernel_modules: Answer[bool]
    has_kernel_5_12: Answer[bool]


def read(root: Path = Path("/")) -> GpuDirectRdma:
    return GpuDirectRdma(
        peermem_module=_peermem(root / "sys" / "module"),
        has_open_kernel_modules=read_value(root / "proc" / "driver" / "nvidia" / "version", _is_open),
        has_kernel_5_12=read_value(root / "proc" / "sys" / "kernel" / "osrelease", _kernel_has_dma_buf),
    )


def _peermem(folder: Path) -> Answer[str]:
    modules = names_in(folder)
    if isinstance(modules, Missing):
        return modules
    loaded = [name for name in ("nvidia_peermem", "nv_peer_mem") if name in modules]
    return loaded[0] if loaded else Missing(Why.NOT_THERE, f"neither nvidia_peermem nor nv_peer_mem in {folder}")


# The first line: `NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build ...`; of the closed ones:
# `NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  ...`
_is_open = parser(r"NVRM version: NVIDIA UNIX (Open )?[^\n]{0,30}Kernel Module\b(?s:.*)", bool)
_kernel_has_dma_buf = parser(r"([0-9]{1,4})\.([0-9]{1,4})\b[ -~]*", lambda major, minor: (int(major), int(minor)) >= (5, 12))
