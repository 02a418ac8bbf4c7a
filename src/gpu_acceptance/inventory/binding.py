"""Which GPU and which CPUs a rank really has, and what of that is judged: metric, answer, unit, and what it is of. Pure.

The bounds are in the profiles; docs/limits.md explains each. An answer that is missing is handed on as it is, and is never fine.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpu_acceptance.inventory.answer import MOST_TEXT, Answer, Missing, Why, as_cpu_list, cpus_in
from gpu_acceptance.inventory.cpu import Cpu, NumaNode
from gpu_acceptance.inventory.gpu import GpuReading
from gpu_acceptance.inventory.infiniband import Nearest, RdmaDevice, nearest_devices
from gpu_acceptance.inventory.infiniband_health import Findings
from gpu_acceptance.inventory.pci_topology import Place

_MOST_FAR = 0.01  # of the pages: at half the rate they make a copy take 1 % longer
_VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class HostSide:
    """The NUMA node of a GPU, or why nobody knows it; None where there is no GPU."""

    node: Answer[NumaNode] | None

    @property
    def cpus(self) -> frozenset[int] | None:
        """None where none are known."""
        if self.node is None or isinstance(self.node, Missing) or isinstance(self.node.cpu_list, Missing):
            return None
        return frozenset(cpus_in(self.node.cpu_list)) or None

    def reading(self, value: float, pages_by_node: Mapping[int, int], *, num_pages: int, is_bound: bool) -> Answer[float]:
        """The value, if the place of all pages is told and they lie beside the GPU: from farther away it says nothing of the link alone.

        At most 1 % of them may lie elsewhere: where a node is almost full of page cache, the kernel puts some there.
        """
        if self.node is None:
            return value
        if isinstance(self.node, Missing):
            return self.node
        if not pages_by_node:
            return Missing(Why.NOT_SUPPORTED, "/proc/self/numa_maps does not say where the host memory was")
        told = sum(pages_by_node.values())
        if told != num_pages:
            return Missing(Why.NOT_SUPPORTED, f"/proc/self/numa_maps told of {told} of {num_pages} pages of host memory where they were")
        far = told - pages_by_node.get(self.node.number, 0)
        if far <= _MOST_FAR * told:
            return value
        beside = f"NUMA node {self.node.number}, beside the GPU"
        if not is_bound:
            return Missing(Why.NOT_PERMITTED, f"this process may run on no CPU of {beside}: the host memory was elsewhere")
        pages = f"{far} of {num_pages} pages of host memory"
        return Missing(Why.NOT_THERE, f"{pages} were not on {beside}, and at most 1 % may be: it has no room, or a policy forbids it")


@dataclass(frozen=True)
class Opened:
    """What the process of one rank opened, and how many GPUs CUDA lets it see."""

    uuid: str
    local_rank: int
    num_visible: int


def gpu(opened: Opened, ranks: Sequence[int], gpus: Answer[tuple[GpuReading, ...]], environ: Mapping[str, str]) -> Findings:
    """`ranks`: all that opened this GPU."""
    yield "binding.gpu.ranks", len(ranks), "count", f"ranks {as_cpu_list(ranks)}" if len(ranks) > 1 else ""
    broken = gpus if isinstance(gpus, Missing) else list(_broken_promises(opened, gpus, environ))
    told = "" if isinstance(broken, Missing) else "; ".join(broken)[:MOST_TEXT]
    yield "binding.gpu.unexpected", broken if isinstance(broken, Missing) else len(broken), "count", told


def affinity(cpu: Cpu, place: Answer[Place]) -> Findings:
    own = own_node(cpu, place)
    told = "" if isinstance(own, Missing) else f"CPUs {cpu.affinity_cpu_list}; NUMA node {own.number} has {own.cpu_list}"
    yield "binding.affinity.own_node", _share(cpu.affinity_cpu_list, own), "%", told[:MOST_TEXT]


def own_node(cpu: Cpu, place: Answer[Place]) -> Answer[NumaNode]:
    """The NUMA node of a GPU. Where the kernel does not know it and only one node has CPUs, there is no other that it could be."""
    if isinstance(cpu.numa_nodes, Missing):
        return cpu.numa_nodes
    number = place if isinstance(place, Missing) else place.numa_node
    if isinstance(number, Missing):
        with_cpus = [node for node in cpu.numa_nodes if node.cpu_list != ""]
        return with_cpus[0] if len(with_cpus) == 1 else Missing(number.missing, f"{number.detail}; there are {_named(with_cpus)}"[:200])
    unknown = Missing(Why.UNREADABLE, f"NUMA node {number} is none of {_named(cpu.numa_nodes)}")
    return next((node for node in cpu.numa_nodes if node.number == number), unknown)


def placement(gpu: GpuReading, cpu: Cpu, place: Answer[Place], devices: Answer[tuple[RdmaDevice, ...]]) -> dict[str, str | int]:
    """From rank to network: `gpu` (its index), `numa_node`, `cpus`, `card` and the `distance` to it, as far as they are known."""
    own, near = own_node(cpu, place), nearest_devices(place, devices)
    return {
        "gpu": gpu.index,
        "numa_node": str(own if isinstance(own, Missing) else own.number),
        "cpus": str(cpu.affinity_cpu_list),
        "card": " ".join(near.names) if isinstance(near, Nearest) else str(near),
        **({"distance": str(near.distance)} if isinstance(near, Nearest) else {}),
    }


def describe(found: Mapping[str, str | int]) -> str:
    """A placement in one line: `GPU 3, NUMA node 0, CPUs 0-47, nearest RDMA device mlx5_3 PIX`. It informs, and is not judged."""
    card = f"{found['card']} {found.get('distance', '')}".strip()
    return f"GPU {found['gpu']}, NUMA node {found['numa_node']}, CPUs {found['cpus']}, nearest RDMA device {card}"[:MOST_TEXT]


def _broken_promises(opened: Opened, gpus: tuple[GpuReading, ...], environ: Mapping[str, str]) -> Iterator[str]:
    """CUDA leaves out what it does not find in CUDA_VISIBLE_DEVICES, and all that comes after, without a word."""
    uuids = [gpu.uuid for gpu in gpus if not isinstance(gpu.uuid, Missing)]  # one that may not be used by this process has none
    listed = named_devices(environ)
    source = f"NVML shows {len(uuids)}" if listed is None else f"{_VISIBLE}={environ[_VISIBLE]} names {len(listed)}"
    if opened.num_visible != (len(uuids) if listed is None else len(listed)):
        yield f"CUDA shows {opened.num_visible} GPUs, {source}"
    promised = _promised(opened.local_rank, listed, uuids, environ)
    if promised and not opened.uuid.startswith(promised):
        yield f"opened {opened.uuid}, and local rank {opened.local_rank} was given {promised}"


def named_devices(environ: Mapping[str, str]) -> list[str] | None:
    """What CUDA_VISIBLE_DEVICES names; None where it says nothing. -1 ends the list (CUDA C++ Programming Guide, environment variables)."""
    if _VISIBLE not in environ:
        return None
    entries = [entry.strip() for entry in environ[_VISIBLE].split(",")]
    entries = entries[: entries.index("-1")] if "-1" in entries else entries
    return [entry for entry in entries if entry]


def _promised(local_rank: int, listed: list[str] | None, uuids: list[str], environ: Mapping[str, str]) -> str | None:
    """The GPU of a local rank, or how its UUID begins. A number names no certain one unless CUDA counts along the PCI bus, as NVML does."""
    if listed is not None and local_rank >= len(listed):
        return None  # told by the number of GPUs
    entry = str(local_rank) if listed is None else listed[local_rank]
    if not entry.isdecimal():
        return entry
    in_bus_order = environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" and int(entry) < len(uuids)
    return uuids[int(entry)] if in_bus_order else None


def _share(affinity_cpu_list: Answer[str], own: Answer[NumaNode]) -> Answer[float]:
    """Percent of the CPUs that the process may run on."""
    if isinstance(own, Missing):
        return own
    if isinstance(own.cpu_list, Missing):
        return own.cpu_list
    if isinstance(affinity_cpu_list, Missing):
        return affinity_cpu_list
    allowed, near = set(cpus_in(affinity_cpu_list)), set(cpus_in(own.cpu_list))
    return 100 * len(allowed & near) / len(allowed) if allowed else Missing(Why.UNREADABLE, "the process may run on no CPU")


def _named(nodes: Sequence[NumaNode]) -> str:
    return f"NUMA nodes {as_cpu_list(node.number for node in nodes)}"
