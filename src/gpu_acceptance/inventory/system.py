"""The operating system: kernel, distribution, since when it runs, and which clock it counts with."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from gpu_acceptance.inventory.answer import Answer, Missing, Why, read_text, read_value
from gpu_acceptance.inventory.fields import Fields, read_fields
from gpu_acceptance.inventory.parsing import decimal, one_line, whole_number, words

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
