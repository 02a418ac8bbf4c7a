"""What must be alike on all nodes of a job, in words: a node that is not like its neighbours is where a handover goes wrong.

An answer that is missing is a word too: that a value cannot be read on one node alone is a difference.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Protocol

from gpu_acceptance.inventory.allowances import Allowance, Allowances
from gpu_acceptance.inventory.answer import MOST_TEXT, Answer, Missing, T
from gpu_acceptance.inventory.cpu import Cpu
from gpu_acceptance.inventory.dmi import Dmi
from gpu_acceptance.inventory.fields import all_of
from gpu_acceptance.inventory.gpu import GpuReading, NvLink, PeerLink
from gpu_acceptance.inventory.gpudirect import GpuDirectRdma
from gpu_acceptance.inventory.infiniband import Card, RdmaDevice
from gpu_acceptance.inventory.libraries import Libraries, MappedLibrary
from gpu_acceptance.inventory.memory import Memory
from gpu_acceptance.inventory.nearness import nearest_devices
from gpu_acceptance.inventory.node import NodeReading
from gpu_acceptance.inventory.parsing import as_cpu_list
from gpu_acceptance.inventory.pci_topology import Place
from gpu_acceptance.inventory.system import System
from gpu_acceptance.inventory.virtualization import Virtualization

Fact = tuple[str, str]  # name, what is the case


class Host(Protocol):
    """The part of a node's reading that files alone tell."""

    @property
    def system(self) -> System: ...
    @property
    def dmi(self) -> Dmi: ...
    @property
    def virtualization(self) -> Virtualization: ...
    @property
    def cpu(self) -> Cpu: ...
    @property
    def memory(self) -> Memory: ...
    @property
    def allowances(self) -> Allowances: ...


_OF_A_RANK = {"CUDA_VISIBLE_DEVICES"}
OF_GPUS = ("driver", "gpus", "topology")  # facts for which NVML is asked


def facts(node: NodeReading, variables: Mapping[str, str]) -> Iterator[Fact]:
    """`variables`: the environment variables that change results, by name."""
    for name, what in _facts(node):
        yield name, what if len(what) <= MOST_TEXT else _digested(what, what)
    yield "variables", _variables(variables)


def _facts(node: NodeReading) -> Iterator[Fact]:
    yield from host_facts(node)
    yield "driver", f"{_word(node.gpus.driver)}, CUDA {_word(node.gpus.cuda)}"
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


def gpudirect_words(direct: GpuDirectRdma) -> str:
    return f"peermem {_word(direct.peermem_module)}, open kernel modules {_word(direct.has_open_kernel_modules)}"


def rdma_words(cards: Answer[tuple[Card, ...]]) -> str:
    return _all_alike(cards, lambda card: ", ".join(_word(part) for part in (card.hca_type, card.board_id, card.firmware)))


def _cards(devices: Answer[tuple[RdmaDevice, ...]]) -> Answer[tuple[Card, ...]]:
    if isinstance(devices, Missing):
        return devices
    return tuple(Card(device.hca_type, device.board_id, device.firmware) for device in devices)


def _machine(host: Host) -> Iterator[Fact]:
    yield "product", f"{_word(host.dmi.sys_vendor)}, {_word(host.dmi.product_name)}"
    yield "bios", f"{_word(host.dmi.bios_version)} of {_word(host.dmi.bios_date)}"
    sockets, cores, threads = (_word(number) for number in (host.cpu.num_sockets, host.cpu.num_cores, host.cpu.num_threads))
    yield "cpu", f"{sockets} x {_word(host.cpu.model)}, {cores} cores, {threads} threads"
    yield "governor", _words(host.cpu.scaling_governors, lambda one: one.name)
    yield "numa", _words(host.cpu.numa_nodes, lambda one: f"{one.number}: CPUs {_word(one.cpu_list)}")
    yield "memory", _gibibytes(host.memory.total_bytes)
    yield "virtualization", f"hypervisor {_word(host.virtualization.hypervisor)}, container {_word(host.virtualization.container)}"


def _software(host: Host) -> Iterator[Fact]:
    yield "os", f"{_word(host.system.os_name)} {_word(host.system.os_version)}"
    yield "kernel", _word(host.system.kernel_release)
    yield "kernel_parameters", _words(host.system.kernel_parameters, str)
    yield "clock_source", _word(host.system.clock_source)
    yield "transparent_hugepages", _word(host.memory.transparent_hugepages)
    yield "numa_balancing", _word(host.memory.numa_balancing_mode)


