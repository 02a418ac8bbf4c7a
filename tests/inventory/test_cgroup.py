"""Bounds of a process: cgroups of both versions, in which the tightest bound on the way up holds, and resource limits."""

import shutil
from pathlib import Path

import pytest
from host_root import CGROUP, LIMITS, MOUNTINFO, fill, reachable_root, x86_node
from hypothesis import given
from hypothesis import strategies as st

from gpu_acceptance.inventory import cgroup, system
from gpu_acceptance.inventory.answer import Missing, Why
from gpu_acceptance.inventory.cgroup import Allowance, Cgroup

TOP = "sys/fs/cgroup"
V1_NONE = "9223372036854771712\n"  # 2**63 less a page of 4 KiB


@pytest.fixture
def v1(tmp_path):
    """As docker without cgroup namespaces shows it: each mount starts at the container's own cgroup."""
    mounts = "".join(
        f"{number} 31 0:{number} /docker/ab /{TOP}/{names} rw,nosuid - cgroup cgroup rw,{names}\n"
        for number, names in enumerate(("cpu,cpuacct", "memory", "cpuset"), 40)
    )
    return fill(
        tmp_path,
        {
            "proc/self/mountinfo": f"27 1 8:1 / / rw - ext4 /dev/sda1 rw\n{mounts}",
            "proc/self/cgroup": "3:cpu,cpuacct:/docker/ab\n4:memory:/docker/ab/task\n5:cpuset:/docker/ab\n1:name=systemd:/docker/ab\n",
            f"{TOP}/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
            f"{TOP}/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            f"{TOP}/memory/memory.limit_in_bytes": V1_NONE,
            f"{TOP}/memory/task/memory.limit_in_bytes": V1_NONE,
            f"{TOP}/cpuset/cpuset.effective_cpus": "0-7\n",
            f"{TOP}/cpuset/cpuset.effective_mems": "0\n",
        },
    )


def test_a_cgroup_without_bounds(node):
    assert cgroup.read_cgroup(node) == Cgroup("unlimited", "unlimited", "0-7", "0-1")


def test_version_2_the_tightest_ancestor_counts(node):
    fill(
        node,
        {
            f"{TOP}{CGROUP}/cpu.max": "800000 100000\n",
            f"{TOP}/system.slice/slurmstepd.scope/cpu.max": "250000 100000\n",
            f"{TOP}/system.slice/cpu.max": "max 100000\n",
            f"{TOP}{CGROUP}/memory.max": "max\n",
            f"{TOP}/system.slice/slurmstepd.scope/job_7/memory.max": "68719476736\n",
            f"{TOP}/system.slice/memory.max": "1099511627776\n",
        },
    )
    found = cgroup.read_cgroup(node)
    assert (found.cpu_quota_cpus, found.memory_bytes) == (2.5, 64 * 2**30)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, Cgroup("unlimited", "unlimited", "0-7", "0")),
        (
            {"cpu,cpuacct/cpu.cfs_quota_us": "150000\n", "memory/memory.limit_in_bytes": "68719476736\n"},
            Cgroup(1.5, 64 * 2**30, "0-7", "0"),
        ),
        # Kernels with large pages write no bound in another way.
        ({"memory/memory.limit_in_bytes": "9223372036854710272\n"}, Cgroup("unlimited", "unlimited", "0-7", "0")),
    ],
)
def test_version_1_the_tightest_ancestor_counts(v1, files, expected):
    assert cgroup.read_cgroup(fill(v1, {f"{TOP}/{name}": text for name, text in files.items()})) == expected


def test_a_job_on_a_part_of_the_cpus(node):
    fill(node, {f"{TOP}/system.slice/cpuset.cpus.effective": "2-3,6-7\n", f"{TOP}/system.slice/cpuset.mems.effective": "1\n"})
    found = cgroup.read_cgroup(node)
    assert (found.cpuset_cpu_list, found.cpuset_node_list) == ("2-3,6-7", "1")


