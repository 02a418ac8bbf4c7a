"""Folders that look like the /proc, /sys and /etc of a node: of a server with x86 processors, and of one with NVIDIA Grace."""

import os
import tempfile
from contextlib import contextmanager
from pathlib import Path

CPUINFO_X86 = """\
processor	: {cpu}
vendor_id	: GenuineIntel
cpu family	: 6
model		: 143
model name	: Intel(R) Xeon(R) Platinum 8480C
stepping	: 8
cpu MHz		: 3800.000
flags		: fpu vme de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat pse36 clflush mmx fxsr sse sse2 ht tm syscall
bogomips	: 4000.00
address sizes	: 46 bits physical, 57 bits virtual
power management:

"""
CPUINFO_GRACE = """\
processor	: {cpu}
BogoMIPS	: 2000.00
Features	: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm jscvt fcma lrcpc dcpop sha3 sve sve2
CPU implementer	: 0x41
CPU architecture: 8
CPU variant	: 0x0
CPU part	: 0xd4f
CPU revision	: 0

"""
MEMINFO = """\
MemTotal:       2113385208 kB
MemFree:        2004812060 kB
MemAvailable:   2052304364 kB
Buffers:           20324 kB
SwapTotal:       8388604 kB
SwapFree:        8388604 kB
HugePages_Total:       0
HugePages_Free:        0
Hugepagesize:       2048 kB
DirectMap1G:    2132803584 kB
"""
STATUS = """\
Name:	python
Umask:	0022
State:	R (running)
Pid:	4242
Cpus_allowed:	0f
Cpus_allowed_list:	0-3
Mems_allowed:	00000000,00000001
Mems_allowed_list:	0-1
"""
LIMITS = "".join(
    f"{name:25} {soft:20} {hard:20} {unit:10}\n"  # fs/proc/base.c
    for name, soft, hard, unit in (
        ("Limit", "Soft Limit", "Hard Limit", "Units"),
        ("Max cpu time", "unlimited", "unlimited", "seconds"),
        ("Max stack size", "8388608", "unlimited", "bytes"),
        ("Max processes", "8254567", "8254567", "processes"),
        ("Max open files", "1024", "1048576", "files"),
        ("Max locked memory", "unlimited", "unlimited", "bytes"),
        ("Max nice priority", "0", "0", ""),
        ("Max realtime timeout", "unlimited", "unlimited", "us"),
    )
)
MOUNTINFO = """\
22 27 0:21 / /proc rw,nosuid,nodev,noexec,relatime shared:12 - proc proc rw
23 27 0:22 / /sys rw,nosuid,nodev,noexec,relatime shared:6 - sysfs sysfs rw
25 24 0:24 / /dev/shm rw,nosuid,nodev shared:4 - tmpfs tmpfs rw,inode64
27 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw,errors=remount-ro
31 23 0:27 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot
44 27 259:5 / /raid rw,relatime shared:22 - xfs /dev/md1 rw,attr2,inode64
61 27 0:52 / /projects rw,relatime shared:41 - nfs4 filer:/export/projects rw,vers=4.2,hard,proto=tcp
62 27 0:53 / /scratch ro,relatime shared:43 - lustre mgs@o2ib:/scratch rw,flock
"""
OS_RELEASE = """\
PRETTY_NAME="Ubuntu 22.04.5 LTS"
NAME="Ubuntu"
VERSION_ID="22.04"
VERSION="22.04.5 LTS (Jammy Jellyfish)"
ID=ubuntu
HOME_URL="https://www.ubuntu.com/"
"""
DMI = {
    "sys_vendor": "NVIDIA",
    "product_name": "DGXH200",
    "product_serial": "1660224000123",
    "chassis_serial": "1660224000124",
    "board_vendor": "NVIDIA",
    "board_name": "DGXH200",
    "bios_version": "1.05.07",
    "bios_date": "05/15/2024",
}
CGROUP = "/system.slice/slurmstepd.scope/job_7/step_0"
MAPS = """\
55c0d8a1e000-55c0d8a1f000 r--p 00000000 103:02 1703972                   /usr/bin/python3.11
55c0d9c4a000-55c0d9e60000 rw-p 00000000 00:00 0                          [heap]
7f0a10000000-7f0a20000000 r--p 00000000 103:02 919191                    /opt/venv/nvidia/nccl/lib/libnccl.so.2
7f0a20000000-7f0a30000000 r-xp 10000000 103:02 919191                    /opt/venv/nvidia/nccl/lib/libnccl.so.2
7f0a40000000-7f0a41000000 r--p 00000000 103:02 929292                    /opt/venv/nvidia/cuda_runtime/lib/libcudart.so.13
7f0a50000000-7f0a52000000 r-xp 00000000 103:02 939393                    /usr/lib/x86_64-linux-gnu/libcuda.so.580.159.04
7f0a60000000-7f0a60200000 r-xp 00000000 103:02 949494                    /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.159.04
7f0a70000000-7f0a70020000 r-xp 00000000 103:02 959595                    /usr/lib/x86_64-linux-gnu/libibverbs.so.1.14.39.0
7ffd1c5f0000-7ffd1c611000 rw-p 00000000 00:00 0                          [stack]
"""


