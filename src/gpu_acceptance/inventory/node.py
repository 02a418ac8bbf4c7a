"""All that the readers see of one node."""

from dataclasses import dataclass
from pathlib import Path

from gpu_acceptance.inventory import (
    cgroup,
    cpu,
    gpu_reader,
    infiniband,
    kernel_log,
    libraries,
    mounts,
    pci_topology,
    system,
    virtualization,
)
from gpu_acceptance.inventory.answer import Missing
from gpu_acceptance.inventory.cgroup import Allowances
from gpu_acceptance.inventory.gpu import GpusReading
from gpu_acceptance.inventory.system import Dmi, Memory, System


@dataclass(frozen=True)
class NodeReading:
    host: str
    system: System
    dmi: Dmi
    virtualization: virtualization.Virtualization
    cpu: cpu.Cpu
    memory: Memory
    allowances: Allowances
    mounts: mounts.Mounts
    libraries: libraries.Libraries  # of the process that read this
    bus: pci_topology.BusReading
    gpus: GpusReading
    gpu_places: tuple[pci_topology.Place, ...]  # of these GPUs, by the PCI bus id that NVML gives; of one without an id there is none
    infiniband: infiniband.InfiniBand
    kernel_log: kernel_log.KernelLog


def read(root: Path = Path("/"), gpus: GpusReading | None = None) -> NodeReading:
    """This node; files below `root`, GPUs through NVML unless they have been read. Needs no privilege and changes nothing."""
    gpus = gpu_reader.read() if gpus is None else gpus
    return NodeReading(
        host=system.hostname(),
        system=system.read(root),
        dmi=system.read_dmi(root),
        virtualization=virtualization.read(root),
        cpu=cpu.read(root),
        memory=system.read_memory(root),
        allowances=cgroup.read_allowances(root),
        mounts=mounts.read(root),
        libraries=libraries.read(root),
        bus=pci_topology.gpus_on_bus(root / "sys"),
        gpus=gpus,
        gpu_places=places_of(gpus, root),
        infiniband=infiniband.read(root),
        kernel_log=kernel_log.read(root),
    )


def places_of(gpus: GpusReading, root: Path = Path("/")) -> tuple[pci_topology.Place, ...]:
    """Where these GPUs sit on the PCI bus."""
    if isinstance(gpus.gpus, Missing):
        return ()
    bus_ids = dict.fromkeys(gpu.pci_bus_id for gpu in gpus.gpus if not isinstance(gpu.pci_bus_id, Missing))
    return tuple(pci_topology.place(bus_id, root) for bus_id in bus_ids)
