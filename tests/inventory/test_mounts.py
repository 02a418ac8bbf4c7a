"""The file systems of a job, and none behind a server is ever asked for its size."""

import shutil
from pathlib import Path

import pytest
from host_root import MOUNTINFO, fill, x86_node

from gpu_acceptance.inventory import mounts
from gpu_acceptance.inventory.answer import Missing, Why
from gpu_acceptance.inventory.mounts import Space


@pytest.fixture
def node(tmp_path):
    return x86_node(tmp_path)


@pytest.fixture
def asked(monkeypatch, node):
    """The folders whose size was asked for; the answers stay the real ones."""
    folders, really = [], mounts.space_of

    def of(path):
        folders.append(f"/{path.relative_to(node)}".removesuffix("."))
        return really(path)

    monkeypatch.setattr(mounts, "space_of", of)
    return folders


def with_lines(node, *lines):
    return mounts.read(fill(node, {"proc/self/mountinfo": MOUNTINFO + "".join(f"{line}\n" for line in lines)}))


def by_point(found):
    return {mount.mount_point: mount for mount in found.mounts}


def test_those_that_a_job_works_on_and_those_behind_a_network(node):
    found = mounts.read(node)
    assert {mount.mount_point: (mount.fs_type, mount.source, mount.read_only) for mount in found.mounts} == {
        "/dev/shm": ("tmpfs", "tmpfs", False),
        "/": ("ext4", "/dev/nvme0n1p2", False),
        "/raid": ("xfs", "/dev/md1", False),
        "/projects": ("nfs4", "filer:/export/projects", False),
        "/scratch": ("lustre", "mgs@o2ib:/scratch", True),
    }
    assert (found.tmp_mount_point, found.shm_mount_point, found.working_folder_mount_point) == ("/", "/dev/shm", "/raid")


def test_local_file_systems_have_a_size(node):
    real = shutil.disk_usage(node)
    for name in ("/", "/raid", "/dev/shm"):
        found = by_point(mounts.read(node))[name].space
        assert (found.size_bytes, found.free_bytes >= 0) == (real.total, True)


@pytest.mark.parametrize("fs_type", ["nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "wekafs", "cifs", "fuse.sshfs", "fuse", "virtiofs"])
def test_a_file_system_behind_a_server_is_not_asked(node, asked, fs_type):
    found = by_point(with_lines(node, f"70 27 0:60 / /data rw - {fs_type} server:/data rw"))["/data"]
    assert found.space.missing is Why.NOT_SUPPORTED
    assert found.space.detail.startswith("not asked: ")
    assert sorted(asked) == ["/", "/dev/shm", "/raid"]


def test_nor_one_whose_path_leads_through_such_a_server(node, asked):
    (node / "proc/self/cwd").unlink()
    (node / "proc/self/cwd").symlink_to("/projects/disk/job")
    found = with_lines(node, "70 61 259:9 / /projects/disk rw - ext4 /dev/nvme1n1 rw")
    assert found.working_folder_mount_point == "/projects/disk"
    assert by_point(found)["/projects/disk"].space.missing is Why.NOT_SUPPORTED
    assert sorted(asked) == ["/", "/dev/shm"]


def test_nor_one_that_asking_would_mount(node, asked):
    found = with_lines(node, "70 27 0:60 / /raid rw - autofs systemd-1 rw,fd=40")
    assert by_point(found)["/raid"].space.missing is Why.NOT_SUPPORTED
    assert sorted(asked) == ["/", "/dev/shm"]


def test_of_two_on_one_point_the_later_is_seen(node):
    found = with_lines(node, "70 25 0:60 / /dev/shm ro - tmpfs second rw")
    assert [mount.source for mount in found.mounts if mount.mount_point == "/dev/shm"] == ["second"]
    assert by_point(found)["/dev/shm"].read_only


def test_a_file_system_that_its_kernel_turned_read_only(node):
    found = mounts.read(fill(node, {"proc/self/mountinfo": MOUNTINFO.replace("rw,errors=remount-ro", "ro,errors=remount-ro")}))
    assert by_point(found)["/"].read_only


def test_a_container_shows_no_root(node):
    found = mounts.read(fill(node, {"proc/self/mountinfo": "25 24 0:24 / /dev/shm rw - tmpfs tmpfs rw\n"}))
    assert found.tmp_mount_point == Missing(Why.NOT_THERE, "nothing is mounted at or above /tmp")
    assert found.shm_mount_point == "/dev/shm"


def test_without_a_working_folder_the_others_are_there(node):
    (node / "proc/self/cwd").unlink()
    found = mounts.read(node)
    assert found.working_folder_mount_point == Missing(Why.NOT_THERE, str(node / "proc/self/cwd"))
    assert "/" in by_point(found)


def test_a_mount_point_that_is_gone_has_no_size(node):
    shutil.rmtree(node / "raid")
    assert by_point(mounts.read(node))["/raid"].space == Missing(Why.NOT_THERE, str(node / "raid"))


def test_without_a_list_nothing_is_said(node):
    fill(node, {"proc/self/mountinfo": "rubbish\n"})
    found = mounts.read(node)
    assert {answer.missing for answer in vars(found).values()} == {Why.UNREADABLE}


def test_space_of_a_file_system_that_has_none():
    assert mounts.space_of(Path("/proc")) == Missing(Why.NOT_SUPPORTED, "/proc: this file system gives no size")


def test_space_counts_what_this_user_can_have(tmp_path):
    found = mounts.space_of(tmp_path)
    assert isinstance(found, Space)
    assert 0 <= found.free_bytes <= found.size_bytes
