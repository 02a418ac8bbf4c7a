"""The host: its name, operating system, firmware, and memory."""

import os
import re
import shlex
import socket
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from gpu_acceptance.base.text import clip
from gpu_acceptance.inventory.answer import (
    MOST_FILE_BYTES,
    Answer,
    Missing,
    Why,
    choice_in_brackets,
    decimal,
    kib_in_bytes,
    names_in,
    one_line,
    read_fields,
    read_text,
    read_value,
    then,
    whole_number,
    words,
)

# Names, or beginnings of names, of the variables in a record. CUBLAS: cuBLAS and cuBLASLt; GOMP, KMP: OpenMP of GCC and of Intel.
PREFIXES = (
    *("CUBLAS", "CUDA_", "CUDNN_", "FI_", "GLOO_", "GOMP_", "KMP_", "LD_LIBRARY_PATH", "LD_PRELOAD", "MKL_", "NCCL_"),
    *("NVIDIA_TF32_OVERRIDE", "NVSHMEM_", "OMP_", "PYTORCH_", "SHARP_", "TORCHINDUCTOR_", "TORCH_", "UCX_"),
)
MAX_VALUE = 1_000  # characters of one value
_MAX_NAME = 253  # characters of a name in DNS
# Parameters of the kernel's command line that change performance. The rest is not kept: it may hold addresses and secrets of a site.
# Documentation/admin-guide/kernel-parameters.txt; `-` and `_` are the same to the kernel, here `_`.
_PARAMETERS = {
    *("amd_iommu", "intel_iommu", "iommu", "iommu.passthrough", "iommu.strict"),
    *("pci", "pcie_aspm", "pcie_ports"),
    *("numa", "numa_balancing", "isolcpus", "nohz_full", "nosmt", "rcu_nocbs"),
    *("mitigations", "spectre_v2", "nopti", "pti"),
    *("default_hugepagesz", "hugepages", "hugepagesz", "transparent_hugepage"),
    *("amd_pstate", "cpufreq.default_governor", "idle", "intel_idle.max_cstate", "intel_pstate", "processor.max_cstate"),
    *("clocksource", "tsc"),
}
_PARAMETER_PREFIX = "nvidia"  # nvidia.NVreg_..., nvidia-drm.modeset, nvidia_uvm....


def hostname(variables: Mapping[str, str] = os.environ) -> str:
    """Return the name of this host; in a pod of deploy/kubernetes that of its node, which stays when the pod is gone."""
    node = variables.get("NODE_NAME", "")[:_MAX_NAME] if variables.get("KUBERNETES_SERVICE_HOST") else ""
    return node or socket.gethostname()


def own_loopback_address(path: Path = Path("/etc/hosts")) -> str:
    """Return the loopback address of this node's own name in /etc/hosts, as on Debian and Ubuntu; empty for another address or none.

    Only the file is read: a dead name server must not delay a start.
    """
    text = read_text(path, MOST_FILE_BYTES)
    lines = [] if isinstance(text, Missing) else text.splitlines()
    entries = [line.partition("#")[0].split() for line in lines]
    found = [address for address, *names in filter(None, entries) if socket.gethostname() in names]
    return found[0] if found and all(address.startswith("127.") or address == "::1" for address in found) else ""


def chassis_serial(root: Path = Path("/sys")) -> str:
    """Return the serial of the product; empty where there is none, or only root may read it."""
    serial = read_text(root / "class" / "dmi" / "id" / "product_serial")
    return "" if isinstance(serial, Missing) else serial.strip()


