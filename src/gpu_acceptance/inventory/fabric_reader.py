"""Reads the network beside the GPUs of this node: from sysfs, within a bounded time."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from gpu_acceptance.inventory import infiniband, pci_topology
from gpu_acceptance.inventory.answer import Answer, Missing, detail_of, known, names_in, then
from gpu_acceptance.inventory.fabric import FabricPort, Link, NodeFabric, class_of, detail_of_ports
from gpu_acceptance.inventory.gpu import Gpu
from gpu_acceptance.inventory.infiniband import RdmaDevice, near_gpus
from gpu_acceptance.inventory.nvml import Patience
from gpu_acceptance.inventory.pci_topology import Place

_LINK_LAYERS: Mapping[str, Link] = {"InfiniBand": "IB", "Ethernet": "RoCE"}
# The RDMA driver by the driver of the PCI function, on which it sits (Linux, drivers/infiniband/hw); of any other the name of the latter.
_RDMA_DRIVERS = {"mlx5_core": "mlx5", "bnxt_en": "bnxt_re", "ice": "irdma", "i40e": "irdma", "idpf": "irdma"}
_EFA, _GVNIC = "efa", "gve"  # kernel drivers
_MOST_PORTS = 128  # of one node; 32 devices are the most that are rented (EFA on p5)
_READ_S = 5.0  # sysfs asks the card for its rate; one that hangs must not keep a run from starting
_READER: Patience[NodeFabric] = Patience(_READ_S, NodeFabric(problem=f"the network cards have not answered for {_READ_S:g} s"))


def read(gpus: Sequence[Gpu], root: Path = Path("/")) -> NodeFabric:
    """Read the ports nearest to these GPUs of this node."""
    return _READER.call(lambda: _read(gpus, root))


def _read(gpus: Sequence[Gpu], root: Path) -> NodeFabric:
    places = [pci_topology.place(gpu.pci_bus_id, root) for gpu in gpus if gpu.pci_bus_id]
    domains = {gpu.nvlink_domain for gpu in gpus}
    domain = domains.pop() if len(domains) == 1 else ""
    found = of_devices(infiniband.read(root).devices, places) if places else ()
    if isinstance(found, Missing):
        return NodeFabric(num_gpus=len(gpus), nvlink_domain=domain, problem=f"the ports nearest to its GPUs are not known: {found}"[:200])
    ports = found or _gvnics(places, root)
    return NodeFabric(num_gpus=len(gpus), ports=ports[:_MOST_PORTS], nvlink_domain=domain)


def of_devices(devices: Answer[tuple[RdmaDevice, ...]], places: Sequence[Place]) -> Answer[tuple[FabricPort, ...]]:
    """Return the ports of the RDMA devices that are nearest to these places of GPUs; none where no RDMA driver is loaded."""
    near = near_gpus(places, devices)
    return then(near, lambda near: tuple(port for device in near for port in _ports(device)))


def _ports(device: RdmaDevice) -> Iterable[FabricPort]:
    for port in known(device.ports):
        name = f"{device.name}/{port.number}"
        if device.driver == _EFA:  # older drivers report one rate for all of them (efa_link_gbps_to_speed_and_width of Linux)
            yield FabricPort(name=name, link="EFA")
        elif not isinstance(port.link_layer, Missing) and (link := _LINK_LAYERS.get(port.link_layer)):
            rate = None if isinstance(port.rate, Missing) else port.rate.gbit_per_s
            below = "" if link == "IB" or isinstance(device.driver, Missing) else device.driver
            yield FabricPort(name=name, link=link, gbit_per_s=rate, driver=_RDMA_DRIVERS.get(below, below))


def _gvnics(places: Sequence[Place], root: Path) -> tuple[FabricPort, ...]:
    """Return the virtual network interfaces of Google's network that are nearest to GPUs; others serve the host."""
    folder = root / "sys" / "class" / "net"
    drivers = {name: infiniband.driver_of(folder / name) for name in known(names_in(folder))}
    paths = {name: pci_topology.path_behind(folder / name / "device") for name, driver in drivers.items() if driver == _GVNIC}
    numa = {name: pci_topology.numa_node(folder / name / "device") for name in paths}
    near = infiniband.names_near(places, paths, numa)
    return tuple(FabricPort(name=name, link="gVNIC") for name in known(near))


def network(devices: Answer[tuple[RdmaDevice, ...]], places: Sequence[Place]) -> Iterator[tuple[str, Answer[str], str, str]]:
    """Yield the class of network that this node shows, as a finding: metric, value, unit, and the ports that differ from most."""
    ports = of_devices(devices, places)
    node = then(ports, lambda ports: NodeFabric(num_gpus=len(places), ports=ports))
    yield "infiniband.network.kind", then(node, lambda node: str(class_of([node]))), "text", detail_of(node, detail_of_ports)
