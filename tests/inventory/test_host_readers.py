"""Readers of a host with damaged files, where no answer may turn into a wrong one, and on the machine that runs the tests."""

import dataclasses
import os
import platform
import resource
import shutil
from functools import cache
from pathlib import Path

import psutil
import pytest
from host_root import fill, x86_node
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from gpu_acceptance.inventory import cgroup, cpu, mounts, system, versions
from gpu_acceptance.inventory.answer import Missing, cpus_in
from gpu_acceptance.inventory.cgroup import Allowance

READERS = {
    "allowances": cgroup.read_allowances,
    "cpu": cpu.read,
    "dmi": system.read_dmi,
    "libraries": versions.read_libraries,
    "memory": system.read_memory,
    "mounts": mounts.read,
    "system": system.read,
    "virtualization": system.read_virtualization,
}
# Files whose absence is itself an answer, by the rules of their formats.
MAY_BE_ABSENT = ("sys/fs/cgroup/", "dev/shm/", "raid/")
# The second thread of a core has the values of the first.
OF_A_CORE = ("topology/thread_siblings_list", "topology/physical_package_id", "cpufreq/cpuinfo_max_freq")
NEVER_READ = {"possible", "offline", *(f"cpu{number}/{file}" for number in range(4, 8) for file in OF_A_CORE)}


@pytest.fixture(scope="module")
def shared_node(tmp_path_factory):
    """One folder for all examples of hypothesis."""
    return x86_node(tmp_path_factory.mktemp("node"))


def files_of(root):
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() and not path.is_symlink())


def leaves(value, name=""):
    """Return every single value by its path."""
    if isinstance(value, Missing) or not (dataclasses.is_dataclass(value) or isinstance(value, tuple)):
        return {name: value}
    parts = enumerate(value) if isinstance(value, tuple) else vars(value).items()
    return {path: leaf for key, part in parts for path, leaf in leaves(part, f"{name}.{key}").items()}


def read_all(root):
    """Return all values but free space, which changes by itself."""
    answers = {f"{name}{path}": leaf for name, read in READERS.items() for path, leaf in leaves(read(root)).items()}
    return {path: leaf for path, leaf in answers.items() if not path.endswith(".free_bytes")}


adapter_of = cache(TypeAdapter)


def read_json(read, root):
    """Return what a reader reads, and the same after a snapshot."""
    found = read(root)
    adapter = adapter_of(type(found))
    return found, adapter.validate_json(adapter.dump_json(found))


@pytest.mark.parametrize("name", READERS)
def test_a_whole_node_misses_nothing(node, name):
    missing = {path for path, leaf in leaves(READERS[name](node)).items() if isinstance(leaf, Missing)}
    assert missing == ({".mounts.3.space", ".mounts.4.space"} if name == "mounts" else set())


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("root", [None, Path("/")], ids=["a server", "this machine"])
def test_a_reading_is_the_same_after_json(node, root, name):
    found, back = read_json(READERS[name], root or node)
    assert back == found


def test_a_missing_file_removes_answers_and_changes_none(node):
    whole = read_all(node)
    lost = {}
    for file in files_of(node):
        if file.startswith(MAY_BE_ABSENT):
            continue
        kept = (node / file).read_bytes()
        (node / file).unlink()
        after = read_all(node)
        fill(node, {file: kept.decode()})
        for path, answer in after.items():
            assert isinstance(answer, Missing) or answer == whole[path], f"{file}: {path}"
        lost[file] = after != whole
    assert {file for file, changed in lost.items() if not changed} == {f"sys/devices/system/cpu/{name}" for name in NEVER_READ}


@pytest.mark.slow
@settings(max_examples=200)
@given(data=st.data())
def test_no_text_makes_a_reader_fail(shared_node, data):
    file = data.draw(st.sampled_from(files_of(shared_node)))
    whole = (shared_node / file).read_bytes()
    at, length = data.draw(st.integers(0, len(whole))), data.draw(st.integers(0, 20))
    damage = data.draw(st.one_of(st.binary(max_size=12), st.sampled_from([b"\0", b"-", b"\n", b"9" * 30, b"/..", b"\\000", b"\xff", b'"'])))
    (shared_node / file).write_bytes(whole[:at] + damage + whole[at + length :])
    try:
        for read in READERS.values():
            found, back = read_json(read, shared_node)
            assert back == found
    finally:
        (shared_node / file).write_bytes(whole)


@pytest.mark.slow
@settings(max_examples=100)
@given(data=st.data())
def test_no_foreign_file_makes_a_reader_fail(shared_node, data):
    file = data.draw(st.sampled_from(files_of(shared_node)))
    whole = (shared_node / file).read_bytes()
    (shared_node / file).write_bytes(data.draw(st.binary(max_size=200)))
    try:
        for read in READERS.values():
            read(shared_node)
    finally:
        (shared_node / file).write_bytes(whole)


def test_nothing_is_written(node):
    before = {file: (node / file).stat().st_mtime_ns for file in files_of(node)}
    read_all(node)
    assert {file: (node / file).stat().st_mtime_ns for file in files_of(node)} == before


def amount(number):
    return "unlimited" if number == resource.RLIM_INFINITY else number


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
