"""GPU and CPUs of a rank, and findings in them: metric, answer, unit, detail. Pure.

The bounds are in the profiles; docs/limits.md explains each. A missing answer stays missing, and never counts as a pass.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpu_acceptance.inventory.answer import MOST_TEXT, Answer, Missing, Why, as_cpu_list, combine, cpus_in, detail_of, then
from gpu_acceptance.inventory.cpu import Cpu, NumaNode
from gpu_acceptance.inventory.gpu import GpuReading
from gpu_acceptance.inventory.infiniband import Nearest, RdmaDevice, nearest_devices
from gpu_acceptance.inventory.infiniband_health import Findings
from gpu_acceptance.inventory.pci_topology import Place

_MOST_FAR = 0.01  # of all pages: at half the rate they make a copy 1 % slower
_VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class HostSide:
    """NUMA node of a GPU; None without a GPU."""

    node: Answer[NumaNode] | None

    @property
    def cpus(self) -> frozenset[int] | None:
        """Return the CPUs of the node; None where they are unknown."""
        if self.node is None or isinstance(self.node, Missing) or isinstance(self.node.cpu_list, Missing):
            return None
        return frozenset(cpus_in(self.node.cpu_list)) or None

    def reading(self, value: float, pages_by_node: Mapping[int, int], *, num_pages: int, is_bound: bool) -> Answer[float]:
        """Return the value where all pages are known to be beside the GPU: from farther away it does not measure the link alone.

        At most 1 % of them may be elsewhere, where the kernel puts some of them when a node is almost full of page cache.
        """
        if self.node is None:
            return value
        if isinstance(self.node, Missing):
            return self.node
        if not pages_by_node:
            return Missing(Why.NOT_SUPPORTED, "/proc/self/numa_maps does not say where the host memory was")
        placed = sum(pages_by_node.values())
        if placed != num_pages:
            return Missing(Why.NOT_SUPPORTED, f"/proc/self/numa_maps places {placed} of {num_pages} pages of host memory")
        far = placed - pages_by_node.get(self.node.number, 0)
        if far <= _MOST_FAR * placed:
            return value
        beside = f"NUMA node {self.node.number}, beside the GPU"
        if not is_bound:
            return Missing(Why.NOT_PERMITTED, f"this process may run on no CPU of {beside}: the host memory was elsewhere")
        pages = f"{far} of {num_pages} pages of host memory"
        return Missing(Why.NOT_THERE, f"{pages} were not on {beside}, and at most 1 % may be: it has no room, or a policy forbids it")


@dataclass(frozen=True)
class Opened:
    """GPU that the process of one rank opened, and the number of GPUs that CUDA shows to it."""

    uuid: str
    local_rank: int
    num_visible: int


def gpu(opened: Opened, ranks: Sequence[int], gpus: Answer[tuple[GpuReading, ...]], environ: Mapping[str, str]) -> Findings:
    """Yield the number of `ranks` that opened this GPU, and differences from what the launcher promised."""
    yield "binding.gpu.ranks", len(ranks), "count", f"ranks {as_cpu_list(ranks)}" if len(ranks) > 1 else ""
    broken = then(gpus, lambda gpus: list(_broken_promises(opened, gpus, environ)))
    yield "binding.gpu.unexpected", then(broken, len), "count", detail_of(broken, "; ".join)


def affinity(cpu: Cpu, place: Answer[Place]) -> Findings:
    """Yield the percentage of this process's CPUs that are on the GPU's own NUMA node."""
    own = own_node(cpu, place)
    detail = detail_of(own, lambda own: f"CPUs {cpu.affinity_cpu_list}; NUMA node {own.number} has {own.cpu_list}")
    share = combine(_percent_near, then(own, lambda own: own.cpu_list), cpu.affinity_cpu_list)
    yield "binding.affinity.own_node", share, "%", detail


def own_node(cpu: Cpu, place: Answer[Place]) -> Answer[NumaNode]:
    """Return the NUMA node of a GPU. Where the kernel does not know it and only one node has CPUs, it is that one."""
    if isinstance(cpu.numa_nodes, Missing):
        return cpu.numa_nodes
    number = place if isinstance(place, Missing) else place.numa_node
    if isinstance(number, Missing):
        with_cpus = [node for node in cpu.numa_nodes if node.cpu_list != ""]
        return with_cpus[0] if len(with_cpus) == 1 else Missing(number.missing, f"{number.detail}; there are {_nodes(with_cpus)}"[:200])
    unknown = Missing(Why.UNREADABLE, f"NUMA node {number} is unknown; the kernel has {_nodes(cpu.numa_nodes)}")
    return next((node for node in cpu.numa_nodes if node.number == number), unknown)


def placement(gpu: GpuReading, cpu: Cpu, place: Answer[Place], devices: Answer[tuple[RdmaDevice, ...]]) -> dict[str, str | int]:
    """Return the known parts of a rank's way to the network: `gpu` (its index), `numa_node`, `cpus`, `card` and `distance` to it."""
    own, near = own_node(cpu, place), nearest_devices(place, devices)
    return {
        "gpu": gpu.index,
        "numa_node": str(then(own, lambda own: own.number)),
        "cpus": str(cpu.affinity_cpu_list),
        "card": " ".join(near.names) if isinstance(near, Nearest) else str(near),
        **({"distance": str(near.distance)} if isinstance(near, Nearest) else {}),
    }


