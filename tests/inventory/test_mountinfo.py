"""/proc/self/mountinfo, line by line: proc_pid_mountinfo(5)."""

from pathlib import PurePosixPath

import pytest
from host_root import fill

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
    assert read(tmp_path, f"{EXAMPLE}\n") == (entry,)


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
def test_a_line_of_another_form_is_no_list_of_mounts(tmp_path, line):
    found = read(tmp_path, f"{EXAMPLE}\n{line}\n{EXAMPLE}\n")
    assert found.missing is Why.UNREADABLE
    assert str(tmp_path / "proc/self/mountinfo") in found.detail


def test_without_proc(tmp_path):
    assert mounts.read_mountinfo(tmp_path) == Missing(Why.NOT_THERE, str(tmp_path / "proc/self/mountinfo"))
