"""Which RDMA devices are nearest to a GPU, and how far they are. Pure."""

from dataclasses import dataclass

from gpu_acceptance.inventory.answer import Answer, Missing, Why
from gpu_acceptance.inventory.gpu import GpuReading
from gpu_acceptance.inventory.infiniband import RdmaDevice
from gpu_acceptance.inventory.pci_topology import Distance, Place, distance, nearest

_NO_PLACE = Missing(Why.NOT_THERE, "the PCI bus was not asked for it")


@dataclass(frozen=True)
class Nearest:
    """Several where several are equally near."""

    names: tuple[str, ...]
    distance: Distance

    def __str__(self) -> str:
        return f"{' '.join(self.names)} {self.distance}"


def place_of(gpu: GpuReading, places: tuple[Place, ...]) -> Answer[Place]:
    """Where a GPU sits, by the PCI bus id that NVML gives."""
    if isinstance(gpu.pci_bus_id, Missing):
        return gpu.pci_bus_id
    return next((place for place in places if place.pci_bus_id == gpu.pci_bus_id), _NO_PLACE)


def nearest_devices(place: Answer[Place], devices: Answer[tuple[RdmaDevice, ...]]) -> Answer[Nearest]:
    """By the PCI bus."""
    if isinstance(devices, Missing):
        return devices
    if isinstance(place, Missing):
        return place
    distances = {device.name: _distance(place, device) for device in devices}
    names = nearest(distances)
    if isinstance(names, Missing):
        return names
    far = distances[names[0]] if names else Missing(Why.NOT_THERE, "there is no RDMA device")
    return far if isinstance(far, Missing) else Nearest(names, far)


def _distance(place: Place, device: RdmaDevice) -> Answer[Distance]:
    if isinstance(place.pci_path, Missing):
        return place.pci_path
    if isinstance(device.pci_path, Missing):
        return device.pci_path
    return distance(place.pci_path, device.pci_path, place.numa_node, device.numa_node)
