"""The machine that runs the tests, whichever it is: answers that other ways of asking give as well."""

import os
import platform
import resource
import shutil

import psutil
import pytest
from pydantic import TypeAdapter

from gpu_acceptance.inventory import cgroup, cpu, mounts, system, versions, virtualization
from gpu_acceptance.inventory.answer import Missing, cpus_in
from gpu_acceptance.inventory.cgroup import Allowance

pytestmark = pytest.mark.skipif(platform.system() != "Linux", reason="/proc and /sys are Linux's")


def amount(number):
    return "unlimited" if number == resource.RLIM_INFINITY else number


READERS = (
    cgroup.read_allowances,
    cpu.read,
    system.read_dmi,
    versions.read_libraries,
    system.read_memory,
    mounts.read,
    system.read,
    virtualization.read,
)


@pytest.mark.parametrize("read", READERS, ids=lambda read: f"{read.__module__}.{read.__name__}")
def test_each_reader_answers_and_its_answer_survives_json(read):
    found = read()
    adapter = TypeAdapter(type(found))
    assert adapter.validate_json(adapter.dump_json(found)) == found


def test_this_process():
    assert set(cpus_in(cpu.read().affinity_cpu_list)) == os.sched_getaffinity(0)
    found = cgroup.read_allowances()
    asked = {
        "memlock_bytes": resource.RLIMIT_MEMLOCK,
        "nofile": resource.RLIMIT_NOFILE,
        "nproc": resource.RLIMIT_NPROC,
        "stack_bytes": resource.RLIMIT_STACK,
    }
    for name, number in asked.items():
        assert getattr(found, name) == Allowance(*map(amount, resource.getrlimit(number))), name


def test_this_machine():
    assert system.read_memory().total_bytes == psutil.virtual_memory().total
    assert system.read().kernel_release == platform.release()
    assert system.read().boot_time_s == pytest.approx(psutil.boot_time(), abs=1)  # the kernel's own answer moves with the clock


def test_file_systems_have_the_size_that_statvfs_gives():
    for mount in mounts.read().mounts:
        assert isinstance(mount.space, Missing) or mount.space.size_bytes == shutil.disk_usage(mount.mount_point).total