def fill(root, files):
    """Writes these files, and returns the root."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def x86_node(root):
    """Two sockets of two cores, two threads each; CPU n and n + 4 share a core. Not a guest, no container, no swap of its own."""
    fill(
        root,
        {
            "proc/cpuinfo": "".join(CPUINFO_X86.format(cpu=cpu) for cpu in range(8)),
            **_processors([(cpu, f"{cpu % 4},{cpu % 4 + 4}", cpu % 4 // 2) for cpu in range(8)]),
            **{f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor": "performance\n" for cpu in range(8)},
            **{f"sys/devices/system/cpu/cpu{cpu}/cpufreq/cpuinfo_max_freq": "3800000\n" for cpu in range(8)},
            "sys/devices/system/cpu/smt/active": "1\n",
            **_numa_node(0, "0-1,4-5", 1056503524),
            **_numa_node(1, "2-3,6-7", 1056881684),
            **_software(),
            **{f"sys/class/dmi/id/{name}": f"{value}\n" for name, value in DMI.items()},
        },
    )
    return _links(root)


def grace_node(root):
    """Two sockets of two cores without SMT, GPU memory as a NUMA node of its own, and no frequency driver."""
    fill(
        root,
        {
            "proc/cpuinfo": "".join(CPUINFO_GRACE.format(cpu=cpu) for cpu in range(4)),
            **_processors([(cpu, str(cpu), cpu // 2) for cpu in range(4)]),
            "sys/devices/system/cpu/smt/active": "0\n",
            **_numa_node(0, "0-1", 502_000_000),
            **_numa_node(1, "2-3", 502_000_000),
            **_numa_node(2, "", 98_000_000),
            "sys/devices/system/node/online": "0-2\n",
            **_software(),
        },
    )
    return _links(root)


@contextmanager
def reachable_root():
    """A root that another user can enter: pytest's own folders are closed to all but their owner."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        root.chmod(0o755)
        yield root


@contextmanager
def as_nobody():
    """Without root's right to read everything, where the tests have it."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def _processors(cpus):
    folder = "sys/devices/system/cpu"
    files = {f"{folder}/{name}": f"0-{len(cpus) - 1}\n" for name in ("online", "present", "possible")}
    files |= {f"{folder}/isolated": "\n", f"{folder}/offline": "\n"}
    for cpu, siblings, package in cpus:
        files[f"{folder}/cpu{cpu}/topology/thread_siblings_list"] = f"{siblings}\n"
        files[f"{folder}/cpu{cpu}/topology/physical_package_id"] = f"{package}\n"
    return files


def _numa_node(number, cpus, memory_kb):
    folder = f"sys/devices/system/node/node{number}"
    meminfo = f"Node {number} MemTotal:       {memory_kb} kB\nNode {number} MemFree:        {memory_kb // 2} kB\n"
    return {f"{folder}/cpulist": f"{cpus}\n", f"{folder}/meminfo": meminfo, "sys/devices/system/node/online": "0-1\n"}


def _software():
    clocks = "sys/devices/system/clocksource/clocksource0"
    top = "sys/fs/cgroup"
    return {
        "proc/meminfo": MEMINFO,
        "proc/self/status": STATUS,
        "proc/self/limits": LIMITS,
        "proc/self/mountinfo": MOUNTINFO,
        "proc/self/maps": MAPS,
        "proc/self/cgroup": f"0::{CGROUP}\n",
        "proc/sys/kernel/osrelease": "6.8.0-45-generic\n",
        "proc/sys/kernel/numa_balancing": "0\n",
        "proc/cmdline": "BOOT_IMAGE=/vmlinuz-6.8.0-45-generic root=UUID=1b2c ro iommu=pt token=s3cret nvidia-drm.modeset=0\n",
        "proc/stat": "cpu  1 2 3 4\ncpu0 1 2 3 4\nintr 5 0 0\nctxt 7\nbtime 1795157324\nprocesses 9\n",
        "proc/uptime": "350735.47 234388.90\n",
        "etc/os-release": OS_RELEASE,
        "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
        "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "64\n",
        "sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages": "60\n",
        "sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages": "0\n",
        "sys/kernel/mm/hugepages/hugepages-1048576kB/free_hugepages": "0\n",
        f"{clocks}/current_clocksource": "tsc\n",
        f"{clocks}/available_clocksource": "tsc hpet acpi_pm \n",
        f"{top}/cgroup.controllers": "cpuset cpu io memory hugetlb pids rdma misc\n",
        f"{top}/cpuset.cpus.effective": "0-7\n",
        f"{top}/cpuset.mems.effective": "0-1\n",
        f"{top}{CGROUP}/cpu.max": "max 100000\n",
        f"{top}{CGROUP}/memory.max": "max\n",
        "dev/shm/nothing": "",
        "raid/nothing": "",
    }


def _links(root):
    (root / "proc/self/cwd").symlink_to("/raid/job")
    return root
