"""Mounted file systems. None that needs a server is ever asked for its size."""

import shutil
import tempfile
from pathlib import Path, PurePosixPath

import pytest
from host_root import MOUNTINFO, fill
from hypothesis import given
from hypothesis import strategies as st

from gpu_acceptance.inventory import mounts
from gpu_acceptance.inventory.answer import Missing, Why
from gpu_acceptance.inventory.mounts import MountEntry

EXAMPLE = "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue"


def read(tmp_path, text):
    return mounts.read_mountinfo(fill(tmp_path, {"proc/self/mountinfo": text}))


def test_the_example_of_the_manual(tmp_path):
    entry = MountEntry(
        folder=PurePosixPath("/mnt1"),
        mount_point=PurePosixPath("/mnt2"),
        options=("rw", "noatime"),
        fs_type="ext3",
        source="/dev/root",
        super_options=("rw", "errors=continue"),
    )
    assert read(tmp_path, f"{EXAMPLE}\n").known == (entry,)


def test_none_many_and_other_optional_fields(tmp_path):
    lines = [
        "1 0 0:1 / / rw - tmpfs tmpfs rw",
        "2 1 0:2 / /a rw shared:2 master:1 unbindable - tmpfs  rw",
        "3 1 0:4 net:[4026] /b rw - nsfs nsfs rw",
    ]
    found = read(tmp_path, "\n".join(lines) + "\n")
    assert [str(entry.mount_point) for entry in found] == ["/", "/a", "/b"]
    assert found[1].source == ""  # the kernel says nothing there


def test_blanks_and_line_breaks_in_names(tmp_path):
    found = read(tmp_path, r"1 0 0:1 / /my\040disk\012\134040 rw - fuse.sshfs me@host:/a\040b rw" + "\n")
    assert str(found[0].mount_point) == "/my disk\n\\040"
    assert found[0].source == "me@host:/a b"


@pytest.mark.parametrize(
    "line",
    [
        "",
        "rubbish",
        EXAMPLE.replace(" - ", " "),
        EXAMPLE.replace("/mnt2", "mnt2"),
        EXAMPLE.replace("/mnt2", "//mnt2"),
        EXAMPLE.replace("/mnt2", "/a/../../etc"),
        EXAMPLE.replace("/mnt2", r"/a\000b"),
        EXAMPLE.removesuffix(" rw,errors=continue"),
    ],
)
def test_a_line_of_another_form_costs_itself_alone_and_is_told(tmp_path, line):
    found = read(tmp_path, f"{EXAMPLE}\n{line}\n{EXAMPLE}\n")
    assert ([str(entry.mount_point) for entry in found], found.odd) == (["/mnt2"] * 2, (line,))
    file = tmp_path / "proc/self/mountinfo"
    assert found.why_odd == Missing(Why.UNREADABLE, f"{file}: 1 line of 3 in no known form: {line!r:.80}"[:200])


def test_without_proc(tmp_path):
    assert mounts.read_mountinfo(tmp_path) == Missing(Why.NOT_THERE, str(tmp_path / "proc/self/mountinfo"))


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


def test_the_mounts_of_a_job_and_those_behind_a_network(node):
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


@pytest.mark.parametrize(
    ("line", "folder", "mount_point"),
    [
        ("70 61 259:9 / /projects/disk rw - ext4 /dev/nvme1n1 rw", "/projects/disk/job", "/projects/disk"),  # its path leads through NFS
        ("70 27 0:60 / /raid rw - autofs systemd-1 rw,fd=40", "/raid/job", "/raid"),  # a question would mount it
    ],
)
def test_a_file_system_is_not_asked_where_the_way_to_it_needs_a_server(node, asked, line, folder, mount_point):
    (node / "proc/self/cwd").unlink()
    (node / "proc/self/cwd").symlink_to(folder)
    found = with_lines(node, line)
    assert found.working_folder_mount_point == mount_point
    assert by_point(found)[mount_point].space.missing is Why.NOT_SUPPORTED
    assert sorted(asked) == ["/", "/dev/shm"]


def test_the_later_of_two_on_one_mount_point_is_visible(node):
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
    answers = (found.mounts, found.tmp_mount_point, found.shm_mount_point, found.working_folder_mount_point)
    assert {answer.missing for answer in answers} == {Why.UNREADABLE}


DRVFS = r"aname=drvfs;path=C:\Program Files\Docker\Docker\resources;symlinkroot=/mnt/"
CASES = Path(__file__).parents[1] / "cases/mountinfo"


