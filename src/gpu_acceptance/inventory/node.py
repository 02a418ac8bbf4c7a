"""All facts of one node, and those in which the nodes of a cluster should be alike.

A fact of `environment.node.*` has the same name and text in a test and in what each rank reads of its host alone.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

from gpu_acceptance.base.text import clip
from gpu_acceptance.inventory import cgroup, cpu, gpu_reader, infiniband, kernel_log, mounts, pci_topology, system, versions
from gpu_acceptance.inventory.answer import MOST_TEXT, Answer, Missing, T, Why, all_of, as_cpu_list, then
from gpu_acceptance.inventory.cgroup import Allowance, Allowances
from gpu_acceptance.inventory.gpu import GpuReading, GpusReading, NvLink
from gpu_acceptance.inventory.infiniband import Card, GpuDirectRdma, RdmaDevice, nearest_devices
from gpu_acceptance.inventory.mounts import Mount
from gpu_acceptance.inventory.pci_topology import Place
from gpu_acceptance.inventory.system import Dmi, Memory, System, Virtualization
from gpu_acceptance.inventory.versions import Libraries, MappedLibrary

Fact = tuple[str, Answer[str]]  # name, text
_MOST_TEXT = 2_000  # characters of one fact that a rank reads of its host
_UNKNOWN = {Why.NOT_PERMITTED, Why.UNREADABLE}
# The first differs between ranks, NCCL_HOSTID between hosts; torch sets the third before it first compiles (its cache_dir_utils.py).
_OWN = {"CUDA_VISIBLE_DEVICES", "NCCL_HOSTID", "TORCHINDUCTOR_CACHE_DIR"}
_SEARCHED = "LD_LIBRARY_PATH"  # a folder listed twice changes nothing, and Open MPI 4 adds its own once more on other nodes
OF_GPUS = ("driver", "gpus", "topology")  # facts for which NVML is asked


@dataclass(frozen=True)
class HostReading:
    """Facts of a node that files alone give."""

    host: str
    system: System
    dmi: Dmi
    virtualization: Virtualization
    cpu: cpu.Cpu
    memory: Memory
    allowances: Allowances


@dataclass(frozen=True)
class NodeReading(HostReading):
    """All facts of a node."""

    mounts: mounts.Mounts
    libraries: Libraries  # of the process that read this
    bus: pci_topology.BusReading
    gpus: GpusReading
    gpu_places: tuple[Place, ...]  # of these GPUs, by the PCI bus id that NVML gives; a GPU without an id has none
    infiniband: infiniband.InfiniBand
    kernel_log: kernel_log.KernelLog


def read(root: Path = Path("/"), gpus: GpusReading | None = None) -> NodeReading:
    """Read this node: files below `root`, and GPUs through NVML unless they are given. Needs no privilege and changes nothing."""
    gpus = gpu_reader.read() if gpus is None else gpus
    return NodeReading(
        **vars(_read_host(root)),
        mounts=mounts.read(root),
        libraries=versions.read_libraries(root),
        bus=pci_topology.gpus_on_bus(root / "sys"),
        gpus=gpus,
        gpu_places=places_of(gpus, root),
        infiniband=infiniband.read(root),
        kernel_log=kernel_log.read(root),
    )


def _read_host(root: Path) -> HostReading:
    return HostReading(
        host=system.hostname(),
        system=system.read(root),
        dmi=system.read_dmi(root),
        virtualization=system.read_virtualization(root),
        cpu=cpu.read(root),
        memory=system.read_memory(root),
        allowances=cgroup.read_allowances(root),
    )


def places_of(gpus: GpusReading, root: Path = Path("/")) -> tuple[Place, ...]:
    """Return the places of these GPUs on the PCI bus."""
    if isinstance(gpus.gpus, Missing):
        return ()
    bus_ids = dict.fromkeys(gpu.pci_bus_id for gpu in gpus.gpus if not isinstance(gpu.pci_bus_id, Missing))
    return tuple(pci_topology.place(bus_id, root) for bus_id in bus_ids)


def facts(node: NodeReading, variables: Mapping[str, str]) -> Iterator[Fact]:
    """Yield the facts in which nodes should be alike. `variables`: the environment variables that change results, by name."""
    for name, text in (
        *_host_facts(node),
        ("driver", _fact("{}, CUDA {}", node.gpus.driver, node.gpus.cuda)),
        ("gpudirect", _gpudirect(node.infiniband.gpudirect)),
        ("libraries", _libraries(node.libraries)),
        ("gpus", _by_kind(node.gpus.gpus, _gpu)),
        ("rdma_devices", _by_kind(node.infiniband.devices, _card)),
        ("topology", _topology(node)),
    ):
        yield name, text if isinstance(text, Missing) or len(text) <= MOST_TEXT else _digested(text, text)
    yield "variables", _variables(variables)


def read_facts(root: Path = Path("/")) -> dict[str, str]:
    """Read what files alone give, by name: no GPU and no NIC is asked. These facts come from every host before a run starts."""
    host = _read_host(root)
    found: dict[str, object] = {
        "product_serial": host.dmi.product_serial,
        "chassis_serial": host.dmi.chassis_serial,
        **dict(_host_facts(host)),
        "gpudirect": _gpudirect(infiniband.read_gpudirect(root)),
        "rdma_devices": _by_kind(infiniband.read_cards(root), _card),
        "mounts": _mounts(mounts.read(root).mounts),
    }
    return {name: clip(str(text), _MOST_TEXT) for name, text in found.items()}


def _host_facts(host: HostReading) -> Iterator[Fact]:
    yield "product", _fact("{}, {}", host.dmi.sys_vendor, host.dmi.product_name)
    yield "bios", _fact("{} of {}", host.dmi.bios_version, host.dmi.bios_date)
    yield "cpu", _fact("{} x {}, {} cores, {} threads", host.cpu.num_sockets, host.cpu.model, host.cpu.num_cores, host.cpu.num_threads)
    yield "governor", _in_order(host.cpu.scaling_governors, lambda one: one.name)
    yield "numa", _in_order(host.cpu.numa_nodes, lambda one: _fact("{}: CPUs {}", one.number, one.cpu_list))
    yield "memory", _gibibytes(host.memory.total_bytes)
    yield "virtualization", _fact("hypervisor {}, container {}", host.virtualization.hypervisor, host.virtualization.container)
    yield "os", _fact("{} {}", host.system.os_name, host.system.os_version)
    yield "kernel", _fact("{}", host.system.kernel_release)
    yield "kernel_parameters", _in_order(host.system.kernel_parameters, str)
    yield "clock_source", _fact("{}", host.system.clock_source)
    yield "transparent_hugepages", _fact("{}", host.memory.transparent_hugepages)
    yield "numa_balancing", _fact("{}", host.memory.numa_balancing_mode)
    allowed = host.allowances
    yield "memlock", _allowance(allowed.memlock_bytes)
    yield "nofile", _allowance(allowed.nofile)
    yield "shm", _gibibytes(then(allowed.shm, lambda shm: shm.size_bytes))
    memory = allowed.cgroup.memory_bytes  # often a share of the machine's, to the byte
    yield "cgroup", _fact("{} CPUs, memory {}", allowed.cgroup.cpu_quota_cpus, memory if isinstance(memory, str) else _gibibytes(memory))


def _fact(form: str, *parts: object) -> Answer[str]:
    """Format the parts. A part that could not be read makes the fact missing; one that does not exist is named as such.

    The detail of a missing part is left out: it names files and processes, which differ between nodes.
    """
    unknown = next((part for part in parts if isinstance(part, Missing) and part.missing in _UNKNOWN), None)
    return unknown or form.format(*(part.missing if isinstance(part, Missing) else part for part in parts))


def _in_order(
    found: Answer[tuple[T, ...]], describe: Callable[[T], Answer[str]], join: Callable[[tuple[str, ...]], str] = "; ".join
) -> Answer[str]:
    """Join the descriptions; `none` without any."""
    if isinstance(found, Missing):
        return _fact("{}", found)
    return then(all_of([describe(one) for one in found]), lambda texts: join(texts) or "none")


def _kinds(texts: tuple[str, ...]) -> str:
    """Return `8 x NVIDIA H200, ...`, the rarest first: a message that is cut still shows the odd one."""
    return "; ".join(f"{number} x {kind}" for kind, number in sorted(Counter(texts).items(), key=lambda item: (item[1], item[0])))


_by_kind = partial(_in_order, join=_kinds)


def _gpudirect(direct: GpuDirectRdma) -> Answer[str]:
    return _fact("peermem {}, open kernel modules {}", direct.peermem_module, direct.has_open_kernel_modules)


def _card(card: Card | RdmaDevice) -> Answer[str]:
    return _fact("{}, {}, {}", card.hca_type, card.board_id, card.firmware)


def _gpu(gpu: GpuReading) -> Answer[str]:
    parts = (
        *(gpu.name, gpu.part_number, gpu.vbios, gpu.inforom, gpu.gsp_firmware, gpu.ecc.is_on, gpu.mig_is_on),
        *(gpu.persistence_is_on, gpu.compute_mode, gpu.power.enforced_limit_w, gpu.clocks.application_sm_mhz),
    )
    return _fact(", ".join(["{}"] * len(parts)), *parts)


def _gibibytes(num_bytes: Answer[int]) -> Answer[str]:
    """Round to whole GiB: a kernel keeps back a little more or less at each boot."""
    return _fact("{}", num_bytes) if isinstance(num_bytes, Missing) else f"{round(num_bytes / 2**30)} GiB"


def _allowance(answer: Answer[Allowance]) -> Answer[str]:
    return _fact("{}", answer) if isinstance(answer, Missing) else f"{answer.soft} of {answer.hard}"


def _libraries(libraries: Libraries) -> Answer[str]:
    """Name the libraries that every rank needs, by file name: folders may differ between nodes. NCCL loads others later."""

    def describe(library: MappedLibrary) -> str:
        return f"{PurePosixPath(library.path).name}{', replaced on disk since' if library.deleted else ''}"

    mapped = (_in_order(answer, describe) for answer in (libraries.nccl, libraries.cudart, libraries.cuda))
    return _fact("NCCL {}; CUDA runtime {}; CUDA driver {}", *mapped)


def _topology(node: NodeReading) -> Answer[str]:
    """Return `GPU 0-3: NUMA node 0, nearest mlx5_0 PIX, 18 of 18 NVLinks up; GPU 4-7: ...; 56 x read ok, write ok, nvlink ok`."""
    gpus = node.gpus.gpus
    if isinstance(gpus, Missing):
        return _fact("{}", gpus)
    places = {place.pci_bus_id: place for place in node.gpu_places}
    wheres = all_of([_fact("{}, {}", _whereabouts(gpu, places, node.infiniband.devices), _links(gpu.nvlinks)) for gpu in gpus])
    if isinstance(wheres, Missing):
        return wheres
    alike: dict[str, list[int]] = {}
    for gpu, where in zip(gpus, wheres, strict=True):
        alike.setdefault(where, []).append(gpu.index)
    parts = [
        *(f"GPU {as_cpu_list(indexes)}: {where}" for where, indexes in alike.items()),
        _by_kind(node.gpus.peers, lambda one: _fact("read {}, write {}, nvlink {}", one.read, one.write, one.nvlink)),
    ]
    return _fact("; ".join(["{}"] * len(parts)), *parts)


def _whereabouts(gpu: GpuReading, places: Mapping[str, Place], devices: Answer[tuple[RdmaDevice, ...]]) -> Answer[str]:
    place = gpu.pci_bus_id if isinstance(gpu.pci_bus_id, Missing) else places.get(gpu.pci_bus_id)
    if place is None or isinstance(place, Missing):
        return _fact("place {}", place or "unknown")
    return _fact("NUMA node {}, nearest {}", place.numa_node, nearest_devices(place, devices))


def _links(links: Answer[tuple[NvLink, ...]]) -> Answer[str]:
    if isinstance(links, Missing):
        return _fact("NVLinks {}", links)
    states = [link.is_active for link in links]
    unknown = [state for state in states if isinstance(state, Missing) and state.missing in _UNKNOWN]
    active = all_of([*unknown, *states])
    return _fact("NVLinks {}", active) if isinstance(active, Missing) else f"{sum(active)} of {len(active)} NVLinks up"


def _variables(variables: Mapping[str, str]) -> str:
    """Return the variables as far as they fit, behind a digest of all; those that belong to one rank or host are left out."""
    kept = {name: value for name, value in sorted(variables.items()) if name not in _OWN}
    if folders := kept.get(_SEARCHED):
        kept[_SEARCHED] = ":".join(dict.fromkeys(folders.split(":")))
    return _digested(json.dumps(kept), "; ".join(f"{name}={value}" for name, value in kept.items()) or "none")


def _digested(whole: str, shown: str) -> str:
    """Return as much as fits behind a digest of all, so that a difference beyond the cut shows too."""
    return f"{hashlib.sha256(whole.encode('utf-8', 'backslashreplace')).hexdigest()[:12]}: {shown}"[:MOST_TEXT]


def _mounts(found: Answer[tuple[Mount, ...]]) -> str:
    if isinstance(found, Missing):
        return str(found.missing)
    return "; ".join(f"{mount.mount_point} {mount.fs_type}{' read only' if mount.read_only else ''}" for mount in found) or "none"
