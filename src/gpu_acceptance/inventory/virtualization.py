"""The virtual machine and the container in which this process runs, in the words of systemd-detect-virt(1).

Both are detected by traces. The answer is `none` only where every trace could be read.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from gpu_acceptance.inventory import system
from gpu_acceptance.inventory.answer import (
    Answer,
    Missing,
    Why,
    combine,
    missing_over,
    one_line,
    read_fields,
    read_text,
    read_value,
    words,
)
from gpu_acceptance.inventory.mounts import MountEntry, read_mountinfo
from gpu_acceptance.inventory.system import Dmi

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


@dataclass(frozen=True)
class Virtualization:
    """Names from /proc/cpuinfo, /sys/hypervisor and DMI; the variable `container`, marker files, /proc/self/cgroup and mountinfo."""

    hypervisor: Answer[str]  # `kvm`, `qemu` (with KVM or without), `amazon`, ..., `vm-other` where it has no known name, `none`
    container: Answer[str]  # `docker`, `podman`, `kubernetes`, `singularity`, `enroot`, ..., `container-other`, `none`


def read(root: Path = Path("/"), variables: Mapping[str, str] = os.environ) -> Virtualization:
    """Detect hypervisor and container."""
    return Virtualization(_hypervisor(root), _container(root, variables))


def _hypervisor(root: Path) -> Answer[str]:
    """Detect a hypervisor: on x86 only by the CPU's flag for it; ARM has none, so there only a name proves one."""
    kind = read_value(root / "sys/hypervisor/type", one_line)
    name = _named_by_firmware(system.read_dmi(root)) if isinstance(kind, Missing) else kind
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
    traces = combine(_traces, read_text(root / "proc/self/cgroup"), read_mountinfo(root))
    return combine(
        lambda traces, *_: next((kind for hint, kind in _HINTS.items() if re.search(hint, traces)), NONE), traces, *marks.values()
    )


def _exists(path: Path) -> Answer[bool]:
    try:
        path.lstat()
    except OSError as error:
        answer = missing_over(error, path)
        return False if answer.missing is Why.NOT_THERE else answer
    return True


def _traces(cgroups: str, mounts: tuple[MountEntry, ...]) -> str:
    """Return the texts that may hold a trace. Mounts elsewhere are none: a host has those of the containers that it runs."""
    own = [mount for mount in mounts if mount.mount_point in _ENGINE_MOUNTS]
    return "\n".join([cgroups, *(f"{mount.folder} {mount.source} {' '.join(mount.super_options)}" for mount in own)])
