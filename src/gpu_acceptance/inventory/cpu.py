"""The processors of this node, their NUMA nodes, and which of them this process may run on.

A virtual machine or a container shows part of it, and an ARM kernel gives numbers instead of names: each value says so for itself.
CPU lists are text as the kernel and taskset write them, `0-47,96-143`; `parsing.cpus_in` gives the numbers.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from gpu_acceptance.inventory.answer import (
    Answer,
    Fields,
    Missing,
    Why,
    all_of,
    as_cpu_list,
    cpu_list,
    cpus_in,
    kib_in_bytes,
    one_line,
    read_fields,
    read_value,
    signed_number,
    whole_number,
    zero_or_one,
)

T = TypeVar("T")

# The numbers that an ARM kernel gives for those found beside data-centre GPUs, with the names that lscpu prints
# (util-linux, lscpu-arm.c; Arm: MIDR_EL1 in the manual of each core). Grace is Neoverse-V2.
_ARM_VENDORS = {"0x41": "ARM", "0x4e": "NVIDIA", "0xc0": "Ampere"}
_ARM_MODELS = {
    ("0x41", "0xd0c"): "Neoverse-N1",
    ("0x41", "0xd40"): "Neoverse-V1",
    ("0x41", "0xd49"): "Neoverse-N2",
    ("0x41", "0xd4f"): "Neoverse-V2",
    ("0xc0", "0xac3"): "Ampere-1",
    ("0xc0", "0xac4"): "Ampere-1a",
}


@dataclass(frozen=True)
class ScalingGovernor:
    """What sets the clock of some CPUs: `performance`, `powersave`, `schedutil`, ..."""

    name: str
    num_cpus: int


@dataclass(frozen=True)
class NumaNode:
    """One node of /sys/devices/system/node. The GPU memory of a Grace Hopper is a node without CPUs."""

    number: int
    cpu_list: Answer[str]  # empty: a node of memory alone
    memory_bytes: Answer[int]


@dataclass(frozen=True)
class Cpu:
    """Sources: /proc/cpuinfo, /proc/self/status, /sys/devices/system/cpu and node.

    Formats: Documentation/ABI/*/sysfs-devices-system-cpu, Documentation/admin-guide/cputopology.rst and pm/cpufreq.rst.
    """

    model: Answer[str]  # x86: as the CPU says it; ARM: the name that lscpu gives
    vendor: Answer[str]  # `GenuineIntel`, `AuthenticAMD`, `ARM`
    num_sockets: Answer[int]  # these three of the CPUs that are online
    num_cores: Answer[int]
    num_threads: Answer[int]
    smt_active: Answer[bool]  # a core runs more than one thread
    scaling_governors: Answer[tuple[ScalingGovernor, ...]]  # one entry where all CPUs have the same
    max_mhz: Answer[float]  # what the hardware can reach; of CPUs that differ, the highest
    numa_nodes: Answer[tuple[NumaNode, ...]]
    offline_cpu_list: Answer[str]  # present and switched off; empty where none is
    isolated_cpu_list: Answer[str]  # kept from the scheduler (isolcpus); empty where none is
    affinity_cpu_list: Answer[str]  # those that this process may run on


def read(root: Path = Path("/")) -> Cpu:
    """A value that all threads of a core share is read of one of them: a big node has 384."""
    info = read_fields(root / "proc/cpuinfo")
    folder = root / "sys/devices/system/cpu"
    online = read_value(folder / "online", _some_cpus)
    cores = _one_thread_of_each_core(folder, online)
    return Cpu(
        model=_model(info),
        vendor=_vendor(info),
        num_sockets=_num_sockets(_of_each(folder, cores, "topology/physical_package_id", signed_number)),
        num_cores=cores if isinstance(cores, Missing) else len(cores),
        num_threads=online if isinstance(online, Missing) else len(online),
        smt_active=read_value(folder / "smt/active", zero_or_one),
        scaling_governors=_governors(_of_each(folder, online, "cpufreq/scaling_governor", one_line)),
        max_mhz=_max_mhz(_of_each(folder, cores, "cpufreq/cpuinfo_max_freq", whole_number)),
        numa_nodes=_numa_nodes(root / "sys/devices/system/node"),
        offline_cpu_list=_offline(read_value(folder / "present", _some_cpus), online),
        isolated_cpu_list=read_value(folder / "isolated", cpu_list),
        affinity_cpu_list=read_fields(root / "proc/self/status").get("Cpus_allowed_list", cpu_list),
    )


def _some_cpus(text: str) -> tuple[int, ...]:
    """A machine without any CPU reads no file."""
    cpus = cpus_in(text)
    if not cpus:
        raise ValueError("no CPU")
    return cpus


def _one_thread_of_each_core(folder: Path, online: Answer[tuple[int, ...]]) -> Answer[tuple[int, ...]]:
    if isinstance(online, Missing):
        return online
    chosen: list[int] = []
    covered: set[int] = set()
    for cpu in online:
        if cpu in covered:
            continue
        file = folder / f"cpu{cpu}/topology/thread_siblings_list"
        siblings = read_value(file, cpus_in)
        if isinstance(siblings, Missing):
            return siblings
        if cpu not in siblings:
            return Missing(Why.UNREADABLE, f"{file} does not hold CPU {cpu} itself")
        chosen.append(cpu)
        covered.update(siblings)
    return tuple(chosen)


def _of_each(folder: Path, cpus: Answer[tuple[int, ...]], name: str, parse: Callable[[str], T]) -> tuple[T, ...] | Missing:
    """One file of each of these CPUs; they must be online, an offline one has no such files."""
    if isinstance(cpus, Missing):
        return cpus
    return all_of(read_value(folder / f"cpu{cpu}" / name, parse) for cpu in cpus)


def _model(info: Fields) -> Answer[str]:
    implementer, part = info.get("CPU implementer", one_line), info.get("CPU part", one_line)
    if isinstance(implementer, Missing) or isinstance(part, Missing):
        return info.get("model name", one_line)
    unknown = Missing(Why.NOT_SUPPORTED, f"this kernel gives numbers, no name: implementer {implementer}, part {part}")
    return _ARM_MODELS.get((implementer, part), unknown)


def _vendor(info: Fields) -> Answer[str]:
    implementer = info.get("CPU implementer", one_line)
    if isinstance(implementer, Missing):
        return info.get("vendor_id", one_line)
    return _ARM_VENDORS.get(implementer, Missing(Why.NOT_SUPPORTED, f"this kernel gives a number, no name: implementer {implementer}"))


def _num_sockets(packages: Answer[tuple[int, ...]]) -> Answer[int]:
    if isinstance(packages, Missing):
        return packages
    if min(packages) < 0:  # the default of include/linux/topology.h, where neither firmware nor architecture says
        return Missing(Why.NOT_SUPPORTED, "physical_package_id is -1: the kernel does not know the sockets")
    return len(set(packages))


def _governors(names: Answer[tuple[str, ...]]) -> Answer[tuple[ScalingGovernor, ...]]:
    if isinstance(names, Missing):
        return names
    return tuple(ScalingGovernor(name, num_cpus) for name, num_cpus in sorted(Counter(names).items()))


def _max_mhz(frequencies_khz: Answer[tuple[int, ...]]) -> Answer[float]:
    return frequencies_khz if isinstance(frequencies_khz, Missing) else max(frequencies_khz) / 1000


def _numa_nodes(folder: Path) -> Answer[tuple[NumaNode, ...]]:
    numbers = read_value(folder / "online", _some_cpus)
    if isinstance(numbers, Missing):
        return numbers
    return tuple(_numa_node(folder / f"node{number}", number) for number in numbers)


def _numa_node(folder: Path, number: int) -> NumaNode:
    memory = read_fields(folder / "meminfo").get(f"Node {number} MemTotal", kib_in_bytes)
    return NumaNode(number, read_value(folder / "cpulist", cpu_list), memory)


def _offline(present: Answer[tuple[int, ...]], online: Answer[tuple[int, ...]]) -> Answer[str]:
    """The kernel's own list, `offline`, also holds CPUs that could be plugged in and never were."""
    if isinstance(present, Missing):
        return present
    if isinstance(online, Missing):
        return online
    return as_cpu_list(set(present) - set(online))
