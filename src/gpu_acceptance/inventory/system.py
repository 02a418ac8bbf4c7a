"""The host: its name, operating system, firmware, memory, and the virtual machine or container in which this process runs."""

import os
import re
import shlex
import socket
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path, PurePosixPath

from gpu_acceptance.base.text import clip
from gpu_acceptance.inventory.answer import (
    MOST_FILE_BYTES,
    Answer,
    Lines,
    Missing,
    Why,
    choice_in_brackets,
    combine,
    decimal,
    is_absent,
    kib_in_bytes,
    missing_over,
    names_in,
    one_line,
    read_fields,
    read_text,
    read_value,
    then,
    whole_number,
    words,
)
from gpu_acceptance.inventory.mounts import MountEntry, may_be_mounted, read_mountinfo

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
NONE = "none"

# Beginnings of texts that hypervisors write into the DMI of their guests: systemd, src/basic/virt.c.
_GUESTS = {
    "KVM": "kvm",
    "OpenStack": "kvm",
    "KubeVirt": "kvm",
    "Amazon EC2": "amazon",
    "QEMU": "qemu",
    "VMware": "vmware",
    "VirtualBox": "oracle",
    "innotek GmbH": "oracle",
    "Xen": "xen",
    "Bochs": "bochs",
    "Parallels": "parallels",
    "BHYVE": "bhyve",
    "Apple Virtualization": "apple",
    "Google Compute Engine": "google",
}
_HYPER_V = ("Microsoft Corporation", "Virtual Machine")  # vendor and product: the vendor makes machines too

# Traces of an engine in a container: a file, and parts of the paths of its cgroup or of its mounts on the root and in /etc.
_MARKS = {
    "var/run/secrets/kubernetes.io": "kubernetes",
    ".singularity.d": "singularity",  # Apptainer keeps the name
    "run/.containerenv": "podman",
    ".dockerenv": "docker",
}
_HINTS = {
    r"/kubepods[./-]|/kubelet/pods/": "kubernetes",
    r"/libpod-[0-9a-f]{12}|/containers/storage/": "podman",
    r"/docker[/-][0-9a-f]{12}|/docker/(containers|overlay2|rootfs)/": "docker",
    r"/lxc/|/lxc\.payload": "lxc",
    r"/enroot/|/pyxis_": "enroot",
    r"io\.containerd\.": "containerd",
}
_ENGINE_MOUNTS = {PurePosixPath(path) for path in ("/", "/etc/hostname", "/etc/hosts", "/etc/resolv.conf")}
_OTHER_CONTAINER = "container-other"
_OTHER_VM = "vm-other"


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
    if is_absent(release.values):
        release = read_fields(root / "usr/lib/os-release", "=")  # the vendor's own file (os-release(5))
    version = release.get("VERSION", _unquoted)
    if is_absent(version):
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


@dataclass(frozen=True)
class Virtualization:
    """Names from /proc/cpuinfo, /sys/hypervisor and DMI; the variable `container`, marker files, /proc/self/cgroup and mountinfo."""

    hypervisor: Answer[str]  # `kvm`, `qemu` (with KVM or without), `amazon`, ..., `vm-other` where it has no known name, `none`
    container: Answer[str]  # `docker`, `podman`, `kubernetes`, `singularity`, `enroot`, ..., `container-other`, `none`


def read_virtualization(root: Path = Path("/"), variables: Mapping[str, str] = os.environ) -> Virtualization:
    """Detect both by their traces, in the words of systemd-detect-virt(1); `none` only where every trace could be read."""
    return Virtualization(_hypervisor(root), _container(root, variables))


def _hypervisor(root: Path) -> Answer[str]:
    """Detect a hypervisor: on x86 only by the CPU's flag for it; ARM has none, so there only a name proves one."""
    kind = read_value(root / "sys/hypervisor/type", one_line)
    name = _named_by_firmware(read_dmi(root)) if isinstance(kind, Missing) else kind
    flags = read_fields(root / "proc/cpuinfo").get("flags", words)
    if not isinstance(flags, Missing):
        return (name or _OTHER_VM) if "hypervisor" in flags else NONE
    if flags.missing is not Why.NOT_THERE:
        return flags
    return name or Missing(Why.NOT_SUPPORTED, "this CPU has no flag for it, and neither /sys/hypervisor nor DMI names one")


def _named_by_firmware(firmware: Dmi) -> str | None:
    vendor, product = firmware.sys_vendor, firmware.product_name
    if (vendor, product) == _HYPER_V:
        return "microsoft"
    if isinstance(product, str) and re.search(r"\.metal(-|$)", product):  # Amazon's name for a machine without a hypervisor
        return None
    texts = [text for text in (product, vendor) if isinstance(text, str)]
    return next((name for text in texts for begin, name in _GUESTS.items() if text.startswith(begin)), None)


def _container(root: Path, variables: Mapping[str, str]) -> Answer[str]:
    marks = {kind: _exists(root / mark) for mark, kind in _MARKS.items()}
    found = next((kind for kind, there in marks.items() if there is True), None)
    if found:
        return found
    if declared := variables.get("container"):  # the container interface of systemd asks an engine to set it
        return declared if re.fullmatch(r"[a-z0-9-]{1,32}", declared) else _OTHER_CONTAINER
    cgroups, mounts = read_text(root / "proc/self/cgroup"), read_mountinfo(root)
    hints = combine(_hints, cgroups, mounts)
    return combine(lambda hints, *_: next((kind for hint, kind in _HINTS.items() if re.search(hint, hints)), NONE), hints, *marks.values())


def _exists(path: Path) -> Answer[bool]:
    try:
        path.lstat()
    except OSError as error:
        answer = missing_over(error, path)
        return False if answer.missing is Why.NOT_THERE else answer
    return True


def _hints(cgroups: str, mounts: Lines[MountEntry]) -> Answer[str]:
    """Return the texts that may hint at an engine. Mounts elsewhere do not: a host has those of the containers that it runs."""
    if any(may_be_mounted(mounts, place) for place in _ENGINE_MOUNTS):
        return mounts.why_odd
    own = [mount for mount in mounts if mount.mount_point in _ENGINE_MOUNTS]
    return "\n".join([cgroups, *(f"{mount.folder} {mount.source} {' '.join(mount.super_options)}" for mount in own)])
