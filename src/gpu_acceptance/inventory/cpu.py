"""The processors of this node, their NUMA nodes, and the CPUs on which this process may run.

A virtual machine or a container shows part of it, and an ARM kernel gives numbers instead of names: each value may be missing by itself.
CPU lists are text as the kernel and taskset write them, `0-47,96-143`; `answer.cpus_in` parses them.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gpu_acceptance.inventory.answer import (
    Answer,
    Fields,
    Missing,
    T,
    Why,
    all_of,
    as_cpu_list,
    combine,
    cpu_list,
    cpus_in,
    kib_in_bytes,
    one_line,
    parsed,
    read_fields,
    read_text,
    read_value,
    signed_number,
    then,
    whole_number,
    zero_or_one,
)

# -1 is the default of include/linux/topology.h, where neither firmware nor architecture knows the sockets.
_NO_SOCKETS = Missing(Why.NOT_SUPPORTED, "physical_package_id is -1: the kernel does not know the sockets")
# Numbers of an ARM kernel for CPUs beside data-centre GPUs, with the names that lscpu prints
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
    """Governor of the clock of some CPUs: `performance`, `powersave`, `schedutil`, ..."""

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
    num_sockets: Answer[int]  # these three count CPUs that are online
    num_cores: Answer[int]
    num_threads: Answer[int]
    smt_active: Answer[bool]  # a core runs more than one thread
    scaling_governors: Answer[tuple[ScalingGovernor, ...]]  # one entry where all CPUs have the same
    max_mhz: Answer[float]  # maximum of the hardware; the highest where CPUs differ
    numa_nodes: Answer[tuple[NumaNode, ...]]
    offline_cpu_list: Answer[str]  # present and switched off; empty where none is
    isolated_cpu_list: Answer[str]  # kept from the scheduler (isolcpus); empty where none is
    affinity_cpu_list: Answer[str]  # CPUs on which this process may run


def read(root: Path = Path("/")) -> Cpu:
    """Read the processors. A value that the threads of a core share is read from one thread: a big node has 384."""
    info = read_fields(root / "proc/cpuinfo")
    folder, nodes = root / "sys/devices/system/cpu", root / "sys/devices/system/node"
    online, present = (read_value(folder / name, _some_cpus) for name in ("online", "present"))
    cores = then(online, partial(_one_thread_of_each_core, folder))
    packages = _of_each(folder, cores, "topology/physical_package_id", signed_number)
    max_khz = _of_each(folder, cores, "cpufreq/cpuinfo_max_freq", whole_number)
    governors = _of_each(folder, online, "cpufreq/scaling_governor", one_line)
    return Cpu(
        model=_model(info),
        vendor=_vendor(info),
        num_sockets=then(packages, lambda packages: len(set(packages)) if min(packages) >= 0 else _NO_SOCKETS),
        num_cores=then(cores, len),
        num_threads=then(online, len),
        smt_active=read_value(folder / "smt/active", zero_or_one),
        scaling_governors=then(governors, lambda names: tuple(ScalingGovernor(*item) for item in sorted(Counter(names).items()))),
        max_mhz=then(max_khz, lambda khz: max(khz) / 1000),
        numa_nodes=then(read_value(nodes / "online", _some_cpus), lambda numbers: tuple(_numa_node(nodes, number) for number in numbers)),
        # The kernel's own list, `offline`, also holds CPUs that could be plugged in and never were.
        offline_cpu_list=combine(lambda present, online: as_cpu_list(set(present) - set(online)), present, online),
        isolated_cpu_list=read_value(folder / "isolated", cpu_list),
        affinity_cpu_list=read_fields(root / "proc/self/status").get("Cpus_allowed_list", cpu_list),
    )


def _some_cpus(text: str) -> tuple[int, ...]:
    """Parse a list that is never empty."""
    cpus = cpus_in(text)
    if not cpus:
        raise ValueError("no CPU")
    return cpus


def _one_thread_of_each_core(folder: Path, online: tuple[int, ...]) -> Answer[tuple[int, ...]]:
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


def _of_each(folder: Path, cpus: Answer[tuple[int, ...]], name: str, parse: Callable[[str], T]) -> Answer[tuple[T, ...]]:
    """Read one file of each of these CPUs; an offline CPU has no such files."""
    return then(cpus, lambda cpus: all_of(read_value(folder / f"cpu{cpu}" / name, parse) for cpu in cpus))


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


def _numa_node(nodes: Path, number: int) -> NumaNode:
    folder = nodes / f"node{number}"
    memory = read_fields(folder / "meminfo").get(f"Node {number} MemTotal", kib_in_bytes)
    return NumaNode(number, read_value(folder / "cpulist", cpu_list), memory)


@dataclass(frozen=True)
class CpuTime:
    """Seconds of processor time: of all programs since the machine started, and of some processes. Neither has that of interrupts."""

    at_s: float  # of time.monotonic()
    busy_s: float
    own_s: float
    num_cpus: int


def cpu_time(pids: Iterable[int], proc: Path = Path("/proc")) -> Answer[CpuTime]:
    """Read the time of all programs (proc_stat(5)) and of these processes, with what their ended children took (proc_pid_stat(5))."""
    own = sum(_ticks_of(proc / str(pid) / "stat") for pid in pids)
    return parsed(read_text(proc / "stat"), f"{proc}/stat", partial(_cpu_time, own))


def _cpu_time(own_ticks: int, text: str) -> CpuTime:
    lines = [line.split() for line in text.splitlines() if line.startswith("cpu")]
    user, nice, system = map(int, lines[0][1:4])
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    return CpuTime(time.monotonic(), (user + nice + system) * tick_s, own_ticks * tick_s, len(lines) - 1)


def _ticks_of(stat: Path) -> int:
    """Return 0 for a process that is gone."""
    ticks = parsed(read_text(stat), str(stat), lambda text: sum(map(int, text.rpartition(") ")[2].split()[11:15])))
    return 0 if isinstance(ticks, Missing) else ticks