def describe(found: Mapping[str, str | int]) -> str:
    """Return a placement in one line, for information: `GPU 3, NUMA node 0, CPUs 0-47, nearest RDMA device mlx5_3 PIX`."""
    card = f"{found['card']} {found.get('distance', '')}".strip()
    return f"GPU {found['gpu']}, NUMA node {found['numa_node']}, CPUs {found['cpus']}, nearest RDMA device {card}"[:MOST_TEXT]


def _broken_promises(opened: Opened, gpus: tuple[GpuReading, ...], environ: Mapping[str, str]) -> Iterator[str]:
    """Yield differences: CUDA silently ends CUDA_VISIBLE_DEVICES at an entry that it does not find."""
    uuids = [gpu.uuid for gpu in gpus if not isinstance(gpu.uuid, Missing)]  # a GPU that this process may not use has none
    listed = named_devices(environ)
    source = f"NVML shows {len(uuids)}" if listed is None else f"{_VISIBLE}={environ[_VISIBLE]} names {len(listed)}"
    if opened.num_visible != (len(uuids) if listed is None else len(listed)):
        yield f"CUDA shows {opened.num_visible} GPUs, {source}"
    promised = _promised(opened.local_rank, listed, uuids, environ)
    if promised and not opened.uuid.startswith(promised):
        yield f"opened {opened.uuid}, and local rank {opened.local_rank} was given {promised}"


def named_devices(environ: Mapping[str, str]) -> list[str] | None:
    """Return the entries of CUDA_VISIBLE_DEVICES; None where it is not set. -1 ends the list (CUDA C++ Programming Guide)."""
    if _VISIBLE not in environ:
        return None
    entries = [entry.strip() for entry in environ[_VISIBLE].split(",")]
    entries = entries[: entries.index("-1")] if "-1" in entries else entries
    return [entry for entry in entries if entry]


def _promised(local_rank: int, listed: list[str] | None, uuids: list[str], environ: Mapping[str, str]) -> str | None:
    """Return the UUID of a local rank's GPU or its beginning. A number is certain only where CUDA counts along the PCI bus, as NVML."""
    if listed is not None and local_rank >= len(listed):
        return None  # the number of GPUs reports it
    entry = str(local_rank) if listed is None else listed[local_rank]
    if not entry.isdecimal():
        return entry
    in_bus_order = environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" and int(entry) < len(uuids)
    return uuids[int(entry)] if in_bus_order else None


def _percent_near(near_list: str, affinity_list: str) -> Answer[float]:
    allowed, near = set(cpus_in(affinity_list)), set(cpus_in(near_list))
    return 100 * len(allowed & near) / len(allowed) if allowed else Missing(Why.UNREADABLE, "the process may run on no CPU")


def _nodes(nodes: Sequence[NumaNode]) -> str:
    return f"NUMA nodes {as_cpu_list(node.number for node in nodes)}"
