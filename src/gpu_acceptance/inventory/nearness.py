"""Which RDMA devices are nearest to a GPU, by the chains of bridges above both."""

from gpu_acceptance.inventory.answer import Answer, Missing
from gpu_acceptance.inventory.infiniband import RdmaDevice
from gpu_acceptance.inventory.pci_topology import Distance, Place, distance, nearest


def nearest_devices(place: Place, devices: tuple[RdmaDevice, ...]) -> Answer[dict[str, Distance]]:
    """The devices at the least distance by name, all with that distance; none where there is no device."""
    distances = {device.name: _distance(place, device) for device in devices}
    names = nearest(distances)
    return names if isinstance(names, Missing) else {name: far for name in names if not isinstance(far := distances[name], Missing)}


def _distance(place: Place, device: RdmaDevice) -> Answer[Distance]:
    if isinstance(place.pci_path, Missing):
        return place.pci_path
    if isinstance(device.pci_path, Missing):
        return device.pci_path
    return distance(place.pci_path, device.pci_path, place.numa_node, device.numa_node)