def _allowed(host: Host) -> Iterator[Fact]:
    allowed = host.allowances
    yield "memlock", _allowance(allowed.memlock_bytes)
    yield "nofile", _allowance(allowed.nofile)
    yield "shm", _gibibytes(allowed.shm if isinstance(allowed.shm, Missing) else allowed.shm.size_bytes)
    yield "cgroup", f"{_word(allowed.cgroup.cpu_quota_cpus)} CPUs, memory {_word(allowed.cgroup.memory_bytes)}"


def _gpu(gpu: GpuReading) -> str:
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
    return ", ".join(_word(part) for part in parts)


def _all_alike(found: Answer[tuple[T, ...]], describe: Callable[[T], str]) -> str:
    """`8 x NVIDIA H200, ...`: each kind with its number, the rarest first: a message that is cut short still shows what is odd."""
    if isinstance(found, Missing):
        return str(found.missing)
    kinds: dict[str, int] = {}
    for one in found:
        kinds[describe(one)] = kinds.get(describe(one), 0) + 1
    return "; ".join(f"{number} x {kind}" for kind, number in sorted(kinds.items(), key=lambda item: (item[1], item[0]))) or "none"


def _words(found: Answer[tuple[T, ...]], describe: Callable[[T], str]) -> str:
    if isinstance(found, Missing):
        return str(found.missing)
    return "; ".join(describe(one) for one in found) or "none"


def _word(answer: object) -> str:
    """Without the detail of why an answer is missing: it names files and processes, which differ."""
    return str(answer.missing) if isinstance(answer, Missing) else str(answer)


def _gibibytes(num_bytes: Answer[int]) -> str:
    """To whole GiB: a kernel keeps back a little more or less at each boot."""
    return str(num_bytes.missing) if isinstance(num_bytes, Missing) else f"{round(num_bytes / 2**30)} GiB"


def _allowance(answer: Answer[Allowance]) -> str:
    return str(answer.missing) if isinstance(answer, Missing) else f"{answer.soft} of {answer.hard}"


def _libraries(libraries: Libraries) -> str:
    """By their file names: a folder may be called otherwise on each node. Those that every rank needs; NCCL loads others as it goes."""
    mapped = {"NCCL": libraries.nccl, "CUDA runtime": libraries.cudart, "CUDA driver": libraries.cuda}
    return "; ".join(f"{name} {_words(answer, _library)}" for name, answer in mapped.items())


def _library(library: MappedLibrary) -> str:
    return f"{PurePosixPath(library.path).name}{', replaced on disk since' if library.deleted else ''}"


def _topology(node: NodeReading) -> str:
    """`GPU 0-3: NUMA node 0, nearest mlx5_0 PIX, 18 of 18 NVLinks up; GPU 4-7: ...; 56 x read ok, write ok, nvlink ok`."""
    if isinstance(node.gpus.gpus, Missing):
        return str(node.gpus.gpus.missing)
    places = {place.pci_bus_id: place for place in node.gpu_places}
    alike: dict[str, list[int]] = {}
    for gpu in node.gpus.gpus:
        alike.setdefault(f"{_whereabouts(gpu, places, node.infiniband.devices)}, {_links(gpu.nvlinks)}", []).append(gpu.index)
    gpus = [f"GPU {as_cpu_list(indexes)}: {where}" for where, indexes in alike.items()]
    return "; ".join([*gpus, _all_alike(node.gpus.peers, _peer)])


def _whereabouts(gpu: GpuReading, places: Mapping[str, Place], devices: Answer[tuple[RdmaDevice, ...]]) -> str:
    place = gpu.pci_bus_id if isinstance(gpu.pci_bus_id, Missing) else places.get(gpu.pci_bus_id)
    if place is None or isinstance(place, Missing):
        return "place unknown"
    return f"NUMA node {_word(place.numa_node)}, nearest {_word(nearest_devices(place, devices))}"


def _links(links: Answer[tuple[NvLink, ...]]) -> str:
    if isinstance(links, Missing):
        return f"NVLinks {links.missing}"
    active = all_of(link.is_active for link in links)
    return f"NVLinks {active.missing}" if isinstance(active, Missing) else f"{sum(active)} of {len(active)} NVLinks up"


def _peer(link: PeerLink) -> str:
    return f"read {_word(link.read)}, write {_word(link.write)}, nvlink {_word(link.nvlink)}"


def _variables(variables: Mapping[str, str]) -> str:
    """All of them, as far as they fit, behind a digest of all. Which GPUs a rank may see is its own."""
    kept = {name: value for name, value in sorted(variables.items()) if name not in _OF_A_RANK}
    return _digested(json.dumps(kept), "; ".join(f"{name}={value}" for name, value in kept.items()) or "none")


def _digested(whole: str, shown: str) -> str:
    """As much as fits, behind a digest of all: what is cut off counts as well."""
    return f"{hashlib.sha256(whole.encode('utf-8', 'backslashreplace')).hexdigest()[:12]}: {shown}"[:MOST_TEXT]
