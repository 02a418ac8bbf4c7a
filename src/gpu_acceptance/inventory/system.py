"""The host: its name, operating system, firmware, and memory."""

import os
import re
import shlex
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gpu_acceptance.base.text import clip
from gpu_acceptance.inventory.answer import (
    Answer,
    Fields,
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
    whole_number,
    words,
)

# The names, or beginnings of names, of what goes into the record. CUBLAS: cuBLAS and cuBLASLt; GOMP, KMP: OpenMP of GCC and of Intel.
PREFIXES = (
    *("CUBLAS", "CUDA_", "CUDNN_", "FI_", "GLOO_", "GOMP_", "KMP_", "LD_LIBRARY_PATH", "LD_PRELOAD", "MKL_", "NCCL_"),
    *("NVIDIA_TF32_OVERRIDE", "NVSHMEM_", "OMP_", "PYTORCH_", "SHARP_", "TORCHINDUCTOR_", "TORCH_", "UCX_"),
)
MAX_VALUE = 1_000  # characters of one value
_MOST_HOSTS = 1_000_000  # characters of /etc/hosts
_MAX_NAME = 253  # characters of a name in DNS
# What of the kernel's command line is kept: what changes how fast the machine is. The rest may hold addresses and secrets of a site.
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
    """In a pod of deploy/kubernetes that of its node: the pod is gone once somebody looks for the GPU that failed."""
    node = variables.get("NODE_NAME", "")[:_MAX_NAME] if variables.get("KUBERNETES_SERVICE_HOST") else ""
    return node or socket.gethostname()


def own_loopback_address(path: Path = Path("/etc/hosts")) -> str:
    """The loopback address that /etc/hosts gives to this node's own name, as Debian and Ubuntu do; empty where it gives another or none.

    The file alone is read: a name server that does not answer must not hold up a start.
    """
    try:
        lines = path.read_text(encoding="utf-8", errors="replace")[:_MOST_HOSTS].splitlines()
    except OSError:
        return ""
    entries = [line.partition("#")[0].split() for line in lines]
    found = [address for address, *names in filter(None, entries) if socket.gethostname() in names]
    return found[0] if found and all(address.startswith("127.") or address == "::1" for address in found) else ""


def chassis_serial(root: Path = Path("/sys")) -> str:
    """What the firmware says; empty where there is none or only root may read it."""
    try:
        return (root / "class" / "dmi" / "id" / "product_serial").read_text(encoding="utf-8", errors="backslashreplace").strip()
    except OSError:
        return ""


