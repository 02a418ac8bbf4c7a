"""Facts in which nodes of one cluster should be alike, read in brief by each rank."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from gpu_acceptance.base.text import clip
from gpu_acceptance.inventory import cgroup, cpu, infiniband, mounts, system, virtualization
from gpu_acceptance.inventory.answer import MOST_TEXT, Answer, Missing, T, Why, all_of, as_cpu_list
from gpu_acceptance.inventory.cgroup import Allowance, Allowances
from gpu_acceptance.inventory.gpu import GpuReading, NvLink, PeerLink
from gpu_acceptance.inventory.infiniband import Card, GpuDirectRdma, RdmaDevice, nearest_devices
from gpu_acceptance.inventory.libraries import Libraries, MappedLibrary
from gpu_acceptance.inventory.mounts import Mount
from gpu_acceptance.inventory.node import NodeReading
from gpu_acceptance.inventory.pci_topology import Place
from gpu_acceptance.inventory.system import Dmi, Memory, System

Fact = tuple[str, Answer[str]]  # name, what is the case
_MOST_TEXT = 2_000  # characters of one fact


_UNTOLD = {Why.NOT_PERMITTED, Why.UNREADABLE}
# Of a rank; of a host, which it names for NCCL; in the TMPDIR of a rank: torch sets it before it first compiles (its cache_dir_utils.py).
_OWN = {"CUDA_VISIBLE_DEVICES", "NCCL_HOSTID", "TORCHINDUCTOR_CACHE_DIR"}
_SEARCHED = "LD_LIBRARY_PATH"  # in order: a folder named again changes nothing, and Open MPI 4 names its own once more on other nodes
OF_GPUS = ("driver", "gpus", "topology")  # facts for which NVML is asked


@dataclass(frozen=True)
class HostReading:
    """The part of a node's reading that files alone tell."""

    system: System
    dmi: Dmi
    virtualization: virtualization.Virtualization
    cpu: cpu.Cpu
    memory: Memory
    allowances: Allowances


Host = NodeReading | HostReading


def facts(node: NodeReading, variables: Mapping[str, str]) -> Iterator[Fact]:
    """`variables`: the environment variables that change results, by name."""
    for name, what in _facts(node):
        yield name, what if isinstance(what, Missing) or len(what) <= MOST_TEXT else _digested(what, what)
    yield "variables", _variables(variables)


def _facts(node: NodeReading) -> Iterator[Fact]:
    yield from host_facts(node)
    yield "driver", _told("{}, CUDA {}", node.gpus.driver, node.gpus.cuda)
    yield "gpudirect", gpudirect_words(node.infiniband.gpudirect)
    yield "libraries", _libraries(node.libraries)
    yield "gpus", _all_alike(node.gpus.gpus, _gpu)
    yield "rdma_devices", rdma_words(_cards(node.infiniband.devices))
    yield "topology", _topology(node)


def host_facts(host: Host) -> Iterator[Fact]:
    """What files alone tell: no GPU and no NIC is asked."""
    yield from _machine(host)
    yield from _software(host)
    yield from _allowed(host)


def gpudirect_words(direct: GpuDirectRdma) -> Answer[str]:
    return _told("peermem {}, open kernel modules {}", direct.peermem_module, direct.has_open_kernel_modules)


def rdma_words(cards: Answer[tuple[Card, ...]]) -> Answer[str]:
    return _all_alike(cards, lambda card: _told("{}, {}, {}", card.hca_type, card.board_id, card.firmware))


def _cards(devices: Answer[tuple[RdmaDevice, ...]]) -> Answer[tuple[Card, ...]]:
    if isinstance(devices, Missing):
        return devices
    return tuple(Card(device.hca_type, device.board_id, device.firmware) for device in devices)


def _machine(host: Host) -> Iterator[Fact]:
    yield "product", _told("{}, {}", host.dmi.sys_vendor, host.dmi.product_name)
    yield "bios", _told("{} of {}", host.dmi.bios_version, host.dmi.bios_date)
    yield "cpu", _told("{} x {}, {} cores, {} threads", host.cpu.num_sockets, host.cpu.model, host.cpu.num_cores, host.cpu.num_threads)
    yield "governor", _words(host.cpu.scaling_governors, lambda one: one.name)
    yield "numa", _words(host.cpu.numa_nodes, lambda one: _told("{}: CPUs {}", one.number, one.cpu_list))
    yield "memory", _gibibytes(host.memory.total_bytes)
    yield "virtualization", _told("hypervisor {}, container {}", host.virtualization.hypervisor, host.virtualization.container)


