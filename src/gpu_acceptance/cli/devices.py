"""The GPUs of a node, who of them reaches whom, and its RDMA devices: as lines for people. Pure."""

from collections.abc import Iterator

from gpu_acceptance.base.text import first_few
from gpu_acceptance.cli.plain_text import Column, TableRow, form_answer, on_off, say, say_all, say_why, section, size, table, yes_no
from gpu_acceptance.inventory.answer import Answer, Missing, Why
from gpu_acceptance.inventory.gpu import GpuProcess, GpuReading, GpusReading, NvLink, Pcie, PeerLink
from gpu_acceptance.inventory.infiniband import GpuDirectRdma, InfiniBand, Port, PortName, RdmaDevice, nearest_devices, place_of
from gpu_acceptance.inventory.node import NodeReading
from gpu_acceptance.inventory.parsing import all_of, as_cpu_list
from gpu_acceptance.inventory.pci_topology import BusReading, Place
from gpu_acceptance.inventory.virtualization import NONE
from gpu_acceptance.report.formatting import count

_MOST_PROCESSES = 8
_GPU_COLUMNS = (
    *(Column("GPU", 3), Column("name", 24), Column("serial", 16), Column("PCI bus id", 16), Column("memory", 11), Column("ECC", 3)),
    *(Column("MIG", 3), Column("power limit", 11), Column("temp", 6), Column("NVLinks", 8), Column("PCIe gen", 14), Column("procs", 5)),
)
_VBIOS = Column("VBIOS", 14)
_RDMA_COLUMNS = (
    *(Column("device", 16), Column("port", 4), Column("type", 10), Column("link", 10), Column("state", 22), Column("rate", 14)),
    *(Column("firmware", 16), Column("NUMA", 4), Column("PCI address", 12), Column("interfaces", 24)),
)
_NO_PORT = Missing(Why.NOT_THERE, "the device has no port")


def gpu_lines(node: NodeReading) -> list[str]:
    """What is one for all GPUs, then a line for each, then what is up or running on some."""
    gpus = node.gpus.gpus
    if isinstance(gpus, Missing):
        return section("GPUs", f"{say_why(gpus)}; {_on_the_bus(node.bus)}")
    head = f"{len(gpus)} in NVML, {_on_the_bus(node.bus)}; driver {say(node.gpus.driver)}, CUDA {say(node.gpus.cuda)}"
    boards = {gpu.vbios for gpu in gpus}
    if len(boards) == 1:
        head = f"{head}, VBIOS {say(boards.pop())}"
    return [*section("GPUs", head), *_gpu_table(gpus, with_vbios=len(boards) > 1), *section("", *_of_some(gpus))]


def peer_lines(gpus: GpusReading) -> list[str]:
    """What NVML says of peer-to-peer access, in one line where it says ok of all."""
    if isinstance(gpus.gpus, Missing):
        return section("peers", say(gpus.gpus))
    if not gpus.peers:
        return section("peers", "no pair of GPUs")
    answers = {name: [getattr(link, name) for link in gpus.peers] for name in ("read", "write", "nvlink")}
    if all(answer == "ok" for named in answers.values() for answer in named):
        return section("peers", f"read, write and nvlink ok in {_all_pairs(gpus.peers)}")
    return section("peers", *(_peer_text(name, gpus.peers, named) for name, named in answers.items()))


def topology_lines(node: NodeReading) -> list[str]:
    """By the PCI bus: the NUMA node of each GPU and the RDMA devices nearest to it, in the words of `nvidia-smi topo -m`."""
    if isinstance(node.gpus.gpus, Missing) or not node.gpus.gpus:
        return []
    alike: dict[str, list[int]] = {}
    for gpu in node.gpus.gpus:
        alike.setdefault(_surroundings(gpu, node.gpu_places, node.infiniband.devices), []).append(gpu.index)
    hypervisor = node.virtualization.hypervisor
    guest = [] if isinstance(hypervisor, Missing) or hypervisor == NONE else ["in a virtual machine: as its hypervisor shows it"]
    places_text = "; ".join(f"GPU {as_cpu_list(indexes)}: {text}" for text, indexes in alike.items())
    return section("topology", f"NUMA node and nearest RDMA device of {places_text}", *guest)


def rdma_lines(infiniband: InfiniBand) -> list[str]:
    """A line for each port."""
    devices, direct = infiniband.devices, _gpudirect(infiniband.gpudirect)
    if isinstance(devices, Missing):
        return section("RDMA", f"{say_why(devices)}; {direct}")
    rows = [row for device in devices for row in _port_rows(device)]
    return [*section("RDMA", f"{count(len(devices), 'device')}; {direct}"), *(table(_RDMA_COLUMNS, rows) if rows else [])]


# --- GPUs ----------------------------------------------------------------------------------------------------------------------


def _on_the_bus(bus: BusReading) -> str:
    unreadable = f", {count(len(bus.unreadable), 'device')} unreadable" if bus.unreadable else ""
    return f"{len(bus.gpus)} on the PCI bus{unreadable}"


def _gpu_table(gpus: tuple[GpuReading, ...], *, with_vbios: bool) -> list[str]:
    columns = (*_GPU_COLUMNS, _VBIOS) if with_vbios else _GPU_COLUMNS
    rows = [TableRow(f"GPU {gpu.index}", (*_gpu_cells(gpu), gpu.vbios)[: len(columns)]) for gpu in gpus]
    return table(columns, rows) if rows else []