def environment(variables: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables that change results, by name; long values are cut in the middle."""
    return {name: clip(value, MAX_VALUE) for name, value in sorted(variables.items()) if name.startswith(PREFIXES)}


@dataclass(frozen=True)
class Dmi:
    """Files of /sys/class/dmi/id, by their own names. Usually only root may read a serial.

    Fields that a vendor never filled in stay as they are: `To be filled by O.E.M.`, `Not Specified`. A guest has its hypervisor's values.
    """

    sys_vendor: Answer[str]
    product_name: Answer[str]
    product_serial: Answer[str]
    chassis_serial: Answer[str]
    board_vendor: Answer[str]
    board_name: Answer[str]
    bios_version: Answer[str]
    bios_date: Answer[str]


def read_dmi(root: Path = Path("/")) -> Dmi:
    """Read the names that the firmware gives."""
    return Dmi(*(_dmi_text(root / "sys/class/dmi/id" / field.name) for field in fields(Dmi)))


def _dmi_text(path: Path) -> Answer[str]:
    value = read_value(path, lambda text: text.strip() and one_line(text))
    return Missing(Why.NOT_THERE, f"{path} is blank") if value == "" else value


@dataclass(frozen=True)
class HugePages:
    """The pool of one page size."""

    page_bytes: int
    num_pages: Answer[int]
    num_free: Answer[int]


@dataclass(frozen=True)
class Memory:
    """Memory from /proc/meminfo, /proc/sys/kernel/numa_balancing, /sys/kernel/mm.

    Formats: Documentation/filesystems/proc.rst, Documentation/admin-guide/mm/hugetlbpage.rst and transhuge.rst,
    Documentation/admin-guide/sysctl/kernel.rst.
    """

    total_bytes: Answer[int]
    available_bytes: Answer[int]  # without swapping, by the kernel's estimate
    swap_bytes: Answer[int]  # 0: the node has no swap
    hugepages: Answer[tuple[HugePages, ...]]  # by page size, ascending
    transparent_hugepages: Answer[str]  # `always`, `madvise` or `never`
    numa_balancing_mode: Answer[int]  # 0 off, 1 on, 2 memory tiering, 3 both


def read_memory(root: Path = Path("/")) -> Memory:
    """Read the memory of this host."""
    info = read_fields(root / "proc/meminfo")
    settings = root / "sys/kernel/mm"
    return Memory(
        total_bytes=info.get("MemTotal", kib_in_bytes),
        available_bytes=info.get("MemAvailable", kib_in_bytes),
        swap_bytes=info.get("SwapTotal", kib_in_bytes),
        hugepages=_hugepages(settings / "hugepages"),
        transparent_hugepages=read_value(settings / "transparent_hugepage/enabled", choice_in_brackets),
        numa_balancing_mode=read_value(root / "proc/sys/kernel/numa_balancing", whole_number),
    )


def _hugepages(folder: Path) -> Answer[tuple[HugePages, ...]]:
    names = names_in(folder)
    if isinstance(names, Missing):
        return names
    pools = []
    for name in names:
        size = re.fullmatch(r"hugepages-([0-9]{1,15})kB", name, re.ASCII)
        if size is None:
            return Missing(Why.UNREADABLE, f"{folder} holds {name!r:.80}")
        num_pages, num_free = (read_value(folder / name / file, whole_number) for file in ("nr_hugepages", "free_hugepages"))
        pools.append(HugePages(int(size[1]) * 1024, num_pages, num_free))
    return tuple(sorted(pools, key=lambda pool: pool.page_bytes))


@dataclass(frozen=True)
class System:
    """Kernel, distribution and clock, from /proc, /etc/os-release and /sys/devices/system/clocksource.

    In a container the distribution is the container's own, and the kernel the host's.
    Formats: os-release(5), proc_stat(5), proc_uptime(5), Documentation/admin-guide/kernel-parameters.rst.
    """

    kernel_release: Answer[str]  # `6.8.0-45-generic`
    kernel_parameters: Answer[tuple[str, ...]]  # those that change results, in their order: the last of two mostly holds
    os_name: Answer[str]  # `Ubuntu`
    os_version: Answer[str]  # `22.04.5 LTS (Jammy Jellyfish)`
    boot_time_s: Answer[int]  # seconds since 1970 (UTC)
    uptime_s: Answer[float]
    clock_source: Answer[str]  # `tsc`; a slower one costs every time stamp
    available_clock_sources: Answer[tuple[str, ...]]


def read(root: Path = Path("/")) -> System:
    """Read kernel, distribution and clock of this host."""
    release = read_fields(root / "etc/os-release", "=")
    if isinstance(release.values, Missing) and release.values.missing is Why.NOT_THERE:
        release = read_fields(root / "usr/lib/os-release", "=")  # the vendor's own file (os-release(5))
    version = release.get("VERSION", _unquoted)
    if isinstance(version, Missing) and version.missing is Why.NOT_THERE:
        version = release.get("VERSION_ID", _unquoted)  # Alpine has no other
    clocks = root / "sys/devices/system/clocksource/clocksource0"
    return System(
        kernel_release=read_value(root / "proc/sys/kernel/osrelease", one_line),
        kernel_parameters=then(read_text(root / "proc/cmdline"), _parameters),
        os_name=release.get("NAME", _unquoted),
        os_version=version,
        boot_time_s=read_fields(root / "proc/stat", " ").get("btime", whole_number),
        uptime_s=read_value(root / "proc/uptime", lambda text: decimal(text.partition(" ")[0])),
        clock_source=read_value(clocks / "current_clocksource", one_line),
        available_clock_sources=read_value(clocks / "available_clocksource", words),
    )


def _unquoted(value: str) -> str:
    """Parse a value that is quoted as for a shell (os-release(5))."""
    (word,) = shlex.split(value)
    return one_line(word)


def _parameters(command_line: str) -> tuple[str, ...]:
    """Return the parameters in our list; the part after `--` is for the first process."""
    found = []
    for word in re.findall(r'(?:[^\s"]|"[^"]*"?)+', command_line):  # a quoted part may hold blanks
        if word == "--":
            break
        parameter = word.replace('"', "")
        name = parameter.partition("=")[0].replace("-", "_")
        if name in _PARAMETERS or name.startswith(_PARAMETER_PREFIX):
            found.append(parameter)
    return tuple(found)
