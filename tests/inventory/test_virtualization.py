"""Guests and containers by the traces of their hypervisors and engines; `none` only where every trace could be read."""

import shutil

import pytest
from host_root import CPUINFO_X86, fill, grace_node

from gpu_acceptance.inventory import system
from gpu_acceptance.inventory.answer import Missing, Why

GUEST = CPUINFO_X86.format(cpu=0).replace(" syscall", " syscall hypervisor")
ID = "3f1c" * 16
LONE_ROOT = "27 1 0:40 / / rw - overlay overlay rw"


def hypervisor(root):
    return system.read_virtualization(root, {}).hypervisor


def container(root, variables=None):
    return system.read_virtualization(root, variables or {}).container


def firmware(vendor, product):
    return {"sys/class/dmi/id/sys_vendor": vendor, "sys/class/dmi/id/product_name": product}


def test_a_bare_server(node):
    assert (hypervisor(node), container(node)) == ("none", "none")


@pytest.mark.parametrize(
    ("vendor", "product", "name"),
    [
        ("QEMU", "KVM Virtual Machine", "kvm"),
        ("QEMU", "Standard PC (Q35 + ICH9, 2009)", "qemu"),
        ("OpenStack Foundation", "OpenStack Nova", "kvm"),
        ("Amazon EC2", "p5en.48xlarge", "amazon"),
        ("VMware, Inc.", "VMware20,1", "vmware"),
        ("Microsoft Corporation", "Virtual Machine", "microsoft"),
        ("Google", "Google Compute Engine", "google"),
        ("Xen", "HVM domU", "xen"),
        ("Somebody", "Something", "vm-other"),
    ],
)
def test_a_guest_has_its_hypervisors_name(node, vendor, product, name):
    assert hypervisor(fill(node, {"proc/cpuinfo": GUEST, **firmware(vendor, product)})) == name


def test_a_guest_without_firmware_has_no_name_but_the_kernels(node):
    shutil.rmtree(node / "sys/class/dmi")
    assert hypervisor(fill(node, {"proc/cpuinfo": GUEST})) == "vm-other"
    assert hypervisor(fill(node, {"sys/hypervisor/type": "xen\n"})) == "xen"


def test_on_x86_the_flag_decides(node):
    """Amazon's firmware has the same vendor on machines without a hypervisor."""
    assert hypervisor(fill(node, firmware("Amazon EC2", "p5en.48xlarge"))) == "none"


def test_arm_has_no_flag_and_a_name_is_needed(tmp_path):
    grace = grace_node(tmp_path)
    none_named = Missing(Why.NOT_SUPPORTED, "this CPU has no flag for it, and neither /sys/hypervisor nor DMI names one")
    assert hypervisor(grace) == none_named
    assert hypervisor(fill(grace, firmware("QEMU", "QEMU Virtual Machine"))) == "qemu"
    assert hypervisor(fill(grace, firmware("Amazon EC2", "c7g.metal"))) == none_named


def test_without_cpuinfo_the_hypervisor_is_unknown(node):
    (node / "proc/cpuinfo").unlink()
    (node / "proc/cpuinfo").mkdir()
    assert hypervisor(node).missing is Why.UNREADABLE


MARKS = [
    ([".dockerenv"], "docker"),
    (["run/.containerenv"], "podman"),
    ([".singularity.d/env"], "singularity"),
    (["var/run/secrets/kubernetes.io/serviceaccount/token"], "kubernetes"),
    ([".dockerenv", "var/run/secrets/kubernetes.io/x"], "kubernetes"),  # a pod, whatever engine runs it
]
CGROUPS = [
    (f"/docker/{ID}", "docker"),
    (f"/system.slice/docker-{ID}.scope", "docker"),
    (f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod12.slice/cri-containerd-{ID}.scope", "kubernetes"),
    (f"/kubepods/besteffort/pod12/{ID}", "kubernetes"),
    (f"/machine.slice/libpod-{ID}.scope/container", "podman"),
    ("/lxc.payload.node3/init.scope", "lxc"),
    ("/system.slice/docker.service", "none"),  # the engine itself, on its host
    ("/system.slice/slurmstepd.scope/job_7/step_0", "none"),
]
MOUNTS = [
    ("27 1 0:40 / / rw - overlay overlay rw,lowerdir=/l/A:/l/B,upperdir=/var/lib/docker/overlay2/abc/diff", "docker"),
    ("27 1 0:40 / / rw - overlay overlay rw,lowerdir=/var/lib/containers/storage/overlay/l/X", "podman"),
    ("27 1 0:40 / / rw - overlay overlay rw,lowerdir=/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs/1/fs", "containerd"),
    (f"{LONE_ROOT}\n30 27 8:1 /var/lib/kubelet/pods/12/etc-hosts /etc/hosts rw - ext4 /dev/sda1 rw", "kubernetes"),
    (f"{LONE_ROOT}\n30 27 8:1 /var/lib/docker/containers/{ID}/hostname /etc/hostname rw - ext4 /dev/sda1 rw", "docker"),
    ("27 1 8:1 /raid/enroot/data/user/pyxis_7.0 / rw - ext4 /dev/sda1 rw", "enroot"),
    (LONE_ROOT, "none"),  # a node that boots without a disk has such a root
    ("27 1 8:1 / / rw - ext4 /dev/sda1 rw\n30 27 0:40 / /var/lib/docker/overlay2/x/merged rw - overlay overlay rw", "none"),  # a host
]


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        *((dict.fromkeys(marks, ""), kind) for marks, kind in MARKS),
        *(({"proc/self/cgroup": f"0::{path}\n"}, kind) for path, kind in CGROUPS),
        *(({"proc/self/mountinfo": f"{lines}\n"}, kind) for lines, kind in MOUNTS),
    ],
)
def test_a_mark_a_cgroup_or_a_mount_tells_the_engine(node, files, kind):
    assert container(fill(node, files)) == kind


@pytest.mark.parametrize(
    ("declared", "kind"),
    [("podman", "podman"), ("lxc", "lxc"), ("systemd-nspawn", "systemd-nspawn"), ("\x1b[2J", "container-other"), ("", "none")],
)
def test_an_engine_declares_itself(node, declared, kind):
    assert container(node, {"container": declared}) == kind


@pytest.mark.parametrize("file", ["cgroup", "mountinfo"])
def test_there_is_no_container_only_where_every_trace_was_read(node, file):
    (node / "proc/self" / file).unlink()
    assert container(node) == Missing(Why.NOT_THERE, str(node / "proc/self" / file))
    assert container(fill(node, {".dockerenv": ""})) == "docker"


def test_a_mark_that_cannot_be_looked_for_leaves_it_open(node):
    (node / "run").symlink_to("run")
    assert container(node).missing is Why.UNREADABLE


def test_a_mount_in_no_known_form_hides_a_container_only_where_an_engine_mounts(node):
    whole = (node / "proc/self/mountinfo").read_text()
    assert container(fill(node, {"proc/self/mountinfo": f"{whole}70 27 0:60 / /data rw - nfs4\nrubbish\n"})) == "none"
    assert container(fill(node, {"proc/self/mountinfo": f"{whole}70 27 0:60 / /etc/hosts rw - ext4\n"})).missing is Why.UNREADABLE