def test_each_controller_is_taken_from_the_version_that_has_it(v1):
    """Hybrid: memory moved to version 2."""
    lines = (v1 / "proc/self/cgroup").read_text().replace("4:memory:/docker/ab/task\n", "") + "0::/unit\n"
    mounts = (v1 / "proc/self/mountinfo").read_text() + f"50 31 0:50 / /{TOP}/unified rw - cgroup2 cgroup2 rw\n"
    fill(
        v1,
        {
            "proc/self/cgroup": lines,
            "proc/self/mountinfo": mounts,
            f"{TOP}/unified/cgroup.controllers": "memory\n",
            f"{TOP}/unified/unit/memory.max": "1073741824\n",
        },
    )
    assert cgroup.read_cgroup(v1) == Cgroup("unlimited", 2**30, "0-7", "0")


def test_a_kernel_without_a_controller(node):
    fill(node, {f"{TOP}/cgroup.controllers": "memory\n"})
    found = cgroup.read_cgroup(node)
    assert found.memory_bytes == "unlimited"
    assert found.cpu_quota_cpus == Missing(Why.NOT_SUPPORTED, "no cgroup of this process has the cpu controller")
    assert found.cpuset_cpu_list.missing is Why.NOT_SUPPORTED


OWN = "proc/self/cgroup"


@pytest.mark.parametrize(
    ("files", "field", "why"),
    [
        *(
            ({OWN: f"0::{path}\n"}, "memory_bytes", Missing(Why.NOT_THERE, f"no mount shows the cgroup '{path}'"))
            for path in ("/gone", "/../other/unit", "/system.slice/x (deleted)")
        ),
        *(({OWN: text}, "memory_bytes", Why.UNREADABLE) for text in ("rubbish", "0::relative", "x::/a", "0:/a", "0::/a\0b", "")),
        *(
            ({f"{TOP}{CGROUP}/cpu.max": text}, "cpu_quota_cpus", Why.UNREADABLE)
            for text in ("max", "100000 0", "-1 100000", "lots 100000", "")
        ),
        # Another, readable one on the way up may be wider.
        ({f"{TOP}{CGROUP}/memory.max": "garbage\n", f"{TOP}/system.slice/memory.max": "1073741824\n"}, "memory_bytes", Why.UNREADABLE),
    ],
)
def test_what_cannot_be_read_is_never_without_bounds(node, files, field, why):
    found = getattr(cgroup.read_cgroup(fill(node, files)), field)
    assert found == why or found.missing is why


def test_a_mount_that_starts_elsewhere_does_not_show_it(v1):
    assert cgroup.read_cgroup(fill(v1, {"proc/self/cgroup": "4:memory:/docker/other\n"})).memory_bytes.missing is Why.NOT_THERE


def test_a_quota_without_a_period_is_unreadable_and_without_both_files_there_is_no_bound(v1):
    fill(v1, {f"{TOP}/cpu,cpuacct/cpu.cfs_quota_us": "150000\n"})
    (v1 / TOP / "cpu,cpuacct/cpu.cfs_period_us").unlink()
    assert cgroup.read_cgroup(v1).cpu_quota_cpus.missing is Why.UNREADABLE
    (v1 / TOP / "cpu,cpuacct/cpu.cfs_quota_us").unlink()  # a kernel without CPU bandwidth control
    assert cgroup.read_cgroup(v1).cpu_quota_cpus == "unlimited"


def test_no_cpuset_file_anywhere(v1):
    (v1 / TOP / "cpuset/cpuset.effective_mems").unlink()
    assert cgroup.read_cgroup(v1).cpuset_node_list == Missing(Why.NOT_THERE, str(v1 / TOP / "cpuset/cpuset.effective_mems"))


@pytest.mark.parametrize("file", ["cgroup", "mountinfo"])
def test_without_proc(node, file):
    (node / "proc/self" / file).unlink()
    found = cgroup.read_cgroup(node)
    assert set(vars(found).values()) == {Missing(Why.NOT_THERE, str(node / "proc/self" / file))}


def test_the_allowances_of_a_server(node):
    found = cgroup.read_allowances(node)
    assert found.memlock_bytes == Allowance("unlimited", "unlimited")
    assert found.stack_bytes == Allowance(8388608, "unlimited")
    assert found.nofile == Allowance(1024, 1048576)
    assert found.nproc == Allowance(8254567, 8254567)
    assert found.shm.size_bytes == shutil.disk_usage(node).total
    assert found.cgroup.memory_bytes == "unlimited"


