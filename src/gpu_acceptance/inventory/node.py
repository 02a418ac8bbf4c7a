"""All that the readers see of one node."""

from dataclasses import dataclass
from pathlib import Path

from gpu_acceptance.inventory import gpu_reader, host, pcie
from gpu_acceptance.inventory.gpu import GpusReading
from gpu_acceptance.inventory.pcie import BusReading


@dataclass(frozen=True)
class NodeReading:
    host: str
    kernel: str
    bus: BusReading
    gpus: GpusReading


def read(root: Path = Path("/")) -> NodeReading:
    """This node; files below `root`, GPUs through NVML."""
    return NodeReading(
        host=host.hostname(),
        kernel=host.kernel(),
        bus=pcie.gpus_on_bus(root / "sys"),
        gpus=gpu_reader.read(),
    )