def _gpu_cells(gpu: GpuReading) -> tuple[Answer[str], ...]:
    return (
        str(gpu.index),
        gpu.name,
        gpu.serial,
        gpu.pci_bus_id,
        form_answer(gpu.total_bytes, lambda num_bytes: f"{num_bytes // 2**20} MiB"),  # as nvidia-smi shows it
        form_answer(gpu.ecc.is_on, on_off),
        form_answer(gpu.mig_is_on, on_off),
        form_answer(gpu.power.enforced_limit_w, lambda watts: f"{watts:g} W"),
        form_answer(gpu.temperature.gpu_c, lambda celsius: f"{celsius} C"),
        _links_up(gpu.nvlinks),
        _pcie(gpu.pcie),
        form_answer(gpu.processes, lambda found: str(len(found))),
    )


def _links_up(links: Answer[tuple[NvLink, ...]]) -> Answer[str]:
    """Of links that do not all answer, nobody knows how many are up."""
    if isinstance(links, Missing):
        return links
    return form_answer(all_of(link.is_active for link in links), lambda active: f"{sum(active)} of {len(active)}")


def _pcie(pcie: Pcie) -> Answer[str]:
    """`5 x16`, or `1 x16 of 5 x16` where the slot could do more: an idle link may rest."""
    now, most = _generation_and_width(pcie.generation, pcie.width), _generation_and_width(pcie.max_generation, pcie.max_width)
    return now if isinstance(now, Missing) or isinstance(most, Missing) or now == most else f"{now} of {most}"


def _generation_and_width(generation: Answer[int], width: Answer[int]) -> Answer[str]:
    return form_answer(all_of((generation, width)), lambda both: f"{both[0]} x{both[1]}")


def _of_some(gpus: tuple[GpuReading, ...]) -> Iterator[str]:
    down = {gpu.index: _not_up(gpu.nvlinks) for gpu in gpus}
    if any(down.values()):
        yield f"NVLinks not up: {'; '.join(f'GPU {index}: {as_cpu_list(links)}' for index, links in down.items() if links)}"
    running = [(gpu.index, process) for gpu in gpus if not isinstance(gpu.processes, Missing) for process in gpu.processes]
    if running:
        yield f"processes: {', '.join(first_few([_process(index, one) for index, one in running], _MOST_PROCESSES))}"


def _not_up(links: Answer[tuple[NvLink, ...]]) -> list[int]:
    return [] if isinstance(links, Missing) else [link.index for link in links if link.is_active is False]


def _process(index: int, process: GpuProcess) -> str:
    return f"GPU {index} pid {process.pid} {say(process.used_bytes, size)}"


# --- peers and topology --------------------------------------------------------------------------------------------------------


def _peer_text(name: str, links: tuple[PeerLink, ...], answers: list[Answer[str]]) -> str:
    """`nvlink: ok (55 pairs); topology not supported (GPU 3 to 5)`."""
    targets: dict[str, dict[int, list[int]]] = {}
    for link, answer in zip(links, answers, strict=True):
        targets.setdefault(say(answer), {}).setdefault(link.source, []).append(link.target)
    if len(targets) == 1:
        return f"{name}: {next(iter(targets))} ({_all_pairs(links)})"
    return f"{name}: {'; '.join(f'{answer} ({_pairs(answer, by_source)})' for answer, by_source in targets.items())}"


def _pairs(answer: str, targets: dict[int, list[int]]) -> str:
    if answer == "ok":
        return count(sum(map(len, targets.values())), "pair")
    return ", ".join(f"GPU {source} to {as_cpu_list(reached)}" for source, reached in targets.items())


def _all_pairs(links: tuple[PeerLink, ...]) -> str:
    return f"all {count(len(links), 'pair')}"


def _surroundings(gpu: GpuReading, places: tuple[Place, ...], devices: Answer[tuple[RdmaDevice, ...]]) -> str:
    place = place_of(gpu, places)
    if isinstance(place, Missing):
        return f"{say(place)}, {say(place)}"
    return f"{say(place.numa_node)}, {_nearest(place, devices)}"


def _nearest(place: Place, devices: Answer[tuple[RdmaDevice, ...]]) -> str:
    if devices == ():
        return "none"
    near = nearest_devices(place, devices)
    return say(near) if isinstance(near, Missing) else f"{say_all(near.names, separator=' ')} {near.distance}"


# --- RDMA ----------------------------------------------------------------------------------------------------------------------


def _gpudirect(direct: GpuDirectRdma) -> str:
    ways = f"open kernel modules {say(direct.has_open_kernel_modules, yes_no)}, Linux 5.12 or later {say(direct.has_kernel_5_12, yes_no)}"
    return f"GPUDirect RDMA: peermem module {say(direct.peermem_module)}; for DMA-BUF: {ways}"


def _port_rows(device: RdmaDevice) -> Iterator[TableRow]:
    ports = device.ports if isinstance(device.ports, Missing) else device.ports or _NO_PORT
    for port in (ports,) if isinstance(ports, Missing) else ports:
        name = device.name if isinstance(port, Missing) else PortName(device.name, port.number)
        yield TableRow(name, _port_cells(device, port))


def _port_cells(device: RdmaDevice, port: Port | Missing) -> tuple[Answer[str], ...]:
    return (
        device.name,
        form_answer(port, lambda port: str(port.number)),
        device.hca_type,
        port if isinstance(port, Missing) else port.link_layer,
        port if isinstance(port, Missing) else form_answer(all_of((port.state, port.phys_state)), " ".join),
        port if isinstance(port, Missing) else form_answer(port.rate, lambda rate: f"{rate.gbit_per_s:g} Gb/s {rate.width}"),
        device.firmware,
        form_answer(device.numa_node, str),
        device.pci_address,
        form_answer(device.netdevs, lambda found: " ".join(netdev.name for netdev in found) or "none"),
    )