def test_a_row_that_is_not_there(node):
    fill(node, {"proc/self/limits": LIMITS.replace("Max locked memory ", "Max unlocked memory ")})
    found = cgroup.read_allowances(node)
    assert found.memlock_bytes == Missing(Why.NOT_THERE, f"{node / 'proc/self/limits'} has no Max locked memory")
    assert found.nofile == Allowance(1024, 1048576)


@pytest.mark.parametrize("row", ["8388608 bytes", "8388608 infinite bytes", "-1 -1 bytes", "1 2 3 bytes"])
def test_a_row_of_another_form(node, row):
    fill(node, {"proc/self/limits": f"Max locked memory         {row}\n"})
    assert cgroup.read_allowances(node).memlock_bytes == Missing(
        Why.UNREADABLE, f"{node / 'proc/self/limits'}: Max locked memory is {row!r}"
    )


def test_without_proc_and_shm(node):
    (node / "proc/self/limits").unlink()
    shutil.rmtree(node / "dev")
    found = cgroup.read_allowances(node)
    assert found.nproc == Missing(Why.NOT_THERE, str(node / "proc/self/limits"))
    assert found.shm == Missing(Why.NOT_THERE, str(node / "dev/shm"))


@pytest.mark.parametrize(
    "path",
    [
        "/system.slice/kubepods-burstable-pod72e25f20.slice:cri-containerd:d24f9cc",  # github.com/coder/coder 22087, collector 6389
        "/system.slice/a - b",
        "/machine.slice/libpod-\N{LATIN SMALL LETTER U WITH DIAERESIS}.scope",
    ],
)
def test_a_cgroup_with_an_odd_name(node, path):
    fill(node, {OWN: f"0::{path}\n", f"{TOP}{path}/memory.max": "1073741824\n"})
    assert cgroup.read_cgroup(node).memory_bytes == 2**30


def test_an_odd_line_costs_what_it_may_have_told_and_nothing_else(v1):
    """Version 1 has the controllers; the line of one of them is torn."""
    lines = (v1 / OWN).read_text()
    fill(v1, {OWN: lines.replace("4:memory:/docker/ab/task", "4:memory")})
    found = cgroup.read_cgroup(v1)
    assert (found.cpu_quota_cpus, found.cpuset_cpu_list) == ("unlimited", "0-7")
    assert found.memory_bytes == Missing(Why.UNREADABLE, f"{v1 / OWN}: 1 line of 4 in no known form: '4:memory'")
    fill(v1, {OWN: lines + "rubbish\n", "proc/self/mountinfo": (v1 / "proc/self/mountinfo").read_text() + "rubbish\n"})
    assert cgroup.read_cgroup(v1) == Cgroup("unlimited", "unlimited", "0-7", "0")


def test_the_mounts_of_wsl_cost_nothing(node):
    """One of them has blanks in its options, which the kernel does not escape."""
    odd = (Path(__file__).parents[1] / "cases/mountinfo/01_wsl2_9p.txt").read_text()
    before = cgroup.read_cgroup(node)
    fill(node, {"proc/self/mountinfo": MOUNTINFO + odd})
    assert cgroup.read_cgroup(node) == before
    assert system.read_virtualization(node, {}).container == "none"


REAL_LINES = [
    "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0",
    "3:cpu,cpuacct:/docker/ab",
    "4:memory:/docker/ab/task",
    "1:name=systemd:/docker/ab",
    "13:rdma:/kubepods-burstable-pod4f.slice:cri-containerd:50aef",
    "12:memory:/system.slice/containerd.service/kubepods-pod9c.slice:cri-containerd:e575",
]


@given(st.lists(st.sampled_from(REAL_LINES) | st.text(max_size=40), max_size=12), st.integers(0, 40))
def test_lines_in_any_order_torn_or_odd_never_make_a_bound_wider(lines, torn):
    """Each answer is that of the real lines alone, or missing: never another one."""
    text = "\n".join(lines)[: -torn or None]
    with reachable_root() as folder:
        root = x86_node(folder)
        fill(root, {OWN: text})
        found = cgroup.read_cgroup(root)
        fill(root, {OWN: "\n".join(line for line in text.split("\n") if line in REAL_LINES)})
        alone = cgroup.read_cgroup(root)
    for one, other in zip(vars(found).values(), vars(alone).values(), strict=True):
        assert one == other or isinstance(one, Missing) or isinstance(other, Missing)
