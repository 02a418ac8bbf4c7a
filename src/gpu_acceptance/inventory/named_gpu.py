"""One GPU by its names: what a record keeps of it."""

from gpu_acceptance.base.model import Model
from gpu_acceptance.inventory.gpu import GpuUse


class Gpu(Model):
    """One GPU as NVML names it. A text NVML would not give is empty, never invented."""

    index: int
    name: str
    uuid: str = ""
    serial: str = ""
    pci_bus_id: str = ""
    part_number: str = ""
    vbios: str = ""
    memory_bytes: int = 0
    use: GpuUse | None = None  # when its node was first asked: before this run put anything on it

    @property
    def label(self) -> str:
        """`GPU 5, serial 1653924100006`."""
        return f"GPU {self.index}, {f'serial {self.serial}' if self.serial else f'UUID {self.uuid}'}"