def environment(variables: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables that change results, by name, long values cut in the middle."""
    return {name: clip(value, MAX_VALUE) for name, value in sorted(variables.items()) if name.startswith(PREFIXES)}


@dataclass(frozen=True)
class Dmi:
    """The files of /sys/class/dmi/id, by their own names. As a rule only root may read a serial.

    What a vendor never filled in stays as it is written: `To be filled by O.E.M.`, `Not Specified`. A guest has its hypervisor's values.
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
    answer = partial(_answer, root / "sys/class/dmi/id")
    return Dmi(
        sys_vendor=answer("sys_vendor"),
        product_name=answer("product_name"),
        product_serial=answer("product_serial"),
        chassis_serial=answer("chassis_serial"),
        board_vendor=answer("board_vendor"),
        board_name=answer("board_name"),
        bios_version=answer("bios_version"),
        bios_date=answer("bios_date"),
    )


def _answer(folder: Path, name: str) -> Answer[str]:
    value = read_value(folder / name, lambda text: text.strip() and one_line(text))
    return Missing(Why.NOT_THERE, f"{folder / name} is blank") if value == "" else value


@dataclass(frozen=True)
class HugePages:
    """The pool of one page size."""

    page_bytes: int
    num_pages: Answer[int]
    num_free: Answer[int]


@dataclass(frozen=True)
class Memory:
    """Sources: /proc/meminfo, /proc/sys/kernel/numa_balancing, /sys/kernel/mm.

    Formats: Documentation/filesystems/proc.rst, Documentation/admin-guide/mm/hugetlbpage.rst and transhuge.rst,
    Documentation/admin-guide/sysctl/kernel.rst.
    """

    total_bytes: Answer[int]
    available_bytes: Answer[int]  # what could be had without swapping, by the kernel's estimate
    swap_bytes: Answer[int]  # 0: the node has no swap
    hugepages: Answer[tuple[HugePages, ...]]  # by page size, ascending
    transparent_hugepages: Answer[str]  # `always`, `madvise` or `never`
    numa_balancing_mode: Answer[int]  # 0 off, 1 on, 2 memory tiering, 3 both


def read_memory(root: Path = Path("/")) -> Memory:
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
    """Sources: /proc/sys/kernel/osrelease, /proc/cmdline, /etc/os-release, /proc/stat, /proc/uptime, /sys/devices/system/clocksource.

    In a container the distribution is the container's own, and the kernel the host's.
    Formats: os-release(5), proc_stat(5), proc_uptime(5), Documentation/admin-guide/kernel-parameters.rst.
    """

    kernel_release: Answer[str]  # `6.8.0-45-generic`
    kernel_parameters: Answer[tuple[str, ...]]  # those that change results, in their order: of one given twice, mostly the last holds
    os_name: Answer[str]  # `Ubuntu`
    os_version: Answer[str]  # `22.04.5 LTS (Jammy Jellyfish)`
    boot_time_s: Answer[int]  # seconds since 1970 (UTC)
    uptime_s: Answer[float]
    clock_source: Answer[str]  # `tsc`; a slower one costs every time stamp
    available_clock_sources: Answer[tuple[str, ...]]


def read(root: Path = Path("/")) -> System:
    release = _os_release(root)
    clocks = root / "sys/devices/system/clocksource/clocksource0"
    return System(
        kernel_release=read_value(root / "proc/sys/kernel/osrelease", one_line),
        kernel_parameters=_parameters(read_text(root / "proc/cmdline")),
        os_name=release.get("NAME", _unquoted),
        os_version=_os_version(release),
        boot_time_s=read_fields(root / "proc/stat", " ").get("btime", whole_number),
        uptime_s=read_value(root / "proc/uptime", lambda text: decimal(text.partition(" ")[0])),
        clock_source=read_value(clocks / "current_clocksource", one_line),
        available_clock_sources=read_value(clocks / "available_clocksource", words),
    )


def _os_release(root: Path) -> Fields:
    """os-release(5): the file under /etc comes first; the vendor's own, under /usr/lib, is there even where /etc is empty."""
    release = read_fields(root / "etc/os-release", "=")
    if isinstance(release.values, Missing) and release.values.missing is Why.NOT_THERE:
        return read_fields(root / "usr/lib/os-release", "=")
    return release


def _os_version(release: Fields) -> Answer[str]:
    """VERSION is for people and says most; some, Alpine for one, have VERSION_ID alone."""
    version = release.get("VERSION", _unquoted)
    if isinstance(version, Missing) and version.missing is Why.NOT_THERE:
        return release.get("VERSION_ID", _unquoted)
    return version


def _unquoted(value: str) -> str:
    """os-release(5): quoted as for a shell."""
    (word,) = shlex.split(value)
    return one_line(word)


def _parameters(command_line: Answer[str]) -> Answer[tuple[str, ...]]:
    """Those of the kernel that are in our list; what follows `--` is for the first process."""
    if isinstance(command_line, Missing):
        return command_line
    found = []
    for word in re.findall(r'(?:[^\s"]|"[^"]*"?)+', command_line):  # a quoted part may hold blanks
        if word == "--":
            break
        parameter = word.replace('"', "")
        name = parameter.partition("=")[0].replace("-", "_")
        if name in _PARAMETERS or name.startswith(_PARAMETER_PREFIX):
            found.append(parameter)
    return tuple(found)