def _software(host: Host) -> Iterator[Fact]:
    yield "os", _told("{} {}", host.system.os_name, host.system.os_version)
    yield "kernel", _told("{}", host.system.kernel_release)
    yield "kernel_parameters", _words(host.system.kernel_parameters, str)
    yield "clock_source", _told("{}", host.system.clock_source)
    yield "transparent_hugepages", _told("{}", host.memory.transparent_hugepages)
    yield "numa_balancing", _told("{}", host.memory.numa_balancing_mode)


def _allowed(host: Host) -> Iterator[Fact]:
    allowed = host.allowances
    yield "memlock", _allowance(allowed.memlock_bytes)
    yield "nofile", _allowance(allowed.nofile)
    yield "shm", _gibibytes(allowed.shm if isinstance(allowed.shm, Missing) else allowed.shm.size_bytes)
    memory = allowed.cgroup.memory_bytes  # often a share of what the machine has, to the byte
    yield "cgroup", _told("{} CPUs, memory {}", allowed.cgroup.cpu_quota_cpus, memory if isinstance(memory, str) else _gibibytes(memory))


def _gpu(gpu: GpuReading) -> Answer[str]:
    parts = (
        gpu.name,
        gpu.part_number,
        gpu.vbios,
        gpu.inforom,
        gpu.gsp_firmware,
        gpu.ecc.is_on,
        gpu.mig_is_on,
        gpu.persistence_is_on,
        gpu.compute_mode,
        gpu.power.enforced_limit_w,
        gpu.clocks.application_sm_mhz,
    )
    return _told(", ".join(["{}"] * len(parts)), *parts)


def _all_alike(found: Answer[tuple[T, ...]], describe: Callable[[T], Answer[str]]) -> Answer[str]:
    """`8 x NVIDIA H200, ...`: each kind with its number, the rarest first: a message that is cut short still shows what is odd."""
    described = _each(found, describe)
    if isinstance(described, str | Missing):
        return described
    kinds = Counter(described)
    return "; ".join(f"{number} x {kind}" for kind, number in sorted(kinds.items(), key=lambda item: (item[1], item[0]))) or "none"


def _words(found: Answer[tuple[T, ...]], describe: Callable[[T], Answer[str]]) -> Answer[str]:
    described = _each(found, describe)
    return described if isinstance(described, str | Missing) else "; ".join(described) or "none"


def _each(found: Answer[tuple[T, ...]], describe: Callable[[T], Answer[str]]) -> list[str] | Answer[str]:
    """One text for each, or why there are none: as a word, where that is one."""
    if isinstance(found, Missing):
        return _told("{}", found)
    described = [describe(one) for one in found]
    return next((one for one in described if isinstance(one, Missing)), [one for one in described if not isinstance(one, Missing)])


def _told(form: str, *parts: object) -> Answer[str]:
    """The parts in their places; where one of them is untold, so is the whole."""
    untold = next((part for part in parts if isinstance(part, Missing) and not _is_told(part)), None)
    return untold or form.format(*map(_word, parts))


def _is_told(part: object) -> bool:
    return not (isinstance(part, Missing) and part.missing in _UNTOLD)


def _word(answer: object) -> str:
    """Without the detail of why an answer is missing: it names files and processes, which differ."""
    return str(answer.missing) if isinstance(answer, Missing) else str(answer)


def _gibibytes(num_bytes: Answer[int]) -> Answer[str]:
    """To whole GiB: a kernel keeps back a little more or less at each boot."""
    return _told("{}", num_bytes) if isinstance(num_bytes, Missing) else f"{round(num_bytes / 2**30)} GiB"


def _allowance(answer: Answer[Allowance]) -> Answer[str]:
    return _told("{}", answer) if isinstance(answer, Missing) else f"{answer.soft} of {answer.hard}"


def _libraries(libraries: Libraries) -> Answer[str]:
    """By their file names: a folder may be called otherwise on each node. Those that every rank needs; NCCL loads others as it goes."""
    mapped = (_words(answer, _library) for answer in (libraries.nccl, libraries.cudart, libraries.cuda))
    return _told("NCCL {}; CUDA runtime {}; CUDA driver {}", *mapped)