@pytest.mark.parametrize(
    ("name", "mount_point", "source", "options"),
    [
        (
            *("01_wsl2_9p.txt", "/Docker/host", "C:\\Program Files\\Docker\\Docker\\resources"),
            f"rw|dirsync|{DRVFS}|access=client|msize=65536|trans=fd|rfd=3|wfd=3",
        ),
        (
            *("02_wsl2_drvfs.txt", "/Docker/host", "drvfs"),
            f"rw|dirsync|{DRVFS}|mmap|access=client|msize=262144|trans=virtio",
        ),
        ("10_no_rw.txt", "/dev/shm", "none", "mode=1777|size=64m"),
        ("03_dash_source.txt", "/mnt/a", "-", "rw|inode64"),
        (
            *("04_overlay_blanks.txt", "/data/u/common/Game 3", "overlayfs"),
            "rw|seclabel|lowerdir=/data/u/Local/Big Studios/current/override:/data/u/base|upperdir=/tmp/g/upper|workdir=/tmp/g/work",
        ),
        ("05_overlay_comma_colon.txt", "/merged", "overlay", "ro|lowerdir=/a,b:/c\\:d|upperdir=/u|workdir=/w|uuid=on"),
        ("06_empty_source.txt", "/tmp/bb", "", "rw|seclabel"),
        ("07_source_with_blanks.txt", "/mnt/disk", "my disk ro", "ro|user_id=0"),
        ("08_torn_options.txt", "/mnt/b", "tmpfs", "rw"),
        ("09_not_utf8.txt", r"/mnt/\xff\xe4", "/dev/sdb1", "rw"),
    ],
)
def test_mounts_as_machines_show_them(tmp_path, name, mount_point, source, options):
    """One mount of each file, and none of the others is lost. The files come from public reports, with other paths; see their README."""
    (tmp_path / "proc/self").mkdir(parents=True)
    shutil.copy(CASES / name, tmp_path / "proc/self/mountinfo")
    found = mounts.read_mountinfo(tmp_path)
    assert str(found[0].mount_point) == "/"
    (entry,) = [entry for entry in found if str(entry.mount_point) == mount_point]
    assert (entry.source, "|".join(entry.super_options)) == (source, options)
    assert len(found.odd) == (name == "08_torn_options.txt")


def test_a_mount_in_no_known_form_is_told_and_hides_what_it_may_hold(node):
    odd = "70 27 0:60 / /tmp rw - tmpfs"
    found = with_lines(node, odd, "continued, no mount")
    assert found.tmp_mount_point.missing is Why.UNREADABLE
    assert "2 lines of 10 in no known form: '70 27 0:60 / /tmp rw - tmpfs'" in found.tmp_mount_point.detail
    assert (found.shm_mount_point, found.working_folder_mount_point) == ("/dev/shm", "/raid")
    assert found.odd_lines == (odd, "continued, no mount")


LINES = [line for name in sorted(CASES.glob("*.txt")) for line in name.read_bytes().split(b"\n") if line]


@given(st.lists(st.sampled_from(LINES) | st.binary(max_size=60), min_size=1, max_size=12), st.data())
def test_no_line_of_any_kind_costs_another_one(lines, data):
    """Real lines and rubbish in any order, the last one torn: each real line is there as it is alone."""
    lines[-1] = lines[-1][: data.draw(st.integers(0, len(lines[-1])))]
    whole = b"\n".join(lines)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "proc/self").mkdir(parents=True)
        (root / "proc/self/mountinfo").write_bytes(whole)
        found, all_of_it = mounts.read_mountinfo(root), mounts.read(root)
        (root / "proc/self/mountinfo").write_bytes(b"1 0 0:1 / / rw - tmpfs tmpfs rw\n" + whole)
        among_others = mounts.read_mountinfo(root)
    known, odd = ((), ()) if isinstance(found, Missing) else (found.known, found.odd)
    assert among_others.known[1:] == known
    assert set(odd) <= set(among_others.odd)
    assert all(isinstance(answer, Missing | str) for answer in (all_of_it.tmp_mount_point, all_of_it.shm_mount_point))


def test_space_is_what_this_user_can_have(tmp_path):
    found = mounts.space_of(tmp_path)
    assert 0 <= found.free_bytes <= found.size_bytes
    assert mounts.space_of(Path("/proc")) == Missing(Why.NOT_SUPPORTED, "/proc: this file system gives no size")