def _library(library: MappedLibrary) -> str:
    return f"{PurePosixPath(library.path).name}{', replaced on disk since' if library.deleted else ''}"


def _topology(node: NodeReading) -> Answer[str]:
    """`GPU 0-3: NUMA node 0, nearest mlx5_0 PIX, 18 of 18 NVLinks up; GPU 4-7: ...; 56 x read ok, write ok, nvlink ok`."""
    gpus = node.gpus.gpus
    places = {place.pci_bus_id: place for place in node.gpu_places}
    wheres = _each(gpus, lambda gpu: _told("{}, {}", _whereabouts(gpu, places, node.infiniband.devices), _links(gpu.nvlinks)))
    if isinstance(gpus, Missing) or isinstance(wheres, str | Missing):
        return _told("{}", wheres)
    alike: dict[str, list[int]] = {}
    for gpu, where in zip(gpus, wheres, strict=True):
        alike.setdefault(where, []).append(gpu.index)
    parts = [*(f"GPU {as_cpu_list(indexes)}: {where}" for where, indexes in alike.items()), _all_alike(node.gpus.peers, _peer)]
    return _told("; ".join(["{}"] * len(parts)), *parts)


def _whereabouts(gpu: GpuReading, places: Mapping[str, Place], devices: Answer[tuple[RdmaDevice, ...]]) -> Answer[str]:
    place = gpu.pci_bus_id if isinstance(gpu.pci_bus_id, Missing) else places.get(gpu.pci_bus_id)
    if place is None or isinstance(place, Missing):
        return "place unknown" if place is None else _told("place {}", place)
    return _told("NUMA node {}, nearest {}", place.numa_node, nearest_devices(place, devices))


def _links(links: Answer[tuple[NvLink, ...]]) -> Answer[str]:
    if isinstance(links, Missing):
        return _told("NVLinks {}", links)
    states = [link.is_active for link in links]
    active = all_of(sorted(states, key=_is_told))  # one that is untold before one that has none
    return _told("NVLinks {}", active) if isinstance(active, Missing) else f"{sum(active)} of {len(active)} NVLinks up"


def _peer(link: PeerLink) -> Answer[str]:
    return _told("read {}, write {}, nvlink {}", link.read, link.write, link.nvlink)


def _variables(variables: Mapping[str, str]) -> str:
    """All of them, as far as they fit, behind a digest of all, but for those that are each rank's or host's own."""
    kept = {name: value for name, value in sorted(variables.items()) if name not in _OWN}
    if folders := kept.get(_SEARCHED):
        kept[_SEARCHED] = ":".join(dict.fromkeys(folders.split(":")))
    return _digested(json.dumps(kept), "; ".join(f"{name}={value}" for name, value in kept.items()) or "none")


def _digested(whole: str, shown: str) -> str:
    """As much as fits, behind a digest of all: what is cut off counts as well."""
    return f"{hashlib.sha256(whole.encode('utf-8', 'backslashreplace')).hexdigest()[:12]}: {shown}"[:MOST_TEXT]


def read_facts(root: Path = Path("/")) -> dict[str, str]:
    """Facts by name; those that `environment.node.*` compares have the same names and words."""
    host = HostReading(
        system.read(root),
        system.read_dmi(root),
        virtualization.read(root),
        cpu.read(root),
        system.read_memory(root),
        cgroup.read_allowances(root),
    )
    return {name: clip(str(what), _MOST_TEXT) for name, what in _brief_facts(host, root)}


def _brief_facts(host: HostReading, root: Path) -> Iterator[Fact]:
    yield "product_serial", str(host.dmi.product_serial)
    yield "chassis_serial", str(host.dmi.chassis_serial)
    yield from host_facts(host)
    yield "gpudirect", gpudirect_words(infiniband.read_gpudirect(root))
    yield "rdma_devices", rdma_words(infiniband.read_cards(root))
    yield "mounts", _mounts(mounts.read(root).mounts)


def _mounts(found: Answer[tuple[Mount, ...]]) -> str:
    if isinstance(found, Missing):
        return str(found.missing)
    return "; ".join(f"{mount.mount_point} {mount.fs_type}{' read only' if mount.read_only else ''}" for mount in found) or "none"
